"""Windows that are parsed with arrays are the same as those decoded line by line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from tachograph.journal import RunFolder, mark_rank
from tachograph.reader import _window_columns, read_rank_heat
from tachograph.reader._window_columns import parse_windows, split_first_lines
from tachograph.records import PhaseTime, RankWindow, encode
from tests.ranks.test_rank_reading import ODD_LINES
from tests.ranks.written_job import write_job

NUMBERS = (
    *("0", "0.0", "0.5", "1", "7.25", "12.34", "123.4", "1234.0", "99999999", "1234567.", "123456.7", "12345678.9"),
    *(
        "0.000271",
        "0.00027146",
        "1e-05",
        "1.5e+06",
        "1E3",
        "-1.0",
        "-0.0",
        "null",
        '"NaN"',
        '"Infinity"',
        '"1"',
        "true",
    ),
    *("00.5", "01", ".5", "5.", "1.2.3", "1 ", " 1", "+1", "0x1", "", "[1]", '{"a":1}', "nul", "nulll", "1\x00"),
)
QUANTITIES = (0, 2, 4)
Row = tuple[int, int, float]


def window_line(
    rank: int | None, times: list[str], *, last: str = "31", rest: str = ',"max":[1.5,17],"seq":30'
) -> bytes:
    stated_rank = "" if rank is None else f'"from_rank":{rank},'
    text = (
        f'{{"event":"rank",{stated_rank}"time":1795051822.4182515,"last":{last},"n":16,"ms":[{",".join(times)}]{rest}}}'
    )
    return text.encode()


def plain_rows(file_rank: int | None, lines: list[bytes], index: int) -> list[Row]:
    """Return rank, last iteration and a quantity of all windows that have it and a wait."""
    rows: list[Row] = []
    for line in lines:
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if not isinstance(record, dict) or not line.startswith(b'{"event":"rank"'):
            continue
        times, last, rank = record.get("ms"), record.get("last"), record.get("from_rank", -1)
        rank = rank if file_rank is None else file_rank
        is_valid = (
            isinstance(times, list)
            and len(times) >= 6
            and all(value is None or type(value) in {int, float} for value in times)
            and type(last) is int
            and type(rank) is int
        )
        if not is_valid or last < 0 or rank < 0 or times[2] is None or times[index] is None:
            continue
        if times[index] >= 0:
            rows.append((rank, last, float(times[index])))
    return sorted(rows)


def parsed_rows(file_rank: int | None, lines: list[bytes], index: int) -> list[Row]:
    columns = parse_windows([(file_rank, b"".join(line + b"\n" for line in lines))], index)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def random_window(chance: random.Random, rank: int | None) -> bytes:
    phases = [PhaseTime(chance.choice([1e-7, 1e-3, 0.05, 1.7, 900.0]) * chance.random(), 1e-4) for _ in range(6)]
    names = ("own", "wait", "data", "forward", "backward", "optimizer")
    times = {name: phase for name, phase in zip(names, phases, strict=True) if name == "own" or chance.random() < 0.9}
    window = RankWindow(
        last_iteration=chance.choice([0, 15, 4_095, 99_999_999, 100_000_000, 3_000_000_000]),
        num_iterations=16,
        longest_own_s=chance.choice([None, 0.1]),
        longest_iteration=4,
        collective=chance.choice([None, 70]),
        **times,  # type: ignore[arg-type]
    )
    line = encode({"event": "rank", "time": chance.choice([0.0, 17.0, 1795051822.4182515]), **window.to_fields()})
    return line if rank is None else mark_rank(line, rank)


@pytest.mark.parametrize("file_rank", [None, 3])
@pytest.mark.parametrize("block_bytes", [100, 1_000, 1 << 20])
@pytest.mark.slow
def test_arrays_and_single_lines_give_the_same_windows(
    file_rank: int | None, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_window_columns, "_BLOCK_BYTES", block_bytes)
    chance = random.Random(block_bytes)
    lines = [
        random_window(chance, None if file_rank is not None else chance.choice([0, 1, 99, 12_345, 1_048_576, 10**8]))
        for _ in range(500)
    ]
    for lines_of_file in (lines, [*lines, *ODD_LINES[:-1]], [*lines[:50], *ODD_LINES, *lines[50:]], [], ODD_LINES[:1]):
        for index in QUANTITIES:
            expected = plain_rows(file_rank, lines_of_file, index)
            assert parsed_rows(file_rank, lines_of_file, index) == expected
    assert len(plain_rows(file_rank, lines, 0)) > 300


@pytest.mark.parametrize("file_rank", [None, 3])
def test_numbers_of_any_form_are_parsed_as_json(file_rank: int | None) -> None:
    rank = 7 if file_rank is None else None
    whole = window_line(rank, ["1.5", "0.1"] * 6)
    lines = [whole[:end] for end in range(len(whole))]  # torn
    lines += [whole[:end] + whole for end in range(1, len(whole))]  # torn, and then another attempt continued the file
    lines += [window_line(rank, ["1.5", "0.1"] * 6, last=number) for number in NUMBERS]
    numbers = ["2.5", "0.1", "3.5", "0.1", "4.5", "0.1", "5.5", "0.1"]
    for rest in ("", ',"max":[1.5,17]', ',"max":[1.5,17],"seq":30'):
        lines += [window_line(rank, numbers[:num_times], rest=rest) for num_times in range(8)]
    for index in QUANTITIES:
        for position in {2, index}:  # other numbers are not looked at
            for number in NUMBERS:
                times = ["1.5", "0.1"] * 6
                times[position] = number
                lines.append(window_line(rank, times))
        for line in lines:
            assert parsed_rows(file_rank, [whole, line], index) == plain_rows(file_rank, [whole, line], index), line
        assert parsed_rows(file_rank, lines, index) == plain_rows(
            file_rank, lines, index
        )  # some of them decoded singly
        simple = [line for line in lines if b'NaN"' not in line and b'Infinity"' not in line and b"\x00" not in line]
        assert parsed_rows(file_rank, simple, index) == plain_rows(file_rank, simple, index)
        del lines[len(lines) - len(NUMBERS) * len({2, index}) :]


def test_windows_of_several_files_keep_their_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_window_columns, "_BLOCK_BYTES", 2_000)
    files: list[tuple[int | None, list[bytes]]] = []
    for rank in range(20):
        is_host = rank % 3 == 0
        own = [
            window_line(100 + rank if is_host else None, [f"{rank}.25", "0.1"] * 6, last=str(n)) for n in range(rank)
        ]
        files.append((None if is_host else rank, own))
    tails = [(rank, b"".join(line + b"\n" for line in lines)) for rank, lines in files]
    for index in QUANTITIES:
        expected = sorted(row for rank, lines in files for row in plain_rows(rank, lines, index))
        columns = parse_windows(tails, index)
        assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == expected
    first_lines = split_first_lines([*tails, (None, b'{"event":"start","from_rank":9}\n'), (4, b"torn\n")])
    assert first_lines.window_ranks == {100 + rank if rank % 3 == 0 else rank for rank in range(1, 20)}
    assert first_lines.others == [(4, b"torn"), (None, b'{"event":"start","from_rank":9}')]


def test_map_of_host_files_is_that_of_own_files(tmp_path: Path) -> None:
    for name in ("own", "hosts", "damaged"):
        write_job(tmp_path / name, stages=2)
    expected = read_rank_heat(RunFolder(tmp_path / "own"))
    assert expected is not None
    for name in ("hosts", "damaged"):
        folder = RunFolder(tmp_path / name)
        for ranks in ((1, 2), (3, 4, 5)):
            lines = [mark_rank(folder.rank_journal(rank).read_bytes(), rank) for rank in ranks]
            if name == "damaged":
                lines.insert(1, b'{"event":"rank","from_rank":3,"time":17{"event":"rank"\n' + bytes(300) + b"\n")
                lines.append(b'{"event":"rank","from_rank":4,"time":1')
            folder.host_journal(ranks[0]).write_bytes(b"".join(lines))
            for rank in ranks:
                folder.rank_journal(rank).unlink()
        if name == "damaged":
            folder.host_journal(8).write_bytes(b"")
            folder.host_journal(9).mkdir()
            folder.host_journal(10).write_bytes(b"\n\n")
        assert read_rank_heat(folder) == expected
    path = RunFolder(tmp_path / "own").rank_journal(2)
    path.write_text(path.read_text() + json.dumps({"event": "rank", "last": 3}) + "\n" + "{")
    assert read_rank_heat(RunFolder(tmp_path / "own")) == expected
