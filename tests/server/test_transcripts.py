"""The transcripts in data/transcripts: what the contract says that a server answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from server_process import running
from transcript_player import FOLDER, SERVICE, TRANSCRIPTS, Player

from dlpack_wire.v1 import tensor_service_pb2 as pb


@pytest.fixture(scope="module", params=["memory", "directory"])
def channel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    flags = ["--dir", str(tmp_path_factory.mktemp("store"))] if request.param == "directory" else []
    with running(*flags) as process, grpc.insecure_channel(process.address) as made:
        yield made


def test_the_transcripts_are_those_that_are_made_on_purpose() -> None:
    done = subprocess.run([sys.executable, FOLDER / "make.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=[transcript["name"] for transcript in TRANSCRIPTS])
def test_the_server_answers_as_the_contract_says(channel: grpc.Channel, transcript: dict[str, Any]) -> None:
    Player(channel).play(transcript)


def test_every_method_and_reason_that_a_caller_can_bring_about_is_in_them() -> None:
    steps = [step for transcript in TRANSCRIPTS for step in transcript["steps"]]
    assert {step["method"] for step in steps} == set(SERVICE.methods_by_name)
    beyond = {"OBJECT_TOO_LARGE", "STORE_FULL", "HEADERS_TOO_LARGE"}  # limits, which differ from server to server
    beyond |= {"SUBSCRIBER_TOO_SLOW", "TOO_MANY_SUBSCRIBERS", "TOO_MANY_REQUESTS"}
    beyond |= {"UNAUTHENTICATED", "PERMISSION_DENIED", "SHUTTING_DOWN", "INTERNAL", "UNSPECIFIED"}
    reasons = {name.removeprefix("ERROR_REASON_") for name in pb.ErrorReason.keys()}  # noqa: SIM118
    assert {step["reason"] for step in steps} - {None} == reasons - beyond
