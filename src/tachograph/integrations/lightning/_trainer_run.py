"""The run of a Lightning trainer: started or found, resumed from a checkpoint, with its saves and loads.

The callback and the logger of one trainer share a `TrainerRun`, so that there is one run and nothing is recorded twice.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.settings import resolve_settings
from tachograph.integrations._common.integration_run import IntegrationRun, Names, RunOptions, is_run
from tachograph.integrations.lightning._facts import trainer_config, trainer_facts, trainer_version
from tachograph.integrations.lightning._step_timer import StepTimer
from tachograph.reader import ParentRun
from tachograph.recorder import ObservedStep, Run, latest_run
from tachograph.records import step_of
from tachograph.spans import Span, checkpoint_load, checkpoint_save, recorder_of

__all__ = ["CHECKPOINT_KEY", "TrainerRun", "is_best"]

CHECKPOINT_KEY = "tachograph"
"""The key of a checkpoint under which its run is stored."""


class TrainerRun:
    """One run, shared by the callback and the logger of a trainer.

    Attributes:
        job: records into the run.
        has_callback: whether a callback observes the trainer; the logger then records only the other metrics.
        num_steps: completed optimizer steps.
        timer: times the batches during a fit; None otherwise.
        default_name: the name of the run if the user chose none.
    """

    first_checkpoint_step = 0
    """The step number of a checkpoint saved after the first step. Metrics are numbered from 0."""

    def __init__(self, plan: RunOptions) -> None:
        self.plan = plan
        self.job = IntegrationRun("lightning", plan)
        self.has_callback = False
        self.num_steps = 0
        self.timer: StepTimer | None = None
        self.hparams: dict[str, Any] = {}
        self.default_name: str | None = None
        self._trainer: weakref.ref[Any] | None = None
        self._resumed_from: dict[str, Any] = {}
        """The entry that a run has left in the checkpoint loaded last."""
        self._pending_load: tuple[float, float, str, ParentRun | None] | None = None
        """Start, end, path and, for a resume, run of a load that happened before the run was started."""
        self._is_async = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that another process needs to start its own run. The run itself stays in this process."""
        return {"name": self.plan.name, "settings": self.plan.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        TrainerRun.__init__(self, RunOptions(None, state["name"], state["settings"]))

    # The run -------------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run | None:
        """The run, once it is started."""
        return self.job.run

    @property
    def trainer(self) -> Any:
        """The trainer that used it last."""
        return self._trainer() if self._trainer is not None else None

    def use(self, trainer: Any, *, is_fit: bool) -> None:
        """Switch to a trainer. A fit of another trainer is another training, and gets a run of its own."""
        if is_fit and self.trainer is not trainer and self.num_steps and self.job.owns_run:
            self.job.finish()
            self.job, self.num_steps, self.hparams, self.default_name = (
                IntegrationRun("lightning", self.plan),
                0,
                {},
                None,
            )
        self._trainer = weakref.ref(trainer)

    @property
    def is_open(self) -> bool:
        """Whether there is a run to record into."""
        return self.job.is_open

    def begin(self, trainer: Any = None, module: Any = None) -> Run:
        """Return the open run; find or start one if there is none."""
        if self.job.is_open and self.job.run is not None:
            return self.job.run
        config: dict[str, Any] = dict(self.hparams)
        facts: dict[str, Any] = {}
        version: str | None = None
        if trainer is not None:
            with guard("reading the trainer's configuration"):
                config |= trainer_config(trainer, module)
                facts = trainer_facts(trainer, module)
                version = trainer_version(trainer)
        plan, resume = self._plan_run()
        self.job = IntegrationRun("lightning", plan)
        run = self.job.begin(name=self.default_name, config=config, facts=facts, resume=resume, version=version)
        self.hparams = config
        self._record_load()
        return run

    def _plan_run(self) -> tuple[RunOptions, bool]:
        """Return the plan of a run, and whether it resumes one: our own earlier run, or the run of the checkpoint."""
        plan, before = self.plan, self.job
        if plan.run is not None:
            return plan, False
        if before.owns_run and before.run is not None and before.run.folder is not None:
            folder = before.run.folder
            settings = {**plan.settings, "log_dir": str(folder.path.parent)}
            return RunOptions(None, folder.name, settings), True
        name, run_id = self._resumed_from.get("run_name"), self._resumed_from.get("run_id")
        if not isinstance(name, str) or not name:
            return plan, False
        if plan.name not in {None, name, self._resumed_from.get("asked_name")}:
            return plan, False  # the user chose another name: training continues as another run
        settings = {key: value for key, value in plan.settings.items() if key != "resume"}
        log_dir = resolve_settings({"log_dir": settings["log_dir"]} if "log_dir" in settings else {}).log_dir
        is_here = is_run(log_dir, name, run_id)
        return RunOptions(None, name if is_here else plan.name or name, plan.settings), is_here

    @property
    def name(self) -> str:
        """The name of the run, or the name it will have."""
        run = self.job.run or self.plan.run or latest_run()
        if run is not None and run.status == "running":
            return run.name
        if self.default_name is None:
            self.default_name = time.strftime("run-%Y%m%d_%H%M%S")
        return self.plan.name or self.default_name

    @property
    def log_dir(self) -> str:
        """The folder that contains, or will contain, the run's folder."""
        run = self.job.run or self.plan.run
        if run is not None and run.folder is not None:
            return str(run.folder.path.parent)
        setting = self.plan.settings.get("log_dir")
        return resolve_settings({"log_dir": setting} if setting is not None else {}).log_dir

    def merge(self, other: TrainerRun) -> TrainerRun:
        """Return the one of two that both owners share from now on, with the options of either."""
        if other.is_open and not self.is_open:
            return other
        if not self.is_open:
            ours, theirs = self.plan, other.plan
            run = ours.run or theirs.run
            settings = {} if run is not None else {**theirs.settings, **ours.settings}
            self.plan = RunOptions(run, None if run is not None else ours.name or theirs.name, settings)
            self.default_name = self.default_name or other.default_name
            self.hparams |= other.hparams
        return self

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def add_to_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the run's identity in a checkpoint, so that a fit resumed from it can find the run."""
        run = self.job.run
        if run is not None and run.id:
            checkpoint[CHECKPOINT_KEY] = {
                "run_name": run.name,
                "run_id": run.id,
                "asked_name": self.plan.name or "",
                "steps": self.num_steps,
            }

    def checkpoint_loaded(self, checkpoint: Any, path: str, start_s: float, stop_s: float, *, is_resume: bool) -> None:
        """Record a loaded checkpoint, now or when the run is started.

        Args:
            checkpoint: its content.
            path: its path.
            start_s: start of the load, on `perf_counter`.
            stop_s: end of the load, on `perf_counter`.
            is_resume: whether training continues from it.
        """
        run_info = checkpoint.get(CHECKPOINT_KEY) if isinstance(checkpoint, Mapping) else None
        self._resumed_from = dict(run_info) if isinstance(run_info, Mapping) and is_resume else {}
        parent = ParentRun(checkpoint_path=os.path.abspath(path), how="resume") if is_resume else None
        if parent is not None and isinstance(run_info, Mapping) and run_info.get("run_id"):
            parent.run_id, parent.run_name = str(run_info["run_id"]), str(run_info.get("run_name") or "") or None
            parent.global_step = step_of({"global_step": run_info.get("steps")})
        self._pending_load = (start_s, stop_s, path, parent)
        if self.is_open:
            self._record_load()

    def pop_resumed_steps(self) -> int | None:
        """Return the step count of the checkpoint loaded last, once; None if there is none."""
        steps = self._resumed_from.pop("steps", None)
        return steps if type(steps) is int and steps >= 0 else None

    def _record_load(self) -> None:
        load, self._pending_load = self._pending_load, None
        if load is None or self._has_open_span(Names.CHECKPOINT_LOAD):
            return
        start_s, stop_s, path, parent = load
        span = self.job.begin_span(checkpoint_load(), start_s)
        self.job.end_span(span, at_s=stop_s, attributes={"checkpoint_directory": path})
        run = self.job.run
        if run is not None and parent is not None and parent.run_id is not None:
            run.add_parent(parent)
        elif run is not None and parent is not None:
            run.log_parent(os.path.abspath(path), how="resume")  # saved without this integration

    def begin_save(self, path: Any, *, is_async: bool) -> Span | None:
        """Start the span of a save."""
        if is_async != self._is_async:
            self._is_async = is_async
            self.job.configure(save_checkpoint_strategy="async" if is_async else "sync")
        if not self.is_open or self._has_open_span(Names.CHECKPOINT_SAVE_SYNC):
            return None
        where = path if isinstance(path, (str, os.PathLike)) else None
        return self.job.begin_span(checkpoint_save(self.checkpoint_step, path=where))

    def end_save(self, span: Span | None, path: Any, error: BaseException | None) -> None:
        """End the span of a save: the checkpoint is written, is queued for the background thread, or failed."""
        self.job.end_span(span, error=error)
        if self.timer is not None and span is not None and span.start_s is not None:
            self.timer.pause(span.start_s)
        if error is None and not self._is_async:
            self.log_checkpoint(path, self.checkpoint_step)

    def saved_in_background(self, path: Any, step: Any) -> None:
        """Record a checkpoint that the background thread has written. Called in that thread."""
        run = self.job.run
        if run is None or not self.is_open or type(step) is not int:
            return
        number = max(0, step - 1) + self.first_checkpoint_step
        recorder_of(run).add_checkpoint(number, path=path)
        self.log_checkpoint(path, number)

    def log_checkpoint(self, path: Any, step: int | None) -> None:
        """Write a `checkpoint` record."""
        run = self.job.run
        if run is None or not self.is_open or not isinstance(path, (str, os.PathLike)):
            return
        run.log_checkpoint(path, step=step, is_best=is_best(self.trainer, path))

    @property
    def checkpoint_step(self) -> int:
        """The step number of a checkpoint saved now."""
        return max(0, self.num_steps - 1) + self.first_checkpoint_step

    @property
    def step(self) -> int | None:
        """The number of the last completed step; None before the first."""
        return self.num_steps - 1 if self.num_steps > 0 else None

    @property
    def row_step(self) -> int | None:
        """The step to which a row belongs that the script or another logger writes now; None before the first."""
        loop = getattr(getattr(self.trainer, "fit_loop", None), "epoch_loop", None)
        progress = getattr(getattr(loop, "batch_progress", None), "current", None)
        is_in_batch = progress is not None and progress.ready > progress.processed
        number = self.num_steps - 1 + is_in_batch
        return ObservedStep(number) if number >= 0 else None

    def _has_open_span(self, name: Names) -> bool:
        """Return whether the user's own code has opened such a span; a second one would count the time twice."""
        return self.job.run is not None and recorder_of(self.job.run).find_open(name) is not None


def is_best(trainer: Any, path: Any) -> bool:
    """Return whether a checkpoint is the best so far of a checkpoint callback that monitors a metric."""
    for callback in getattr(trainer, "checkpoint_callbacks", ()):
        if getattr(callback, "monitor", None) and str(getattr(callback, "best_model_path", "")) == str(path):
            return True
    return False
