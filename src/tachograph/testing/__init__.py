"""Test code that logs: a run in memory, a fake clock, and a pytest fixture.

Example:
    >>> from tachograph.testing import MemoryRun
    >>> run = MemoryRun()
    >>> run.log(train_loss=0.5, step=1)
    >>> run.clock.advance(0.1)
    >>> run.records[-1]["train_loss"]
    0.5

With pytest, the fixture `tacho_run` returns a new `MemoryRun` that is also the current run.
"""

from tachograph.testing._clock import FakeClock
from tachograph.testing._memory import MemoryRun

__all__ = ["FakeClock", "MemoryRun"]
