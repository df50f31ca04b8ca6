"""The servers of TensorBoard and trackio on the same data: the first chart, requested as their own pages do."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.child import NOT_INSTALLED, ChildError, last_line, run
from benchmarks.dashboard.data import OUTLIER, blocks_of_rows
from benchmarks.dashboard.server import Client, Process
from benchmarks.measure import Spread

__all__ = ["PEERS", "PeerOpened", "free_port", "open_peer", "write_peer"]

_NUM_WARM = 3
_TRACKIO = "import sys, trackio; trackio.show(open_browser=False, block_thread=True, server_port=int(sys.argv[1]))"


class PeerOpened(msgspec.Struct):
    """Time of a peer from process start to a complete chart, and for the same chart again."""

    spawned_s: float
    warm_ms: Spread
    num_points: int
    keeps_outlier: bool


def write_peer(name: str, folder: Path, num_steps: int) -> float:
    """Write the same points with a peer's own code in a child process; return how long it took.

    Raises:
        ChildError: if it failed.
    """
    began_s = time.monotonic()
    done = run(str(folder), "-m", "benchmarks.dashboard.peers", name, str(num_steps))
    if "ModuleNotFoundError" in done.stderr:
        raise ChildError(NOT_INSTALLED)
    if done.returncode != 0:
        raise ChildError(last_line(done.stderr))
    return time.monotonic() - began_s


def _write_tensorboard(num_steps: int) -> None:
    """Write one event per step with ten scalars; `add_scalar` would write ten events."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.scalar.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter("events", max_queue_size=10_000)
    metadata = create_summary_metadata("", "")
    began_s = time.time() - num_steps
    for first, rows in blocks_of_rows(num_steps):
        for step, row in enumerate(rows, first):
            extra = {"metadata": metadata} if step == 0 else {}  # once is enough, and makes reading faster
            values = [
                Summary.Value(tag=tag, tensor=TensorProto(dtype=1, float_val=[value]), **extra)
                for tag, value in row.items()
            ]
            writer.add_event(Event(wall_time=began_s + step, step=step, summary=Summary(value=values)))
    writer.close()


def _write_trackio(num_steps: int) -> None:
    """Write rows in blocks, as its server does."""
    from trackio.sqlite_storage import SQLiteStorage

    for first, rows in blocks_of_rows(num_steps):
        SQLiteStorage.bulk_log("bench", "run", rows, steps=list(range(first, first + len(rows))))


def _start_tensorboard(folder: Path, port: int) -> Process:
    return Process(folder, "-m", "tensorboard.main", "--logdir", "events", "--port", str(port), "--host", "127.0.0.1")


def _start_trackio(folder: Path, port: int) -> Process:
    return Process(folder, "-c", _TRACKIO, str(port))


def _fetch_tensorboard(client: Client) -> list[tuple[int, float]]:
    return [(step, value) for _, step, value in client.json("/data/plugin/scalars/scalars?run=.&tag=train_loss")]


def _fetch_trackio(client: Client) -> list[tuple[int, float]]:
    wanted = {"project": "bench", "runs": [{"run": "run", "run_id": None}], "scalar_only": True}
    found = client.json("/api/get_logs_batch", wanted)
    return [(row["step"], row["train_loss"]) for row in found["data"][0]["logs"]]


class Peer(NamedTuple):
    """Title of a peer, and how to write its data, start its server and fetch a chart."""

    title: str
    write: Callable[[int], None]
    start: Callable[[Path, int], Process]
    fetch_series: Callable[[Client], list[tuple[int, float]]]


PEERS = {
    "tensorboard": Peer("TensorBoard", _write_tensorboard, _start_tensorboard, _fetch_tensorboard),
    "trackio": Peer("trackio", _write_trackio, _start_trackio, _fetch_trackio),
}


def free_port() -> int:
    """Return a port that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def open_peer(name: str, folder: Path, num_steps: int) -> PeerOpened:
    """Start the server of a peer, poll until the last step is there, then time a few more requests.

    Raises:
        ChildError: if it never arrives.
    """
    port = free_port()
    peer = PEERS[name]
    process = peer.start(folder, port)
    client = Client(f"http://127.0.0.1:{port}/")
    try:
        points = _wait(peer, process, client, num_steps)
        spawned_s = process.age_s
        warm_ms = []
        for _ in range(_NUM_WARM):
            began_s = time.perf_counter()
            peer.fetch_series(client)
            warm_ms.append(1000 * (time.perf_counter() - began_s))
    finally:
        client.close()
        process.stop()
    keeps_outlier = any(abs(value - OUTLIER) < 1e-3 for _, value in points)
    return PeerOpened(spawned_s, Spread.of(warm_ms), len(points), keeps_outlier)


def _wait(peer: Peer, process: Process, client: Client, num_steps: int) -> list[tuple[int, float]]:
    while True:
        process.check()
        try:
            points = peer.fetch_series(client)
        except (ChildError, LookupError):
            points = []
        if points and max(step for step, _ in points) == num_steps - 1:
            return points
        time.sleep(0.02)


def _main() -> None:
    name, num_steps = sys.argv[1:]
    PEERS[name].write(int(num_steps))


if __name__ == "__main__":
    _main()
