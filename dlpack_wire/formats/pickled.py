"""Reading the pickle in a torch file without running it: opcodes in, plain values out.

Unpickling calls whatever the file names. Here nothing is ever called or imported: a global becomes a `Global` with its
name, and a call becomes a `Call` that records the function and its arguments. torch.py knows the few that make tensors.

Source: https://github.com/python/cpython/blob/main/Lib/pickletools.py, which describes every opcode.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import DecodeError


class Global(NamedTuple):
    """A name that a pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Persistent(NamedTuple):
    """A reference to something outside the pickle."""

    key: Any


class Ordered(dict[Any, Any]):
    """An OrderedDict.

    Attributes:
        state: Attributes that the pickle sets on it, or None.
    """

    state: Any = None


@dataclass(eq=False)
class OddKey:
    """A key that is not hashed here, so that its size and nesting do not matter.

    Attributes:
        value: The key.
    """

    value: Any


@dataclass(eq=False)
class Call:
    """A call that a pickle asks for, recorded instead of made.

    Attributes:
        function: The function; a `Global` in any honest file.
        arguments: Its arguments; a tuple in any honest file.
        state: State to be set on the result, or None.
        entries: Entries to be stored in the result by key.
        elements: Elements to be appended to the result.
    """

    function: Any
    arguments: Any
    state: Any = None
    entries: dict[Any, Any] = field(default_factory=dict)
    elements: list[Any] = field(default_factory=list)


_MARK = object()
"""Mark on the stack: several opcodes take all values above the latest one."""

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BYTEARRAY8"),
    )
)


def interpret(pickled: bytes) -> Any:
    """Return the value that a pickle describes.

    Raises:
        DecodeError: The pickle is damaged, or has opcodes that no saved state needs.
    """
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "STOP":
                return machine.pop()
            machine.step(opcode.name, argument)
    except DecodeError:
        raise
    except Exception as error:
        # Whatever Python raises of a damaged opcode; pickletools lets through warnings too, where they are errors.
        raise DecodeError(f"damaged pickle: {type(error).__name__}: {error}") from error
    raise DecodeError("damaged pickle: it has no end")


