"""Segments: built by any reader, verified before use, and safe to delete."""

from __future__ import annotations

import gc
import glob
import itertools
import json
import math
import os
import random
import shutil
import struct
import tempfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tachograph
from tachograph.store import StoredRun
from tachograph.store._segment import SegmentError, segment_path
from tests.conftest import HANG_S, wait_for
from tests.store import END, START, answers, append, fresh_folder, lines, opened, segments, step, write

RECORDS = [
    START,
    *(step(i, a=i / 3, b=math.nan if i % 50 == 7 else float(-i), epoch=i // 100) for i in range(400)),
    {"event": "event", "time": 1_500.0, "name": "something"},
    {"event": "span", "time": 1_510.0, "span_id": "00000000000000aa", "name": "load", "duration_s": 4.0},
    {"event": "validation", "time": 1_520.0, "global_step": 399, "val_a": 0.5},
    {**START, "time": 1_600.0, "resumed": True},
    *(step(i, a=i / 7) for i in range(300, 500)),
    END,
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return answers(opened(write(tmp_path_factory.mktemp("expected") / "r", RECORDS)))


def test_next_reader_of_an_ended_run_uses_only_the_cache(tmp_path, expected):
    folder = write(tmp_path / "r", RECORDS)
    assert answers(opened(folder, 1)) == expected
    assert len(segments(folder)) == 1
    run = StoredRun(folder)
    assert run.indexed_share == 1.0
    assert answers(run) == expected


def test_short_run_writes_no_cache(tmp_path):
    folder = write(tmp_path / "r", RECORDS)
    opened(folder)
    assert not folder.private.exists()


def test_trainer_never_writes_the_cache(tmp_path):
    with tachograph.init("r", log_dir=str(tmp_path), git=False, flush_interval_s=0.01) as run:
        for number in range(2_000):
            run.log(a=float(number), step=number)
    assert (tmp_path / "r" / ".tacho").is_dir()
    assert not (tmp_path / "r" / ".tacho" / "cache").exists()


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_cache_may_be_deleted_at_any_time(expected, chance):
    data = lines(RECORDS)
    with fresh_folder() as path:
        folder = write(path, [])
        run = StoredRun(folder, segment_bytes=2_000)
        sizes = [*sorted(chance.randrange(len(data)) for _ in range(8)), len(data)]
        for begin, end in itertools.pairwise([0, *sizes]):
            with open(folder.journal, "ab") as file:
                file.write(data[begin:end])
            run.refresh()
            match chance.randrange(4):
                case 0:
                    shutil.rmtree(folder.private, ignore_errors=True)
                case 1:
                    for name in chance.sample(segments(folder), len(segments(folder)) // 2):
                        (folder.cache / name).unlink()
                case 2:
                    run = StoredRun(folder, segment_bytes=2_000)
        run.refresh()
        assert answers(run) == expected
        assert answers(opened(folder, 2_000)) == expected


def damaged(data, chance):
    """Return a randomly damaged copy of a segment."""
    kind = chance.randrange(5)
    if kind == 0:
        return data[: chance.randrange(len(data))]
    if kind == 1:
        return chance.randbytes(chance.randrange(1, len(data)))
    # The footer is at the end.
    at = chance.randrange(len(data)) if kind == 2 else chance.randrange(max(0, len(data) - 2_000), len(data))
    flipped = bytearray(data)
    for place in range(at, min(len(data), at + chance.choice([1, 1, 8, 64]))):
        flipped[place] ^= chance.randrange(1, 256)
    return bytes(flipped)


@pytest.mark.slow
@pytest.mark.timeout(HANG_S)
@pytest.mark.parametrize("num_copies", [40, pytest.param(150, marks=pytest.mark.long)])
def test_damaged_segment_is_ignored(tmp_path, expected, num_copies):
    folder = write(tmp_path / "r", RECORDS)
    opened(folder, 1)
    (name,) = segments(folder)
    data = (folder.cache / name).read_bytes()
    chance = random.Random(3)
    believed, failed = [], []
    for number in range(num_copies):
        (folder.cache / name).unlink(missing_ok=True)  # a new file: open segments are never modified
        (folder.cache / name).write_bytes(damaged(data, chance))
        try:
            if answers(opened(folder, 1)) != expected:
                believed.append(number)
        except Exception as error:
            failed.append((number, type(error).__name__))
    assert (believed, failed) == ([], [])


def damage_in_place(path, chance):
    """Change bytes of an open segment, anywhere but in the footer, which every reader has in memory."""
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        num_bytes = chance.choice([1, 8, 64, 1_000])
        file.seek(chance.randrange(size - num_bytes))
        file.write(chance.randbytes(num_bytes))


@pytest.mark.parametrize("pause_s", [0.0, 2.1], ids=["at once", "later"])
@pytest.mark.slow
def test_open_segment_damaged_in_place_is_not_served(tmp_path, expected, pause_s):
    """A reader that has verified a segment notices when its file is changed, and reads the journal again."""
    folder = write(tmp_path / "r", RECORDS)
    run = opened(folder, 1)
    chance = random.Random(5)
    wrong = []
    for number in range(40 if not pause_s else 4):
        run.refresh()
        assert answers(run) == expected  # verifies every array
        time.sleep(pause_s)
        assert answers(run) == expected
        for name in segments(folder):
            damage_in_place(folder.cache / name, chance)
        if answers(run) != expected:
            wrong.append(number)
    assert wrong == []


def test_damage_during_a_query_is_noticed(tmp_path):
    """The values are damaged after they were verified and before they are used."""
    folder = write(tmp_path / "r", [START, *(step(i, a=1.0) for i in range(11_000))])
    run = opened(folder, 1)
    (name,) = segments(folder)
    undamaged = [folder.cache / name]

    def query():
        values = run._sources[0].series_part("step", "a").values
        if undamaged:
            path = undamaged.pop()
            data = path.read_bytes()
            with open(path, "r+b") as file:
                file.write(data.replace(struct.pack("<d", 1.0), struct.pack("<d", 7.0)))
        return set(values.tolist())

    assert run._run_query(query) == {1.0}


def test_export_never_contains_damaged_points(tmp_path):
    folder = write(tmp_path / "r", [START, *(step(i, a=1.0, b=2.0) for i in range(11_000))])
    run = opened(folder, 1)
    (name,) = segments(folder)
    exported = run.points(["a", "b"], axis="step", low=None, high=None)
    found = next(exported)
    data = (folder.cache / name).read_bytes()
    with open(folder.cache / name, "r+b") as file:
        file.write(data.replace(struct.pack("<d", 2.0), struct.pack("<d", 7.0)))
    with pytest.raises(SegmentError):
        for block in exported:
            found += block
    assert {point[-1] for point in found} == {1.0}
    assert answers(run) == answers(opened(folder, 1 << 30))


def test_touched_segment_is_kept(tmp_path):
    folder = write(tmp_path / "r", [START, *(step(i, a=1.0) for i in range(11_000))])
    run = opened(folder, 1)
    before = answers(run)
    (name,) = segments(folder)
    inode = (folder.cache / name).stat().st_ino
    os.utime(folder.cache / name)
    assert answers(run) == before
    assert (folder.cache / name).stat().st_ino == inode


def test_truncating_an_open_segment_does_not_crash_readers(tmp_path, script):
    folder = write(tmp_path / "r", [START, *(step(i, a=float(i)) for i in range(20_000)), END])
    out = script(
        """
        import os, sys
        from tests.store import *
        folder = RunFolder(sys.argv[1])
        opened(folder, 1)
        run = opened(folder, 1)
        for name in segments(folder):
            os.truncate(folder.cache / name, 0)
        print(len(points(run.series("a", num_points=10**6)[0])))
        """,
        folder.path,
        env={"PYTHONPATH": os.getcwd()},
    ).ok()
    assert out.strip() == "20000"


@pytest.mark.parametrize("kind", ["folder", "unreadable", "link to nowhere", "link to itself"])
def test_other_file_in_place_of_a_segment_is_ignored(tmp_path, kind, expected):
    folder = write(tmp_path / "r", RECORDS)
    opened(folder, 1)
    path = folder.cache / segments(folder)[0]
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "unreadable":
            path.write_bytes(b"")
            path.chmod(0)
        case "link to nowhere":
            path.symlink_to("nowhere")
        case "link to itself":
            path.symlink_to(path)
    assert answers(opened(folder, 1)) == expected


def test_segments_of_another_version_are_ignored(tmp_path, expected):
    folder = write(tmp_path / "r", RECORDS)
    opened(folder, 1)
    (name,) = segments(folder)
    os.rename(folder.cache / name, folder.cache / f"v0-{name.partition('-')[2]}")
    assert answers(opened(folder, 1)) == expected


def test_segment_of_another_run_is_ignored(tmp_path, expected):
    other = write(tmp_path / "other", [START, *(step(i, a=9.0) for i in range(900)), END])
    opened(other, 1)
    folder = write(tmp_path / "r", RECORDS)
    shutil.copytree(other.private, folder.private)
    assert answers(opened(folder, 1)) == expected


OTHER = [{**START, "time": 5_000.0}, *(step(i, another_name=1.0) for i in range(2_000)), END]


def replace_by_rename(folder):
    write(folder.path / "new", OTHER)
    os.replace(folder.path / "new" / "metrics.jsonl", folder.journal)


def delete_and_write(folder):
    folder.journal.unlink()
    write(folder.path, OTHER)


def cut_and_write(folder):
    write(folder.path, OTHER[:5])


@pytest.mark.parametrize("change", [replace_by_rename, delete_and_write, cut_and_write])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["first reader", "from segments"])
@pytest.mark.parametrize("looks_between", [False, True], ids=["at once", "empty for a while"])
def test_replaced_journal_is_read_from_its_beginning(tmp_path, change, is_reopened, looks_between):
    folder = write(tmp_path / "r", RECORDS)
    run = opened(folder, 1)
    if is_reopened:
        run = opened(folder, 1)
    if looks_between:
        folder.journal.write_bytes(b"")
        run.refresh()
        assert run.metric_names == []
    change(folder)
    while run.refresh():
        pass
    expected = answers(opened(write(tmp_path / "copy", folder.journal.read_bytes().splitlines())))
    assert answers(run) == expected
    assert answers(opened(folder, 1)) == expected


def test_replaced_journal_is_read_by_one_refresh(tmp_path):
    folder = write(tmp_path / "r", RECORDS)
    run = opened(folder, 1)
    before = run.generation
    replace_by_rename(folder)
    assert run.refresh()
    assert run.metric_names == ["another_name"]
    assert run.generation != before


def test_restored_journal_is_continued(tmp_path, expected):
    folder = write(tmp_path / "r", RECORDS[:300])
    run = opened(folder, 1)
    before = run.generation
    os.rename(folder.journal, folder.path / "away")
    assert not run.refresh()
    os.rename(folder.path / "away", folder.journal)
    append(folder, RECORDS[300:])
    run.refresh()
    assert run.generation == before
    assert answers(run) == expected


def test_torn_last_line_is_read_when_complete(tmp_path):
    folder = write(tmp_path / "r", [START, step(0, a=1.0)])
    with open(folder.journal, "ab") as file:
        file.write(b'{"event":"step","time":1001.0,"glob')
    run = opened(folder, 1)
    assert run.metrics()["a"].count == 1
    assert opened(folder, 1).metrics()["a"].count == 1
    append(folder, [b'al_step":1,"a":2.0}'])
    run.refresh()
    assert run.metrics()["a"].last == 2.0
    assert run.num_bad_lines == 0


def test_invalid_lines_are_counted_by_every_reader(tmp_path):
    bad = [b"{", b"\xff\xfe", b"[]", b'{"no": "event"}', b"\0" * 100]
    folder = write(tmp_path / "r", [START, step(0, a=1.0), *bad, step(1, a=2.0), END])
    assert [opened(folder, 1).num_bad_lines for _ in range(2)] == [5, 5]
    assert tachograph.read(folder.path).num_bad_lines == 5


def test_reader_works_on_a_full_disk(tmp_path, script):
    folder = write(tmp_path / "r", [START, *(step(i, a=float(i)) for i in range(20_000)), END])
    out = script(
        """
        import resource, sys
        from tests.store import *
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        run = opened(RunFolder(sys.argv[1]), 1)
        run.refresh()
        print(len(points(run.series("a", num_points=10**6)[0])))
        """,
        folder.path,
        env={"PYTHONPATH": os.getcwd()},
    ).ok()
    assert out.strip() == "20000"
    assert [name for name in segments(folder) if name.endswith(".tmp")] == []


READER = """
    import json, os, sys, tempfile
    import tachograph, tachograph.store
    from tests.store import *
    if os.getuid() == 0 and sys.argv[2] != "root":
        os.setgid(65534)
        os.setuid(65534)
    run = opened(RunFolder(sys.argv[1]), 3_000)
    sys.stdin.readline()
    run.refresh()
    print(json.dumps([answers(run), os.listdir(tempfile.gettempdir())]))
    """


def test_read_only_run_is_read_through_a_temporary_cache(open_folder, script, expected):
    folder = write(open_folder / "r", RECORDS[:350])
    temporary = open_folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o777)
    environment = {"PYTHONPATH": os.getcwd(), "TMPDIR": str(temporary)}
    reader = script(READER, folder.path, "nobody", env=environment)
    wait_for(lambda: os.listdir(temporary), what="a cache elsewhere")
    append(folder, RECORDS[350:])
    reader.process.stdin.write("\n")
    reader.process.stdin.flush()
    found, caches = json.loads(reader.ok())
    assert found == expected
    assert len(caches) == 1
    assert not folder.private.exists()
    assert os.listdir(temporary) == []


def test_temporary_cache_is_deleted_with_its_reader(open_folder, monkeypatch):
    folder = write(open_folder / "r", RECORDS)
    folder.private.write_text("a file in place of the folder")
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder / "tmp"))
    (open_folder / "tmp").mkdir()
    run = opened(folder, 1)
    assert len(glob.glob(str(open_folder / "tmp" / "*" / "*.seg"))) == 1
    del run
    gc.collect()
    assert os.listdir(open_folder / "tmp") == []


