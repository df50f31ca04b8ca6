"""The `Run` API that a training loop calls, tested on an in-memory run."""

from __future__ import annotations

import cProfile
import gc
import logging
import math
import os

import numpy as np
import pytest

import tachograph
from tachograph._base.clock import WallAnchor
from tachograph.diagnostics import resolve_rules
from tachograph.exceptions import ControlError, NoRunError
from tachograph.journal import CsvMirror, RunFolder
from tachograph.recorder import ObservedStep
from tachograph.recorder._live_diagnostics import LiveDiagnostics
from tachograph.recorder._record_builder import RecordBuilder
from tachograph.records import StepTable, decode, decode_block, encode
from tachograph.testing import FakeClock, MemoryRun
from tests.conftest import lines_of


def steps(run: MemoryRun) -> list[dict]:
    """Return the step records of a run."""
    return [record for record in run.records if record["event"] == "step"]


def test_log_calls_produce_exact_records():
    run = MemoryRun("greyjacket")
    for step in range(3):
        run.log({"train_loss": 1.0 / (step + 1), "lr": 0.001}, step=step)
        run.clock.advance(0.5)
    run.log_epoch(1, {"val_loss": 0.7})
    run.log_validation({"loss": 0.7, "val_accuracy": 0.9}, step=2)
    run.log_checkpoint("out/model.safetensors", step=2, is_best=True)
    run.event("curriculum_switch", stage=2)
    run.finish()
    t0 = 1_700_000_000.0
    assert run.records == [
        {"event": "step", "time": t0, "global_step": 0, "train_loss": 1.0, "lr": 0.001, "nan_inf_detected": False},
        {"event": "step", "time": t0 + 0.5, "global_step": 1, "train_loss": 0.5, "lr": 0.001, "sec_per_step": 0.5,
         "nan_inf_detected": False},
        {"event": "step", "time": t0 + 1.0, "global_step": 2, "train_loss": 1 / 3, "lr": 0.001, "sec_per_step": 0.5,
         "nan_inf_detected": False},
        {"event": "epoch", "time": t0 + 1.5, "epoch": 1, "val_loss": 0.7},
        {"event": "validation", "time": t0 + 1.5, "global_step": 2, "val_loss": 0.7, "val_accuracy": 0.9},
        {"event": "checkpoint", "time": t0 + 1.5, "checkpoint_path": "out/model.safetensors", "is_best": True,
         "size_bytes": None, "modified": None, "global_step": 2},
        {"event": "event", "time": t0 + 1.5, "name": "curriculum_switch", "stage": 2},
        {"event": "end", "time": t0 + 1.5, "status": "finished"},
    ]  # fmt: skip


def test_log_merges_dict_and_keywords():
    run = MemoryRun()
    run.log(train_loss=0.5, step=1)
    run.log({"a": 1}, b=2, step=2)
    assert [step["global_step"] for step in steps(run)] == [1, 2]
    assert (steps(run)[1]["a"], steps(run)[1]["b"]) == (1, 2)


def test_log_without_step_counts_from_zero():
    run = MemoryRun()
    for value in (1.0, 2.0, 3.0):
        run.log(a=value)
    assert [step["global_step"] for step in steps(run)] == [0, 1, 2]


def test_log_without_step_uses_last_explicit_step():
    run = MemoryRun()
    run.log(a=1.0, step=7)
    run.log(b=2.0)
    run.log({"c": 3.0, "global_step": 9})
    assert [step["global_step"] for step in steps(run)] == [7, 7, 9]


def test_reused_dict_does_not_change_logged_values():
    run = MemoryRun()
    metrics = {"loss": 1.0}
    run.log(metrics, step=0)
    metrics["loss"] = 2.0
    run.log(metrics, step=1)
    assert [step["loss"] for step in steps(run)] == [1.0, 2.0]


def test_in_place_change_does_not_alter_logged_values():
    run = MemoryRun()
    total = np.zeros(())
    for step in range(100):
        total += 1
        run.log({"total": total, "nested": {"list": [step]}}, step=step)
    assert [step["total"] for step in steps(run)] == [float(number) for number in range(1, 101)]


