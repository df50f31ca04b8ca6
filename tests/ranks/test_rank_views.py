"""What a reader knows of each rank."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tachograph.catalog import Catalog
from tachograph.cli._main import main
from tachograph.journal import RunFolder
from tachograph.reader import read_rank_heat, read_ranks, read_stacks, summarise_ranks
from tachograph.records import PhaseTime, RankWindow
from tests.conftest import Script, wait_for
from tests.ranks.written_job import write_job
from tests.store import END, START, write


def test_last_iterations_without_phases_keep_the_times_of_the_last_window(tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    path = tmp_path / "job" / "ranks" / "00004.jsonl"
    rest = RankWindow(last_iteration=85, num_iterations=6, own=PhaseTime(0.21, 0.0))
    *records, end = path.read_text().splitlines()
    path.write_text("\n".join([*records, json.dumps({"event": "rank", "time": 1_006.0, **rest.to_fields()}), end, ""]))
    view = read_ranks(RunFolder(tmp_path / "job"))[4]
    assert (view.rank, view.num_iterations) == (4, 86)
    assert view.own_s == pytest.approx(0.13)
    assert view.wait_s == pytest.approx(0.07)
    assert view.mean_iteration_s == pytest.approx(0.21)
    assert view.score == pytest.approx(1 / 1.3)


def test_runs_are_selected_by_dead_ranks_and_their_cost(tmp_path: Path) -> None:
    write_job(tmp_path / "slow")
    write(tmp_path / "single", [START, END])
    write_job(tmp_path / "broken")
    path = tmp_path / "broken" / "ranks" / "00003.jsonl"
    *records, _ = path.read_text().splitlines()
    path.write_text("\n".join([*records, '{"event":"end","time":1010.0,"status":"failed","reason":"ValueError"}', ""]))
    catalog = Catalog(tmp_path)
    for query, names in {
        "ranks.dead>0": ["broken"],
        "ranks.dead=0": ["slow"],
        "ranks.cost>0.1": ["broken", "slow"],
        "ranks.cost>0.2": [],
    }.items():
        assert sorted(row.name for row in catalog.select(query, columns=["ranks.dead", "ranks.cost"])) == names, query
    shown = CliRunner().invoke(main, ["ls", "--log-dir", str(tmp_path)], env={"COLUMNS": "140"})
    assert "6, 1 dead" in shown.output
    columns = ["ls", "--log-dir", str(tmp_path), "--columns", "world_size,ranks.dead,ranks.cost", "--json"]
    values = {row["name"]: row for row in json.loads(CliRunner().invoke(main, columns).output)}
    assert (values["broken"]["ranks.dead"], values["single"]["ranks.dead"]) == (1, None)
    assert values["slow"]["ranks.cost"] == pytest.approx(0.15)  # 30 of 200 ms


def test_rank_that_ends_after_rank_zero_is_counted_then(tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    journal = tmp_path / "job" / "metrics.jsonl"
    now_s = time.time()
    journal.write_text(journal.read_text().replace('"time":1000000.0', f'"time":{now_s}'))
    path = tmp_path / "job" / "ranks" / "00003.jsonl"
    *records, _ = path.read_text().splitlines()
    path.write_text("\n".join([*records, ""]))
    catalog = Catalog(tmp_path)

    def num_dead() -> int:
        (row,) = catalog.select("", columns=["ranks.dead"])
        value = row.get("ranks.dead")
        assert isinstance(value, int)
        return value

    assert num_dead() == 0
    with path.open("a") as file:
        file.write(json.dumps({"event": "end", "time": now_s, "status": "failed", "reason": "ValueError"}) + "\n")
    assert num_dead() == 1
    assert Catalog(tmp_path).select("ranks.dead=1", columns=["ranks.dead"])


def test_totals_of_one_process_are_none() -> None:
    assert summarise_ranks([]) is None


def test_stacks_of_a_rank_that_holds_the_interpreter_lock_are_shown(script: Callable[..., Script], logs: Path) -> None:
    source = """
        import ctypes, sys, time
        import tachograph as tacho

        def load():
            ctypes.PyDLL(None).sleep(3600)  # holds the interpreter lock

        run = tacho.init("job", log_dir=sys.argv[1], console=False, flush_interval_s=0.05,
                         rules={"rank_hang": {"least_s": 1.0, "first_step_s": 2.0, "times_longest": 1.5}})
        with tacho.training_loop(train_iterations_start=0):
            for step in range(1000):
                with tacho.training_iteration():
                    time.sleep(0.05)
                if step == 60:
                    load()
    """
    program = script(source, logs, env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29519"})
    folder = RunFolder(logs / "job")
    wait_for(lambda: any("in load" in "".join(group.lines) for group in read_stacks(folder)), "the stack")
    (group,) = read_stacks(folder)
    assert group.ranks == [0]
    assert group.lines[-1].endswith(", in load")
    assert group.lines[-2].endswith(", in <module>")
    program.process.kill()
    program.process.wait()
    native, text = folder.native_stacks(0), folder.rank_stacks(0)
    # The writer thread of a rank that hangs again later writes the newer one.
    text.parent.mkdir(exist_ok=True)
    text.write_text('pid 1\n\nThread MainThread (1), innermost call last:\n  File "a.py", line 3, in wait\n')
    os.utime(text, (native.stat().st_mtime, native.stat().st_mtime))
    assert "in wait" in read_stacks(folder)[0].lines[-1]
    command = ["prune", "--where", "name=job", "--do", "drop_traces", "--yes", "--log-dir", str(logs)]
    pruned = CliRunner().invoke(main, command)
    assert pruned.exit_code == 0, pruned.output
    assert read_stacks(folder) == []
    assert not native.exists() and not text.exists()


def test_ranks_are_compared_with_those_of_their_stage(tmp_path: Path) -> None:
    """The ranks of the second stage have twice the work, and none of them is slow."""
    write_job(tmp_path / "job", stages=2)
    folder = RunFolder(tmp_path / "job")
    for rank in (1, 3, 5):
        path = folder.rank_journal(rank)
        path.write_text(path.read_text().replace('"ms":[100.0,', '"ms":[200.0,'))
    views = read_ranks(folder)
    assert [view.mesh["pipeline"] for view in views] == [0, 1, 0, 1, 0, 1]
    assert [round(view.score or 0, 2) for view in views] == [1, 1, 1, 1, 0.77, 1]
    heat = read_rank_heat(folder)
    assert heat is not None
    rows = [heat.cells[5 * rank : 5 * rank + 5] for rank in range(6)]
    assert len(set(rows)) == 2 and rows.count(rows[4]) == 1  # only rank 4 differs


def test_long_journal_keeps_host_and_mesh_of_its_start(tmp_path: Path) -> None:
    write_job(tmp_path / "job", stages=2)
    folder = RunFolder(tmp_path / "job")
    path = folder.rank_journal(1)
    first, *windows, last = path.read_text().splitlines(keepends=True)
    path.write_text(first + "".join(windows) * 1000 + last)
    view = read_ranks(folder)[1]
    assert (view.mesh, view.num_iterations, str(view.state)) == ({"pipeline": 1}, 80, "finished")
