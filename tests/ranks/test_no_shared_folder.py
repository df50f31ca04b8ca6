"""Jobs whose machines share no folder: their ranks meet in one run on the server of a team, and rank 0 judges it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tachograph import diagnose
from tachograph.cli._main import main
from tachograph.journal import RunFolder, list_rank_journals, read_rank_map, split_by_rank
from tachograph.reader import read, read_ranks
from tests.conftest import HANG_S, Script, reserve_port, wait_for, whole_lines
from tests.remote.conftest import Team
from tests.remote.conftest import team as team  # noqa: PLC0414 - a fixture

# Ranks 0 and 1 have one log folder, ranks 2 and 3 another one: two machines without a shared disk.
PROGRAM = """
    import os, pathlib, sys, time
    import tachograph as tacho
    import tachograph.recorder._rank_files as rank_files
    import tachograph.recorder._writer as writer

    base, fault, name = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank_files.NODE_WAIT_S = 0.0 if rank >= 2 else 1e9  # rank 1 finds the folder of rank 0, however late that starts
    writer._MAX_NEWS_WAIT_S = 60.0  # rank 0 learns of the end of rank 2, however busy the server is
    meeting = base / f"meeting-{name}"
    meeting.mkdir(exist_ok=True)
    relayed = base / "host-0" / name / ".tacho" / "ranks" / "host-100000000.json"

    def is_gone(other):
        pid = meeting / f"pid-{other}"
        try:
            os.kill(int(pid.read_text()), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError):
            pass
        return False

    def meet(number):
        if rank == 0 and (meeting / "enough").exists():
            (meeting / f"last-{number}").touch()
        (meeting / f"{number}-{rank}").touch()
        while not all((meeting / f"{number}-{other}").exists() for other in range(size)):
            time.sleep(0.002)
            if rank == 0 and fault == "lost" and is_gone(2):
                raise RuntimeError("[gloo] Connection closed by peer")

    run = tacho.init(name, log_dir=base / f"host-{rank // 2}", flush_interval_s=0.05, console=False,
                     rules={"rank_hang": {"least_s": 600}, "rank_gone": {"missing_s": 0}}, exit_timeout_s=120)
    (meeting / f"pid-{rank}").write_text(str(os.getpid()))
    with tacho.training_loop(train_iterations_start=0):
        for step in range(100_000):
            with tacho.training_iteration():
                with tacho.forward():
                    time.sleep(0.012 if fault == "slow" and rank == 2 else 0.002)
                with tacho.backward():
                    meet(step)
            run.log({"loss": 1.0 / (step + 1)}, step=step)
            if (meeting / f"last-{step}").exists():  # made by rank 0 before all met in this step, so all see it
                break
            while fault in {"kill", "lost"} and rank == 2 and step == 20 and b'"2":' not in (
                relayed.read_bytes() if relayed.exists() else b""
            ):
                time.sleep(0.01)
            if fault in {"kill", "lost"} and rank == 2 and step == 20:
                os.kill(os.getpid(), 9)
    run.finish()
