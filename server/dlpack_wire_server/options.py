"""The server's configuration: flags, and for each flag an environment variable."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

DEFAULT_LISTEN = "127.0.0.1:7070"
ENVIRONMENT_PREFIX = "DLPACK_WIRE_"


_CLIENT_VARIABLES = {f"{ENVIRONMENT_PREFIX}{name}" for name in ("TOKEN", "ADDRESS")}
_BOOLEANS = {"": False, **dict.fromkeys(("0", "false", "no", "off"), False)}
_BOOLEANS |= dict.fromkeys(("1", "true", "yes", "on"), True)

_EPILOG = f"""\
Each flag has an environment variable: --grace-s is {ENVIRONMENT_PREFIX}GRACE_S.

The token file names who may read and write which names, by prefix; an empty
prefix stands for every name. In place of "token", "sha256" may hold its hash in
hex. The file is read again when it changes.
  {{"tokens": [{{"name": "robot", "token": "at least 16 characters",
               "read": ["cam/"], "write": ["cam/"]}}]}}
"""


class Options(NamedTuple):
    """Configuration of a server.

    Attributes:
        listen: Addresses: `host:port` (port 0: any free one) or `unix:/path`.
        dir: Folder in which objects are kept; None: in memory.
        max_store_bytes: Maximum bytes of all objects; 0: half of the machine's memory, or no limit in a directory.
        max_object_bytes: Maximum payload bytes of one object; 0: whatever fits the store.
        max_unfinished_bytes: Maximum bytes that one caller's unfinished uploads may take; 0: whatever fits the store,
            and half of it for several.
        max_topic_bytes: Maximum bytes of all frames of topics that are kept; 0: a quarter of the machine's memory.
        max_subscribers: Maximum number of subscriptions.
        upload_retention_s: How long an interrupted upload is kept, and a finished one remembered.
        grace_s: How long calls may go on after SIGTERM.
        scrub_bytes_per_s: Pace at which objects in a folder are read and checked; 0: never.
        token_file: File of tokens; None: everybody may do everything.
        tls_cert: PEM file of the server's certificate chain.
        tls_key: PEM file of its private key.
        tls_client_ca: PEM file of the authorities whose clients are let in; None: no client certificate is asked for.
        insecure: True to let other machines connect in plain text.
        metrics_listen: `host:port` for Prometheus; None: no metrics are served.
        log_format: "text" or "json".
        log_level: The least level that is logged.
    """

    listen: Sequence[str] = (DEFAULT_LISTEN,)
    dir: str | None = None
    max_store_bytes: int = 0
    max_object_bytes: int = 0
    max_unfinished_bytes: int = 0
    max_topic_bytes: int = 0
    max_subscribers: int = 10_000
    upload_retention_s: float = 600.0
    grace_s: float = 10.0
    scrub_bytes_per_s: int = 16 << 20
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    insecure: bool = False
    metrics_listen: str | None = None
    log_format: str = "text"
    log_level: str = "info"


def add_flags(parser: argparse.ArgumentParser, environment: Mapping[str, str] = os.environ) -> None:
    """Add the server's flags; an environment variable such as DLPACK_WIRE_TOKEN_FILE gives a flag's default."""
    defaults = Options()
    unknown = {name for name in environment if name.startswith(ENVIRONMENT_PREFIX)} - _CLIENT_VARIABLES

    def add(flag: str, convert: Callable[[str], Any], text: str, **more: Any) -> None:
        name = flag.replace("-", "_")
        default = getattr(defaults, name)
        variable = ENVIRONMENT_PREFIX + name.upper()
        unknown.discard(variable)
        given = environment.get(variable)
        if given is not None and flag == "listen":
            default = given.split(",")
        elif given is not None:
            try:
                default = convert(given)
            except (ValueError, argparse.ArgumentTypeError) as error:
                parser.error(f"{variable}: {error}")
            if default not in more.get("choices", (default,)):
                parser.error(f"{variable}: must be one of {', '.join(more['choices'])}, not {given!r}")
        parser.add_argument(f"--{flag}", type=convert, default=default, help=text, **more)

    add("listen", str, f"host:port or unix:/path, several times if wanted [{DEFAULT_LISTEN}]", action=_Listen)
    add("dir", str, "keep objects in this folder [in memory]")
    add("max-store-bytes", size, "maximum bytes of all objects, such as 8GiB [half of the memory; no limit with --dir]")
    add("max-object-bytes", size, "maximum payload bytes of one object [whatever fits the store]")
    share = "maximum bytes of one caller's unfinished uploads [whatever fits the store; several: half of that]"
    add("max-unfinished-bytes", size, share)
    add("max-topic-bytes", size, "maximum bytes of all frames that are kept for subscribers [a quarter of the memory]")
    add("max-subscribers", int, "maximum number of subscriptions [10000]")
    add("upload-retention-s", seconds, "how long an interrupted upload can be resumed [600]")
    add("grace-s", seconds, "how long calls may go on after SIGTERM [10]")
    add("scrub-bytes-per-s", size, "pace at which objects in --dir are read and checked for damage; 0: never [16MiB]")
    add("token-file", str, "JSON file of bearer tokens and what they allow, see below [everybody may do everything]")
    add("tls-cert", str, "PEM file of the certificate chain")
    add("tls-key", str, "PEM file of the private key")
    add("tls-client-ca", str, "let in only clients with a certificate of these authorities, a PEM file")
    add("metrics-listen", str, "host:port to serve Prometheus metrics at [none are served]")
    add("log-format", str, "text or json [text]", choices=("text", "json"))
    add("log-level", str, "debug, info, warning or error [info]", choices=("debug", "info", "warning", "error"))
    variable = ENVIRONMENT_PREFIX + "INSECURE"
    unknown.discard(variable)
    insecure = _BOOLEANS.get(environment.get(variable, "").lower())
    if insecure is None:
        parser.error(f"{variable}: must be 1 or 0, true or false, yes or no, not {environment[variable]!r}")
    parser.add_argument(
        "--insecure", action="store_true", default=insecure, help="let other machines connect without TLS"
    )
    if unknown:
        parser.error(f"no flag has the environment variable {', '.join(sorted(unknown))}")


class _Listen(argparse.Action):
    """Collects addresses; the first one given takes the default's place."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        given = getattr(namespace, "_listen_given", ())
        namespace._listen_given = namespace.listen = (*given, values)


def from_flags(namespace: argparse.Namespace) -> Options:
    """Return the options in parsed flags."""
    return Options(**{name: getattr(namespace, name) for name in Options._fields})


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse a command line."""
    parser = argparse.ArgumentParser(
        "dlpack-wire serve",
        description="Serve tensors over gRPC.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    return from_flags(parser.parse_args(arguments))


_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def seconds(text: str) -> float:
    """Parse a time that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def size(text: str) -> int:
    """Parse a size such as `4096`, `500MB` or `8GiB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4096, 500MB or 8GiB")
    return int(float(match[1]) * _UNITS[match[2]])
