"""Evidence captured when the observer sees a gradient that is not finite, before the optimizer uses it.

The weights are still as they were in the forward pass, and the batch still exists. The alert follows within a second,
when its loss or gradient norm is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph._base.guard import guard
from tachograph.black_box._batch_check import check_batch
from tachograph.black_box._layers import find_models, layer_table
from tachograph.black_box._repeated_pass import repeat_pass
from tachograph.black_box._ring import LoggedSteps, RingEntry, StepRing, plain_indices
from tachograph.black_box._step_rows import first_bad_row, has_non_finite_value, loss_of
from tachograph.black_box._torch_observer import TorchObserver
from tachograph.black_box._verdicts import HUGE_WEIGHT, Evidence

__all__ = ["EarlyEvidence", "has_finite_weights", "has_usual_weights"]

_MAX_CAPTURES = 3
"""How often gradients that are not finite are examined in a run; a loop may skip such steps on purpose."""

_MAX_MODELS = 4


class EarlyEvidence:
    """The evidence about the last gradient that was not finite, until an investigation uses it.

    Args:
        ring: the steps of the training thread.
        logged: the step records of the writer thread.
        wall_s: converts `perf_counter` to the time of the step records.
    """

    def __init__(self, ring: StepRing, logged: LoggedSteps, wall_s: Callable[[float], float]) -> None:
        self._ring = ring
        self._logged = logged
        self._wall_s = wall_s
        self._evidence: Evidence | None = None
        self._captured_at_s = 0.0
        self._num_captures = 0
        self.entries: list[RingEntry] = []
        """The ring when the evidence was captured."""

    def capture(self, observer: TorchObserver) -> None:
        """Measure the layers and check the batch. Called between the backward pass and the step of the optimizer."""
        if self._num_captures >= _MAX_CAPTURES or (self._evidence is not None and self._is_of_last_step()):
            return
        self._num_captures += 1
        with guard("examining a fault"):
            evidence = Evidence(is_at_fault=True)
            parameters = [
                p for optimizer in observer.optimizers for group in optimizer.param_groups for p in group["params"]
            ]
            models = find_models(parameters)
            evidence.layers = layer_table(observer.optimizers, next(iter(models), None))
            if self._evidence is not None and not has_finite_weights(evidence.layers):
                return  # the same fault; if the loop had skipped the step, the weights would be finite
            batch = observer.current_batch()
            evidence.batch = check_batch(_as_sequence(batch)) or {"is_clean": True} if batch else {}
            last = self._ring.last_batch
            evidence.indices = plain_indices(last.indices) if last is not None else None
            is_worth_repeating = batch and "is_clean" in evidence.batch and has_finite_weights(evidence.layers)
            for model in models[:_MAX_MODELS] if is_worth_repeating else ():
                # The fault may be in the code of a module around the one that has all parameters.
                evidence.repeated = repeat_pass(model, batch, observer.autocast) or evidence.repeated
                if evidence.repeated.get("operation") is not None:
                    break
            self.entries = self._ring.entries
            self._captured_at_s = self._wall_s(perf_counter())
            self._evidence = evidence

    @property
    def is_current(self) -> bool:
        """Whether there is evidence about the current fault.

        A loop that skips steps with such gradients, as with a gradient scaler, continues with finite losses.
        """
        if self._evidence is None:
            return False
        rows = self._logged.rows()
        first_bad = first_bad_row(rows)
        if first_bad is None:
            first_bad = next((index for index, row in enumerate(rows) if has_non_finite_value(row)), None)
        if first_bad is None:
            return self._is_of_last_step()
        losses_since = (row for row in rows[:first_bad] if (row.get("time") or 0.0) > self._captured_at_s)
        return sum(loss_of(row) is not None for row in losses_since) <= 1

    def pop(self) -> Evidence | None:
        """Remove the evidence; return it, with the loss and the step, if it is about the current fault."""
        is_current, evidence = self.is_current, self._evidence
        self._evidence = None
        if evidence is None or not is_current:
            return None
        rows = (row for row in self._logged.rows() if (row.get("time") or 0.0) > self._captured_at_s)
        row = next((row for row in rows if loss_of(row) is not None), None)
        if row is not None:
            evidence.loss_at_fault, evidence.step = loss_of(row), row.get("global_step")
        return evidence

    def clear(self) -> None:
        """Remove the evidence."""
        self._evidence = None

    def _is_of_last_step(self) -> bool:
        num_steps = self.entries[-1].number if self.entries else 0
        return self._ring.num_steps - num_steps <= 1


def has_finite_weights(layers: list[dict[str, Any]]) -> bool:
    """Return whether all weights of a layer table are finite."""
    return all(math.isfinite(row["weight"]["absmax"]) for row in layers if row.get("weight"))


def has_usual_weights(layers: list[dict[str, Any]]) -> bool:
    """Return whether no weight of a layer table is so large that the cause lies in an earlier step."""
    return all(row["weight"]["absmax"] < HUGE_WEIGHT for row in layers if row.get("weight"))  # NaN is not less


def _as_sequence(tensors: dict[str, Any]) -> Any:
    """Return the tensors of a batch as a list if the batch was one, so that its second item counts as labels."""
    if tensors and all(name.isdigit() for name in tensors):
        return list(tensors.values())
    return tensors
