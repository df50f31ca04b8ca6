"""From evidence to a cause: pure functions over the numbers that were captured, each verdict with its confidence."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tachograph.black_box._format import Verdict
from tachograph.black_box._repetition_verdicts import LARGEST_NUMBERS, judge_operation
from tachograph.black_box._step_rows import SUDDEN_RISE

__all__ = ["HUGE_WEIGHT", "Evidence", "judge", "judge_hang"]

_NAN_RULES = frozenset({"not_finite", "exception"})
_LARGE_UPDATE = 0.1
"""The share of its weights by which an update changes a layer; a thousandth is usual."""
HUGE_WEIGHT = 1e8

_DOMINANT_SHARE = 0.9
_MIN_LAYERS = 4
_MIN_RISE = 10.0
_MIN_LEVEL_STEPS = 16
_MAX_LEVEL_SPREAD = 100.0
_FAIRLY_LARGE_UPDATE = 0.01


class Evidence(msgspec.Struct, kw_only=True):
    """The numbers that were captured about a fault."""

    step: int | None = None
    """The step of the fault, if it is known."""
    is_at_fault: bool = False
    """Whether the layers were measured in the step of the fault, before the optimizer's update."""
    loss_at_fault: float | None = None
    """The loss of the step in which gradients were first not finite, if it was logged."""
    layers: list[dict[str, Any]] = []
    activations: dict[str, Any] = {}
    repeated: dict[str, Any] = {}
    """The findings when the forward pass of the step was repeated at once; see `repeat_pass`."""
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
        tests = (_bad_input, _ignored_labels, _outlying_sample, _raised_learning_rate, _growing_loss)
        tests += (_bad_weights, _huge_weights, _empty_mask, _repetition, _overflow, _bad_gradients)
    else:
        tests = (_outlying_sample, _raised_learning_rate, _changed_loss, _large_updates, _exploding_layer)
        tests += (
            (_one_batch,) if reason != "divergence" else (_dead_layers, _fairly_large_updates)
        )  # which lasts for many batches
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
    where, details = "", _sample_details(evidence, rows)
    if rows:
        where = f": {_sample(evidence, rows)}"
    elif evidence.position:
        where = f": batch {evidence.position}"
    return Verdict(
        kind="bad_input",
        text=f"The input already contains NaN or infinity{where}{_at(evidence)}.",
        confidence="likely" if is_current and not rows else "certain",
        details=details,
    )


def _sample(evidence: Evidence, rows: Sequence[int]) -> str:
    """Return the first of some samples of the batch, in words."""
    text = f"sample {rows[0]} of the batch"
    if evidence.indices is not None and rows[0] < len(evidence.indices):
        text += f" (index {evidence.indices[rows[0]]:,} of the dataset)"
    return text


def _sample_details(evidence: Evidence, rows: Sequence[int]) -> dict[str, Any]:
    details: dict[str, Any] = {"rows": list(rows)}
    if evidence.indices is not None and rows and rows[0] < len(evidence.indices):
        details["indices"] = [evidence.indices[row] for row in rows if row < len(evidence.indices)]
    return details


def _empty_mask(evidence: Evidence) -> Verdict | None:
    rows = evidence.batch.get("empty_rows")
    if not rows:
        return None
    return Verdict(
        kind="empty_mask",
        text=(
            f"`{evidence.batch.get('empty_mask')}` has no token for {_sample(evidence, rows)}{_at(evidence)}: a "
            "softmax or a mean over no tokens is 0 / 0."
        ),
        confidence="likely",
        details=_sample_details(evidence, rows),
    )


def _ignored_labels(evidence: Evidence) -> Verdict | None:
    if "ignored_labels" not in evidence.batch:
        return None
    position = f" ({evidence.position})" if evidence.position else ""
    return Verdict(
        kind="ignored_labels",
        text=(
            f"All labels of the batch{_at(evidence) or position} are ignored (-100), so the mean of the loss is a "
            "division by zero."
        ),
        confidence="certain",
        details={"indices": (evidence.indices or [])[:16]},
    )


def _outlying_sample(evidence: Evidence) -> Verdict | None:
    rows = evidence.batch.get("outlying_rows")
    if not rows:
        return None
    value, usual = evidence.batch["outlying_value"], evidence.batch["usual_value"]
    text = _sample(evidence, rows)
    return Verdict(
        kind="outlying_sample",
        text=(
            f"{text[0].upper()}{text[1:]}{_at(evidence)} has values up to {value:.3g} in "
            f"`{evidence.batch['outlying_tensor']}`; half of the samples stay below {usual:.3g}."
        ),
        confidence="likely",
        details=_sample_details(evidence, rows),
    )


