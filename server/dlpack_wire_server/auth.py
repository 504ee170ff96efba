"""Who may do what: one authorizer for all transports."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from .prefixes import widest
from .status import Refusal

FAILURE_WINDOW_NS = 60 * 10**9
MAX_FAILURES = 20
"""After this many failed attempts in the window a peer's further ones are answered without a reason of their own. Valid
tokens are let in all the same."""

_MAX_PEERS = 4096
_log = logging.getLogger(__name__)
_RELOAD_NS = 10**9


class Credentials(NamedTuple):
    """What a caller has shown.

    Attributes:
        token: The bearer token, or None.
        peer: Address of the peer, without what changes from one connection to the next.
        certified: Name in the certificate that the peer showed, or None.
    """

    token: str | None
    peer: str
    certified: str | None


class HasCredentials(Protocol):
    """A call that can give its caller's credentials. They are read only when needed, because that is slow."""

    @property
    def credentials(self) -> Credentials:
        """What the caller has shown."""


class Caller(NamedTuple):
    """A caller that was let in.

    Attributes:
        owner: Name that its uploads and limits are counted under.
        read: Prefixes of the names that may be read.
        write: Prefixes of the names that may be put and deleted.
    """

    owner: str
    read: tuple[str, ...]
    write: tuple[str, ...]

    def may_read(self, name: str) -> bool:
        """Return True if a name is within the read prefixes."""
        return name.startswith(self.read)

    def readable(self, prefix: str) -> list[str]:
        """Return, sorted, the fewest prefixes that cover the names that begin with `prefix` and may be read."""
        return widest(max(prefix, own) for own in self.read if own.startswith(prefix) or prefix.startswith(own))

    def require_read(self, name: str) -> None:
        """Refuse to read a name outside of them."""
        if not self.may_read(name):
            raise Refusal("PERMISSION_DENIED", f"{self.owner} may not read {name!r}")

    def require_pattern(self, pattern: str) -> None:
        """Refuse a topic, or a prefix and a final `*`, of which no topic may be read."""
        prefix = pattern.removesuffix("*")
        if prefix == pattern or not any(readable.startswith(prefix) for readable in self.read):
            self.require_read(prefix)

    def require_write(self, name: str) -> None:
        """Refuse to write a name outside of the write prefixes."""
        if not name.startswith(self.write):
            raise Refusal("PERMISSION_DENIED", f"{self.owner} may not write {name!r}")


_ANYBODY = Caller("anybody", ("",), ("",))