def test_array_first_seen_on_fast_path_is_dropped(tmp_path):
    """The fast path queues values by reference, so an array in it may have changed since and is dropped."""
    total = np.zeros(())
    with tachograph.init("x", log_dir=str(tmp_path), console=False, system_interval_s=0) as run:
        for step in range(200):
            run.log(plain=1.0, step=step)
        run.flush()
        for step in range(200, 400):
            total += 1
            run.log({"total": total, "plain": 1.0}, step=step)
            if step == 300:
                run.flush()
    history = tachograph.read(tmp_path / "x")
    series = history.series("total")
    assert series.values.tolist() == [float(step - 199) for step in series.steps]
    assert series.steps.tolist() == list(range(301, 400))
    assert history.counts["step"] == 400
    assert [record["field"] for record in history.latest("telemetry_error")] == ["total"]


def test_log_keeps_no_reference_to_tensor():
    """A reference would keep the tensor's memory allocated until the record is written."""

    class Tensor:
        dtype, shape, device = "float32", (), None

        def item(self) -> float:
            return 0.5

    run = MemoryRun()
    tensor = Tensor()
    run.log({"loss": tensor}, step=0)
    holders = [holder for holder in gc.get_referrers(tensor) if isinstance(holder, dict) and "loss" in holder]
    assert holders == []
    assert steps(run)[0]["loss"] == 0.5


def test_log_does_not_synchronise_cuda_tensor():
    """`item` waits for the device, so only the writer may call it."""

    class Device:
        type = "cuda"

    class CudaTensor:
        dtype, shape, device = "float32", (), Device()
        num_reads = 0

        def detach(self) -> CudaTensor:
            return self

        def clone(self) -> CudaTensor:
            return self

        def item(self) -> float:
            CudaTensor.num_reads += 1
            return 0.5

    run = MemoryRun()
    run.log({"loss": CudaTensor()}, step=0)
    assert CudaTensor.num_reads == 0
    assert steps(run)[0]["loss"] == 0.5


def test_bad_value_is_dropped_and_reported_once():
    run = MemoryRun()
    for step in range(3):
        run.log({"loss": 0.5, "thing": object()}, step=step)
    assert [step["loss"] for step in steps(run)] == [0.5] * 3
    errors = [record for record in run.records if record["event"] == "telemetry_error"]
    assert [(error["kind"], error["field"]) for error in errors] == [("value_not_stored", "thing")]


def test_reserved_metric_names_get_suffix():
    run = MemoryRun()
    run.log({"event": "mine", "time": 5, "loss": 1.0}, step=3)
    record = steps(run)[0]
    assert (record["event_"], record["time_"], record["loss"]) == ("mine", 5, 1.0)


def test_logged_metric_overrides_computed_field():
    """Values that the loop measures take precedence over those of the recorder."""
    run = MemoryRun()
    for step in range(3):
        run.log({"sec_per_step": 9.0, "nan_inf_detected": True}, step=step)
        run.clock.advance(1)
    assert [step["sec_per_step"] for step in steps(run)] == [9.0] * 3
    assert all(step["nan_inf_detected"] for step in steps(run))


@pytest.mark.parametrize("bad", [0.5, "loss", [1, 2], None, 7])
def test_log_of_non_dict_costs_one_record(bad):
    run = MemoryRun()
    run.log(bad, step=1)  # type: ignore[arg-type]
    run.log(a=1.0, step=2)
    assert [step["global_step"] for step in steps(run)] == [2]
    lost = [record for record in run.records if record.get("kind") == "records_lost"]
    assert lost[0]["num_records"] == 1
    assert "expects a dict" in lost[0]["reason"]


def test_bad_step_does_not_stop_step_counter():
    run = MemoryRun()
    for step in (None, "e1", None, 2.7, None):
        run.log(a=1.0, step=step)
    assert [step["global_step"] for step in steps(run)] == [0, 1, 2, 3, 4]


def test_reserved_event_and_epoch_fields_get_suffix():
    run = MemoryRun()
    run.event("real", name="other")
    run.log_epoch(1, {"epoch": 5})
    assert (run.records[0]["name"], run.records[0]["name_"]) == ("real", "other")
    assert (run.records[1]["epoch"], run.records[1]["epoch_"]) == (1, 5)


def test_log_of_recursive_dict_terminates():
    endless: dict = {}
    endless["a"] = endless["b"] = endless
    run = MemoryRun()
    run.log({"x": endless, "loss": 0.5}, step=0)
    assert steps(run)[0]["loss"] == 0.5


