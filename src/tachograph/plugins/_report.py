"""`PluginReport`: the changes of a plugin, its effects in training, and the time of its hooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import perf_counter
from types import TracebackType
from typing import Any

__all__ = ["HookTimer", "PluginReport"]

_MAX_NAMES = 200
"""Names kept per change: enough for the parameters of a layer type, not for all layers of a large model."""
_MAX_SAMPLES = 10_000
"""Values kept for the percentiles of one metric between two logs."""


class PluginReport:
    """The report of one plugin. Its metrics appear as `plugin/<name>/<metric>` when the trainer logs.

    Tensors are accepted as metrics and stay where they are until the trainer logs, so no step waits for a GPU.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.changes: dict[str, dict[str, Any]] = {}
        self._num_reported = 0
        self._num_effects_seen = 0
        self._event_s_seen = 0.0
        self._timers: dict[str, HookTimer] = {}
        self._effect_timers: list[HookTimer] = []
        """Timers whose calls are effects."""
        self._latest: dict[str, Any] = {}
        self._sums: dict[str, tuple[Any, Any]] = {}
        self._totals: dict[str, Any] = {}
        self._samples: dict[str, deque[float]] = {}

    def changed(self, what: str, names: Iterable[str] = (), *, count: int | None = None) -> None:
        """Record a change that was made during set-up.

        Args:
            what: the kind of change, such as `parameters frozen`.
            names: the modules or parameters.
            count: how many, if that is not the number of names.
        """
        name_list = list(names)
        entry = self.changes.setdefault(what, {"count": 0, "names": []})
        entry["count"] += len(name_list) if count is None else count
        entry["names"] = [*entry["names"], *name_list][:_MAX_NAMES]

    @property
    def hook_s(self) -> dict[str, float]:
        """The total time per hook."""
        return {hook: timer.seconds for hook, timer in self._timers.items()}

    @property
    def num_effects(self) -> int:
        """How often the plugin took effect."""
        return self._num_reported + sum(timer.num_calls for timer in self._effect_timers)

    def effect(self) -> None:
        """Record that the plugin took effect in this step; cheap enough to call in every step."""
        self._num_reported += 1

    def had_effect(self) -> bool:
        """Return whether the plugin took effect since the last call of this method."""
        before, self._num_effects_seen = self._num_effects_seen, self.num_effects
        return self._num_effects_seen > before

    def set(self, metric: str, value: Any) -> None:
        """Set a metric; the trainer's next log shows the last value."""
        self._latest[metric] = value

    def add(self, metric: str, value: Any, weight: Any = 1) -> None:
        """Add a value to a metric; the trainer's next log shows the weighted mean of the values since the last one."""
        total, count = self._sums.get(metric, (0.0, 0))
        self._sums[metric] = (total + value * weight, count + weight)

    def count(self, metric: str, value: Any) -> None:
        """Add a value to a metric; the trainer's next log shows the sum of the values since the last one."""
        self._totals[metric] = self._totals.get(metric, 0) + value

    def sample(self, metric: str, value: float) -> None:
        """Add a value to a metric; the trainer's next log shows the median and the 95th percentile since the last one.

        They are named `<metric>_p50` and `<metric>_p95`.
        """
        self._samples.setdefault(metric, deque(maxlen=_MAX_SAMPLES)).append(value)

    def timer(self, hook: str, *, is_effect: bool = False) -> HookTimer:
        """Return the timer of a hook, which is a context manager.

        Args:
            hook: the name of the hook.
            is_effect: whether each call is an effect of the plugin.
        """
        timer = self._timers.setdefault(hook, HookTimer())
        if is_effect and timer not in self._effect_timers:
            self._effect_timers.append(timer)
        return timer

    def drain_event_s(self) -> float:
        """Return the time in events of callbacks since the last call."""
        total = sum(timer.seconds for hook, timer in self._timers.items() if hook.startswith("on_"))
        before, self._event_s_seen = self._event_s_seen, total
        return total - before

    def drain(self) -> dict[str, float]:
        """Return the metrics since the last call."""
        latest, self._latest = self._latest, {}
        sums, self._sums = self._sums, {}
        totals, self._totals = self._totals, {}
        metrics = {metric: float(value) for values in (latest, totals) for metric, value in values.items()}
        metrics.update({metric: float(total) / float(count) for metric, (total, count) in sums.items() if float(count)})
        samples, self._samples = self._samples, {}
        for metric, values in samples.items():
            ordered_values = sorted(values)
            for percent in (50, 95):  # the nearest rank: a value that occurred
                rank = -(-len(ordered_values) * percent // 100)
                metrics[f"{metric}_p{percent}"] = ordered_values[rank - 1]
        return metrics


class HookTimer:
    """Adds up the duration of `with` blocks."""

    __slots__ = ("_start_s", "num_calls", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_calls = 0
        self._start_s = 0.0

    def __enter__(self) -> None:
        self._start_s = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += perf_counter() - self._start_s
        self.num_calls += 1
