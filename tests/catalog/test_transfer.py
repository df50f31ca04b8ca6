"""Moving and copying runs: nothing is lost or half-named, whenever a command is killed."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest

import tachograph
from tachograph.catalog import Catalog, TransferError, annotate, copy_run, move_run, read_annotations
from tachograph.exceptions import RunNameError, RunNotFoundError
from tachograph.journal import RunFolder
from tests.store import END, START, answers, opened, step, write


def make_run(logs, name="a", num_steps=50):
    folder = write(logs / name, [START, *(step(number, loss=1 / (1 + number)) for number in range(num_steps)), END])
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / "model.pt").write_bytes(b"weights")
    os.symlink("checkpoints/model.pt", folder.path / "best.pt")
    annotate(folder, [{"op": "set", "field": "note", "value": "keep me"}])
    return folder


def content(folder):
    """Return everything in a run folder except what belongs to readers, with the times of the files."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".tacho" not in path.parts and "annotations" not in path.parts
    }


def names(logs):
    return sorted(row.id for row in Catalog(logs).rows())


@pytest.fixture
def other_disk():
    """A folder on another file system."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(tempfile.gettempdir()).st_dev:
        pytest.skip("there is only one file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_moved_run_keeps_everything(tmp_path):
    logs = tmp_path / "logs"
    folder = make_run(logs)
    before, charts = content(folder.path), answers(opened(folder))
    assert move_run(str(logs), "a", "b") == logs / "b"
    assert names(logs) == ["b"]
    assert move_run(str(logs), "b", "sweep/c") == logs / "sweep" / "c"
    assert names(logs) == ["sweep/c"]
    (tmp_path / "other").mkdir()
    path = move_run(str(logs), "sweep/c", str(tmp_path / "other"))
    assert path == tmp_path / "other" / "c"
    assert content(path) == before
    assert answers(opened(RunFolder(path))) == charts
    assert read_annotations(RunFolder(path)).values == {"note": "keep me"}
    assert os.readlink(path / "best.pt") == "checkpoints/model.pt"


def test_move_to_another_disk(tmp_path, other_disk):
    folder = make_run(tmp_path, num_steps=20_000)
    run = opened(folder, segment_bytes=1 << 18)
    before, charts = content(folder.path), answers(run)
    columns = sorted(os.listdir(folder.cache))
    path = move_run(str(tmp_path), "a", str(other_disk))
    assert path == other_disk / "a"
    assert names(tmp_path) == []
    assert os.listdir(tmp_path) in ([], [".tachograph"])
    assert os.listdir(other_disk) == ["a"]
    moved = RunFolder(path)
    assert content(path) == before
    assert sorted(os.listdir(moved.cache)) == columns != []
    assert answers(opened(moved, segment_bytes=1 << 18)) == charts
    assert read_annotations(moved).values == {"note": "keep me"}
    assert os.readlink(path / "best.pt") == "checkpoints/model.pt"


def test_copy_names_its_original(tmp_path):
    folder = make_run(tmp_path)
    os.chmod(folder.path / "checkpoints" / "model.pt", 0o400)
    path = copy_run(str(tmp_path), "a", "b")
    assert content(path) == content(folder.path)
    assert (path / "checkpoints" / "model.pt").stat().st_mode & 0o777 == 0o400
    found = read_annotations(RunFolder(path)).values
    assert found == {"note": "keep me", "custom.copied_from": os.path.realpath(folder.path)}
    assert read_annotations(folder).values == {"note": "keep me"}
    rows = {row.id: row for row in Catalog(tmp_path).rows(is_full=True)}
    assert rows["a"].get("run_id") == rows["b"].get("run_id") == "0123"
    assert rows["b"].get("custom.copied_from") == os.path.realpath(folder.path)


def test_run_with_an_unusual_name_can_be_moved(tmp_path):
    make_run(tmp_path / "logs", "con:fig?")
    (tmp_path / "other").mkdir()
    assert move_run(str(tmp_path / "logs"), "con:fig?", str(tmp_path / "other")).name == "con:fig?"


def test_bad_targets_are_refused(tmp_path):
    logs = tmp_path / "logs"
    make_run(logs, "a")
    make_run(logs, "b")
    for act in (move_run, copy_run):
        for target in ("b", str(logs / "b"), str(logs)):
            with pytest.raises(TransferError, match="b|a"):
                act(str(logs), "a", target)
        for target, message in (
            ("b/inside", "is a run"),
            ("a/inside", "is a run"),
            (str(tmp_path / "missing") + "/", "create it first"),
            (str(tmp_path / "missing" / "c"), "create it first"),
            ("/".join("abcdefghi"), "folders"),
        ):
            with pytest.raises(TransferError, match=message):
                act(str(logs), "a", target)
        for target in (".hidden", "x/../../y", "a\\b"):
            with pytest.raises(RunNameError):
                act(str(logs), "a", target)
        with pytest.raises(RunNotFoundError):
            act(str(logs), "../logs/a", "c")
    assert names(logs) == ["a", "b"]


def test_running_and_stale_runs_are_not_moved(logs):
    write(logs / "stale", [START, step(0, loss=1.0)])
    for act in (move_run, copy_run):
        with pytest.raises(TransferError, match="--force"):
            act(str(logs), "stale", "other")
    with tachograph.init("live", log_dir=str(logs), console=False, system_interval_s=0, git=False):
        for act in (move_run, copy_run):
            with pytest.raises(TransferError, match="still being recorded"):
                act(str(logs), "live", "other", is_forced=True)
    copy_run(str(logs), "stale", "other", is_forced=True)
    move_run(str(logs), "live", "moved")
    with tachograph.init("moved", log_dir=str(logs), resume=True, console=False, system_interval_s=0, git=False) as run:
        assert run.name == "moved"
    assert names(logs) == ["moved", "other", "stale"]


MOVE = """
import os, signal, sys
from tachograph.catalog import _transfer, move_run

