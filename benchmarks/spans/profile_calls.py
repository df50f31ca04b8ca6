"""Time of a profiled block or function in the calling thread, compared with reading the clock twice."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import tachograph as tacho
from benchmarks.child import run_as_child
from benchmarks.measure import Burst, Rows, Spread, bare_loop, make_rows, time_ns
from tachograph.integrations._common.tracer import StepTracer

__all__ = ["TIMED"]

_NUM_CALLS = 2000
_BUDGET_S = 4.0
_MAX_ROUNDS = 200
_REST_S = 0.002


def _clock_twice(rows: Rows, first_step: int) -> None:
    for _step, _metrics in enumerate(rows, first_step):
        perf_counter()
        perf_counter()


def _blocks(rows: Rows, first_step: int) -> None:
    block = tacho.profile_block
    for _step, _metrics in enumerate(rows, first_step):
        with block("x"):
            pass


@tacho.profile_function
def _function() -> None:
    pass


def _functions(rows: Rows, first_step: int) -> None:
    function = _function
    for _step, _metrics in enumerate(rows, first_step):
        function()


class _Trainer:
    @tacho.profile_function
    def step(self) -> None:
        pass


def _methods(rows: Rows, first_step: int) -> None:
    step = _Trainer().step
    for _step, _metrics in enumerate(rows, first_step):
        step()


def _idle_steps(rows: Rows, first_step: int) -> None:
    step = _tracer().step
    for _step, _metrics in enumerate(rows, first_step):
        step()


@functools.cache
def _tracer() -> StepTracer:
    return StepTracer(tacho.current_run())


class _Timed(NamedTuple):
    title: str
    burst: Burst
    min_duration_ms: float = 0.0
    enabled: bool = True
    has_run: bool = True


TIMED = {
    "block": _Timed('with profile_block("x")', _blocks),
    "function": _Timed("@profile_function, a function", _functions),
    "method": _Timed("@profile_function, a method", _methods),
    "short": _Timed("a block too short to be recorded", _blocks, min_duration_ms=0.1),
    "off": _Timed("@profile_function, turned off", _functions, enabled=False),
    "tracer": _Timed("polling for a trace request", _idle_steps),
    "no_run": _Timed("@profile_function without a run", _functions, has_run=False),
}


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Alternate between the bare loop, the clock and the subject; flush in between."""
    timed = TIMED[name]
    rows = make_rows(_NUM_CALLS)
    costs_ns, ratios = [], []
    tacho.configure_profiling(tacho.ProfilingConfig(timed.enabled, timed.min_duration_ms))
    run = tacho.init("bench", log_dir=folder, console=False) if timed.has_run else None
    step = 0
    deadline_s = time.monotonic() + _BUDGET_S
    while len(ratios) <= _MAX_ROUNDS and time.monotonic() < deadline_s:
        loop_ns = time_ns(bare_loop, rows, step)
        floor_ns = time_ns(_clock_twice, rows, step) - loop_ns
        cost_ns = time_ns(timed.burst, rows, step) - loop_ns
        costs_ns.append(cost_ns)
        ratios.append(cost_ns / floor_ns)
        step += len(rows)
        if run is not None:
            run.flush()
        time.sleep(_REST_S)
    if run is not None:
        run.finish()
    # The first round imports and opens files.
    return {"cost_ns": Spread.of(costs_ns[1:]), "ratio": Spread.of(ratios[1:]), "best_ns": min(costs_ns[1:])}


if __name__ == "__main__":
    run_as_child(measure)
