"""The configuration of profiling."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tachograph.exceptions import ConfigError

__all__ = ["ProfilingConfig", "check_config", "active", "configure_profiling", "profiling_config"]


class ProfilingConfig(msgspec.Struct, frozen=True):
    """Which calls are recorded.

    Attributes:
        enabled: whether anything is timed.
        min_duration_ms: shorter calls are neither recorded nor counted.
        log_interval: record the first of the remaining calls and then every n-th one.

    Raises:
        ConfigError: for an invalid value, when the config is created.
    """

    enabled: bool = True
    min_duration_ms: float = 0.1
    log_interval: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ConfigError(f"enabled={self.enabled!r}: expected True or False")
        length = self.min_duration_ms
        if not isinstance(length, (int, float)) or isinstance(length, bool) or not 0 <= length < math.inf:
            raise ConfigError(f"min_duration_ms={length!r}: expected a number of milliseconds; 0 records every call")
        if not isinstance(self.log_interval, int) or isinstance(self.log_interval, bool) or self.log_interval < 1:
            raise ConfigError(
                f"log_interval={self.log_interval!r}: expected an integer of at least 1; 1 records every call, "
                "and ProfilingConfig(enabled=False) none"
            )


class _Active:
    """The active config. An attribute of an object, because it is read on every call."""

    __slots__ = ("config",)

    def __init__(self) -> None:
        self.config = ProfilingConfig()


active = _Active()


def configure_profiling(config: ProfilingConfig) -> None:
    """Set the config of all functions and blocks that have none of their own.

    With ``enabled=False`` nothing is timed anywhere, not even functions and blocks with a config of their own.

    Example:
        >>> tachograph.configure_profiling(tachograph.ProfilingConfig(log_interval=10))
        >>> tachograph.configure_profiling(tachograph.ProfilingConfig(enabled=False))
    """
    if config is None:
        raise ConfigError("config=None: expected a ProfilingConfig; ProfilingConfig(enabled=False) turns profiling off")
    active.config = check_config(config)


def profiling_config() -> ProfilingConfig:
    """Return the config that `configure_profiling` has set."""
    return active.config


def check_config(config: Any) -> Any:
    """Return a config or None.

    Raises:
        ConfigError: if it is anything else.
    """
    if config is not None and not isinstance(config, ProfilingConfig):
        raise ConfigError(
            f"config={config!r:.80}: expected a ProfilingConfig, such as ProfilingConfig(log_interval=10)"
        )
    return config
