"""Several loggers in one run: a warning, and a measurement of their cost.

Two kinds of cost can be seen from here. A sink has a process of its own, whose processor time the system counts. A
callback of another logger runs on the training thread; an integration that can time it adds the time. Both are compared
with the time that passes from the first recorded step on, once enough steps have run. A logger that can be measured in
neither way is named in the warning and not in the report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import psutil

from tachograph._base.config import fields_of
from tachograph._base.guard import guard, suppress, warn
from tachograph.recorder._run import Run

__all__ = ["LoggerCosts", "logger_name", "loggers_in", "watch_loggers"]

_MIN_STEPS = 100
_MIN_S = 10.0
"""The system counts processor time in hundredths of a second."""
_MANY = 3

_SWITCHES = {
    "comet": ("use_comet", "comet_api_key", "comet_project_name"),
    "mlflow": ("use_mlflow",),
    "tensorboard": ("use_tensorboard",),
    "trackio": ("use_trackio",),
    "wandb": ("use_wandb", "wandb_project"),
}
"""The options of a training config that turn a logger on; the first one, if it is false, turns it off."""
_NO_LOGGERS = {"all", "codecarbon", "flyte", "kubeflow", "none", "tachograph"}
_ALIASES = {"comet_ml": "comet"}
_NO_TRACKERS = {"otlp", "prometheus"}
"""Sinks that serve another purpose than to look at runs, and are not one logger too many."""


class _Reading(NamedTuple):
    step: int
    wall_s: float
    own_cpu_s: float
    sinks_cpu_s: dict[str, float]
    callbacks_s: dict[str, float]


def loggers_in(config: Any) -> set[str]:
    """Return the loggers that a training config turns on, by its switches and by `report_to`."""
    loggers: set[str] = set()
    with guard("searching the config for loggers"):
        fields = fields_of(config)
        for logger, options in _SWITCHES.items():
            is_off = fields.get(options[0]) is False
            if not is_off and any(fields.get(option) not in (None, False, "") for option in options):
                loggers.add(logger)
        for section in (fields, fields_of(fields.get("training_arguments"))):
            report_to = section.get("report_to")
            names = [report_to] if isinstance(report_to, str) else report_to
            if isinstance(names, (list, tuple)):
                loggers |= {logger_id for name in names if (logger_id := logger_name(str(name))) is not None}
    return loggers


def logger_name(integration: str) -> str | None:
    """Return the logger that an integration of Hugging Face reports to, such as `comet`; None if it is none."""
    return None if integration in _NO_LOGGERS else _ALIASES.get(integration, integration)


def watch_loggers(run: Run, loggers: Iterable[str], sinks: Mapping[str, int] | None = None) -> LoggerCosts | None:
    """Warn if several loggers are active in a run, and measure them.

    Args:
        run: the run.
        loggers: their names, in addition to the names of earlier calls.
        sinks: the process ids of our own sinks, by name.

    Returns:
        None if there is only one logger, or the run is not recorded here.
    """
    if run.folder is None:
        return None
    costs = next((collector for collector in run.collectors if isinstance(collector, LoggerCosts)), None)
    if costs is None:
        costs = LoggerCosts(run)
        run.collectors.append(costs)
    costs.add({*loggers, *(sinks or {})} - _NO_TRACKERS, sinks or {})
    return costs if costs.is_active else None


class LoggerCosts:
    """Measures the loggers of a run; a collector of the run. See the module."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loggers: set[str] = set()
        self._pids: dict[str, int] = {}
        self._callbacks_s: dict[str, float] = {}
        self._begin: _Reading | None = None
        self.is_done = False
        """Whether the costs were reported, or never will be."""

    @property
    def is_active(self) -> bool:
        """Whether there is anything to measure."""
        return len(self._loggers) > 1

    def add(self, loggers: set[str], pids: Mapping[str, int]) -> None:
        """Add loggers, and warn if there are now several."""
        num_before = len(self._loggers)
        self._loggers |= loggers
        self._pids.update(pids)
        names = ", ".join(sorted(self._loggers))
        num_loggers = len(self._loggers)
        if num_loggers == num_before or num_loggers < 2:
            return
        if num_loggers >= _MANY:
            advice = "keep one and turn the others off, unless you compare them"
            warn("%s", f"{num_loggers} loggers are active at once ({names}): {advice}", is_error=True)
        else:
            warn("%s", f"2 loggers are active ({names}): each takes time and memory; one is enough")

    def add_time(self, logger: str, seconds: float) -> None:
        """Add time that the callback of a logger took on the training thread."""
        self._callbacks_s[logger] = self._callbacks_s.get(logger, 0.0) + seconds

    # As a collector of the run ---------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Report the costs once, when enough steps have run since the first one."""
        if self.is_done or not self.is_active:
            return
        step = getattr(self._run.backend, "last_step", None)
        begin = self._begin
        if step is None or (begin is not None and step < begin.step):
            self._begin = None  # a loop that goes back starts again
        elif begin is None:
            self._begin = self._take_reading(step)
        elif step - begin.step >= _MIN_STEPS and time.monotonic() - begin.wall_s >= _MIN_S:
            self.is_done = True
            self._report(begin, self._take_reading(step))

    def close(self) -> None:
        """Stop. Too few steps have run to say anything."""
        self.is_done = True

    forget = close

    def _take_reading(self, step: int) -> _Reading:
        sinks_cpu_s = {name: cpu_s for name, pid in self._pids.items() if (cpu_s := _cpu_s(pid)) is not None}
        return _Reading(step, time.monotonic(), time.process_time(), sinks_cpu_s, dict(self._callbacks_s))

    def _report(self, begin: _Reading, end: _Reading) -> None:
        wall_s = end.wall_s - begin.wall_s
        sinks_s = _difference(begin.sinks_cpu_s, end.sinks_cpu_s)
        # A callback that was not called yet has no entry, but is being timed.
        callbacks_s = _difference(dict.fromkeys(end.callbacks_s, 0.0) | begin.callbacks_s, end.callbacks_s)
        if not sinks_s and not callbacks_s:
            return
        num_steps = end.step - begin.step
        self._run.event(
            "logger_costs",
            step=end.step,
            loggers=sorted(self._loggers),
            num_steps=num_steps,
            wall_s=round(wall_s, 3),
            training_cpu_s=round(end.own_cpu_s - begin.own_cpu_s, 3),
            sink_cpu_s={name: round(seconds, 3) for name, seconds in sinks_s.items()},
            callback_s={name: round(seconds, 4) for name, seconds in callbacks_s.items()},
        )
        parts = [f"{name} took {seconds / wall_s:.1%} of the training time" for name, seconds in callbacks_s.items()]
        parts += [f"the sink {name} used {seconds / wall_s:.1%} of a core" for name, seconds in sinks_s.items()]
        self._run.print_line(f"several loggers, measured over {num_steps} steps: {', '.join(parts)}")


def _difference(begin: Mapping[str, float], end: Mapping[str, float]) -> dict[str, float]:
    return {name: max(end[name] - begin[name], 0.0) for name in end if name in begin}


def _cpu_s(pid: int) -> float | None:
    """Return the processor time of a process and its children; None if it is gone."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.ppid() != os.getpid():
            return None  # the id belongs to another process by now
        process_times = process.cpu_times()
        total_s = (
            process_times.user
            + process_times.system
            + getattr(process_times, "children_user", 0.0)
            + getattr(process_times, "children_system", 0.0)
        )
        for child in _descendants(process):
            with suppress(psutil.Error):
                times = child.cpu_times()
                total_s += times.user + times.system
        return total_s
    return None


def _descendants(process: psutil.Process) -> Iterator[psutil.Process]:
    """Yield the processes below another one, where Linux lists them: psutil would read about every process."""
    if not os.path.exists("/proc/self/task"):
        yield from process.children(recursive=True)
        return
    waiting = [process.pid]
    while waiting:
        parent = waiting.pop()
        with suppress(OSError, psutil.Error):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", encoding="ascii") as file:
                    children = [int(pid) for pid in file.read().split()]
                waiting += children
                yield from (psutil.Process(child) for child in children)
