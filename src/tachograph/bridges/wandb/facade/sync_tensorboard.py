"""`sync_tensorboard`: also record the values that the writers of torch and tensorboardX write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.import_watch import ImportWatch
from tachograph._base.patching import Patches
from tachograph.bridges.drop_in import as_number, as_scalar, histogram, log_histogram, place_row
from tachograph.bridges.wandb.facade.run import WandbRun
from tachograph.recorder import Run

__all__ = ["observe_writers"]

_MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
_NUM_BINS = 64


def observe_writers(run: WandbRun) -> None:
    """Record the values of every writer until the run ends, also of modules that are imported later.

    Under `tacho run`, the writers are observed already, and are not wrapped a second time.
    """
    patches = Patches()

    def wrap(module: ModuleType) -> None:
        with guard("observing TensorBoard"):
            for record in (add_scalar, add_scalars, add_text, add_histogram):
                make = functools.partial(_observe, run._run, record)
                patches.wrap(module.SummaryWriter, record.__name__, make)

    watch = ImportWatch(dict.fromkeys(_MODULES, wrap))
    watch.install()
    on_finish = run._on_finish

    def finish(finished_run: WandbRun) -> None:
        watch.remove()
        patches.undo()
        on_finish(finished_run)

    run._on_finish = finish


def _observe(run: Run, record: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        with guard("recording a call to a writer"):
            record(run, *args, **kwargs)
        return result

    return call


# The methods that are observed, with the names of their arguments -----------------------------------------------------


def add_scalar(run: Run, tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any) -> None:
    """Record a number."""
    _log(run, {tag: as_scalar(scalar_value)}, global_step)


def add_scalars(
    run: Run, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, *_: Any, **__: Any
) -> None:
    """Record several numbers as `main_tag/name`."""
    _log(run, {f"{main_tag}/{name}": as_scalar(value) for name, value in tag_scalar_dict.items()}, global_step)


def add_text(run: Run, tag: str, text_string: str, global_step: Any = None, *_: Any, **__: Any) -> None:
    """Record a text."""
    step, step_column = place_row(run, "tensorboard", _step(global_step))
    run.event("text", step=step, tag=tag, text=text_string, **step_column)


def add_histogram(run: Run, tag: str, values: Any, global_step: Any = None, *_: Any, **__: Any) -> None:
    """Record the distribution of an array."""
    counts, edges, num_not_finite = histogram(values, _NUM_BINS)
    step, step_column = place_row(run, "tensorboard", _step(global_step))
    log_histogram(run, tag, counts, edges, step=step, num_not_finite=num_not_finite, **step_column)


def _log(run: Run, values: dict[str, Any], global_step: Any) -> None:
    step, step_column = place_row(run, "tensorboard", _step(global_step))
    run.log({**values, **step_column}, step)


def _step(global_step: Any) -> int | None:
    return None if global_step is None else int(as_number(global_step))
