"""Finding the runs of a large folder again and again."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tachograph.catalog import Catalog, annotate
from tachograph.journal import LogFolders, RunFolder, RunScan, RunState
from tachograph.store import Store
from tachograph.testing import FakeClock
from tests.store import END, START, append, write

NUM_RUNS = 200


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with as many runs as rest, which ended an hour ago."""
    for number in range(NUM_RUNS):
        write(tmp_path / "logs" / f"sweep-{number % 2}" / f"run-{number:04}", [START, END])
    for path in (tmp_path / "logs", *(tmp_path / "logs").rglob("*")):
        age(path)
    return tmp_path / "logs"


def age(path: Path) -> None:
    hour_ago_s = time.time() - 3_600
    os.utime(path, (hour_ago_s, hour_ago_s))


def open_scan(*log_dirs: Path) -> tuple[RunScan, FakeClock]:
    clock = FakeClock(wall_s=time.time())
    scan = RunScan(LogFolders(*log_dirs), clock, min_runs=NUM_RUNS)
    scan.find()
    scan.find()  # the first call did not know that there are many
    return scan, clock


def looked_at(scan: RunScan, work=lambda: None) -> set[str]:
    """Return the runs that were looked at because of some work: they are other objects than before."""
    before = scan.find()
    work()
    ids = set(map(id, before))
    return {run.name for run in scan.find() if id(run) not in ids}


def test_runs_are_those_of_a_full_search(logs):
    scan, clock = open_scan(logs)
    for _ in range(3):
        assert scan.find() == LogFolders(logs).find()
        clock.advance(7)
    assert len(scan.find()) == NUM_RUNS


def test_each_run_is_looked_at_within_20_seconds_and_not_all_at_once(logs):
    scan, clock = open_scan(logs)
    assert looked_at(scan) == set()
    counts, names = [], set()
    for _ in range(20):
        new = looked_at(scan, lambda: clock.advance(1))
        counts.append(len(new))
        names |= new
    assert len(names) == NUM_RUNS
    assert 0 < max(counts) < NUM_RUNS / 4
    assert len(looked_at(scan, lambda: clock.advance(1_000))) == NUM_RUNS


def test_few_runs_never_rest(tmp_path):
    for number in range(10):
        age(write(tmp_path / f"run-{number}", [START, END]).journal)
    scan, _ = open_scan(tmp_path)
    assert len(looked_at(scan)) == 10


def test_runs_that_are_recorded_never_rest(logs):
    append(RunFolder(logs / "sweep-0" / "run-0000"), [START])
    scan, _ = open_scan(logs)
    assert looked_at(scan) == {"sweep-0/run-0000"}


def test_added_removed_and_replaced_runs_are_noticed_at_once(logs):
    scan, _ = open_scan(logs)
    write(logs / "new", [START, END])
    assert "new" in {run.name for run in scan.find()}
    shutil.rmtree(logs / "sweep-1" / "run-0001")
    assert "sweep-1/run-0001" not in {run.name for run in scan.find()}
    before = {run.name: run for run in scan.find()}["sweep-0/run-0002"]
    os.rename(logs / "sweep-0" / "run-0002", logs / "sweep-0" / "old")
    write(logs / "sweep-0" / "run-0002", [START])
    after = {run.name: run for run in scan.find()}
    assert after["sweep-0/run-0002"].journal.st_ino != before.journal.st_ino
    assert after["sweep-0/old"].journal.st_ino == before.journal.st_ino
    (logs / "later").mkdir()
    assert "later" not in {run.name for run in scan.find()}
    write(logs / "later", [START])
    assert "later" in {run.name for run in scan.find()}


def test_folder_that_has_just_changed_is_read_again(logs):
    """Another entry in the same tick of the clock would not change the time of the folder."""
    clock = FakeClock(wall_s=time.time())
    scan = RunScan(LogFolders(logs), clock, min_runs=NUM_RUNS)
    write(logs / "new-1", [START, END])
    times = logs.stat()
    assert len(scan.find()) == NUM_RUNS + 1
    write(logs / "new-2", [START, END])
    os.utime(logs, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(scan.find()) == NUM_RUNS + 2


def test_names_are_read_again_although_the_folder_seems_unchanged(logs):
    times = logs.stat()
    scan, clock = open_scan(logs)
    write(logs / "new", [START, END])
    os.utime(logs, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "new" not in {run.name for run in scan.find()}
    clock.advance(31)
    assert "new" in {run.name for run in scan.find()}


def test_ids_of_several_folders_follow_changes(logs, tmp_path):
    other = tmp_path / "other"
    write(other / "sweep-0" / "run-0000", [START, END])
    scan, _ = open_scan(logs, other)
    assert {"logs:sweep-0/run-0000", "other:sweep-0/run-0000"} <= {run.id for run in scan.find()}
    assert looked_at(scan) == {"sweep-0/run-0000"}  # the one that was written just now
    shutil.rmtree(other / "sweep-0" / "run-0000")
    assert "sweep-0/run-0000" in {run.id for run in scan.find()}
    assert {run.id for run in scan.find()} == {run.id for run in LogFolders(logs, other).find()}


def test_resting_run_ends_when_its_process_does(logs, script):
    program = script(
        """
        import msgspec
        from tachograph.journal import this_process

        print(msgspec.json.encode(this_process()).decode())
        input()
        """
    )
    process = json.loads(program.process.stdout.readline())
    folder = write(logs / "sweep-0" / "run-0000", [{**START, "process": process}])
    age(folder.journal)
    scan, _ = open_scan(logs)
    store, catalog = Store(logs, scan=scan), Catalog(logs, scan=scan)

    def states() -> set[RunState]:
        overviews = {run.name: run.state for run in store.runs()}
        rows = {row.name: row.summary.overview.state for row in catalog.rows()}
        return {overviews["sweep-0/run-0000"], rows["sweep-0/run-0000"]}

    assert states() == states() == {RunState.RUNNING}
    assert looked_at(scan) == set()
    program.process.kill()
    program.process.wait()
    assert states() == {RunState.CRASHED}


def test_readers_of_one_scan_see_each_change(logs):
    scan, clock = open_scan(logs)
    store, catalog = Store(logs, scan=scan), Catalog(logs, scan=scan)
    folder = RunFolder(logs / "sweep-0" / "run-0000")

    def states() -> list[RunState]:
        overviews = {run.name: run.state for run in store.runs()}
        rows = {row.name: row.summary.overview.state for row in catalog.rows()}
        return [overviews["sweep-0/run-0000"], rows["sweep-0/run-0000"]]

    assert states() == states() == [RunState.FINISHED, RunState.FINISHED]
    append(folder, [{**START, "time": 2e6}, {**END, "time": 3e6, "status": "failed"}])
    clock.advance(20)
    assert states() == [RunState.FAILED, RunState.FAILED]
    annotate(folder, [{"field": "note", "value": "good"}])
    catalog.outdate_row(catalog.row("sweep-0/run-0000"))
    assert {row.name: row.get("note") for row in catalog.rows()}["sweep-0/run-0000"] == "good"
    assert [run.annotations_changed_at for run in store.runs() if run.name == "sweep-0/run-0000"] != [None]
