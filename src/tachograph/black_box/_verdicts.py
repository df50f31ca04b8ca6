"""From evidence to a cause: pure functions over the numbers that were captured, each verdict with its confidence."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tachograph.black_box._format import Verdict

__all__ = ["Evidence", "judge"]

_LARGEST = {"float16": 65_504.0, "bfloat16": 3.39e38, "float32": 3.4e38}
_NAN_RULES = frozenset({"not_finite", "exception"})
_LARGE_UPDATE = 0.1
"""The share of its weights by which an update changes a layer; a thousandth is usual."""

_DOMINANT_SHARE = 0.9
_MIN_LAYERS = 4
_MIN_RISE = 10.0


class Evidence(msgspec.Struct, kw_only=True):
    """The numbers that were captured about a fault."""

    step: int | None = None
    """The step of the fault, if it is known."""
    is_at_fault: bool = False
    """Whether the layers were measured in the step of the fault, before the optimizer's update."""
    layers: list[dict[str, Any]] = []
    activations: dict[str, Any] = {}
    batch: dict[str, Any] = {}
    """The faults of its batch; see `check_batch`."""
    indices: list[int] | None = None
    """The sample numbers of that batch."""
    losses: list[float] = []
    """The last losses, oldest first."""
    lrs: list[tuple[int | None, float]] = []
    """The last steps and their learning rates, oldest first."""
    position: str = ""
    """Where in the data the fault happened."""

    @property
    def lr(self) -> float | None:
        """The learning rate when it happened."""
        return self.lrs[-1][1] if self.lrs else None


def judge(reason: str, evidence: Evidence) -> Verdict | None:
    """Return the cause of a fault, or None if the evidence shows none."""
    tests: tuple[Callable[[Evidence], Verdict | None], ...]
    if reason in _NAN_RULES:
        tests = (_bad_input, _ignored_labels, _raised_learning_rate, _growing_loss)
        tests += (_bad_weights, _overflow, _bad_gradients)
    else:
        tests = (_raised_learning_rate, _large_updates, _exploding_layer, _one_batch)
    return next((verdict for test in tests if (verdict := test(evidence)) is not None), None)


def _at(evidence: Evidence, offset: int = 0) -> str:
    return "" if evidence.step is None else f" at step {evidence.step + offset:,}"


def _bad_input(evidence: Evidence) -> Verdict | None:
    rows = evidence.batch.get("bad_rows")
    is_current = not rows
    if not rows:
        inputs = evidence.activations.get("inputs") or []
        if not any(not math.isfinite(value) for value in inputs):
            return None
        rows = evidence.activations.get("bad_input_rows") or []
    details: dict[str, Any] = {"rows": rows}
    where = ""
    if rows:
        where = f": sample {rows[0]} of the batch"
        if evidence.indices is not None and rows[0] < len(evidence.indices):
            details["indices"] = [evidence.indices[row] for row in rows if row < len(evidence.indices)]
            where += f" (index {evidence.indices[rows[0]]:,} of the dataset)"
    elif evidence.position:
        where = f": batch {evidence.position}"
    return Verdict(
        kind="bad_input",
        text=f"The input already contains NaN or infinity{where}{_at(evidence)}.",
        confidence="likely" if is_current and not rows else "certain",
        details=details,
    )


def _ignored_labels(evidence: Evidence) -> Verdict | None:
    if "ignored_labels" not in evidence.batch:
        return None
    place = f" ({evidence.position})" if evidence.position else ""
    return Verdict(
        kind="ignored_labels",
        text=(
            f"All labels of the batch{_at(evidence) or place} are ignored (-100), so the mean of the loss is a "
            "division by zero."
        ),
        confidence="certain",
        details={"indices": (evidence.indices or [])[:16]},
    )


def _raised_learning_rate(evidence: Evidence) -> Verdict | None:
    """The learning rate rose at once shortly before the fault; a warm-up raises it little by little."""
    for (_, before), (step, after) in itertools.pairwise(evidence.lrs):
        if 0 < _MIN_RISE * before <= after:
            at = "" if step is None else f" at step {step:,}"
            return Verdict(
                kind="learning_rate",
                text=f"The learning rate rose from {before:g} to {after:g}{at}, just before the fault{_at(evidence)}.",
                confidence="likely",
                details={"lr": after, "lr_before": before},
            )
    return None


