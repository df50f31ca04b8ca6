"""Iterations of nv-one-logger and of Tachograph, alternating in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tachograph as tacho
from benchmarks.child import run_as_child
from benchmarks.measure import Rows, Spread, append_tuples, bare_loop, make_rows, time_ns
from benchmarks.spans.calls import iterations

__all__ = ["DEFAULT_EVERY", "NUM_COMPARED"]

DEFAULT_EVERY = 50
"""Default number of iterations per update in nv-one-logger."""

NUM_COMPARED = 1000
"""Iterations of nv-one-logger that are compared at the beginning and at the end."""

_NUM_IN_BURST = 50
_NUM_IN_OUR_BURST = 2000


def measure(folder: Path, log_every: str, num_iterations: str) -> dict[str, Any]:
    """Alternate between both, each inside its training loop; compare the first and the last iterations."""
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.context import application, training_iteration, training_loop

    def their_iterations(rows: Rows, first_step: int) -> None:
        iteration = training_iteration
        for _step, _metrics in enumerate(rows, first_step):
            with iteration():
                pass

    provider = _provider(folder)
    config = TrainingTelemetryConfig(
        perf_tag_or_fn="bench", global_batch_size_or_fn=32, log_every_n_train_iterations=int(log_every)
    )
    rows, our_rows = make_rows(_NUM_IN_BURST), make_rows(_NUM_IN_OUR_BURST)
    costs: dict[str, list[float]] = {"cost_ns": [], "ratio": [], "to_floor": [], "ours_to_floor": []}
    with tacho.init("bench", log_dir=folder, console=False) as run, application():
        provider.set_training_telemetry_config(config)
        with tacho.training_loop(train_iterations_start=0), training_loop(train_iterations_start=0):
            # The extra round before the first imports and opens files; it is discarded.
            for step in range(-_NUM_IN_BURST, int(num_iterations), _NUM_IN_BURST):
                append_tuples(our_rows, step)  # evict our data from the caches
                loop_ns = time_ns(bare_loop, our_rows, step)
                floor_ns = time_ns(append_tuples, our_rows, step) - loop_ns
                ours_ns = time_ns(iterations, our_rows, step) - loop_ns
                run.flush()
                theirs_ns = time_ns(their_iterations, rows, step) - loop_ns
                costs["cost_ns"].append(theirs_ns)
                costs["ratio"].append(theirs_ns / ours_ns)
                costs["to_floor"].append(theirs_ns / floor_ns)
                costs["ours_to_floor"].append(ours_ns / floor_ns)
    num_rounds = NUM_COMPARED // _NUM_IN_BURST
    return {
        part: {name: Spread.of(values[1:][place]) for name, values in costs.items()}
        for part, place in (("first", slice(num_rounds)), ("last", slice(-num_rounds, None)))
    }


def _provider(folder: Path) -> Any:
    from nv_one_logger.api.config import LoggerConfig, OneLoggerConfig
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider

    own_logs = LoggerConfig(
        log_level="ERROR",
        log_file_path_for_info=str(folder / "info.log"),
        log_file_path_for_err=str(folder / "err.log"),
    )
    config = OneLoggerConfig(
        application_name="bench", world_size_or_fn=1, session_tag_or_fn="bench", logger_config=own_logs
    )
    provider = TrainingTelemetryProvider.instance()
    provider.with_base_config(config).with_exporter(FileExporter(folder / "events.json")).configure_provider()
    return provider


if __name__ == "__main__":
    run_as_child(measure)
