"""Links, pipes, folders and files that others put into a log folder, at the paths that recording writes."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from tachograph.reader import read
from tests.conftest import HANG_S
from tests.preloaded import preloaded

NAMES = [
    "metrics.jsonl",
    "metrics.csv",
    ".metrics.csv.wide.tmp",
    ".metrics.csv.tmp",
    "control.json",
    "tensorboard",
    ".tacho",
    ".tacho/lock",
    ".tacho/control.lock",
    ".tacho/heartbeat.json",
    ".tacho/csv.json",
    ".tacho/sink-tensorboard.json",
    ".tacho/notify.json",
]
USED_BY_SINK = ("metrics.jsonl", "tensorboard", ".tacho", ".tacho/sink-tensorboard.json")
"""The process of a sink reads or writes these; starting it takes a second."""
KINDS = ["link", "link to a folder", "dangling link", "hard link", "pipe", "folder"]

# Records a run that needs a wider CSV, requests a control, and rebuilds the CSV: everything that writes to the folder.
RECORD = """
import contextlib, os, sys, time
import tachograph
from tachograph.exceptions import LogDirError
from tachograph.journal import RunFolder, rebuild_csv, write_requests

def record(logs, name="run", **more):
    try:
        run = tachograph.init(name, log_dir=logs, console=False, system_interval_s=0, git=False, **more)
    except LogDirError as error:
        print("error", error)
        return
    for step in range(3):
        run.log(step=step, **{f"metric_{step}": 1.0})
        run.flush()
    folder = run.folder
    with contextlib.suppress(OSError):
        write_requests(folder, {"log_every": 10}, source="test")
    run.finish()
    with contextlib.suppress(OSError):
        rebuild_csv(folder)
    print("recorded", folder.name, sum("metric_" in line for line in open(folder.journal)))
"""


def run_script(code: str, *arguments: object) -> str:
    """Run code in a process of its own, which a pipe in the way may block."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = preloaded("tachograph").run(command, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plant(kind: str, path: Path, outside: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(outside / "precious")
        case "link to a folder":
            path.symlink_to(outside)
        case "dangling link":
            path.symlink_to(outside / "new")
        case "hard link":
            path.hardlink_to(outside / "precious")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()


@pytest.mark.parametrize(
    ("name", "has_sink"),
    [(name, name in USED_BY_SINK) for name in NAMES]
    + [pytest.param(name, True, marks=pytest.mark.long) for name in NAMES if name not in USED_BY_SINK],
)
@pytest.mark.slow
def test_planted_files_are_not_written_through(tmp_path, name, has_sink):
    for kind in KINDS:
        outside = tmp_path / kind / "outside"
        outside.mkdir(parents=True)
        (outside / "precious").write_text("untouched")
        plant(kind, tmp_path / kind / "logs" / "run" / name, outside)
    code = RECORD + (
        "for kind in sys.argv[2:]:\n    print('kind', kind)\n    record(f'{sys.argv[1]}/{kind}/logs', sinks=sinks)"
    )
    sinks = ["tensorboard"] if has_sink else []
    output = run_script(f"sinks = {sinks}\n{code}", tmp_path, *KINDS)
    for kind, result in zip(KINDS, re.split(r"kind .*\n", output)[1:], strict=True):
        outside = tmp_path / kind / "outside"
        assert os.listdir(outside) == ["precious"], (kind, result)
        assert (outside / "precious").read_text() == "untouched", (kind, result)
        if result.startswith("error"):  # names the file in the way and the remedy
            assert str(tmp_path / kind / "logs" / "run" / name) in result
            assert "remove it" in result
        else:
            assert re.fullmatch(r"recorded run(-2)? 3\n", result), (kind, result)


