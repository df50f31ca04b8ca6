"""Ray Train (v2): a callback that records the reports and exceptions of workers.

Ray calls it in the process that controls the workers, which runs on the driver's machine. That process receives only
the arguments of `ray.train.report`. To record the loop of a worker, use `tachograph.init` or another integration
in the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

import ray
from ray.train import UserCallback

from tachograph._base.guard import guard
from tachograph._base.settings import resolve_settings
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.integration_run import IntegrationRun, RunOptions, name_from
from tachograph.integrations._common.metrics import group_metrics
from tachograph.recorder import Run
from tachograph.records import check_run_name

__all__ = ["TachographCallback"]

_STEP_NAMES = ("global_step", "step", "training_iteration")


class TachographCallback(UserCallback):
    """Records the reports of workers: ``RunConfig(callbacks=[TachographCallback("greyjacket")])``.

    The run starts with the first report and ends with the job. Metrics come from the first worker.

    Args:
        name: the name of the run; by default the name of Ray's run.
        settings: settings of the run, as for `tachograph.init`. A relative `log_dir` is relative to the working
            directory of the driver.

    Raises:
        ConfigError: if a setting does not exist or is invalid.
        RunNameError: if the name is not a valid folder name.
    """

    def __init__(self, name: str | None = None, **settings: Any) -> None:
        if "run" in settings:
            raise ConfigError(
                "run=…: a run cannot be passed to the process that controls the workers; pass its name instead"
            )
        if name is not None:
            check_run_name(name)
        run_settings = {
            field: value
            for field, value in settings.items()
            if field not in {"tags", "notify", "rules", "signals", "resume"}
        }
        self._plan = RunOptions(None, name, settings)
        # The process that calls this callback may have another working directory.
        self._plan.settings["log_dir"] = os.path.abspath(resolve_settings(run_settings).log_dir)
        self._job: IntegrationRun | None = None
        self._num_reports = 0
        self._error: Exception | None = None
        """The last exception of a worker; cleared by the next report. If it is set at the end, the run has failed."""

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Record a report of all workers."""
        with guard("recording a report of Ray workers"):
            run = self._begin_run(run_context)
            self._num_reports += 1
            self._error = None
            values = metrics[0] if metrics else {}
            step = _step_of(values, self._num_reports)
            training, validation, test = group_metrics(
                {name: values[name] for name in values if name not in _STEP_NAMES}
            )
            if validation:
                run.log_validation(validation, step=step, epoch=values.get("epoch"), prefix="")
            if test:
                run.log_test(test, step=step, epoch=values.get("epoch"), prefix="")
            if training:
                run.log(training, step=step)
            if checkpoint is not None:
                run.log_checkpoint(str(checkpoint.path), step=step)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Record exceptions of workers. Ray may restart them."""
        with guard("recording exceptions of Ray workers"):
            run = self._begin_run(run_context)
            for rank, error in worker_exceptions.items():
                run.log_error(error, where=f"worker {rank}")
                self._error = error

    def _begin_run(self, run_context: Any) -> Run:
        if self._job is None:
            self._job = IntegrationRun("ray", self._plan)
        if self._job.run is not None:
            return self._job.run
        scaling = run_context.scaling_config
        config = {"train_loop_config": run_context.train_loop_config, "num_workers": scaling.num_workers}
        run = self._job.begin(
            name=name_from(run_context.run_config.name),
            config=config,
            facts={"ray_run_id": run_context.run_id, "num_workers": scaling.num_workers},
            method="controller",
            version=ray.__version__,
        )
        # Ray has no callback for the end of a job, and it kills this process. But it calls this callback inside the
        # asyncio task that controls the job, so the end of that task is the end of the job.
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
            if task is not None:
                task.add_done_callback(self._finish)
        return run

    def _finish(self, _task: asyncio.Task[Any]) -> None:
        with guard("finishing the run of a Ray job"):
            if self._job is None or self._job.run is None:
                return
            if self._error is not None:
                self._job.run.finish("failed", reason=type(self._error).__name__)
            self._job.finish()


def _step_of(values: Mapping[str, Any], num_reports: int) -> int:
    """Return the step that a report contains, or else the number of reports."""
    return next((values[name] for name in _STEP_NAMES if type(values.get(name)) is int), num_reports)