def test_values_that_raise_are_dropped_alone():
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __str__(self):
            raise RuntimeError("no")

        __hash__ = object.__hash__

    run = MemoryRun()
    run.log({"bad": Hostile(), Hostile(): 1.0, "long": np.longdouble(0.5), "loss": 0.25}, step=0)
    assert (steps(run)[0]["loss"], steps(run)[0]["long"]) == (0.25, 0.5)


def test_logged_secrets_are_masked():
    run = MemoryRun()
    run.log({"hf_token": "opaque", "loss": 0.5}, step=0)
    run.event("login", api_key="opaque", user={"password": 12345678})
    assert "opaque" not in str(run.records)
    assert "12345678" not in str(run.records)


@pytest.mark.parametrize("step", ["seven", object(), math.nan, [1]])
def test_invalid_step_is_reported(step):
    run = MemoryRun()
    run.log({"a": 1.0}, step=step)
    assert steps(run)[0]["a"] == 1.0
    assert any(record.get("field") == "global_step" for record in run.records)


@pytest.mark.parametrize("step", [np.int64(5), np.array(5), 5.0, "5"])
def test_numeric_step_is_converted(step):
    run = MemoryRun()
    run.log({"a": 1.0}, step=step)
    assert steps(run)[0]["global_step"] == 5


def test_non_finite_values_are_kept_and_flagged():
    run = MemoryRun()
    run.log(train_loss=1.0, step=0)
    run.clock.advance(1)
    run.log(train_loss=math.nan, grad_norm=math.inf, step=1)
    record = steps(run)[1]
    assert math.isnan(record["train_loss"])
    assert record["grad_norm"] == math.inf
    assert record["nan_inf_detected"] is True
    assert steps(run)[0]["nan_inf_detected"] is False


def test_log_after_finish_warns_once(caplog):
    run = MemoryRun()
    run.finish()
    num_records = len(run.records)
    with caplog.at_level(logging.WARNING, "tachograph"):
        run.log(a=1.0)
        run.log_epoch(1)
        assert run.finish() is True
    assert len(run.records) == num_records
    assert len(caplog.records) == 1
    assert "has finished" in caplog.text


def test_exception_in_run_is_recorded_and_propagates():
    run = MemoryRun()
    with pytest.raises(ZeroDivisionError), run:
        run.log(a=1.0)
        1 / 0  # noqa: B018
    error, end = run.records[-2:]
    assert (error["event"], error["error_type"], error["fatal"]) == ("error", "ZeroDivisionError", True)
    assert "1 / 0" in error["traceback"]
    assert (end["status"], end["reason"]) == ("failed", "ZeroDivisionError")


@pytest.mark.parametrize(("code", "status"), [(0, "finished"), (None, "finished"), (3, "failed")])
def test_exit_code_sets_end_status(code, status):
    run = MemoryRun()
    with pytest.raises(SystemExit), run:
        raise SystemExit(code)
    assert run.records[-1]["status"] == status


def test_secret_in_error_message_is_masked():
    run = MemoryRun()
    secret = "hf_" + "x" * 30
    with pytest.raises(RuntimeError), run:
        raise RuntimeError(f"401 for {secret}")
    assert secret not in str(run.records)


def test_rows_beside_the_loop_have_and_change_no_pace():
    run = MemoryRun()
    for step in range(3):
        run.clock.advance(0.75)
        run.log({"accuracy": 0.5}, ObservedStep(step))  # in the midst of the step
        run.clock.advance(0.25)
        run.log({"loss": 0.5}, step)
    run.finish()
    records = [(record["global_step"], "loss" in record, record.get("sec_per_step")) for record in steps(run)]
    assert records == [
        (0, False, None),
        (0, True, None),
        (1, False, None),
        (1, True, 1.0),
        (2, False, None),
        (2, True, 1.0),
    ]


def test_wall_clock_jump_does_not_affect_sec_per_step():
    """Durations come from the steady clock."""
    run = MemoryRun()
    run.log(a=1.0, step=0)
    run.clock.advance(1)
    run.clock.set_wall(run.clock.wall_s() - 3600)
    run.log(a=1.0, step=1)
    run.clock.advance(1)
    run.log(a=1.0, step=2)
    assert [step.get("sec_per_step") for step in steps(run)] == [None, 1.0, 1.0]


