"""Faults of a batch: values that are not finite, labels that are all ignored, a sample unlike all others.

A batch that no longer exists is read again from the dataset, by the sample numbers that the ring has kept.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tachograph.black_box._investigation import Investigation
from tachograph.black_box._ring import tensors_in
from tachograph.black_box._step_rows import first_bad_row, loss_of, position_of, risen_row

__all__ = ["check_batch", "reread_batches", "reread_risen_batch", "restored_random_state"]

_MAX_READ_S = 5.0
_MIN_ROWS = 4
_OUTLYING_RATIO = 1e4
"""A sample whose largest value is so many times that of the others does not belong to the same data."""


def check_batch(batch: Any) -> dict[str, Any]:
    """Return the faults of a batch: rows that are not finite or outlying, or labels that are all ignored."""
    torch = sys.modules["torch"]
    findings: dict[str, Any] = {}
    tensors = tensors_in(batch, torch.Tensor)
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            rows = torch.linalg.vector_norm(tensor.detach().reshape(max(tensor.shape[0], 1), -1), float("inf"), dim=1)
            bad_rows = (~torch.isfinite(rows)).nonzero().flatten().tolist()
            if bad_rows:
                return {"bad_tensor": name, "bad_rows": bad_rows[:8]}
            findings |= _find_outlying_rows(name, rows)
    for name, tensor in tensors:
        is_label = "label" in name or "target" in name or (isinstance(batch, (list, tuple)) and name == "1")
        if is_label and not tensor.is_floating_point() and tensor.numel() and bool((tensor == -100).all()):
            findings["ignored_labels"] = name
        if "mask" in name and not tensor.is_floating_point() and tensor.dim() > 1:
            empty_rows = (tensor.reshape(tensor.shape[0], -1) == 0).all(1).nonzero().flatten().tolist()
            if empty_rows:
                findings |= {"empty_mask": name, "empty_rows": empty_rows[:8]}
    return findings


def _find_outlying_rows(name: str, row_maxima: Any) -> dict[str, Any]:
    usual = float(row_maxima.median())
    if len(row_maxima) < _MIN_ROWS or usual <= 0:
        return {}
    rows = (row_maxima > _OUTLYING_RATIO * usual).nonzero().flatten().tolist()
    if not rows:
        return {}
    value = float(row_maxima.max())
    return {"outlying_tensor": name, "outlying_rows": rows[:8], "outlying_value": value, "usual_value": usual}


def reread_risen_batch(investigation: Investigation, loader: Any) -> None:
    """Read the samples again of the step in which the loss rose; random states are restored."""
    evidence, rows = investigation.evidence, investigation.rows
    risen = risen_row(rows)
    if risen is None or not _is_readable(loader):
        return
    findings = _reread_step(investigation, loader, rows[risen], time.monotonic() + _MAX_READ_S)
    if findings is not None:
        evidence.batch = findings or {"is_clean": True}
        evidence.step = rows[risen].get("global_step")


def reread_batches(investigation: Investigation, loader: Any) -> None:
    """Look for a faulty batch: that of the first step whose loss was no number, or of the steps before it without one.

    From the last one back: there may be many, and reading takes time. Random states are restored.
    """
    evidence, rows = investigation.evidence, investigation.rows
    first_bad = first_bad_row(rows)
    if first_bad is None or not _is_readable(loader):
        return
    last_good = next((index for index in range(first_bad - 1, -1, -1) if loss_of(rows[index]) is not None), 0)
    deadline_s = time.monotonic() + _MAX_READ_S
    faults: dict[str, Any] | None = None
    for row in reversed(rows[last_good : first_bad + 1]):
        if not row.get("batches"):
            continue
        earlier_faults = _reread_step(investigation, loader, row, deadline_s)
        if faults and not earlier_faults:
            break
        faults = earlier_faults
        if faults is None:
            return
    if faults:
        # Its position is exact; its step is not, if only some steps have values.
        evidence.batch, evidence.step = faults, None
    elif faults is not None:
        evidence.batch = {"is_clean": True}


def _is_readable(loader: Any) -> bool:
    return loader is not None and hasattr(loader.dataset, "__getitem__")


def _reread_step(
    investigation: Investigation, loader: Any, row: Mapping[str, Any], deadline_s: float
) -> dict[str, Any] | None:
    """Return the faults of the first faulty batch of a step; empty without one, None if not all could be read again.

    The investigation gets the sample numbers and the position of a faulty batch.
    """
    evidence, batches = investigation.evidence, row.get("batches") or []
    for batch in batches:
        indices = batch.get("indices")
        if not indices:
            return None
        findings = _check_samples(loader, indices, deadline_s)
        if findings is None:
            return None
        if findings:
            evidence.indices, evidence.position = indices, position_of(row, batch)
            return findings
    return {} if len(batches) == row.get("num_batches") else None


def _check_samples(loader: Any, indices: list[int], deadline_s: float) -> dict[str, Any] | None:
    """Return the faults of a batch whose samples are read again; None if that takes too long or fails."""
    with restored_random_state(), contextlib.suppress(Exception):  # code of the user
        samples = []
        for index in indices:
            samples.append(loader.dataset[index])
            if time.monotonic() > deadline_s:
                return None
        return check_batch(loader.collate_fn(samples))
    return None


@contextlib.contextmanager
def restored_random_state() -> Iterator[None]:
    """Restore the random generators after code of a dataset has run."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
