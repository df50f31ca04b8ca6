"""Maps metric names to signals, with the names that users added, and converts their values to one unit.

`tachograph.records.SIGNALS` has the names. Values are converted to the unit of the signal if the name of the metric
says that it has another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.records import SIGNALS, plain_name, signal_of

__all__ = ["SIGNALS", "SignalNames", "is_reward", "resolve_signals", "scale_of"]

_MILLISECONDS = re.compile(r"_(ms|msec|milliseconds)_?$")
_PERCENT = re.compile(r"%|(^|[^a-z])(pct|percent)([^a-z]|$)")
# An `f1_score` is not a reward; a score is one only in the namespaces of TRL, verl and the like.
_REWARD = re.compile(
    r"(^|[/_])(reward|rewards|rew|return|returns)([/_]|$)|(^|/)(objective|critic|rollout|episode|env)/scores?(/|$)"
)
_PREFERENCE = re.compile(r"chosen|rejected|margin|accurac")


class SignalNames:
    """The metric names of every signal: the extra names of the user, then the names in `SIGNALS`."""

    def __init__(self, extra_names: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Index the names.

        Args:
            extra_names: more names, by signal. A name that `SIGNALS` gives to another signal is taken from it.
        """
        self._extra_names = {
            plain_name(name): (signal, rank - len(names))
            for signal, names in (extra_names or {}).items()
            for rank, name in enumerate(names)
        }

    def find(self, name: str) -> tuple[str, int] | None:
        """Return the signal of a metric and the rank of this name among the signal's names; None if it is no signal."""
        return self._extra_names.get(plain_name(name)) or signal_of(name)


def resolve_signals(signals: Mapping[str, Any] | None) -> SignalNames:
    """Return the names of all signals.

    Args:
        signals: more metric names by signal, such as ``{"loss": "my/objective", "step_s": ["t_step", "t_iter"]}``.

    Raises:
        ConfigError: if a signal does not exist, or its names are not texts.
    """
    if signals is not None and not isinstance(signals, Mapping):
        raise ConfigError(f"signals={signals!r}: expected a dict, such as signals={{'loss': 'my/objective'}}")
    extra_names: dict[str, tuple[str, ...]] = {}
    owners: dict[str, str] = {}
    for signal, names in (signals or {}).items():
        if signal not in SIGNALS:
            raise ConfigError(f"unknown signal signals.{signal}{did_you_mean(str(signal), SIGNALS)}")
        metric_names = [names] if isinstance(names, str) else names
        if not isinstance(metric_names, (list, tuple)) or not all(
            isinstance(name, str) and name for name in metric_names
        ):
            raise ConfigError(f"signals.{signal}={names!r}: expected the name of a metric, or a list of names")
        for name in metric_names:
            owner = owners.setdefault(plain_name(name), signal)
            if owner != signal:
                raise ConfigError(f"signals.{signal}: {name!r} is the name of signals.{owner} already")
        extra_names[signal] = tuple(metric_names)
    return SignalNames(extra_names)


def scale_of(signal: str, name: str) -> float:
    """Return the factor that converts values of a metric to the unit and the sign of its signal."""
    if signal == "entropy" and plain_name(name) == "train/entropy_loss":
        return -1.0
    if signal == "step_s" and _MILLISECONDS.search(plain_name(name)):
        return 1e-3
    return 1e-2 if signal == "data_share" and _PERCENT.search(name.lower()) else 1.0


def is_reward(name: str) -> bool:
    """Return whether a metric is a reward of reinforcement learning, and not one of preference training."""
    plain = plain_name(name)
    return _REWARD.search(plain) is not None and _PREFERENCE.search(plain) is None
