"""Rebuilding the code of a run, and comparing two runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import tachograph
from tachograph.catalog import rebuild
from tachograph.cli._main import main
from tachograph.exceptions import CodeError
from tests.conftest import HANG_S
from tests.recorder.test_code_capture import git

HOSTILE = "$(touch pwned)`touch pwned`;'\"&|\n #.py"

TRAIN = """
import os, sys, time
import tachograph
import helper

config = {"lr": float(sys.argv[1]), "model": {"depth": 2}}
with tachograph.init(sys.argv[2], log_dir=sys.argv[3], config=config, code=True, console=False) as run:
    while '"event":"code"' not in run.folder.journal.read_text():
        time.sleep(0.02)
"""

STAND_IN = """#!/bin/sh
echo "$PWD: $*" >> "$CALLS"
[ "$2" != venv ] || { mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a hostile remote, branch and file name, and a clone of it with every kind of change."""
    remote = tmp_path / "remote $(touch pwned)'"
    remote.mkdir()
    git(remote, "init", "-q", "--bare", "-b", "trunk")
    path = tmp_path / "project"
    git(tmp_path, "clone", "-q", str(remote), str(path))
    (path / "jobs").mkdir()
    (path / "jobs" / "train.py").write_text(TRAIN)
    (path / "jobs" / "helper.py").write_text("value = 1\n")
    (path / "binary.dat").write_bytes(bytes(range(256)))
    (path / "deleted.py").write_text("old = 1\n")
    (path / "run.sh").write_text("echo\n")
    (path / HOSTILE).write_text("value = 1\n")
    git(path, "checkout", "-q", "-b", "x$(touch${IFS}pwned)';#")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    git(path, "push", "-q", "origin", "HEAD:trunk")
    (path / "jobs" / "helper.py").write_text("value = 2\r\nname = 'é'\n")
    (path / "binary.dat").write_bytes(bytes(range(256))[::-1])
    (path / "deleted.py").unlink()
    (path / "run.sh").chmod(0o755)
    (path / HOSTILE).write_text("value = 2")
    (path / "staged.txt").write_text("staged\n")
    git(path, "add", "staged.txt")
    (path / "jobs" / f"new{HOSTILE}").write_text("new = 1\n")
    (path / "new.sh").write_text("#!/bin/sh\n")
    (path / "new.sh").chmod(0o755)
    return path


def train(project: Path, logs: Path, name: str, lr: str = "0.1") -> None:
    command = [sys.executable, str(project / "jobs" / "train.py"), lr, name, str(logs), "--api-key", "hunter2"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "5"}
    subprocess.run(command, cwd=project / "jobs", env=environment, check=True, timeout=HANG_S)


def state_of(tree: Path) -> tuple[str, str]:
    untracked = git(tree, "ls-files", "--others", "-z", "-x", ".venv")
    return git(tree, "diff", "HEAD", "--binary"), untracked


def tacho(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_reproduce_restores_the_same_diff(project: Path, logs: Path, tmp_path: Path):
    train(project, logs, "x")
    expected = state_of(project)
    # As a folder. Its command line is not run.
    rebuilt = tmp_path / "re built"
    out = tacho("reproduce", "x", "--log-dir", logs, "--into", rebuilt)
    assert state_of(rebuilt) == expected
    assert os.access(rebuilt / "new.sh", os.X_OK)
    assert out.splitlines()[0] == f"cd -- '{rebuilt}'/jobs"
    assert "PYTHONHASHSEED=5" in out and f"python train.py 0.1 x {logs} --api-key '<…>'" in out
    # As a script, with stand-ins for the programs that it starts after the code is there.
    tools = tmp_path / "tools"
    tools.mkdir()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("python", version):
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)
    script = tacho("reproduce", "x", "--log-dir", logs)
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    subprocess.run(["sh"], input=script.encode(), cwd=work, env=environment, check=True, timeout=HANG_S)
    assert state_of(work / "x-code") == expected
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[1:4] for call in calls[:2]] == [["-m", "venv", "x-code/.venv"], ["-m", "pip", "install"]]
    assert calls[2] == f"{work}/x-code/jobs: train.py 0.1 x {logs} --api-key <…>"
    assert not list(tmp_path.rglob("pwned"))


def test_reproduce_names_what_it_lacks(project: Path, logs: Path, tmp_path: Path):
    train(project, logs, "x")
    run = tachograph.read("x", logs)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(CodeError, match="exists already"):
        rebuild(run, tmp_path / "full")
    with pytest.raises(CodeError, match="does not exist; create it first"):
        rebuild(run, tmp_path / "a" / "b")
    project.rename(tmp_path / "moved")
    with pytest.raises(CodeError, match="there is no repository at .*--repository"):
        rebuild(run, tmp_path / "new")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    with pytest.raises(CodeError, match="has no commit"):
        rebuild(run, tmp_path / "new", str(other))
    rebuild(run, tmp_path / "new", str(tmp_path / "moved"))
    assert state_of(tmp_path / "new") == state_of(tmp_path / "moved")
    with tachograph.init("bare", log_dir=str(logs), console=False, git=False) as bare:
        pass
    with pytest.raises(CodeError, match="the code of 'bare' is unknown: the run has no captured code"):
        rebuild(tachograph.read(bare), tmp_path / "never")


def test_masked_changes_are_left_for_the_user(project: Path, logs: Path, tmp_path: Path):
    lines = ["API_KEY = 'hunter2-hunter2'", *(f"x{number} = 1" for number in range(30))]
    (project / "jobs" / "helper.py").write_text("\n".join(lines))
    git(project, "commit", "-q", "-a", "-m", "add a secret")
    lines[1], lines[-2] = "x0 = 2", "last = 2"
    (project / "jobs" / "helper.py").write_text("\n".join(lines))
    (project / "run.sh").write_text("echo changed\n")
    train(project, logs, "x")
    rebuilt = rebuild(tachograph.read("x", logs), tmp_path / "into")
    text = (tmp_path / "into" / "jobs" / "helper.py").read_text()
    assert "last = 2" in text and "x0 = 1" in text
    assert "[masked]" in (tmp_path / "into" / "jobs" / "helper.py.rej").read_text()
    assert (tmp_path / "into" / "run.sh").read_text() == "echo changed\n"
    assert "changes next to a masked secret could not be applied: see the .rej files" in rebuilt.notes


def test_reproduce_writes_only_into_its_folder(logs: Path, tmp_path: Path):
    """The list of files comes from the log folder, which others may write."""
    from tachograph.journal import RunFolder
    from tachograph.reader.captured_code import SourceFile, write_code_file

    with tachograph.init("x", log_dir=str(logs), console=False, git=False) as run:
        folder = RunFolder(run.path or "")
        blob = write_code_file(folder, b"evil\n")
        names = ["../outside.py", "/tmp/tacho-outside.py", "a/../../outside.py", ".git/hooks/x", "fine.py"]
        files = [SourceFile(name, blob, 5, is_untracked=True) for name in names]
        listed = write_code_file(folder, msgspec.json.encode(files), ".json")
        lacks = {"missing": "git status took longer than 5 s"}
        run.add_record("code", {"files": {"file": listed, "root": "/"}, "diff": lacks, "command": ["python", "x.py"]})
    rebuilt = rebuild(tachograph.read(run), tmp_path / "into")
    assert rebuilt.notes == ["uncommitted changes are unknown: git status took longer than 5 s"]
    assert [path.name for path in (tmp_path / "into").rglob("*")] == ["fine.py"]
    assert not (tmp_path / "outside.py").exists() and not Path("/tmp/tacho-outside.py").exists()


def test_diff_shows_only_what_differs(project: Path, logs: Path):
    train(project, logs, "a")
    (project / "jobs" / "helper.py").write_text("value = 3\n")
    (project / "staged.txt").write_text("changed\n")
    train(project, logs, "b", lr="0.2")
    found = msgspec.json.decode(tacho("diff", "a", "b", "--log-dir", logs, "--json"))
    assert found["config"] == [{"name": "lr", "first": 0.1, "second": 0.2}]
    assert [each["name"] for each in found["git"]] == ["patch"]
    assert (found["packages"], found["notes"]) == ([], [])
    assert [each["name"] for each in found["environment"]] == ["command"]
    changes = {change["path"]: change for change in found["code"]}
    assert set(changes) == {"jobs/helper.py", "staged.txt"}
    assert "-value = 2" in changes["jobs/helper.py"]["diff"] and "+value = 3" in changes["jobs/helper.py"]["diff"]
    assert "+changed" in changes["staged.txt"]["diff"] and changes["staged.txt"]["is_patch"]
    text = tacho("diff", "a", "b", "--log-dir", logs)
    assert "+value = 3" in text and "lr" in text and "depth" not in text
    assert "No differences found." in tacho("diff", "a", "a", "--log-dir", logs)
    with tachograph.init("bare", log_dir=str(logs), console=False, git=False):
        pass
    text = tacho("diff", "a", "bare", "--log-dir", logs)
    assert "not compared: bare: no packages: the run has no captured code" in text
    found = msgspec.json.decode(tacho("diff", "a", "b", "bare", "--log-dir", logs, "--json"))
    assert {each["name"]: each["values"] for each in found["config"]}["lr"] == [0.1, 0.2, None]
    assert found["files"] == [{"path": "jobs/helper.py", "versions": [1, 2, None]}]
    assert "bare: no code: the run has no captured code" in found["notes"]
    text = tacho("diff", "--where", "config.lr>0", "--log-dir", logs, "--columns", "steps")
    assert "b: version 1, a: version 2" in text and "bare" not in text
