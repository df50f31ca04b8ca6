"""Copies on the server: byte for byte the trainer's file, whatever arrives."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from tachograph.journal import Heartbeat, RunState, compress_journal, current_state, lock_run_folder, this_process
from tachograph.remote import Beat, Registration, hash_bytes
from tachograph.server.team import (
    CopyBusyError,
    CopyEntry,
    CopyGoneError,
    DivergedError,
    InvalidBatchError,
    NotYourRunError,
    OutOfOrderError,
    RunCopies,
    RunCopy,
    StorageFullError,
    UnknownRunError,
)
from tachograph.server.team._data_folder import close_to_others, private_umask
from tests.conftest import Script
from tests.store import START, fresh_folder, lines, step

RUN = "0123456789abcdef"
JOURNAL = lines([{**START, "run_id": RUN}, *(step(number, loss=0.5) for number in range(200))])


def before(data: bytes, offset: int) -> str:
    return hash_bytes(data[max(0, offset - 4096) : offset])


def append(copy: RunCopy, data: bytes, start: int, end: int, rank: int = 0) -> int:
    return copy.append(str(rank), start, data[start:end], before(data, start))


def cut(data: bytes, position: int) -> int:
    """Return the end of the line at a position."""
    return data.index(b"\n", position) + 1


@pytest.fixture
def copies(tmp_path: Path) -> RunCopies:
    return RunCopies(tmp_path / "data")


def register(copies: RunCopies, run_id: str = RUN, name: str = "run", owner: str = "ci", **options: str) -> RunCopy:
    return copies.register(run_id, Registration(name, **options), owner)


def test_copy_has_the_same_bytes(copies: RunCopies):
    copy = register(copies)
    middle = cut(JOURNAL, 5000)
    assert append(copy, JOURNAL, 0, middle) == middle
    assert append(copy, JOURNAL, middle, len(JOURNAL)) == len(JOURNAL)
    assert copy.folder.journal.read_bytes() == JOURNAL
    assert copy.have() == {"0": len(JOURNAL)}
    assert copy.folder.path == copies.root / "default" / "run"


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, len(JOURNAL) - 1), st.integers(0, len(JOURNAL) - 1)), max_size=12),
    st.booleans(),
)
def test_batches_in_any_order_give_the_same_bytes(ranges: list[tuple[int, int]], reopens: bool):
    """Batches may overlap, be repeated, be lost and come out of order; a client continues where the server is."""
    with fresh_folder() as root:
        copies = RunCopies(root)
        copy = register(copies)
        have = 0
        for low, high in [*ranges, (0, len(JOURNAL) - 1)]:
            start = 0 if low == 0 else cut(JOURNAL, low)
            end = cut(JOURNAL, high)
            if end <= start:
                continue
            if start > have:
                with pytest.raises(OutOfOrderError) as caught:
                    append(copy, JOURNAL, start, end)
                assert caught.value.have == have
            else:
                have = max(have, end)
                assert append(copy, JOURNAL, start, end) == have
            assert copy.folder.journal.read_bytes() == JOURNAL[:have]
            if reopens:
                copies.close()
                copies = RunCopies(root)
                copy = register(copies)
        copies.close()


def test_other_bytes_are_rejected(copies: RunCopies):
    copy = register(copies)
    middle = cut(JOURNAL, 5000)
    append(copy, JOURNAL, 0, middle)
    other = JOURNAL.replace(b"0.5", b"0.6")
    with pytest.raises(DivergedError):
        append(copy, other, 0, middle)
    with pytest.raises(DivergedError):  # the batch fits, but not what comes before it
        append(copy, other, middle, len(other))
    with pytest.raises(DivergedError):  # the known part of an overlapping batch differs
        copy.append("0", 0, other, before(other, 0))
    assert copy.folder.journal.read_bytes() == JOURNAL[:middle]


@pytest.mark.parametrize("data", [b"", b'{"event": "st', b"a\nb"])
def test_batches_of_partial_lines_are_rejected(copies: RunCopies, data: bytes):
    with pytest.raises(InvalidBatchError):
        register(copies).append("0", 0, data, hash_bytes(b""))


@pytest.mark.parametrize("tail", [b'{"event":', b'{"event": "step"}', b"\0" * 100])
def test_torn_line_is_cut_when_opened(copies: RunCopies, tail: bytes):
    copy = register(copies)
    middle = cut(JOURNAL, 5000)
    append(copy, JOURNAL, 0, middle)
    copies.close()
    with open(copy.folder.journal, "ab") as file:
        file.write(tail)
    again = register(RunCopies(copies.root))
    assert again.have() == {"0": middle}
    append(again, JOURNAL, middle, len(JOURNAL))
    assert again.folder.journal.read_bytes() == JOURNAL


def test_full_disk_leaves_the_copy_as_it_was(copies: RunCopies):
    copy = register(copies)
    middle = cut(JOURNAL, 5000)
    append(copy, JOURNAL, 0, middle)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (middle + 100, limits[1]))
        with pytest.raises(StorageFullError):
            append(copy, JOURNAL, middle, len(JOURNAL))
        assert copy.folder.journal.read_bytes() == JOURNAL[:middle]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    append(copy, JOURNAL, middle, len(JOURNAL))
    assert copy.folder.journal.read_bytes() == JOURNAL


def test_ranks_have_files_of_their_own(copies: RunCopies):
    copy = register(copies)
    append(copy, JOURNAL, 0, len(JOURNAL))
    append(copy, JOURNAL, 0, cut(JOURNAL, 100), rank=7)
    assert copy.have() == {"0": len(JOURNAL), "7": cut(JOURNAL, 100)}
    assert copy.folder.rank_journal(7).read_bytes() == JOURNAL[: cut(JOURNAL, 100)]


def test_copy_is_continued_where_a_server_was_killed(copies: RunCopies, tmp_path: Path):
    """Between two of the steps of creating a copy, which each leave something on the disk."""
    register(copies, "other", "run")
    for number, made in enumerate((["folder"], ["folder", "entry"])):
        run_id = f"{RUN}{number}"
        folder = copies._unplaced_folder(run_id)
        folder.private.mkdir(parents=True)
        if "entry" in made:
            entry = CopyEntry(run_id, "default/run", folder.path.stat().st_ino, "ci", "run", 0.0)
            copies._write_entry(entry)
            with pytest.raises(NotYourRunError):
                register(copies, run_id, owner="other")
        copy = register(copies, run_id)
        assert copy.folder.path == tmp_path / "data" / "default" / f"run-{number + 2}"
        assert not folder.path.exists()
        assert append(copy, JOURNAL, 0, len(JOURNAL)) == len(JOURNAL)
        copies.close()
        assert register(copies, run_id).have() == {"0": len(JOURNAL)}


def test_equal_names_cost_few_looks_at_the_folder(copies: RunCopies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(1, 1_000):
        (tmp_path / "data" / "default" / (f"run-{number}" if number > 1 else "run")).mkdir(parents=True)
    looks: list[Path] = []
    lexists = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: looks.append(path) or lexists(path))
    assert register(copies).folder.path.name == "run-1000"
    assert len(looks) < 30


@pytest.mark.parametrize("for_group", [False, True])
def test_data_folder_is_closed_to_others(tmp_path: Path, for_group: bool):
    """A folder of an earlier version, and what is added to it."""
    root, outside = tmp_path / "data", tmp_path / "outside"
    umask = os.umask(0o022)
    try:
        append(register(RunCopies(root)), JOURNAL, 0, 1 << 20)
        root.chmod(0o755)
        outside.write_text("not ours")
        os.symlink(outside, root / "default" / "link")
        os.mkfifo(root / "default" / "pipe", 0o600)
        with private_umask(for_group=for_group):
            assert close_to_others(root, for_group=for_group) is None
            copies = RunCopies(root)
            append(register(copies, "second", "second", project="new"), JOURNAL, 0, 1 << 20)
            copies.close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)
    assert outside.stat().st_mode & 0o777 == 0o644
    modes = {path.relative_to(root).as_posix(): path.lstat().st_mode & 0o7777 for path in [root, *root.rglob("*")]}
    for name, mode in modes.items():
        if name not in {"default/link", "default/pipe"}:
            expected = 0o500 if name.startswith(".server") or not for_group else 0o550
            assert mode & 0o577 == expected & (0o777 if (root / name).is_dir() else 0o666), (name, oct(mode))
    assert modes["default/run/metrics.jsonl"] == modes["new/second/metrics.jsonl"] == (0o640 if for_group else 0o600)
    assert modes["."] == (0o2750 if for_group else 0o700)


def test_equal_names_get_numbers(copies: RunCopies):
    names = [register(copies, f"id{number}", "run", project="vision").folder.path for number in range(3)]
    assert [path.name for path in names] == ["run", "run-2", "run-3"]
    assert {path.parent.name for path in names} == {"vision"}
    assert register(copies, "id1").folder.path == names[1]


@pytest.mark.parametrize("name", ["../../evil", "a/b", "..", ".", "\0", "x" * 500, "\u202e", "CON", "-"])
def test_names_never_leave_the_data_folder(copies: RunCopies, name: str):
    copy = register(copies, name=name, project=name)
    parts = copy.folder.path.relative_to(copies.root).parts
    assert len(parts) == 2
    assert not any(part.startswith(".") for part in parts)
    assert copy.folder.path.resolve().is_relative_to(copies.root.resolve())


@pytest.mark.parametrize("run_id", ["", "..", "a/b", "a~0", "a~2~3", "~2", "x" * 65, "a\n", "a b", "ä"])
def test_invalid_ids_are_rejected(copies: RunCopies, run_id: str):
    with pytest.raises(InvalidBatchError):
        register(copies, run_id)


def test_other_keys_cannot_append(copies: RunCopies):
    register(copies, owner="ci")
    with pytest.raises(NotYourRunError):
        register(copies, owner="other")
    with pytest.raises(NotYourRunError):
        copies.open(RUN, "other")
    with pytest.raises(UnknownRunError):
        copies.open("unknown", "ci")


def test_deleted_run_stays_deleted(copies: RunCopies):
    copy = register(copies)
    append(copy, JOURNAL, 0, len(JOURNAL))
    copy.folder.path.rename(copies.root / ".trash")
    with pytest.raises(CopyGoneError):
        copies.open(RUN, "ci")
    with pytest.raises(CopyGoneError):
        register(copies)
    (copies.root / ".trash").rename(copy.folder.path)
    assert register(copies).have() == {"0": len(JOURNAL)}


def test_moved_run_is_continued(copies: RunCopies):
    copy = register(copies)
    middle = cut(JOURNAL, 5000)
    append(copy, JOURNAL, 0, middle)
    moved = copies.root / "other" / "new-name"
    moved.parent.mkdir()
    copy.folder.path.rename(moved)
    append(copies.open(RUN, "ci"), JOURNAL, middle, len(JOURNAL))
    assert (moved / "metrics.jsonl").read_bytes() == JOURNAL


def test_folder_of_another_run_is_not_taken(copies: RunCopies):
    """A new run may get the name of a deleted one, and the file system may give it the same inode."""
    deleted = register(copies)
    append(deleted, JOURNAL, 0, len(JOURNAL))
    copies.close()
    deleted.folder.path.rename(copies.root / ".elsewhere")
    other = register(copies, "other", owner="other")
    assert other.folder.path == deleted.folder.path
    entry = copies.root / ".server" / "runs" / f"{RUN}.json"
    for inode in (deleted.entry.inode, other.entry.inode):
        entry.write_text(msgspec.json.encode(msgspec.structs.replace(deleted.entry, inode=inode)).decode())
        again = RunCopies(copies.root)
        with pytest.raises(CopyGoneError):
            again.open(RUN, "ci")
        entry.write_text(
            msgspec.json.encode(msgspec.structs.replace(deleted.entry, inode=inode, folder="default/gone")).decode()
        )
        with pytest.raises(CopyGoneError):
            again.open(RUN, "ci")


def test_name_of_a_key_gives_no_access_to_another_project(copies: RunCopies):
    """An administrator may give the name of an ended key to a new one."""
    copies.register(RUN, Registration("run"), "ci", "vision")
    for project in ("text", "visio", "vision/run"):
        with pytest.raises(NotYourRunError):
            copies.open(RUN, "ci", project)
        with pytest.raises(NotYourRunError):
            copies.register(RUN, Registration("run"), "ci", project)
    assert copies.open(RUN, "ci", "vision").folder.path == copies.root / "vision" / "run"
    assert copies.open(RUN, "ci").folder.path == copies.root / "vision" / "run"


def test_ranks_do_not_use_up_open_files(copies: RunCopies):
    copy = register(copies)
    end = cut(JOURNAL, 100)
    num_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for rank in range(200):
            assert append(copy, JOURNAL, 0, end, rank=rank) == end
    assert len(os.listdir("/proc/self/fd")) < num_before + 20
    assert copy.have() == {str(rank): end for rank in range(200)}


def test_compressed_copy_is_continued(copies: RunCopies):
    copy = register(copies)
    middle = cut(JOURNAL, 5000)
    append(copy, JOURNAL, 0, middle)
    with lock_run_folder(copy.folder) as is_ours:
        assert not is_ours, "nothing may compress a copy that is open"
    copies.close()
    compress_journal(copy.folder.journal, below=copy.folder.path, publishing=lambda: lock_run_folder(copy.folder))
    assert not copy.folder.journal.exists()
    again = register(RunCopies(copies.root))
    append(again, JOURNAL, middle, len(JOURNAL))
    assert again.folder.journal.read_bytes() == JOURNAL


_APPENDER = """
    import os, sys
    from tachograph.remote import Registration, hash_bytes
    from tachograph.server.team import CopyBusyError, RunCopies
    before = lambda data, offset: hash_bytes(data[max(0, offset - 4096) : offset])
    cut = lambda data, position: data.index(b"\\n", position) + 1
    root, journal = sys.argv[1], open(sys.argv[2], "rb").read()
    copies = RunCopies(root)
    copy = copies.register({RUN!r}, Registration("run"), "ci")
