"""The language that selects runs."""

from __future__ import annotations

import math
import random
import re
import string
import textwrap
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.catalog._pattern import PatternError, SafePattern
from tachograph.catalog._query import parse_query
from tachograph.catalog._syntax import (
    AllOf,
    AnyOf,
    Between,
    Comparison,
    Has,
    IsKind,
    NotOf,
    OneOf,
    QueryError,
    Word,
    print_query,
)
from tachograph.catalog._values import Value

NOW = 1_780_000_000.0
ROW = {
    "name": "gpt-small-lr3",
    "display_name": "Baseline, long warm-up",
    "state": "crashed",
    "tags": ["paper", "Ünïcode"],
    "note": "try a higher LR",
    "host": "node1",
    "steps": 12_000,
    "duration": 90.0,
    "started": NOW - 3 * 86_400,
    "config.lr": 1e-4,
    "config.lr_text": "0.0001",
    "config.use_amp": True,
    "config.optimizer": "adamw",
    "config.seed": "007",
    "git.dirty": False,
    "loss/kl.last": math.nan,
    "loss.max": math.inf,
    "loss.min": 0.25,
    "my metric.last": 3.0,
    "gpus": ["H200", "H200"],
    "empty": [],
}


def matches(text, row=ROW):
    return parse_query(text).matcher(NOW)(row)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "gpt",
        "GPT-Small",
        '"long warm"',
        "higher",
        "paper",
        "state:crashed tag:paper config.lr>=1e-4 loss.min<0.3 started>-14d (host:node1 or host:node2) -tag:debug",
        "steps<100 or duration<2m",
        "duration<2min",
        "duration > 1m",
        "steps=12k",
        "steps < 1M",
        "STEPS=1 or steps=12000",
        "`loss/kl`.last is nan",
        "loss/kl.last is nan",
        "`my metric`.last=3",
        "loss.max is inf",
        "loss.max > 1e300",
        "loss.min is not nan",
        "config.lr_text = 1e-4",
        "config.lr_text >= 0.0001",
        'config.lr = "0.0001"',
        "config.lr_text < config or name:gpt",
        "config.use_amp=true",
        "config.use_amp = True",
        "git.dirty=false",
        "git.dirty != true",
        "config.optimizer:ADAM",
        "config.optimizer=adamw",
        "config.optimizer != sgd",
        "config.optimizer in (sgd, adamw)",
        "steps in (1, 2, 12k)",
        "steps between 10k and 12k",
        "not steps between 1 and 2",
        "tag:PAPER",
        "tags:ünïcode",
        "tag != draft",
        "gpus:h200",
        "has(config.lr) -has(config.x)",
        "name~^gpt-.*lr\\d$",
        'name ~ "small|large"',
        'name~"(?i)GPT"',
        "started < -2d started > -4d",
        "started between -4d and -2d",
        "NOT state:running AND host:node",
        "-(state:running or state:finished)",
        "--gpt",
        "config.seed=7",
        'config.seed = "007"',
        "config.optimizer > adam",
    ],
)
def test_expression_matches(text):
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "-gpt",
        "state:crash",
        "tag:pape",
        "config.x = 3",
        "config.x != 3",
        "not config.x = 3",
        "-config.x:3",
        "has(config.x)",
        "`loss/kl`.last < 1",
        "`loss/kl`.last >= 1",
        "not `loss/kl`.last < 1",
        "`loss/kl`.last = nan",
        "loss.min is nan",
        "config.optimizer < 3",
        "not config.optimizer < 3",
        "config.use_amp > 0",
        "tag:debug",
        "tag=debug",
        "tag != paper",
        "empty:x",
        "empty is nan",
        "steps<100",
        "steps in (1, 2)",
        "config.x between 1 and 2",
        "name~^small",
        "started > -2d",
        "paper debug",
    ],
)
def test_expression_does_not_match(text):
    assert not matches(text)