@pytest.mark.parametrize("kind", KINDS)
def test_rank_journal_does_not_follow_planted_files(tmp_path, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("untouched")
    for name in ("ranks", "ranks/00001.jsonl", ".tacho/ranks", ".tacho/ranks/00001.json"):
        plant(kind, tmp_path / name.replace("/", "-") / "run" / name, outside)
    code = """
        import os, sys
        from pathlib import Path
        from tachograph._base.clock import SystemClock
        from tachograph.journal import RunFolder
        from tachograph.recorder._rank_files import RankFiles
        for path in sys.argv[1:]:
            files = RankFiles(path, "run", 1, SystemClock())
            files._run_folder = RunFolder(Path(path) / "run")
            files._open(files._run_folder)
            files.append(b'{"event": "start"}\\n', [])
            files.beat()
            files.close()
    """
    run_script(code, *(path for path in tmp_path.iterdir() if path != outside))
    assert os.listdir(outside) == ["precious"]
    assert (outside / "precious").read_text() == "untouched"


def test_file_planted_during_a_run_is_not_written(tmp_path):
    """The mirror is reopened after an error, and the journal after it was replaced."""
    (tmp_path / "precious").write_text("untouched")
    code = RECORD + (
        "run = tachograph.init('run', log_dir=sys.argv[1] + '/logs', console=False, system_interval_s=0, git=False)\n"
        "run.log(a=1.0); run.flush()\n"
        "for name in ('metrics.csv', 'metrics.jsonl'):\n"
        "    path = run.folder.path / name\n"
        "    path.unlink()\n"
        "    path.symlink_to(sys.argv[1] + '/precious')\n"
        "run.log(b=1.0)\n"
        "while path.is_symlink() and not run.backend.files.is_lost:\n"  # until the writer has noticed
        "    time.sleep(0.01)\n"
        "run.log(c=1.0); run.finish()\n"
    )
    run_script(code, tmp_path)
    assert (tmp_path / "precious").read_text() == "untouched"
    assert [name for name in "abc" if name in read(tmp_path / "logs" / "run").metrics] == list("abc")


def test_links_above_the_files_are_followed(tmp_path):
    """The log folder may be a link to another disk, and a run a link to another folder of runs."""
    (tmp_path / "scratch" / "moved").mkdir(parents=True)
    (tmp_path / "logs").symlink_to(tmp_path / "scratch")
    (tmp_path / "scratch" / "run").symlink_to("moved")
    assert run_script(RECORD + "record(sys.argv[1])", tmp_path / "logs") == "recorded run 3\n"
    assert (tmp_path / "scratch" / "moved" / "metrics.csv").is_file()


# Two accounts --------------------------------------------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two other users")
VICTIM, ATTACKER = 65_533, 65_534

# Modules are loaded by a first run, because the other user may not be able to read them.
AS_VICTIM = RECORD + (
    "import tempfile\n"
    "with tempfile.TemporaryDirectory() as warm_up, contextlib.redirect_stdout(None):\n"
    "    record(warm_up)\n"
    "user = int(sys.argv[2])\n"
    "if user:\n"
    "    os.setgroups([]); os.setgid(user); os.setuid(user)\n"
    "os.umask(0o022)\n"
)


def as_attacker(action: str, folder: Path) -> None:
    code = f"import os, sys\nos.setgroups([]); os.setgid({ATTACKER}); os.setuid({ATTACKER}); os.umask(0)\n"
    run_script(code + f"os.chdir(sys.argv[1])\n{action}", folder)


@pytest.fixture
def shared():
    """Return a folder that every user can write, outside of pytest's, which only its owner can enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@needs_root
@pytest.mark.parametrize("victim", [0, VICTIM])
@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv", ".tacho/lock", ".tacho/heartbeat.json"])
@pytest.mark.parametrize("target", ["precious", "new"])
def test_link_planted_by_another_user_is_not_followed(shared, victim, name, target):
    home = shared / "home"
    home.mkdir(mode=0o700)
    (home / "precious").write_text("untouched")
    for path in (home, home / "precious"):
        os.chown(path, victim, victim)
    as_attacker(f"os.makedirs('logs/run/.tacho', 0o777)\nos.symlink({str(home / target)!r}, 'logs/run/{name}')", shared)
    output = run_script(AS_VICTIM + "record(sys.argv[1])", shared / "logs", victim)
    assert os.listdir(home) == ["precious"]
    assert (home / "precious").read_text() == "untouched"
    assert re.match(r"error .*remove it|recorded run(-2)? 3", output), output


@needs_root
@pytest.mark.parametrize("victim", [0, VICTIM])
@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv"])
def test_file_of_another_user_in_our_folder_is_rejected(shared, victim, name):
    folder = shared / "logs" / "run"
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        os.chown(path, victim, victim)
    folder.chmod(0o777)
    as_attacker(f"open({name!r}, 'w').close(); os.chmod({name!r}, 0o666)", folder)
    output = run_script(AS_VICTIM + "record(sys.argv[1])", shared / "logs", victim)
    assert output.startswith("error")
    assert f"{folder / name} belongs to another user; remove it" in output
    assert (folder / name).stat().st_size == 0


@needs_root
def test_folder_of_another_user_is_not_recorded_in(shared):
    (shared / "logs").mkdir()
    (shared / "logs").chmod(0o1777)
    as_attacker("os.mkdir('logs/run', 0o777)", shared)
    assert run_script(AS_VICTIM + "record(sys.argv[1])", shared / "logs", VICTIM) == "recorded run-2 3\n"
    assert os.listdir(shared / "logs" / "run") == []


@needs_root
def test_root_resumes_the_run_of_a_user(shared):
    """As in a container that works as root in the folder of a user."""
    os.chown(shared, VICTIM, VICTIM)
    run_script(AS_VICTIM + "record(sys.argv[1])", shared / "logs", VICTIM)
    assert run_script(AS_VICTIM + "record(sys.argv[1], resume=True)", shared / "logs", 0) == "recorded run 6\n"


@needs_root
def test_umask_decides_who_can_read_a_run(shared):
    run_script(AS_VICTIM + "os.umask(0o077); record(sys.argv[1])", shared / "logs", VICTIM)
    files = [path for path in (shared / "logs" / "run").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files} == {0}
