"""Capturing code and environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import tachograph
from tachograph._base.detached import DetachedProcess
from tachograph.exceptions import CodeError
from tachograph.journal import RunFolder
from tachograph.reader.captured_code import (
    last_code,
    read_capture_result,
    read_code_file,
    read_sources,
    remove_unused_code_files,
    run_git,
)
from tachograph.recorder.collectors.code.capture import capture
from tachograph.recorder.collectors.code.request import CaptureRequest
from tachograph.recorder.collectors.code.sources import loaded_files
from tests.conftest import HANG_S, lines_of, wait_for

TRAIN = """
import helper, os, time
import tachograph

code = os.environ["TACHO_CODE"] == "1"

with tachograph.init("x", log_dir="logs", console=False, system_interval_s=0) as run:
    run.log(train_loss=1.0)
    while code and '"event":"code"' not in run.folder.journal.read_text():
        time.sleep(0.02)
"""

CUT_SHORT = "the run ended before this was captured"


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "protocol.file.allow=always"]
    done = subprocess.run([*command, *arguments], cwd=repository, capture_output=True, check=True, timeout=HANG_S)
    return done.stdout.decode()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    git(path, "init", "-q", "-b", "trunk")
    (path / "train.py").write_text(TRAIN)
    (path / "helper.py").write_text("value = 1\n")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    return path


def capture_in(
    folder: Path, *files: Path, logs: Path | None = None, **options: Any
) -> tuple[RunFolder, dict[str, Any]]:
    run = RunFolder((logs or folder / "logs") / "x")
    run.path.mkdir(parents=True, exist_ok=True)
    script, *modules = map(str, files) if files else (None,)
    return run, capture(CaptureRequest(str(run.path), str(folder), script, modules, **options))


def reasons(part: dict[str, Any]) -> dict[str, str]:
    return {entry["path"]: entry["reason"] for entry in part["left_out"]}


@pytest.mark.slow
def test_a_run_captures_its_code(repository: Path):
    (repository / "helper.py").write_text("value = 2\napi_key = 'hunter2-0123456789'\n")
    (repository / "notes.yaml").write_text("lr: 1\n")
    (repository / "data.bin").write_bytes(b"\0" * 10)
    # torch sets variables of its own in a process that ran other tests
    environment = {name: value for name, value in os.environ.items() if "TORCH" not in name}
    environment |= {
        "NCCL_DEBUG": "INFO",
        "MY_SECRET": "hunter2",
        "TACHO_CODE": "1",
        "TACHO_GIT": "",
        "PYTHONHASHSEED": "7",
    }
    for _ in range(2):
        command = [sys.executable, "train.py", "--token", "hunter2"]
        subprocess.run(command, cwd=repository, env=environment, check=True, timeout=HANG_S)
    journals = map(lines_of, sorted((repository / "logs").glob("x*")))
    first, second = (next(line for line in lines if line["event"] == "code") for lines in journals)
    assert first["git"]["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert (first["git"]["branch"], first["git"]["dirty"]) == ("trunk", True)
    assert first["environment"] == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    assert first["command"][1:] == ["train.py", "--token", "[masked]"]
    assert (first["diff"]["num_files"], first["diff"]["masked"]) == (1, ["helper.py"])
    assert reasons(first["files"]) == {"data.bin": "not a source file"}
    run = RunFolder(repository / "logs" / "x")
    patch = read_code_file(run, first["diff"]["file"])
    assert b"+value = 2" in patch and b"hunter2" not in patch
    sources = {source.path: source for source in read_sources(run, first)}
    assert [path for path in sources if not path.startswith("/")] == ["train.py", "helper.py", "notes.yaml"]
    assert sources["notes.yaml"].is_untracked and sources["helper.py"].is_masked
    assert b"hunter2" not in read_code_file(run, sources["helper.py"].file)
    packages = read_code_file(run, first["packages"]["file"]).decode()
    assert "msgspec==" in packages and "\nPyJWT==[masked]" not in packages
    # The second run captured the same, and shares the files.
    assert all(second[name] == first[name] for name in ("git", "diff", "packages"))
    shared = os.stat(repository / "logs" / "x-2" / "code" / first["diff"]["file"])
    assert shared.st_nlink == 3 and shared.st_ino == os.stat(run.code / first["diff"]["file"]).st_ino
    # Nothing of the capture remains once the runs are gone.
    assert remove_unused_code_files(repository / "logs") == 0
    for name in ("x", "x-2"):
        subprocess.run(["rm", "-r", str(repository / "logs" / name)], check=True)
    assert remove_unused_code_files(repository / "logs") > 0
    assert list((repository / "logs" / ".tachograph" / "code").iterdir()) == []


def test_code_can_be_turned_off(repository: Path):
    environment = {**os.environ, "TACHO_CODE": "0", "TACHO_GIT": ""}
    subprocess.run([sys.executable, "train.py"], cwd=repository, env=environment, check=True, timeout=HANG_S)
    assert [line["event"] for line in lines_of(repository / "logs" / "x")] == ["start", "step", "end"]
    assert not (repository / "logs" / ".tachograph").exists()


def test_the_end_of_a_short_run_waits_for_its_code(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tachograph.recorder.collectors.code.collector._MAX_WAIT_S", HANG_S)  # a busy machine
    run = start_run(repository, monkeypatch, exit_timeout_s=600)
    run.finish()
    (code,) = (line for line in lines_of(repository / "logs" / "x") if line["event"] == "code")
    assert code["git"]["branch"] == "trunk" and code["command"]
    assert all(code[part].get("missing") != CUT_SHORT for part in ("git", "diff", "files", "packages"))
    assert "missing" not in code["packages"]


def start_run(repository: Path, monkeypatch: pytest.MonkeyPatch, exit_timeout_s: float = 120.0) -> tachograph.Run:
    monkeypatch.chdir(repository)
    options: dict[str, Any] = {"console": False, "system_interval_s": 0, "exit_timeout_s": exit_timeout_s}
    return tachograph.init("x", log_dir="logs", code=True, git=True, **options)


@pytest.fixture
def hanging_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A git that hangs in a command of the capture, ``hanging_git("diff")``; its process ids are in a file."""

    def install(command: str) -> Path:
        tools, pids, new = tmp_path / "tools", tmp_path / "pids", tmp_path / "new"
        tools.mkdir()
        (tools / "git").write_text(
            f"""#!/bin/sh
            case "$*" in
            --no-pager*" {command} "*) echo $$ $PPID > {new}; mv {new} {pids}; exec sleep 1000;;
            *) exec {shutil.which("git")} "$@";;
            esac
            """
        )
        (tools / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        return pids

    return install


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; if its parent has too, no one may collect it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_hanging_git_is_stopped(
    repository: Path, hanging_git: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    hanging_git("status --porcelain=v2")
    with pytest.raises(CodeError, match="git status took longer than 0.1 s"):
        run_git("status", "--porcelain=v2", "-z", cwd=str(repository), timeout_s=0.1)
    monkeypatch.setattr(run_git, "__kwdefaults__", {**run_git.__kwdefaults__, "timeout_s": 0.1})
    _, found = capture_in(repository, repository / "train.py")
    assert "took longer than" in found["git"]["missing"]


@pytest.mark.parametrize("ignores_sigterm", [False, True])
def test_nothing_writes_after_the_end_of_a_run(
    repository: Path, hanging_git: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, ignores_sigterm: bool
):
    """The capture is still running when the run ends: it is stopped, and the record says so."""
    pids = hanging_git("status --porcelain=v2")
    if ignores_sigterm:
        monkeypatch.setattr(DetachedProcess, "terminate", lambda self: None)
        monkeypatch.setattr("tachograph.recorder.collectors.code.collector._TERMINATE_SHARE", 0.004)
    run = start_run(repository, monkeypatch)
    wait_for(pids.exists, "the git command")
    run.log(train_loss=1.0)
    run.finish(timeout_s=HANG_S)
    git_pid, capture_pid = map(int, pids.read_text().split())
    assert not psutil.pid_exists(capture_pid)
    if ignores_sigterm:
        os.kill(git_pid, signal.SIGKILL)  # only the capturing process could stop it
    wait_for(lambda: has_ended(git_pid), "the end of the git command")
    (code,) = (line for line in lines_of(repository / "logs" / "x") if line["event"] == "code")
    assert code["missing"] == CUT_SHORT


def test_the_capture_ends_with_the_training_process(repository: Path, hanging_git: Callable[[str], Path]):
    pids = hanging_git("status --porcelain=v2")
    environment = {**os.environ, "TACHO_CODE": "1", "TACHO_GIT": ""}
    with subprocess.Popen([sys.executable, "train.py"], cwd=repository, env=environment) as process:
        wait_for(pids.exists, "the git command")
        process.kill()
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: has_ended(pid), "the end of the capture")


def test_a_git_that_is_just_starting_is_killed(hanging_git: Callable[[str], Path], script: Callable[..., Any]):
    """The signal comes at one line after the other, from before git starts until the process waits for it."""
    pids = hanging_git("status --porcelain=v2")
    program = """
    import os, signal, sys, threading
    from tachograph.reader.captured_code import kill_running_git, run_git

    def end(*_):
        kill_running_git()
        os._exit(1)

    def run_until(line):
        signal.signal(signal.SIGTERM, end)
        num_lines = 0

        def trace(frame, event, argument):
            nonlocal num_lines
            num_lines += event == "line"
            if num_lines == line:
                os.kill(os.getpid(), signal.SIGTERM)
            return trace

        sys.settrace(trace)
        run_git("status", "--porcelain=v2", "-z", cwd=".", timeout_s=3.0)

    statuses = []
    while not statuses or statuses[-1] == 1:
        pid = os.fork()
        if pid == 0:
            try:
                run_until(1 + 20 * len(statuses))
            finally:
                os._exit(0)  # the program took fewer lines
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if os.path.exists(sys.argv[1]):
            print(open(sys.argv[1]).read().split()[0])
            os.remove(sys.argv[1])
    """
    git_pids = list(map(int, script(program, pids).ok().split()))
    assert git_pids
    for pid in git_pids:
        wait_for(lambda pid=pid: has_ended(pid), "the end of git")


def test_parts_captured_before_the_end_are_kept(
    repository: Path, hanging_git: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    pids = hanging_git("diff")
    run = start_run(repository, monkeypatch)
    wait_for(pids.exists, "the diff")
    run.finish(timeout_s=HANG_S)
    (code,) = (line for line in lines_of(repository / "logs" / "x") if line["event"] == "code")
    assert code["git"]["branch"] == "trunk"
    assert code["diff"] == code["files"] == code["packages"] == {"missing": CUT_SHORT}
    assert list((repository / "logs" / "x" / "code").glob(".*")) == []


def test_results_in_files_of_earlier_versions_are_read(tmp_path: Path):
    run = RunFolder(tmp_path / "logs" / "x")
    run.code.mkdir(parents=True)
    name = "result-0123456789abcdef.json"
    start = {"event": "start", "time": 1.0, "run_name": "x", "run_id": "1"}
    lines = [start, {"event": "code", "time": 2.0, "result": name, "command": ["python"]}]
    run.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "has not finished" in last_code(tachograph.read("x", log_dir=tmp_path / "logs"))["missing"]
    (run.code / name).write_text('{"git": {"branch": "trunk"}}')
    assert last_code(tachograph.read("x", log_dir=tmp_path / "logs"))["git"] == {"branch": "trunk"}
    assert read_capture_result(run, "../metrics.jsonl") is None


def test_what_only_looks_like_a_module_is_skipped(monkeypatch: pytest.MonkeyPatch):
    class Library:  # cffi puts such objects into `sys.modules`
        __slots__ = ()
        __class__ = property(lambda self: types.ModuleType)

    monkeypatch.setitem(sys.modules, "a_library", Library())
    assert __file__ in loaded_files()


def test_missing_parts_have_a_reason(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    _, found = capture_in(outside)
    assert found["git"] == {"missing": "not in a git repository"} and "interactive" in found["files"]["missing"]
    git(outside, "init", "-q")
    _, found = capture_in(outside)
    assert found["diff"] == {"missing": "no commit yet"}
    _, found = capture_in(repository, repository / "train.py", git=False)
    assert found["git"] == {"missing": "the setting git is off"} and "diff" not in found
    monkeypatch.setenv("PATH", str(tmp_path))
    _, found = capture_in(repository, repository / "train.py")
    assert found["git"] == {"missing": "git is not installed"}
    assert found["files"]["num_files"] == 1


def test_large_and_odd_files_are_listed(repository: Path):
    (repository / "helper.py").write_text("".join(f"value_{number} = {number}\n" for number in range(20_000)))
    (repository / "big.json").write_text("1" * 200_000)
    (repository / "small.json").write_text("{}")
    (repository / "link.json").symlink_to("/etc/passwd")
    with open(os.fsencode(repository) + b"/bad\xff.py", "w") as file:
        file.write("x = 1\n")
    (repository / "key.py").write_text(
        "KEY = '''\n-----BEGIN PRIVATE KEY-----\nabc\nabc\n-----END PRIVATE KEY-----\n'''\n"
    )
    git(repository, "add", "key.py")
    run, found = capture_in(repository, repository / "train.py", repository / "helper.py")
    assert reasons(found["diff"]) == {
        "helper.py": "its diff is larger than 100 KB",
        "key.py": "a secret in it has several lines",
    }
    assert reasons(found["files"]) == {
        "bad\\xff.py": "its name is not valid UTF-8",
        "big.json": "is larger than 102400 bytes",
        "link.json": "not a regular file",
    }
    assert {source.path for source in read_sources(run, found)} == {"train.py", "helper.py", "small.json"}


def test_worktrees_and_submodules_are_captured(repository: Path, tmp_path: Path):
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "part.py").write_text("x = 1\n")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "first")
    git(repository, "submodule", "--quiet", "add", str(library), "library")
    git(repository, "commit", "-q", "-m", "add the library")
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    (repository / "library" / "part.py").write_text("x = 2\n")
    _, found = capture_in(repository, repository / "train.py")
    commit = git(library, "rev-parse", "HEAD").strip()
    assert found["git"]["submodules"] == [{"path": "library", "commit": commit, "is_dirty": True}]
    assert found["diff"]["num_files"] == 0
    (tmp_path / "tree" / "sub").mkdir()
    (tmp_path / "tree" / "train.py").write_text("changed = 1\n")
    run, found = capture_in(tmp_path / "tree" / "sub", tmp_path / "tree" / "train.py")
    assert found["git"]["branch"] == "other" and found["diff"]["num_files"] == 1
    assert [source.path for source in read_sources(run, found)] == ["train.py"]


def test_a_folder_with_an_odd_name_is_harmless(tmp_path: Path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff"))
    odd.mkdir()
    git(odd, "init", "-q")
    (odd / "train.py").write_text(TRAIN.replace("import helper, ", "import "))
    environment = {**os.environ, "TACHO_CODE": "1", "TACHO_GIT": "", "TACHO_LOG_DIR": str(tmp_path / "logs")}
    source = (odd / "train.py").read_text().replace('log_dir="logs", ', "")
    subprocess.run([sys.executable, "-c", source], cwd=odd, env=environment, check=True, timeout=HANG_S)
    (code,) = (line for line in lines_of(tmp_path / "logs" / "x") if line["event"] == "code")
    assert "UnicodeEncodeError" in code["missing"]


def test_changed_blobs_are_rejected(repository: Path):
    run, found = capture_in(repository, repository / "train.py")
    path = run.code / found["packages"]["file"]
    path.chmod(path.stat().st_mode | stat.S_IWUSR)
    path.write_text("torch==6.6.6\n")
    with pytest.raises(CodeError, match="was changed"):
        read_code_file(run, found["packages"]["file"])
    for name in ("../metrics.jsonl", "/etc/passwd", "", "a" * 40 + "/.."):
        with pytest.raises(CodeError, match="not the name"):
            read_code_file(run, name)


def test_git_is_not_looked_up_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of a run may have a program of this name."""
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\necho trapped\n")
    program.chmod(0o755)
    for before in (".", "", "bin/.."):
        monkeypatch.setenv("PATH", f"{before}{os.pathsep}{os.environ['PATH']}")
        assert run_git("--version", cwd=str(tmp_path)).startswith(b"git version")
        assert run_git("--version", cwd=str(tmp_path), git_dir=str(tmp_path)).startswith(b"git version")
