"""A run of six ranks as they would have recorded it, without processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tachograph.records import PhaseTime, RankWindow
from tests.store import END, START, step, write

__all__ = ["NUM_RANKS", "write_job"]

NUM_RANKS = 6


def _window(number: int, own_s: float) -> dict[str, Any]:
    times = RankWindow(
        last_iteration=16 * number + 15,
        num_iterations=16,
        own=PhaseTime(own_s, 0.001),
        wait=PhaseTime(0.2 - own_s, 0.001),
        data=PhaseTime(0.01, 0.0),
    )
    return {"event": "rank", "time": 1_000.0 + number, **times.to_fields()}


def write_job(folder: Path, stages: int = 0) -> None:
    """Write a run of which rank 4 is 30 % slower from its third window on, and ranks 0 to 2 hung, rank 2 alone.

    Args:
        folder: its folder.
        stages: the number of pipeline stages; ranks with an even number are in the first one of two.
    """

    def mesh(rank: int) -> dict[str, Any]:
        return {"mesh": {"pipeline": rank % stages}} if stages else {}

    records = [
        {**START, **mesh(0)},
        *(step(i, loss=1.0) for i in range(20)),
        *(_window(number, 0.1) for number in range(5)),
        END,
    ]
    write(folder, records)
    (folder / "ranks").mkdir()
    for rank in range(1, NUM_RANKS):
        start = {"event": "start", "time": 999.0, "rank": rank, "world_size": NUM_RANKS, **mesh(rank)}
        own_s = [0.13 if rank == 4 and number >= 2 else 0.1 for number in range(5)]
        lines = [start, *(_window(number, own_s[number]) for number in range(5))]
        lines.append({"event": "end", "time": 1_010.0, "status": "finished"})
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (folder / "ranks" / f"{rank:05d}.jsonl").write_text(text)
    for rank in range(3):
        place = "load" if rank == 2 else "backward"
        text = f'pid {rank}\n\nThread MainThread (1), innermost call last:\n  File "train.py", line 3, in {place}\n'
        text += f"\nThread other ({rank}), innermost call last:\n  elsewhere\n"
        (folder / "ranks" / f"{rank:05d}.stacks.txt").write_text(text)
