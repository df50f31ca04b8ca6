"""One iteration of a loop that is followed from outside: what was seen of it, and the numbers read from it."""

from __future__ import annotations

import sys
from typing import Any

from tachograph.integrations._common.job import Names
from tachograph.integrations._common.phases import Marks
from tachograph.reader import overview
from tachograph.recorder import Run
from tachograph.records import LazyValue, freeze

__all__ = ["Compiled", "Iteration", "gradient_norm", "loss_of", "number_of", "steps_before", "total_of"]

_MOST_PARTS = 4096
"""Most batches, losses and marks that are kept of one iteration: a program may never step an optimizer."""


class Compiled:
    """Tells what was done in code that torch has compiled, which can do no more than set it."""

    has_learnt = False
    has_stepped = False


class _Marks(Marks):
    """Marks that go on with those of what turned out to be the same iteration."""

    __slots__ = ()

    def mark(self, ended: Names | None) -> None:
        """Say that a phase has ended; the first mark of all begins one."""
        num_marks = len(self._times_s)
        if num_marks < _MOST_PARTS:
            Marks.mark(self, ended if num_marks else None)

    def join(self, later: Marks) -> None:
        """Take over marks that were made after these."""
        self._names += later._names
        self._times_s += later._times_s
        self._events += later._events


class Iteration:
    """What was seen of one iteration."""

    __slots__ = ("began_s", "is_by_hand", "is_scaled", "losses", "lr", "marks", "norm", "step_s", "stepped", "waits")

    def __init__(self, began_s: float | None, is_cuda: bool) -> None:
        self.began_s = began_s
        self.is_by_hand = False
        """Whether the loop marks it itself."""
        self.is_scaled = False
        """Whether a loss was scaled for it."""
        self.waits: list[tuple[float, float]] = []
        self.losses: list[Any] = []
        self.norm: Any = None
        self.lr: Any = None
        self.marks = _Marks(is_cuda)
        self.stepped: set[int] = set()
        self.step_s: float | None = None
        """When an optimizer last stepped; None as long as none has."""

    def mark_on(self, *, is_cuda: bool) -> None:
        """Say on what the phases run, once it is known; marks of the wrong kind are dropped."""
        if is_cuda:
            self.marks = _Marks(is_cuda)

    def wait(self, start_s: float, stop_s: float) -> None:
        """Say how long a batch was waited for."""
        if len(self.waits) < _MOST_PARTS:
            self.waits.append((start_s, stop_s))

    def lose(self, loss: Any) -> list[list[Any]]:
        """Say that gradients of a loss are worked out; return where it was put, if it was."""
        if len(self.losses) >= _MOST_PARTS:
            return []
        self.losses.append(loss)
        return [self.losses]

    def join(self, later: Iteration) -> None:
        """Take over what came after the last step, for it was of this iteration, too."""
        self.is_scaled = self.is_scaled or later.is_scaled
        self.losses += later.losses
        self.norm = later.norm if self.norm is None else self.norm
        self.marks.join(later.marks)


def loss_of(loss: Any, *, is_scaled: bool = False) -> Any:
    """Return the loss that the backward pass is run for, None for what is no single number.

    Args:
        loss: what the backward pass was called with.
        is_scaled: whether a loss was scaled, so that only one that says what it was before counts.
    """
    if isinstance(loss, (list, tuple)) and len(loss) == 1:
        loss = loss[0]
    unscaled = getattr(loss, "_tachograph_loss", None)
    if unscaled is None and is_scaled:
        return None
    return number_of(loss if unscaled is None else unscaled)


def number_of(value: Any) -> Any:
    """Return a single value as a number, or as one that is on its way from a device; None for anything else.

    Nothing waits for a device, and nothing that is spread over several is touched, for that would be a collective.
    """
    if type(value) is float or type(value) is int:
        return value
    torch: Any = sys.modules["torch"]
    if type(value) is not torch.Tensor or value.numel() != 1 or not value.dtype.is_floating_point:
        return None
    if value.device.type == "cpu":
        return value.item()
    return freeze({"value": value}).get("value") if value.device.type == "cuda" else None


def total_of(losses: list[Any]) -> Any:
    """Return the sum of the losses whose gradients were accumulated: it is what the step was taken for."""
    if not losses or len(losses) >= _MOST_PARTS or any(loss is None for loss in losses):
        return None
    if len(losses) == 1:
        return losses[0]
    if all(type(loss) is float for loss in losses):
        return sum(losses)

    def compute() -> float:
        return sum(float(loss.compute() if isinstance(loss, LazyValue) else loss) for loss in losses)

    return LazyValue(compute)


def gradient_norm(groups: list[dict[str, Any]]) -> Any:
    """Return the norm of all gradients; None if there are none, or some are spread over several devices.

    The norm of those would be a collective.
    """
    torch: Any = sys.modules["torch"]
    gradients = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
    if not gradients or any(type(gradient) is not torch.Tensor for gradient in gradients):
        return None
    return torch.nn.utils.get_total_norm(gradients)


def steps_before(run: Run, optimizer: Any) -> int:
    """Return how many steps a run that is resumed has behind it: as its optimizer says, else as the journal does."""
    steps = [number_of(state.get("step")) for state in getattr(optimizer, "state", {}).values()]
    counted = [int(step) - 1 for step in steps if type(step) in (float, int)]
    if counted:
        return max(0, *counted)
    last = overview(run.folder).step if run.folder is not None else None
    return 0 if last is None else last + 1
