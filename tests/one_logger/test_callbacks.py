"""The `on_*` callbacks, as whole journals."""

from __future__ import annotations

from tachograph import set_training_config
from tachograph.one_logger import (
    on_app_end,
    on_app_start,
    on_dataloader_init_end,
    on_dataloader_init_start,
    on_distributed_init_end,
    on_distributed_init_start,
    on_load_checkpoint_end,
    on_load_checkpoint_start,
    on_model_init_end,
    on_model_init_start,
    on_optimizer_init_end,
    on_optimizer_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_testing_end,
    on_testing_start,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_end,
    on_validation_single_iteration_end,
    on_validation_single_iteration_start,
    on_validation_start,
)
from tests.span_snapshots import PARAMETERS, snapshot

__all__ = ["snapshot"]


def test_callbacks_record_whole_job(snapshot):
    tick = snapshot
    set_training_config(**PARAMETERS)
    on_app_start()
    for start, end in (
        (on_distributed_init_start, on_distributed_init_end),
        (on_dataloader_init_start, on_dataloader_init_end),
        (on_load_checkpoint_start, on_load_checkpoint_end),
        (on_model_init_start, on_model_init_end),
        (on_optimizer_init_start, on_optimizer_init_end),
    ):
        start()
        tick(0.5)
        end()
    on_train_start(train_iterations_start=2)
    for step in range(2, 5):
        on_training_single_iteration_start()
        tick(1)
        on_training_single_iteration_end()
        on_save_checkpoint_start(step)
        tick(0.25)
        on_save_checkpoint_success(step)
        on_save_checkpoint_end()
        on_validation_start()
        on_validation_single_iteration_start()
        tick(0.5)
        on_validation_single_iteration_end()
        on_validation_end()
    on_train_end()
    on_testing_start()
    on_testing_end()
    on_app_end()


def test_spans_left_open_are_closed_at_finish(snapshot):
    tick = snapshot
    on_app_start()
    on_train_start(0)
    on_training_single_iteration_start()
    tick(1)
    on_training_single_iteration_start()  # a `continue` skipped the end of the previous iteration
    tick(2)
    on_training_single_iteration_end()
    on_validation_start()
    tick(3)


def test_explicit_times_override_clock(snapshot, tacho_run):
    tick = snapshot
    tick(3600)
    now_ms = tacho_run.clock.wall_s() * 1000
    on_app_start(start_time_msec=now_ms - 3_000_000)  # fifty minutes ago
    on_model_init_start(start_time_msec=now_ms - 2_000_000)
    on_model_init_end(finish_time_msec=now_ms - 1_500_000)
    on_train_start(0, start_time_msec=now_ms - 1_000_000)
    for index in range(3):
        on_training_single_iteration_start(start_time_msec=now_ms - 900_000 + index * 250_000)
        on_training_single_iteration_end(finish_time_msec=now_ms - 900_000 + (index + 1) * 250_000)
    on_train_end(finish_time_msec=now_ms - 100_000)
    on_app_end(finish_time_msec=now_ms)
