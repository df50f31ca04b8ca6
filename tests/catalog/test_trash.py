"""The trash: a run is in its place or in the trash, whole, whenever a command is killed."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest

import tachograph
from tachograph.catalog import Catalog, TrashError, disk_usage, empty_trash, list_trash, restore_run, trash_run
from tachograph.exceptions import RunNotFoundError
from tests.store import END, START, hears, step, write


def make_runs(logs, *names):
    for name in names:
        folder = write(logs / name, [{**START, "run_id": name}, step(0, loss=1.0), END])
        (folder.path / "checkpoints").mkdir()
        (folder.path / "checkpoints" / "model.pt").write_bytes(b"weights of " + name.encode())


def is_whole(folder, name):
    return (
        json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["run_id"] == name
        and (folder / "checkpoints" / "model.pt").read_bytes() == b"weights of " + name.encode()
    )


def names(logs):
    return sorted(row.id for row in Catalog(logs).rows())


def test_removed_run_can_be_restored(tmp_path):
    logs = tmp_path / "logs"
    make_runs(logs, "a", "b", "nested/c")
    for name in ("a", "nested/c"):
        trash_run(str(logs), name)
    assert names(logs) == ["b"]
    assert [run.name for run in list_trash(str(logs))] == ["nested/c", "a"]
    assert restore_run(str(logs), "nested/c") == "nested/c"
    assert restore_run(str(logs), "a") == "a"
    assert names(logs) == ["a", "b", "nested/c"]
    assert is_whole(logs / "a", "a")
    assert is_whole(logs / "nested" / "c", "nested/c")
    assert list_trash(str(logs)) == []


def test_name_of_a_removed_run_is_free(tmp_path):
    logs = tmp_path / "logs"
    make_runs(logs, "a")
    trash_run(str(logs), "a")
    with tachograph.init("a", log_dir=str(logs), console=False, system_interval_s=0, git=False) as run:
        assert run.name == "a"
    assert restore_run(str(logs), "a") == "a-2"
    assert is_whole(logs / "a-2", "a")
    assert names(logs) == ["a", "a-2"]


def test_restore_takes_the_run_removed_last(tmp_path):
    logs = tmp_path / "logs"
    for content in ("first", "second"):
        make_runs(logs, "a")
        (logs / "a" / "content").write_text(content)
        trash_run(str(logs), "a")
    restore_run(str(logs), "a")
    assert (logs / "a" / "content").read_text() == "second"
    (other,) = list_trash(str(logs))
    assert restore_run(str(logs), other.id) == "a-2"


def test_run_that_is_being_recorded_is_not_removed(logs):
    with tachograph.init("live", log_dir=str(logs), console=False, system_interval_s=0, git=False) as run:
        run.log(loss=1.0, step=0)
        with pytest.raises(TrashError, match="still being recorded"):
            trash_run(str(logs), "live", is_forced=True)
    trash_run(str(logs), "live")


def test_stale_run_is_removed_only_by_force(tmp_path):
    logs = tmp_path / "logs"
    write(logs / "a", [START, step(0, loss=1.0)])
    with pytest.raises(TrashError, match="--force"):
        trash_run(str(logs), "a")
    trash_run(str(logs), "a", is_forced=True)
    assert names(logs) == []


def test_unknown_runs_are_refused(tmp_path):
    logs = tmp_path / "logs"
    make_runs(logs, "a")
    make_runs(tmp_path, "outside")
    os.symlink(tmp_path / "outside", logs / "link")
    for name in ("b", "../outside", "link", ".", ""):
        with pytest.raises(RunNotFoundError):
            trash_run(str(logs), name)
    trash_run(str(logs), "a")
    with pytest.raises(RunNotFoundError, match="tacho trash list"):
        restore_run(str(logs), "something else")


def test_manifest_cannot_restore_outside_the_folder(tmp_path):
    logs = tmp_path / "logs"
    make_runs(logs, "a")
    run = trash_run(str(logs), "a")
    manifest = logs / ".tachograph" / "trash" / f"{run.id}.json"
    for name in ("../b", "/tmp/b", "x/../../b", ".hidden"):
        manifest.write_text(json.dumps({"id": run.id, "name": name, "removed": 1.0}))
        assert list_trash(str(logs)) == []


def test_trash_that_is_a_link_is_refused(tmp_path):
    logs = tmp_path / "logs"
    make_runs(logs, "a")
    (tmp_path / "elsewhere").mkdir()
    (logs / ".tachograph").mkdir()
    os.symlink(tmp_path / "elsewhere", logs / ".tachograph" / "trash")
    with pytest.raises(TrashError, match="symbolic link"):
        trash_run(str(logs), "a")
    assert names(logs) == ["a"]


def test_empty_deletes_only_old_runs(tmp_path):
    logs = tmp_path / "logs"
    make_runs(logs, "a", "b")
    run = trash_run(str(logs), "a")
    trash_run(str(logs), "b")
    manifest = logs / ".tachograph" / "trash" / f"{run.id}.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "removed": 1_000.0}))
    assert [run.name for run in empty_trash(str(logs), older_than_s=86_400)] == ["a"]
    assert [run.name for run in list_trash(str(logs))] == ["b"]
    assert [run.name for run in empty_trash(str(logs))] == ["b"]
    assert os.listdir(logs / ".tachograph" / "trash") == []


REMOVE_AND_RESTORE = """
import sys
from tachograph.catalog import list_trash, restore_run, trash_run
logs = sys.argv[1]
print("ready", flush=True)
for round in range(10_000):
    for name in ("a", "b", "nested/c"):
        trash_run(logs, name)
        print(".", flush=True)
    for name in ("a", "b", "nested/c"):
        restore_run(logs, name)
        print(".", flush=True)
