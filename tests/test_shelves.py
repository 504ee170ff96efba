"""Every module has tests on a shelf of its name, or a line here says where they stand."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent

COVERED_BY = {
    "tensor/abi": "tensor/test_capsule.py",
    "tensor/frameworks": "message/test_codec.py",
    "tensor/header": "message/test_header.py",
    "tensor/memory": "tensor/test_tensor.py",
    "message/writing": "message/test_header.py",
    "file/sink": "file/test_writer.py",
    "file/tags": "file/test_record.py",
    "service/arrival": "service/test_messages.py",
    "service/async_client": "server/test_clients.py",
    "service/client": "server/test_clients.py",
    "service/connection": "server/test_clients.py",
    "service/download": "service/test_operations.py",
    "service/drivers": "service/test_operations.py",
    "service/grpc_transport": "server/test_clients.py",
    "service/retry": "service/test_operations.py",
    "service/script": "service/test_operations.py",
    "service/tls": "server/test_security.py",
    "service/topics": "service/test_operations.py",
    "service/transport": "service/test_operations.py",
    "service/upload": "service/test_operations.py",
    "log/mcap": "log/test_log.py",
    "log/reader": "log/test_log.py",
    "log/writer": "log/test_log.py",
    "formats/archive": "formats/test_convert.py",
    "formats/items": "formats/test_convert.py",
    "formats/dlpw": "formats/test_convert.py",
    "formats/pickled": "formats/test_torch.py",
    "cli/output": "cli/test_main.py",
    "errors": "test_errors.py",
    "server/auth": "server/test_security.py",
    "server/backing": "server/test_store.py",
    "server/budget": "server/test_hub.py",
    "server/certificates": "server/test_security.py",
    "server/directory_store": "server/test_store.py",
    "server/kept_frame": "server/test_hub.py",
    "server/frame_queue": "server/test_hub.py",
    "server/grpc_calls": "server/test_hostile.py",
    "server/health": "server/test_hostile.py",
    "server/heap": "server/test_endurance.py",
    "server/listen": "server/test_app.py",
    "server/log_output": "server/test_app.py",
    "server/memory_store": "server/test_store.py",
    "server/metrics": "server/test_app.py",
    "server/store": "server/test_store.py",
    "server/object_index": "server/test_store.py",
    "server/options": "server/test_app.py",
    "server/prefixes": "server/test_topic_table.py",
    "server/puts": "server/test_put_streams.py",
    "server/responses": "server/test_stored_objects.py",
    "server/service": "server/test_stored_objects.py",
    "server/selection": "server/test_stored_objects.py",
    "server/status": "server/test_hostile.py",
    "server/unfinished": "server/test_unfinished_puts.py",
}


def modules() -> set[str]:
    library = (p.relative_to(ROOT / "dlpack_wire") for p in (ROOT / "dlpack_wire").rglob("*.py") if "v1" not in p.parts)
    server = (Path("server") / p.name for p in (ROOT / "server" / "dlpack_wire_server").glob("*.py"))
    return {str(p.with_suffix("")) for p in (*library, *server) if p.stem not in ("__init__", "__main__")}


def shelf(module: str) -> Path:
    path = TESTS / module
    return path.with_name(f"test_{path.name}.py")


def test_every_module_is_tested_somewhere() -> None:
    missing = {m for m in modules() if not shelf(m).exists() and m not in COVERED_BY}
    assert not missing, f"no shelf of their name, and no line in COVERED_BY: {sorted(missing)}"


def test_the_table_is_true() -> None:
    assert COVERED_BY.keys() <= modules(), f"no such modules: {COVERED_BY.keys() - modules()}"
    assert not {m for m in COVERED_BY if shelf(m).exists() and shelf(m) != TESTS / COVERED_BY[m]}
    assert not {place for place in COVERED_BY.values() if not (TESTS / place).exists()}
