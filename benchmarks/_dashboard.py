"""The section on the dashboard: opening, zooming, watching, idling; what it holds in memory; what the peers' take."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from benchmarks._children import ChildError, ask, temporary_folder
from benchmarks._dashboard_browser import NUM_SPANS, UPDATES_PER_SEC
from benchmarks._dashboard_data import NUM_METRICS, generate
from benchmarks._dashboard_idle import NUM_LIVE, measure_idle
from benchmarks._dashboard_open import Opened, index_run, list_runs, make_list, open_run, zoom
from benchmarks._dashboard_peers import PEERS, PeerOpened, open_peer, write_peer
from benchmarks._dashboard_server import Memory
from benchmarks._measure import Spread
from benchmarks._report import Report, time_text

__all__ = ["measure_dashboard"]

_NUM_STEPS = 1_000_000
_NUM_LONG = 10_000_000
_NUM_SMALL = 200_000
"""Steps of the run that is also shown by the peers, whose writers would take minutes for more."""
_NUM_ZOOMS = 30
_NUM_RUNS = 500
_NUM_ROUNDS = 3
_LEAST_FREE_BYTES = 6 << 30
_LIMIT_MIB = 300
_GIB = 1 << 30


class _Prepared(msgspec.Struct):
    """The data, made by two processes at a time while nothing is measured."""

    made_s: dict[str, Future[float]]
    folder: Path

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def need(self, name: str) -> float:
        """Return how long it took to make some of it.

        Raises:
            ChildError: if it could not be made.
        """
        return self.made_s[name].result()


def measure_dashboard(report: Report) -> None:
    """Measure all of it, in a folder that goes away."""
    report.section("The dashboard: `tacho ui`, over HTTP")
    with temporary_folder() as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
            report.not_measured("the dashboard", f"needs {_LEAST_FREE_BYTES / _GIB:.0f} GiB of disk for a while")
            return
        prepared = _prepare(folder)
        for measure in (_open, _peers, _zoom, _list, _idle, _pixel, _timeline):
            measure(report, prepared)


def _prepare(folder: Path) -> _Prepared:
    logs = folder / "logs"
    logs.mkdir()
    jobs: dict[str, tuple[Callable[..., float], Any]] = {
        "long": (_make_long, (logs,)),
        "tensorboard": (write_peer, ("tensorboard", folder, _NUM_SMALL)),
        "trackio": (write_peer, ("trackio", folder, _NUM_SMALL)),
        "small": (generate, (logs / "small", "wide", _NUM_SMALL)),
        "wide": (generate, (logs / "wide", "wide", _NUM_STEPS)),
    }
    with ThreadPoolExecutor(2) as pool:
        made_s = {name: pool.submit(make, *arguments) for name, (make, arguments) in jobs.items()}
    return _Prepared(made_s, folder)


def _make_long(logs: Path) -> float:
    generate(logs / "long", "long", _NUM_LONG)
    return index_run(logs, "long")


def _tried(report: Report, title: str, budgets: tuple[str, ...], measure: Callable[[], Any]) -> Any:
    """Return what was measured, or None once the reason why not is in the table."""
    try:
        return measure()
    except ChildError as error:
        report.fault(title, error)
        for budget in budgets:
            report.not_measured(budget, error)
        return None


def _memory(report: Report, when: str, memory: Memory) -> None:
    """Judge all pages that the process has in memory, those of the cache's files too, which the system may drop."""
    budget = report.judge(f"the server's memory {when}", memory.rss, _LIMIT_MIB, " MiB")
    note = f"{budget}; PSS {memory.pss:.0f}, in no file {memory.anonymous:.0f}"
    report.row("  its memory then (RSS)", f"{memory.rss:.0f} MiB", budget=note)


def _seconds(values: list[float]) -> str:
    """Return the median, and the least and the most where there are several."""
    median = Spread.of(values).median
    unit, size = ("s", 1) if median >= 1 else ("ms", 1000)
    spread = f" ({size * min(values):.3g}–{size * max(values):.3g})" if len(values) > 1 else ""
    return f"{size * median:.3g}{spread} {unit}"


