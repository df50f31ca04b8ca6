"""Merging old windows of ranks: what gets shorter, what stays, and that all views of the run say the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.ranks.jobs import SimulatedJob, slow_rank

from tachograph import diagnose
from tachograph.catalog import apply_step, make_rule, parse_action, plan_prune
from tachograph.catalog._merge_ranks import merge_rank_windows
from tachograph.diagnostics import RuleEngine
from tachograph.exceptions import TachographError
from tachograph.journal import (
    Destination,
    RunFolder,
    list_rank_journals,
    mark_rank,
    open_journal,
    read_rank_map,
    split_by_rank,
    write_destination,
    write_rank_map,
)
from tachograph.reader import _rank_heat, read_rank_heat, read_ranks
from tachograph.records import decode
from tests.cli.test_catalog_commands import tacho
from tests.store import END, START, lines, write

pytestmark = pytest.mark.xdist_group("merge_ranks")  # they share the job

NUM_OLD, NUM_LONG, NUM_NEW = 360, 132, 540
"""Windows of 20 s for two hours, which are merged to ten minutes; of 600 s for 22 hours; of 20 s for three hours."""
NUM_WINDOWS = NUM_OLD + NUM_LONG + NUM_NEW
SLOW_WINDOWS = range(600, 660)
SLOW_RANK = 2


def time_of(window: int) -> float:
    """Return when a window ends."""
    number = window + 1
    num_long = min(max(number - NUM_OLD, 0), NUM_LONG)
    return 1_000.0 + 600.0 * num_long + 20.0 * (number - num_long)


END_S = time_of(NUM_WINDOWS - 1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished job of five ranks with its map and its alerts: ranks 1 to 3 share a file, rank 4 has its own."""
    folder = RunFolder(tmp_path_factory.mktemp("template") / "job")
    slow = slow_rank(SLOW_RANK, 0.3)
    job = SimulatedJob(
        5,
        "normal 3 %",
        1,
        fault=lambda phases, transfer, step: slow(phases, transfer, step) if step // 16 in SLOW_WINDOWS else None,
    )
    engine = RuleEngine()
    engine.keep_rank_map(None)
    by_rank: dict[int, list[dict[str, Any]]] = defaultdict(list)
    host_lines: list[bytes] = []

    def add(rank: int, record: dict[str, Any]) -> None:
        by_rank[rank].append(record)
        by_rank[0].extend(engine.observe_rank(rank, record) if rank else engine.observe(record))
        if 1 <= rank <= 3:
            host_lines.append(mark_rank(lines([record]), rank))

    for rank, start in enumerate(job.starts()):
        add(rank, {**(START if rank == 0 else {}), **start, "time": 1_000.0})
    for number in range(NUM_WINDOWS):
        for rank, record in enumerate(job.window()):
            times_ms = [float(f"{value:.4g}") for value in record["ms"]]
            add(rank, {**record, "time": time_of(number), "ms": times_ms})
        if number % 100 == 0:
            add(3, {"event": "system", "time": time_of(number), "ram_gb": 1.0})
    for rank in range(5):
        add(rank, {**END, "time": time_of(NUM_WINDOWS)})
    write(folder.path, by_rank[0])
    folder.ranks.mkdir()
    folder.host_journal(1).write_bytes(b"".join(host_lines))
    folder.rank_journal(4).write_bytes(lines(by_rank[4]))
    rank_map = engine.build_rank_map()
    assert rank_map is not None
    write_rank_map(folder, rank_map)
    return folder.path


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("TACHO_LOG_DIR", str(tmp_path / "logs"))
    return RunFolder(shutil.copytree(template, tmp_path / "logs" / "job"))


def act(folder: RunFolder, *actions: str) -> list[Any]:
    log_dir = str(folder.path.parent)
    steps = plan_prune(log_dir, [make_rule("name=job", list(actions))])
    return [apply_step(log_dir, step) for step in steps]


def lines_by_rank(folder: RunFolder) -> dict[int, list[bytes]]:
    """Return the lines of each rank other than 0."""
    by_rank: dict[int, list[bytes]] = {}
    for journal in list_rank_journals(folder):
        with open_journal(journal.path) as file:
            for rank, content in split_by_rank(journal, file.read()).items():
                by_rank.setdefault(rank, []).extend(content.splitlines())
    return by_rank


def windows_of(rank_lines: list[bytes]) -> list[dict[str, Any]]:
    return [record for record in map(decode, rank_lines) if record["event"] == "rank"]


def sizes_of(folder: RunFolder) -> int:
    return sum(path.stat().st_size for path in folder.ranks.iterdir())


