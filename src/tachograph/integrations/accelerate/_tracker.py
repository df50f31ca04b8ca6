"""`TachographTracker`: a tracker for the `log_with` of an accelerator.

Accelerate passes a tracker only the metrics that the loop logs. `TachographTracker.attach` also observes the
accelerator, so that optimizer steps, phases and checkpoints are recorded; `_observer` explains how.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import accelerate
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, is_initialized
from accelerate.tracking import GeneralTracker

from tachograph._base.guard import guard
from tachograph._base.patching import is_wrapped
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.experiment import Experiment, is_wandb_object, split_media
from tachograph.integrations._common.integration_run import IntegrationRun, RequestedActions, RunOptions
from tachograph.integrations._common.metrics import group_metrics
from tachograph.integrations._common.models import model_facts
from tachograph.integrations.accelerate._observer import AcceleratorObserver
from tachograph.recorder import Run
from tachograph.records import ValueProblem, check_run_name, mask_mapping, to_plain

__all__ = ["TachographTracker"]

_MAX_TABLE_ROWS = 1_000


class TachographTracker(GeneralTracker):
    """Records the metrics that an accelerator logs: ``Accelerator(log_with=TachographTracker("greyjacket"))``.

    Uses the current run if there is one. Otherwise it starts a run when the accelerator passes the config or first
    logs. The run ends with `Accelerator.end_training`, or with the process.

    Args:
        run_name: the name of the run.
        run: the run to record into; the current run by default.
        settings: settings of the run, as for `tachograph.init`.

    Raises:
        ConfigError: if a setting does not exist.
        RunNameError: if the name is not a valid folder name.

    Example:
        >>> tracker = TachographTracker("greyjacket", log_dir="./logs")
        >>> accelerator = Accelerator(log_with=tracker)
        >>> tracker.attach(accelerator)  # also record optimizer steps, phases and checkpoints
        >>> accelerator.init_trackers("project", config=config)
    """

    name = "tachograph"
    requires_logging_directory = False
    main_process_only = False  # every other process writes its own journal

    def __init__(self, run_name: str | None = None, *, run: Run | None = None, **settings: Any) -> None:
        super().__init__()
        if run_name is not None:
            check_run_name(run_name)
        self._plan = RunOptions(run, run_name, settings)
        self._job = IntegrationRun("accelerate", self._plan)
        self._observer: AcceleratorObserver | None = None
        self._experiment: tuple[Run, Experiment] | None = None
        self._may_start_run = True
        """Whether a run may be started: not again after it has ended, unless training starts again."""

    def __repr__(self) -> str:
        return f"TachographTracker({self._job.run or self._plan.name!r})"

    # Called by Accelerate ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Allow a run to be started. That happens with the config, which follows, or with the first log call."""
        self._may_start_run = True

    @property
    def tracker(self) -> Any:
        """The run, with the methods of TensorBoard's `SummaryWriter` and of W&B's run as well. Starts it if necessary.

        Example:
            >>> accelerator.get_tracker("tachograph", unwrap=True).log({"samples": [wandb.Image(picture)]})
        """
        run = self._begin_run()
        if self._experiment is None or self._experiment[0] is not run:
            self._experiment = run, Experiment(lambda: run)
        return self._experiment[1]

    @property
    def writer(self) -> Any:
        """The same as `tracker`, for programs that log to TensorBoard: ``tracker.writer.add_images(…)``."""
        return self.tracker

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Start the run with this config. If a run is open already, record the config in an event."""
        is_known = self._job.is_open
        run = self._begin_run(values)
        if is_known or not self._job.owns_run:
            problems: list[ValueProblem] = []
            run.event("config", config=mask_mapping(to_plain(dict(values), "config", problems)))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record metrics under their own names, and under the standard names of the dashboard and the rules.

        A name that starts with ``val``, ``eval`` or ``test`` is a result on held-out data.

        Args:
            values: names and values.
            step: the step; by default the number of optimizer steps, if the tracker is attached.
            kwargs: ignored; other trackers accept options here.
        """
        with guard("logging the metrics of an accelerator"):
            run = self._begin_run()
            if step is None and self._observer is not None:
                step = self._observer.num_steps
            values, media = split_media(values)
            training, validation, test = group_metrics(values)
            if validation:
                run.log_validation(validation, step=step, epoch=values.get("epoch"), prefix="")
            if test:
                run.log_test(test, step=step, epoch=values.get("epoch"), prefix="")
            if training:
                if self._observer is not None and self._observer.lr is not None:
                    training.setdefault("lr", self._observer.lr)
                run.log(training, step=step)
            if media:
                self.tracker.log_media(media, step)

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record pictures.

        Args:
            values: pictures by name: a list of arrays, tensors or PIL images, or a batch.
            step: the step; by default the number of optimizer steps, if the tracker is attached.
            kwargs: `caption`, a list of texts; `dataformats`, the order of the axes of a batch. Others are ignored.
        """
        with guard("logging images"):
            from tachograph.media import Image

            if step is None and self._observer is not None:
                step = self._observer.num_steps
            captions = kwargs.get("caption")
            pictures: dict[str, Any] = {}
            for name, images in values.items():
                texts = [captions] if isinstance(captions, str) else list(captions or ())
                if isinstance(images, (list, tuple)):
                    texts += [None] * (len(images) - len(texts))
                    pictures[name] = [
                        image if is_wandb_object(image) else Image(image, text)
                        for image, text in zip(images, texts, strict=False)
                    ]
                else:
                    pictures[name] = Image(images, texts or None, layout=kwargs.get("dataformats"))
            self.tracker.log(pictures, step=step)

    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record rows or a data frame as an additional table on the completions page. Only the last rows are kept.

        A table with pictures or other media in its cells is recorded as media.
        """
        with guard("logging a table"):
            from tachograph.bridges.wandb.facade.media_values import bare_media
            from tachograph.bridges.wandb.logged_media import media_cell
            from tachograph.media import Table

            if dataframe is not None:
                num_rows, rows = len(dataframe), dataframe.tail(_MAX_TABLE_ROWS).to_dict("records")
            else:
                data = data or []
                names = columns or [f"column_{index}" for index in range(len(data[0]) if data else 0)]
                num_rows = len(data)
                rows = [dict(zip(names, cells, strict=False)) for cells in data[-_MAX_TABLE_ROWS:]]
            rows = [{name: media_cell(cell) for name, cell in row.items()} for row in rows]
            if any(bare_media(cell) is not None for row in rows for cell in row.values()):
                self._begin_run().log({table_name: Table(rows)}, step=step)
                return
            self._begin_run().log_completions(rows, step=step, table=table_name, num_dropped=num_rows - len(rows))

    def finish(self) -> None:
        """Finish the run, if this tracker started it, and detach from the accelerator."""
        with guard("finishing the run of an accelerator"):
            if self._observer is not None:
                self._observer.detach()
                self._observer = None
            self._job.finish()

    # Called by the user --------------------------------------------------------------------------------------------

    def attach(self, accelerator: Accelerator, *, target: int | None = None) -> TachographTracker:
        """Also record optimizer steps, phases and checkpoints of an accelerator, and everything it logs.

        Call it in every process of the job, before or after `prepare`.

        Args:
            accelerator: the accelerator of your loop. For the one inside a `Trainer`, use the trainer's callback.
            target: the number of optimizer steps to train for, if known.

        Returns:
            The tracker.

        Raises:
            ConfigError: if it is not an accelerator, or the accelerator or the tracker is attached already.
        """
        if not isinstance(accelerator, Accelerator):
            raise ConfigError(f"attach({accelerator!r:.80}): expected an Accelerator")
        if self._observer is not None and self._observer.accelerator is accelerator:
            return self
        if self._observer is not None or is_wrapped(accelerator.backward):
            raise ConfigError(
                "already attached: a tracker can observe one accelerator, and an accelerator can have one tracker"
            )
        # Accelerate itself adds the trackers in `log_with`, but only in the main process.
        is_added_later = accelerator.is_main_process and any(one is self for one in accelerator.log_with)
        if not is_added_later and all(one is not self for one in accelerator.trackers):
            accelerator.trackers.append(self)
        self._may_start_run = True
        self._observer = AcceleratorObserver(accelerator, self._job, self._begin_run, target)
        return self

    @property
    def step(self) -> int:
        """Completed optimizer steps, including those before a resume if the checkpoint contains their number.

        Set it after loading a checkpoint that was saved without this tracker.
        """
        return self._observer.num_steps if self._observer is not None else 0

    @step.setter
    def step(self, step: int) -> None:
        if self._observer is None:
            raise ConfigError("cannot set the step: the tracker is not attached; call attach(accelerator) first")
        self._observer.set_step(step)

    def poll_requests(self) -> RequestedActions:
        """Return the requests of readers: ``poll_requests().stop`` and ``poll_requests().checkpoint``.

        All processes of a job must call it at the same step: rank 0 broadcasts the requests to the others.
        """
        with guard("polling the requests of a run"):
            self._begin_run()
            return self._job.requested_actions()
        return RequestedActions(stop=False, checkpoint=False)

    def _begin_run(self, config: Mapping[str, Any] | None = None) -> Run:
        run = self._job.run
        if run is not None and (run.status == "running" or not self._may_start_run):
            return run
        facts = _facts(config or {})
        if self._observer is not None:
            facts |= model_facts(next(iter(self._observer.accelerator._models), None))
        method = "tracker" if self._observer is None else "wrapped"
        new_run = self._job.begin(config=config, facts=facts, method=method, version=accelerate.__version__)
        self._may_start_run = False
        return new_run


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
