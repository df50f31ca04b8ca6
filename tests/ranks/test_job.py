"""Real jobs of four processes: what their ranks record, and what is said if one is slow, stuck or killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tachograph import diagnose
from tachograph.cli._main import main
from tachograph.journal import RunFolder, read_rank_map
from tachograph.reader import StackGroup, read, read_stacks
from tachograph.records import RankWindow
from tests.conftest import HANG_S, Script, reserve_port, wait_for, whole_lines

PROGRAM = """
    import os, pathlib, sys, time
    import tachograph as tacho

    folder, fault, num_steps = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = folder.parent / "meeting"
    meeting.mkdir(exist_ok=True)
    heartbeat = folder / "job" / ".tacho" / "ranks" / "00002.json"

    def meet(number):
        if rank == 0 and (folder / "enough").exists():
            (meeting / f"last-{number}").touch()
        (meeting / f"{number}-{rank}").touch()
        while not all((meeting / f"{number}-{other}").exists() for other in range(size)):
            time.sleep(0.001)

    def load():
        if fault == "stuck" and rank == 2 and step == 20:
            time.sleep(3600)

    run = tacho.init("job", log_dir=folder, flush_interval_s=0.05, console=False, exit_timeout_s=120,
                     rules={"rank_hang": {"least_s": 3.0, "first_step_s": 600, "times_longest": 1.5}})
    with tacho.training_loop(train_iterations_start=0):
        for step in range(num_steps):
            with tacho.training_iteration():
                with tacho.data_loading():
                    load()
                with tacho.forward():
                    time.sleep(0.12 if fault == "slow" and rank == 2 else 0.02)
                with tacho.backward():
                    time.sleep(0.01)
                    meet(step)
                with tacho.optimizer_update():
                    time.sleep(0.001)
            run.log({"loss": 1.0 / (step + 1)}, step=step)
            if (meeting / f"last-{step}").exists():  # made by rank 0 before all met in this step, so all see it
                break
            while fault == "kill" and rank == 2 and step == 20 and not heartbeat.exists():
                time.sleep(0.01)  # a rank that is killed before its first heartbeat is not known to the others
            if fault == "kill" and rank == 2 and step == 20:
                os.kill(os.getpid(), 9)
            if fault == "error" and rank == 2 and step == 20:
                raise ValueError("sample 17 has no label")
    run.finish()
