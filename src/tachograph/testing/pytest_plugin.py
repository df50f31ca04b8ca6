"""The pytest plugin of the package: the fixture `tacho_run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tachograph.testing import MemoryRun


@pytest.fixture
def tacho_run() -> Iterator[MemoryRun]:
    """Return a run in memory that is the current run: ``tachograph.log`` records to ``tacho_run.records``."""
    from tachograph.recorder import watch
    from tachograph.testing import MemoryRun

    run = MemoryRun()
    watch(run, hooks=False)
    yield run
    run.finish()
