"""Finds numbers in the config of a run, whatever its layout is."""

from __future__ import annotations

from typing import Any

from tachograph.records import finite_or_none

__all__ = ["find_number"]

_MAX_DEPTH = 8


def find_number(config: Any, names: tuple[str, ...], depth: int = 0) -> float | None:
    """Return the first positive number under one of the names, in a config or the sections inside it."""
    if depth >= _MAX_DEPTH:
        return None
    if isinstance(config, dict):
        for name in names:
            number = finite_or_none(config.get(name))
            if number is not None and number > 0:
                return number
        config = list(config.values())
    if isinstance(config, list):
        return next((number for item in config if (number := find_number(item, names, depth + 1)) is not None), None)
    return None