def _open(report: Report, prepared: _Prepared) -> None:
    title = f"cold open, 10⁶ steps × {NUM_METRICS}, no cache"

    def measure() -> tuple[list[Opened], list[Opened], list[float]]:
        prepared.need("wide")
        cold = [open_run(prepared.logs, "wide", is_cold=True)]
        warm = [open_run(prepared.logs, "wide", is_cold=False) for _ in range(_NUM_ROUNDS)]
        bare = [ask("_dashboard_open", str(prepared.logs / "wide"))["took_ms"] for _ in range(_NUM_ROUNDS)]
        return cold, warm, bare

    found = _tried(report, title, ("cold open",), measure)
    if found is None:
        return
    cold, warm, bare = found
    size_mb = (prepared.logs / "wide" / "metrics.jsonl").stat().st_size / 1e6
    report.row(title, _seconds([item.whole_s for item in cold]), budget=f"{size_mb:.0f} MB, until all is in")
    part = f"{100 * cold[0].indexed:.0f} % of it"
    report.row("  the first answer of it", _seconds([item.first_s for item in cold]), budget=part)
    _memory(report, "after a cold open", cold[-1].memory)
    report.row("the same with its cache", _seconds([item.whole_s for item in warm]), budget="the first answer")
    report.row("  from the start of the process", _seconds([item.spawned_s for item in warm]))
    report.row("  without a server (StoredRun)", time_text(1e6 * Spread.of(bare).median), budget="imports not counted")


def _peers(report: Report, prepared: _Prepared) -> None:
    """Take turns, always from the start of the process; the first turn, in which code is compiled, does not count."""
    title = f"start to chart, 2·10⁵ × {NUM_METRICS}, no cache"
    theirs: dict[str, list[PeerOpened]] = {name: [] for name in PEERS}
    ours: dict[bool, list[float]] = {True: [], False: []}
    faults: dict[str, ChildError] = {}

    def measure() -> bool:
        prepared.need("small")
        for _ in range(1 + _NUM_ROUNDS):
            for is_cold in (True, False):
                ours[is_cold].append(open_run(prepared.logs, "small", is_cold=is_cold).spawned_s)
            for name in [name for name in theirs if name not in faults]:
                try:
                    prepared.need(name)
                    theirs[name].append(open_peer(name, prepared.folder, _NUM_SMALL))
                except ChildError as error:
                    faults[name] = error
        for turns in (*ours.values(), *theirs.values()):
            del turns[:1]
        return True

    if _tried(report, title, (), measure) is None:
        return
    report.row(title, _seconds(ours[True]))
    cached = Spread.of(cached / cold for cold, cached in zip(ours[True], ours[False], strict=True))
    report.row("  with its cache", _seconds(ours[False]), cached, "ours, no cache")
    for name, peer in PEERS.items():
        if name in faults:
            report.fault(f"  {peer.title}'s server", faults[name])
            continue
        found = theirs[name]
        taken = [item.spawned_s for item in found]
        note = f"outlier {'kept' if found[0].keeps_outlier else 'lost'}, {found[0].num_points} points"
        ratio = Spread.of(its / cold for its, cold in zip(taken, ours[True], strict=True))
        report.row(f"  {peer.title}'s server", _seconds(taken), ratio, "ours, no cache", budget=note)
        ratio = Spread.of(its / cached for its, cached in zip(taken, ours[False], strict=True))
        report.row("", "", ratio, "ours, with its cache")
        warm = [item.warm_ms.median for item in found]
        report.row("    the chart again", time_text(1e6 * Spread.of(warm).median))


def _zoom(report: Report, prepared: _Prepared) -> None:
    title = f"zoom into 10⁷ points, {_NUM_ZOOMS} random views"
    budgets = ("a zoom into 10⁷ points, p95", "a chart of 10⁷ points from its cache")

    def measure() -> Any:
        return prepared.need("long"), zoom(prepared.logs, "long", _NUM_LONG, _NUM_ZOOMS)

    found = _tried(report, title, budgets, measure)
    if found is None:
        return
    indexed_s, zooms = found
    size_mb = (prepared.logs / "long" / "metrics.jsonl").stat().st_size / 1e6
    note = f"{size_mb:.0f} MB; the other core was busy"
    report.row("10⁷ steps × 1 read into a cache", f"{indexed_s:.3g} s", budget=note)
    budget = report.judge(budgets[1], zooms.open_ms / 1000, 2, " s")
    report.row("  a new process's first chart of it", time_text(1e6 * zooms.open_ms), budget=budget)
    budget = report.judge(budgets[0], zooms.p95_ms, 50, " ms")
    measured = f"{zooms.median_ms:.0f}, p95 {zooms.p95_ms:.0f}, most {zooms.most_ms:.0f} ms"
    report.row(title, measured, budget=f"p95 {budget}; CPU {zooms.cpu_ms:.0f} ms each")
    report.row("  all of it, again", f"{zooms.whole_ms.median:.0f} ms")
    _memory(report, "after zooming in 10⁷ points", zooms.memory)


