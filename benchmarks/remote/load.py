"""Many trainers and one server on one core: how late records are, and whether its memory stays as it is.

The clients are tasks of one process on another core. They use the protocol of `RunSender`: register, a batch each
second and a beat every five seconds, or as often as the server says, one connection each.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.child import run_as_child
from benchmarks.measure import Spread, make_rows
from benchmarks.remote.server import RunningServer, cpu_s, pss_mib, start_server
from tachograph.records import encode
from tachograph.remote import hash_bytes

__all__: list[str] = []

_RECORDS_PER_S = 10
_FLUSH_S = 1.0
_BEAT_S = 5.0
_WARM_UP_S = 5.0
_SAMPLE_S = 1.0


def measure(folder: Path, num_clients: str, duration_s: str) -> dict[str, Any]:
    """Send from all clients for some seconds."""
    cores = sorted(os.sched_getaffinity(0))
    with start_server(folder / "data", core=cores[0]) as server:
        os.sched_setaffinity(0, set(cores[1:] or cores))
        try:
            return asyncio.run(_run_clients(server, int(num_clients), float(duration_s)))
        finally:
            os.sched_setaffinity(0, set(cores))


async def _run_clients(server: RunningServer, num_clients: int, duration_s: float) -> dict[str, Any]:
    clients = [_Client(server, number) for number in range(num_clients)]
    rows = [encode({"event": "step", "time": 1.7e9, **metrics}) + b"\n" for metrics in make_rows(100)]
    end_s = time.monotonic() + _WARM_UP_S + duration_s
    tasks = [asyncio.create_task(client.run(rows, end_s)) for client in clients]
    await asyncio.sleep(_WARM_UP_S)
    for client in clients:
        client.lags_s.clear()
    sizes, cpu, began_s = [pss_mib(server.pid)], cpu_s(server.pid), time.monotonic()
    while time.monotonic() < end_s - _SAMPLE_S:
        await asyncio.sleep(_SAMPLE_S)
        sizes.append(pss_mib(server.pid))
    share = (cpu_s(server.pid) - cpu) / (time.monotonic() - began_s)
    await asyncio.gather(*tasks)
    lags_s = sorted(lag_s for client in clients for lag_s in client.lags_s)
    tenth = max(1, len(sizes) // 10)
    return {
        "p50_s": lags_s[len(lags_s) // 2],
        "p95_s": lags_s[int(0.95 * len(lags_s))],
        "max_s": lags_s[-1],
        "num_records": len(lags_s),
        "core_percent": 100 * share,
        "start_mib": Spread.of(sizes[:tenth]).median,
        "end_mib": Spread.of(sizes[-tenth:]).median,
        "num_lost": sum(client.num_made - client.num_acknowledged for client in clients),
    }


class _Client:
    def __init__(self, server: RunningServer, number: int) -> None:
        self.lags_s: list[float] = []
        self.num_made = self.num_acknowledged = 0
        self._server = server
        self._run = f"/api/v1/ingest/runs/{number:016x}"
        self._number = number

    async def run(self, rows: list[bytes], end_s: float) -> None:
        """Make records at a steady rate, and send what has gathered each second."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        await self._put(self._run, msgspec.json.encode({"run_name": f"run-{self._number}"}))
        await asyncio.sleep(random.Random(self._number).uniform(0, _FLUSH_S))
        offset, before, beat_s, made_s = 0, b"", 0.0, time.monotonic()
        pause_s = _FLUSH_S
        while (now_s := time.monotonic()) < end_s:
            times = []
            while made_s <= now_s:  # the records that the trainer has written since the last batch
                times.append(made_s)
                made_s += 1 / _RECORDS_PER_S
            data = b"".join(rows[(self.num_made + index) % len(rows)] for index in range(len(times)))
            self.num_made += len(times)
            compressor = zlib.compressobj(1, wbits=31)
            headers = {
                "Content-Encoding": "gzip",
                "Tacho-Bytes": str(len(data)),
                "Tacho-Sha256": hash_bytes(data),
                "Tacho-Before": hash_bytes(before),
                "Tacho-Now": f"{time.time():.3f}",
            }
            body = compressor.compress(data) + compressor.flush()
            answer = await self._put(f"{self._run}/journal/0?offset={offset}", body, **headers)
            pause_s = answer.get("flush_interval_s") or _FLUSH_S
            beat_interval_s = answer.get("beat_interval_s") or _BEAT_S
            done_s = time.monotonic()
            self.lags_s += [done_s - each_s for each_s in times]
            self.num_acknowledged += len(times)
            offset, before = offset + len(data), (before + data)[-4096:]
            if done_s - beat_s >= beat_interval_s:
                await self._put(f"{self._run}/beat", b'{"lag_bytes":0}')
                beat_s = done_s
            await asyncio.sleep(max(0.0, now_s + pause_s - time.monotonic()))
        self._writer.close()

    async def _put(self, path: str, body: bytes, **headers: str) -> dict[str, Any]:
        given = {"Host": "127.0.0.1", "Authorization": f"Bearer {self._server.token}", **headers}
        given["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._writer.write(f"PUT {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        text = await self._reader.readexactly(int(length.partition(b":")[2]))
        assert answer.startswith(b"HTTP/1.1 200 "), text
        reply: dict[str, Any] = msgspec.json.decode(text)
        return reply


if __name__ == "__main__":
    run_as_child(measure)
