"""Profiling under the names of Axolotl's integration: thin wrappers of `profile_function` and `profile_block`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tachograph.spans import ProfilingConfig, configure_profiling, profile_block, profile_function, profiling_config

__all__ = [
    "DEFAULT_PROFILING_CONFIG",
    "ProfilingConfig",
    "swanlab_profile",
    "swanlab_profiling_context",
    "swanlab_profiling_context_advanced",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_EVERY_CALL = ProfilingConfig(min_duration_ms=0)


class _DefaultProfilingConfig:
    """The config that `configure_profiling` sets, as an object whose attributes can be assigned."""

    def __getattr__(self, name: str) -> Any:
        return getattr(profiling_config(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        fields = {field: getattr(profiling_config(), field) for field in ProfilingConfig.__struct_fields__}
        if name not in fields:
            raise AttributeError(f"a ProfilingConfig has no {name!r}, only {', '.join(fields)}")
        configure_profiling(ProfilingConfig(**{**fields, name: value}))

    def __repr__(self) -> str:
        return repr(profiling_config())


DEFAULT_PROFILING_CONFIG = _DefaultProfilingConfig()
"""`DEFAULT_PROFILING_CONFIG.enabled = False` turns all profiling off."""


def swanlab_profile(function: _Function) -> _Function:
    """Time each call of a method: `@swanlab_profile`. See `tachograph.profile_function`."""
    return profile_function(config=_EVERY_CALL)(function)


def swanlab_profiling_context(trainer: Any, func_name: str) -> profile_block:
    """Time a block of a trainer's method: ``with swanlab_profiling_context(self, "forward_pass"): ...``."""
    return profile_block(f"{type(trainer).__name__}.{func_name}", _EVERY_CALL)


def swanlab_profiling_context_advanced(
    trainer: Any, func_name: str, config: ProfilingConfig | _DefaultProfilingConfig | None = None
) -> profile_block:
    """Time a block, and record the calls that the config selects; by default `DEFAULT_PROFILING_CONFIG` does."""
    profiling_config = None if isinstance(config, _DefaultProfilingConfig) else config
    return profile_block(f"{type(trainer).__name__}.{func_name}", profiling_config)
