"""The cause that a repeated forward pass shows: the operation of PyTorch, the line of code and the sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tachograph.black_box._format import Verdict

__all__ = ["LARGEST_NUMBERS", "judge_operation"]

LARGEST_NUMBERS = {"float16": 65_504.0, "bfloat16": 3.39e38, "float32": 3.4e38}

_WORDS = {
    "addmm": "matrix product",
    "baddbmm": "matrix product",
    "bmm": "matrix product",
    "convolution": "convolution",
    "div": "division",
    "exp": "exponential",
    "log": "logarithm",
    "log_softmax": "log-softmax",
    "mm": "matrix product",
    "mul": "product",
    "pow": "power",
    "rsqrt": "inverse square root",
    "softmax": "softmax",
    "sqrt": "square root",
}
_REASONS = {
    ("div", "nan"): "0 / 0",
    ("log", "infinity"): "the logarithm of 0",
    ("log", "nan"): "the logarithm of a negative number",
    ("rsqrt", "infinity"): "the inverse square root of 0",
    ("softmax", "nan"): "all values of a row are masked (-inf)",
    ("sqrt", "nan"): "the square root of a negative number",
}
_DERIVATIVES = {
    "AcosBackward0": "arc cosine at 1",
    "AsinBackward0": "arc sine at 1",
    "DivBackward0": "division",
    "LogBackward0": "logarithm at 0",
    "PowBackward0": "power at 0",
    "SqrtBackward0": "square root at 0",
}


def judge_operation(
    operation: Mapping[str, Any], at: str, rows: Sequence[int], num_rows: int, sample_of: Callable[[Sequence[int]], str]
) -> Verdict:
    """Return the verdict about the first operation whose result is not finite.

    Args:
        operation: as `FailedOperation` describes it.
        at: the step, in words.
        rows: the samples of the batch whose outputs are not finite.
        num_rows: the size of the batch.
        sample_of: names a sample.
    """
    name = str(operation["operation"]).removeprefix("aten.").partition(".")[0].strip("_")
    lines = [str(line) for line in operation.get("lines") or []]
    line = f" ({lines[0]})" if lines else ""
    result, dtype = str(operation["result"]), str(operation.get("dtype"))
    module = str(operation.get("module") or "")
    if operation.get("phase") == "backward":
        derivative = _DERIVATIVES.get(module, module or name)
        text = (
            f"The outputs of the model are finite, but the derivative of the {derivative} is not{at}: add a "
            "small number before it."
        )
        return Verdict(
            kind="derivative", text=text, confidence="certain", details={"operation": operation["operation"]}
        )
    place = f" in `{module}`" if module else ""
    noun = "infinity" if result == "infinity" else "NaN"
    text = f"The {_WORDS.get(name, name)}{place}{line} returned {noun}{at}"
    largest = operation.get("largest_input")
    limit = LARGEST_NUMBERS.get(dtype, math.inf)
    reason = _REASONS.get((name, result), "")
    is_overflow = not reason and result == "infinity" and (name != "div" or (largest or 0.0) > 1.0)
    if reason:
        text += f": {reason}"
    elif is_overflow:
        text += f": overflow in {dtype} (its largest number is {limit:,.6g}"
        text += f", the largest input {largest:.3g})" if largest is not None else ")"
    elif name == "div":
        text += ": a division by 0"
    if rows and len(rows) < num_rows:
        text += f". Only {sample_of(rows)} causes it" if len(rows) == 1 else f". It begins with {sample_of(rows)}"
    details = {"operation": operation["operation"], "module": module, "dtype": dtype, "line": lines[0] if lines else ""}
    kind = "activation_overflow" if is_overflow else "operation"
    return Verdict(kind=kind, text=f"{text}.", confidence="certain", details=details)
