"""Certificates made for one test run: an authority, a server on loopback, a client, and a stranger."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_certificates(folder: Path) -> None:
    """Write NAME.pem and NAME.key for ca, server, client, and stranger, who has an authority of its own."""
    for authority in ("ca", "other"):
        _openssl(
            "req",
            "-x509",
            *_KEY,
            "-subj",
            f"/CN={authority}",
            "-keyout",
            f"{authority}.key",
            "-out",
            f"{authority}.pem",
            at=folder,
        )
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        (folder / "names").write_text(f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1\n")
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "request", at=folder)
        signer = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
        _openssl("x509", "-req", "-in", "request", *signer, "-extfile", "names", "-out", f"{name}.pem", at=folder)


def _openssl(*arguments: str, at: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=at, check=True, capture_output=True, timeout=30)
