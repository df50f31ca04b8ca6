"""Integrations with training frameworks, each imported only by its users. `README.md` says how to add one.

An integration is imported only where it is used. Integrations share `_common`; only `zero_code` and `transformers` (for
`trl`) import others.

`name_from` makes a valid name of a run; it is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.integrations._common.integration_run import name_from

__all__ = ["name_from"]


def __getattr__(name: str) -> Any:
    if name != "name_from":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tachograph.integrations._common.integration_run import name_from

    return name_from
