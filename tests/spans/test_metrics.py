"""Training metrics computed from spans, checked against exact values on a fake clock."""

from __future__ import annotations

import math

import pytest

from tachograph import (
    backward,
    checkpoint_save,
    data_loading,
    forward,
    optimizer_update,
    set_training_config,
    testing_iteration,
    testing_loop,
    timed_span,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)
from tachograph.exceptions import ConfigError
from tachograph.one_logger import on_save_checkpoint_end, on_save_checkpoint_start, on_save_checkpoint_success
from tachograph.spans import get_recorder


def updates(run, name="training_metrics_update"):
    """Return the events of a run with a name."""
    return [record for record in run.records if record["event"] == "event" and record["name"] == name]


def windows(run):
    """Return the step records of a run that summarise a window."""
    return [record for record in run.records if record["event"] == "step" and "window/sec" in record]


def iterate(run, *durations_s):
    """Run one training iteration per duration."""
    for seconds in durations_s:
        with training_iteration():
            run.clock.advance(seconds)


def test_update_event_has_job_totals(tacho_run):
    set_training_config(
        global_batch_size=32, seq_length=16, flops_per_sample=1e12, world_size=4, log_every_n_train_iterations=2
    )
    with training_loop(10):
        iterate(tacho_run, 1.0, 3.0, 2.0, 2.0)
    first, second = updates(tacho_run)
    assert {name: second[name] for name in (
        "train_iterations_start", "current_iteration", "num_iterations", "train_samples_start", "num_train_samples",
        "interval", "avg_iteration_time_sec", "min_iteration_time_sec", "max_iteration_time_sec",
        "total_iteration_time_sec", "train_tokens", "total_flops", "completed_floating_point_operations_overall",
        "train_throughput_per_gpu", "train_throughput_per_gpu_max", "train_throughput_per_gpu_min",
        "avg_batch_size", "avg_tokens_per_second", "avg_tflops", "global_step",
    )} == {
        "train_iterations_start": 10, "current_iteration": 13, "num_iterations": 4, "train_samples_start": 320,
        "num_train_samples": 128, "interval": 2, "avg_iteration_time_sec": 2.0, "min_iteration_time_sec": 1.0,
        "max_iteration_time_sec": 3.0, "total_iteration_time_sec": 8.0, "train_tokens": 2048,
        "total_flops": 128 * 10**12, "completed_floating_point_operations_overall": (320 + 128) * 10**12,
        "train_throughput_per_gpu": 4.0, "train_throughput_per_gpu_max": 8.0,
        "train_throughput_per_gpu_min": 32 / 12, "avg_batch_size": 32, "avg_tokens_per_second": 256.0,
        "avg_tflops": 16.0, "global_step": 13,
    }  # fmt: skip
    assert (first["num_iterations"], first["total_iteration_time_sec"]) == (2, 4.0)
    assert second["first_logged_train_iterations_finish_timestamp_sec"] == 1_700_000_001.0
    assert second["last_logged_train_iterations_finish_timestamp_sec"] == 1_700_000_008.0


def test_step_record_has_window_metrics(tacho_run):
    set_training_config(
        global_batch_size=8,
        seq_length=4,
        flops_per_sample=1e12,
        peak_tflops_per_gpu=32.0,
        log_every_n_train_iterations=5,
    )
    with training_loop(0):
        iterate(tacho_run, *[10.0] * 5)
        for seconds in (1.0, 2.0, 3.0, 4.0, 5.0):
            tacho_run.clock.advance(1.0)  # between iterations
            iterate(tacho_run, seconds)
    slow, record = windows(tacho_run)
    assert slow["window/iteration_sec_mean"] == 10.0
    assert record["global_step"] == 9
    assert {name.removeprefix("window/"): value for name, value in record.items() if name.startswith("window/")} == {
        "iterations": 5, "sec": 20.0, "iteration_sec_mean": 3.0, "iteration_sec_min": 1.0, "iteration_sec_max": 5.0,
        "iteration_sec_p50": 3.0, "iteration_sec_p95": pytest.approx(4.8), "samples_per_sec": 2.0,
        "tokens_per_sec": 8.0, "tflops_per_gpu": 2.0, "mfu": 0.0625, "share_iteration": 0.75, "share_other": 0.25,
    }  # fmt: skip
    # Exporters receive the event, so it carries the same values.
    assert updates(tacho_run)[1]["window_iteration_sec_p95"] == pytest.approx(4.8)