class _Machine:
    """The pickle machine's stack and memo."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        """Take the top of the stack.

        Raises:
            DecodeError: The value is a mark.
            IndexError: The stack is empty.
        """
        value = self._stack.pop()
        if value is _MARK:
            raise DecodeError("damaged pickle: a mark where a value should be")
        return value

    def _since_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise DecodeError("damaged pickle: no mark")
        values = self._stack[at + 1 :]
        del self._stack[at:]
        return values

    def step(self, name: str, argument: Any) -> None:
        """Follow one opcode.

        Raises:
            DecodeError: The opcode is not one of a saved state, or does not fit the stack.
            IndexError, KeyError, ValueError, TypeError: The same, as found by Python.
        """
        stack = self._stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        else:
            action = _ACTIONS.get(name)
            if action is None:
                raise DecodeError(f"pickle opcode {name}, which no saved state needs")
            action(self, argument)

    # Each of these follows the opcode of its name.

    def proto(self, argument: Any) -> None:
        pass

    def mark(self, argument: Any) -> None:
        self._stack.append(_MARK)

    def memoize(self, argument: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def pop_value(self, argument: Any) -> None:
        self._stack.pop()

    def pop_mark(self, argument: Any) -> None:
        self._since_mark()

    def dup(self, argument: Any) -> None:
        self._stack.append(self._stack[-1])

    def empty_dict(self, argument: Any) -> None:
        self._stack.append({})

    def empty_list(self, argument: Any) -> None:
        self._stack.append([])

    def dict_of(self, argument: Any) -> None:
        values = self._since_mark()
        self._stack.append(dict(zip(map(_key, values[::2]), values[1::2], strict=True)))

    def list_of(self, argument: Any) -> None:
        self._stack.append(self._since_mark())

    def tuple_of(self, argument: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def tuple1(self, argument: Any) -> None:
        self._stack[-1:] = [(self._stack[-1],)]

    def tuple2(self, argument: Any) -> None:
        self._stack[-2:] = [tuple(self._stack[-2:])]

    def tuple3(self, argument: Any) -> None:
        self._stack[-3:] = [tuple(self._stack[-3:])]

    def global_name(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self._stack.append(Global(module, name))

    def stack_global(self, argument: Any) -> None:
        name, module = self.pop(), self.pop()
        # Not `str` of anything: the text of nested lists may be exponentially longer than the pickle.
        if not isinstance(name, str) or not isinstance(module, str):
            raise DecodeError("damaged pickle: a global's name is not text")
        self._stack.append(Global(module, name))

    def persistent(self, argument: Any) -> None:
        self._stack.append(Persistent(self.pop()))

    def call(self, argument: Any) -> None:
        arguments, function = self.pop(), self.pop()
        if function == Global("collections", "OrderedDict") and arguments == ():
            self._stack.append(Ordered())
        else:
            self._stack.append(Call(function, arguments))

    def call_with_keywords(self, argument: Any) -> None:
        keywords, arguments, function = self.pop(), self.pop(), self.pop()
        self._stack.append(Call(function, (arguments, keywords)))

    def empty_set(self, argument: Any) -> None:
        self._stack.append(Call(Global("builtins", "set"), ((),)))

    def frozenset_of(self, argument: Any) -> None:
        self._stack.append(Call(Global("builtins", "frozenset"), (self._since_mark(),)))

    def build(self, argument: Any) -> None:
        state, target = self.pop(), self._stack[-1]
        if isinstance(target, (Call, Ordered)):
            target.state = state
        else:
            raise DecodeError(f"the pickle sets attributes of a {type(target).__name__}")

    def set_item(self, argument: Any) -> None:
        value, key = self.pop(), self.pop()
        self._set(self._stack[-1], [key, value])

    def set_items(self, argument: Any) -> None:
        values = self._since_mark()
        self._set(self._stack[-1], values)

    def append(self, argument: Any) -> None:
        value = self.pop()
        self._extend(self._stack[-1], [value])

    def appends(self, argument: Any) -> None:
        values = self._since_mark()
        self._extend(self._stack[-1], values)

    def _set(self, target: Any, values: list[Any]) -> None:
        entries = target.entries if isinstance(target, Call) else target
        if not isinstance(entries, dict):
            raise DecodeError(f"the pickle stores by key in a {type(entries).__name__}")
        entries.update(zip(map(_key, values[::2]), values[1::2], strict=True))

    def _extend(self, target: Any, values: list[Any]) -> None:
        elements = target.elements if isinstance(target, Call) else target
        if not isinstance(elements, list):
            raise DecodeError(f"the pickle appends to a {type(elements).__name__}")
        elements.extend(values)


def _key(value: Any) -> Any:
    """Return a key that is hashed in bounded time: hashing a tuple would visit all that is nested in it."""
    plain = isinstance(value, (str, int, float, bool, bytes, type(None), Global))
    return value if plain else OddKey(value)


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.proto,
    "FRAME": _Machine.proto,
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.memoize,
    "POP": _Machine.pop_value,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.dup,
    "EMPTY_DICT": _Machine.empty_dict,
    "EMPTY_LIST": _Machine.empty_list,
    "EMPTY_SET": _Machine.empty_set,
    "FROZENSET": _Machine.frozenset_of,
    "ADDITEMS": _Machine.appends,
    "DICT": _Machine.dict_of,
    "LIST": _Machine.list_of,
    "TUPLE": _Machine.tuple_of,
    "TUPLE1": _Machine.tuple1,
    "TUPLE2": _Machine.tuple2,
    "TUPLE3": _Machine.tuple3,
    "GLOBAL": _Machine.global_name,
    "STACK_GLOBAL": _Machine.stack_global,
    "BINPERSID": _Machine.persistent,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_keywords,
    "BUILD": _Machine.build,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
}
