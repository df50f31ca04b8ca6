"""Builds API models from the structs of the reader and the catalog, by the names of their fields."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

__all__ = ["copy_fields"]

Model = TypeVar("Model", bound=msgspec.Struct)


def copy_fields(model: type[Model], source: object, **computed: Any) -> Model:
    """Return an API model with the attributes of an object that have the same names; JSON has no NaN: it becomes null.

    Args:
        model: the class of the API model.
        source: has the attributes; other attributes are ignored.
        computed: fields that the source lacks, or has in another form.
    """
    copied = {
        name: _finite(getattr(source, name))
        for name in model.__struct_fields__
        if name not in computed and hasattr(source, name)
    }
    return model(**copied, **computed)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
