"""Property tests: for any sequence of span calls, killed at any record, the journal holds a valid span tree.

Times must add up as well: no second is counted twice in windows or in goodput.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tachograph
from tachograph.reader import RunHistory
from tachograph.records import encode
from tachograph.spans import (
    ExportCustomizationMode,
    SpanScope,
    backward,
    checkpoint_save,
    data_loading,
    forward,
    recorder_of,
    set_training_config,
    timed_span,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from tachograph.spans._span import current_span
from tachograph.testing import MemoryRun

SCOPE_FACTORIES = {
    "app": lambda run: tachograph.application(run=run),
    "loop": lambda run: training_loop(run=run),
    "iteration": lambda run: training_iteration(),
    "data": lambda run: data_loading(),
    "forward": lambda run: forward(),
    "backward": lambda run: backward(),
    "validation": lambda run: validation_loop(),
    "validation_iteration": lambda run: validation_iteration(),
    "checkpoint": lambda run: checkpoint_save(),
    "mine": lambda run: timed_span("mine", run=run),
}

TICKS = st.sampled_from([0.0, 0.125, 0.5, 1.0, 4.0, 30.0])
ACTIONS = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(sorted(SCOPE_FACTORIES))),
    st.tuples(st.just("exit"), st.integers(0, 6)),  # how many levels further out than the innermost span
    st.tuples(st.just("raise"), st.just(0)),
    st.tuples(st.just("tick"), TICKS),
    st.tuples(st.just("log"), st.just(0)),
    st.tuples(st.just("drain"), st.just(0)),
)
ITERATION = st.lists(st.sampled_from(["data", "forward", "backward", "mine", "checkpoint"]), max_size=4).flatmap(
    lambda kinds: st.tuples(*(st.tuples(st.just(kind), TICKS) for kind in kinds))
)
WHOLE_ITERATION = st.tuples(st.just("iterate"), st.tuples(TICKS, ITERATION))
PROGRAMS = st.lists(st.one_of(ACTIONS, WHOLE_ITERATION, WHOLE_ITERATION), min_size=12, max_size=60)


def execute(program: list[tuple[str, Any]], *, exports_all: bool, every: int | None, finishes: bool) -> list[dict]:
    """Execute a program in an in-memory run and return the records."""
    current_span.set(None)
    run = MemoryRun()
    recorder = recorder_of(run)
    if exports_all:
        recorder.customize_export(ExportCustomizationMode.EXPORT_ALL_SPANS)
    if every:
        set_training_config(run=run, log_every_n_train_iterations=every)
    entered: list[SpanScope] = []
    with timed_span("root", run=run):  # makes all following spans belong to this run
        for action, value in program:
            if action == "enter":
                entered.append(SCOPE_FACTORIES[value](run))
                entered[-1].__enter__()
            elif action == "exit" and len(entered) > value:
                entered.pop(-1 - value).__exit__(None, None, None)
            elif action == "raise" and entered:
                error = ValueError("as planned")
                entered.pop().__exit__(ValueError, error, None)
            elif action == "iterate":
                iterate(run, *value)
            elif action == "tick":
                run.clock.advance(value)
            elif action == "log":
                run.log(train_loss=1.0)
            elif action == "drain":
                assert run.records is not None
        if finishes:
            run.finish()
    current_span.set(None)  # the program may leave a span open, which would be the parent of spans in other tests
    return list(run.records)


def iterate(run: MemoryRun, seconds: float, phases: tuple[tuple[str, float], ...]) -> None:
    """Execute a typical iteration with the given phases."""
    with training_iteration():
        for kind, phase_s in phases:
            with SCOPE_FACTORIES[kind](run):
                run.clock.advance(phase_s)
        run.clock.advance(seconds)


def read(records: list[dict]) -> RunHistory:
    """Write the records to a journal on disk and read it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "x"
        run.mkdir()
        start = {"event": "start", "time": 1_700_000_000.0, "run_name": "x", "run_id": "0" * 16}
        (run / "metrics.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in [start, *records]))
        history = tachograph.read(run)
        history.loaded_spans = history.spans()  # before the file is removed
        return history


def check_tree(history: RunHistory, records: list[dict]) -> None:
    """Check that the spans form a tree and that events refer to recorded spans."""
    spans = history.loaded_spans
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans), "duplicate span id"
    assert set(by_id) == {record["span_id"] for record in records if record["event"].startswith("span")}
    for span in spans:
        assert span.duration_s is None or span.duration_s >= 0
        seen = set()
        parent = span
        while parent.parent_id is not None:
            assert parent.id not in seen, "cycle of parents"
            seen.add(parent.id)
            assert parent.parent_id in by_id, "unknown parent"
            assert by_id[parent.parent_id].start <= parent.start
            parent = by_id[parent.parent_id]
    for record in records:
        if record["event"] in {"event", "error"} and "span_id" in record:
            assert record["span_id"] in by_id
    groups = list(history.span_groups.values())
    num_spans = 0
    while groups:
        group = groups.pop()
        num_spans += group.count + group.num_open
        groups += group.children.values()
    assert num_spans == len(spans)