def _changed_loss(evidence: Evidence) -> Verdict | None:
    """The loss rose at once from a level that it had for long, with an ordinary batch."""
    if "is_clean" not in evidence.batch:
        return None
    rises = [after / before for before, after in itertools.pairwise(evidence.losses) if before > 0]
    first = next((index for index, rise in enumerate(rises) if rise > SUDDEN_RISE), None)
    if first is None or first < _MIN_LEVEL_STEPS:
        return None
    level, risen_loss = statistics.median(evidence.losses[: first + 1]), evidence.losses[first + 1]
    if max(evidence.losses[: first + 1]) > _MAX_LEVEL_SPREAD * level:
        return None
    return Verdict(
        kind="changed_loss",
        text=(
            f"The loss rose from {level:.4g} to {risen_loss:.4g} in one step{_at(evidence)}, after {first + 1} or more "
            "steps with the same settings, and its batch is ordinary: look at how the loss is computed and scaled."
        ),
        confidence="possible",
        details={"level": level, "loss": risen_loss},
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
    had_finite_loss = any(map(math.isfinite, evidence.losses))
    if (evidence.is_at_fault and had_finite_loss) or good_gradients:
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


def _huge_weights(evidence: Evidence) -> Verdict | None:
    """Weights are finite, but so large that products of them are not."""
    sizes = {row["name"]: _number(row, "weight", "absmax") for row in evidence.layers}
    largest = max(sizes, key=sizes.__getitem__, default="")
    if not largest or sizes[largest] < HUGE_WEIGHT:
        return None
    median = statistics.median(sizes.values())
    if median < HUGE_WEIGHT**0.5:
        return Verdict(
            kind="huge_weights",
            text=(
                f"The weights of `{largest}` reach {sizes[largest]:.3g}{_at(evidence)}, a usual layer's reach "
                f"{median:.3g}: they were not initialised, or were damaged when they were loaded or changed."
            ),
            confidence="likely",
            details={"parameter": largest},
        )
    finite = [loss for loss in evidence.losses if math.isfinite(loss)]
    before = f"; the last finite loss that was recorded was {finite[-1]:.4g}" if finite else ""
    lr = "" if evidence.lr is None else f" ({evidence.lr:g})"
    return Verdict(
        kind="learning_rate",
        text=(
            f"The weights have grown to {sizes[largest]:.3g}{_at(evidence)}{before}: the updates were too large. The "
            f"learning rate{lr} is too high for this loss; check also the scale and the reduction of the loss."
        ),
        confidence="likely",
        details={"lr": evidence.lr},
    )


def _repetition(evidence: Evidence) -> Verdict | None:
    """The forward pass was repeated with the weights and the batch of the fault."""
    repeated = evidence.repeated
    if not repeated:
        return None
    rows, num_rows = repeated.get("bad_rows") or [], int(repeated.get("num_rows") or 0)
    if repeated.get("num_bad_rows") != len(rows):
        rows = []
    if repeated.get("operation") is not None:
        verdict = judge_operation(
            repeated["operation"], _at(evidence), rows, num_rows, lambda samples: _sample(evidence, samples)
        )
        is_sample = bool(rows) and len(rows) < num_rows
        details = {**verdict.details, **(_sample_details(evidence, rows) if is_sample else {})}
        return msgspec.structs.replace(verdict, details=details)
    if evidence.loss_at_fault is None or math.isfinite(evidence.loss_at_fault):
        return None
    largest = repeated.get("largest_output", 0.0)
    return Verdict(
        kind="loss",
        text=(
            f"The outputs of the model are finite (the largest is {largest:.3g}), but the loss is "
            f"{'NaN' if math.isnan(evidence.loss_at_fault) else 'infinite'}{_at(evidence)}: it begins in the "
            "code of the loss, such as the logarithm of 0 or a division by a mask without tokens."
        ),
        confidence="likely",
        details={"largest_output": largest},
    )


def _overflow(evidence: Evidence) -> Verdict | None:
    for call in evidence.activations.get("calls") or []:
        output, largest_input = call.get("output"), call.get("input")
        if output is None or math.isfinite(output):
            continue
        dtype = str(call.get("dtype"))
        if largest_input is not None and not math.isfinite(largest_input):
            return _overflow_between(evidence, call, dtype)
        limit = LARGEST_NUMBERS.get(dtype)
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
    """The input of the first bad module is not finite, but the input of the model is: the code before the module."""
    limit = f" (the largest number of {dtype} is {LARGEST_NUMBERS[dtype]:,.6g})" if dtype in LARGEST_NUMBERS else ""
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
    if evidence.loss_at_fault is not None and math.isfinite(evidence.loss_at_fault):
        return Verdict(
            kind="loss_derivative",
            text=(
                f"All gradients are NaN or infinite{_at(evidence)} although the loss ({evidence.loss_at_fault:.4g}), "
                "weights and inputs are finite: a derivative is not, such as of the square root or the norm of 0."
            ),
            confidence="likely",
            details={"parameters": bad[:16]},
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


def _dead_layers(evidence: Evidence) -> Verdict | None:
    """Most layers get no gradient at all: large updates have saturated the activations behind them."""
    rows = [row for row in evidence.layers if row.get("gradient") and row.get("weight")]
    dead = [row for row in rows if _number(row, "gradient", "absmax") == 0]
    if len(rows) < _MIN_LAYERS or not len(rows) // 2 <= len(dead) < len(rows):
        return None
    largest = max(_number(row, "weight", "absmax") for row in dead)
    lr = "" if evidence.lr is None else f" ({evidence.lr:g})"
    return Verdict(
        kind="dead_layers",
        text=(
            f"The gradients of {len(dead)} of {len(rows)} tensors are zero, `{dead[0]['name']}` among them, and their "
            f"weights reach {largest:.3g}: their activations are saturated. Too large updates do that: check the "
            f"learning rate{lr}."
        ),
        confidence="possible",
        details={"parameters": [row["name"] for row in dead][:16], "lr": evidence.lr},
    )


def _fairly_large_updates(evidence: Evidence) -> Verdict | None:
    """Updates are large, though not by themselves a proof: weights that have grown make their share smaller."""
    ratio = _median_update(evidence.layers)
    return None if ratio is None or ratio < _FAIRLY_LARGE_UPDATE else _learning_rate(evidence, ratio, is_proof=False)


def _learning_rate(evidence: Evidence, ratio: float, *, is_proof: bool = True) -> Verdict:
    lr = "" if evidence.lr is None else f" {evidence.lr:g}"
    return Verdict(
        kind="learning_rate",
        text=(
            f"One update changes the weights of the middle layer by {ratio:.0%}; a tenth of a percent is usual. The "
            f"learning rate{lr} is {'' if is_proof else 'probably '}too high."
        ),
        confidence="likely" if is_proof else "possible",
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
    first_names = ", ".join(f"`{name}`" for name in names[:3])
    return first_names if len(names) <= 3 else f"{first_names} and {len(names) - 3} others"


def judge_hang(stacks: Mapping[str, Any]) -> Verdict | None:
    """Return where the main thread waits; None if it was not in the same place each time.

    Args:
        stacks: the stacks of all threads, as `describe_stacks` returns them.
    """
    threads = [group for group in stacks.get("threads") or [] if group.get("thread") == "MainThread"]
    if len(threads) != 1:
        return None
    frames = [line.split(" ") for line in str(threads[0].get("stack")).splitlines()]
    functions = {(line.partition(":")[0], name) for line, name in (frame for frame in frames if len(frame) == 2)}
    line = str(threads[0].get("program_line") or "")
    called_at = f", called at {line}" if line else ""
    if any(file == "dataloader.py" and name.startswith(("_get_data", "_try_get_data")) for file, name in functions):
        return Verdict(
            kind="loader_hang",
            text=f"The training waits for the next batch of a DataLoader{called_at}. {_describe_workers(stacks)}",
            confidence="certain",
            details={"line": line},
        )
    collective = next((name for file, name in functions if file == "distributed_c10d.py" and name != "wrapper"), None)
    if collective is not None:
        text, kind = f"The training waits for other ranks in `{collective}`{called_at}.", "collective_hang"
    elif any(name == "synchronize" for _, name in functions):
        text, kind = f"The training waits for the GPU{called_at}.", "gpu_hang"
    elif line:
        text, kind = (
            f"The main thread does not leave {line}; it was there in all of {stacks.get('num_looks')} looks.",
            "hang",
        )
    else:
        return None
    return Verdict(kind=kind, text=text, confidence="certain", details={"line": line})


def _describe_workers(stacks: Mapping[str, Any]) -> str:
    workers = [worker for worker in stacks.get("workers") or [] if isinstance(worker, Mapping)]
    states = [str(worker.get("state")) for worker in workers]
    num_running = sum(state.startswith(("R", "D")) for state in states)
    if not workers:
        return "It has no worker process: all of them have ended, or the batch is made in this process."
    if num_running:
        return f"{num_running} of {len(workers)} child processes are busy: the dataset is slow, or does not end."
    places = sorted({str(worker["waits_in"]) for worker in workers if worker.get("waits_in")})
    where = f", in {', '.join(places[:3])}" if places else ""
    return f"None of its {len(workers)} child processes is running; they wait{where}: a deadlock, or slow storage."
