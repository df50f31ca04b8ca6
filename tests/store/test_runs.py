"""The list of runs: fast, correct, and confined to the log folder."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import threading
import weakref

import msgspec
import pytest

import tachograph
from tachograph.catalog import Catalog
from tachograph.exceptions import RunNotFoundError
from tachograph.journal import RunFolder, RunState, infer_writer_state, this_process
from tachograph.store import Store, StoredRun, _run
from tests.conftest import wait_for
from tests.store import END, START, append, files_opened, hears, opened, step, write

HOSTILE = [
    "a b",
    " leading",
    "100%",
    "%2e%2e",
    "%00",
    "quote'\"s",
    "<script>alert(1)</script>".replace("/", "∕"),
    "emoji 🦊",
    "right\u202eto left",
    "zero\u200bwidth",
    "e\u0301 in two",
    "é in one",
    "ПРОБА",
    "line\nbreak",
    "tab\tbell\a",
    "a" * 255,
    "ж" * 127,
    "-rf",
    "$(reboot)",
    "con",
    "~",
    "a..b",
    "name.",
    "#?&=+;,:@!",
    "\u2028\u2029\ufeff",
    "․․",
]


def names(store):
    return {run.name for run in store.runs()}


def test_500_runs_are_listed_quickly_newest_first(tmp_path):
    for number in range(500):
        write(
            tmp_path / f"run-{number:03}",
            [{**START, "time": float(number)}, *(step(i, a=1.0, train_loss=0.5) for i in range(100)), END],
        )
    store = Store(tmp_path)
    first = store.runs()
    assert [run.name for run in first] == [f"run-{number:03}" for number in reversed(range(500))]
    assert {(run.state, run.step, run.train_loss) for run in first} == {(RunState.FINISHED, 99, 0.5)}
    with files_opened(tmp_path) as found:
        assert store.runs() == first
    assert not found


def test_unchanged_runs_are_not_read_again(tmp_path):
    here = msgspec.to_builtins(this_process())
    processes = {
        "crashed": {**here, "pid_started": here["pid_started"] + 1},
        "rebooted": {**here, "boot_id": "another boot"},
        "elsewhere": {**here, "host": "another host", "boot_id": "another boot", "pid_namespace": "another"},
        "running": here,
    }
    folders = {
        name: write(tmp_path / name, [{**START, "process": process}, step(0, train_loss=1.0)])
        for name, process in processes.items()
    }
    for name, end in (("finished", END), ("failed", {**END, "status": "failed"})):
        folders[name] = write(tmp_path / name, [START, step(0, train_loss=1.0), end])
    store = Store(tmp_path)
    with files_opened(tmp_path) as found:
        first = {run.name: run for run in store.runs()}
    assert len(found) >= len(folders)
    states = {name: str(run.state) for name, run in first.items()}
    assert states == {name: name for name in ("crashed", "finished", "failed", "running")} | {
        "rebooted": "crashed",
        "elsewhere": "stale",
    }
    for _ in range(3):
        with files_opened(tmp_path) as found:
            again = {run.name: run for run in store.runs()}
        assert not found
        assert all(again[name] is first[name] for name in folders)
    append(folders["crashed"], [step(1, train_loss=1.0)])
    with files_opened(tmp_path) as found:
        assert {run.name: run for run in store.runs()}["crashed"].step == 1
    assert found
    assert all(path.startswith(str(folders["crashed"].path)) for path in found)


def test_process_that_cannot_be_examined_has_not_crashed():
    here = this_process()
    before, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit))
    try:
        state = infer_writer_state(here, None, here)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, limit))
    assert state is RunState.RUNNING


def test_list_follows_new_changed_and_deleted_runs(tmp_path):
    store = Store(tmp_path / "logs")
    assert store.runs() == []
    folder = write(tmp_path / "logs" / "a", [START, step(0, a=1.0)])
    assert [(run.name, run.step) for run in store.runs()] == [("a", 0)]
    append(folder, [step(7, a=1.0), END])
    assert [(run.state, run.step) for run in store.runs()] == [(RunState.FINISHED, 7)]
    append(folder, [{**START, "resumed": True}, step(9, a=1.0)])
    assert [(run.state, run.step) for run in store.runs()] == [(RunState.STALE, 9)]
    folder.journal.unlink()
    assert store.runs() == []


TRAINER = """
    import os, sys, time, tachograph
    run = tachograph.init(
        "r", log_dir=sys.argv[1], git=False, system_interval_s=0, flush_interval_s=0.01, resume=len(sys.argv) > 2
    )
    run.log(a=1.0, step=3)
    run.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    """


def test_killed_process_is_listed_as_crashed(tmp_path, script):
    trainer = script(TRAINER, tmp_path)
    hears(trainer, "ready")
    store = Store(tmp_path)
    run = store.open("r")
    run.refresh()
    assert [line.state for line in store.runs()] == [RunState.RUNNING]
    assert run.digest.state is RunState.RUNNING
    trainer.process.send_signal(signal.SIGKILL)
    trainer.process.wait()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "r").rglob("*")}
    wait_for(lambda: [line.state for line in store.runs()] == [RunState.CRASHED])
    assert run.digest.state is RunState.CRASHED
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "r").rglob("*")} == files


def test_resumed_run_is_listed_as_running(tmp_path, script):
    store = Store(tmp_path)
    for number in range(3):
        trainer = script(TRAINER, tmp_path, *(["resume"] if number else []))
        hears(trainer, "ready")
        for _ in range(2):
            assert [line.state for line in store.runs()] == [RunState.RUNNING]
        trainer.process.send_signal(signal.SIGKILL)
        trainer.process.wait()
        for _ in range(3):
            assert [line.state for line in store.runs()] == [RunState.CRASHED]


def test_failed_run_has_a_reason(tmp_path):
    with pytest.raises(ZeroDivisionError), tachograph.init("r", log_dir=str(tmp_path), git=False) as run:
        run.log(a=1.0, step=0)
        1 / 0  # noqa: B018
    (line,) = Store(tmp_path).runs()
    assert line.state is RunState.FAILED
    assert "ZeroDivisionError" in line.reason


@pytest.mark.parametrize("name", HOSTILE)
def test_unusual_run_names_work(tmp_path, name):
    write(tmp_path / name, [START, step(0, a=1.0)])
    store = Store(tmp_path)
    assert names(store) == {name}
    run = store.open(name)
    run.refresh()
    assert run.metric_names == ["a"]
    assert run.folder.path.parent == tmp_path


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../outside", "inside/../../outside", "/etc", "inside/", "./inside", "inside/.", "\0", "inside\0",
     "..\\outside", "\udcff", "a\ud800", "x" * 256, "x" * 100_000, "ж" * 128, ".hidden", "．．/outside",
     "inside/../inside", "~root", "//"],
)  # fmt: skip
def test_invalid_names_are_not_found(tmp_path, name):
    for place in ("outside/x", "logs/inside", "logs/.hidden"):
        write(tmp_path / place, [START])
    write(tmp_path / "outside", [START])
    store = Store(tmp_path / "logs")
    assert names(store) == {"inside"}
    with pytest.raises(RunNotFoundError) as caught:
        store.open(name)
    assert len(str(caught.value)) < 1_000
    str(caught.value).encode()  # fits in a response


def test_folder_with_undecodable_name_is_not_listed(tmp_path):
    write(tmp_path / "good", [START])
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    (tmp_path / os.fsdecode(b"\xff\xfe") / "metrics.jsonl").write_bytes(b"")
    assert names(Store(tmp_path)) == {"good"}


@pytest.mark.parametrize("what", ["run", "journal", "private", "log folder"])
@pytest.mark.parametrize("target", ["outside", "inside", "nowhere"])
def test_links_are_followed_only_inside_the_log_folder(tmp_path, what, target):
    logs = tmp_path / "logs"
    outside = write(tmp_path / "outside", [START, step(0, secret=1.0)])
    inside = write(logs / "inside", [START, step(0, a=1.0)])
    for folder in (outside, inside):
        folder.private.mkdir()
    aim = {"outside": outside, "inside": inside}.get(target)
    link = logs / "link"
    match what:
        case "run":
            link.symlink_to(aim.path if aim else "nowhere")
        case "journal":
            link.mkdir()
            (link / "metrics.jsonl").symlink_to(aim.journal if aim else "nowhere")
        case "private":
            write(link, [START])
            (link / ".tacho").symlink_to(aim.private if aim else "nowhere")
        case "log folder":  # allowed: the user chose it
            logs.rename(tmp_path / "real")
            logs.symlink_to(tmp_path / "real")
            assert names(Store(logs)) == {"inside"}
            return
    store = Store(logs)
    assert names(store) == ({"inside", "link"} if target == "inside" else {"inside"})
    if target != "inside":
        with pytest.raises(RunNotFoundError):
            store.open("link")


def test_link_replacing_an_open_run_is_not_followed(tmp_path):
    outside = write(tmp_path / "outside", [START, *(step(i, secret=1.0) for i in range(50))])
    folder = write(tmp_path / "logs" / "r", [START, step(0, a=1.0)])
    store = Store(tmp_path / "logs")
    store.open("r").refresh()
    folder.journal.unlink()
    folder.journal.symlink_to(outside.journal)
    with pytest.raises(RunNotFoundError):
        store.open("r")


@pytest.mark.parametrize("kind", ["file", "pipe", "folder", "empty", "nonsense", "device"])
def test_other_files_in_the_log_folder_are_harmless(tmp_path, kind):
    write(tmp_path / "good", [START])
    odd = tmp_path / "odd"
    match kind:
        case "file":
            odd.write_text("a file in the log folder")
        case "pipe":
            odd.mkdir()
            os.mkfifo(odd / "metrics.jsonl")
        case "folder":
            (odd / "metrics.jsonl").mkdir(parents=True)
        case "device":
            odd.mkdir()
            (odd / "metrics.jsonl").symlink_to("/dev/zero")
        case "empty":
            write(odd, [])
        case "nonsense":
            write(odd, [b"\0" * 50_000, b"[1,2,3]", b'{"event": 5}'])
    store = Store(tmp_path)
    assert names(store) - {"odd"} == {"good"}
    if "odd" in names(store):
        store.open("odd").refresh()


@pytest.mark.parametrize(
    "heartbeat", [b"", b"{", b"null", b"[]", b'{"time": 1}', b"\xff" * 100, b"9" * 10_000, b"[" * 100_000], ids=range(8)
)
def test_invalid_heartbeat_means_stale(tmp_path, heartbeat):
    folder = write(tmp_path / "r", [START])
    folder.private.mkdir()
    folder.heartbeat.write_bytes(heartbeat)
    assert [run.state for run in Store(tmp_path).runs()] == [RunState.STALE]


def test_heartbeat_pipe_does_not_block_the_list(tmp_path, script):
    folder = write(tmp_path / "r", [START])
    folder.private.mkdir()
    os.mkfifo(folder.heartbeat)
    source = "import sys; from tachograph.store import Store; print(len(Store(sys.argv[1]).runs()))"
    assert script(source, tmp_path).ok().strip() == "1"


@pytest.mark.parametrize("odd", [10**30, -5, "many", None, float("nan"), True, 1e300, [], {}], ids=repr)
@pytest.mark.parametrize(
    "field", ["max_steps", "tags", "session_tag", "time", "process", "run_id", "config", "git", "log_every"]
)
def test_unexpected_start_fields_are_harmless(tmp_path, field, odd):
    write(tmp_path / "r", [{**START, field: odd}, step(5, train_loss=odd if field == "tags" else 1.0)])
    (line,) = Store(tmp_path).runs()
    assert line.name == "r"
    assert line.progress is None or 0.0 <= line.progress <= 1.0


def test_runs_compared_in_several_parts_stay_open(tmp_path):
    names = [f"r{number}" for number in range(40)]
    for name in names:
        write(tmp_path / name, [START, step(0, a=1.0)])
    store = Store(tmp_path)
    store.keep_open(names[:20])
    store.keep_open(names[20:])
    opened = [store.open(name) for name in names]
    assert all(store.open(name) is run for name, run in zip(names, opened, strict=True))


def test_number_of_open_runs_is_bounded(tmp_path):
    for number in range(40):
        write(tmp_path / f"r{number}", [START, step(number, a=1.0)])
    store = Store(tmp_path)
    for number in range(40):
        run = store.open(f"r{number}")
        run.refresh()
        assert run.metrics()["a"].last_step == number
    assert len(store._open_runs) <= 32
    assert store.open("r39") is store.open("r39")
    again = store.open("r0")
    again.refresh()
    assert again.metrics()["a"].last_step == 0


def test_reading_a_run_does_not_change_the_list(tmp_path):
    folder = write(tmp_path / "r", [START, *(step(i, a=1.0) for i in range(100)), END])
    store = Store(tmp_path)
    before = store.runs()
    opened(folder, 1)
    assert store.runs() == before


def bytes_read() -> int:
    """Return how many bytes this process has read from files."""
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


def test_a_catalog_and_a_store_read_a_journal_once(tmp_path):
    importlib.import_module("numpy.ma")  # the first query imports it, and would read its files
    for name in "ab":
        # Too small for a segment, from which a second reader would read the columns.
        write(tmp_path / name, [START, *(step(i, loss=0.5, text="x" * 100) for i in range(5_000)), END])
    size = (tmp_path / "a" / "metrics.jsonl").stat().st_size
    store = Store(tmp_path)
    catalog = Catalog(tmp_path, open_run=store.share)
    run = store.open("a")
    run.refresh()
    before = bytes_read()
    (row,) = catalog.full_rows(["a"])
    assert (row.get("loss.last"), bytes_read() - before < size / 2) == (0.5, True)
    assert store.share(run.folder) is run
    # Without a user, nothing stays open.
    catalog.full_rows(["b"])
    other = weakref.ref(store.share(RunFolder(tmp_path / "b")))
    gc.collect()
    assert other() is None


def test_a_run_can_be_queried_while_it_is_read_in_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(_run, "_SLICE_S", 0.0)  # a block
    monkeypatch.setattr(_run, "_PAUSE_S", 0.01)  # so that this thread gets its turn also on a busy machine
    folder = write(tmp_path / "a", [START, *(step(i, loss=0.5, text="x" * 2_000) for i in range(10_000))])
    run = StoredRun(folder)
    thread = threading.Thread(target=run.refresh_in_slices)
    thread.start()
    shares = set()
    while thread.is_alive():
        with run.lock:
            shares.add(run.indexed_share)
    thread.join()
    assert run.indexed_share == 1.0
    assert any(0 < share < 1 for share in shares)
