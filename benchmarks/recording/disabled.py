"""Time of each call of a disabled run, compared with an empty method and an empty context manager.

``python -m benchmarks.recording.disabled`` prints the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console

import tachograph as tacho
from benchmarks.measure import Spread
from benchmarks.report import Report, time_text
from tachograph import one_logger, wandb

__all__ = ["measure_disabled"]

_NUM_CALLS = 2000
_NUM_ROUNDS = 60
_METRICS = {"train_loss": 0.5, "lr": 3e-4, "grad_norm": 1.0}
_MAX_CALL_RATIO = 5
"""About 100 ns where an empty method takes 20 ns."""
_MAX_BLOCK_RATIO = 2
"""A block is three calls: the function, `__enter__` and `__exit__`."""


class _Empty:
    __slots__ = ()

    def method(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass


_CALL, _BLOCK = "empty.method()", "with make():\n        pass"
"""The baselines: an empty method, and a function that returns an empty context manager."""

_CALLS = (
    "run.log(metrics, step=1)",
    "run.log(train_loss=0.5, step=1)",
    "log(metrics, step=1)",
    "run.log_epoch(1, metrics)",
    "run.log_validation(metrics, step=1)",
    "run.log_test(metrics, step=1)",
    "run.log_checkpoint('model.pt', step=1)",
    "run.log_parent('model.pt')",
    "run.log_summary(metrics)",
    "run.log_completions(rows, step=1)",
    "run.log_error(error)",
    "run.update_config(metrics)",
    "run.event('switch', stage=2)",
    "run.flush()",
    "run.should_stop",
    "run.should_checkpoint",
    "run.log_every",
    "scale.value",
    "completions.add(1, prompt='a', completion='b')",
    "completions.maybe_flush(1)",
    "span.add_attribute('a', 1)",
    "on_start()",
    "on_end()",
)
_WORKING = ("profiled()", "wandb_run.log(metrics)")
"""Calls that do something: call the profiled function, and keep the last values for `summary`."""
_BLOCKS = (
    "training_iteration()",
    "forward()",
    "data_loading()",
    "validation_iteration()",
    "profile_block('augment')",
    "timed_span('augment')",
    "validation_loop()",
    "training_loop(0)",
    "checkpoint_save(1)",
)
_HOT_BLOCKS = tuple(f"with {block}" for block in _BLOCKS[:5])
"""Blocks of every step. The others also check their arguments."""


class DisabledCost(NamedTuple):
    """A call and what it costs."""

    title: str
    cost_ns: Spread
    ratio: Spread
    baseline: str


@contextmanager
def _names() -> Iterator[dict[str, Any]]:
    """Yield what the calls use, with a disabled run."""
    with tacho.init("bench", mode="disabled") as run, wandb.init(mode="disabled") as wandb_run:
        empty = _Empty()
        with tacho.timed_span("x") as span:
            pass
        yield {
            "completions": tacho.Completions(run),
            "empty": empty,
            "error": ValueError("x"),
            "log": tacho.log,
            "make": lambda: empty,
            "metrics": _METRICS,
            "on_end": one_logger.on_training_single_iteration_end,
            "on_start": one_logger.on_training_single_iteration_start,
            "profiled": tacho.profile_function(lambda: None),
            "rows": [{"completion": "x"}],
            "run": run,
            "scale": run.control("lr_scale", 1.0),
            "span": span,
            "wandb_run": wandb_run,
            **{block.partition("(")[0]: getattr(tacho, block.partition("(")[0]) for block in _BLOCKS},
        }


def _loop(statement: str, names: Mapping[str, Any]) -> Callable[[int], float]:
    """Return a function that runs a statement many times and returns the time of one."""
    local = ", ".join(f"{name}={name}" for name in names)
    source = f"def loop(num_calls, {local}):\n  for _ in range(num_calls):\n    {statement}"
    made: dict[str, Any] = {}
    exec(source, dict(names), made)

    def time_ns(num_calls: int) -> float:
        start_ns = time.perf_counter_ns()
        made["loop"](num_calls)
        return (time.perf_counter_ns() - start_ns) / num_calls

    return time_ns


def measure() -> list[DisabledCost]:
    """Alternate between all calls and their baselines, and take medians of the rounds."""
    titles = {_CALL: _CALL, _BLOCK: "with make()", **{call: call for call in (*_CALLS, *_WORKING)}}
    titles |= {f"with {block}:\n        pass": f"with {block}" for block in _BLOCKS}
    with _names() as names:
        loops = {statement: _loop(statement, names) for statement in ("pass", *titles)}
        rounds: list[dict[str, float]] = []
        for _ in range(_NUM_ROUNDS + 1):
            times = {statement: loop(_NUM_CALLS) for statement, loop in loops.items()}
            rounds.append({statement: times[statement] - times["pass"] for statement in titles})
    found = []
    for statement, title in titles.items():
        baseline = _BLOCK if statement.startswith("with ") else _CALL
        costs = [times[statement] for times in rounds[1:]]  # the first round imports and compiles
        ratios = [times[statement] / times[baseline] for times in rounds[1:]]
        found.append(DisabledCost(title, Spread.of(costs), Spread.of(ratios), baseline))
    return found


def measure_disabled(report: Report) -> None:
    report.add_section("A disabled run: time of each call")
    for cost in measure():
        is_block = cost.baseline == _BLOCK
        budget = ""
        if cost.title in _CALLS:
            budget = report.check_budget(f"disabled {cost.title}", cost.ratio.median, _MAX_CALL_RATIO, "×")
        elif cost.title in _HOT_BLOCKS:
            budget = report.check_budget(f"disabled {cost.title}", cost.ratio.median, _MAX_BLOCK_RATIO, "×")
        baseline = "an empty context manager" if is_block else "an empty method"
        report.add_row(cost.title, time_text(cost.cost_ns.median), cost.ratio, baseline, budget=budget)


if __name__ == "__main__":
    _report = Report()
    measure_disabled(_report)
    _report.print(Console())