"""

StartJob = Callable[..., list[Script]]


@pytest.fixture
def start_job(script: Callable[..., Script], tmp_path: Path, team: Team) -> StartJob:
    """Start the four ranks of a job that is sent to the server of the team."""

    def start(fault: str = "", name: str = "job") -> list[Script]:
        environment = {
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(reserve_port()),
            "TACHO_MODE": "cloud",
            "TACHO_SERVER": team.url,
            "TACHO_API_KEY": team.token("write"),
        }
        return [
            script(PROGRAM, tmp_path, fault, name, env={**environment, "RANK": str(rank)}, preload="tachograph")
            for rank in range(4)
        ]

    return start


def copy_of(team: Team, name: str = "job") -> RunFolder:
    return RunFolder(team.data_dir / "default" / name)


def alerts_of(folder: RunFolder, rule: str) -> list[str]:
    records = whole_lines(folder.journal) if folder.journal.exists() else []
    return [record["title"] for record in records if record["event"] == "alert" and record["rule"] == rule]


def test_slow_rank_of_other_machine_is_named(start_job: StartJob, team: Team, tmp_path: Path) -> None:
    programs = start_job("slow")
    copy = copy_of(team)
    # A busy machine may also make another rank slow.
    is_named = lambda: any(title.startswith("Rank 2 (") for title in alerts_of(copy, "straggler"))  # noqa: E731
    wait_for(is_named, "the alert")
    url, headers = "/api/v1/runs/default%2Fjob/ranks", team.headers("read")
    # Rank 0 reads the file of rank 1 itself, so the alert may reach the server before that file.
    wait_for(lambda: team.client.get(url, headers=headers).json()["num_by_state"] == {"running": 4}, "all ranks")
    (tmp_path / "meeting-job" / "enough").touch()
    for program in programs:
        program.ok()
    wait_for(lambda: [str(view.state) for view in read_ranks(copy)] == ["finished"] * 4, "the last records")
    assert [path.name for path in (tmp_path / "host-1").iterdir()] == [".tacho-nodes"]
    assert read_rank_map(copy) == read_rank_map(RunFolder(tmp_path / "host-0" / "job")) is not None
    # The same records in a folder that all machines share lead to the same alerts.
    shared = RunFolder(tmp_path / "shared" / "job")
    shared.ranks.mkdir(parents=True)
    shared.journal.write_bytes(copy.journal.read_bytes())
    for journal in list_rank_journals(copy):
        for rank, lines in split_by_rank(journal, journal.path.read_bytes()).items():
            with shared.rank_journal(rank).open("ab") as file:
                file.write(lines.replace(b',"from_rank":%d,' % rank, b","))
    assert [journal.number for journal in list_rank_journals(shared)] == [1, 2, 3]
    titles = [[alert.title for alert in diagnose(folder.path).alerts] for folder in (copy, shared)]
    assert titles[0] == titles[1]
    heat = [
        team.client.get(f"/api/v1/runs/default%2Fjob/ranks{part}", headers=team.headers("read"))
        for part in ("", "/heat")
    ]
    assert [answer.status_code for answer in heat] == [200, 200]


@pytest.mark.parametrize("fault", ["kill", "lost"])
def test_killed_rank_of_other_machine_is_the_headline(start_job: StartJob, team: Team, fault: str) -> None:
    programs = start_job(fault)
    copy = copy_of(team)
    assert programs[2].process.wait(HANG_S) == -signal.SIGKILL
    if fault == "kill":  # else rank 0 loses its connection at once, before it can know
        (title,) = wait_for(lambda: alerts_of(copy, "rank_gone"), "the alert")
        assert title.startswith("Rank 2 (")
        assert " is gone" in title
        os.kill(programs[0].process.pid, signal.SIGTERM)  # as a launcher does when a rank has died
    programs[0].process.wait(HANG_S)
    wait_for(lambda: (run := read(copy.path)).failure is not None and run.failure.message, "the end")
    failure = read(copy.path).failure
    assert failure is not None
    assert re.match(r"rank 2 \(.*\) was killed or crashed after iteration 21; the other ranks ended", failure.message)
    # Those of rank 1 may not have arrived yet.
    states = {view.rank: str(view.state) for view in read_ranks(copy)}
    assert states[2] == "crashed", states
    for command in (["show", "job"], ["ls"], ["doctor", "job"]):
        shown = CliRunner().invoke(main, [*command, "--log-dir", str(copy.path.parent)], env={"COLUMNS": "200"})
        assert re.search(r"rank 2( \(.*?\))? was killed or crashed", shown.output), command
    for rank in (1, 3):
        programs[rank].process.kill()


def test_jobs_at_once_stay_apart(start_job: StartJob, team: Team, tmp_path: Path) -> None:
    programs = [program for name in ("first", "second") for program in start_job(name=name)]
    copies = [copy_of(team, name) for name in ("first", "second")]
    for copy in copies:
        wait_for(lambda copy=copy: [str(view.state) for view in read_ranks(copy)] == ["running"] * 4, "all ranks")
    for name in ("first", "second"):
        (tmp_path / f"meeting-{name}" / "enough").touch()
    for program in programs:
        program.ok()
    pids = [{view.pid for view in read_ranks(copy)} for copy in copies]
    assert [len(members) for members in pids] == [4, 4]
    assert not pids[0] & pids[1]
