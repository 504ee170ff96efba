"""An innocent caller: asks for one object again and again, until its input is closed, and tells how long that took."""

from __future__ import annotations

import json
import sys
import threading
import time

import grpc

from dlpack_wire.service.grpc_transport import SERVICE
from dlpack_wire.v1 import tensor_service_pb2 as pb

PAUSE_S = 0.005


def main() -> None:
    address, token, name = sys.argv[1:]
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    seconds: list[float] = []
    refusals: dict[str, int] = {}
    request = pb.StatRequest(name=name).SerializeToString()
    with grpc.insecure_channel(address) as channel:
        stat = channel.unary_unary(f"/{SERVICE.full_name}/Stat")
        stat(request, timeout=30, metadata=[("authorization", f"Bearer {token}")])
        print("ready", flush=True)
        while not ended.is_set():
            begun = time.perf_counter()
            try:
                stat(request, timeout=30, metadata=[("authorization", f"Bearer {token}")])
            except grpc.RpcError as error:
                code = error.code().name
                refusals[code] = refusals.get(code, 0) + 1
            seconds.append(time.perf_counter() - begun)
            time.sleep(PAUSE_S)
    print(json.dumps({"seconds": seconds, "refusals": refusals}))


if __name__ == "__main__":
    main()
