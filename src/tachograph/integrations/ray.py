"""Ray Train (v2): a callback that records what workers report, and what they raise.

Ray calls it in the process that controls the workers, which runs on the machine of the driver: what is seen there is
what `ray.train.report` brings. What happens inside a worker is recorded by `tachograph.init`, or any other integration,
in the worker's own loop.
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
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.job import Job, Plan, name_from
from tachograph.integrations._common.metrics import sort_metrics
from tachograph.recorder import Run
from tachograph.records import check_run_name
from tachograph.settings import resolve_settings

__all__ = ["TachographCallback"]

_STEPS = ("global_step", "step", "training_iteration")


class TachographCallback(UserCallback):
    """Records what workers report: ``RunConfig(callbacks=[TachographCallback("greyjacket")])``.

    The run begins with the first report and ends with the job. Metrics are those of the first worker.

    Args:
        name: the name of the run; without it, that of Ray's run.
        settings: settings of the run, as `tachograph.init` takes them; `log_dir` is understood from where the driver
            was started.

    Raises:
        ConfigError: for a setting that does not exist or makes no sense.
        RunNameError: for a name that cannot be a folder.
    """

    def __init__(self, name: str | None = None, **settings: Any) -> None:
        if "run" in settings:
            raise ConfigError("run=…: a run cannot be handed to the process that controls the workers; give its name")
        if name is not None:
            check_run_name(name)
        known = {
            field: value for field, value in settings.items() if field not in {"tags", "notify", "rules", "resume"}
        }
        self._plan = Plan(None, name, settings)
        # The process that calls us may have another working folder.
        self._plan.settings["log_dir"] = os.path.abspath(resolve_settings(known).log_dir)
        self._job: Job | None = None
        self._num_reports = 0
        self._error: Exception | None = None
        """What a worker raised, until one reports again: with it, the run has failed."""

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """All workers have reported."""
        with guard("recording what workers of Ray report"):
            run = self._begin(run_context)
            self._num_reports += 1
            self._error = None
            values = metrics[0] if metrics else {}
            step = _step_of(values, self._num_reports)
            training, validation, test = sort_metrics({name: values[name] for name in values if name not in _STEPS})
            if validation:
                run.log_validation(validation, step=step, epoch=values.get("epoch"), prefix="")
            if test:
                run.log_test(test, step=step, epoch=values.get("epoch"), prefix="")
            if training:
                run.log(training, step=step)
            if checkpoint is not None:
                run.log_checkpoint(str(checkpoint.path), step=step)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Workers have raised; Ray may start them again."""
        with guard("recording what workers of Ray raised"):
            run = self._begin(run_context)
            for rank, error in worker_exceptions.items():
                run.log_error(error, where=f"worker {rank}")
                self._error = error

    def _begin(self, run_context: Any) -> Run:
        if self._job is None:
            self._job = Job("ray", self._plan)
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
        # Nobody tells a callback that the job is over, and Ray ends this process without a word. But we are called
        # inside of the task that controls the job, and that ends with it.
        with contextlib.suppress(RuntimeError):
            task = asyncio.current_task()
            if task is not None:
                task.add_done_callback(self._end)
        return run

    def _end(self, _task: asyncio.Task[Any]) -> None:
        with guard("ending a run of Ray"):
            if self._job is None or self._job.run is None:
                return
            if self._error is not None:
                self._job.run.finish("failed", reason=type(self._error).__name__)
            self._job.finish()


def _step_of(values: Mapping[str, Any], num_reports: int) -> int:
    """Return the step that a report is of, as it says; else how many there were."""
    return next((values[name] for name in _STEPS if type(values.get(name)) is int), num_reports)
