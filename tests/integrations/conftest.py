"""Shared by the tests of integrations."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def every_step_is_recorded(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the limit off: on a slow machine, sampling would start within the few short steps of a test."""
    monkeypatch.setenv("TACHO_MAX_OVERHEAD", "1")
