"""`TachographLogger`: what a Lightning trainer logs, in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph._base.guard import guard
from tachograph.integrations._common.job import Plan
from tachograph.integrations.lightning._bases import Joining
from tachograph.integrations.lightning._session import Session
from tachograph.integrations.lightning._steps import logged
from tachograph.recorder import Run
from tachograph.records import OMIT, to_plain

__all__ = ["TachographLogger", "named_for"]

_PREFIXES = {
    "val": ("val_", "val/", "valid_", "valid/", "validation_", "validation/", "eval_", "eval/"),
    "test": ("test_", "test/"),
}


def named_for(kind: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return results on held-out data under names that say so: ``acc`` becomes ``val_acc``, ``val/acc`` stays."""
    own = _PREFIXES[kind]
    metrics = {name: value for name, value in metrics.items() if not _is_of_batch(name, metrics)}
    return {name if name.startswith(own) else f"{kind}_{name}": value for name, value in metrics.items()}


def _is_of_batch(name: str, metrics: Mapping[str, Any]) -> bool:
    """Tell whether a metric is of the last batch alone, and there is one for all of them."""
    return name.endswith("_step") and f"{name.removesuffix('_step')}_epoch" in metrics


class _Unbegun:
    """Stands for a run until somebody uses it: Lightning asks for the experiment before it loads a checkpoint."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._session.begin(), name)

    def __repr__(self) -> str:
        return f"<the run {self._session.name!r}, which has not begun>"


class TachographLogger(Joining):
    """Records what a trainer logs: ``Trainer(logger=TachographLogger("greyjacket"))``.

    It takes metrics, hyperparameters and checkpoints. Steps, phases and spans are seen by `TachographCallback` alone;
    use both for everything. A run that goes on is used; else one is begun with the first thing that is logged, and
    ends with the process.

    Args:
        name: the name of the run.
        run: the run to record into, if it is not the current one.
        settings: settings of the run, as `tachograph.init` takes them; `resume=True` continues the run of that name.

    Raises:
        ConfigError: for a setting that does not exist.
        RunNameError: for a name that cannot be a folder.
    """

    _lightning_path = "loggers.Logger"

    def __init__(self, name: str | None = None, *, run: Run | None = None, **settings: Any) -> None:
        super().__init__()
        self._session = Session(Plan(run, name, settings))

    @property
    def experiment(self) -> Any:
        """The run. Before it has begun: what stands for it, and begins it when it is used."""
        return self._session.run if self._session.is_open else _Unbegun(self._session)

    @property
    def name(self) -> str:
        """The name of the run, or the one it will have."""
        return self._session.name

    @property
    def version(self) -> str:
        """Nothing: a run that is resumed is the same run."""
        return ""

    @property
    def save_dir(self) -> str:
        """The folder with one folder per run. Checkpoints without a place of their own go into that of the run."""
        return self._session.log_dir

    @property
    def root_dir(self) -> str:
        """The folder with one folder per run."""
        return self._session.log_dir

    @property
    def log_dir(self) -> str | None:
        """The folder of the run, once it has begun."""
        run = self._session.run
        return run.path if run is not None else None

    @property
    def group_separator(self) -> str:
        """What stands between the parts of a metric's name."""
        return "/"

    def log_hyperparams(self, params: Any, *_arguments: Any, **_named: Any) -> None:
        """Record hyperparameters: in the config of the run that begins with it, or in an event."""
        values = dict(params) if isinstance(params, Mapping) else dict(vars(params)) if params is not None else {}
        session = self._session
        if not session.is_open:
            session.hparams |= values
            if not session.has_callback:  # it begins the run, when it knows whether a checkpoint is loaded
                session.begin()
            return
        with guard("logging hyperparameters"):
            new = {name: value for name, value in values.items() if not _is_same(value, session.hparams, name)}
            if new and session.run is not None:
                session.hparams |= new
                session.run.event("hyperparameters", hyperparameters=new)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record metrics of a step; those of a validation or a test are told by their names."""
        session = self._session
        if session.run is None:
            session.begin()  # a mistake in its settings is to be told
        with guard("logging metrics"):
            run = session.run
            if run is None or run.status != "running":
                return  # the user has ended it
            given = dict(metrics)
            if session.has_callback:
                self._log_rest(run, given, step)
                return
            epoch = given.pop("epoch", None)
            number = int(epoch) if isinstance(epoch, (int, float)) else None
            of_val = {name: given.pop(name) for name in list(given) if name.startswith(_PREFIXES["val"])}
            of_test = {name: given.pop(name) for name in list(given) if name.startswith(_PREFIXES["test"])}
            if of_val:
                run.log_validation(of_val, step=step, epoch=number, prefix="")
            if of_test:
                run.log_test(of_test, step=step, epoch=number, prefix="")
            if given:
                run.log(given if number is None else {**given, "epoch": number}, step=step)

    def _log_rest(self, run: Run, metrics: dict[str, Any], step: int | None) -> None:
        """Record what came to the logger alone: what the module logs, the callback records."""
        trainer = self._session.trainer
        known = logged(trainer) if trainer is not None else {}
        rest = {name: value for name, value in metrics.items() if name not in known and name != "epoch"}
        if rest:
            run.log(rest, step=step)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Do nothing: a graph of modules is not recorded."""

    def save(self) -> None:
        """Do nothing: records are on the disk within a second."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Record a checkpoint, unless the callback sees it being saved."""
        session = self._session
        if session.has_callback or not session.is_open or session.run is None:
            return
        with guard("logging a checkpoint"):
            path = getattr(checkpoint_callback, "_last_checkpoint_saved", None) or checkpoint_callback.best_model_path
            step = getattr(checkpoint_callback, "_last_global_step_saved", None)
            is_best = bool(checkpoint_callback.monitor) and path == checkpoint_callback.best_model_path
            if path:
                number = max(0, step - 1) if isinstance(step, int) else None
                session.run.log_checkpoint(path, step=number, is_best=is_best)

    def finalize(self, status: str) -> None:
        """Let the run go on: a test may follow. It ends with the process, and at a prompt here."""
        if not self._session.has_callback:
            with guard("finalizing"):
                self._session.job.finish_if_interactive()

    def finish(self) -> None:
        """End the run now, if it was begun for this logger; otherwise it ends with the process."""
        self._session.job.finish()


def _is_same(value: Any, known: Mapping[str, Any], name: str) -> bool:
    if name not in known:
        return False
    first, second = to_plain(value, name, []), to_plain(known[name], name, [])
    return first is not OMIT and bool(first == second)
