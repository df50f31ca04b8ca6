"""Reading the files of many ranks: the fast paths return the same as the plain ones, whatever the files contain."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tachograph.journal import (
    Heartbeat,
    HostHeartbeat,
    RankHeartbeats,
    RankJournal,
    RunFolder,
    list_rank_journals,
    mark_rank,
    read_heartbeat,
    split_by_rank,
    this_process,
)
from tachograph.reader import RankView, read_ranks
from tachograph.reader._rank_lines import RANK_LINE, decode_lines, decode_many, read_rank_lines
from tachograph.records import RankWindow, decode, window_times
from tests.ranks.written_job import NUM_RANKS, write_job

ODD_LINES = [
    b"",
    b"{}",
    b"null",
    b'{"event":"rank","from_rank":',
    b'{"event":"rank","from_rank":3',
    b'{"event":"rank","from_rank":3,',
    b'{"event":"rank","from_rank":3,"time":17{"event":"rank","from_rank":4,"time":17.0,"last":31,"n":16,"ms":[1,2,3,4]}',
    b'{"event":"rank","from_rank":4,"time":17.0,"last":31,"n":16,"ms":[1,2,3',
    b'{"event":"rank","from_rank":-4,"time":17.0,"last":31,"n":16,"ms":[1,2,3,4]}',
    b'{"event":"rank","from_rank":1234567890,"time":17.0,"last":31,"n":16,"ms":[1,2,3,4]}',
    b'{"event":"rank","from_rank":"4","time":17.0,"last":31,"n":16,"ms":[1,2,3,4]}',
    b'{"event":"rank","time":17.0,"from_rank":4,"last":31,"n":16,"ms":[1,2,3,4]}',
    b'{"event":"rank","from_rank":004,"time":17.0,"last":31,"n":16,"ms":[1,2,3,4]}',
    b'{"event":"rank_mesh","from_rank":4,"time":17.0}',
    b'{"event":"sy\\"stem","from_rank":4,"time":17.0}',
    b'{"event":"system","from_rank":5,"time":17.0,"cpu_mem_rss_mb":1.0}',
    b'{"event":"error","from_rank":2,"time":17.0,"error_type":"ValueError","error_message":"NaN"}',
    b"\x00" * 40,
]


def window(rank: int, number: int, *, has_wait: bool = True) -> bytes:
    times_ms = [100.0 + rank, 1.0, *([50.0, 1.0] if has_wait else [None, None]), *[None] * 8]
    record = {"event": "rank", "time": 1_000.5 + number, "last": 16 * number + 15, "n": 16, "ms": times_ms}
    return mark_rank(json.dumps(record, separators=(",", ":")).encode() + b"\n", rank)


def write_host_file(folder: RunFolder, number: int, lines: list[bytes]) -> RankJournal:
    folder.ranks.mkdir(parents=True, exist_ok=True)
    path = folder.host_journal(number)
    path.write_bytes(b"".join(lines))
    return RankJournal(number, is_host=True, path=path)


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_host_are_selected_like_plain_ones(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lines = [window(chance.randrange(1, 12), number) for number in range(200)]
    lines += [line + b"\n" for line in ODD_LINES for _ in range(chance.randrange(3))]
    chance.shuffle(lines)
    lines.append(chance.choice([b"", window(3, 300)[:60]]))  # torn
    journal = write_host_file(RunFolder(tmp_path), 0, lines)
    selected = read_rank_lines([journal])
    plain = split_by_rank(journal, b"".join(lines[:-1]))
    assert selected.keys() == plain.keys()
    for rank, lines_of_rank in plain.items():
        expected = lines_of_rank.splitlines()
        windows = [line for line in expected if line.startswith(RANK_LINE)]
        old = windows[:-2]
        for line in old:
            expected.remove(line)
        assert sorted(selected[rank].select()) == sorted(expected)
        assert [line for line in selected[rank].select() if line.startswith(RANK_LINE)] == windows[-2:]


def test_groups_of_lines_are_decoded_like_single_lines() -> None:
    def plain(lines: list[bytes]) -> list[dict[str, Any]]:
        records = []
        for line in lines:
            try:
                records.append(decode(line))
            except (msgspec.MsgspecError, ValueError):
                continue
        return records

    valid = [[window(1, 2)[:-1], b"", b'{"event":"end","value":"NaN"}'], [], [window(2, 0)[:-1]]]
    for groups in (valid, [*valid, *([line] for line in ODD_LINES), ODD_LINES]):
        expected = [plain(lines) for lines in groups]
        assert repr(decode_many(groups)) == repr(expected)
        assert repr([decode_lines(lines) for lines in groups]) == repr(expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ms": [1.5, 0.1]},
        {"ms": [1.5, 0.1, None, None]},
        {"ms": [1.5, 0.1, -1.0, 0.1]},
        {"ms": [1.5, 0.1, "2.0", 0.1]},
        {"ms": [1.5, 0.1, float("inf"), 0.1]},
        {"ms": [1.5, 0.1, float("nan"), 0.1]},
        {"ms": [float("nan"), 0.1, 1.0, 0.1]},
        {"ms": [float("inf"), 0.1, 1.0, 0.1]},
        {"ms": [None, 0.1, 1.0, 0.1]},
        {"ms": [-1, 0.1, 1.0, 0.1]},
        {"ms": [True, 0, 3, 0]},
        {"ms": [10**400, 0, 3, 0]},
        {"ms": []},
        {"ms": None},
        {"ms": "1"},
        {"last": -1},
        {"last": 1.0},
        {"last": None},
        {"n": 0},
        {"n": "16"},
    ],
)
def test_times_of_window_are_those_of_whole_window(changes: dict[str, Any]) -> None:
    record = {"event": "rank", "time": 1.0, "last": 15, "n": 16, "ms": [1.5, 0.1, 2.5, 0.1, 1.0, 0.1], **changes}
    whole, times = RankWindow.from_record(record), window_times(record)
    if whole is None:
        assert times is None
        return
    assert times is not None
    wait_s = whole.wait.median_s if whole.wait is not None else None
    assert times == (whole.last_iteration, whole.own.median_s, wait_s)


def heartbeat(rank: int, wall_s: float) -> Heartbeat:
    return Heartbeat(run_id="", process=this_process(), time=wall_s, uptime_s=1.0, iteration=rank)


def test_heartbeats_read_together_are_those_read_singly(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    private = folder.private / "ranks"
    private.mkdir(parents=True)
    for rank in range(1, 6):
        folder.rank_heartbeat(rank).write_bytes(msgspec.json.encode(heartbeat(rank, 100.0)))
    folder.rank_heartbeat(6).write_bytes(b"")
    folder.rank_heartbeat(7).write_bytes(msgspec.json.encode(heartbeat(7, 100.0))[:-9])
    folder.rank_heartbeat(8).mkdir()
    folder.rank_heartbeat(9).symlink_to(folder.rank_heartbeat(1))
    folder.rank_heartbeat(10).write_bytes(b" " * 100_000)
    folder.host_heartbeat(0).write_bytes(
        msgspec.json.encode(
            HostHeartbeat({rank: heartbeat(100 + rank, 99.0 + 2 * (rank % 2)) for rank in (4, 5, 6, 11)})
        )
    )
    folder.host_heartbeat(20).write_bytes(b'{"ranks":')
    heartbeats = RankHeartbeats(folder)
    assert heartbeats.ranks == [*range(1, 12)]
    together = heartbeats.get_all(heartbeats.ranks)
    assert list(together) == [1, 2, 3, 4, 5, 6, 11]
    for rank in range(13):
        assert heartbeats.get(rank) == together.get(rank)
    for rank in (1, 2, 3, 4):
        assert together[rank] == read_heartbeat(folder.rank_heartbeat(rank))
    assert [together[rank].iteration for rank in (5, 6, 11)] == [105, 106, 111]  # of the host: newer, or the only one
    assert heartbeats.get_all([]) == {}
    folder.rank_heartbeat(1).unlink()
    assert list(heartbeats.get_all([3, 1, 2])) == [3, 2]


def views_of(folder: RunFolder) -> list[RankView]:
    return [msgspec.structs.replace(view) for view in read_ranks(folder)]


def test_layout_of_files_does_not_change_the_ranks(tmp_path: Path) -> None:
    for name in ("own", "hosts", "both", "damaged"):
        write_job(tmp_path / name, stages=2)
    expected = views_of(RunFolder(tmp_path / "own"))
    assert len(expected) == NUM_RANKS
    lines = {
        rank: (tmp_path / "own" / "ranks" / f"{rank:05d}.jsonl").read_bytes().splitlines(keepends=True)
        for rank in range(1, NUM_RANKS)
    }
    for name in ("hosts", "damaged"):
        folder = RunFolder(tmp_path / name)
        for ranks in ((1, 2), (3, 4, 5)):
            marked = [[mark_rank(line, rank) for line in lines[rank]] for rank in ranks]
            host_lines = [line for group in zip(*marked, strict=True) for line in group]
            if name == "damaged":  # lines that belong to no rank, or are invalid
                host_lines[2:2] = [
                    line + b"\n" for line in ODD_LINES if b'from_rank":2' not in line and b"system" not in line
                ]
                host_lines.append(host_lines[0][:50])
            write_host_file(folder, ranks[0], host_lines)
            for rank in ranks:
                folder.rank_journal(rank).unlink()
        if name == "damaged":
            folder.host_journal(9).write_bytes(b"")
            folder.host_journal(10).mkdir()
            folder.rank_journal(11).symlink_to(tmp_path / "missing")
    both = RunFolder(tmp_path / "both")
    for rank in (4, 5):  # their first half is in the file of the host
        write_host_file(both, 4, [mark_rank(line, rank) for rank in (4, 5) for line in lines[rank][:3]])
        both.rank_journal(rank).write_bytes(b"".join([lines[rank][0], *lines[rank][3:]]))
    assert views_of(RunFolder(tmp_path / "hosts")) == expected
    assert views_of(both) == expected
    damaged = {view.rank: view for view in views_of(RunFolder(tmp_path / "damaged"))}
    assert [damaged[view.rank] for view in expected] == expected


def test_rank_that_moved_to_another_host_has_its_last_attempt(tmp_path: Path) -> None:
    write_job(tmp_path)
    folder = RunFolder(tmp_path)

    def attempt(first_s: float, host: str, own_ms: float) -> list[bytes]:
        start = {
            "event": "start",
            "time": first_s,
            "rank": 8,
            "process": {"host": host, "boot_id": "", "pid": 9, "pid_started": 1},
        }
        windows = [
            {"event": "rank", "time": first_s + n, "last": 16 * n + 15, "n": 16, "ms": [own_ms, 1.0, 5.0, 1.0]}
            for n in range(4)
        ]
        return [
            mark_rank(json.dumps(record, separators=(",", ":")).encode() + b"\n", 8) for record in [start, *windows]
        ]

    write_host_file(folder, 6, attempt(2_000.0, "second", 70.0))
    write_host_file(folder, 7, attempt(1_000.0, "first", 60.0))
    view = read_ranks(folder)[-1]
    assert (view.rank, view.host, view.own_s) == (8, "second", pytest.approx(0.07))


def test_file_per_rank_of_many_ranks_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tachograph.reader import _rank_lines

    write_job(tmp_path)
    folder = RunFolder(tmp_path)
    expected = views_of(folder)
    monkeypatch.setattr(_rank_lines, "_MAX_VIEW_BYTES", 5_000)
    monkeypatch.setattr(_rank_lines, "_MIN_VIEW_BYTES", 500)
    assert max(journal.path.stat().st_size for journal in list_rank_journals(folder)) > 600
    assert views_of(folder) == expected