def test_module_level_log_uses_current_run(tacho_run):
    tachograph.log({"loss": 1.0}, step=4)
    tachograph.log(loss=2.0, step=5)
    assert tachograph.current_run() is tacho_run
    assert [step["loss"] for step in steps(tacho_run)] == [1.0, 2.0]
    tacho_run.finish()
    tachograph.log(loss=3.0)  # logging after the end does not raise
    with pytest.raises(NoRunError, match=r"tachograph\.init"):
        tachograph.current_run()


def test_disabled_run_ignores_all_calls(tmp_path, capsys):
    with tachograph.init("x", enabled=False, log_dir=str(tmp_path / "logs")) as run:
        run.log({"loss": object()}, step=1)
        run.log_epoch(1, {})
        run.log_checkpoint("x")
        assert not run.should_stop
        assert not run.should_checkpoint
        assert run.control("lr_scale", 1.0, min=0.1, max=2.0).value == 1.0
        assert run.flush()
    assert not (tmp_path / "logs").exists()
    assert capsys.readouterr().out == ""


def test_other_ranks_create_no_run_at_their_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setattr("tachograph.recorder._writer._MAX_FOLDER_WAIT_S", 0.5)
    with tachograph.init("x", log_dir=str(tmp_path / "logs"), exit_timeout_s=120) as run:
        run.log(a=1.0)
        assert not (tmp_path / "logs").exists()
    assert [folder.name for folder in (tmp_path / "logs").iterdir()] == ["x-rank-2"]
    assert capsys.readouterr() == ("", "")


# Controls ----------------------------------------------------------------------------------------------------------


def acks(run: MemoryRun) -> list[tuple[str, str]]:
    """Return the control and status of every acknowledged request."""
    return [(record["control"], record["status"]) for record in run.records if record.get("name") == "control_ack"]


def test_control_changes_between_steps():
    run = MemoryRun()
    scale = run.control("lr_scale", 1.0, min=0.1, max=10.0)
    run.log(a=1.0, step=0)
    run.request(lr_scale=2.5)
    assert scale.value == 1.0
    run.log(a=1.0, step=1)
    assert scale.value == 2.5
    assert float(scale) == 2.5
    change = next(record for record in run.records if record["event"] == "control_change")
    assert (change["name"], change["old"], change["new"], change["source"]) == ("lr_scale", 1.0, 2.5, "test")
    assert acks(run) == [("lr_scale", "pending"), ("lr_scale", "applied")]


def test_control_changes_at_most_every_thirty_seconds():
    run = MemoryRun()
    scale = run.control("lr_scale", 1.0, min=0.1, max=10.0)
    run.request(lr_scale=2.0)
    run.log(step=0)
    assert scale.value == 2.0
    run.clock.advance(5)
    run.request(lr_scale=3.0)
    run.log(step=1)
    run.clock.advance(5)
    run.request(lr_scale=4.0)
    run.clock.advance(19)
    run.log(step=2)
    assert scale.value == 2.0
    run.clock.advance(2)
    run.log(step=3)
    assert scale.value == 4.0
    assert [status for _, status in acks(run)] == ["pending", "applied", "pending", "superseded", "pending", "applied"]


@pytest.mark.parametrize(
    ("requested", "expected"), [(2, 5), (5, 5), (100, 100), (2000, 2000), (99999, 2000), (-3, 5), (50.0, 50)]
)
def test_log_every_request_is_clamped(requested, expected):
    run = MemoryRun()
    run.request(log_every=requested)
    run.log(a=1.0, step=0)
    assert run.log_every == expected
    assert acks(run)[-1] == ("log_every", "applied" if requested == expected else "clamped")


def test_request_for_current_value_changes_nothing():
    run = MemoryRun()
    run.request(log_every=1)  # below the minimum for requests, but already in force
    run.log(a=1.0, step=0)
    assert run.log_every == 1
    assert acks(run) == [("log_every", "unchanged")]


