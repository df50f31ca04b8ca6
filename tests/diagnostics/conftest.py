from __future__ import annotations

import random

import pytest

from tests.diagnostics import SEEDS


@pytest.fixture(params=SEEDS)
def source(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)
