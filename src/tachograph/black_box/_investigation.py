"""One investigation of a fault: the alert that began it, the evidence so far, and how far it has come."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tachograph.black_box._activations import ActivationProbe
from tachograph.black_box._step_rows import first_bad_row, loss_of, position_of
from tachograph.black_box._verdicts import Evidence

__all__ = ["NAN_REASONS", "RISE_REASONS", "Investigation"]

NAN_REASONS = frozenset({"exception", "not_finite"})
"""The reasons for which the origin of a NaN is looked for."""

RISE_REASONS = frozenset({"divergence", "exploding_gradients", "loss_spike"})
"""The reasons for which the batch is looked at with which the loss rose."""

_NUM_LOSSES = 32


class Investigation:
    """An alert, and the evidence about it so far."""

    def __init__(self, reason: str, alert: Mapping[str, Any] | None, step: int | None) -> None:
        self.reason = reason
        self.alert = alert
        self.step = step
        self.evidence = Evidence(step=step)
        self.rows: list[dict[str, Any]] = []
        """The last steps, as of the alert: a fast loop goes on."""
        self.probe: ActivationProbe | None = None
        self.started_at = time.monotonic()
        self.stage: Literal["requested", "armed", "done"] = "requested"
        self.on_written: Callable[[str | None], object] = lambda path: None
        """Called with the path of the dump; None if it could not be written."""
        self.claims = [None]
        """Removed by the thread that writes the dump; a signal handler may come in between."""

    @property
    def is_about_nan(self) -> bool:
        """Whether a value was not finite."""
        return self.reason in NAN_REASONS

    @property
    def details(self) -> dict[str, Any]:
        """The facts from which the parts of the dump are made."""
        return {"evidence": self.evidence, "rows": self.rows}

    def add_history(self) -> None:
        """Add losses, learning rates and the position in the data to the evidence."""
        evidence, rows = self.evidence, self.rows
        first_bad = first_bad_row(rows)
        before = rows if first_bad is None else rows[: first_bad + 1]
        evidence.losses = [loss for row in before if (loss := loss_of(row)) is not None][-_NUM_LOSSES:]
        evidence.lrs = [(row.get("global_step"), float(row["lr"])) for row in before if "lr" in row]
        has_faulty_batch = evidence.batch and "is_clean" not in evidence.batch
        is_step_exact = evidence.loss_at_fault is not None and math.isfinite(evidence.loss_at_fault)
        if first_bad is not None and self.is_about_nan and not has_faulty_batch and not is_step_exact:
            evidence.step = rows[first_bad].get("global_step", evidence.step)
        if evidence.step is None:
            return  # the faulty batch is known, and not its step
        at_fault = next((row for row in rows if row.get("global_step") == evidence.step), None)
        if at_fault is not None and at_fault.get("batches"):
            batch = at_fault["batches"][-1]
            evidence.position = evidence.position or position_of(at_fault, batch)
            if evidence.indices is None:
                evidence.indices = batch.get("indices")
