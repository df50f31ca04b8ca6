"""What is timed, and how much of it is recorded."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tachograph.exceptions import ConfigError

__all__ = ["ProfilingConfig", "checked", "present", "configure_profiling"]


class ProfilingConfig(msgspec.Struct, frozen=True):
    """How much of what is timed is recorded.

    Attributes:
        enabled: whether anything is timed at all.
        min_duration_ms: calls that are shorter are neither recorded nor counted.
        log_interval: of the others, the first and every so-manieth is recorded.

    Raises:
        ConfigError: for a value that makes no sense, when it is made and never later.
    """

    enabled: bool = True
    min_duration_ms: float = 0.1
    log_interval: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ConfigError(f"enabled={self.enabled!r}: True or False is expected")
        length = self.min_duration_ms
        if not isinstance(length, (int, float)) or isinstance(length, bool) or not 0 <= length < math.inf:
            raise ConfigError(f"min_duration_ms={length!r}: a number of milliseconds is expected; 0 records every call")
        if not isinstance(self.log_interval, int) or isinstance(self.log_interval, bool) or self.log_interval < 1:
            raise ConfigError(
                f"log_interval={self.log_interval!r}: a whole number of at least 1 is expected; 1 records every call, "
                "and ProfilingConfig(enabled=False) none"
            )


class _Present:
    """What is in force; an object and not a name, for those who time look at it with each call."""

    __slots__ = ("config",)

    def __init__(self) -> None:
        self.config = ProfilingConfig()


present = _Present()


def configure_profiling(config: ProfilingConfig) -> None:
    """Say what is timed from now on, wherever no other config is given.

    With ``enabled=False`` nothing is timed anywhere, whatever config was given to a function or a block.

    Example:
        >>> tachograph.configure_profiling(tachograph.ProfilingConfig(log_interval=10))
        >>> tachograph.configure_profiling(tachograph.ProfilingConfig(enabled=False))
    """
    if config is None:
        raise ConfigError("config=None: give a ProfilingConfig; ProfilingConfig(enabled=False) turns profiling off")
    present.config = checked(config)


def checked(config: Any) -> Any:
    """Return a config, or None.

    Raises:
        ConfigError: if it is something else.
    """
    if config is not None and not isinstance(config, ProfilingConfig):
        raise ConfigError(
            f"config={config!r:.80}: a ProfilingConfig is expected, such as ProfilingConfig(log_interval=10)"
        )
    return config
