"""The pytest fixture that is installed with the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tachograph.testing import MemoryRun


@pytest.fixture
def tacho_run() -> Iterator[MemoryRun]:
    """Give a run in memory that is the current one: ``tachograph.log`` goes to it, ``tacho_run.records`` has it."""
    from tachograph.recorder._process import watch
    from tachograph.testing import MemoryRun

    run = MemoryRun()
    watch(run, hooks=False)
    yield run
    run.finish()
