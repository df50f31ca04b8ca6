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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.testing._clock import FakeClock
    from tachograph.testing._memory import MemoryRun

__all__ = ["FakeClock", "MemoryRun"]


def __getattr__(name: str) -> Any:
    # Every pytest session imports this package for its plugin, and few of them need a run.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tachograph.testing import _clock, _memory

    return getattr(_clock if name == "FakeClock" else _memory, name)
