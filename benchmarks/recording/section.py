"""The sections on recording: the log call, CPU, memory and imports."""

from __future__ import annotations

from typing import Any

from benchmarks.child import ChildError, measure_in_child
from benchmarks.measure import Spread
from benchmarks.recording.imports import measure_import
from benchmarks.recording.kill import LOOPS, measure_kill
from benchmarks.recording.memory import measure_memory
from benchmarks.recording.sinks import SINKS
from benchmarks.recording.subjects import SUBJECTS
from benchmarks.report import Report, time_text

__all__ = ["measure_calls", "measure_cpu", "measure_imports", "measure_kills", "measure_memory_use", "measure_sinks"]

_NUM_KILLS = 5

_CPU_BUDGETS = {"journal": 1.4, "diagnosed": 2.3, "mirrored": 3.0}
"""By subject, compared with encoding and writing the same records."""

_PEERS = ("json", "one_logger", "trackio", "wandb", "tensorboard")
_PEER_IMPORTS = {
    "import nv_one_logger…provider": ("import nv_one_logger.training_telemetry.api.training_telemetry_provider"),
    "import trackio": "import trackio",
    "import wandb": "import wandb",
    "import tensorboard.summary": "import tensorboard.summary",
}


def measure_calls(report: Report) -> None:
    report.add_section("Logging 10 scalars: time in the caller")
    ours: Spread | None = None
    for name in ("dict", "keywords", "disabled", *_PEERS):
        title = SUBJECTS[name].title
        try:
            result = measure_in_child("recording.call", name)
        except ChildError as error:
            report.add_failure(title, error)
            if name in ("dict", "keywords"):
                report.add_unmeasured(title, error)
            continue
        cost, ratio = Spread.read(result["cost_ns"]), Spread.read(result["ratio"])
        budget = ""
        if name in ("dict", "keywords"):
            to_floor = report.check_budget(f"{title}, ratio to the floor", ratio.median, 3, "×")
            budget = f"{to_floor}, {report.check_budget(f'{title}, time', cost.median / 1000, 1, ' µs')}"
        report.add_row(title, time_text(cost.median), ratio, "append a tuple", ours=ours, budget=budget)
        ours = ours or ratio


def measure_cpu(report: Report) -> None:
    report.add_section("CPU of the whole process, per step")
    ours: Spread | None = None
    for name, pace in (*((name, "paced") for name in _CPU_BUDGETS), ("mirrored", "sustained")):
        title = SUBJECTS[name].title if pace == "paced" else "the same in a tight loop"
        try:
            result = measure_in_child("recording.cpu", name, pace)
        except ChildError as error:
            report.add_failure(title, error)
            if pace == "paced":
                report.add_unmeasured(f"CPU per step, {title}", error)
            continue
        ratio = Spread.read(result["ratio"])
        if (name, pace) == ("mirrored", "paced"):
            ours = ratio
        budget = ""
        if pace == "paced":
            budget = report.check_budget(f"CPU per step, {title}", ratio.median, _CPU_BUDGETS[name], "×")
        note = _steps_lost(result["num_lost"]) if result["num_lost"] else budget
        report.add_row(title, _cost(result), ratio, "msgspec encode, write", budget=note)
        report.add_row("", "", Spread.read(result["ratio_to_json"]), "json.dumps, write")
        if pace == "paced":
            report.add_row("idle", f"{result['idle_percent']:.2f} % of a core")
    for name in _PEERS:
        title = SUBJECTS[name].title
        try:
            result = measure_in_child("recording.cpu", name, "few")
        except ChildError as error:
            report.add_failure(title, error)
            continue
        report.add_row(title, _cost(result), Spread.read(result["ratio"]), "msgspec encode, write", ours=ours)


def measure_sinks(report: Report) -> None:
    report.add_section("Sinks: the training process, compared with a run without sinks")
    choices = {"tensorboard": "one: tensorboard", "tensorboard,wandb,mlflow": "three: tensorboard, wandb, mlflow"}
    for names, title in {**choices, ",".join(SINKS): f"all {len(SINKS)}"}.items():
        try:
            result = measure_in_child("recording.sinks", names)
        except ChildError as error:
            report.add_failure(title, error)
            report.add_unmeasured(f"log call with sinks, {title}", error)
            continue
        call, cpu = Spread.read(result["call"]), Spread.read(result["cpu"])
        budget = report.check_budget(f"log call with sinks, {title}", call.median, 1.1, "×")
        report.add_row(f"{title}: log call", "", call, "no sinks", budget=budget)
        report.add_row("CPU of the training process", "", cpu, "no sinks")
        sink = time_text(1000 * Spread.read(result["sink_us"]).median)
        report.add_row("CPU of the processes of the sinks, per step", sink)


def measure_memory_use(report: Report) -> None:
    report.add_section("Memory, 10⁶ steps in a tight loop")
    try:
        memory = measure_memory()
    except ChildError as error:
        report.add_failure("resident memory", error)
        report.add_unmeasured("memory", error)
        return
    over_bare = memory.peak - memory.bare
    budget = report.check_budget("memory over the bare process", over_bare, 20, " MiB")
    report.add_row("peak, over the same loop without recording", f"+{over_bare:.1f} MiB", budget=budget)
    report.add_row("  after imports and init", f"+{memory.after_init - memory.bare:.1f} MiB")
    report.add_row("  added since init", f"+{memory.peak - memory.after_init:.1f} MiB")
    report.add_row("from step 10⁵ to 10⁶", f"{memory.at_end - memory.at_tenth:+.1f} MiB")


def measure_kills(report: Report) -> None:
    report.add_section(f"Lost with kill -9, loops that only log, the worst of {_NUM_KILLS}")
    for title, arguments in LOOPS.items():
        try:
            lost_s = measure_kill(arguments, _NUM_KILLS)
        except ChildError as error:
            report.add_failure(title, error)
            report.add_unmeasured(f"lost with kill -9, {title}", error)
            continue
        budget = report.check_budget(f"lost with kill -9, {title}", lost_s, 1, " s")
        report.add_row(title, f"{lost_s:.2f} s", budget=budget)


def measure_imports(report: Report) -> None:
    report.add_section("Imports, beyond a bare interpreter")
    for title, statement, num_rounds in (
        ("import tachograph", "import tachograph", 15),
        ("import tachograph, and init loaded", "import tachograph; tachograph.init", 15),
        *((title, statement, 3) for title, statement in _PEER_IMPORTS.items()),
    ):
        is_judged = statement == "import tachograph"
        try:
            imported = measure_import(statement, num_rounds)
        except ChildError as error:
            report.add_failure(title, error)
            if is_judged:
                report.add_unmeasured(title, error)
            continue
        budget = f"with {', '.join(imported.heavy)}" if imported.heavy else ""
        if is_judged:
            budget = report.check_budget("modules of import tachograph", imported.num_modules, 50, " modules")
            report.check_budget("heavy packages of import tachograph", len(imported.heavy), 0, "")
        measured = f"{imported.num_modules} modules, {time_text(1e6 * imported.cost_ms.median)}"
        report.add_row(title, measured, imported.ratio, "import json", budget=budget)


def _steps_lost(num_lost: int) -> str:
    return f"{num_lost} step{'' if num_lost == 1 else 's'} lost"


def _cost(result: dict[str, Any]) -> str:
    return time_text(1000 * Spread.read(result["cost_us"]).median)
