"""Generate journals for the dashboard benchmarks: the lines that a trainer writes, without the hours of training."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.child import ChildError, last_line, run
from benchmarks.measure import make_rows

__all__ = ["NUM_METRICS", "OUTLIER", "blocks_of_rows", "encode_points", "generate", "make_journal", "start_line"]

OUTLIER = 4096.5
"""The value of one point of `train_loss`."""

NUM_METRICS = 10
_SIZES = make_rows(1)[0]
_BLOCK = 10_000
_SEC_PER_STEP = 0.1
_OUTLIER_PART = 0.6172839
_PHASES = ("data_fetch", "forward", "backward", "optimizer")


def start_line(name: str, time_s: float, **fields: Any) -> bytes:
    """Return the first line of a journal; pass `process` to make the run appear to be running."""
    record = {
        "event": "start",
        "time": time_s,
        "run_name": name,
        "run_id": hashlib.blake2b(name.encode(), digest_size=8).hexdigest(),
        "schema": 1,
        "resumed": False,
        "log_every": 1,
        "tags": ["bench"],
        "config": {"learning_rate": 3e-4, "batch_size": 32},
        **fields,
    }
    return msgspec.json.encode(record) + b"\n"


def blocks_of_rows(num_steps: int) -> Iterator[tuple[int, list[dict[str, float]]]]:
    """Yield the first step of each block and its rows: full-precision noise and one outlier."""
    for first, values in _blocks_of_values(num_steps, NUM_METRICS):
        yield first, [dict(zip(_SIZES, row, strict=True)) for row in values.tolist()]


def _blocks_of_values(num_steps: int, num_metrics: int) -> Iterator[tuple[int, Any]]:
    import numpy as np

    source = np.random.default_rng(0)
    sizes = np.array(list(_SIZES.values())[:num_metrics])
    outlier_at = int(num_steps * _OUTLIER_PART)
    for first in range(0, num_steps, _BLOCK):
        size = min(_BLOCK, num_steps - first)
        values = sizes * source.uniform(0.5, 1.5, (size, num_metrics))
        if first <= outlier_at < first + size:
            values[outlier_at - first, 0] = OUTLIER
        yield first, values


def make_journal(folder: Path, kind: str, size: int) -> None:
    """Write the journal of a finished run.

    Args:
        folder: the run folder.
        kind: `wide` (ten metrics at each step, as the recorder writes them), `long` (one metric) or `spans`.
        size: number of steps or spans.
    """
    folder.mkdir(parents=True)
    began_s = time.time() - size * _SEC_PER_STEP
    lines = {"wide": _wide, "long": _long, "spans": _spans}[kind]
    with open(folder / "metrics.jsonl", "xb") as file:
        file.write(start_line(folder.name, began_s, max_steps=size))
        for block in lines(size, began_s):
            file.write(block)
        end = {"event": "end", "time": began_s + size * _SEC_PER_STEP, "status": "finished"}
        file.write(msgspec.json.encode(end) + b"\n")


def generate(folder: Path, kind: str, size: int) -> float:
    """Write a journal in a child process, which frees its memory; return how long it took.

    Raises:
        ChildError: if it failed.
    """
    began_s = time.monotonic()
    done = run(str(folder.parent), "-m", "benchmarks.dashboard.data", folder.name, kind, str(size))
    if done.returncode != 0:
        raise ChildError(last_line(done.stderr))
    return time.monotonic() - began_s


def _wide(num_steps: int, began_s: float) -> Iterator[bytes]:
    encode_lines = msgspec.json.Encoder().encode_lines
    for first, rows in blocks_of_rows(num_steps):
        yield encode_lines(
            [
                {
                    "event": "step",
                    "time": began_s + step * _SEC_PER_STEP,
                    "global_step": step,
                    **row,
                    "cpu_mem_rss_mb": 2048.5,
                    "nan_inf_detected": False,
                }
                for step, row in enumerate(rows, first)
            ]
        )


class _Point(msgspec.Struct):
    event: str
    time: float
    global_step: int
    train_loss: float


def encode_points(values: list[float], first: int, began_s: float) -> bytes:
    """Return the lines of steps with one metric."""
    return msgspec.json.Encoder().encode_lines(
        [_Point("step", began_s + step * _SEC_PER_STEP, step, value) for step, value in enumerate(values, first)]
    )


def _long(num_steps: int, began_s: float) -> Iterator[bytes]:
    for first, values in _blocks_of_values(num_steps, 1):
        yield encode_points(values[:, 0].tolist(), first, began_s)


def _spans(num_spans: int, began_s: float) -> Iterator[bytes]:
    """Iterations with four phases each, in one loop."""
    loop = "a" * 16
    lines = [{"event": "span_start", "time": began_s, "span_id": loop, "name": "training_loop"}]
    num_iterations, at_s = (num_spans - 1) // (1 + len(_PHASES)), began_s
    for iteration in range(num_iterations):
        span_id = f"{iteration + 1:016x}"
        lines.append(
            {"event": "span_start", "time": at_s, "span_id": span_id, "parent_id": loop, "name": "training_iteration"}
        )
        began_iteration_s = at_s
        for index, name in enumerate(_PHASES):
            duration_s = 0.01 * (1 + index) * (1 + iteration % 7 / 10)
            at_s += duration_s
            lines.append(_stop("span", at_s, f"{index + 1:x}{iteration:015x}", span_id, name, duration_s))
        lines.append(_stop("span_stop", at_s, span_id, loop, "training_iteration", at_s - began_iteration_s))
        at_s += 0.002
    lines.append(_stop("span_stop", at_s, loop, None, "training_loop", at_s - began_s))
    yield msgspec.json.Encoder().encode_lines(lines)


def _stop(event: str, time_s: float, span_id: str, parent: str | None, name: str, duration_s: float) -> dict[str, Any]:
    record: dict[str, Any] = {"event": event, "time": time_s, "span_id": span_id, "name": name}
    if parent is not None:
        record["parent_id"] = parent
    return {**record, "duration_s": duration_s, "status": "ok"}


def _main() -> None:
    folder, kind, size = sys.argv[1:]
    make_journal(Path(folder), kind, int(size))


if __name__ == "__main__":
    _main()