"""


def test_kill_in_the_middle_loses_nothing(tmp_path, script):
    logs = tmp_path / "logs"
    chance = random.Random(1)
    make_runs(logs, "a", "b", "nested/c")
    for _ in range(6):
        running = script(REMOVE_AND_RESTORE, logs)
        hears(running, "ready")
        for _ in range(chance.randrange(40)):
            running.process.stdout.readline()
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        in_place = names(logs)
        trashed = {run.name: logs / ".tachograph" / "trash" / run.id for run in list_trash(str(logs))}
        assert sorted([*in_place, *trashed]) == ["a", "b", "nested/c"]
        for name in in_place:
            assert is_whole(logs / name, name)
        for name, folder in trashed.items():
            assert is_whole(folder, name)
            assert restore_run(str(logs), name) == name


DELETE = """
import sys
from tachograph.catalog import empty_trash
print("ready", flush=True)
sys.stdin.readline()
empty_trash(sys.argv[1])
"""


def test_kill_while_emptying_leaves_no_half_run(tmp_path, script):
    logs = tmp_path / "logs"
    make_runs(logs, *(f"r{number}" for number in range(20)))
    for number in range(20):
        for part in range(20):
            (logs / f"r{number}" / f"part{part}").write_bytes(b"x")
        trash_run(str(logs), f"r{number}")
    running = script(DELETE, logs)
    hears(running, "ready")
    running.process.stdin.write("\n")
    running.process.stdin.flush()
    trash = logs / ".tachograph" / "trash"
    while len(list_trash(str(logs))) == 20 and running.process.poll() is None:
        pass
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    for run in list_trash(str(logs)):
        assert is_whole(trash / run.id, run.name)
        assert len(os.listdir(trash / run.id)) >= 22
    empty_trash(str(logs))
    assert not [name for name in os.listdir(trash) if not name.endswith(".json")]


def test_disk_usage_is_divided_into_parts(tmp_path):
    make_runs(tmp_path, "a")
    (tmp_path / "a" / "metrics.csv").write_bytes(b"x" * 100_000)
    os.symlink(tmp_path, tmp_path / "a" / "loop")
    (row,) = Catalog(tmp_path).rows(is_full=True)
    used = disk_usage(row.folder)
    assert used["csv"] >= 100_000
    assert used["journal"] > 0
    assert used["cache"] > 0
    assert used["other"] > 0
    assert sum(used.values()) < 1_000_000