def _list(report: Report, prepared: _Prepared) -> None:
    title = f"{_NUM_RUNS} runs listed, a new process"
    logs = prepared.folder / "list"
    logs.mkdir()
    make_list(logs, _NUM_RUNS)
    found = _tried(report, title, (title,), lambda: [list_runs(logs, _NUM_RUNS) for _ in range(5)])
    if found is None:
        return
    first = Spread.of(item.first_ms for item in found)
    budget = report.judge(title, first.median, 300, " ms")
    cpu_ms = Spread.of(item.first_cpu_ms for item in found).median
    report.row(
        title, f"{first.median:.0f} ({first.low:.0f}–{first.high:.0f}) ms", budget=f"{budget}; CPU {cpu_ms:.0f} ms"
    )
    after = Spread.of(item.next_ms.median for item in found)
    budget = report.judge(f"{_NUM_RUNS} runs listed again", after.median, 300, " ms")
    report.row("  again", f"{after.median:.0f} ms", budget=budget)
    _memory(report, f"after listing {_NUM_RUNS} runs", found[-1].memory)


def _idle(report: Report, prepared: _Prepared) -> None:
    title = f"CPU of the server, {NUM_LIVE} runs at 5 steps/s"
    readers = {"nobody": "nobody looks", "list": "the list is watched", "charts": "charts of one are watched"}
    logs = prepared.folder / "live"
    logs.mkdir()
    budgets = tuple(f"{title}, {readers[name]}" for name in ("nobody", "list"))
    found = _tried(report, title, budgets, lambda: measure_idle(logs))
    if found is None:
        return
    report.row(title, "")
    for name, text in readers.items():
        idle = found[name]
        budget = report.judge(f"{title}, {text}", idle.mean_percent, 1, " %") if name != "charts" else ""
        note = f"{budget + '; ' if budget else ''}quartiles {idle.percent.low:.2f}–{idle.percent.high:.2f}"
        report.row(f"  {text}", f"{idle.mean_percent:.2f} % of a core", budget=note)
    _memory(
        report, "beside ten live runs", max((idle.memory for idle in found.values()), key=lambda memory: memory.rss)
    )


def _pixel(report: Report, _prepared: _Prepared) -> None:
    modes = {"written": "append to pixel", "recorded": "run.log (flushed each 50 ms) to pixel"}
    for mode, title in modes.items():
        result = _tried(report, title, (f"{title}, p95",), lambda mode=mode: ask("_dashboard_browser", "pixel", mode))
        if result is None:
            continue
        budget = report.judge(f"{title}, p95", result["p95_ms"], 500, " ms")
        measured = f"{result['p50_ms']:.0f}, p95 {result['p95_ms']:.0f}, most {result['most_ms']:.0f} ms"
        note = f"p95 {budget}; {UPDATES_PER_SEC}/s, {result['num_changes']} paints of {result['num_updates']}"
        report.row(title, measured, budget=note)


def _timeline(report: Report, _prepared: _Prepared) -> None:
    title = f"panning {NUM_SPANS:,} spans"
    result = _tried(report, title, (title,), lambda: ask("_dashboard_browser", "timeline"))
    if result is None:
        return
    budget = report.judge(title, result["most"]["fps"], 30, " fps", at_least=True)
    for name, text in (("most", f"{title}, 4 in 5 in view"), ("dragged", "  by mouse"), ("zoomed", "  1 in 9 in view")):
        pan = result[name]
        note = f"{budget + '; ' if name == 'most' else ''}worst frame {pan['worst_ms']:.0f} ms"
        report.row(text, f"{pan['fps']:.0f} fps", budget=note)
    weight = f"{result['weight_bytes'] / 1000:.0f} kB"
    report.row("page weight, the first load", weight, budget="HTML, JS and CSS, as sent")
