"""Rebuilding the code of a run, and comparing two runs."""

from __future__ import annotations

import contextlib
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
from tachograph.journal import RunFolder
from tachograph.reader.captured_code import SourceFile, write_code_file
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
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "5", "TACHO_GIT": ""}
    subprocess.run(command, cwd=project / "jobs", env=environment, check=True, timeout=HANG_S)


def state_of(tree: Path) -> tuple[str, str]:
    untracked = git(tree, "ls-files", "--others", "-z", "-x", ".venv")
    return git(tree, "diff", "HEAD", "--binary"), untracked


@pytest.fixture(autouse=True)
def in_project(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in the clone, as users do: the repository is the one around the working directory."""
    if "project" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("project"))


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


def test_reproduce_names_what_it_lacks(project: Path, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    train(project, logs, "x")
    run = tachograph.read("x", logs)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(CodeError, match="exists already"):
        rebuild(run, tmp_path / "full")
    with pytest.raises(CodeError, match="does not exist; create it first"):
        rebuild(run, tmp_path / "a" / "b")
    project.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CodeError, match="is not in a git repository: .*--repository"):
        rebuild(run, tmp_path / "new")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    with pytest.raises(CodeError, match="has no commit"):
        rebuild(run, tmp_path / "new", str(other))
    assert not (tmp_path / "new").exists()
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
    with tachograph.init("x", log_dir=str(logs), console=False, git=False) as run:
        folder = RunFolder(run.path or "")
        blob = write_code_file(folder, b"evil\n")
        names = ["../outside.py", "/tmp/tacho-outside.py", "a/../../outside.py", "fine.py"]
        names += [".git/hooks/x", "a/.git/config", ".GIT/config", ".git", ".g\u200cit/config", "GIT~1/x", ".git. /x"]
        names += [".git::$INDEX_ALLOCATION/config", "a\\.git\\config"]
        files = [SourceFile(name, blob, 5, is_untracked=True) for name in names]
        listed = write_code_file(folder, msgspec.json.encode(files), ".json")
        lacks = {"missing": "git status took longer than 5 s"}
        run.add_record("code", {"files": {"file": listed, "root": "/"}, "diff": lacks, "command": ["python", "x.py"]})
    rebuilt = rebuild(tachograph.read(run), tmp_path / "into")
    assert rebuilt.notes == ["uncommitted changes are unknown: git status took longer than 5 s"]
    assert [path.name for path in (tmp_path / "into").rglob("*")] == ["fine.py"]
    assert not (tmp_path / "outside.py").exists() and not Path("/tmp/tacho-outside.py").exists()


ATTACK = """
[core]
    fsmonitor = {marker}; false
    hooksPath = {hooks}
    sshCommand = {marker}
    pager = {marker}
    editor = {marker}
    askPass = {marker}
    alternateRefsCommand = {marker}
    gitProxy = {marker}
[filter "evil"]
    smudge = {marker}; cat
    clean = {marker}; cat
    process = {marker}
    required = true
[filter "lfs"]
    smudge = {marker}; cat
    process = {marker}
[diff "evil"]
    command = {marker}
    textconv = {marker}
[diff]
    external = {marker}
[merge "evil"]
    driver = {marker}
[submodule]
    recurse = true
[submodule "sub"]
    url = {repository}
    update = !{marker}
    active = true
[extensions]
    partialClone = origin
[remote "origin"]
    url = ext::{marker}
    uploadpack = {marker}
    promisor = true
    vcs = evil
[protocol "ext"]
    allow = always
[uploadpack]
    packObjectsHook = {marker}
[gpg]
    program = {marker}
[credential]
    helper = !{marker}
[alias]
    checkout = !{marker}
    init = !{marker}
    apply = !{marker}
    cat-file = !{marker}
"""
HOOKS = ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "post-applypatch", "fsmonitor")


@pytest.fixture
def trap(logs: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A run folder with a repository that runs a program wherever git allows it, and the file that it writes."""
    with tachograph.init("x", log_dir=str(logs), console=False, git=False, code=False) as run:
        folder = RunFolder(run.path or "")
        repository, proof, hooks = folder.path / "repo", tmp_path / "ran", tmp_path / "hooks"
        repository.mkdir()
        git(repository, "init", "-q", "-b", "trunk")
        for name in ("a.txt", "b.txt"):
            (repository / name).write_text("one\n")
        (repository / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\nb.txt filter=lfs ident\n")
        (repository / ".gitmodules").write_text('[submodule "sub"]\n    path = sub\n    url = ./sub\n')
        (repository / ".lfsconfig").write_text("[lfs]\n    url = https://attacker.invalid\n")
        git(repository, "add", ".")
        git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
        git(repository, "commit", "-q", "-m", "first")
        commit = git(repository, "rev-parse", "HEAD").strip()
        (repository / "a.txt").write_text("two\n")
        patch = write_code_file(folder, git(repository, "diff", "HEAD", "--", "a.txt").encode(), ".patch")
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\necho ran >> '{proof}'\n")
        program.chmod(0o755)
        hooks.mkdir()
        for name in HOOKS:
            (hooks / name).symlink_to(program)
            (repository / ".git" / "hooks" / name).symlink_to(program)
        attack = ATTACK.format(marker=program, hooks=hooks, repository=repository)
        (repository / ".git" / "config").write_text(attack + "[core]\n    repositoryFormatVersion = 1\n")
        facts = {"commit": commit, "root": "repo", "remote": f"ext::{program}", "submodules": [{"path": "sub"}]}
        run.add_record("code", {"git": facts, "diff": {"file": patch}, "command": ["python", "x.py"]})
    return repository, proof


def test_a_journal_names_no_repository(
    trap: tuple[Path, Path], logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    repository, proof = trap
    journal = RunFolder(str(repository.parent)).journal
    text = journal.read_text()
    roots = ("repo", f"{repository}", ".", f"{repository}/.git", f"file://{repository}")
    for root, cwd in zip(roots, (repository.parent, logs, tmp_path, tmp_path, repository.parent), strict=True):
        assert '"root":"repo"' in text
        journal.write_text(text.replace('"root":"repo"', f'"root":"{root}"'))
        monkeypatch.chdir(cwd)
        with pytest.raises(CodeError, match="is not in a git repository"):
            rebuild(tachograph.read("x", logs), tmp_path / "into")
    assert not (tmp_path / "into").exists() and not proof.exists()


@pytest.mark.parametrize("chosen", ["option", "working directory", "environment"])
def test_a_restored_commit_runs_no_program(
    trap: tuple[Path, Path], logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
):
    """Even if the user names the repository, or stands in it, only its objects are used."""
    repository, proof = trap
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text((repository / ".git" / "config").read_text())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    into = tmp_path / 'in"to\n'
    if chosen == "environment":
        program = tmp_path / "program"
        for name in ("GIT_EXTERNAL_DIFF", "GIT_SSH_COMMAND", "GIT_EDITOR", "GIT_PROXY_COMMAND", "GIT_ASKPASS"):
            monkeypatch.setenv(name, str(program))
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "filter.evil.smudge")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(program))
        monkeypatch.setenv("GIT_TEMPLATE_DIR", str(repository / ".git"))
    if chosen == "working directory":
        monkeypatch.chdir(repository)
    rebuilt = rebuild(tachograph.read("x", logs), into, None if chosen == "working directory" else str(repository))
    assert not proof.exists()
    assert [(into / name).read_text() for name in ("a.txt", "b.txt")] == ["two\n", "one\n"]
    assert any("the filter was not run" in note for note in rebuilt.notes)
    assert not list((into / "sub").iterdir()) and not (into / ".git" / "hooks").exists()


def test_the_trap_works(trap: tuple[Path, Path], tmp_path: Path):
    """A plain git command does run a program there; otherwise the tests above prove nothing."""
    repository, proof = trap
    with contextlib.suppress(subprocess.CalledProcessError):
        git(repository, "worktree", "add", "--detach", str(tmp_path / "worktree"), "HEAD")
    assert proof.exists()


def test_a_patch_writes_only_into_its_folder(trap: tuple[Path, Path], logs: Path, tmp_path: Path):
    """Through no link, into no repository, and through no link with the name of a rejected part."""
    repository, proof = trap
    link = "diff --git a/{0} b/{0}\nnew file mode 120000\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+{1}\n"
    link += "\\ No newline at end of file\n"
    new = "diff --git a/{0} b/{0}\nnew file mode 100755\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+evil\n"
    misfit = "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-other\n+[masked]\n"
    outside = tmp_path / "outside"
    outside.mkdir()
    patches = [
        link.format("link", outside) + new.format("link/evil"),
        new.format(".git/hooks/post-checkout"),
        new.format("../outside/evil"),
        link.format("a.txt.rej", outside / "evil") + misfit,
    ]
    run_folder = RunFolder(str(repository.parent))
    for number, patch in enumerate(patches):
        name = write_code_file(run_folder, patch.encode(), ".patch")
        journal = run_folder.journal
        lines = journal.read_text().splitlines()
        for index, line in enumerate(lines):
            record = msgspec.json.decode(line)
            if record["event"] == "code":
                record["diff"] = {"file": name, "masked": ["a.txt"]}
                lines[index] = msgspec.json.encode(record).decode()
        journal.write_text("\n".join(lines) + "\n")
        with contextlib.suppress(CodeError):
            rebuild(tachograph.read("x", logs), tmp_path / f"into-{number}", str(repository))
        assert not list(outside.iterdir()) and not list((tmp_path / f"into-{number}").rglob("post-checkout"))
    assert not proof.exists()


def test_the_script_clones_from_no_program(trap: tuple[Path, Path], logs: Path, tmp_path: Path):
    _repository, proof = trap
    script = tacho("reproduce", "x", "--log-dir", logs)
    environment = {**os.environ, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.ext.allow"}
    environment["GIT_CONFIG_VALUE_0"] = "always"
    done = subprocess.run(
        ["sh"], input=script.encode(), cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode and b"'ext' not allowed" in done.stderr and not proof.exists()


@pytest.mark.slow
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
