"""The logs in data/logs, made byte by byte: read here as by the reference reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcap.reader import make_reader
from message_vectors import ERRORS

import dlpack_wire as dw
from dlpack_wire.log import LogReader

FOLDER = Path(__file__).parents[1] / "data" / "logs"
LOGS: dict[str, dict[str, Any]] = json.loads((FOLDER / "logs.json").read_text())
VALID = [name for name, said in LOGS.items() if said["error"] is None]
INVALID = [name for name, said in LOGS.items() if said["error"] is not None]


def test_the_logs_are_those_that_are_made_on_purpose() -> None:
    done = subprocess.run([sys.executable, FOLDER / "make.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", VALID)
def test_valid_logs_are_read(name: str) -> None:
    expected = LOGS[name]["tensors"]
    with LogReader(FOLDER / name) as log:
        found = list(log.read())
    assert [(r.topic, str(r.time_ns), r.sequence) for r in found] == [
        (said["topic"], said["log_time"], said["sequence"]) for said in expected
    ]
    for record, said in zip(found, expected, strict=True):
        tensor = dw.decode(bytes.fromhex(said["message"]))
        assert (record.tensor.header, bytes(record.tensor.payload)) == (tensor.header, bytes(tensor.payload))


@pytest.mark.parametrize("name", VALID)
def test_the_reference_reader_agrees(name: str) -> None:
    with open(FOLDER / name, "rb") as file:
        found = [
            {
                "topic": channel.topic,
                "log_time": str(message.log_time),
                "publish_time": str(message.publish_time),
                "sequence": message.sequence,
                "message": message.data.hex(),
            }
            for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages()
            if schema is not None and schema.name == "dlpack_wire.v1.DLTensor"
        ]
    assert found == LOGS[name]["tensors"]


@pytest.mark.parametrize("name", INVALID)
def test_invalid_logs_are_refused(name: str) -> None:
    with pytest.raises(ERRORS[LOGS[name]["error"]]) as caught, LogReader(FOLDER / name) as log:
        list(log.read())
    assert type(caught.value) is ERRORS[LOGS[name]["error"]]