@pytest.mark.parametrize("value", ["fast", None, True, [5], {"a": 1}, math.inf, math.nan, 7.5, 10**400])
def test_invalid_control_value_is_rejected(value):
    run = MemoryRun()
    run.request(log_every=value)
    run.log(a=1.0, step=0)
    assert run.log_every == 1
    assert acks(run) == [("log_every", "rejected")]
    assert [record["kind"] for record in run.records if record["event"] == "telemetry_error"] == ["control_rejected"]


def test_unknown_control_is_rejected_with_suggestion():
    run = MemoryRun()
    run.request(log_evry=10)
    rejected = next(record for record in run.records if record.get("name") == "control_ack")
    assert "did you mean 'log_every'?" in rejected["reason"]


def test_checkpoint_takes_any_metadata():
    run = MemoryRun()
    nested = {"rank": 16, "targets": ["q", "v"]}
    run.log_checkpoint("x.pt", step=3, metrics={"val/loss": 0.5}, ema=True, format="safetensors", lora=nested)
    record = run.records[-1]
    ours = {"event": "checkpoint", "global_step": 3, "checkpoint_path": "x.pt", "is_best": False}
    theirs = {"val/loss": 0.5, "ema": True, "format": "safetensors", "lora/rank": 16, "lora/targets": ["q", "v"]}
    found = {name: value for name, value in record.items() if name not in {"time", "size_bytes", "modified"}}
    assert found == {**ours, **theirs}


def test_checkpoint_removed_while_it_is_recorded_is_no_fault(tmp_path, monkeypatch):
    """Trainers remove their last checkpoint when they save a better one, perhaps between two looks at it."""
    monkeypatch.setattr(os.path, "isfile", lambda path: True)
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    run = MemoryRun()
    run.log_checkpoint(tmp_path / "gone.ckpt", step=1)
    record = next(record for record in run.records if record["event"] == "checkpoint")
    assert (record.get("size_bytes"), record.get("modified")) == (None, None)
    assert not [record for record in run.records if record["event"] == "telemetry_error"]


def test_checkpoint_metadata_does_not_replace_fields():
    run = MemoryRun()
    names = {"event": "e", "time": 1, "checkpoint_path": "other", "size_bytes": 7, "global_step": 9, "loss": "text"}
    run.log_checkpoint("x.pt", step=3, metrics={"loss": 0.5}, **names)
    record = run.records[-1]
    assert (record["event"], record["checkpoint_path"], record["global_step"]) == ("checkpoint", "x.pt", 3)
    assert {name: record[f"{name}_"] for name in names} == names
    assert record["loss"] == 0.5


def test_checkpoint_metadata_is_masked_and_cannot_raise():
    run = MemoryRun()
    run.log_checkpoint("x.pt", hub_token="hunter2", note="password=hunter2", model=object(), note_2="kept")
    checkpoint, problem = run.records
    assert (checkpoint["hub_token"], checkpoint["note"], checkpoint["note_2"]) == (
        "[masked]",
        "password=[masked]",
        "kept",
    )
    assert "model" not in checkpoint and problem["field"] == "model"


def test_stop_persists_and_checkpoint_resets():
    run = MemoryRun()
    assert not run.should_stop
    assert not run.should_checkpoint
    run.request(checkpoint_now=True, stop=True)
    assert run.should_checkpoint
    assert not run.should_checkpoint  # true once per request
    assert run.should_stop
    assert run.should_stop


@pytest.mark.parametrize(
    ("name", "value", "minimum", "maximum"),
    [("stop", 1.0, None, None), ("a b", 1.0, None, None), ("x", "text", None, None), ("x", 5.0, 6.0, None),
     ("x", 5.0, None, 4.0), ("x", math.nan, None, None), ("log_every", 5, None, None)],
)  # fmt: skip
def test_invalid_control_definition_raises(name, value, minimum, maximum):
    with pytest.raises(ControlError):
        MemoryRun().control(name, value, min=minimum, max=maximum)


def test_fake_clock_rejects_negative_advance():
    with pytest.raises(ValueError, match="set_wall"):
        FakeClock().advance(-1)


def test_in_place_change_does_not_alter_logged_step(tmp_path):
    counter = np.zeros((), dtype=int)
    with tachograph.init("x", log_dir=str(tmp_path), console=False, system_interval_s=0) as run:
        for _ in range(200):
            counter += 1
            run.log({"a": 1.0}, step=counter)
    assert tachograph.read(tmp_path / "x").series("a").steps.tolist() == list(range(1, 201))