"""
"""The start of a program that is one of the processes of a server."""


def test_processes_append_to_one_copy_in_turns(copies: RunCopies, script: Callable[..., Script], tmp_path: Path):
    """Each repeats what the others have sent, and continues; one, which goes further, is killed within a line."""
    source = tmp_path / "journal"
    source.write_bytes(JOURNAL)
    program = (
        _APPENDER.format(RUN=RUN)
        + """
    write, middle, dies = os.pwrite, len(journal) // 2, sys.argv[3] == "dies"
    def pwrite(descriptor, data, offset):
        if dies and offset > middle + 1000 and len(data) > 50:
            write(descriptor, data[:-20], offset)
            os.kill(os.getpid(), 9)
        return write(descriptor, data, offset)
    os.pwrite = pwrite
    have = copy.have().get("0", 0)
    while have < (len(journal) if dies else middle):
        start = max(0, have - 500) and cut(journal, max(0, have - 500))
        end = cut(journal, min(len(journal) - 1, have + 150))
        try:
            have = copy.append("0", start, journal[start:end], before(journal, start))
        except CopyBusyError:
            pass
    """
    )
    programs = [script(program, copies.root, source, what) for what in ("dies", "", "")]
    results = [each.wait() for each in programs]
    assert [code for code, _, _ in results] == [-signal.SIGKILL, 0, 0], results
    copy = register(copies)
    have = copy.have()["0"]
    assert copy.folder.journal.read_bytes() == JOURNAL[:have]
    append(copy, JOURNAL, have, len(JOURNAL)) if have < len(JOURNAL) else None
    assert copy.folder.journal.read_bytes() == JOURNAL


def test_process_that_lost_its_lock_acknowledges_nothing(
    copies: RunCopies, script: Callable[..., Script], tmp_path: Path
):
    """It hangs while it writes, the file server gives its lock to another one, and then it continues."""
    source = tmp_path / "journal"
    source.write_bytes(JOURNAL)
    program = (
        _APPENDER.format(RUN=RUN)
        + """
    import fcntl
    write, middle = os.pwrite, cut(journal, 5000)
    fcntl.flock = lambda descriptor, operation: None
    copy.append("0", 0, journal[:middle], before(journal, 0))
    def pwrite(descriptor, data, offset):
        if len(data) > 100:
            print("writing", flush=True)
            sys.stdin.readline()
        return write(descriptor, data, offset)
    os.pwrite = pwrite
    end = cut(journal, 9000)
    try:
        copy.append("0", middle, journal[middle:end], before(journal, middle))
    except CopyBusyError:
        print("rejected")
    """
    )
    other = script(program, copies.root, source, stdin=subprocess.PIPE)
    assert other.process.stdout is not None and other.process.stdout.readline() == "writing\n"
    copy = register(copies)
    middle = copy.have()["0"]
    append(copy, JOURNAL, middle, len(JOURNAL))
    other.process.stdin.write("\n")  # type: ignore[union-attr]
    assert "rejected" in other.ok()
    assert copy.folder.journal.read_bytes() == JOURNAL
    assert append(copy, JOURNAL, middle, len(JOURNAL)) == len(JOURNAL)


def test_copy_that_another_process_appends_to_is_busy(copies: RunCopies, script: Callable[..., Script], tmp_path: Path):
    source = tmp_path / "journal"
    source.write_bytes(JOURNAL)
    program = (
        _APPENDER.format(RUN=RUN)
        + """
    with copy._append_lock:
        print("locked", flush=True)
        sys.stdin.readline()
    """
    )
    other = script(program, copies.root, source, stdin=subprocess.PIPE)
    assert other.process.stdout is not None and other.process.stdout.readline() == "locked\n"
    copy = register(copies)
    with pytest.raises(CopyBusyError):
        append(copy, JOURNAL, 0, len(JOURNAL))
    other.process.kill()
    other.process.wait()
    assert append(copy, JOURNAL, 0, len(JOURNAL)) == len(JOURNAL)


def test_heartbeat_has_the_time_of_the_server(copies: RunCopies):
    """A copy is never judged by processes of this machine, and a clock that is an hour off does not matter."""
    copy = register(copies)
    append(copy, JOURNAL, 0, len(JOURNAL))
    gone = this_process().__class__(os.uname().nodename, "another boot", 1, 1, this_process().pid_namespace)
    copy.store_beat(Beat(Heartbeat(RUN, gone, time=1.0, uptime_s=1e12)), skew_s=-3600.0)
    assert current_state(copy.folder) is RunState.RUNNING
    copy.store_beat(Beat(None), skew_s=-3599.5)
    assert current_state(copy.folder) is RunState.RUNNING
