"""Memory: a process that records a million steps, sampled by its parent, and one that runs the same loop bare."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import psutil

from benchmarks.child import ChildError, child_environment, temporary_folder
from benchmarks.recording.memory_child import NUM_STEPS, SAMPLE_EVERY

__all__ = ["Memory", "measure_memory"]

_MIB = 1 << 20
_NUM_ROUNDS = 2


class Memory(msgspec.Struct, frozen=True):
    """Resident memory in MiB."""

    bare: float
    """Peak of the same loop without recording."""
    after_init: float
    peak: float
    at_tenth: float
    """At a tenth of the steps; anything above it later is growth."""
    at_end: float


def measure_memory() -> Memory:
    """Run both loops to their end; report the recording loop with the highest peak.

    Raises:
        ChildError: if one of them fails.
    """
    bare = _sizes_mib("bare")
    recorded = max((_sizes_mib("recorded") for _ in range(_NUM_ROUNDS)), key=max)
    return Memory(
        bare=max(bare),
        after_init=recorded[0],
        peak=max(recorded),
        at_tenth=recorded[NUM_STEPS // 10 // SAMPLE_EVERY],
        at_end=recorded[-1],
    )


def _sizes_mib(mode: str) -> list[float]:
    sizes = []
    with temporary_folder() as folder:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.recording.memory_child", mode],
            cwd=folder,
            env=child_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert child.stdin is not None and child.stdout is not None
        with child:
            process = psutil.Process(child.pid)
            for _line in child.stdout:
                sizes.append(process.memory_info().rss / _MIB)
                child.stdin.write("\n")
                child.stdin.flush()
    if child.returncode != 0:
        raise ChildError(f"the {mode} loop ended with {child.returncode}")
    return sizes