"""

StartJob = Callable[..., list[Script]]


@pytest.fixture
def start_job(script: Callable[..., Script], logs: Path) -> Iterator[StartJob]:
    """Start the four ranks of a job with a fault."""

    def start(fault: str = "", num_steps: int = 40) -> list[Script]:
        port = str(reserve_port())
        job = {"WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        return [script(PROGRAM, logs, fault, num_steps, env={**job, "RANK": str(rank)}) for rank in range(4)]

    yield start


def windows_of(path: Path) -> list[RankWindow]:
    windows = [RankWindow.from_record(record) for record in whole_lines(path) if record["event"] == "rank"]
    return [window for window in windows if window is not None]


def alerts_of(logs: Path) -> list[dict[str, Any]]:
    return [record for record in whole_lines(logs / "job" / "metrics.jsonl") if record["event"] == "alert"]


def end_of(logs: Path) -> dict[str, Any]:
    return next(record for record in whole_lines(logs / "job" / "metrics.jsonl") if record["event"] == "end")


def test_slow_rank_is_named_while_it_runs_and_afterwards(start_job: StartJob, logs: Path) -> None:
    programs = start_job("slow", num_steps=100_000)

    def titles_of(alerts: Iterable[dict[str, Any]]) -> list[str]:
        # A busy machine may also make another rank slow.
        titles = [alert["title"] for alert in alerts if alert["rule"] == "straggler" and "title" in alert]
        return [title for title in titles if title.startswith("Rank 2 (")]

    wait_for(lambda: titles_of(alerts_of(logs)), "the alert")
    (logs / "enough").touch()
    for program in programs:
        program.ok()
    titles = titles_of(alerts_of(logs))
    assert all("in forward" in title for title in titles), titles
    offline = [alert.title for alert in diagnose("job", log_dir=logs).alerts if alert.rule == "straggler"]
    assert titles[0] in offline
    rank_map = read_rank_map(RunFolder(logs / "job"))
    cells = rank_map.codes_of("own") if rank_map is not None else None
    assert rank_map is not None and cells is not None
    assert rank_map.num_rows == 4
    highest = [max(cells[row * rank_map.num_columns :][: rank_map.num_columns]) for row in range(4)]
    assert highest[2] == max(highest) == 255


def test_ranks_record_windows_that_line_up(start_job: StartJob, logs: Path) -> None:
    for program in start_job("slow"):
        program.ok()
    folder = logs / "job"
    paths = [folder / "metrics.jsonl", *(folder / "ranks" / f"{rank:05d}.jsonl" for rank in (1, 2, 3))]
    windows = [windows_of(path) for path in paths]
    ends = [[window.last_iteration for window in rank_windows] for rank_windows in windows]
    assert ends == [[15, 31, 39]] * 4
    own_s = [rank_windows[1].own.median_s for rank_windows in windows]
    assert min(own_s) >= 0.02
    assert own_s[2] >= 0.12
    assert min(own_s[0], own_s[1], own_s[3]) < 0.12
    # On other ranks they replace the records of steps, which are twelve times as large.
    for path in paths[1:]:
        records = whole_lines(path)
        assert not any(record["event"] == "step" or "window_iteration_sec_mean" in record for record in records)
        assert all(len(line) <= 170 for line in path.read_bytes().splitlines() if b'"event":"rank"' in line)
    views = read("job", logs).ranks
    assert [view.num_iterations for view in views] == [40] * 4
    assert views[2].own_s is not None and views[2].own_s >= 0.12
    assert views[2].score == min(view.score or 1.0 for view in views)
    shown = CliRunner().invoke(main, ["show", "job", "--log-dir", str(logs), "--ranks", "--worst", "1", "--json"])
    assert [view["rank"] for view in json.loads(shown.output)["ranks"]] == [2]


def test_job_that_hangs_names_the_rank_it_waits_for(start_job: StartJob, logs: Path) -> None:
    programs = start_job("stuck")

    def last_alert() -> dict[str, Any] | None:
        # A busy machine may also stop the job before that, for longer than the limit; then it continues.
        alerts = [alert for alert in alerts_of(logs) if alert["rule"] == "rank_hang"]
        is_last = bool(alerts) and alerts[-1]["status"] == "opened" and alerts[-1]["evidence"]["step"] == 20
        return alerts[-1] if is_last else None

    alert = wait_for(last_alert, "the alert")
    assert "Rank 2 " in alert["title"]
    assert "has not arrived: " in alert["title"]
    assert "3 ranks wait in backward" in alert["title"]
    assert alert["evidence"]["ranks"] == [2]
    folder = read("job", logs).folder

    def stuck_group() -> StackGroup | None:
        groups = read_stacks(folder)
        group = next((group for group in groups if 2 in group.ranks), None)
        is_complete = group is not None and sum(len(other.ranks) for other in groups) == 4
        return group if is_complete and group is not None and "in load" in "".join(group.lines) else None

    assert wait_for(stuck_group, "the stacks of all ranks").ranks == [2]
    shown = CliRunner().invoke(main, ["show", "job", "--log-dir", str(logs), "--ranks"])
    assert "rank 2 hung in" in shown.output
    assert "time.sleep(3600)" in shown.output
    for program in programs:
        program.process.kill()


def test_killed_rank_is_the_headline(start_job: StartJob, logs: Path) -> None:
    programs = start_job("kill")
    assert programs[2].process.wait(HANG_S) == -signal.SIGKILL
    (alert,) = wait_for(lambda: [alert for alert in alerts_of(logs) if alert["rule"] == "rank_gone"], "the alert")
    assert "Rank 2 " in alert["title"]
    assert " is gone" in alert["title"]
    for rank in (0, 1, 3):  # as a launcher does when a rank has died
        os.kill(programs[rank].process.pid, signal.SIGTERM)
    for rank in (0, 1, 3):
        programs[rank].process.wait(HANG_S)
    end = end_of(logs)
    assert end["reason"].startswith("rank 2 (")
    assert "was killed or crashed after iteration 21; the other ranks ended because of it" in end["reason"]
    assert end["first_failed_rank"]["rank"] == 2
    for command in (["show", "job"], ["ls"], ["ls", "--columns", "name,state,reason"], ["doctor", "job"]):
        shown = CliRunner().invoke(main, [*command, "--log-dir", str(logs)], env={"COLUMNS": "200"})
        assert re.search(r"rank 2( \(.*?\))? was killed or crashed", shown.output), command
    failure = read("job", logs).failure
    assert failure is not None and failure.message == end["reason"]  # the title in the dashboard


def test_rank_that_raised_first_is_the_headline(start_job: StartJob, logs: Path) -> None:
    programs = start_job("error")
    assert programs[2].process.wait(HANG_S) == 1
    os.kill(programs[0].process.pid, signal.SIGTERM)
    programs[0].process.wait(HANG_S)
    assert "failed after iteration 21: ValueError: sample 17 has no label" in end_of(logs)["reason"]
    for program in programs:
        program.process.kill()
