"""The pydantic classes that Axolotl merges into its config class.

Values are not checked by pydantic, but in the same way as the settings of any run, so that messages are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field, create_model, model_validator

from tachograph.integrations.axolotl._options import FIELDS, SWANLAB_FIELDS, check_fields, check_swanlab

__all__ = ["TachographArgs", "TachographSwanLabArgs"]


class _CheckedArgs(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _check_tachograph_fields(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            check_fields(values)
        return values


class _CheckedSwanLabArgs(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _check_swanlab_fields(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            check_swanlab(values)
        return values


def _optional(fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return {
        name: (Any, Field(default=None, description=doc, json_schema_extra={"description": doc}))
        for name, doc in fields
    }


TachographArgs: type[BaseModel] = create_model(
    "TachographArgs", __base__=_CheckedArgs, __module__=__name__, **_optional(FIELDS.items())
)
"""The fields `tachograph_<setting>`."""

TachographSwanLabArgs: type[BaseModel] = create_model(
    "TachographSwanLabArgs",
    __base__=(TachographArgs, _CheckedSwanLabArgs),
    __module__=__name__,
    **_optional((name, "An option of SwanLab.") for name in SWANLAB_FIELDS),
)
"""The same with the fields of SwanLab, for a config that does not list Axolotl's own SwanLab plugin."""