def test_concurrent_readers_build_one_segment_chain(tmp_path, script, expected):
    folder = write(tmp_path / "r", [])
    readers = [script(GROWING, folder.path, env={"PYTHONPATH": os.getcwd()}) for _ in range(3)]
    for reader in readers:
        assert reader.process.stdout.readline() == "ready\n"
    data = lines(RECORDS)
    for begin in range(0, len(data), 1_500):
        with open(folder.journal, "ab") as file:
            file.write(data[begin : begin + 1_500])
        # Count only published segments: a temporary file may be discarded again.
        wait_for(lambda begin=begin: len(list(folder.cache.glob("*.seg"))) >= begin // 6_000, what="a segment")
    found = [json.loads(reader.ok()) for reader in readers]
    assert found == [expected] * 3
    chain, end = [], 0
    run = opened(folder, 3_000)
    for segment in run._segments:
        assert segment.footer.start == end
        chain.append(segment_path(folder.cache, end).name)
        end = segment.footer.end
    assert len(chain) >= 2
    assert segments(folder) == chain


GROWING = """
    import json, sys, time
    from tests.store import *
    run = opened(RunFolder(sys.argv[1]), 3_000)
    print("ready")
    deadline = time.monotonic() + 240
    while run.digest.counts.get("end") != 1 and time.monotonic() < deadline:
        run.refresh()
    print(json.dumps(answers(run)))
    """


def test_linked_cache_is_neither_written_nor_cleared(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "v1-precious.seg").write_text("a file of another program")
    folder = write(tmp_path / "r", RECORDS)
    folder.private.mkdir()
    folder.cache.symlink_to(outside)
    run = opened(folder, 1)
    replace_by_rename(folder)
    run.refresh()
    run.refresh()
    assert os.listdir(outside) == ["v1-precious.seg"]
    assert run.metric_names == ["another_name"]


def test_indexed_stays_complete_while_the_run_grows(tmp_path):
    folder = write(tmp_path / "r", [START, *(step(i, a=float(i)) for i in range(30_000))])
    run = StoredRun(folder)
    run.refresh(0.0)
    assert 0.0 < run.indexed_share < 1.0
    run.refresh()
    append(folder, [step(i, a=1.0) for i in range(100)])
    assert run.indexed_share == 1.0
