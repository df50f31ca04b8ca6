"""`TachographLogger`: a Lightning logger that records into a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph._base.guard import guard
from tachograph.integrations._common.experiment import Experiment, is_wandb_object
from tachograph.integrations._common.integration_run import RunOptions
from tachograph.integrations.lightning._bases import LightningSubclass
from tachograph.integrations.lightning._metrics import PREFIXES, logged_metrics
from tachograph.integrations.lightning._trainer_run import TrainerRun
from tachograph.recorder import Run
from tachograph.records import OMIT, to_plain

__all__ = ["TachographLogger"]


class _LoggerExperiment(Experiment):
    """An experiment that starts the run on first use: Lightning reads `experiment` before it loads a checkpoint."""

    __slots__ = ("_logger",)

    def __init__(self, logger: TachographLogger) -> None:
        object.__setattr__(self, "_logger", logger)
        super().__init__(lambda: logger._trainer_run.begin())  # noqa: PLW0108 - the logger may get another `_trainer_run`

    def __repr__(self) -> str:
        trainer_run = self._logger._trainer_run
        return repr(trainer_run.run) if trainer_run.is_open else f"<run {trainer_run.name!r}, not started yet>"


class TachographLogger(LightningSubclass):
    """Records the metrics that a trainer logs: ``Trainer(logger=TachographLogger("greyjacket"))``.

    It records metrics, hyperparameters and checkpoints. Steps, phases and spans need `TachographCallback`; use both to
    record everything. Uses the current run if there is one. Otherwise the first log call starts a run, which ends with
    the process.

    Args:
        name: the name of the run.
        run: the run to record into; the current run by default.
        settings: settings of the run, as for `tachograph.init`; `resume=True` resumes the run of that name.

    Raises:
        ConfigError: if a setting does not exist.
        RunNameError: if the name is not a valid folder name.
    """

    _lightning_path = "loggers.Logger"

    def __init__(self, name: str | None = None, *, run: Run | None = None, **settings: Any) -> None:
        super().__init__()
        self._trainer_run = TrainerRun(RunOptions(run, name, settings))
        self._experiment: Experiment | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_experiment": None}

    @property
    def experiment(self) -> Any:
        """The run, started on first use, with the methods of TensorBoard's `SummaryWriter` and of W&B's run as well.

        Example:
            >>> logger.experiment.add_image("samples/first", picture, step)
            >>> logger.experiment.log({"samples": [wandb.Image(picture, caption=prompt)]})
        """
        if self._experiment is None:
            self._experiment = _LoggerExperiment(self)
        return self._experiment

    @property
    def name(self) -> str:
        """The name of the run, or the name it will have."""
        return self._trainer_run.name

    @property
    def version(self) -> str:
        """Always empty: a resumed run is the same run."""
        return ""

    @property
    def save_dir(self) -> str:
        """The folder with one folder per run. Lightning saves checkpoints without a `dirpath` below it."""
        return self._trainer_run.log_dir

    @property
    def root_dir(self) -> str:
        """The folder with one folder per run."""
        return self._trainer_run.log_dir

    @property
    def log_dir(self) -> str | None:
        """The folder of the run, once it is started."""
        run = self._trainer_run.run
        return run.path if run is not None else None

    @property
    def group_separator(self) -> str:
        """The separator between the parts of a metric's name."""
        return "/"

    def log_hyperparams(self, params: Any, *_args: Any, **_kwargs: Any) -> None:
        """Record hyperparameters: in the config of a run that is not started yet, otherwise in an event."""
        values = dict(params) if isinstance(params, Mapping) else dict(vars(params)) if params is not None else {}
        trainer_run = self._trainer_run
        if not trainer_run.is_open:
            trainer_run.hparams |= values
            if not trainer_run.has_callback:  # the callback starts the run once it knows whether a checkpoint is loaded
                trainer_run.begin()
            return
        with guard("logging hyperparameters"):
            new = {name: value for name, value in values.items() if not _is_unchanged(value, trainer_run.hparams, name)}
            if new and trainer_run.run is not None:
                trainer_run.hparams |= new
                trainer_run.run.event("hyperparameters", hyperparameters=new)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics of a step. A prefix of the name marks results of a validation or a test."""
        trainer_run = self._trainer_run
        if trainer_run.run is None:
            trainer_run.begin()  # unguarded: invalid settings must raise
        with guard("logging metrics"):
            run = trainer_run.run
            if run is None or run.status != "running":
                return  # the user has finished it
            values = dict(metrics)
            if trainer_run.has_callback:
                self._log_remaining(run, values, step)
                return
            epoch = values.pop("epoch", None)
            number = int(epoch) if isinstance(epoch, (int, float)) else None
            validation = {name: values.pop(name) for name in list(values) if name.startswith(PREFIXES["val"])}
            test = {name: values.pop(name) for name in list(values) if name.startswith(PREFIXES["test"])}
            if validation:
                run.log_validation(validation, step=step, epoch=number, prefix="")
            if test:
                run.log_test(test, step=step, epoch=number, prefix="")
            if values:
                run.log(values if number is None else {**values, "epoch": number}, step=step)

    def _log_remaining(self, run: Run, metrics: dict[str, Any], step: int | None) -> None:
        """Record the metrics that only the logger receives; the callback records the module's metrics."""
        trainer = self._trainer_run.trainer
        module_metrics = logged_metrics(trainer) if trainer is not None else {}
        remaining = {name: value for name, value in metrics.items() if name not in module_metrics and name != "epoch"}
        if remaining:
            run.log(remaining, step=step)

    def log_image(self, key: str, images: list[Any], step: int | None = None, **options: Any) -> None:
        """Record pictures: arrays, tensors, PIL images or paths.

        Args:
            key: the name.
            images: the pictures.
            step: the step; by default the latest one.
            options: lists with an entry for each picture, such as ``caption=["a red fox", "a blue fox"]``.
        """
        self._log_media("Image", key, images, step, options)

    def log_audio(self, key: str, audios: list[Any], step: int | None = None, **options: Any) -> None:
        """Record sounds; `options` has `sample_rate` and `caption` as lists with an entry for each."""
        options["rate"] = options.pop("sample_rate", options.pop("rate", None))
        self._log_media("Audio", key, audios, step, options)

    def log_video(self, key: str, videos: list[Any], step: int | None = None, **options: Any) -> None:
        """Record clips; `options` has `fps` and `caption` as lists with an entry for each.

        As in Lightning's `WandbLogger`, arrays are frames × channels × height × width.
        """
        options.pop("format", None)
        layouts = [_video_layout(video) for video in videos]
        self._log_media("Video", key, videos, step, {"layout": layouts, **options})

    def log_table(
        self,
        key: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Record rows, or a data frame, as a table."""
        with guard("logging a table"):
            from tachograph.bridges.wandb.logged_media import media_cell
            from tachograph.media import Table

            rows = [[media_cell(cell) for cell in row] for row in data or ()]
            source = {"dataframe": dataframe} if dataframe is not None else {"columns": columns, "data": rows}
            self.experiment.log({key: Table(**source)}, step=step)

    log_text = log_table

    def _log_media(self, kind: str, key: str, values: list[Any], step: int | None, options: dict[str, Any]) -> None:
        with guard("logging media"):
            from tachograph import media

            lists = {name: entries for name, entries in options.items() if entries is not None}
            items = [
                value
                if is_wandb_object(value)
                else getattr(media, kind)(value, **{name: entries[index] for name, entries in lists.items()})
                for index, value in enumerate(values)
            ]
            self.experiment.log({key: items}, step=step)

    def watch(self, *_args: Any, **_kwargs: Any) -> None:
        """Warn once: gradients are not recorded this way, but by `tachograph.watch`."""
        self.experiment.watch()

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Do nothing: model graphs are not recorded."""

    def save(self) -> None:
        """Do nothing: the writer thread saves records within a second."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Record a checkpoint, unless the callback has observed the save."""
        trainer_run = self._trainer_run
        if trainer_run.has_callback or not trainer_run.is_open or trainer_run.run is None:
            return
        with guard("logging a checkpoint"):
            # Private attributes: the public ones refer to the best checkpoint, not to the one just saved.
            path = getattr(checkpoint_callback, "_last_checkpoint_saved", None) or checkpoint_callback.best_model_path
            step = getattr(checkpoint_callback, "_last_global_step_saved", None)
            is_best = bool(checkpoint_callback.monitor) and path == checkpoint_callback.best_model_path
            if path:
                number = max(0, step - 1) if isinstance(step, int) else None
                trainer_run.run.log_checkpoint(path, step=number, is_best=is_best)

    def finalize(self, status: str) -> None:
        """Keep the run open, because a test may follow. Finish it only in an interactive session."""
        if not self._trainer_run.has_callback:
            with guard("finalizing the logger"):
                self._trainer_run.job.finish_if_interactive()

    def finish(self) -> None:
        """Finish the run now, if this logger started it; otherwise it ends with the process."""
        self._trainer_run.job.finish()


def _video_layout(video: Any) -> str | None:
    """Return the order of the axes of an array; None, for the usual one, if W&B's would make no sense."""
    shape: Any = getattr(video, "shape", ())
    return "TCHW" if len(shape) == 4 and shape[1] in (1, 3, 4) else None


def _is_unchanged(value: Any, hparams: Mapping[str, Any], name: str) -> bool:
    if name not in hparams:
        return False
    first, second = to_plain(value, name, []), to_plain(hparams[name], name, [])
    return first is not OMIT and bool(first == second)
