"""`sync_tensorboard`: also record the scalars that the writers of torch and tensorboardX write."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph.bridges.drop_in import as_scalar
from tachograph.bridges.wandb.facade.run import WandbRun

__all__ = ["observe_writers"]

_MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


def observe_writers(run: WandbRun) -> None:
    """Record the scalars of every writer of the modules that are imported, until the run ends."""
    patches = Patches()
    for module in _MODULES:
        writer = getattr(sys.modules.get(module), "SummaryWriter", None)
        if writer is not None:
            patches.wrap(writer, "add_scalar", functools.partial(_observe, run))
    on_finish = run._on_finish

    def finish(finished_run: WandbRun) -> None:
        patches.undo()
        on_finish(finished_run)

    run._on_finish = finish


def _observe(run: WandbRun, original: Callable[..., Any]) -> Callable[..., Any]:
    def add_scalar(self: Any, tag: str, scalar_value: Any, global_step: Any = None, *rest: Any, **options: Any) -> Any:
        result = original(self, tag, scalar_value, global_step, *rest, **options)
        with guard("recording a scalar"):
            run._run.log({tag: as_scalar(scalar_value)}, global_step)
        return result

    return add_scalar
