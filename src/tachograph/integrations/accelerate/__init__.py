"""Hugging Face Accelerate: a tracker for its `log_with`, and what a tracker cannot see, for loops written by hand.

A tracker hears what is logged. `TachographTracker.attach` also wraps methods of one accelerator, and hooks into what
that accelerator prepared, so that optimizer steps, phases and checkpoints are seen; nothing else in the process, such
as the accelerator inside a `Trainer`, is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import accelerate
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, is_initialized
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.job import Asked, Job, Plan
from tachograph.integrations._common.metrics import sort_metrics
from tachograph.integrations._common.models import model_facts
from tachograph.integrations.accelerate._watch import AcceleratorWatch
from tachograph.recorder import Run
from tachograph.records import ValueProblem, check_run_name, mask_mapping, to_plain

__all__ = ["TachographTracker"]

_MOST_TABLE_ROWS = 1_000


class TachographTracker(GeneralTracker):
    """Records what an accelerator logs: ``Accelerator(log_with=TachographTracker("greyjacket"))``.

    A run that goes on is used; else one is begun when the accelerator brings the config or logs first. It ends with
    `Accelerator.end_training`, or with the process.

    Args:
        run_name: the name of the run.
        run: the run to record into, if it is not the current one.
        settings: settings of the run, as `tachograph.init` takes them.

    Raises:
        ConfigError: for a setting that does not exist.
        RunNameError: for a name that cannot be a folder.

    Example:
        >>> tracker = TachographTracker("greyjacket", log_dir="./logs")
        >>> accelerator = Accelerator(log_with=tracker)
        >>> tracker.attach(accelerator)  # optimizer steps, phases and checkpoints too
        >>> accelerator.init_trackers("project", config=config)
    """

    name = "tachograph"
    requires_logging_directory = False
    main_process_only = False  # the other processes have journals of their own

    def __init__(self, run_name: str | None = None, *, run: Run | None = None, **settings: Any) -> None:
        super().__init__()
        if run_name is not None:
            check_run_name(run_name)
        self._plan = Plan(run, run_name, settings)
        self._job = Job("accelerate", self._plan)
        self._watch: AcceleratorWatch | None = None
        self._wants_run = True
        """Whether a run may be begun: not again after it has ended, unless training is started anew."""

    def __repr__(self) -> str:
        return f"TachographTracker({self._job.run or self._plan.name!r})"

    # What accelerate calls -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Get ready. The run begins with the config, which comes next, or when something is recorded."""
        self._wants_run = True

    @property
    def tracker(self) -> Run:
        """The run, which begins now if it has not."""
        return self._begin()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Begin the run with this config; where one goes on already, an event says it."""
        is_known = self._job.is_open
        run = self._begin(values)
        if is_known or not self._job.owns_run:
            problems: list[ValueProblem] = []
            run.event("config", config=mask_mapping(to_plain(dict(values), "config", problems)))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record metrics under their own names, and under those that the dashboard and the rules know.

        Names that begin with ``val``, ``eval`` or ``test`` are results on held-out data.

        Args:
            values: names and values.
            step: the step; without it, the number of optimizer steps if the tracker is attached.
            kwargs: accepted, as other trackers do, and not used.
        """
        with guard("logging what an accelerator logs"):
            run = self._begin()
            if step is None and self._watch is not None:
                step = self._watch.num_steps
            training, validation, test = sort_metrics(values)
            if validation:
                run.log_validation(validation, step=step, epoch=values.get("epoch"), prefix="")
            if test:
                run.log_test(test, step=step, epoch=values.get("epoch"), prefix="")
            if training:
                if self._watch is not None and self._watch.lr is not None:
                    training.setdefault("lr", self._watch.lr)
                run.log(training, step=step)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record that there were images, by name and number: pixels are not kept."""
        with guard("logging images"):
            counts = {name: len(images) if hasattr(images, "__len__") else 1 for name, images in values.items()}
            self._begin().event("images", step=step, num_images=counts)

    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record a table, given by rows or as a data frame, beside the completions; of a long one, its end."""
        with guard("logging a table"):
            if dataframe is not None:
                num_rows, rows = len(dataframe), dataframe.tail(_MOST_TABLE_ROWS).to_dict("records")
            else:
                data = data or []
                names = columns or [f"column_{place}" for place in range(len(data[0]) if data else 0)]
                num_rows = len(data)
                rows = [dict(zip(names, cells, strict=False)) for cells in data[-_MOST_TABLE_ROWS:]]
            self._begin().log_completions(rows, step=step, table=table_name, num_dropped=num_rows - len(rows))

    def finish(self) -> None:
        """End the run, if it was begun by this tracker, and let go of the accelerator."""
        with guard("ending a run of an accelerator"):
            if self._watch is not None:
                self._watch.detach()
                self._watch = None
            self._job.finish()

    # What it can do besides ----------------------------------------------------------------------------------------

    def attach(self, accelerator: Accelerator, *, target: int | None = None) -> TachographTracker:
        """Also record optimizer steps, phases and checkpoints of an accelerator, and whatever it logs.

        To be called in every process of the job, before or after `prepare`.

        Args:
            accelerator: the one whose loop this is; not that inside a `Trainer`, which has a callback.
            target: optimizer steps to reach in all, if that is known.

        Returns:
            The tracker.

        Raises:
            ConfigError: if it is no accelerator, or attached to another tracker.
        """
        if not isinstance(accelerator, Accelerator):
            raise ConfigError(f"attach({accelerator!r:.80}): an Accelerator is expected")
        if self._watch is not None and self._watch.accelerator is accelerator:
            return self
        if self._watch is not None or hasattr(accelerator.backward, "_tachograph"):
            raise ConfigError("a tracker is attached to one accelerator, and an accelerator to one tracker")
        # Accelerate adds those in `log_with` itself, but in the main process alone.
        is_coming = accelerator.is_main_process and any(one is self for one in accelerator.log_with)
        if not is_coming and all(one is not self for one in accelerator.trackers):
            accelerator.trackers.append(self)
        self._wants_run = True
        self._watch = AcceleratorWatch(accelerator, self._job, self._begin, target)
        return self

    @property
    def step(self) -> int:
        """Optimizer steps done, with those before a resume as far as the checkpoint says them.

        Set it after loading a checkpoint that was saved without this tracker.
        """
        return self._watch.num_steps if self._watch is not None else 0

    @step.setter
    def step(self, step: int) -> None:
        if self._watch is None:
            raise ConfigError("the step can be set once the tracker is attached: call attach(accelerator) first")
        self._watch.go_on_at(step)

    def asked(self) -> Asked:
        """Return what a reader asked of the run: ``asked().stop`` and ``asked().checkpoint``.

        All processes of a job must call it at the same step, for the first one tells the others.
        """
        with guard("asking what is asked of a run"):
            self._begin()
            return self._job.asked()
        return Asked(stop=False, checkpoint=False)

    def _begin(self, config: Mapping[str, Any] | None = None) -> Run:
        run = self._job.run
        if run is not None and (run.status == "running" or not self._wants_run):
            return run
        facts = _facts(config or {})
        if self._watch is not None:
            facts |= model_facts(next(iter(self._watch.accelerator._models), None))
        method = "tracker" if self._watch is None else "wrapped"
        begun = self._job.begin(config=config, facts=facts, method=method, version=accelerate.__version__)
        self._wants_run = False
        return begun


def _facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the accelerator trains, as fields of the `start` record."""
    if not is_initialized():
        return {}
    state, num_steps = AcceleratorState(), GradientState().num_steps
    facts: dict[str, Any] = {
        "gradient_accumulation_steps": num_steps,
        "mixed_precision": state.mixed_precision,
        "distributed_type": str(getattr(state.distributed_type, "value", state.distributed_type)),
    }
    batch_size = config.get("batch_size")
    if num_steps > 1 and type(batch_size) is int and "gradient_accumulation_steps" not in config:
        facts["effective_batch_size"] = batch_size * num_steps
    return facts


# So that `Accelerator(log_with="tachograph")` is enough once this module is imported.
LOGGER_TYPE_TO_CLASS.setdefault(TachographTracker.name, TachographTracker)