def test_dates_mean_their_whole_period():
    noon = time.mktime((2026, 5, 1, 12, 0, 0, 0, 0, -1))
    row = {"started": noon}
    for text in (
        *("started=2026-05-01", "started>=2026-05-01", "started<=2026-05-01", "started>2026-04-30"),
        *("started=2026-05", "started<2026-06", "started<2026-05-01T12:01", "started=2026-05-01T12:00"),
    ):
        assert matches(text, row), text
    for text in (
        "started>2026-05-01",
        "started<2026-05-01",
        "started=2026-05-02",
        "started!=2026-05",
        "started>2026-05",
    ):
        assert not matches(text, row), text
    assert matches("started=1970-01-01T00:00:05Z", {"started": 5.0})
    assert matches("started=1970-01-01T01:00+01:00", {"started": 59.0})


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("steps >", 7, "expected a value after >"),
        ("(a or b", 7, "expected )"),
        ("a)", 1, "expected a space"),
        ("or a", 0, 'write "or"'),
        ("a or", 4, "expected a word or a field"),
        ("steps in 3", 9, "expected ("),
        ("steps in (3", 11, "expected , or )"),
        ("steps between 3", 15, "expected and"),
        ("steps is big", 9, "expected nan or inf"),
        ('name:"abc', 5, 'expected "'),
        ("`abc", 0, "expected `"),
        ("`abc`", 5, "expected a comparison"),
        ("has config.x", 4, "expected ("),
        ("1<steps<5", 7, "one field and one value"),
        ("started>3", 8, "expected a date"),
        ("started<2h", 8, "expected a date"),
        ("steps>-7d", 6, "means a time ago"),
        ("name~(a", 5, "quote a regular expression"),
        ('name~"(a"', 6, "missing )"),
        ('x name~"a{3}(?=b)"', 12, "only (…), (?:…) and flags such as (?i) are supported, not (?="),
        ('name~"ab[cd"', 8, "missing ]"),
        ('name~"ab**"', 8, "bad repetition operator: **"),
        ('name~"a\\1"', 7, "invalid escape sequence: \\1"),
        ('name~"ab{2000}"', 8, "invalid repetition size: {2000}"),
        ('name~"ab{,2}"', 8, "write {0,2} for {,2}"),
        ('name~"' + "a" * 501 + '"', 6, "at most 500 characters"),
        ("a" * 5000, 4000, "at most 4000"),
        ("(" * 100, 50, "too many nested"),
    ],
)
def test_error_names_place_and_expectation(text, position, expected):
    with pytest.raises(QueryError) as caught:
        parse_query(text)
    assert expected in str(caught.value)
    assert caught.value.position == position
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[2].strip() == "^"
    if position < len(text):
        assert lines[1][lines[2].index("^")] == text[position]


def test_unknown_fields_suggest_near_names():
    query = parse_query("config.learning_rat>1 lr=3 steps>1 has(nothing.like.it)")
    known = {"config.learning_rate", "config.lr", "steps", "host"}
    first, second = query.unknown_fields(known)
    assert "config.learning_rate" in str(first)
    assert first.position == 0
    assert "config.lr" in str(second)
    assert second.position == 22


