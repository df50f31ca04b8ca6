"""Encoding, value conversion and step tables: values round-trip, and every line is valid JSON."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import math
import pathlib
import types
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.records import (
    OMIT,
    RecordCut,
    StepTable,
    ValueBudget,
    ValueProblem,
    decode,
    decode_block,
    encode,
    freeze,
    to_json,
    to_plain,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "\\NaN", "\\\\NaN", "\\-Infinity", "xNaN", "null", "\\"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def strict(text: str | bytes) -> object:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@given(st.dictionaries(TEXTS, VALUES, max_size=6))
def test_encode_decode_round_trip_is_valid_json(fields):
    record = {**fields, "event": "step"}
    line = encode(record)
    assert b"\n" not in line
    strict(line)
    assert same(decode(line), record)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_survive_the_round_trip(value):
    record = {"event": "step", "loss": value, "nested": {"deep": [value]}}
    assert strict(encode(record))["loss"] in {"NaN", "Infinity", "-Infinity"}
    assert same(decode(encode(record)), record)


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b'{"event":1}', b'{"event":"step"', b"\xff", b"nul", b'{"event":"x","a":1e999}']
)
def test_decode_rejects_lines_that_are_not_records(line):
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        decode(line)


def test_to_json_marks_nan_in_a_list():
    assert to_json([math.nan, 1.5]) == '["NaN",1.5]'


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Config:
    lr: float
    path: pathlib.Path


class ZeroDimensional:
    """Looks like a 0-d tensor of an unknown library."""

    dtype = "float32"
    shape = ()

    def item(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([3.5]), 3.5),
        (np.array([1, 2, 3]), [1, 2, 3]),
        (ZeroDimensional(), 0.25),
        (decimal.Decimal("1.5"), 1.5),
        (fractions.Fraction(1, 4), 0.25),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (Color.RED, "red"),
        (datetime.date(2024, 1, 2), "2024-01-02"),
        ((1, 2.5, None), [1, 2.5, None]),
        ({3: "x"}, {"3": "x"}),
        (Config(0.1, pathlib.PurePosixPath("m")), {"lr": 0.1, "path": "m"}),
        (types.SimpleNamespace(a=1), {"a": 1}),
        (2**70, 2**70),
        ("\ud800", "\\ud800"),
        (float, "<class 'float'>"),
    ],
)
def test_to_plain_converts_common_values(value, expected):
    problems: list[ValueProblem] = []
    result = to_plain(value, "x", problems)
    assert same(result, expected)
    assert problems == []
    encode({"event": "step", "x": result})


class Stubborn:
    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value", [object(), Stubborn(), 1j, np.complex64(1), np.zeros(2000), b"bytes", lambda: None, open]
)
def test_unsupported_value_is_reported_by_name(value):
    problems: list[ValueProblem] = []
    assert to_plain({"keep": 1, "drop": value}, "metrics", problems) == {"keep": 1}
    assert [problem.where for problem in problems] == ["metrics.drop"]


def test_long_text_is_truncated_and_reported():
    problems: list[ValueProblem] = []
    result = to_plain("x" * 10_000_000, "prompt", problems)
    assert len(result) < 70_000
    assert "10000000 characters" in result
    assert len(problems) == 1


def test_self_containing_value_terminates():
    endless: dict[str, object] = {}
    endless["me"] = endless
    problems: list[ValueProblem] = []
    to_plain(endless, "x", problems)
    assert len(problems) == 1


def doubling_lists() -> list[object]:
    """Thirty lists, each of which contains the one before four times: 4 ** 30 values in all."""
    inner: list[object] = [1]
    for _ in range(30):
        inner = [inner] * 4
    return inner


class Counted(list[object]):
    """A list that counts the items read from it and from its like."""

    num_read = 0

    def __iter__(self):
        for item in super().__iter__():
            Counted.num_read += 1
            yield item


class EndlessList(Counted):
    def __len__(self) -> int:
        return 10**12

    def __iter__(self):
        while True:
            Counted.num_read += 1
            yield 0.5


class EndlessMapping(Mapping[str, object]):
    def __len__(self) -> int:
        return 1

    def __iter__(self):
        while True:
            Counted.num_read += 1
            yield "same"

    def __getitem__(self, key: str) -> object:
        return 0.5


class Wrapping:
    def to_dict(self) -> dict[str, object]:
        Counted.num_read += 1
        return {"first": Wrapping(), "second": Wrapping()}


class LyingText(str):
    def __str__(self) -> str:
        raise AssertionError("a subclass must not decide how much is copied")

    __len__ = __getitem__ = __str__  # type: ignore[assignment]


def image() -> list[object]:
    return Counted(Counted(Counted([0.5] * 512) for _ in range(512)) for _ in range(3))


LARGE = {
    "image": image,
    "lists that repeat": doubling_lists,
    "a list without end": EndlessList,
    "a mapping without end": EndlessMapping,
    "objects without end": Wrapping,
    "mappings of lists": lambda: {str(number): [0.5] * 999 for number in range(999)},
    "a million names": lambda: dict.fromkeys(map(str, range(1_000_000)), 0.5),
    "a gigabyte of text": lambda: [["x" * 60_000] * 900] * 20,
}


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("convert", [to_plain, freeze], ids=["to_plain", "freeze"])
def test_work_per_record_is_bounded(make, convert):
    value = {"small": 1, "large": make()}
    Counted.num_read = 0
    problems: list[ValueProblem] = []
    if convert is to_plain:
        plain = to_plain(value, "", problems)
    else:  # the writer converts again what `freeze` returns, and finds the problems in it
        budget = ValueBudget(num_values=100_000, num_chars=8 << 20)
        plain = {name: to_plain(item, name, problems, budget) for name, item in freeze(value).items()}
        plain = {name: item for name, item in plain.items() if item is not OMIT}
    assert Counted.num_read < 50_000
    assert plain["small"] == 1
    assert len(encode({"event": "step", **plain})) < 3_000_000
    assert problems
    assert len(problems) == 1, "one entry for everything that was cut"
    assert problems[0].where.startswith("large")


def test_text_subclass_cannot_change_how_it_is_read():
    problems: list[ValueProblem] = []
    assert to_plain(LyingText("text"), "x", problems) == "text"
    assert freeze({"x": LyingText("text")}) == {"x": "text"}
    assert problems == []


def test_cut_value_does_not_cost_its_neighbours():
    endless: list[object] = []
    endless += [endless] * 4
    problems: list[ValueProblem] = []
    assert to_plain({"x": endless, "y": 2}, "", problems) == {"x": [None] * 4, "y": 2}
    assert [(type(problem), problem.where, problem.reason) for problem in problems] == [
        (RecordCut, "x", "contains itself")
    ]


def test_freeze_copies_mutable_values():
    array = np.array(1.0)
    inner = {"b": 1}
    frozen = freeze({"array": array, "a": inner, "text": "x" * 100_000, "bad": object()})
    array += 1
    inner["b"] = 2
    assert frozen["array"] == 1.0
    assert frozen["a/b"] == 1
    assert len(frozen["text"]) <= 70_000
    assert isinstance(frozen["bad"], ValueProblem)
    assert to_plain(frozen["bad"], "bad", []) is OMIT


ROWS = st.lists(
    st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.booleans()), min_size=1, max_size=20
)


def csv_of(table: StepTable) -> bytes:
    return table.csv_rows(range(len(table.names)))


def csv_cell(value: float) -> str:
    return encode({"": value}).decode()[4:-1].strip('"')


@given(ROWS)
def test_table_lines_equal_single_encoding(rows):
    names = ("time", "global_step", 'flag,with:odd"name')
    table = StepTable.encode(names, list(zip(*rows, strict=True)))
    assert table is not None
    records = [{"event": "step", **dict(zip(names, row, strict=True)), "nan_inf_detected": False} for row in rows]
    assert table.lines == b"".join(encode(record) + b"\n" for record in records)
    assert list(table.records()) == records
    (again,) = StepTable.from_records(records)
    assert (again.names, again.columns) == (table.names, table.columns)


ANY_ROWS = st.lists(st.tuples(st.floats(), st.floats(), st.integers(), st.booleans()), min_size=1, max_size=20)


@given(ANY_ROWS)
def test_table_of_any_floats_equals_single_encoding(rows):
    names = ("time", "train_loss", "global_step", "flag")
    table = StepTable.encode(names, list(zip(*rows, strict=True)))
    assert table is not None
    records = [
        {"event": "step", **dict(zip(names, row, strict=True)), "nan_inf_detected": not all(map(math.isfinite, row))}
        for row in rows
    ]
    assert table.lines == b"".join(encode(record) + b"\n" for record in records)
    assert all(map(same, table.records(), records))
    (again,) = StepTable.from_records(records)
    assert again.names == table.names and csv_of(again) == csv_of(table)
    assert csv_of(table).decode().splitlines() == [
        ",".join(csv_cell(row[name]) for name in table.names) for row in records
    ]


def test_table_keeps_the_flag_that_its_records_state():
    records = [{"event": "step", "time": 1.0, "x": math.nan, "nan_inf_detected": False}] * 2
    (table,) = StepTable.from_records(records)
    assert all(map(same, table.records(), records))
    assert csv_of(table) == b"1.0,NaN,false\n" * 2


@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), min_size=1, max_size=5))
def test_block_decodes_like_its_lines(fields):
    lines = [encode({**values, "event": "step"}) + b"\n" for values in fields]
    records = decode_block(b"".join(lines))
    assert records is not None
    assert all(map(same, records, map(decode, lines)))


def test_kind_is_always_a_text():
    line = b'{"event":"NaN","x":"NaN"}\n'
    for record in (decode(line), *(decode_block(line) or [])):
        assert record["event"] == "NaN"
        assert math.isnan(record["x"])


@pytest.mark.parametrize("value", [None, "text", [1], {"a": 1}, object(), np.array(1.0), np.datetime64("NaT")])
def test_table_rejects_values_that_are_not_plain_numbers(value):
    assert StepTable.encode(("time", "x"), [[1.0], [value]]) is None
    assert StepTable.encode(("time", "x"), [[1.0, 2.0], [0.5, value]]) is None


def test_table_accepts_numpy_scalars():
    table = StepTable.encode(("time", "x"), [[1.0], [np.float32(0.5)]])
    assert table is not None
    assert decode(table.lines)["x"] == 0.5
    table = StepTable.encode(("time", "x"), [[1.0], [np.float32("-inf")]])
    assert table is not None
    assert decode(table.lines) == {"event": "step", "time": 1.0, "x": -math.inf, "nan_inf_detected": True}
