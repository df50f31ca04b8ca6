"""Measure everything and print one table: ``make bench``, or ``python -m benchmarks``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

from rich.console import Console

from benchmarks._children import ChildError, ask
from benchmarks._dashboard import measure_dashboard
from benchmarks._imports import measure_import
from benchmarks._measure import Spread
from benchmarks._memory import measure_memory
from benchmarks._profiling import measure_profiling
from benchmarks._report import Report, time_text
from benchmarks._spans import measure_spans
from benchmarks._subjects import SUBJECTS

__all__: list[str] = []

_PEERS = ("json", "one_logger", "trackio", "wandb", "tensorboard")
_PEER_IMPORTS = {
    "import nv_one_logger…provider": ("import nv_one_logger.training_telemetry.api.training_telemetry_provider"),
    "import trackio": "import trackio",
    "import wandb": "import wandb",
    "import tensorboard.summary": "import tensorboard.summary",
}


def _calls(report: Report) -> None:
    report.section("Logging 10 scalars: the caller's time")
    ours: Spread | None = None
    for name in ("dict", "keywords", "disabled", *_PEERS):
        title = SUBJECTS[name].title
        try:
            result = ask("_call", name)
        except ChildError as error:
            report.fault(title, error)
            if name in ("dict", "keywords"):
                report.not_measured(title, error)
            continue
        cost, ratio = Spread.read(result["cost_ns"]), Spread.read(result["ratio"])
        budget = ""
        if name in ("dict", "keywords"):
            to_floor = report.judge(f"{title}, ratio to the floor", ratio.median, 3, "×")
            budget = f"{to_floor}, {report.judge(f'{title}, time', cost.median / 1000, 1, ' µs')}"
        report.row(title, time_text(cost.median), ratio, "append of a tuple", ours=ours, budget=budget)
        ours = ours or ratio


def _cpu(report: Report) -> None:
    report.section("CPU of the whole process, per step")
    ours: Spread | None = None
    for name, pace in (("journal", "paced"), ("mirrored", "paced"), ("mirrored", "sustained")):
        title = SUBJECTS[name].title if pace == "paced" else "the same in a tight loop"
        try:
            result = ask("_cpu", name, pace)
        except ChildError as error:
            report.fault(title, error)
            if name == "journal":
                report.not_measured(f"CPU per step, {title}", error)
            continue
        ratio = Spread.read(result["ratio"])
        if (name, pace) == ("mirrored", "paced"):
            ours = ratio
        budget = report.judge(f"CPU per step, {title}", ratio.median, 1.5, "×") if name == "journal" else ""
        note = f"{result['num_lost']} steps lost" if result["num_lost"] else budget
        report.row(title, _cost(result), ratio, "msgspec encode, write", budget=note)
        report.row("", "", Spread.read(result["ratio_to_json"]), "json.dumps, write")
        if pace == "paced":
            report.row("while nothing is logged", f"{result['idle_percent']:.2f} % of a core")
    for name in _PEERS:
        title = SUBJECTS[name].title
        try:
            result = ask("_cpu", name, "few")
        except ChildError as error:
            report.fault(title, error)
            continue
        report.row(title, _cost(result), Spread.read(result["ratio"]), "msgspec encode, write", ours=ours)


def _memory(report: Report) -> None:
    report.section("Memory, 10⁶ steps in a tight loop")
    try:
        memory = measure_memory()
    except ChildError as error:
        report.fault("resident memory", error)
        report.not_measured("memory", error)
        return
    over_bare = memory.most - memory.bare
    budget = report.judge("memory over the bare process", over_bare, 20, " MiB")
    report.row("the most, over the same loop without it", f"+{over_bare:.1f} MiB", budget=budget)
    report.row("of that: imports and init", f"+{memory.after_init - memory.bare:.1f} MiB")
    report.row("of that: since init", f"+{memory.most - memory.after_init:.1f} MiB")
    report.row("from step 10⁵ to 10⁶", f"{memory.at_end - memory.at_tenth:+.1f} MiB")


def _imports(report: Report) -> None:
    report.section("Imports, beyond a bare interpreter")
    for title, statement, num_rounds in (
        ("import tachograph", "import tachograph", 15),
        ("the same, and ready to record", "import tachograph; tachograph.init", 15),
        *((title, statement, 3) for title, statement in _PEER_IMPORTS.items()),
    ):
        is_judged = statement == "import tachograph"
        try:
            imported = measure_import(statement, num_rounds)
        except ChildError as error:
            report.fault(title, error)
            if is_judged:
                report.not_measured(title, error)
            continue
        budget = f"with {', '.join(imported.heavy)}" if imported.heavy else ""
        if is_judged:
            budget = report.judge("modules of import tachograph", imported.num_modules, 50, " modules")
            report.judge("heavy packages of import tachograph", len(imported.heavy), 0, "")
        measured = f"{imported.num_modules} modules, {time_text(1e6 * imported.cost_ms.median)}"
        report.row(title, measured, imported.ratio, "import json", budget=budget)


def _cost(result: dict[str, Any]) -> str:
    return time_text(1000 * Spread.read(result["cost_us"]).median)


def _main() -> None:
    report = Report()
    sections: dict[str, Callable[[Report], None]] = {
        "calls": _calls,
        "spans": measure_spans,
        "profiling": measure_profiling,
        "CPU": _cpu,
        "memory": _memory,
        "imports": _imports,
        "the dashboard": measure_dashboard,
    }
    with tempfile.TemporaryDirectory(prefix="tachograph-bench-bytecode-") as bytecode:
        # What is installed is compiled. To compile while measuring would count as memory and as time to import.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        with Console(stderr=True).status("") as status:
            for title, measure in sections.items():
                status.update(f"Measuring {title}; a few minutes in all, best on a machine that does nothing else …")
                measure(report)
    report.print(Console())


if __name__ == "__main__":
    _main()
