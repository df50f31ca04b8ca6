"""Compressed journals: every reader reads them at the same offsets, and a resumed run continues them."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import signal
import subprocess

import pytest

import tachograph
from tachograph.journal import (
    JournalFollower,
    RunFolder,
    compress_journal,
    count_records,
    current_state,
    find_run,
    journal_size,
    list_runs,
    open_journal,
    read_records,
    restore_journal,
)
from tests.conftest import lines_of
from tests.store import END, START, answers, append, digest_of, hears, opened, step, write


@contextlib.contextmanager
def allowed(yes=True):
    yield yes


def compress(folder, path=None):
    return compress_journal(path or folder.journal, below=folder.path, publishing=allowed)


def make_run(path, num_steps=30_000):
    chance = random.Random(1)
    steps = [step(number, loss=chance.random(), lr=1e-4, note="ü" * (number % 7)) for number in range(num_steps)]
    folder = write(path, [START, *steps, b'{"torn', END])
    os.utime(folder.journal, ns=(10**18 + 1, 10**18 + 1))
    return folder


def test_compressed_journal_has_the_same_bytes_everywhere(tmp_path):
    folder = make_run(tmp_path / "a")
    plain = folder.journal.read_bytes()
    assert len(plain) > 3 << 20
    sizes = compress(folder)
    assert sizes == (len(plain), folder.compressed_journal.stat().st_size)
    assert sizes[1] < sizes[0] / 2
    assert not folder.journal.exists()
    assert folder.compressed_journal.stat().st_mtime_ns == 10**18 + 1
    # Other programs read it.
    assert gzip.decompress(folder.compressed_journal.read_bytes()) == plain
    assert subprocess.run(["gzip", "-dc", folder.compressed_journal], capture_output=True, check=True).stdout == plain
    assert journal_size(folder.journal) == len(plain)
    chance = random.Random(2)
    for is_raw in (False, True):
        with open_journal(folder.journal, is_raw=is_raw) as file:
            for _ in range(50):
                offset, size = chance.randrange(len(plain) + 10), chance.choice([1, 300, 1 << 20, 3 << 20])
                assert file.seek(offset) == offset
                assert file.read(size) == plain[offset : offset + size]
                assert file.tell() == min(offset + size, max(offset, len(plain)))
            assert file.seek(0, os.SEEK_END) == len(plain)
            file.seek(0)
            assert file.readline() == plain[: plain.index(b"\n") + 1]
    with open_journal(folder.journal) as file:
        assert file.readlines() == plain.splitlines(keepends=True)


@pytest.mark.slow
def test_every_reader_gives_the_same_answers(tmp_path):
    folder = make_run(tmp_path / "a")
    records = list(read_records(folder.journal))
    found, history = answers(opened(folder)), digest_of(tachograph.read(str(folder.path)))
    state, last = current_state(folder), JournalFollower.from_end(folder.journal, 5_000).poll()
    num_lines, end = count_records(folder.journal, 1_000), JournalFollower.complete_bytes(folder.journal)
    compress(folder)
    cached = opened(folder)
    assert answers(cached) == found
    for path in folder.cache.glob("*"):
        path.unlink()
    assert answers(opened(folder, segment_bytes=1 << 20)) == found
    assert digest_of(tachograph.read(str(folder.path))) == history
    assert repr(list(read_records(folder.journal))) == repr(records)
    assert current_state(folder) is state
    assert repr(JournalFollower.from_end(folder.journal, 5_000).poll()) == repr(last)
    assert count_records(folder.journal, 1_000) == num_lines
    assert JournalFollower.complete_bytes(folder.journal) == end
    assert [run.name for run in list_runs(tmp_path)] == ["a"]
    assert find_run(folder.compressed_journal).path == folder.path


def test_follower_continues_across_compression(tmp_path):
    folder = make_run(tmp_path / "a", num_steps=20_000)
    follower = JournalFollower(folder.journal)
    run = opened(folder, segment_bytes=1 << 20)
    first = follower.poll_block()
    compress(folder)
    second = follower.poll_block()
    run.refresh()
    restore_journal(folder.journal, below=folder.path)
    append(folder, [step(20_000, loss=9.0)])
    rest = follower.poll()
    run.refresh()
    assert follower.num_restarts == 0
    steps = [record["global_step"] for record in [*first, *second, *rest] if record["event"] == "step"]
    assert steps == list(range(20_001))
    assert run.last_value("loss") == 9.0
    assert run.generation == opened(folder).generation


def test_resumed_run_continues_a_compressed_journal(logs):
    options = {"log_dir": str(logs), "console": False, "system_interval_s": 0, "git": False}
    with tachograph.init("a", **options) as run:
        for number in range(2_000):
            run.log(loss=1.0, step=number)
    folder = RunFolder(logs / "a")
    before = folder.journal.read_bytes()
    assert compress(folder) is not None
    with tachograph.init("a", **options) as run:  # the name is taken, also if the journal is compressed
        assert run.name == "a-2"
    assert not folder.journal.exists()
    with tachograph.init("a", resume=True, **options) as run:
        assert run.name == "a"
        run.log(loss=2.0, step=2_000)
    assert folder.journal.read_bytes().startswith(before)
    assert not folder.compressed_journal.exists()
    assert [record["event"] for record in lines_of(logs / "a")].count("start") == 2
    assert len((logs / "a" / "metrics.csv").read_text().splitlines()) == 1 + len(lines_of(logs / "a"))


def test_changed_or_small_journals_are_left_alone(tmp_path):
    small = write(tmp_path / "small", [START, END])
    assert compress(small) is None
    folder = make_run(tmp_path / "a", num_steps=1_000)
    plain = folder.journal.read_bytes()

    @contextlib.contextmanager
    def resumed():
        append(folder, [START])
        yield True

    assert compress_journal(folder.journal, below=folder.path, publishing=lambda: allowed(False)) is None
    assert compress_journal(folder.journal, below=folder.path, publishing=resumed) is None
    assert folder.journal.read_bytes().startswith(plain)
    assert sorted(os.listdir(folder.path)) == ["metrics.jsonl"]


@pytest.mark.slow
def test_damage_is_an_error_that_names_the_file(tmp_path):
    folder = make_run(tmp_path / "a")
    compress(folder)
    whole = folder.compressed_journal.read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        data = bytearray(whole)
        at = chance.randrange(len(data)) if chance.random() < 0.5 else len(data) - 1 - chance.randrange(120)
        data[at] ^= 1 << chance.randrange(8)
        folder.compressed_journal.write_bytes(data if chance.random() < 0.7 else data[:at])
        try:
            num_records = sum(1 for _ in read_records(folder.journal))
        except OSError as error:
            assert "metrics.jsonl.gz" in str(error)
        else:  # damage in a place without meaning, such as a time
            assert num_records == 30_002
    folder.compressed_journal.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(OSError, match="gunzip"):
        list(read_records(folder.journal))


COMPRESS = """
import contextlib, sys
from pathlib import Path
from tachograph.journal import compress_journal, restore_journal
folder = Path(sys.argv[1])
print("ready", flush=True)
while True:
    compress_journal(folder / "metrics.jsonl", below=folder, publishing=lambda: contextlib.nullcontext(True))
    print(".", flush=True)
    restore_journal(folder / "metrics.jsonl", below=folder)
    print(".", flush=True)
"""


def test_kill_while_compressing_loses_nothing(tmp_path, script):
    folder = make_run(tmp_path / "a", num_steps=3_000)
    plain = folder.journal.read_bytes()
    chance = random.Random(4)
    for _ in range(5):
        running = script(COMPRESS, folder.path)
        hears(running, "ready")
        for _ in range(chance.randrange(6)):
            running.process.stdout.readline()
        running.process.send_signal(signal.SIGKILL)
        running.process.wait()
        with open_journal(folder.journal) as file:
            assert file.read() == plain
        assert len(list(read_records(folder.journal))) == 3_002


def test_rank_journals_can_be_compressed(tmp_path):
    folder = write(tmp_path / "a", [START, END])
    folder.ranks.mkdir()
    steps = [step(number, loss=1.0) for number in range(5_000)]
    ranks = write(folder.ranks, [START, *steps, {"event": "error", "error_type": "E", "error_message": "m"}, END])
    os.rename(ranks.journal, folder.rank_journal(1))
    before = tachograph.read(str(folder.path)).ranks
    assert compress(folder, folder.rank_journal(1)) is not None
    assert tachograph.read(str(folder.path)).ranks == before
    assert [rank.rank for rank in before] == [0, 1]
