"""Restarting a server that has many runs: how long the first list of them takes.

The dashboard requests both lists: `/api/v1/table`, which keeps an index, and `/api/v1/runs`, which uses that index for
runs that have ended. So the table comes first, as on a server that people have looked at.
"""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.child import run_as_child
from benchmarks.remote.server import pss_mib, start_server
from tachograph.records import encode
from tachograph.remote import Registration, hash_bytes
from tachograph.server.team import RunCopies

__all__: list[str] = []

_NUM_STEPS = 20
_NUM_RESTARTS = 3


def measure(folder: Path, num_runs: str) -> dict[str, Any]:
    """Fill a folder as clients do, start a server over it, and start it again."""
    began_s = time.perf_counter()
    copies = RunCopies(folder / "data")
    for number in range(int(num_runs)):
        run_id, name = f"{number:016x}", f"run-{number}"
        data = _journal(run_id, name)
        copies.register(run_id, Registration(name), "bench").append(0, 0, data, hash_bytes(b""))
    copies.close()
    filled_s = time.perf_counter() - began_s
    found: dict[str, Any] = {"filled_s": filled_s}
    for name, path in (("table", "/api/v1/table"), ("runs", "/api/v1/runs")):
        lists = [_list(folder / "data", path, int(num_runs)) for _ in range(1 + _NUM_RESTARTS)]
        found[name] = {
            "first_s": lists[0][0],
            "again_s": [took_s for took_s, _ in lists[1:]],
            "mib": lists[-1][1],
        }
    return found


def _list(data_dir: Path, path: str, num_runs: int) -> tuple[float, float]:
    """Return how long the first list of a new server takes, and its memory after that."""
    with start_server(data_dir) as server:
        began_s = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=80)
        connection.request("GET", path, headers={"Authorization": f"Bearer {server.token}"})
        answer = connection.getresponse()
        found = msgspec.json.decode(answer.read())
        took_s = time.perf_counter() - began_s
        assert answer.status == 200, found
        assert (found["num_runs"] if "num_runs" in found else len(found["runs"])) == num_runs
        return took_s, pss_mib(server.pid)


def _journal(run_id: str, name: str) -> bytes:
    records: list[dict[str, Any]] = [{"event": "start", "time": 1e9, "run_name": name, "run_id": run_id, "schema": 1}]
    records += [
        {"event": "step", "time": 1e9 + step, "global_step": step, "train_loss": 1 / (step + 1)}
        for step in range(_NUM_STEPS)
    ]
    records.append({"event": "end", "time": 1e9 + _NUM_STEPS, "status": "finished"})
    return b"".join(encode(record) + b"\n" for record in records)


if __name__ == "__main__":
    run_as_child(measure)