names = st.text(st.sampled_from(string.ascii_letters + '._/ -`"~éß0'), min_size=1, max_size=8)
bare = st.from_regex(r"[A-Za-z0-9_./+-]{1,8}", fullmatch=True)
values = st.one_of(
    st.builds(Value, st.text(max_size=8), st.just(True)),
    st.builds(Value, st.sampled_from(["1", "-2.5", "1e-4", "10k", "2h", "true", "adam", "2026-05-01", "x:y=z"])),
)
FIELDS = names.filter(lambda name: name not in {"tag", "run", "step", "started", "ended", "updated"})
leaves = st.one_of(
    st.builds(Word, st.text(max_size=8)),
    st.builds(Comparison, FIELDS, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", ":"]), values),
    st.builds(Comparison, FIELDS, st.just("~"), st.builds(Value, bare.map(re.escape), st.just(True))),
    st.builds(Between, FIELDS, values, values),
    st.builds(OneOf, FIELDS, st.lists(values, min_size=1, max_size=3).map(tuple)),
    st.builds(IsKind, FIELDS, st.sampled_from(["nan", "inf"])),
    st.builds(Has, FIELDS),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(NotOf, inner),
        st.builds(AllOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


@given(trees)
def test_printed_expression_parses_to_same_tree(tree):
    assert parse_query(print_query(tree)).tree == tree


pieces = st.lists(
    st.one_of(
        st.sampled_from(
            ["(", ")", "and", "or", "not", "-", " ", "in", "has", "is", "nan", "between", '"', "`", ",", "~"]
        ),
        st.sampled_from(["=", "!=", "<=", ":", "tag", "started", "-7d", "2026-13-45", "1e999", "9" * 400, "[", "{2,}"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


@given(st.one_of(st.text(max_size=40), pieces))
@example("-" * 3000)
@example("not " * 900)
@example("started=9999-12-31")
@example("started=0001-01")
def test_any_text_parses_or_raises_a_query_error(text):
    try:
        query = parse_query(text)
    except QueryError as error:
        assert 0 <= error.position <= len(text)
        return
    assert parse_query(str(query)).tree == query.tree
    assert query.matcher(NOW)(ROW) in {True, False}


atoms = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "[ab]",
        "[^a]",
        "[a-c]",
        "\\d",
        "\\w",
        "\\s",
        "^",
        "$",
        "\\b",
        "(?:ab|c)",
        "(a|ab)",
        "(a*)",
        "\\.",
        "{",
    ]
)
patterns = st.lists(
    st.tuples(atoms, st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{,2}", "*?"])).map("".join),
    max_size=5,
).map("".join)


@given(patterns, st.text("abc1 .\n", max_size=12))
@example("(a|ab)(c|bcd)*$", "abcbcd")
def test_patterns_match_as_those_of_python(pattern, text):
    """Except that `$` matches only at the end, not before a last newline."""
    try:
        expected = re.compile(pattern.replace("$", "\\Z")).search(text) is not None
        safe = SafePattern(pattern)
    except (PatternError, re.error):
        return
    assert safe.matches(text) == expected


def processor_time_s(pattern: str, text: str) -> float:
    """Return the processor time of a search; of several tries the best counts, because noise only adds."""
    durations_s = []
    for _ in range(5):
        safe = SafePattern(pattern)
        started_s = time.thread_time()
        safe.matches(text)
        durations_s.append(time.thread_time() - started_s)
    return min(durations_s)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "^(a|a)*$", "(a|aa)+$", "a*a*a*a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)(.*)x$", "(x+x+)+y", "(a?){200}[^a!]"],
)
def test_evil_pattern_takes_little_longer_than_a_plain_one(pattern):
    """One that backtracks would take longer than the age of the universe."""
    text = "a" * 9_999 + "!"
    assert not SafePattern(pattern).matches(text)
    assert processor_time_s(pattern, text) < 1_000 * processor_time_s("[b-z]+c", text)


@pytest.mark.slow
def test_expensive_pattern_stops_with_an_error():
    """The worst patterns for RE2 take a tenth of a second for each long text, so a query of many stops early."""
    generator = random.Random(1)
    row = {"name": "".join(generator.choices("ab", k=10_000))}
    matcher = parse_query('name~"(a|b)*a(a|b){450}c"').matcher()
    started_s = time.thread_time()
    with pytest.raises(QueryError, match="takes too long") as caught:
        for _ in range(100_000):
            matcher(row)
    assert caught.value.position == 4
    assert time.thread_time() - started_s < 10


def test_pattern_searches_first_10_000_characters_of_any_text():
    assert SafePattern("b").matches("a" * 9_999 + "b")
    assert not SafePattern("b").matches("a" * 10_000 + "b")
    assert SafePattern("(?i)é.x").matches("É\u4e2dX")
    assert SafePattern("x$").matches("not UTF-8: \udcff x")


def test_pattern_library_is_imported_on_first_use(script):
    source = """
        import sys
        import tachograph, tachograph.catalog, tachograph.cli._main
        from tachograph.catalog._query import parse_query
        parse_query("state:crashed")
        assert "re2" not in sys.modules
        parse_query("name~x")
        assert "re2" in sys.modules
    """
    script(textwrap.dedent(source)).ok()


@given(st.text(max_size=20))
def test_any_pattern_compiles_or_raises_a_pattern_error(pattern):
    try:
        safe = SafePattern(pattern)
    except PatternError as error:
        assert 0 <= error.offset <= len(pattern)
        return
    safe.matches("some text")
