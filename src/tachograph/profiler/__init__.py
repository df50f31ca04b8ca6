"""Timing one's own functions and blocks: summed up about every second into `profile` records, never one by one.

Example:
    >>> @tachograph.profile
    ... def train_step(batch): ...
    >>> with tachograph.profiling("forward"):
    ...     loss = model(batch)
"""

from tachograph.profiler._config import ProfilingConfig, set_profiling
from tachograph.profiler._timing import profile, profiling

__all__ = ["ProfilingConfig", "profile", "profiling", "set_profiling"]