def test_partial_window_and_first_iteration_are_reported(tacho_run):
    set_training_config(log_every_n_train_iterations=10)
    with training_loop(0):
        iterate(tacho_run, *[0.25] * 25)
    assert [update["interval"] for update in updates(tacho_run)] == [10, 10, 5]
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0):
        iterate(tacho_run, *[0.25] * 3)
    assert [update["current_iteration"] for update in updates(tacho_run)[3:]] == [0, 1, 2]


def test_windows_stay_aligned_after_resume(tacho_run):
    set_training_config(log_every_n_train_iterations=10)
    with training_loop(95):
        iterate(tacho_run, *[0.25] * 17)
    assert [(update["current_iteration"], update["interval"]) for update in updates(tacho_run)] == [
        (99, 5), (109, 10), (111, 2),
    ]  # fmt: skip


def test_default_window_length_adapts_to_speed(tacho_run):
    with training_loop(0):
        iterate(tacho_run, *[1 / 1024] * 2048)  # about 1000 iterations per second: one report per second
    assert [update["interval"] for update in updates(tacho_run)] == [1024, 1024]
    with training_loop(0):
        iterate(tacho_run, *[0.25] * 4000)  # 1000 seconds: a report per second first, later one per ten seconds
    lengths_s = [update["interval"] * 0.25 for update in updates(tacho_run)[2:]]
    assert lengths_s[:20] == [1.0] * 20
    assert lengths_s[-20:-1] == [10.0] * 19
    assert lengths_s[:-1] == sorted(lengths_s[:-1])


def test_log_every_of_run_sets_window_length(tacho_run):
    tacho_run.request(log_every=20)
    tacho_run.clock.advance(31)
    tacho_run.log(a=1.0)
    with training_loop(0):
        iterate(tacho_run, *[0.25] * 40)
    assert [update["interval"] for update in updates(tacho_run)] == [20, 20]


def test_phase_shares_cover_window_time(tacho_run):
    set_training_config(log_every_n_train_iterations=2)
    with training_loop(0):
        for _ in range(2):
            with data_loading():
                tacho_run.clock.advance(1.0)
            with training_iteration():
                with zero_grad():
                    tacho_run.clock.advance(0.25)
                with forward():
                    tacho_run.clock.advance(2.0)
                with backward():
                    tacho_run.clock.advance(3.0)
                with optimizer_update():
                    tacho_run.clock.advance(0.75)
                tacho_run.clock.advance(0.5)
            tacho_run.clock.advance(0.5)
    (record,) = windows(tacho_run)
    assert record["window/sec"] == 15.5  # excludes the half second after the last iteration
    shares = {name: value * 15.5 for name, value in record.items() if name.startswith("window/share_")}
    assert shares == {
        "window/share_data": 2.0, "window/share_forward": 4.0, "window/share_backward": 6.0,
        "window/share_optimizer": 2.0, "window/share_iteration": 1.0, "window/share_other": pytest.approx(0.5),
    }  # fmt: skip
    update = updates(tacho_run)[0]
    assert (update["avg_forward_time_sec"], update["avg_backward_time_sec"]) == (2.0, 3.0)
    assert update["avg_dataloader_time_sec"] == 1.0


def test_validation_and_checkpoint_do_not_lower_throughput(tacho_run):
    set_training_config(global_batch_size=4, log_every_n_train_iterations=2)
    with training_loop(0):
        iterate(tacho_run, 1.0)
        with validation_loop(), forward():  # a forward pass inside validation counts as validation
            tacho_run.clock.advance(3.0)
        with checkpoint_save(0):
            tacho_run.clock.advance(5.0)
        iterate(tacho_run, 1.0)
    (record,) = windows(tacho_run)
    assert record["window/sec"] == 10.0
    assert record["window/share_validation"] == pytest.approx(0.3)
    assert record["window/share_checkpoint"] == pytest.approx(0.5)
    assert "window/share_forward" not in record
    assert record["window/samples_per_sec"] == 4.0


def test_nested_phase_is_counted_once(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0), training_iteration(), forward():
        tacho_run.clock.advance(1.0)
        with data_loading():
            tacho_run.clock.advance(2.0)
        tacho_run.clock.advance(1.0)
    (record,) = windows(tacho_run)
    assert (record["window/share_forward"], record["window/share_data"]) == (0.5, 0.5)


