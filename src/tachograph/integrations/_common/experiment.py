"""`Experiment`: a run that can also be used like TensorBoard's `SummaryWriter` and like a run of W&B.

Programs that train with Lightning or Accelerate use the object behind the logger: `logger.experiment.add_image(…)`,
`tracker.writer.add_images(…)`, `experiment.log({"samples": [wandb.Image(…)]})`. They are written for one of these tools
and must keep working, so an `Experiment` is the run with the methods that the run lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import guard, warn
from tachograph.recorder import Run

if TYPE_CHECKING:
    from tachograph.bridges.tensorboard.facade import RunWriter
    from tachograph.bridges.wandb.facade.run import WandbRun

__all__ = ["Experiment", "is_wandb_object", "split_media"]

_MAX_DEPTH = 8


class Experiment:
    """Has the attributes of a run, of a `SummaryWriter` and of a run of W&B; the first one of these has precedence.

    Args:
        current_run: returns the run. It is called when something needs the run, and may start it.
    """

    __slots__ = ("_current_run", "_wandb_view", "_warned_names", "_writer")

    _current_run: Callable[[], Run]
    _wandb_view: tuple[Run, WandbRun] | None
    _warned_names: set[str]
    _writer: RunWriter | None

    def __init__(self, current_run: Callable[[], Run]) -> None:
        for name, value in (
            ("_current_run", current_run),
            ("_warned_names", set()),
            ("_writer", None),
            ("_wandb_view", None),
        ):
            object.__setattr__(self, name, value)  # `__setattr__` of the class passes attributes on to the run

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of a run: code that checks the type of a run must accept an experiment."""
        return Run

    def __repr__(self) -> str:
        return repr(self._current_run())

    def __eq__(self, other: object) -> bool:
        return self._current_run() is (other._current_run() if type(other) is type(self) else other)

    def __hash__(self) -> int:
        return hash(self._current_run())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not hasattr(Run, name):
            from tachograph.bridges.tensorboard.facade import RunWriter
            from tachograph.bridges.wandb.facade.run import WandbRun

            if name.startswith("_"):
                raise AttributeError(f"'Run' object has no attribute {name!r}")
            if hasattr(RunWriter, name):
                return getattr(self._tensorboard_writer(), name)
            if hasattr(WandbRun, name):
                return getattr(self._wandb_run(), name)
        return getattr(self._current_run(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        from tachograph.bridges.wandb.facade.run import WandbRun

        attribute = getattr(WandbRun, name, None)
        is_setting = isinstance(attribute, property) and attribute.fset is not None  # such as `notes`
        setattr(self._wandb_run() if is_setting else self._current_run(), name, value)

    def __enter__(self) -> Any:
        self._current_run().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._current_run().__exit__(*error)

    # Logging ---------------------------------------------------------------------------------------------------------

    def log(
        self, metrics: Any = (), /, step: Any = None, *, commit: Any = None, sync: Any = None, **more_metrics: Any
    ) -> None:
        """Record metrics and media, as `Run.log` does, and also objects of W&B such as `wandb.Image`.

        Args:
            metrics: names and values.
            step: the step; by default the latest one.
            commit: has no effect: values of one step belong together anyway.
            sync: has no effect.
            more_metrics: metrics as keyword arguments.
        """
        run = self._current_run()
        media: dict[str, Any] = {}
        if isinstance(metrics, Mapping):
            with guard("searching for media"):
                metrics, media = split_media({**metrics, **more_metrics})
                more_metrics = {}
                if step is None:
                    step = metrics.get("global_step")
        if metrics or more_metrics or not media:
            run.log(metrics, step, **more_metrics)
        self.log_media(media, step)

    def log_media(self, media: Mapping[str, Any], step: int | None = None) -> None:
        """Record objects of W&B, by name."""
        for name, value in media.items():
            self._wandb_run().record_media(name, value, step)

    def log_artifact(self, name: Any, *arguments: Any, **options: Any) -> Any:
        """Store an artifact, called like `Run.log_artifact`, or as with W&B: with an `Artifact` or a path alone."""
        is_named = isinstance(name, str) and (arguments or "files" in options)
        owner: Any = self._current_run() if is_named else self._wandb_run()
        return owner.log_artifact(name, *arguments, **options)

    # Methods that only warn; they start no run -----------------------------------------------------------------------

    def define_metric(self, *_arguments: Any, **_options: Any) -> None:
        """Warn once: metrics have the axes and the summaries that readers choose."""
        self._warn_once("define_metric", "the dashboard draws each metric over steps, epochs or time; see tacho ui")

    def watch(self, *_arguments: Any, **_options: Any) -> list[Any]:
        """Warn once: gradients are not recorded this way."""
        self._warn_once("watch", "nothing is recorded; tachograph.watch(model, optimizer) records gradients")
        return []

    def unwatch(self, *_arguments: Any, **_options: Any) -> None:
        """Do nothing."""

    def _warn_once(self, name: str, reason: str) -> None:
        if name not in self._warned_names:
            self._warned_names.add(name)
            warn("%s: %s", name, reason)

    # The other vocabularies ------------------------------------------------------------------------------------------

    def _tensorboard_writer(self) -> RunWriter:
        writer = self._writer
        if writer is None:
            from tachograph.bridges.tensorboard.facade import RunWriter

            writer = RunWriter(self._current_run)
            object.__setattr__(self, "_writer", writer)
        return writer

    def _wandb_run(self) -> WandbRun:
        run, view = self._current_run(), self._wandb_view
        if view is None or view[0] is not run:
            from tachograph.bridges.wandb.facade.run import WandbRun

            view = run, WandbRun(run, id=run.id, config={}, is_ours=False, on_finish=lambda _: None)
            object.__setattr__(self, "_wandb_view", view)
        return view[1]


def split_media(values: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return the values that are no objects of W&B, and the objects of W&B by their full names."""
    media: dict[str, Any] = {}
    return _split(values, "", media, 0), media


def _split(values: Mapping[Any, Any], prefix: str, media: dict[str, Any], depth: int) -> dict[Any, Any]:
    others: dict[Any, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value and depth < _MAX_DEPTH:
            inner = _split(value, f"{prefix}{name}/", media, depth + 1)
            if inner:
                others[name] = inner
        elif is_wandb_object(value):
            media[f"{prefix}{name}"] = value
        else:
            others[name] = value
    return others


def is_wandb_object(value: Any) -> bool:
    """Return whether a value, or an element of a list, is an object of W&B: of the package or of `tachograph.wandb`."""
    if isinstance(value, (list, tuple)):
        return any(is_wandb_object(item) for item in value[:64])
    return type(value).__module__.startswith(("wandb.", "tachograph.bridges.wandb."))
