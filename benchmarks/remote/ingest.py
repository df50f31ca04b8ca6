"""Receiving batches: the processor time of a team's server per byte, next to a route that inflates and appends."""

from __future__ import annotations

import contextlib
import http.client
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.child import run_as_child
from benchmarks.measure import Spread, make_rows
from benchmarks.remote.server import RunningServer, cpu_s, start_server
from tachograph.records import encode
from tachograph.remote import hash_bytes

__all__: list[str] = []

_NUM_ROUNDS = 15
_ROUND_BYTES = 16 << 20


class _Batch(msgspec.Struct, frozen=True):
    data: bytes
    body: bytes
    sha256: str


def measure(folder: Path, batch_bytes: str) -> dict[str, Any]:
    """Send the same batches to both servers in turn."""
    batch = _make_batch(int(batch_bytes))
    num_batches = max(1, _ROUND_BYTES // len(batch.data))
    ratios, costs_ns, rates = [], [], []
    with contextlib.ExitStack() as stack:
        team = stack.enter_context(start_server(folder / "team", "team"))
        bare = stack.enter_context(start_server(folder / "bare", "bare"))
        team_client, bare_client = _Client(team, is_bare=False), _Client(bare, is_bare=True)
        for _ in range(_NUM_ROUNDS + 1):
            team_s, took_s = team_client.send(batch, num_batches)
            bare_s, _ = bare_client.send(batch, num_batches)
            ratios.append(team_s / bare_s)
            costs_ns.append(1e9 * team_s / (num_batches * len(batch.data)))
            rates.append(num_batches * len(batch.data) / took_s / (1 << 20))
    return {
        "ratio": Spread.of(ratios[1:]),
        "ns_per_byte": Spread.of(costs_ns[1:]),
        "mib_per_s": Spread.of(rates[1:]).median,
        "compression": len(batch.data) / len(batch.body),
    }


class _Client:
    def __init__(self, server: RunningServer, *, is_bare: bool) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self._offset, self._before = 0, b""
        if not is_bare:
            self._put("/api/v1/ingest/runs/bench", b'{"run_name":"bench"}', is_compressed=False)

    def send(self, batch: _Batch, num_batches: int) -> tuple[float, float]:
        """Return the processor time of the server, and the time that passed."""
        cpu, began_s = cpu_s(self._server.pid), time.perf_counter()
        for _ in range(num_batches):
            self._put(
                f"/api/v1/ingest/runs/bench/journal/0?offset={self._offset}",
                batch.body,
                **{
                    "Tacho-Bytes": str(len(batch.data)),
                    "Tacho-Sha256": batch.sha256,
                    "Tacho-Before": hash_bytes(self._before),
                },
            )
            self._offset += len(batch.data)
            self._before = batch.data[-4096:]
        return cpu_s(self._server.pid) - cpu, time.perf_counter() - began_s

    def _put(self, path: str, body: bytes, *, is_compressed: bool = True, **headers: str) -> None:
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        headers["Authorization"] = f"Bearer {self._server.token}"
        self._connection.request("PUT", path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text


def _make_batch(num_bytes: int) -> _Batch:
    lines, size = [], 0
    for step, metrics in enumerate(make_rows(num_bytes // 200)):
        lines.append(encode({"event": "step", "time": 1.7e9 + step, "global_step": step, **metrics}) + b"\n")
        size += len(lines[-1])
        if size + len(lines[-1]) > num_bytes:
            break
    data = b"".join(lines)
    compressor = zlib.compressobj(1, wbits=31)
    return _Batch(data, compressor.compress(data) + compressor.flush(), hash_bytes(data))


if __name__ == "__main__":
    run_as_child(measure)