def test_failed_iteration_is_not_counted(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0):
        iterate(tacho_run, 1.0)
        with pytest.raises(ValueError), training_iteration():
            tacho_run.clock.advance(7.0)
            raise ValueError("no")
        iterate(tacho_run, 1.0)
    last = updates(tacho_run)[-1]
    assert (last["num_iterations"], last["current_iteration"], last["max_iteration_time_sec"]) == (2, 1, 1.0)


@pytest.mark.parametrize("where", ["inside", "after"])
def test_update_reports_latest_loss(tacho_run, where):
    set_training_config(log_every_n_train_iterations=5)
    with training_loop(0):
        for step in range(10):
            with training_iteration():
                tacho_run.clock.advance(0.25)
                if where == "inside":
                    tacho_run.log(train_loss=float(step), step=step)
            if where == "after":
                tacho_run.log(train_loss=float(step), step=step)
    expected = [4.0, 9.0] if where == "inside" else [3.0, 8.0]  # the loss logged before the window ended
    assert [update["latest_loss"] for update in updates(tacho_run)] == expected


def test_nan_loss_is_reported_as_nan(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0), training_iteration():
        tacho_run.log(loss=math.nan)
    assert math.isnan(updates(tacho_run)[0]["latest_loss"])


def test_metrics_of_unknown_parameters_are_omitted(tacho_run):
    with training_loop(0):
        iterate(tacho_run, 1.0)
    (update,) = updates(tacho_run)
    for name in ("num_train_samples", "train_tokens", "total_flops", "train_throughput_per_gpu", "latest_loss"):
        assert name not in update
    assert not {"window/samples_per_sec", "window/mfu", "window/share_data"} & set(windows(tacho_run)[0])


def test_late_parameters_apply_to_later_windows(tacho_run):
    set_training_config(log_every_n_train_iterations=2)
    with training_loop(0):
        iterate(tacho_run, *[1.0] * 4)
        set_training_config(global_batch_size=16)
        iterate(tacho_run, *[1.0] * 3)
        set_training_config(global_batch_size=32, log_every_n_train_iterations=4)
        iterate(tacho_run, *[1.0] * 5)
    assert [(update["interval"], update.get("num_train_samples")) for update in updates(tacho_run)] == [
        (2, None), (2, None), (2, 32), (2, 80), (4, 208),
    ]  # fmt: skip
    configs = updates(tacho_run, "update_training_telemetry_config")
    assert [record.get("global_batch_size") for record in configs] == [None, 16, 32]


def test_parameter_functions_are_called_at_loop_start(tacho_run):
    values = {}
    set_training_config(global_batch_size_or_fn=lambda: values.get("batch"), log_every_n_train_iterations=1)
    values["batch"] = 8
    with training_loop(0) as loop:
        iterate(tacho_run, 1.0)
    assert updates(tacho_run)[0]["num_train_samples"] == 8
    assert loop.attributes["train_samples_start"].value == 0


@pytest.mark.expects_faults
def test_failing_parameter_function_is_reported(tacho_run):
    set_training_config(global_batch_size=lambda: 1 / 0, log_every_n_train_iterations=1)
    with training_loop(0):
        iterate(tacho_run, 1.0)
    assert "num_train_samples" not in updates(tacho_run)[0]
    reasons = [record["reason"] for record in tacho_run.records if record["event"] == "telemetry_error"]
    assert reasons == ["global_batch_size could not be resolved: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"global_batch_sizes": 3}, "did you mean 'global_batch_size'"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"global_batch_size": True}, "global_batch_size=True"),
        ({"seq_length": "long"}, "seq_length='long'"),
        ({"flops_per_sample": -1.0}, "flops_per_sample=-1.0"),
        ({"save_checkpoint_strategy": "later"}, "save_checkpoint_strategy='later'"),
        ({"log_every_n_train_iterations": 0}, "log_every_n_train_iterations=0"),
    ],
)
def test_invalid_parameters_raise(tacho_run, values, message):
    with pytest.raises(ConfigError, match=message):
        set_training_config(**values)