class Authorizer:
    """Tells callers apart by bearer token. Without a token file everybody who can connect may do everything.

    The file is JSON: `{"tokens": [{"name": "robot", "token": "...", "read": ["cam/"], "write": [""]}]}`. In place of
    `token`, `sha256` may hold its hash in hex. An empty prefix is a prefix of every name. The file is read again when
    it changes; one that cannot be read leaves the last good one in force.

    Attributes:
        version: Grows when the tokens change.
    """

    def __init__(self, path: str | None = None, certificates: bool = False) -> None:
        """Read the token file, if there is one.

        Args:
            path: The token file, or None.
            certificates: Whether callers show certificates, whose names then tell them apart.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is not in the form above.
        """
        self.version = 0
        self._path = path
        self._certificates = certificates
        self._callers: list[tuple[bytes, Caller]] = []
        self._raw = b""
        self._looked_ns = 0
        self._failures: OrderedDict[str, list[int]] = OrderedDict()
        self._complained = False
        if path is not None:
            self._load(path)

    def caller(self, call: HasCredentials) -> Caller:
        """Return who makes a call.

        Raises:
            Refusal: As `identify`.
        """
        if self._path is None and not self._certificates:
            return _ANYBODY
        return self.identify(*call.credentials)

    def still(self, call: HasCredentials) -> Caller | None:
        """Return the caller of a running call by the present tokens, or None. Does not count as an attempt."""
        token, _, certified = call.credentials
        if self._path is None:
            return self._without_tokens(certified)
        return self._lookup(token) if token is not None else None

    @staticmethod
    def _without_tokens(certified: str | None) -> Caller:
        return _ANYBODY if certified is None else _ANYBODY._replace(owner=f"certified {certified}")

    def identify(self, token: str | None, peer: str, certified: str | None) -> Caller:
        """Return who is calling.

        Args:
            token: The bearer token, or None.
            peer: Address of the peer, without what changes from one connection to the next.
            certified: Name in the certificate that the peer showed, or None.

        Raises:
            Refusal: UNAUTHENTICATED, or TOO_MANY_REQUESTS after too many failures of that peer.
        """
        if self._path is None:
            return self._without_tokens(certified)
        self.refresh()
        found = self._lookup(token) if token is not None else None
        if found is not None:  # also of a peer with failures: others may share its address
            return found
        now = time.monotonic_ns()
        failed = [t for t in self._failures.get(peer, ()) if now - t < FAILURE_WINDOW_NS]
        if len(failed) >= MAX_FAILURES:
            raise Refusal("TOO_MANY_REQUESTS", "too many failed attempts; wait a minute")
        if token is not None:
            self._failures[peer] = [*failed, now]
            self._failures.move_to_end(peer)
            if len(self._failures) > _MAX_PEERS:
                self._failures.popitem(last=False)
        raise Refusal("UNAUTHENTICATED", "a valid bearer token is needed" if token is None else "unknown token")

    def _lookup(self, token: str) -> Caller | None:
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Caller | None = None
        for known, caller in self._callers:  # all of them, so that the time tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def refresh(self) -> None:
        """Read the token file again if it has changed and was not looked at within a second."""
        path, now = self._path, time.monotonic_ns()
        if path is None or now - self._looked_ns < _RELOAD_NS:
            return
        self.reload()

    def reload(self) -> None:
        """Read the token file again if its content has changed."""
        path = self._path
        if path is None:
            return
        self._looked_ns = time.monotonic_ns()
        try:
            if self._load(path):
                _log.info("read %s again: %d tokens", path, len(self._callers))
            self._complained = False
        except (OSError, ValueError) as error:
            if not self._complained:
                _log.error("the tokens read before stay in force: %s", error)
            self._complained = True

    def _load(self, path: str) -> bool:
        """Read the file; return False if its bytes are those read before."""
        with open(path, "rb") as f:
            if os.fstat(f.fileno()).st_mode & 0o022:
                raise ValueError(f"{path}: its tokens can be changed by others: `chmod go-w` it")
            raw = f.read()
        if raw == self._raw:
            return False
        try:
            content = json.loads(raw.decode())
        except ValueError as error:
            raise ValueError(f"{path}: not JSON with tokens: {error}") from None
        if not isinstance(content, dict) or not isinstance(content.get("tokens"), list):
            raise ValueError(f'{path}: must be {{"tokens": [...]}}')
        callers: list[tuple[bytes, Caller]] = []
        for i, entry in enumerate(content["tokens"]):
            digest, caller = _read_entry(path, i, entry)
            for j, (other, earlier) in enumerate(callers):
                if other == digest:
                    raise ValueError(f"{path}: token {i} is the same as token {j}")
                if caller.owner == earlier.owner:
                    raise ValueError(f"{path}: token {i} has the name of token {j}, {caller.owner!r}")
            callers.append((digest, caller))
        self._callers = callers
        self._raw = raw
        self.version += 1
        return True


def _read_entry(path: str, position: int, entry: Any) -> tuple[bytes, Caller]:
    where = f"{path}: token {position}"
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be an object")
    unknown = set(entry) - {"name", "token", "sha256", "read", "write"}
    if unknown:
        raise ValueError(f"{where} has unknown keys {sorted(unknown)}")
    name, token, sha256 = entry.get("name"), entry.get("token"), entry.get("sha256")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where} needs a name")
    if isinstance(token, str) and len(token) >= 16 and sha256 is None:
        digest = hashlib.sha256(token.encode()).digest()
    elif isinstance(sha256, str) and re.fullmatch("[0-9a-fA-F]{64}", sha256) and token is None:
        digest = bytes.fromhex(sha256)
    else:
        raise ValueError(f"{where} needs either a token of at least 16 characters or a sha256 of 64 hex digits")
    prefixes: list[tuple[str, ...]] = []
    for key in ("read", "write"):
        given: Sequence[Any] = entry.get(key, [])
        if not isinstance(given, list) or not all(isinstance(p, str) for p in given):
            raise ValueError(f"{where}: {key} must be a list of prefixes")
        prefixes.append(tuple(given))
    return digest, Caller(name, *prefixes)
