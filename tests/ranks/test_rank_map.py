"""The map of all ranks that rank 0 keeps while it compares them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tachograph.diagnostics import RuleEngine
from tachograph.journal import RunFolder, read_rank_map, write_rank_map
from tachograph.reader import _rank_heat, read_rank_heat
from tachograph.records import RANK_MAP_COLUMNS, PhaseTime, RankMap, RankWindow, decode
from tests.ranks.written_job import NUM_RANKS, write_job

OWN_S = 0.1


def start_of(rank: int, world_size: int) -> dict[str, Any]:
    return {"event": "start", "time": 999.0, "rank": rank, "world_size": world_size}


def map_of_windows(
    world_size: int,
    numbers: range,
    own_s: Callable[[int, int], float],
    *,
    earlier: RankMap | None = None,
    length: int = 16,
) -> RankMap:
    """Let the rules compare windows of all ranks, and return the map."""
    engine = RuleEngine()
    engine.keep_rank_map(earlier)
    engine.observe(start_of(0, world_size))
    for rank in range(1, world_size):
        engine.observe_rank(rank, start_of(rank, world_size))
    for number in numbers:
        for rank in range(world_size):
            window = RankWindow(
                last_iteration=length * (number + 1) - 1,
                num_iterations=length,
                own=PhaseTime(own_s(rank, number), 0.001),
                wait=PhaseTime(0.1, 0.001),
                data=PhaseTime(0.01, 0.0),
            )
            record = {"event": "rank", "time": 1_000.0 + 10 * number, **window.to_fields()}
            if rank == 0:
                engine.observe(record)
            else:
                engine.observe_rank(rank, record)
    rank_map = engine.build_rank_map()
    assert rank_map is not None
    return rank_map


def rows_of(rank_map: RankMap, quantity: str = "own") -> list[bytes]:
    codes = rank_map.codes_of(quantity)
    assert codes is not None
    return [codes[at : at + rank_map.num_columns] for at in range(0, len(codes), rank_map.num_columns)]


def slow(which: int, since: int, until: int) -> Callable[[int, int], float]:
    return lambda rank, number: OWN_S * (1.4 if rank == which and since <= number < until else 1.0)


SLOW = 1 + round(254 * 0.5 / 0.6)
USUAL = 1 + round(254 * 0.1 / 0.6)


@pytest.mark.parametrize("stages", [0, 2])
def test_map_is_that_of_the_journals(tmp_path: Path, stages: int) -> None:
    folder = RunFolder(tmp_path / "job")
    write_job(folder.path, stages)
    engine = RuleEngine()
    engine.keep_rank_map(None)
    for rank in range(NUM_RANKS):
        path = folder.rank_journal(rank) if rank else folder.journal
        for record in map(decode, path.read_bytes().splitlines()):
            if rank:
                engine.observe_rank(rank, record)
            elif record["event"] in {"start", "rank"}:
                engine.observe({**record, "world_size": NUM_RANKS} if record["event"] == "start" else record)
    rank_map = engine.build_rank_map()
    assert rank_map is not None
    assert (rank_map.first_iteration, rank_map.last_iteration, rank_map.num_columns) == (0, 79, 5)
    for quantity in ("own", "wait", "data"):
        heat = read_rank_heat(folder, quantity)  # type: ignore[arg-type]
        assert heat is not None
        assert rank_map.codes_of(quantity) == heat.cells


@pytest.mark.slow
def test_long_run_keeps_its_size_and_every_slow_window() -> None:
    num_windows = 2_000
    rank_map = map_of_windows(3, range(num_windows), slow(2, 700, 701))
    assert rank_map.num_columns == num_windows // 8 <= RANK_MAP_COLUMNS
    assert rank_map.iterations_per_column == 16 * 8
    assert (rank_map.first_iteration, rank_map.last_iteration) == (0, 16 * num_windows - 1)
    rows = rows_of(rank_map)
    assert set(rows[0]) == set(rows[1]) == {USUAL}
    assert [column for column, code in enumerate(rows[2]) if code == SLOW] == [700 // 8]


def test_many_ranks_share_rows() -> None:
    rank_map = map_of_windows(1_200, range(3), slow(777, 1, 2))
    rows = rows_of(rank_map)
    assert (rank_map.ranks_per_row, len(rows)) == (3, 400)
    assert rows.pop(777 // 3) == bytes([USUAL, SLOW, USUAL])
    assert set(b"".join(rows)) == {USUAL}


def test_next_attempt_continues_the_map() -> None:
    first = map_of_windows(4, range(10), slow(3, 2, 3))
    second = map_of_windows(4, range(8, 12), slow(1, 10, 11), earlier=first)  # from an earlier checkpoint
    rows = rows_of(second)
    assert second.num_columns == 12
    assert rows[3][2] == rows[1][10] == SLOW
    assert set(b"".join(rows)) == {USUAL, SLOW}
    longer = map_of_windows(4, range(6, 8), slow(0, 0, 0), earlier=second, length=32)
    assert longer.iterations_per_column == 32
    assert rows_of(longer)[3][1] == rows_of(longer)[1][5] == SLOW
    more = map_of_windows(900, range(12, 13), slow(899, 12, 13), earlier=second)
    rows = rows_of(more)
    assert (more.ranks_per_row, len(rows)) == (2, 450)
    assert rows[1][2] == rows[0][10] == rows[449][12] == SLOW
    assert rows[2] == bytes(12) + bytes([USUAL])


@pytest.mark.slow
def test_map_of_large_journals_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "job")
    write_job(folder.path)
    whole_map = map_of_windows(6, range(700), slow(1, 3, 4))
    write_rank_map(folder, whole_map)
    heat = read_rank_heat(folder)
    assert heat is not None
    assert heat.last_iteration == 79
    monkeypatch.setattr(_rank_heat, "_MAP_FROM_BYTES", 1_000)
    heat = read_rank_heat(folder)
    assert heat is not None
    assert (heat.ranks, heat.last_iteration, heat.num_columns) == ([*range(6)], 16 * 700 - 1, 350)
    assert heat.cells == whole_map.codes_of("own")


def test_damaged_map_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rank_heat, "_MAP_FROM_BYTES", 1_000)
    folder = RunFolder(tmp_path / "job")
    write_job(folder.path)
    from_journals = read_rank_heat(folder)
    usual = msgspec.to_builtins(map_of_windows(4, range(6), slow(1, 2, 3)))
    bomb = msgspec.to_builtins(zlib.compress(bytes(1 << 24), 9))
    damaged_maps: list[Any] = [
        {**usual, "cells": {**usual["cells"], "own": bomb}},
        {**usual, "cells": {**usual["cells"], "own": ""}},
        {**usual, "cells": {}},
        *({**usual, name: value} for name in usual if name != "cells" for value in (-1, 0, 10**18, None, "x")),
        [],
        None,
    ]
    for damaged in damaged_maps:
        write_rank_map(folder, map_of_windows(4, range(2), slow(1, 2, 3)))
        folder.rank_map.write_bytes(msgspec.json.encode(damaged))
        heat = read_rank_heat(folder)
        assert heat is not None
        assert heat == from_journals or len(heat.cells) == len(heat.ranks) * heat.num_columns <= 500 * 480, damaged
        continued = map_of_windows(4, range(6, 8), slow(2, 6, 7), earlier=read_rank_map(folder))
        assert rows_of(continued)[2][-2] == SLOW, damaged
    folder.rank_map.write_bytes(bytes(5 << 20))
    assert read_rank_heat(folder) == from_journals
