"""Write the journals of runs with known times and losses."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

__all__ = ["write_run"]


def write_run(
    logs: Path,
    name: str,
    *,
    seed: int = 0,
    factor: float = 1.0,
    level: float = 1.0,
    num_steps: int = 600,
    status: str | None = "finished",
    start: dict[str, Any] | None = None,
    step: dict[str, Any] | None = None,
) -> Path:
    """Write a run with steps of 0.2 s times a factor, and a loss times a level.

    Args:
        logs: the log folder.
        name: the name of the run.
        seed: of the noise; the batches are the same in all runs.
        factor: of the time per step.
        level: of the loss.
        num_steps: the number of steps.
        status: of the `end` record; None writes none.
        start: more fields of the `start` record.
        step: more fields of each step.
    """
    of_run, of_batches = random.Random(seed), random.Random(1_000)
    folder = logs / name
    folder.mkdir(parents=True)
    time_s = 1_763_000_000.0 + 1_000 * seed
    facts = {"host": "node1", "gpus": ["H100"], "world_size": 1, "config": {"lr": 1e-3, "seed": seed}}
    records: list[dict[str, Any]] = [
        {
            "event": "start",
            "time": time_s,
            "run_name": name,
            "run_id": f"id-{name}",
            "schema": 1,
            **facts,
            **(start or {}),
        }
    ]
    for number in range(num_steps):
        took_s = 0.2 * factor * math.exp(of_run.gauss(0.0, 0.01))
        time_s += took_s
        loss = level * (2 + 4 * math.exp(-number / 150) + of_batches.gauss(0.0, 0.1) + of_run.gauss(0.0, 0.005))
        memory = {"gpu_mem_allocated": 10.5, "gpu_mem_reserved": 12.0, "cpu_mem_rss_mb": 2048.0}
        values = {"train_loss": loss, "sec_per_step": took_s, **memory, **(step or {})}
        records.append({"event": "step", "time": time_s, "global_step": number, **values})
    if status is not None:
        records.append({"event": "end", "time": time_s, "status": status})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder
