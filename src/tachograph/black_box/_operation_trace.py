"""The first operation of PyTorch whose result is not a number, although its inputs are.

`trace_operations` intercepts each operation of the calling thread, in the forward pass, the backward pass and the
optimizer, and checks its floating-point results. It waits for the device after each one, so it is for a step that is
repeated on purpose, not for training. Numbers do not change.

An infinity alone is no fault: attention masks contain some. So the first operation that makes an infinity from finite
numbers is only remembered, for the case that a NaN follows from it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tachograph._base.guard import guard
from tachograph._base.program_code import is_program_file

__all__ = ["FailedOperation", "OperationTrace", "trace_operations"]

_MAX_TENSORS = 64
_NEW_TENSORS = ("empty", "full", "fill", "where", "masked", "scalar_tensor")
"""Operations that make tensors without values, or put in a value that was given to them."""

_RESULTS = {"nan": "NaN", "infinity": "an infinity"}
_NOT_SHOWN = (f"{os.sep}torch{os.sep}", f"{os.sep}tachograph{os.sep}")


class FailedOperation(msgspec.Struct, kw_only=True):
    """An operation whose result is no number although its inputs are, or infinite although they are finite."""

    operation: str
    """Its name in PyTorch, such as `aten.div.Tensor`."""
    result: Literal["nan", "infinity"]
    phase: str
    """`forward`, `backward` or `optimizer`."""
    module: str = ""
    """The innermost module of the model that was running; in the backward pass the operation of autograd."""
    lines: list[str] = []
    """The lines of code that called it, the innermost first: lines of the program, or of libraries without any."""
    largest_input: float | None = None
    """The largest absolute value of its floating-point inputs; None without any, or if one is infinite."""
    takes_infinity: bool = False
    shapes: list[list[int]] = []
    """The shapes of its inputs."""
    dtype: str = ""

    def describe(self) -> str:
        """Return the operation as a sentence."""
        location = f" of `{self.module}`" if self.module else ""
        text = f"{self.operation} in the {self.phase} pass{location}" if self.phase != "optimizer" else self.operation
        if self.phase == "optimizer":
            text += " in the optimizer's update"
        if self.largest_input is not None:
            inputs = f" from finite inputs, the largest {self.largest_input:.4g} ({self.dtype})"
        elif self.takes_infinity:
            inputs = f" from inputs with infinities ({self.dtype})"
        else:
            inputs = f" ({self.dtype})"
        return f"{text} returned {_RESULTS[self.result]}{inputs}."


class OperationTrace:
    """The findings of `trace_operations`.

    Attributes:
        first_nan: the first operation that returned NaN from inputs without NaN.
        first_infinite: the first one before it that returned an infinity from finite inputs.
        num_operations: how many operations were checked.
        phase: the part of the step that is running; set by the caller.
    """

    def __init__(self) -> None:
        self.first_nan: FailedOperation | None = None
        self.first_infinite: FailedOperation | None = None
        self.num_operations = 0
        self.phase = "forward"
        self._modules: list[str] = []

    @property
    def first(self) -> FailedOperation | None:
        """The operation with which the NaN began: one that overflowed before, if there was one."""
        return None if self.first_nan is None else self.first_infinite or self.first_nan

    def _check(self, torch: Any, function: Any, inputs: list[Any], outputs: list[Any]) -> None:
        self.num_operations += 1
        if self.first_nan is not None:
            return
        name = str(function)
        results = [_largest(torch, tensor) for tensor in outputs]
        has_nan = any(value != value for value in results)  # noqa: PLR0124
        has_infinity = any(value in (float("inf"), float("-inf")) for value in results)
        is_new = any(word in name for word in _NEW_TENSORS)
        if not has_nan and (not has_infinity or self.first_infinite is not None or is_new):
            return
        values = [_largest(torch, tensor) for tensor in inputs]
        if any(value != value for value in values):  # noqa: PLR0124
            return
        is_finite = all(abs(value) != float("inf") for value in values)
        if has_nan and is_new and is_finite:
            return  # memory that is not initialised
        if not has_nan and not is_finite:
            return
        operation = FailedOperation(
            operation=name,
            result="nan" if has_nan else "infinity",
            phase=self.phase,
            module=self._place(torch),
            lines=_calling_lines(),
            largest_input=max(values, default=None) if is_finite else None,
            takes_infinity=not is_finite,
            shapes=[[int(size) for size in tensor.shape] for tensor in inputs[:8]],
            dtype=str(outputs[0].dtype).removeprefix("torch."),
        )
        if not has_nan:
            self.first_infinite = operation
            return
        self.first_nan = operation
        if is_finite:
            self.first_infinite = None  # it has nothing to do with this NaN

    def _place(self, torch: Any) -> str:
        if self.phase == "backward":
            node = torch._C._current_autograd_node()
            return "" if node is None else str(node.name())
        return self._modules[-1] if self._modules else ""


@contextlib.contextmanager
def trace_operations(model: Any = None) -> Iterator[OperationTrace]:
    """Check the operations of the calling thread; `model` names its modules.

    Example:
        >>> with trace_operations(model) as trace:
        ...     loss = loss_of(model(inputs))
        ...     loss.backward()
        >>> trace.first and trace.first.describe()
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    trace = OperationTrace()

    class _Mode(TorchDispatchMode):  # type: ignore[misc] # the class is untyped
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            inputs: list[Any] = []
            with guard("tracing an operation"):
                inputs = _floating_tensors(torch, tree_flatten((args, kwargs))[0])
                # An operation may write into its input.
                if str(function).partition(".")[2].partition(".")[0].endswith("_"):
                    inputs = [tensor.clone() for tensor in inputs]
            outputs = function(*args, **kwargs)
            with guard("tracing an operation"):
                if torch._C._current_autograd_node() is not None:
                    trace.phase = "backward"
                trace._check(torch, function, inputs, _floating_tensors(torch, tree_flatten(outputs)[0]))
            return outputs

    handles = []
    for name, module in model.named_modules() if model is not None else ():
        label = name or type(module).__name__
        handles.append(module.register_forward_pre_hook(lambda *_, label=label: trace._modules.append(label)))
        handles.append(module.register_forward_hook(lambda *_: trace._modules and trace._modules.pop() and None))
    try:
        with _Mode():
            yield trace
    finally:
        for handle in handles:
            handle.remove()


def _floating_tensors(torch: Any, values: list[Any]) -> list[Any]:
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return [tensor for tensor in tensors[:_MAX_TENSORS] if tensor.numel() and tensor.device.type != "meta"]


def _largest(torch: Any, tensor: Any) -> float:
    """Return the largest absolute value of a tensor, or NaN."""
    return float(torch.linalg.vector_norm(tensor.detach(), float("inf")))


def _calling_lines() -> list[str]:
    stack: list[traceback.FrameSummary] = traceback.extract_stack(sys._getframe(3), limit=200)
    stack = [line for line in stack if not any(part in line.filename for part in _NOT_SHOWN)]
    program_lines = [line for line in stack if is_program_file(line.filename)]
    return [
        f"{os.path.basename(line.filename)}:{line.lineno} {line.name}" for line in (program_lines or stack)[::-1][:4]
    ]
