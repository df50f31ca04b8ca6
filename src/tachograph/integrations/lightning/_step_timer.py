"""Times the optimizer steps of a fit and their phases.

Lightning calls hooks around each batch and around the parts of it, with two gaps. It has no hook before it fetches a
batch, so `_patches` wraps the methods around a fetch. It has none after the optimizer has stepped, so the end of the
batch counts as the end of the step. The order of calls for one batch:

    fetch_started → fetch_ended → batch_started → backward_started → backward_ended → step_started → batch_ended

The forward pass lies between `batch_started` and `backward_started`. Each call ends the open phase with a mark and
opens the next one. A batch that does not advance the trainer's `global_step` (gradient accumulation) leaves the
iteration open; the next batch continues it. With manual optimization and several optimizers, the time between one
optimizer's step and the next backward pass also contains a forward pass, so it is counted as neither phase.

While the timer skips steps, because the governor wants no details of them, only the ends of their batches are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from tachograph.integrations._common.integration_run import IntegrationRun, Names
from tachograph.integrations._common.phases import PhaseMarks
from tachograph.integrations._common.skipped_iterations import SkippedIterations
from tachograph.integrations._common.tensors import gradient_norm, sum_losses
from tachograph.records import LazyValue

__all__ = ["StepTimer"]

_NUM_HOOKS = 7
"""Hooks in a batch: around the fetch, at its start, around the backward pass, before the optimizer step, at its end."""


class StepTimer:
    """Times the batches of one fit and groups them into optimizer steps.

    Args:
        job: receives iterations and phases.
        is_cuda: whether phases are timed on the GPU.
        global_step: the trainer's step count when the fit starts.
        batch_size: samples in a step on all ranks, if known.
        grad_norm_every: compute the gradient norm every N steps if gradients are not clipped; 0 never computes it.
    """

    def __init__(
        self,
        job: IntegrationRun,
        *,
        is_cuda: bool,
        global_step: int,
        batch_size: int | None = None,
        grad_norm_every: int = 0,
    ) -> None:
        self._job = job
        self.governor = job.governor
        """Decides which steps are recorded in detail; every hook adds its time to it."""
        self._batch_size = batch_size
        self._is_cuda = is_cuda
        self._global_step = global_step
        self._grad_norm_every = grad_norm_every
        self._fetch: tuple[float, float] | None = None
        self._fetch_start_s: float | None = None
        self._marks: PhaseMarks | None = None
        """The phases of the open iteration; None if no iteration is open."""
        self._phase: Names | None = None
        """The phase since the last mark; None if that time belongs to no phase."""
        self._losses: list[Any] = []
        self._lr: dict[str, Any] = {}
        self._norm: Any = None
        self._num_norms = 0
        self._last_end_s = perf_counter()
        self._paused_s = 0.0
        self._paused_until_s = 0.0
        self.skipped_iterations: SkippedIterations | None = None
        """The steps that are only counted at present."""

    def discard_iteration(self) -> None:
        """Discard the open iteration, if any: a new epoch starts, or the step has been recorded."""
        self._marks, self._phase, self._losses, self._norm, self._num_norms = None, None, [], None, 0

    def pause(self, start_s: float) -> None:
        """Exclude the time from `start_s` until now from the step: a validation, a save or the end of an epoch."""
        self.resume_sampling()
        now_s = perf_counter()
        self._paused_s += now_s - max(start_s, self._paused_until_s)
        self._paused_until_s = now_s

    # Steps that are only counted -----------------------------------------------------------------------------------

    def start_skipping(self, max_steps: int) -> None:
        """Only count the next steps, as many as the governor wants no details of, but at most `max_steps`."""
        num_steps = min(self.governor.num_skippable, max_steps)
        if num_steps > 0 and self._marks is None and self._job.can_skip:
            self.governor.start_iteration()
            self.skipped_iterations = SkippedIterations(self._last_end_s, num_steps, _NUM_HOOKS)

    def count_batch(self, iterations: SkippedIterations, global_step: int) -> bool:
        """Handle the end of a batch while steps are skipped; return whether it completes a step."""
        now_s = perf_counter()
        if global_step == self._global_step:
            return False
        self._global_step = global_step
        if iterations.count(now_s):
            with self.governor.hook("resuming sampling"):
                self.resume_sampling()
        return True

    def resume_sampling(self) -> None:
        """Record the steps that were only counted, and time the next one."""
        iterations, self.skipped_iterations = self.skipped_iterations, None
        if iterations is not None and iterations.stops_s:
            self._job.add_iterations(iterations)
            self._last_end_s, self._paused_s = iterations.stops_s[-1], 0.0

    # Around a batch ------------------------------------------------------------------------------------------------

    def fetch_started(self) -> None:
        """Start timing the wait for a batch."""
        self._fetch_start_s = perf_counter()
        if self._phase is Names.MODEL_FORWARD and self._marks is not None:  # `training_step` fetches it itself
            self._marks.mark(self._phase)

    def fetch_ended(self) -> None:
        """End the wait for a batch, also at the end of the data."""
        start_s, self._fetch_start_s = self._fetch_start_s, None
        if start_s is None:
            return
        if self._phase is Names.MODEL_FORWARD and self._marks is not None:
            self._job.add_data_wait(start_s, perf_counter())
            self._marks.mark(None)
        else:
            self._fetch = (start_s, perf_counter())

    def batch_started(self) -> None:
        """Start the forward pass, and an iteration if none is open: the batch is on its device."""
        fetch, self._fetch = self._fetch, None
        if self._marks is None:
            self._job.begin_iteration(fetch[0] if fetch is not None else None)
            self._marks = self._job.new_marks(self._is_cuda)
        if fetch is not None:
            self._job.add_data_wait(*fetch)
        self._marks.mark(None)
        self._phase = Names.MODEL_FORWARD

    def batch_ended(self, outputs: Any, global_step: int, accumulation: int) -> dict[str, Any] | None:
        """End a batch. Return the metrics of the step if the batch completes one, else None.

        There are no metrics if the values of this step are not recorded.
        """
        now_s = perf_counter()
        if self._phase is not None:
            self._switch_phase()
        if self._job.records_values:
            loss = self._job.read_scalar(_loss(outputs))
            if loss is not None:
                self._losses.append(loss)
        if global_step == self._global_step or self._marks is None:
            return None
        self._global_step = global_step
        marks, losses, norm, is_unique = self._marks, self._losses, self._norm, self._num_norms < 2
        self.discard_iteration()
        self._job.end_iteration(now_s, marks=marks)
        throughput = self._throughput(now_s)
        if not self._job.records_values:
            return {}
        metrics = {"train_loss": _mean(losses, accumulation), **self._lr, "grad_norm": norm if is_unique else None}
        return {name: value for name, value in {**metrics, **throughput}.items() if value is not None}

    def _throughput(self, now_s: float) -> dict[str, float]:
        """Return the duration of the step: the time since the previous step, without pauses."""
        took_s = now_s - self._last_end_s - self._paused_s
        self._last_end_s, self._paused_s = now_s, 0.0
        if took_s <= 0:
            return {}
        metrics = {"sec_per_step": took_s}
        return {**metrics, "samples_per_sec": self._batch_size / took_s} if self._batch_size else metrics

    # Inside a batch ------------------------------------------------------------------------------------------------

    def backward_started(self) -> None:
        """Start the backward pass: the loss is computed."""
        self._switch_phase(Names.MODEL_BACKWARD)

    def backward_ended(self) -> None:
        """End the backward pass: the gradients are computed."""
        self._switch_phase()

    def step_started(self, optimizer: Any, index: int, *, is_single: bool) -> None:
        """Start an optimizer step.

        Args:
            optimizer: the optimizer.
            index: its position among the trainer's optimizers.
            is_single: whether it is the only one.
        """
        groups = getattr(optimizer, "param_groups", None) or [{}]
        lr = groups[0].get("lr")
        if lr is not None:
            self._lr["lr" if index == 0 else f"lr/{index}"] = lr
        if self._grad_norm_every and is_single and (self._global_step + 1) % self._grad_norm_every == 0:
            self._norm = self._job.read_scalar(gradient_norm(groups))
        if self._phase is not None:
            self._switch_phase(Names.OPTIMIZER_UPDATE)
        # Usually no mark here: the optimizer phase starts at the end of the backward pass, which saves one GPU event.
        self._phase = Names.OPTIMIZER_UPDATE

    def gradients_clipped(self, norm: Any) -> None:
        """Keep the gradient norm that clipping computed. If a step clips twice, neither is the norm of the step."""
        if self._job.records_values:
            self._norm = self._job.read_scalar(norm)
            self._num_norms += 1

    def _switch_phase(self, next_phase: Names | None = None) -> None:
        last_phase, self._phase = self._phase, next_phase
        if last_phase is Names.OPTIMIZER_UPDATE and next_phase is Names.MODEL_BACKWARD:
            last_phase = None  # this time also contains a forward pass
        if self._marks is not None:
            self._marks.mark(last_phase)


def _loss(outputs: Any) -> Any:
    """Return the loss of a batch, a number or a tensor; None if `training_step` returned none."""
    return outputs.get("loss") if isinstance(outputs, Mapping) else outputs


def _mean(losses: list[Any], accumulation: int) -> Any:
    """Return the mean loss of the batches of a step. Lightning has divided each loss by `accumulation` already."""
    total = sum_losses(losses)
    if total is None or (len(losses) == 1 and accumulation == 1):
        return total
    factor = accumulation / len(losses)
    return LazyValue(lambda: factor * total.compute()) if isinstance(total, LazyValue) else factor * total
