"""Time of a span in the calling thread, compared with a timestamped tuple and an empty context manager."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import tachograph as tacho
from benchmarks.child import run_as_child
from benchmarks.measure import Burst, Rows, Spread, append_tuples, bare_loop, make_rows, time_ns
from tachograph import one_logger

__all__ = ["SPANS", "iterations"]

_BUDGET_S = 4.0
_MAX_ROUNDS = 200
_REST_S = 0.002


class _Empty:
    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass


def _empty(rows: Rows, first_step: int) -> None:
    manager = _Empty
    for _step, _metrics in enumerate(rows, first_step):
        with manager():
            pass


def iterations(rows: Rows, first_step: int) -> None:
    """Run empty iterations."""
    iteration = tacho.training_iteration
    for _step, _metrics in enumerate(rows, first_step):
        with iteration():
            pass


def _phases(rows: Rows, first_step: int) -> None:
    phase = tacho.forward
    with tacho.training_iteration():
        for _step, _metrics in enumerate(rows, first_step):
            with phase():
                pass


def _custom_spans(rows: Rows, first_step: int) -> None:
    span = tacho.timed_span
    for _step, _metrics in enumerate(rows, first_step):
        with span("x"):
            pass


def _callbacks(rows: Rows, first_step: int) -> None:
    start, end = one_logger.on_training_single_iteration_start, one_logger.on_training_single_iteration_end
    for _step, _metrics in enumerate(rows, first_step):
        start()
        end()


class _Span(NamedTuple):
    title: str
    burst: Burst
    num_calls: int
    """Calls in a burst; few enough that the writer keeps up, which is measured separately."""


SPANS = {
    "iteration": _Span("with training_iteration()", iterations, 2000),
    "phase": _Span("with forward(), in an iteration", _phases, 2000),
    "callbacks": _Span("on_training_single_iteration_start, _end", _callbacks, 2000),
    "custom": _Span('with timed_span("x")', _custom_spans, 1000),
}


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Alternate between the bare loop, the floor, the empty context manager and the span; flush in between."""
    span = SPANS[name]
    rows = make_rows(span.num_calls)
    costs_ns, ratios, empty_ratios = [], [], []
    with tacho.init("bench", log_dir=folder, console=False) as run, tacho.training_loop(train_iterations_start=0):
        step = 0
        deadline_s = time.monotonic() + _BUDGET_S
        while len(ratios) <= _MAX_ROUNDS and time.monotonic() < deadline_s:
            loop_ns = time_ns(bare_loop, rows, step)
            floor_ns = time_ns(append_tuples, rows, step) - loop_ns
            empty_ns = time_ns(_empty, rows, step) - loop_ns
            cost_ns = time_ns(span.burst, rows, step) - loop_ns
            costs_ns.append(cost_ns)
            ratios.append(cost_ns / floor_ns)
            empty_ratios.append(cost_ns / empty_ns)
            step += len(rows)
            run.flush()
            time.sleep(_REST_S)
    # The first round imports and opens files.
    return {
        "cost_ns": Spread.of(costs_ns[1:]),
        "ratio": Spread.of(ratios[1:]),
        "ratio_to_empty": Spread.of(empty_ratios[1:]),
    }


if __name__ == "__main__":
    run_as_child(measure)