def test_run_with_merged_windows_says_the_same(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = diagnose(folder.path)
    (straggler,) = [alert for alert in before.alerts if alert.rule == "straggler"]
    assert straggler.title.startswith(f"Rank {SLOW_RANK} (node0) is")
    views, shown = read_ranks(folder), tacho("show", "job", "--ranks")
    with monkeypatch.context() as patch:
        patch.setattr(_rank_heat, "_MAP_FROM_BYTES", 0)  # as for large journals
        heats = [read_rank_heat(folder, quantity) for quantity in ("own", "wait", "data")]  # type: ignore[arg-type]
    num_bytes = sizes_of(folder)
    (freed,) = act(folder, "merge_ranks")
    assert freed.num_files == 2
    assert freed.num_bytes == num_bytes - sizes_of(folder) > 0.4 * num_bytes
    after = diagnose(folder.path)
    assert [(alert.title, alert.is_open, alert.resolved_time) for alert in after.alerts] == [
        (alert.title, alert.is_open, alert.resolved_time) for alert in before.alerts
    ]
    assert after.signals == before.signals
    assert read_ranks(folder) == views
    assert tacho("show", "job", "--ranks") == shown
    for quantity, heat in zip(("own", "wait", "data"), heats, strict=True):
        assert read_rank_heat(folder, quantity) == heat  # type: ignore[arg-type]
    own_rules = diagnose(folder.path, rules={"straggler": {"windows": 2}})
    assert [alert.rule for alert in own_rules.alerts if alert.rule == "straggler"] == []


def test_merged_windows_have_all_iterations(folder: RunFolder) -> None:
    before = lines_by_rank(folder)
    act(folder, "merge_ranks")
    after = lines_by_rank(folder)
    ends = [{window["last"] for window in windows_of(rank_lines)} for rank_lines in after.values()]
    assert all(end == ends[0] for end in ends)
    for rank, rank_lines in after.items():
        old_windows, windows = windows_of(before[rank]), windows_of(rank_lines)
        assert sum(window.get("windows", 1) for window in windows) == NUM_WINDOWS
        assert [line for line in rank_lines if b'"rank"' not in line] == [
            line for line in before[rank] if b'"rank"' not in line
        ]
        first = 0
        for window in windows:
            num_windows = window.get("windows", 1)
            parts = old_windows[first : first + num_windows]
            first += num_windows
            assert (window["last"], window["time"]) == (parts[-1]["last"], parts[-1]["time"])
            assert window["n"] == 16 * num_windows
            assert window["max"][0] == pytest.approx(max(part["max"][0] for part in parts), rel=1e-3)
            assert window["max"][1] in [part["max"][1] for part in parts]
            assert window["seq"] == parts[-1]["seq"]
            for index in range(12):
                mean = sum(part["ms"][index] for part in parts) / num_windows
                assert window["ms"][index] == pytest.approx(mean, rel=0.06 if index % 2 else 1e-3)
        times = [decode(line)["time"] for line in rank_lines]
        assert times == sorted(times)


def test_last_hour_and_alerts_stay_as_they_are(folder: RunFolder) -> None:
    before = lines_by_rank(folder)
    act(folder, "merge_ranks")
    alerts_s = [
        record["time"] for record in map(decode, folder.journal.read_bytes().splitlines()) if record["event"] == "alert"
    ]
    assert len(alerts_s) >= 2
    for rank, rank_lines in lines_by_rank(folder).items():
        unmerged = set(rank_lines)
        for line in before[rank]:
            record = decode(line)
            is_near = any(abs(record["time"] - alert_s) <= 600 for alert_s in alerts_s)
            assert line in unmerged or not (record["time"] >= END_S - 3_600 or is_near)
        for window in windows_of(rank_lines):
            assert window.get("windows", 1) <= (30 if window["time"] <= time_of(NUM_OLD - 1) else 3)
        assert [window.get("windows", 1) for window in windows_of(rank_lines)[:11]] == [30] * 11


def test_merging_again_changes_nothing(folder: RunFolder) -> None:
    journal = folder.journal.read_bytes()
    act(folder, "merge_ranks")
    contents = [path.read_bytes() for path in sorted(folder.ranks.iterdir())]
    assert act(folder, "merge_ranks") == []
    assert merge_rank_windows(folder, lambda: contextlib.nullcontext(True)) == (0, 0)
    assert [path.read_bytes() for path in sorted(folder.ranks.iterdir())] == contents
    assert folder.journal.read_bytes() == journal


def test_compressed_files_stay_compressed(folder: RunFolder) -> None:
    act(folder, "gzip")
    num_bytes = sizes_of(folder)
    act(folder, "merge_ranks")
    assert sorted(path.name for path in folder.ranks.iterdir()) == ["00004.jsonl.gz", "host-00001.jsonl.gz"]
    assert sizes_of(folder) < 0.7 * num_bytes
    assert sum(window.get("windows", 1) for window in windows_of(lines_by_rank(folder)[1])) == NUM_WINDOWS


@pytest.mark.slow
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("moment", ["move_file", "write_rank_map", "compress_journal", "second file"])
def test_killed_merging_loses_nothing(
    folder: RunFolder, moment: str, is_compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_compressed:
        act(folder, "gzip")
    titles = [alert.title for alert in diagnose(folder.path).alerts]
    views = read_ranks(folder)
    pid = os.fork()
    if pid == 0:
        kill = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        publishings: Iterator[Any] = iter([lambda: contextlib.nullcontext(True), kill])
        if moment != "second file":
            monkeypatch.setattr(f"tachograph.catalog._merge_ranks.{moment}", kill)
        if moment != "second file":
            publishings = itertools.repeat(lambda: contextlib.nullcontext(True))
        merge_rank_windows(folder, lambda: next(publishings)())  # noqa: PLW0108 - another one each time
        os._exit(0)
    is_killed = os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert is_killed is (moment != "compress_journal" or is_compressed)
    assert [alert.title for alert in diagnose(folder.path).alerts] == titles
    assert read_ranks(folder) == views
    for rank, rank_lines in lines_by_rank(folder).items():
        assert sum(window.get("windows", 1) for window in windows_of(rank_lines)) == NUM_WINDOWS, rank
    merge_rank_windows(folder, lambda: contextlib.nullcontext(True))
    for rank_lines in lines_by_rank(folder).values():
        assert len(windows_of(rank_lines)) < 0.6 * NUM_WINDOWS


def test_resumed_run_is_merged_further(folder: RunFolder) -> None:
    act(folder, "merge_ranks")
    before = lines_by_rank(folder)
    for rank in (0, 4):
        path = folder.rank_journal(rank) if rank else folder.journal
        last = decode([line for line in path.read_bytes().splitlines() if b'"event":"rank"' in line][-1])
        start = {**(START if rank == 0 else {}), "event": "start", "time": time_of(NUM_WINDOWS), "world_size": 5}
        more = [
            {**last, "last": last["last"] + 16 * number, "time": time_of(NUM_WINDOWS + number)}
            for number in range(1, 200)
        ]
        with path.open("ab") as file:
            file.write(lines([start, *more, {**END, "time": time_of(NUM_WINDOWS + 300)}]))
    (freed,) = act(folder, "merge_ranks")
    assert freed.num_files == 2  # the last hour of the first attempt is older now
    after = lines_by_rank(folder)
    assert sum(window.get("windows", 1) for window in windows_of(after[4])) == NUM_WINDOWS + 199
    assert len(windows_of(after[1])) < len(windows_of(before[1]))
    rank_map = read_rank_map(folder)
    assert rank_map is not None
    engine = RuleEngine()
    engine.keep_rank_map(rank_map)
    assert engine.build_rank_map() == rank_map  # the next attempt keeps the mark


def test_windows_that_cannot_be_merged_stay(folder: RunFolder) -> None:
    odd = [
        b'{"event":"rank","from_rank":1,"time":1020.0,"last":"x","n":16,"ms":[1.0]}\n',
        b'{"event":"rank","from_rank":1,"time":1020.0,"last":15,"n":16,"ms":[1.0,0.1,null],"new_field":1}\n',
        b'{"event":"rank",\xff}\n',
        b'{"torn',
    ]
    path = folder.host_journal(1)
    path.write_bytes(b"".join(odd[:3]) + path.read_bytes() + odd[3])
    relayed = folder.host_journal(100_000_001)  # of a machine that shares no folder, which the server continues
    relayed.write_bytes(path.read_bytes())
    copy = relayed.read_bytes()
    act(folder, "merge_ranks")
    assert relayed.read_bytes() == copy
    content = path.read_bytes()
    assert all(line in content for line in odd)
    assert content.endswith(odd[3])
    assert content.count(b'"windows":') > 50


def test_runs_that_must_not_change_are_left_alone(folder: RunFolder) -> None:
    contents = [path.read_bytes() for path in sorted(folder.ranks.iterdir())]
    journal = folder.journal.read_bytes()
    write_destination(folder, Destination(server="https://tacho.example.org", mode="offline"))
    (step,) = plan_prune(str(folder.path.parent), [make_rule("name=job", ["merge_ranks"])])
    assert (step.action, "were not sent to its server yet" in step.skipped) == (None, True)
    write_destination(folder, Destination(server=None, mode="offline"))
    (folder.private / "server.json").write_text('{"server":"","is_gone":true}')
    folder.journal.write_bytes(journal[: journal.rindex(b'{"event":"end"')])
    with pytest.raises(TachographError, match="has no end"):
        parse_action("merge_ranks").apply(str(folder.path.parent), folder, "job", is_forced=True)
    folder.journal.write_bytes(journal)
    rank_map = read_rank_map(folder)
    assert rank_map is not None
    write_rank_map(folder, msgspec.structs.replace(rank_map, num_columns=1))
    assert act(folder, "merge_ranks") == []
    folder.rank_map.unlink()
    assert act(folder, "merge_ranks") == []
    assert merge_rank_windows(folder, lambda: contextlib.nullcontext(True)) == (0, 0)
    assert [path.read_bytes() for path in sorted(folder.ranks.iterdir())] == contents