def check_times(history: RunHistory, records: list[dict]) -> None:
    """Check that window shares and goodput add up to the elapsed time."""
    windows = [record for record in records if record["event"] == "step" and "window/sec" in record]
    for record in windows:
        shares = {name: value for name, value in record.items() if name.startswith("window/share_")}
        assert all(0 <= share <= 1 + 1e-9 for share in shares.values()), shares
        assert math.isclose(sum(shares.values()), 1.0, abs_tol=1e-9) or record["window/sec"] == 0
        if record["window/iterations"]:
            assert record["window/iteration_sec_min"] <= record["window/iteration_sec_p50"]
            assert record["window/iteration_sec_p95"] <= record["window/iteration_sec_max"]
    wall_s = max((record["time"] for record in records), default=1_700_000_000.0) - 1_700_000_000.0
    assert sum(record["window/sec"] for record in windows) <= wall_s + 1e-6
    goodput = history.goodput
    assert goodput is not None or not windows  # a checkpoint may report iterations before their window does
    if goodput is not None:
        parts = [getattr(goodput, name) for name in goodput.__struct_fields__ if name != "wall_s"]
        assert all(part >= 0 for part in parts)
        assert math.isclose(sum(parts), goodput.wall_s, abs_tol=1e-6)
        assert math.isclose(goodput.wall_s, wall_s, abs_tol=1e-6)


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(
    program=PROGRAMS,
    exports_all=st.booleans(),
    every=st.sampled_from([None, 1, 3]),
    finishes=st.booleans(),
    killed_at=st.one_of(st.none(), st.integers(0, 80)),
)
def test_any_program_records_a_valid_tree(program, exports_all, every, finishes, killed_at):
    records = execute(program, exports_all=exports_all, every=every, finishes=finishes)
    if killed_at is not None:
        records = records[:killed_at]  # a killed process leaves a prefix of the records
    history = read(records)
    check_tree(history, records)
    check_times(history, records)


@given(programs=st.lists(st.tuples(PROGRAMS, st.integers(0, 80)), min_size=2, max_size=4))
def test_killed_attempts_are_kept_apart(programs):
    journal: list[dict] = []
    offset_s = 0.0
    for index, (program, killed_at) in enumerate(programs):
        records = execute(program, exports_all=False, every=2, finishes=False)[:killed_at]
        if index:
            journal.append({"event": "start", "time": 1_700_000_000.0 + offset_s, "run_id": "0" * 16})
        for record in records:
            shifted = {**record, "time": record["time"] + offset_s}
            for field in ("span_id", "parent_id"):
                if field in shifted:
                    shifted[field] = f"{index}{shifted[field][1:]}"  # real attempts use distinct ids
            journal.append(shifted)
        offset_s = max((record["time"] for record in journal), default=1_700_000_000.0) - 1_700_000_000.0 + 60
    history = read(journal)
    check_tree(history, journal)
    goodput = history.goodput
    if goodput is not None:
        parts = [getattr(goodput, name) for name in goodput.__struct_fields__ if name != "wall_s"]
        assert math.isclose(sum(parts), goodput.wall_s, abs_tol=1e-6)
        assert goodput.productive_s <= goodput.wall_s
