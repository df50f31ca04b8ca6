"""The run of a Lightning trainer: begun or found, continued from a checkpoint, and told of saves and loads.

A callback and a logger of the same trainer share a session, so that there is one run and nothing is in it twice.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from typing import Any

from tachograph._base.guard import guard
from tachograph.integrations._common.job import Job, Names, Plan, is_run
from tachograph.integrations.lightning._facts import config_of, facts_of, version_of
from tachograph.integrations.lightning._steps import Steps
from tachograph.recorder import Run, latest_run
from tachograph.settings import resolve_settings
from tachograph.spans import Span, checkpoint_load, checkpoint_save, recorder_of

__all__ = ["CHECKPOINT_KEY", "Session", "is_best"]

CHECKPOINT_KEY = "tachograph"
"""Where a checkpoint says which run saved it."""


class Session:
    """One run as the callback and the logger of a trainer see it.

    Attributes:
        job: what is recorded, in whichever run.
        has_callback: whether a callback looks at the trainer, so that a logger need not.
        num_steps: optimizer steps that are done.
        steps: what follows the batches, while a fit goes on.
        default_name: the name of the run if the user chose none.
    """

    counts_steps_from = 0
    """The number that a checkpoint has which was saved after the first step; metrics count from 0."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.job = Job("lightning", plan)
        self.has_callback = False
        self.num_steps = 0
        self.steps: Steps | None = None
        self.hparams: dict[str, Any] = {}
        self.default_name: str | None = None
        self._trainer: weakref.ref[Any] | None = None
        self._loaded: dict[str, Any] = {}
        self._load: tuple[float, float, str] | None = None
        self._is_async = False

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to begin a session of its own: the run stays here."""
        return {"name": self.plan.name, "settings": self.plan.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Session.__init__(self, Plan(None, state["name"], state["settings"]))

    # The run -------------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run | None:
        """The run, once it has begun."""
        return self.job.run

    @property
    def trainer(self) -> Any:
        """The trainer it was last used with."""
        return self._trainer() if self._trainer is not None else None

    def use(self, trainer: Any, *, fits: bool) -> None:
        """Go on with a trainer. Another one that fits is another training, and has a run of its own."""
        if fits and self.trainer is not trainer and self.num_steps and self.job.owns_run:
            self.job.finish()
            self.job, self.num_steps, self.hparams, self.default_name = Job("lightning", self.plan), 0, {}, None
        self._trainer = weakref.ref(trainer)

    @property
    def is_open(self) -> bool:
        """Whether there is a run to record into."""
        return self.job.is_open

    def begin(self, trainer: Any = None, module: Any = None) -> Run:
        """Return the run that goes on; find or begin one if there is none."""
        if self.job.is_open and self.job.run is not None:
            return self.job.run
        config: dict[str, Any] = dict(self.hparams)
        facts: dict[str, Any] = {}
        version: str | None = None
        if trainer is not None:
            with guard("asking the trainer what it is going to do"):
                config |= config_of(trainer, module)
                facts = facts_of(trainer, module)
                version = version_of(trainer)
        plan, resume = self._plan_to_go_on()
        self.job = Job("lightning", plan)
        run = self.job.begin(name=self.default_name, config=config, facts=facts, resume=resume, version=version)
        self.hparams = config
        self._tell_of_load()
        return run

    def _plan_to_go_on(self) -> tuple[Plan, bool]:
        """Return the plan for a run, and whether it continues one: that of the checkpoint, or our own from before."""
        plan, before = self.plan, self.job
        if plan.run is not None:
            return plan, False
        if before.owns_run and before.run is not None and before.run.folder is not None:
            folder = before.run.folder
            settings = {**plan.settings, "log_dir": str(folder.path.parent)}
            return Plan(None, folder.name, settings), True
        name, run_id = self._loaded.get("run_name"), self._loaded.get("run_id")
        if not isinstance(name, str) or not name:
            return plan, False
        if plan.name not in {None, name, self._loaded.get("asked_name")}:
            return plan, False  # another name was asked for: it goes on from there, as another run
        settings = {key: value for key, value in plan.settings.items() if key != "resume"}
        log_dir = resolve_settings({"log_dir": settings["log_dir"]} if "log_dir" in settings else {}).log_dir
        is_here = is_run(log_dir, name, run_id)
        return Plan(None, name if is_here else plan.name or name, plan.settings), is_here

    @property
    def name(self) -> str:
        """The name of the run, or the one it will have."""
        run = self.job.run or self.plan.run or latest_run()
        if run is not None and run.status == "running":
            return run.name
        if self.default_name is None:
            self.default_name = time.strftime("run-%Y%m%d_%H%M%S")
        return self.plan.name or self.default_name

    @property
    def log_dir(self) -> str:
        """The folder in which the run's folder is, or will be."""
        run = self.job.run or self.plan.run
        if run is not None and run.folder is not None:
            return str(run.folder.path.parent)
        given = self.plan.settings.get("log_dir")
        return resolve_settings({"log_dir": given} if given is not None else {}).log_dir

    def join(self, other: Session) -> Session:
        """Return the one of two sessions that both are from now on, with what was chosen for either."""
        if other.is_open and not self.is_open:
            return other
        if not self.is_open:
            ours, theirs = self.plan, other.plan
            run = ours.run or theirs.run
            settings = {} if run is not None else {**theirs.settings, **ours.settings}
            self.plan = Plan(run, None if run is not None else ours.name or theirs.name, settings)
            self.default_name = self.default_name or other.default_name
            self.hparams |= other.hparams
        return self

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def mark_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Write into a checkpoint which run saves it, so that training that goes on from it can find it."""
        run = self.job.run
        if run is not None and run.id:
            who = {"run_name": run.name, "run_id": run.id, "asked_name": self.plan.name or "", "steps": self.num_steps}
            checkpoint[CHECKPOINT_KEY] = who

    def loaded(self, checkpoint: Any, path: str, start_s: float, stop_s: float, *, resumes: bool) -> None:
        """Hear that a checkpoint was loaded."""
        said = checkpoint.get(CHECKPOINT_KEY) if isinstance(checkpoint, Mapping) else None
        self._loaded = dict(said) if isinstance(said, Mapping) and resumes else {}
        self._load = (start_s, stop_s, path)
        if self.is_open:
            self._tell_of_load()

    def take_steps_loaded(self) -> int | None:
        """Return how many steps the checkpoint had that was loaded last; None without one, and the second time."""
        steps = self._loaded.pop("steps", None)
        return steps if type(steps) is int and steps >= 0 else None

    def _tell_of_load(self) -> None:
        load, self._load = self._load, None
        if load is None or self._is_marked_by_hand(Names.CHECKPOINT_LOAD):
            return
        start_s, stop_s, path = load
        span = self.job.begin_span(checkpoint_load(), start_s)
        self.job.end_span(span, at_s=stop_s, attributes={"checkpoint_directory": path})

    def begin_save(self, path: Any, *, is_async: bool) -> Span | None:
        """Mark that a checkpoint is being saved."""
        if is_async != self._is_async:
            self._is_async = is_async
            self.job.configure(save_checkpoint_strategy="async" if is_async else "sync")
        if not self.is_open or self._is_marked_by_hand(Names.CHECKPOINT_SAVE_SYNC):
            return None
        where = path if isinstance(path, (str, os.PathLike)) else None
        return self.job.begin_span(checkpoint_save(self.checkpoint_step, path=where))

    def end_save(self, span: Span | None, path: Any, error: BaseException | None) -> None:
        """Mark that it is saved, or handed to the background, or that it failed."""
        self.job.end_span(span, error=error)
        if self.steps is not None and span is not None and span.start_s is not None:
            self.steps.pause(span.start_s)
        if error is None and not self._is_async:
            self.log_checkpoint(path, self.checkpoint_step)

    def saved_later(self, path: Any, step: Any) -> None:
        """Hear, in another thread, that a checkpoint is on the disk."""
        run = self.job.run
        if run is None or not self.is_open or type(step) is not int:
            return
        number = max(0, step - 1) + self.counts_steps_from
        recorder_of(run).saved(number, path=path)
        self.log_checkpoint(path, number)

    def log_checkpoint(self, path: Any, step: int | None) -> None:
        """Record a checkpoint."""
        run = self.job.run
        if run is None or not self.is_open or not isinstance(path, (str, os.PathLike)):
            return
        run.log_checkpoint(path, step=step, is_best=is_best(self.trainer, path))

    @property
    def checkpoint_step(self) -> int:
        """The number of the last step that is done."""
        return max(0, self.num_steps - 1) + self.counts_steps_from

    @property
    def step(self) -> int | None:
        """The number of the last step that is done, None before the first."""
        return self.num_steps - 1 if self.num_steps > 0 else None

    def _is_marked_by_hand(self, name: Names) -> bool:
        return self.job.run is not None and recorder_of(self.job.run).find_open(name) is not None


def is_best(trainer: Any, path: Any) -> bool:
    """Tell whether a checkpoint is the best so far of one that monitors a metric."""
    for callback in getattr(trainer, "checkpoint_callbacks", ()):
        if getattr(callback, "monitor", None) and str(getattr(callback, "best_model_path", "")) == str(path):
            return True
    return False
