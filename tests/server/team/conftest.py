"""Fixtures: the same server of a team as in the tests of the sender."""

from __future__ import annotations

from tests.remote.conftest import make_run, team

__all__ = ["make_run", "team"]
