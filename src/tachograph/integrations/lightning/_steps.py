"""The batches of a fit: which of them make up an optimizer step, how their time was spent, and what they say.

Lightning calls back around a batch and around the parts of it, but neither before it asks for one nor after the
optimizer has stepped; the first it tells its profiler, the second is taken to be the end of the batch. With manual
optimization and several optimizers, the time between one's step and the next one's backward pass belongs to both, and
is told as neither.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from tachograph.integrations._common.iteration import gradient_norm
from tachograph.integrations._common.job import Job, Names
from tachograph.integrations._common.phases import Marks

__all__ = ["LoggedMetrics", "Steps"]

_NOTHING = object()


class Steps:
    """Follows the batches of one fit.

    Args:
        job: where iterations and phases go.
        is_cuda: whether phases are to be timed on the GPU.
        global_step: how many steps the trainer counts when the fit begins.
        batch_size: samples in a step, on all ranks, if that is known.
        grad_norm_every: work out the gradient norm every so many steps where nothing is clipped; 0: never.
    """

    def __init__(
        self,
        job: Job,
        *,
        is_cuda: bool,
        global_step: int,
        batch_size: int | None = None,
        grad_norm_every: int = 0,
    ) -> None:
        self._job = job
        self._batch_size = batch_size
        self._is_cuda = is_cuda
        self._global_step = global_step
        self._grad_norm_every = grad_norm_every
        self._fetch: tuple[float, float] | None = None
        self._fetch_s: float | None = None
        self._marks: Marks | None = None
        self._part: Names | None = None
        """What the time since the last mark is, as far as it can be told."""
        self._losses: list[Any] = []
        self._lr: dict[str, Any] = {}
        self._norm: Any = None
        self._num_norms = 0
        self._since_s = perf_counter()
        self._paused_s = 0.0
        self._paused_until_s = 0.0

    def begin_epoch(self) -> None:
        """Forget an iteration that was broken off."""
        self._marks, self._part, self._losses, self._norm, self._num_norms = None, None, [], None, 0

    def pause(self, start_s: float) -> None:
        """Hear that since some time no training was done, but a validation, a save or what ends an epoch."""
        now_s = perf_counter()
        self._paused_s += now_s - max(start_s, self._paused_until_s)
        self._paused_until_s = now_s

    # Around a batch ------------------------------------------------------------------------------------------------

    def fetch_begins(self) -> None:
        """A batch is asked for."""
        self._fetch_s = perf_counter()
        if self._part is Names.MODEL_FORWARD and self._marks is not None:  # `training_step` asks for it itself
            self._marks.mark(self._part)

    def fetch_ended(self) -> None:
        """The batch is there, or there is none."""
        began_s, self._fetch_s = self._fetch_s, None
        if began_s is None:
            return
        if self._part is Names.MODEL_FORWARD and self._marks is not None:
            self._job.phase(Names.DATA_LOADING, began_s, perf_counter())
            self._marks.mark(None)
        else:
            self._fetch = (began_s, perf_counter())

    def batch_begins(self) -> None:
        """A batch is on its device."""
        fetch, self._fetch = self._fetch, None
        if self._marks is None:
            self._job.begin_iteration(fetch[0] if fetch is not None else None)
            self._marks = Marks(self._is_cuda)
        if fetch is not None:
            self._job.phase(Names.DATA_LOADING, *fetch)
        self._marks.mark(None)
        self._part = Names.MODEL_FORWARD

    def batch_ended(self, outputs: Any, global_step: int, accumulation: int) -> dict[str, Any] | None:
        """A batch is done; return what is known of the step if it ends one, else None."""
        now_s = perf_counter()
        if self._part is not None:
            self._end_part()
        loss = _loss(outputs)
        if loss is not None:
            self._losses.append(loss)
        if global_step == self._global_step or self._marks is None:
            return None
        self._global_step = global_step
        marks, losses, norm, is_one = self._marks, self._losses, self._norm, self._num_norms < 2
        self.begin_epoch()
        self._job.end_iteration(now_s, marks=marks)
        known = {"train_loss": _mean(losses, accumulation), **self._lr, "grad_norm": norm if is_one else None}
        return {name: value for name, value in {**known, **self._pace(now_s)}.items() if value is not None}

    def _pace(self, now_s: float) -> dict[str, float]:
        """Return how long the step took, with all since the one before it that was no pause."""
        took_s = now_s - self._since_s - self._paused_s
        self._since_s, self._paused_s = now_s, 0.0
        if took_s <= 0:
            return {}
        pace = {"sec_per_step": took_s}
        return {**pace, "samples_per_sec": self._batch_size / took_s} if self._batch_size else pace

    # Inside a batch ------------------------------------------------------------------------------------------------

    def backward_begins(self) -> None:
        """The loss is there."""
        self._end_part(Names.MODEL_BACKWARD)

    def backward_ended(self) -> None:
        """The gradients are there."""
        self._end_part()

    def step_begins(self, optimizer: Any, place: int, *, is_single: bool) -> None:
        """An optimizer is about to step."""
        groups = getattr(optimizer, "param_groups", None) or [{}]
        lr = groups[0].get("lr")
        if lr is not None:
            self._lr["lr" if place == 0 else f"lr/{place}"] = lr
        if self._grad_norm_every and is_single and (self._global_step + 1) % self._grad_norm_every == 0:
            norm = gradient_norm(groups)
            self._norm = None if norm is None else _read(norm)
        if self._part is not None:
            self._end_part(Names.OPTIMIZER_UPDATE)
        self._part = Names.OPTIMIZER_UPDATE  # since the backward pass ended: a mark costs the GPU's driver some time

    def norm_known(self, norm: Any) -> None:
        """Gradients were clipped, and this was their norm; where that happens twice in a step, neither is it."""
        self._norm = _read(norm)
        self._num_norms += 1

    def _end_part(self, begins: Names | None = None) -> None:
        part, self._part = self._part, begins
        if part is Names.OPTIMIZER_UPDATE and begins is Names.MODEL_BACKWARD:
            part = None  # a forward pass is in it as well
        if self._marks is not None:
            self._marks.mark(part)


class LoggedMetrics:
    """Tells which of the metrics that a trainer has for its loggers came since it was last asked."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}

    def take(self, trainer: Any) -> dict[str, Any]:
        """Return those that are new."""
        present = logged(trainer)
        new = {name: value for name, value in present.items() if self._seen.get(name, _NOTHING) is not value}
        self._seen = dict(present)
        return new

    def pass_over(self, trainer: Any) -> None:
        """Take it that all of them are known."""
        self._seen = dict(logged(trainer))

    def take_named(self, trainer: Any, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return those that are new and have one of some names."""
        present, seen = logged(trainer), self._seen
        new: dict[str, Any] = {}
        for name in names:
            value = present.get(name, _NOTHING)
            if value is not _NOTHING and seen.get(name) is not value:
                new[name] = seen[name] = value
        return new


def logged(trainer: Any) -> Mapping[str, Any]:
    """Return what a trainer has for its loggers; the public property works out means, which can be a collective."""
    metrics = getattr(getattr(trainer, "_logger_connector", None), "_logged_metrics", None)
    if isinstance(metrics, dict):
        return metrics
    found: Mapping[str, Any] = trainer.logged_metrics
    return found


def _loss(outputs: Any) -> Any:
    """Return the loss of a batch as a number or a tensor with one element; None if nobody says it."""
    loss: Any = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    torch: Any = sys.modules["torch"]
    if type(loss) is torch.Tensor and loss.numel() == 1:
        return _read(loss)
    return loss if type(loss) is float else None


def _read(value: Any) -> Any:
    """Return a tensor's number where that waits for nothing, else the tensor, which the recorder reads later."""
    return value.item() if value.device.type == "cpu" else value.detach()


def _mean(losses: list[Any], accumulation: int) -> Any:
    """Return the mean loss of the batches of a step. Lightning has divided each by how many there should be."""
    if not losses:
        return None
    if len(losses) == 1 and accumulation == 1:
        return losses[0]
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total * (accumulation / len(losses))
