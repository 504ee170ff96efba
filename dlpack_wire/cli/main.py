"""The command line: `dlpack-wire info|ls|verify|recover|compact|diff|convert|serve|store|put|get|rm|watch`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import __version__, file
from ..errors import DecodeError, NotFoundError, RemoteError, WireError
from ..file import audit, recovery
from ..file.compaction import compact
from ..file.diff import diff
from ..file.reader import contents_of
from ..file.walk import walk
from ..formats.convert import FORMATS, convert
from ..formats.paths import is_stream
from ..tensor.header import Header
from .output import json_metadata, json_problem, print_frame, print_json, print_problems, print_tensors, when
from .terminal import print_facts, print_table, printable, progress

if TYPE_CHECKING:
    from ..file.reader import FileReader
    from ..service.client import Client

OK, BAD_DATA, USAGE, NOT_FOUND, REMOTE, SYSTEM = range(6)
_INTERRUPTED, _BROKEN_PIPE = 130, 141
"""Exit codes that shells give to commands that SIGINT or SIGPIPE ended: 128 and the signal's number."""

EXIT_CODES = """\
exit codes:
  0  done
  1  the data is damaged or cannot be stored; verify, recover: there are problems; diff: the files differ;
     convert: something was left behind
  2  the command line is wrong, or needs an extra that is not installed
  3  no such file, object or tensor
  4  the server refused, or cannot be reached
  5  the operating system refused: permission, disk full, ...
"""

TOKEN = "DLPACK_WIRE_TOKEN"

ADDRESSES = f"""\
An ADDRESS is host:port, unix:/path, or grpcs://host:port for TLS. The token for
it is taken from the environment variable {TOKEN}.
"""

# An argument of `ls` that is not a file: a word and a port, or a scheme. Other arguments are missing files.
_ADDRESS = re.compile(r"unix:.+|grpcs?://.+|(\[[0-9A-Fa-f:.%]+\]|[\w.-]+):\d+")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["serve"]:
            return _serve(given[1:])
        options = _parser().parse_args(given)
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed it. Python flushes at exit and would report it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (WireError, OSError, MissingExtraError) as error:
        return _fail(error)


class MissingExtraError(Exception):
    """A package that the command needs is not installed."""