def test_samples_and_tokens_per_iteration_override_config(tacho_run):
    set_training_config(global_batch_size=8, seq_length=10, log_every_n_train_iterations=3)
    with training_loop(0):
        iterate(tacho_run, 1.0)
        with training_iteration(num_samples=3, num_tokens=7):
            tacho_run.clock.advance(1.0)
        with training_iteration(num_samples=2):
            tacho_run.clock.advance(1.0)
    (update,) = updates(tacho_run)
    assert (update["num_train_samples"], update["train_tokens"]) == (13, 107)


def test_consecutive_loops_continue_counting(tacho_run):
    set_training_config(log_every_n_train_iterations=100)
    for _ in range(3):
        with training_loop():
            iterate(tacho_run, *[1.0] * 4)
    assert [(update["train_iterations_start"], update["num_iterations"]) for update in updates(tacho_run)] == [
        (0, 4), (4, 8), (8, 12),
    ]  # fmt: skip


def test_nested_loop_is_counted_separately(tacho_run):
    set_training_config(log_every_n_train_iterations=2)
    with training_loop(0) as outer:
        for _ in range(2):
            with training_iteration():
                tacho_run.clock.advance(1.0)
                with training_loop(0):
                    iterate(tacho_run, *[0.5] * 2)
    outer_id = get_recorder().ids.text_of(outer)
    outer_updates = [update for update in updates(tacho_run) if update["span_id"] == outer_id]
    assert [(update["num_iterations"], update["total_iteration_time_sec"]) for update in outer_updates] == [(2, 4.0)]
    assert len(updates(tacho_run)) == 3
    (window,) = windows(tacho_run)  # only the outer loop writes step records
    assert (window["window/sec"], window["window/share_iteration"]) == (4.0, 1.0)


def test_iterations_without_loop_are_reported(tacho_run):
    iterate(tacho_run, *[0.25] * 3)
    tacho_run.finish()
    (update,) = updates(tacho_run)
    assert (update["num_iterations"], update["train_iterations_start"]) == (3, 0)


def test_run_config_sets_batch_size_and_target(logs):
    import tachograph

    config = {"batch_size": 4, "gradient_accumulation_steps": 8, "max_steps": 100}
    with tachograph.init("x", log_dir=str(logs), config=config, console=False, git=False, system_interval_s=0):
        with training_loop(0) as loop, training_iteration():
            pass
    assert loop.attributes["train_iterations_target"].value == 100
    assert [
        record["num_train_samples"]
        for record in tachograph.read(logs / "x").records("event")
        if record["name"] == "training_metrics_update"
    ] == [32]


# Validation, testing -------------------------------------------------------------------------------------------------


def test_validation_and_testing_updates_are_reported(tacho_run):
    with training_loop(0):
        for durations in ((1.0, 3.0), (5.0,)):
            iterate(tacho_run, *[0.25] * 4)
            with validation_loop():
                for seconds in durations:
                    with validation_iteration():
                        tacho_run.clock.advance(seconds)
    with testing_loop(), testing_iteration():
        tacho_run.clock.advance(2.0)
    first, second = updates(tacho_run, "validation_metrics_update")
    assert (first["current_iteration"], first["interval"], first["avg_iteration_time_sec"]) == (3, 4, 2.0)
    assert (second["current_iteration"], second["interval"], second["total_iteration_time_sec"]) == (7, 4, 9.0)
    (test,) = updates(tacho_run, "testing_metrics_update")
    assert (test["current_iteration"], test["interval"], test["total_iteration_time_sec"]) == (7, 8, 2.0)


def test_validation_before_training_reports_zero_iterations(tacho_run):
    with validation_loop():
        pass
    (update,) = updates(tacho_run, "validation_metrics_update")
    assert (update["current_iteration"], update["interval"]) == (0, 0)
    assert "avg_iteration_time_sec" not in update


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_checkpoint_covers_progress_at_its_start(tacho_run, tmp_path):
    (tmp_path / "weights").write_bytes(b"x" * 100)
    set_training_config(global_batch_size=4, flops_per_sample=5e11)
    with training_loop(10):
        iterate(tacho_run, *[1.0] * 3)
        with validation_loop(), validation_iteration():
            tacho_run.clock.advance(2.0)
        with checkpoint_save(12, path=tmp_path / "weights"):
            tacho_run.clock.advance(4.0)
        iterate(tacho_run, 1.0)
        with checkpoint_save(13):
            tacho_run.clock.advance(6.0)
    first, second = updates(tacho_run, "save_checkpoint_success")
    assert {name: first[name] for name in first if name.startswith("productive") or "checkpoint" in name} == {
        "checkpoint_strategy": "sync", "first_successful_save_checkpoint_timestamp_sec": 1_700_000_009.0,
        "latest_successful_save_checkpoint_timestamp_sec": 1_700_000_009.0, "save_checkpoint_success_count": 1,
        "productive_train_iterations": 13, "productive_train_samples": 52, "productive_train_iterations_sec": 3.0,
        "productive_validation_iterations_sec": 2.0, "productive_train_tflops": 26.0, "checkpoint_size": 100,
        "checkpoint_directory": str(tmp_path / "weights"),
    }  # fmt: skip
    assert (second["save_checkpoint_success_count"], second["productive_train_iterations"]) == (2, 14)
    waits = updates(tacho_run, "sync_checkpoint_metrics_update")
    assert [wait["save_checkpoint_sync_time_total_sec"] for wait in waits] == [4.0, 10.0]
    assert [wait["save_checkpoint_sync_time_max_sec"] for wait in waits] == [4.0, 6.0]


