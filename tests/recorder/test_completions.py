"""`Completions`: a bounded buffer, one record every N steps, and every dropped sample counted."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path

import pytest

import tachograph
from tachograph import Completions
from tachograph.exceptions import ConfigError, NoRunError
from tachograph.records import LazyValue
from tests.conftest import HANG_S, lines_of

OPTIONS = {"console": False, "system_interval_s": 0, "git": False}
MAX_CHARS = 8_000


@pytest.fixture
def run(logs: Path):
    run = tachograph.init("run", log_dir=str(logs), **OPTIONS)
    yield run
    run.finish()


def recorded(run) -> list[dict]:
    run.finish()
    return [record for record in lines_of(run.folder.path) if record["event"] == "completions"]


def test_record_every_n_steps_and_rest_on_exit(run):
    with Completions(run, every=10) as completions:
        flushed = []
        for step in range(1, 26):
            completions.add(step, prompt="2 + 3", completion=str(step), reward=0.5)
            if completions.maybe_flush(step):
                flushed.append(step)
        assert flushed == [10, 20]
        assert len(completions) == 5
        assert not completions.maybe_flush(29)
    assert len(completions) == 0
    records = recorded(run)
    assert [(record["global_step"], len(record["rows"])) for record in records] == [(10, 10), (20, 10), (25, 5)]
    assert records[0]["rows"][0] == {"step": 1, "prompt": "2 + 3", "completion": "1", "reward": 0.5}
    assert records[0].keys() == {"event", "time", "global_step", "table", "columns", "rows"}
    assert records[0]["table"] == "completions"


@pytest.mark.parametrize("source", ["argument", "environment", "config"])
def test_setting_turns_completions_off(logs, monkeypatch, source):
    config = {"name": "run", "telemetry": {"completions": False}} if source == "config" else {"name": "run"}
    if source == "environment":
        monkeypatch.setenv("TACHO_COMPLETIONS", "off")
    more = {"completions": False} if source == "argument" else {}
    with tachograph.init_from_config(config, log_dir=str(logs), **more, **OPTIONS) as run:
        with Completions(run, every=1) as completions:
            completions.add(1, prompt="a private question", completion="a private answer")
            assert len(completions) == 0 and not completions.is_recording
            assert not completions.maybe_flush(1)
        run.log_completions([{"prompt": "a private question"}], step=1, table="probes")
    assert recorded(run) == []
    assert "private" not in run.folder.journal.read_text()


def test_settings_are_the_defaults_of_the_buffer(logs, monkeypatch):
    monkeypatch.setenv("TACHO_COMPLETIONS_EVERY", "5")
    with tachograph.init("run", log_dir=str(logs), completions_buffer=3, **OPTIONS) as run:
        assert (Completions(run).every, Completions(run).max_buffer) == (5, 3)
        assert (Completions(run, every=7).every, Completions(run, max_buffer=9).max_buffer) == (7, 9)


def test_columns_are_union_of_rows_with_step_first(run):
    completions = Completions(run)
    completions.add(1, prompt="a", completion="b", reward=1.0)
    completions.add(2, prompt="a", chosen="c", rejected="d", margin=0.25, reward=None)
    completions.add(3, completion="e", length=7)
    completions.flush()
    (record,) = recorded(run)
    assert record["columns"] == ["step", "prompt", "completion", "reward", "chosen", "rejected", "margin", "length"]
    assert [row.keys() for row in record["rows"]] == [
        {"step", "prompt", "completion", "reward"},
        {"step", "prompt", "chosen", "rejected", "margin"},
        {"step", "completion", "length"},
    ]


def test_full_buffer_drops_oldest_and_counts(run):
    completions = Completions(run, max_buffer=3)
    for step in range(10):
        completions.add(step, completion=str(step))
    assert len(completions) == 3
    assert repr(completions) == "Completions('completions', 3 of 3 buffered, every 100 steps)"
    assert completions.flush()
    completions.add(11, completion="later")
    assert completions.flush()
    assert not completions.flush()
    first, second = recorded(run)
    assert ([row["step"] for row in first["rows"]], first["num_dropped"]) == ([7, 8, 9], 7)
    assert "num_dropped" not in second


@pytest.mark.parametrize(
    ("steps", "flushed"),
    [
        (range(31), [10, 20, 30]),
        (range(1_005, 1_025), [1_010, 1_020]),  # resumed: the interval stays aligned
        ([3, 4, 40, 41, 49, 50], [40, 50]),  # skipped steps
        ([*range(1, 13), *range(1, 13)], [10, 10]),  # restarted from step 1
    ],
    ids=["from 0", "resumed", "gaps", "again"],
)
def test_flush_interval(run, steps, flushed):
    completions = Completions(run, every=10)
    found = []
    for step in steps:
        completions.add(step, completion="x")
        found += [step] if completions.maybe_flush(step) else []
    assert found == flushed
    completions.flush()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0"),
        ({"every": 2.5}, "every=2.5"),
        ({"every": True}, "every=True"),
        ({"max_buffer": 0}, "max_buffer=0"),
        ({"max_buffer": -1}, "at least 1"),
        ({"table": ""}, "table='': expected a name"),
    ],
)
def test_invalid_options_raise(run, options, words):
    with pytest.raises(ConfigError, match=words):
        Completions(run, **options)


def test_default_is_current_run(run):
    completions = Completions()
    assert completions.run is run
    run.finish()
    with pytest.raises(NoRunError):
        Completions()


def test_long_texts_are_cut_and_marked(run):
    completions = Completions(run)
    completions.add(1, prompt="x" * 20_000, completion="y" * MAX_CHARS, note="é" * 100_000, values=list(range(5_000)))
    completions.flush()
    (record,) = recorded(run)
    (row,) = record["rows"]
    assert row["prompt"] == "x" * MAX_CHARS + "… [cut, 20000 characters]"
    assert row["completion"] == "y" * MAX_CHARS
    assert row["note"] == "é" * MAX_CHARS + "… [cut, 100000 characters]"
    assert row["values"].startswith("[0,1,2,")
    assert len(row["values"]) < MAX_CHARS + 100


def test_large_record_keeps_newest_rows(run):
    completions = Completions(run, max_buffer=500)
    for step in range(500):
        completions.add(step, prompt="p" * 7_000, completion="ü" * 1_000)
    completions.flush()
    (record,) = recorded(run)
    size = (run.folder.journal).read_text(encoding="utf-8").splitlines()
    assert 800_000 < max(len(line.encode()) for line in size) < 1_100_000
    assert record["rows"][-1]["step"] == 499
    assert len(record["rows"]) + record["num_dropped"] == 500


def test_number_of_cells_is_bounded(run):
    run.log_completions([{f"name{index}": "x" * 5_000 for index in range(5_000)}], step=1)
    run.finish()
    (record,) = recorded(run)
    (row,) = record["rows"]
    assert len(row) == 201
    assert sum(len(value) for value in row.values() if isinstance(value, str)) < 250_000
    errors = [record for record in lines_of(run.folder.path) if record["event"] == "telemetry_error"]
    assert ["more than 200 cells" in error["reason"] for error in errors] == [True]


def test_conversations_become_text(run):
    completions = Completions(run)
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
    ]
    call = [{"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}]
    completions.add(1, prompt=prompt, completion=[{"role": "assistant", "content": "A truck."}], chosen=call)
    completions.flush()
    (row,) = recorded(run)[0]["rows"]
    assert row["prompt"] == "system: Be brief.\nuser: [image]What is it?"
    assert row["completion"] == "A truck."
    assert row["chosen"] == "assistant: [calls [{'name': 'look'}]]"


def test_supported_value_types(run):
    numpy = pytest.importorskip("numpy")
    values = numpy.array([0.5, 0.25])
    completions = Completions(run)
    completions.add(
        numpy.int64(4),
        completion="x",
        reward=values[0],
        advantage=math.nan,
        high=math.inf,
        later=LazyValue(lambda: 7),
        nested={"a": 1, "b": {"c": True}},
        odd=object(),
    )
    completions.add(5, completion="y", odd=object())
    values[:] = 9
    completions.flush()
    (record,) = recorded(run)
    assert record["rows"][0] == {
        "step": 4,
        "completion": "x",
        "reward": 0.5,
        "advantage": "NaN",
        "high": "Infinity",
        "later": 7,
        "nested/a": 1,
        "nested/b/c": True,
    }
    assert "odd" not in record["columns"]
    errors = [record for record in lines_of(run.folder.path) if record["event"] == "telemetry_error"]
    assert [error["field"] for error in errors] == ["odd"]  # once, not for every row


def test_tensors_are_copied_when_added(run):
    torch = pytest.importorskip("torch")
    reward = torch.tensor(0.5, requires_grad=True)
    completions = Completions(run)
    completions.add(torch.tensor(3), completion="x", reward=reward)
    with torch.no_grad():
        reward.fill_(9.0)
    completions.flush()
    assert recorded(run)[0]["rows"] == [{"step": 3, "completion": "x", "reward": 0.5}]


def test_secrets_are_masked(run):
    token = "hf_" + "a1B2" * 8
    completions = Completions(run)
    completions.add(1, prompt=f"my token is {token}", completion="password=hunter22 please", api_key="abcdef")
    completions.flush()
    recorded(run)
    text = run.folder.journal.read_text(encoding="utf-8")
    assert token not in text
    assert "hunter22" not in text
    assert "abcdef" not in text


def test_log_completions_records_immediately(run):
    run.log_completions([{"prompt": "a"}, {"step": 3, "prompt": "b"}], step=7, table="probes")
    run.log_completions([])
    run.log_completions([{"prompt": "no step"}])
    first, second = recorded(run)
    assert (first["table"], first["rows"]) == ("probes", [{"step": 7, "prompt": "a"}, {"step": 3, "prompt": "b"}])
    assert second["rows"] == [{"prompt": "no step"}]
    assert "global_step" not in second
    assert second["columns"] == ["prompt"]


@pytest.mark.expects_faults
def test_invalid_input_never_raises_in_loop(run):
    completions = Completions(run)
    completions.add("not a step", completion="x")
    completions.add(1, completion="y")
    assert completions.maybe_flush(object()) is False
    run.log_completions([1, 2, 3])
    assert len(completions) == 1
    completions.flush()


def test_disabled_run_keeps_nothing(logs):
    with tachograph.init("off", log_dir=str(logs), enabled=False, **OPTIONS) as run:
        completions = Completions(run)
        completions.add(1, completion="x")
        assert (len(completions), completions.is_recording) == (0, False)
        assert not completions.flush()
        run.log_completions([{"a": 1}])
    assert not (logs / "off").exists()


def test_other_ranks_keep_nothing(logs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with tachograph.init("job", log_dir=str(logs), **OPTIONS) as run:
        completions = Completions(run)
        completions.add(1, completion="x")
        run.log_completions([{"completion": "x"}])
        assert (len(completions), completions.is_recording) == (0, False)
    assert not any("completions" in path.read_text() for path in logs.rglob("*.jsonl"))


def test_read_completions_from_journal(run, logs):
    completions = Completions(run)
    completions.add(1, completion="x", reward=math.nan)
    completions.flush()
    run.log_completions([{"completion": "y"}], step=2, table="probes")
    run.finish()
    history = tachograph.read(logs / "run")
    assert [row["step"] for row in history.completions()] == [1, 2]
    assert math.isnan(history.completions()[0]["reward"])
    assert history.completions("probes") == [{"step": 2, "completion": "y"}]
    assert history.completions("nothing") == []
    assert history.counts["completions"] == 2
    assert history.latest("completions") == []  # they are not kept in memory


def test_csv_omits_the_samples(run, monkeypatch):
    monkeypatch.setattr("tachograph.recorder._writer._LAST_CATCH_UP_S", HANG_S)
    run.log(train_loss=1.0, step=0)
    run.log_completions([{"prompt": "p" * 7_000, "completion": "line\nbreak"} for _ in range(50)], step=1)
    run.finish()
    with open(run.folder.csv, newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = [row for row in rows if row["event"] == "completions"]
    assert (row["global_step"], row["table"]) == ("1", "completions")
    assert "rows" not in row
    before = run.folder.csv.read_bytes()
    run.folder.csv.unlink()
    from tachograph.journal import rebuild_csv

    rebuild_csv(run.folder)
    assert sorted(run.folder.csv.read_bytes().splitlines()) == sorted(before.splitlines())


def test_killed_process_leaves_whole_records(logs, script):
    done = script(
        """
        import os, sys, tachograph
        run = tachograph.init("run", log_dir=sys.argv[1], console=False, git=False)
        completions = tachograph.Completions(run, every=1)
        for step in range(20):
            completions.add(step, completion="x" * 5_000)
            completions.maybe_flush(step)
        run.flush()
        os._exit(9)
        """,
        logs,
    )
    assert done.wait()[0] == 9
    assert len(tachograph.read(logs / "run").completions()) == 20


@pytest.mark.parametrize("piece", ["sk-", "-eyJ", "https://a"])
def test_hostile_completions_lose_no_records(run, piece):
    """Masking them used to hold the interpreter lock for a minute."""
    hostile = (piece * 8_000)[:MAX_CHARS]
    for step in range(200):
        run.log({"train_loss": 1 / (step + 1)}, step=step)
        if step == 20:
            run.log_completions([{"prompt": "2 + 3 =", "completion": hostile} for _ in range(32)], step=step)
        time.sleep(0.001)
    run.finish(timeout_s=60)
    records = lines_of(run.folder.path)
    assert [record["global_step"] for record in records if record["event"] == "step"] == list(range(200))
    (completions,) = (record for record in records if record["event"] == "completions")
    assert [row["completion"] for row in completions["rows"]] == [hostile] * 32
    assert [record for record in records if record["event"] == "telemetry_error"] == []


def test_masking_of_a_record_has_a_budget(run):
    secret = "hf_" + "Ab3" * 12
    rows = [{"completion": "a=1 " * 2_000} for _ in range(120)]
    run.log_completions([*rows, {"completion": f"{secret} " * 200}], step=1)
    run.log({"train_loss": 1.0}, step=2)
    (record,) = recorded(run)
    texts = [row["completion"] for row in record["rows"]]
    assert texts[0] == rows[0]["completion"]
    assert texts[-2].endswith("… [cut, 8000 characters]")
    assert secret not in str(texts)
    assert any(one.get("global_step") == 2 for one in lines_of(run.folder.path))