def test_array_first_seen_in_window_is_dropped(tmp_path):
    total = np.zeros(())
    with tachograph.init("x", log_dir=str(tmp_path), console=False, system_interval_s=0, log_every=5) as run:
        for step in range(100):
            run.log(plain=1.0, step=step)
        run.flush()
        for step in range(100, 300):
            total += 1
            run.log(total=total, step=step)
            if step == 200:
                run.flush()
    history = tachograph.read(tmp_path / "x")
    series = history.series("total")
    assert series.values.tolist() == [float(step - 99) for step in series.steps]
    assert [record["field"] for record in history.latest("telemetry_error")] == ["total"]


def test_nan_inside_list_is_flagged():
    run = MemoryRun()
    run.log({"losses": [math.nan, 1.0]}, step=0)
    assert steps(run)[0]["nan_inf_detected"] is True


def test_numeric_metrics_are_never_masked():
    run = MemoryRun()
    for step in range(3):
        run.log({"pass@1": 0.5, "forward_pass_ms": 3.0, "user_tokens": 7}, step=step)
        run.clock.advance(1)
    assert [(step["pass@1"], step["forward_pass_ms"], step["user_tokens"]) for step in steps(run)] == [
        (0.5, 3.0, 7)
    ] * 3


def num_calls_to_write_and_mirror(values, folder) -> int:
    """Return how many functions are called to build, diagnose, encode, mirror and read back some losses."""
    builder = RecordBuilder(WallAnchor(FakeClock()))
    engine = LiveDiagnostics(resolve_rules(None), lambda line: None)
    items = [(float(step), step, {"train_loss": value, "lr": 0.1}) for step, value in enumerate(values)]
    builder.process(items[:1])
    (folder / ".tacho").mkdir(parents=True)
    (folder / "metrics.jsonl").touch()
    mirror = CsvMirror(RunFolder(folder))
    profile = cProfile.Profile()
    profile.enable()
    records = engine.observe(builder.process(items[1:]), folder)
    data = b"".join(item.lines if isinstance(item, StepTable) else encode(item) + b"\n" for item in records)
    mirror.add(records, 0, len(data))
    StepTable.from_records(decode_block(data) or map(decode, data.splitlines()))
    profile.disable()
    mirror.close_after_error()
    return sum(entry.callcount for entry in profile.getstats())


def test_nan_costs_about_as_much_as_a_number(tmp_path):
    finite = num_calls_to_write_and_mirror([1.0] * 1000, tmp_path / "finite")
    mixed = num_calls_to_write_and_mirror([1.0, math.nan] * 500, tmp_path / "mixed")
    assert mixed < 3 * finite


def test_wrong_arguments_and_lists_are_reported_once(logs, caplog):
    with tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0, git=False) as run:
        for step in range(3):
            run.log("train_loss")
            run.log({"train_loss": 1.0, "vector": [1.0, 2.0], "other": [3.0]}, step=step)
    warnings = [record.getMessage() for record in caplog.records]
    assert len([text for text in warnings if "expects a dict of metrics, got str" in text]) == 1
    assert len([text for text in warnings if "'vector'" in text and "a list of 2 values" in text]) == 1
    assert not [text for text in warnings if "'other'" in text]
    problems = [record for record in lines_of(logs / "x") if record.get("kind") == "value_not_charted"]
    assert [record["field"] for record in problems] == ["vector", "other"]
    steps = [record for record in lines_of(logs / "x") if record["event"] == "step"]
    assert [record["vector"] for record in steps] == [[1.0, 2.0]] * 3


def test_interpreter_without_threads_gets_a_run_that_records_nothing(logs, script):
    pytest.importorskip("_xxsubinterpreters")
    source = """
        import sys, textwrap
        import _xxsubinterpreters as interpreters
        isolated = interpreters.create(isolated=True)
        interpreters.run_string(isolated, f"logs = {sys.argv[1]!r}" + textwrap.dedent('''
            import tachograph
            with tachograph.init("x", log_dir=logs) as run:
                run.log(train_loss=1.0, step=0)
            print("trained")
        '''))
    """
    process = script(source, logs)
    code, out, err = process.wait()
    assert (code, out) == (0, "trained\n"), err
    assert "no thread can be started" in err
    assert not logs.exists()