def _growing_loss(evidence: Evidence) -> Verdict | None:
    """The loss rose for some steps before it was no number: the training diverged."""
    finite = [loss for loss in evidence.losses if math.isfinite(loss)][-16:]
    if len(finite) < 2 or not finite[-1] > _MIN_RISE * max(abs(statistics.median(finite[: len(finite) // 2])), 1e-8):
        return None
    ratio = _median_update(evidence.layers)
    if ratio is not None and ratio > _LARGE_UPDATE:
        return _learning_rate(evidence, ratio)
    largest = max((_number(row, "weight", "absmax") for row in evidence.layers), default=0.0, key=_order)
    if not math.isfinite(largest) or largest > 1e3 or ratio is None:
        lr = "" if evidence.lr is None else f" ({evidence.lr:g})"
        return Verdict(
            kind="learning_rate",
            text=(
                f"The loss rose from {finite[0]:.3g} to {finite[-1]:.3g} before it was no number{_at(evidence)}: the "
                f"training diverged, probably because the learning rate{lr} is too high."
            ),
            confidence="likely",
            details={"lr": evidence.lr},
        )
    return None


def _bad_weights(evidence: Evidence) -> Verdict | None:
    bad = [row["name"] for row in evidence.layers if not math.isfinite(_number(row, "weight", "absmax"))]
    if not bad:
        return None
    good_gradients = [
        row["name"]
        for row in evidence.layers
        if row["name"] in bad and "gradient" in row and math.isfinite(_number(row, "gradient", "absmax"))
    ]
    if evidence.is_at_fault or good_gradients:
        name = (good_gradients or bad)[0]
        more = "" if len(bad) == 1 else f" and of {len(bad) - 1} others"
        return Verdict(
            kind="bad_update",
            text=(
                f"The weights of `{name}`{more} became NaN or infinite{_at(evidence, -1)}: the optimizer's update of "
                f"`{name}`."
            ),
            confidence="certain" if len(bad) < len(evidence.layers) else "likely",
            details={"parameters": bad[:16]},
        )
    if len(bad) < len(evidence.layers):
        return Verdict(
            kind="bad_weights",
            text=f"The weights of {_list(bad)} are NaN or infinite; {len(evidence.layers) - len(bad)} others are not.",
            confidence="likely",
            details={"parameters": bad[:16]},
        )
    clean = " Inputs and labels are finite." if evidence.batch.get("is_clean") else ""
    return Verdict(
        kind="bad_weights",
        text=(
            f"All weights were NaN when the first loss that is no number was seen{_at(evidence)}, so where it began is "
            f"not known.{clean}"
        ),
        confidence="possible",
        details={},
    )


def _overflow(evidence: Evidence) -> Verdict | None:
    for call in evidence.activations.get("calls") or []:
        output, largest_input = call.get("output"), call.get("input")
        if output is None or math.isfinite(output):
            continue
        dtype = str(call.get("dtype"))
        if largest_input is not None and not math.isfinite(largest_input):
            return _overflow_between(evidence, call, dtype)
        limit = _LARGEST.get(dtype)
        text = (
            f"Weights are finite, but the output of `{call['module']}` is {'NaN' if output != output else 'infinite'}"  # noqa: PLR0124
        )
        if limit is not None and output == math.inf:
            text += f": overflow in {dtype} (its largest number is {limit:,.6g}"
            text += "" if largest_input is None else f", the largest input of the module {largest_input:.3g}"
            text += ")"
        elif largest_input is not None:
            text += f"; its largest input is {largest_input:.3g}"
        return Verdict(
            kind="activation_overflow",
            text=f"{text}.",
            confidence="certain",
            details={"module": call["module"], "dtype": dtype, "input": largest_input},
        )
    return None


def _overflow_between(evidence: Evidence, call: Mapping[str, Any], dtype: str) -> Verdict:
    """The input of the first bad module is not finite, but that of the model is: the code before the module."""
    limit = f" (the largest number of {dtype} is {_LARGEST[dtype]:,.6g})" if dtype in _LARGEST else ""
    return Verdict(
        kind="activation_overflow",
        text=(
            f"Weights and the outputs of all modules before `{call['module']}` are finite, but its input is not"
            f"{_at(evidence)}: overflow in the code that computes this input{limit}."
        ),
        confidence="likely",
        details={"module": call["module"], "dtype": dtype, "input": call.get("input")},
    )


def _bad_gradients(evidence: Evidence) -> Verdict | None:
    measured = [row for row in evidence.layers if "gradient" in row]
    bad = [row["name"] for row in measured if not math.isfinite(_number(row, "gradient", "absmax"))]
    if not bad:
        return None
    if len(bad) < len(measured):
        # The gradient flows from the last layer to the first one, so the last bad one came first.
        return Verdict(
            kind="backward_overflow",
            text=(
                f"The gradient of `{bad[-1]}` is the first in the backward pass that is not finite{_at(evidence)}; "
                f"{len(measured) - len(bad)} other gradients are finite, and so are weights and inputs: the derivative "
                "of this layer, or of the one after it."
            ),
            confidence="likely",
            details={"parameter": bad[-1], "parameters": bad[:16]},
        )
    calls = evidence.activations.get("calls") or []
    are_finite = bool(calls) and all(math.isfinite(call.get("output", 0.0)) for call in calls)
    subject = "activations, weights and inputs are finite" if are_finite else "weights and inputs are finite"
    return Verdict(
        kind="loss_derivative",
        text=(
            f"All gradients are NaN or infinite although {subject}{_at(evidence)}: the loss or its derivative, such as "
            "the logarithm of 0 or a division by a mask without tokens."
        ),
        confidence="likely",
        details={"parameters": bad[:16]},
    )


def _exploding_layer(evidence: Evidence) -> Verdict | None:
    squares = {
        row["name"]: (_number(row, "gradient", "rms") ** 2) * math.prod(row["shape"])
        for row in evidence.layers
        if "gradient" in row
    }
    if len(squares) < _MIN_LAYERS or not all(map(math.isfinite, squares.values())):
        return None
    modules: dict[str, float] = {}
    for name, square in squares.items():
        module = name.rpartition(".")[0] or name
        modules[module] = modules.get(module, 0.0) + square
    total = sum(modules.values())
    if len(modules) < 3 or not total:
        return None
    module, square = max(modules.items(), key=lambda item: item[1])
    median = statistics.median(modules.values())
    if not median or square / total < _DOMINANT_SHARE or square < 100 * median:
        return None
    factor = math.sqrt(square / median)
    return Verdict(
        kind="exploding_layer",
        text=(
            f"The gradient of `{module}` is {factor:,.0f} times as large as of a usual layer and {square / total:.0%} "
            f"of the whole norm{_at(evidence)}."
        ),
        confidence="likely",
        details={"module": module, "share": square / total},
    )


def _large_updates(evidence: Evidence) -> Verdict | None:
    ratio = _median_update(evidence.layers)
    return _learning_rate(evidence, ratio) if ratio is not None and ratio > _LARGE_UPDATE else None


def _learning_rate(evidence: Evidence, ratio: float) -> Verdict:
    lr = "" if evidence.lr is None else f" {evidence.lr:g}"
    return Verdict(
        kind="learning_rate",
        text=(
            f"One update changes the weights of the middle layer by {ratio:.0%}; a tenth of a percent is usual. The "
            f"learning rate{lr} is too high."
        ),
        confidence="likely",
        details={"lr": evidence.lr, "update_ratio": ratio},
    )


def _one_batch(evidence: Evidence) -> Verdict | None:
    if not evidence.position:
        return None
    return Verdict(
        kind="batch",
        text=f"No layer and no update stands out; the batch{_at(evidence)} was {evidence.position}.",
        confidence="possible",
        details={"indices": (evidence.indices or [])[:16]},
    )


def _median_update(layers: Sequence[Mapping[str, Any]]) -> float | None:
    ratios = [row["update_ratio"] for row in layers if math.isfinite(row.get("update_ratio", math.nan))]
    return statistics.median(ratios) if ratios else None


def _number(row: Mapping[str, Any], group: str, name: str) -> float:
    cell = row.get(group)
    value = cell.get(name) if isinstance(cell, Mapping) else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def _order(value: float) -> float:
    return math.inf if value != value else value  # noqa: PLR0124 - NaN is the largest


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} others"