def _with_extra(extra: str, module: str) -> Any:
    """Import a module that needs an extra.

    Raises:
        MissingExtraError: A package of the extra is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"this needs an extra: pip install 'dlpack-wire[{extra}]' ({error})") from error


def _fail(error: Exception) -> int:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        said = f"{os.fsdecode(error.filename)}: {error.strerror}"
    else:
        said = str(error)
    if isinstance(error, RemoteError) and error.code == "UNAUTHENTICATED":
        said += f" (the token is read from {TOKEN})"
    print(f"dlpack-wire: {printable(said)}", file=sys.stderr)
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return SYSTEM


_CODES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (MissingExtraError, USAGE),
    ((NotFoundError, FileNotFoundError), NOT_FOUND),
    (RemoteError, REMOTE),
    (WireError, BAD_DATA),
)


class Positional(NamedTuple):
    """A positional argument of a command.

    Attributes:
        name: Its name in the parsed options, and in capitals in the help.
        text: Its help text.
        optional: True if it may be left out; it is None then.
    """

    name: str
    text: str
    optional: bool = False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "dlpack-wire",
        description="Tensor files, and tensors on a server.",
        epilog=f"{ADDRESSES}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *positionals: Positional
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        for positional in positionals:
            command.add_argument(
                positional.name,
                metavar=positional.name.upper(),
                nargs="?" if positional.optional else None,
                help=positional.text,
            )
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
        command.set_defaults(run=run, usage_error=command.error)
        return command

    tensor_file = Positional("file", "a tensor file (.dlpw)")
    address = Positional("address", "the server")
    name = Positional("name", "name of the object on the server")
    add("info", _info, "Describe a tensor file: sizes, generations, metadata.", tensor_file)
    add(
        "ls",
        _ls,
        "List the tensors of a file, the objects on a server, or the tensors of one object.",
        Positional("where", "a tensor file, or a server"),
        Positional("name", "an object on that server", optional=True),
    )
    add("verify", _verify, "Check every byte of a tensor file and list all problems.", tensor_file)
    add(
        "recover",
        _recover,
        "Save every whole tensor of a damaged file: into another file, or by mending it in place.",
        tensor_file,
        Positional("target", "the file to write; without it the damaged file itself is mended", optional=True),
    )
    add(
        "compact",
        _compact,
        "Rewrite a tensor file without replaced and removed tensors and old indexes.",
        tensor_file,
        Positional("target", "the file to write; without it the file itself is replaced", optional=True),
    )
    add(
        "diff",
        _diff,
        "Compare two tensor files by values.",
        Positional("first", "a tensor file"),
        Positional("second", "another one"),
    )
    converting = add(
        "convert",
        _convert,
        f"Convert between {', '.join(FORMATS)}, by the files' suffixes; and say what was left behind.",
        Positional("source", "the file to read"),
        Positional("target", "the file to write"),
    )
    converting.add_argument("--from", dest="source_format", choices=FORMATS, help="format of the source")
    converting.add_argument("--to", dest="target_format", choices=FORMATS, help="format of the target")
    converting.add_argument(
        "--only", metavar="NAME", action="append", help="convert this tensor alone; may be given several times"
    )
    converting.add_argument("--without-metadata", action="store_true", help="leave metadata behind")
    converting.add_argument("--drop", action="store_true", help="exit with 0 though something is left behind")
    commands.add_parser("serve", help="Run a server; see `dlpack-wire serve --help`.")
    storing = add("store", _store, "Check or repair the folder of `serve --dir` while no server uses it.")
    storing.add_argument("action", choices=("check", "repair"), help="say what is wrong, or mend it too")
    storing.add_argument("folder", metavar="FOLDER", help="the folder")
    add("put", _put, "Put a tensor file's contents on a server.", address, name, tensor_file)
    add(
        "get",
        _get,
        "Get an object from a server into a tensor file.",
        address,
        name,
        Positional("file", "the file to write; one that exists is replaced"),
    )
    add("rm", _rm, "Remove an object from a server.", address, name)
    watching = add("watch", _watch, "Show the frames of topics as they come, a line each.", address)
    watching.add_argument("patterns", metavar="PATTERN", nargs="+", help="a topic, or a prefix and a final *")
    watching.add_argument(
        "--policy",
        choices=("latest", "drop_oldest", "reliable"),
        default="drop_oldest",
        help="what to do when this terminal is too slow [drop_oldest]",
    )
    watching.add_argument("--skip-retained", action="store_true", help="do not begin with each topic's newest frame")
    watching.add_argument("--count", type=int, default=0, metavar="N", help="end after N frames [never]")
    return parser


def _serve(arguments: list[str]) -> int:
    # Imported by name, because the library never depends on the server, which has flags and help texts of its own.
    return int(_with_extra("server", "dlpack_wire_server.app").main(arguments))


# --- files ------------------------------------------------------------------------------------------------------------


def _info(options: argparse.Namespace) -> int:
    with file.open(options.file) as f:
        stored = list(_stored(f))
        facts: dict[str, Any] = {
            "file": options.file,
            "file_bytes": os.path.getsize(options.file),
            "payload_bytes": sum(header.payload_bytes for _, header, _ in stored),
            "tensors": len(stored),
            "names": len(f),
            "generations": len(walk(contents_of(f).source).ends),
            "dead_bytes": contents_of(f).dead_bytes(),
            "torn_bytes": f.torn_bytes,
        }
        metadata = f.metadata
    if options.json:
        print_json({**facts, "metadata": json_metadata(metadata)})
    else:
        print_facts(facts)
        if metadata:
            print("\nmetadata")
            print_facts({f"  {key}": value for key, value in metadata.items()})
    return OK


def _stored(f: FileReader) -> Iterator[tuple[list[str], Header, int]]:
    """Yield (names, header, position of the payload) of every tensor, in the order of writing."""
    contents = contents_of(f)
    for ordinal, (header, _, entry) in contents.entries():
        yield contents.names(ordinal), header, entry.data_offset


def _ls(options: argparse.Namespace) -> int:
    if os.path.exists(options.where) or not _ADDRESS.fullmatch(options.where):
        if options.name is not None:
            options.usage_error("NAME goes with a server's address, not with a file")
        with file.open(options.where) as f:
            print_tensors(list(_stored(f)), options.json)
        return OK
    with _connect(options, options.where) as client:
        if options.name is not None:
            headers = client.stat(options.name).headers
            print_tensors([([name], header, None) for name, header in headers.items()], options.json)
            return OK
        objects = list(client.list())
    if options.json:
        listed = [{**o._asdict(), "metadata": json_metadata(o.metadata)} for o in objects]
        for facts in listed:
            del facts["headers"]  # not part of a list's answer
        print_json(listed)
    else:
        print_table(
            ("name", "tensors", "bytes", "generation", "put"),
            [(o.name, o.tensor_count, o.payload_bytes, str(o.generation), when(o.created_time_ns)) for o in objects],
        )
    return OK


def _verify(options: argparse.Namespace) -> int:
    problems: list[DecodeError] = []
    count = 0
    try:
        with file.open(options.file) as f:
            count = len(f)
            problems.extend(audit.problems(contents_of(f)))
    except DecodeError as error:
        problems.append(error)
    if options.json:
        listed = list(map(json_problem, problems))
        print_json({"file": options.file, "names": count, "problems": listed})
    elif problems:
        print_problems(problems)
    else:
        print(f"{printable(options.file)}: {count} names, no problems")
    return BAD_DATA if problems else OK


def _recover(options: argparse.Namespace) -> int:
    found = recovery.recover(options.file, options.target)
    if options.json:
        print_json({"names": found.names, "problems": list(map(json_problem, found.problems))})
    else:
        print_problems(found.problems)
        print(f"{printable(options.target or options.file)}: {len(found.names)} names are whole")
    return BAD_DATA if found.problems else OK


def _compact(options: argparse.Namespace) -> int:
    done = compact(options.file, options.target)
    if options.json:
        print_json(done._asdict())
    else:
        where = printable(options.target or options.file)
        print(f"{where}: {len(done.names)} names, {done.before_bytes} bytes before, {done.after_bytes} after")
    return OK


def _diff(options: argparse.Namespace) -> int:
    differences = list(diff(options.first, options.second))
    if options.json:
        print_json([d._asdict() for d in differences])
    else:
        rows = [("(file)" if d.name is None else d.name or "(no name)", d.kind, d.detail) for d in differences]
        if rows:
            print_table(("name", "what", "first and second"), rows)
    return BAD_DATA if differences else OK


def _convert(options: argparse.Namespace) -> int:
    done = 0
    total = os.path.getsize(options.source) if os.path.exists(options.source) else 0  # a URL has no size here
    # What is written to a pipe may be all that is read from our output.
    said = sys.stderr if is_stream(options.target) else sys.stdout
    with progress("convert") as report:

        def note(_: str, payload_bytes: int) -> None:
            nonlocal done
            done += payload_bytes
            if report is not None:
                report(done, max(done, total))

        converted = convert(
            options.source,
            options.target,
            source_format=options.source_format,
            target_format=options.target_format,
            only=options.only,
            without_metadata=options.without_metadata,
            progress=note,
        )
    if options.json:
        facts = {"names": converted.names, "skipped": converted.skipped, "notes": converted.notes}
        print(json.dumps(facts, indent=2), file=said)
    else:
        for noted in converted.notes:
            print(f"dlpack-wire: note: {printable(noted)}", file=sys.stderr)
        for skipped in converted.skipped:
            print(f"dlpack-wire: left behind: {printable(skipped)}", file=sys.stderr)
        print(f"{printable(options.target)}: {len(converted.names)} tensors", file=said)
    return BAD_DATA if converted.skipped and not options.drop else OK


def _store(options: argparse.Namespace) -> int:
    checking = _with_extra("server", "dlpack_wire_server.store_check")
    repair = options.action == "repair"
    with progress(options.action) as report:
        problems = list(checking.check(options.folder, repair=repair, report=report))
    if options.json:
        print_json({"folder": options.folder, "problems": [problem._asdict() for problem in problems]})
    else:
        for problem in problems:
            remedy = f" ({'done' if repair else 'a repair does this'}: {problem.remedy})" if problem.remedy else ""
            print(printable(problem.text + remedy))
        print(f"{printable(options.folder)}: {len(problems) or 'no'} {'problem' if len(problems) == 1 else 'problems'}")
    mended = repair and all(problem.remedy for problem in problems)
    return OK if mended or not problems else BAD_DATA


# --- servers ----------------------------------------------------------------------------------------------------------


def _connect(options: argparse.Namespace, address: str) -> Client:
    client = _with_extra("grpc", "dlpack_wire.service.client")
    try:
        connected: Client = client.connect(address, token=os.environ.get(TOKEN))
    except ValueError as error:
        options.usage_error(str(error))
        raise
    return connected


def _put(options: argparse.Namespace) -> int:
    # Verify: the sums that are sent are computed from what is read here, and would vouch for damaged bytes.
    with (
        file.open(options.file, verify=True) as f,
        _connect(options, options.address) as client,
        progress("put") as report,
    ):
        x: Any = f[""] if list(f) == [""] else f
        generation = client.put(options.name, x, metadata=f.metadata, progress=report)
    return _report(options, "put", generation)


def _get(options: argparse.Namespace) -> int:
    with _connect(options, options.address) as client, progress("get") as report:
        info = client.stat(options.name)
        x = client.get(options.name, generation=info.generation, progress=report)
    file.save(options.file, x, info.metadata)
    return _report(options, "got", info.generation)


def _rm(options: argparse.Namespace) -> int:
    with _connect(options, options.address) as client:
        generation = client.delete(options.name)
    return _report(options, "removed", generation)


def _watch(options: argparse.Namespace) -> int:
    with (
        _connect(options, options.address) as client,
        client.subscribe(options.patterns, policy=options.policy, skip_retained=options.skip_retained) as frames,
    ):
        for count, frame in enumerate(frames, 1):
            print_frame(frame, options.json)
            if count == options.count:
                break
    return OK


def _report(options: argparse.Namespace, done: str, generation: int) -> int:
    if options.json:
        print_json({"name": options.name, "generation": generation})
    else:
        print(f"{done} {printable(options.name)}, generation {generation}")
    return OK