left = int(sys.argv[3])

def counted(function):
    def call(*arguments, **options):
        global left
        result = function(*arguments, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

_transfer._copy_entry, os.unlink = counted(_transfer._copy_entry), counted(os.unlink)
move_run(sys.argv[1], "a", sys.argv[2])
"""


def test_kill_while_moving_to_another_disk_loses_nothing(tmp_path, other_disk, script):
    logs = tmp_path / "logs"
    folder = make_run(logs)
    for number in range(60):
        (folder.path / "checkpoints" / f"part{number:03}").write_bytes(os.urandom(100_000))
    before = content(folder.path)
    seen = set()
    # It is killed after so many copied and deleted files: those that a killed command left, and at last the originals.
    for num_files in (1, 30, 66, 150, 72):
        assert script(MOVE, logs, other_disk, num_files).wait()[0] == -signal.SIGKILL
        there, here = other_disk / "a", logs / "a"
        assert there.exists() or here.exists()
        for path in (there, here):
            if path.exists():
                assert content(path) == before
        assert set(names(logs)) | set(names(other_disk)) == {"a"}
        seen.add((here.exists(), there.exists()))
        if here.exists() and there.exists():
            with pytest.raises(TransferError, match="exists already"):
                move_run(str(logs), "a", str(other_disk))
            move_run(str(logs), "a", "spare")
        if not here.exists():
            move_run(str(other_disk), "a", str(logs))
        elif there.exists():
            raise AssertionError("unreachable")
    assert {(True, False), (False, True)} <= seen
    # What the killed commands left behind is hidden, and the next transfer removes it.
    copy_run(str(logs), "a", str(other_disk))
    assert os.listdir(other_disk) == ["a"]
    move_run(str(logs), "a", "b")
    assert not [name for name in os.listdir(logs) if name.endswith(".tmp")]


COPY_AND_CHANGE = """
import sys
from tachograph.catalog import copy_run
logs = sys.argv[1]

def change(event, arguments):
    if event == "open" and str(arguments[0]) == "model.pt":  # while the run is being copied
        with open(logs + "/a/metrics.jsonl", "a") as file:
            file.write("x")

sys.addaudithook(change)
copy_run(logs, "a", "b")
"""


def test_change_while_copying_is_an_error(tmp_path, script):
    make_run(tmp_path / "logs")
    _, errors = script(COPY_AND_CHANGE, tmp_path / "logs").process.communicate()
    assert "was changed while it was copied" in errors
    assert os.listdir(tmp_path / "logs") == ["a"]


def test_commands_move_and_copy(logs, monkeypatch):
    from tests.cli.test_catalog_commands import listed, tacho

    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    for name in ("a", "b", "c"):
        make_run(logs, name)
    assert "a: moved to" in tacho("mv", "a", "renamed")
    assert "only a folder" in tacho("mv", "b", "c", "new", code=2)
    (logs / "old").mkdir()
    tacho("mv", "b", "c", "old")
    assert sorted(listed()) == ["old/b", "old/c", "renamed"]
    tacho("cp", "--where", "name~old", str(logs))
    assert sorted(listed()) == ["b", "c", "old/b", "old/c", "renamed"]
    assert "exists already" in tacho("cp", "renamed", "b", code=1)
    shown = json.loads(tacho("ls", "has(custom.copied_from)", "--columns", "custom.copied_from", "--json"))
    assert sorted(run["name"] for run in shown) == ["b", "c"]
