"""The state machine that recognises the training loop of a plain PyTorch script.

The script is not modified, so its loop has to be inferred from a few calls it makes anyway. `LoopObserver` translates
these calls into events, each a method of `LoopState`; the return value lists the outputs of the event. The machine
never reads a clock, a tensor or a recorder: times, gradient mode and "the script marks this itself" are arguments, so
that it can be tested without torch. (One exception: on CUDA, `PhaseMarks` records a device event with each boundary.)

How the loop is found:

- **Iteration.** It ends with the last optimizer step before the next batch is requested. Without a loader, it ends
  when an optimizer that already stepped in it steps again. It is reported only then, because until that moment
  another optimizer may still belong to it; `_following` holds the events after the last step, and is either merged
  into the current iteration or becomes the next one.
- **Gradient accumulation.** Batches and backward passes without a step extend the iteration; their losses are summed.
- **Several optimizers** (a GAN) that step once each are one iteration. Three steps of one optimizer on the same batch
  are three iterations. A loss belongs to the optimizer that steps next.
- **Phases.** Waiting for a batch is data loading; from its arrival to `backward` is the forward pass; then backward;
  then the optimizer, from the start of `step` to its end. Modules have no hooks: their cost outweighs the benefit.
- **Losses.** A loss is the argument of a backward pass. An optimizer that evaluates its closure several times in one
  step (L-BFGS) steps on the first value.
- **Skipped AMP step.** `GradScaler.step` that does not step the optimizer still ends an iteration.
- **Steps before any backward pass** are ignored: libraries step once to create the state of an optimizer, for example.
- **Validation.** Batches requested while gradients are off, or a whole pass over a loader without any backward pass.
  The second kind is recognised only when the loader is exhausted, so it is reported in retrospect.
- **Epoch.** A loader is exhausted after at least one iteration.
- **Compiled code** can do no more than set a flag. It is applied at the next event: the step is known to have happened,
  but not when, so it has no phases of its own.
- **Without step hooks** (`track` alone), each batch is an iteration.

Nothing is counted until a run is recording. The first event that only training causes returns `RunNeeded`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tachograph.integrations._common.phases import PhaseMarks
from tachograph.spans import StandardTrainingJobSpanName as Names

__all__ = [
    "MAX_PARTS",
    "EpochFinished",
    "Iteration",
    "LoopState",
    "OptimizerPart",
    "Output",
    "RunNeeded",
    "StepSkipped",
    "ValidationBatch",
    "ValidationEnded",
    "ValidationStarted",
]

MAX_PARTS = 4096
"""Maximum number of batches and losses kept per iteration: a program may never step an optimizer."""


class OptimizerPart(NamedTuple):
    """The step of one optimizer in an iteration."""

    optimizer: int
    lr: Any
    num_losses: int
    """How many losses the iteration had when it stepped; the losses since the previous step belong to it."""


class Iteration:
    """One iteration of the loop, as far as it was observed."""

    __slots__ = (
        "began_s",
        "is_manual",
        "is_scaled",
        "losses",
        "lr",
        "marks",
        "norm",
        "num_backwards",
        "parts",
        "records_values",
        "step",
        "step_s",
        "stepped",
        "waits",
    )

    def __init__(self, began_s: float | None, marks: PhaseMarks, *, records_values: bool = True) -> None:
        self.step = -1
        """Its number, once it is finished."""
        self.began_s = began_s
        self.is_manual = False
        """Whether the script marks it itself, with a span or a callback."""
        self.is_scaled = False
        """Whether a loss was scaled in it."""
        self.waits: list[tuple[float, float]] = []
        """Start and end of each wait for a batch."""
        self.num_backwards = 0
        """Backward passes that did not fail."""
        self.losses: list[Any] = []
        self.parts: list[OptimizerPart] = []
        """The steps of its optimizers, in order."""
        self.norm: Any = None
        self.lr: Any = None
        self.marks = marks
        self.records_values = records_values
        """Whether its loss, learning rate and gradient norm are to be read."""
        self.stepped: set[int] = set()
        """The optimizers that have stepped in it."""
        self.step_s: float | None = None
        """When an optimizer last stepped; None until one has."""

    def merge(self, following: Iteration) -> None:
        """Add the events after the last step, because they belong to this iteration, too."""
        self.is_scaled = self.is_scaled or following.is_scaled
        self.num_backwards += following.num_backwards
        self.records_values = self.records_values and following.records_values  # the sum of some losses is wrong
        self.losses += following.losses
        self.norm = following.norm if self.norm is None else self.norm
        self.marks.extend(following.marks)


@dataclass(frozen=True)
class RunNeeded:
    """Training was detected, and nothing records it yet."""


@dataclass(frozen=True)
class StepSkipped:
    """An optimizer step was skipped because gradients overflowed."""

    step: int


@dataclass(frozen=True)
class ValidationStarted:
    """A validation started."""

    start_s: float


@dataclass(frozen=True)
class ValidationBatch:
    """A batch of the current validation is done."""

    start_s: float
    stop_s: float


@dataclass(frozen=True)
class ValidationEnded:
    """The current validation ended."""

    stop_s: float


@dataclass(frozen=True)
class EpochFinished:
    """A pass over the training data is complete."""

    epoch: int
    last_step: int


Output: TypeAlias = (
    Iteration | RunNeeded | StepSkipped | ValidationStarted | ValidationBatch | ValidationEnded | EpochFinished
)
"""An `Iteration` is one that has finished."""

_NOTHING: Sequence[Output] = ()


class LoopState:
    """The state of the loop. Every method that is an event returns its outputs in the order in which they happened.

    Times are seconds of `perf_counter`. Optimizers are identified by `id`.

    Args:
        sample: called when an iteration starts; returns whether to record its values, and whether to sample its phases.
    """

    def __init__(self, sample: Callable[[], tuple[bool, bool]] = lambda: (True, True)) -> None:
        self._sample = sample
        self.observes_steps = False
        """Whether optimizer steps are reported; if not, an iteration is a batch."""
        self.is_cuda = False
        self.is_recording = False
        """Whether finished iterations are counted and reported."""
        self.num_steps = 0
        """Finished iterations, including iterations before the run was resumed."""
        self.num_optimizer_steps = 0
        """Steps of any optimizer, including steps that are not training."""
        self.has_seen_backward = False
        self.current = self._new_iteration(None)
        self.latest = self.current
        """The iteration that new observations are added to: `_following` if there is one, else `current`."""
        self._following: Iteration | None = None
        """The events after the last step of `current`; None until it has stepped."""
        self._num_stepping = 1
        """How many optimizers stepped in the last iteration."""
        self.stepping: int | None = None
        """The outermost optimizer whose step is in progress."""
        self._loss_added_to: list[Any] | None = None
        """The losses to which the backward pass in progress has added one."""
        self._is_in_loop = False
        """Whether an iteration was reported, so that a loop is open in the recorder."""
        self._validation_batch_s: float | None = None
        """When the current batch of the open validation was requested; None if no validation is open."""
        self._num_epochs = 0
        self._epoch_start_step = 0
        self._num_batches = 0
        """Batches of the current pass over the data."""
        self._num_batches_without_backward = 0
        """The batches of them received since the last backward pass."""

    def _new_iteration(self, began_s: float | None, sampling: tuple[bool, bool] | None = None) -> Iteration:
        records_values, samples_phases = self._sample() if sampling is None else sampling
        return Iteration(began_s, PhaseMarks(self.is_cuda, samples_phases), records_values=records_values)

    @property
    def has_stepped(self) -> bool:
        """Whether any iteration has come as far as an optimizer step."""
        return self.num_steps > 0 or self.current.step_s is not None

    @property
    def row_step(self) -> int:
        """The number of the iteration to which a row belongs that the script logs now; -1 if there is none.

        An iteration begins with its batch; without a loader, it is the last one that an optimizer has stepped in.
        """
        return self.num_steps - (self.current.step_s is None and not self.current.waits)

    # Recording -----------------------------------------------------------------------------------------------------

    def recording_started(self, first_step: int, now_s: float) -> None:
        """Handle that a run was found or started; starting it took until `now_s` and is not part of an iteration."""
        self.is_recording = True
        self._is_in_loop = False
        self._num_epochs = 0
        self.num_steps = self._epoch_start_step = first_step
        if self._following is not None:
            self._following = self.latest = self._new_iteration(now_s)
            self._following.marks.mark(None, now_s)

    def recording_stopped(self, *, resets_count: bool = False) -> None:
        """Handle that the run has ended, or that another run was chosen, which resets the count of steps."""
        self.is_recording = self._is_in_loop = False
        if resets_count:
            self._num_epochs = self._epoch_start_step = self.num_steps = 0

    def thread_changed(self) -> None:
        """Handle that another thread trains now; discard the unfinished iteration of the previous one."""
        self.current = self.latest = self._new_iteration(None)
        self._following = None

    def cuda_detected(self) -> None:
        """Handle that the model is on a GPU; marks made by the clock alone are discarded."""
        self.is_cuda = True
        self.current.marks = PhaseMarks(is_cuda=True)

    # Batches -------------------------------------------------------------------------------------------------------

    def batch_requested(
        self, now_s: float, grad_enabled: bool, *, is_manual_validation: bool = False, is_manual: bool = False
    ) -> Sequence[Output]:
        """Handle that the script requests a batch.

        Args:
            now_s: the time of the request.
            grad_enabled: whether gradients are on.
            is_manual_validation: whether the script marks the present validation itself.
            is_manual: whether the script marks the present iteration itself. Used only without step hooks.
        """
        outputs = self._finish_iteration() if self.current.step_s is not None else _NOTHING
        self.stepping = None
        if grad_enabled and self._validation_batch_s is None:  # the usual case first
            return outputs if self.observes_steps else [*outputs, *self._finish_batch(now_s, is_manual)]
        if self._validation_batch_s is not None:
            outputs = [*outputs, ValidationBatch(self._validation_batch_s, now_s)]
            self._validation_batch_s = now_s
            return [*outputs, *self._end_validation(now_s)] if grad_enabled else outputs
        if self._is_in_loop and not is_manual_validation:
            self._validation_batch_s = now_s
            outputs = [*outputs, ValidationStarted(now_s)]
        return outputs

    def batch_received(self, requested_s: float, now_s: float, grad_enabled: bool) -> Sequence[Output]:
        """Handle that a batch has arrived."""
        if self._validation_batch_s is not None or not grad_enabled:
            return _NOTHING
        current = self.current
        if current.began_s is None:
            current.began_s = requested_s
        self._num_batches += 1
        self._num_batches_without_backward += 1
        if len(current.waits) < MAX_PARTS:
            current.waits.append((requested_s, now_s))
        current.marks.mark(None, now_s)
        return _NOTHING if self.observes_steps or self.is_recording else (RunNeeded(),)

    def data_exhausted(
        self, now_s: float, grad_enabled: bool, *, is_manual_validation: bool = False
    ) -> Sequence[Output]:
        """Handle that a loader has no more batches: the end of an epoch or of a validation."""
        if self._validation_batch_s is not None:
            return self._end_validation(now_s)
        if not grad_enabled:
            return _NOTHING
        num_batches, self._num_batches = self._num_batches, 0
        num_unused, self._num_batches_without_backward = self._num_batches_without_backward, 0
        outputs: list[Output] = []
        if self.observes_steps and num_batches and num_unused == num_batches:
            starts_s = [start_s for start_s, _ in self.current.waits[-num_unused:]]
            if starts_s and self._is_in_loop and not is_manual_validation:
                outputs.append(ValidationStarted(starts_s[0]))
                outputs += map(ValidationBatch, starts_s, [*starts_s[1:], now_s])
                outputs.append(ValidationEnded(now_s))
        elif self.num_steps > self._epoch_start_step:
            self._num_epochs += 1
            self._epoch_start_step = self.num_steps
            outputs.append(EpochFinished(self._num_epochs, self.num_steps - 1))
        self._discard_unfinished()
        return outputs

    def _finish_batch(self, now_s: float, is_manual: bool) -> Sequence[Output]:
        """Finish an iteration that consists of one batch, because steps are not observed."""
        if self.current.began_s is None or not self.current.waits:
            return _NOTHING
        self.current.is_manual = is_manual
        self.current.step_s = now_s
        return self._finish_iteration()

    def _end_validation(self, now_s: float) -> Sequence[Output]:
        self._validation_batch_s = None
        self._discard_unfinished()
        return (ValidationEnded(now_s),)

    def _discard_unfinished(self, began_s: float | None = None) -> None:
        """Discard the events since the last iteration, which are not part of one, unless they computed gradients.

        Args:
            began_s: when the next iteration begins; None if unknown until its first batch.
        """
        if not self.current.num_backwards:
            self.current = self._new_iteration(began_s)
            if began_s is not None:
                self.current.marks.mark(None, began_s)
            self.latest = self.current if self._following is None else self._following

    # Backward ------------------------------------------------------------------------------------------------------

    def backward_started(self, now_s: float) -> bool:
        """Handle the start of a backward pass; return whether its loss is to be passed to `add_loss`."""
        self.has_seen_backward = True
        latest = self.latest
        if latest.began_s is None:
            latest.began_s = now_s
        self._num_batches_without_backward = 0
        latest.num_backwards += 1
        latest.marks.mark(Names.MODEL_FORWARD, now_s)
        return latest.records_values and (self.stepping is None or not latest.losses)

    def add_loss(self, loss: Any) -> None:
        """Add the loss of the backward pass in progress."""
        losses = self.latest.losses
        if len(losses) < MAX_PARTS:
            losses.append(loss)
            self._loss_added_to = losses

    def backward_finished(self, now_s: float) -> None:
        """Handle the end of a backward pass."""
        self.latest.marks.mark(Names.MODEL_BACKWARD, now_s)
        self._loss_added_to = None

    def backward_failed(self) -> None:
        """Handle a backward pass that raised: the script may try it again."""
        self.latest.num_backwards -= 1
        if self._loss_added_to is not None:
            self._loss_added_to.pop()

    def compiled_backward_seen(self) -> None:
        """Handle that compiled code contained a backward pass."""
        self.has_seen_backward = True
        self._num_batches_without_backward = 0

    def loss_scaled(self) -> None:
        """Handle that a loss was scaled: from now on only a loss that carries its unscaled value is known."""
        self.latest.is_scaled = True

    def norm_computed(self, norm: Any) -> None:
        """Handle that the script computed the norm of all gradients, as clipping does."""
        if self.latest.norm is None:
            self.latest.norm = norm

    # Optimizers ----------------------------------------------------------------------------------------------------

    def step_started(self, optimizer: int) -> Sequence[Output]:
        """Handle the start of an optimizer step. Handle the outputs before `update_started`, which times the step."""
        if self.stepping is None:
            self.stepping = optimizer
        return self._assign_step(optimizer) if self._following is not None else _NOTHING

    def update_started(self, now_s: float, lr: Any) -> None:
        """Handle that the optimizer begins to update the weights."""
        current = self.current
        current.marks.mark(None, now_s)
        current.lr = lr

    def step_finished(self, optimizer: int, now_s: float, is_manual: bool) -> Sequence[Output]:
        """Handle the end of an optimizer step. Ignore it if its start was not observed."""
        if self.stepping is None:
            return _NOTHING
        if self.stepping == optimizer:
            self.stepping = None
        self.num_optimizer_steps += 1
        if not self.has_seen_backward:
            return _NOTHING
        self.current.marks.mark(Names.OPTIMIZER_UPDATE, now_s)
        return self._add_step(optimizer, now_s, is_manual, self.current.lr)

    def compiled_step_seen(self, optimizer: int, now_s: float, is_manual: bool) -> Sequence[Output]:
        """Handle that compiled code contained an optimizer step."""
        if not self.has_seen_backward:
            return _NOTHING
        return [*self._assign_step(optimizer), *self._add_step(optimizer, now_s, is_manual)]

    def step_skipped(self, optimizer: int, now_s: float, is_manual: bool) -> Sequence[Output]:
        """Handle a step that a `GradScaler` skipped because gradients overflowed: it ends an iteration, too."""
        outputs = self._assign_step(optimizer)
        step = self.num_steps
        return [*outputs, *self._add_step(optimizer, now_s, is_manual), StepSkipped(step)]

    def _assign_step(self, optimizer: int) -> Sequence[Output]:
        """Decide which iteration a step belongs to: a second step of the same optimizer belongs to the next one."""
        if self._following is None:
            return _NOTHING
        if optimizer in self.current.stepped:
            return self._finish_iteration()
        self.current.merge(self._following)
        self._following = None
        self.latest = self.current
        return _NOTHING

    def _add_step(self, optimizer: int, now_s: float, is_manual: bool, lr: Any = None) -> Sequence[Output]:
        current = self.current
        current.parts.append(OptimizerPart(optimizer, lr, len(current.losses)))
        current.stepped.add(optimizer)
        current.step_s = now_s
        current.is_manual = current.is_manual or is_manual
        if len(current.stepped) < self._num_stepping:  # as before, another optimizer will step in this iteration
            sampling = current.records_values, current.marks.is_sampled
            following = self._new_iteration(now_s, sampling)
        else:
            following = self._new_iteration(now_s)
        self._following = self.latest = following
        following.marks.mark(None, now_s)
        return _NOTHING if self.is_recording else (RunNeeded(),)

    def _finish_iteration(self) -> Sequence[Output]:
        iteration = self.current
        self._num_stepping = len(iteration.stepped)
        self.current = self.latest = self._following or self._new_iteration(iteration.step_s)
        self._following = None
        if not self.is_recording or iteration.step_s is None:
            return _NOTHING
        iteration.step = self.num_steps
        self.num_steps += 1
        if not iteration.is_manual:
            self._is_in_loop = True
        return (iteration,)

    # Iterations that are only counted ------------------------------------------------------------------------------

    @property
    def can_skip(self) -> bool:
        """Whether the current iteration may be counted without being observed: nothing of it is to be recorded."""
        current = self.current
        is_sampled = current.records_values or current.marks.is_sampled
        return self.is_recording and self._is_in_loop and self._validation_batch_s is None and not is_sampled

    def iterations_skipped(self, num_iterations: int, last_step_s: float, *, is_between_steps: bool) -> None:
        """Handle that iterations were counted without being observed.

        Args:
            num_iterations: how many have come to their end.
            last_step_s: when the last one did, if there was one.
            is_between_steps: whether it has just ended. If not, part of the next one was not observed either.
        """
        if num_iterations:
            self.num_steps += num_iterations
            self._num_batches += num_iterations
            self._num_batches_without_backward = 0
            self._following = self.stepping = self._loss_added_to = None
            self.current = self.latest = self._new_iteration(last_step_s)
            self.current.marks.mark(None, last_step_s)
        if not is_between_steps:
            self.current.records_values = self.current.marks.is_sampled = False

    # Checkpoints and the end ---------------------------------------------------------------------------------------

    def checkpoint_started(self) -> Sequence[Output]:
        """Handle that a checkpoint is about to be saved, which ends an iteration that has stepped."""
        return self._finish_iteration() if self.current.step_s is not None else _NOTHING

    def checkpoint_finished(self, now_s: float) -> None:
        """Handle that a checkpoint was saved, so that saving is not part of the next iteration."""
        self._discard_unfinished(now_s)

    def loop_ended(self, now_s: float, *, is_manual: bool = False) -> Sequence[Output]:
        """Handle that the loop is no longer observed; finish the open iteration and validation."""
        outputs = self._end_validation(now_s) if self._validation_batch_s is not None else _NOTHING
        if self.current.step_s is not None:
            outputs = [*outputs, *self._finish_iteration()]
        elif not self.observes_steps:
            outputs = [*outputs, *self._finish_batch(now_s, is_manual)]
        self._is_in_loop = False
        return outputs