def test_failed_save_is_not_counted_as_success(tacho_run):
    with training_loop(0):
        iterate(tacho_run, 1.0)
        with pytest.raises(OSError), checkpoint_save(0):
            raise OSError("disk full")
        with checkpoint_save(0):
            pass
    assert [update["save_checkpoint_success_count"] for update in updates(tacho_run, "save_checkpoint_success")] == [1]
    saves = [record for record in tacho_run.records if record.get("name") == "checkpoint_save_sync"]
    assert [record["attributes"]["save_checkpoint_attempt_count"] for record in saves if "duration_s" in record] == [
        1,
        2,
    ]


def test_async_saves_finish_in_any_order(tacho_run):
    set_training_config(save_checkpoint_strategy="async", global_batch_size=1)
    with training_loop(0):
        for step in range(3):
            iterate(tacho_run, 1.0)
            on_save_checkpoint_start(step)
            tacho_run.clock.advance(0.5)
            on_save_checkpoint_end()
        for step in (2, 0, 1):
            on_save_checkpoint_success(step)
    saved = updates(tacho_run, "save_checkpoint_success")
    assert [(update["current_iteration"], update["productive_train_iterations"]) for update in saved] == [
        (2, 3), (0, 3), (1, 3),
    ]  # fmt: skip
    assert {update["checkpoint_strategy"] for update in saved} == {"async"}
    assert [record["name"] for record in tacho_run.records if record["event"] == "span_stop"][:3] == [
        "checkpoint_save_async"
    ] * 3


def test_disabled_checkpoint_metrics_keep_span(tacho_run):
    set_training_config(is_save_checkpoint_enabled=False)
    with checkpoint_save(1):
        pass
    assert updates(tacho_run, "save_checkpoint_success") == []
    assert any(record.get("name") == "checkpoint_save_sync" for record in tacho_run.records)


def test_metric_kinds_can_be_disabled(tacho_run):
    set_training_config(
        is_train_iterations_enabled=False, is_validation_iterations_enabled=False, is_test_iterations_enabled=False
    )
    with training_loop(0):
        iterate(tacho_run, *[1.0] * 100)
    with validation_loop():
        pass
    with testing_loop():
        pass
    assert {record["name"] for record in tacho_run.records if record["event"] == "event"} == {
        "update_training_telemetry_config"
    }
    assert windows(tacho_run) == []


def test_custom_span_does_not_change_phase_shares(tacho_run):
    set_training_config(log_every_n_train_iterations=1)
    with training_loop(0), training_iteration(), timed_span("mine"), forward():
        tacho_run.clock.advance(1.0)
    assert windows(tacho_run)[0]["window/share_forward"] == 1.0


def test_latest_loss_survives_a_second_log_per_step(logs):
    import tachograph

    with tachograph.init("x", log_dir=str(logs), console=False, git=False, system_interval_s=0) as run:
        set_training_config(log_every_n_train_iterations=10)
        with training_loop(0):
            for step in range(100):
                with training_iteration():
                    run.log({"train_loss": float(step)}, step=step)
                    run.log({"grad_norm": 1.0}, step=step)
    records = list(tachograph.read(logs / "x").records("step"))
    losses = [record.get("window/latest_loss") for record in records if "window/iterations" in record]
    assert len(losses) == 10 and None not in losses
    assert losses[-1] == 99.0
