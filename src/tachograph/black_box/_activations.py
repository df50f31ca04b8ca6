"""Where a NaN begins: the largest value that each module receives and returns, in one step.

Forward hooks are armed on the leaf modules for one pass and removed after it. Each computes a maximum on the device and
keeps that one number there; all of them are copied when the pass is over. Compiled modules get no hooks: they would
break the graph.
"""

from __future__ import annotations

import sys
from typing import Any

from tachograph._base.guard import guard
from tachograph.black_box._ring import tensors_in

__all__ = ["ActivationProbe", "is_compiled"]

_MAX_MODULES = 4000


class ActivationProbe:
    """Watches one forward pass of a model; `collect` removes its hooks and returns the findings."""

    def __init__(self, model: Any) -> None:
        self._torch = sys.modules["torch"]
        self._handles: list[Any] = []
        self._numbers: list[tuple[str, str, str, Any]] = []
        """Module, `input` or `output`, type, and the maximum on the device."""
        self._bad_inputs: list[tuple[str, Any]] = []
        self.num_passes = 0
        self.problem = ""
        self._arm(model)

    def _arm(self, model: Any) -> None:
        if is_compiled(model):
            self.problem = "the model is compiled"
            return
        modules = [(name, module) for name, module in model.named_modules() if not any(module.children())]
        if len(modules) > _MAX_MODULES:
            self.problem = f"the model has {len(modules)} modules"
            return
        self._handles.append(model.register_forward_pre_hook(self._before_pass, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._after_pass))
        for name, module in modules:
            if module is not model:
                self._handles.append(module.register_forward_hook(self._make_hook(name)))
            else:
                self._handles.append(module.register_forward_hook(self._make_hook(type(module).__name__)))

    def _before_pass(self, _module: Any, args: Any, kwargs: Any) -> None:
        if self.num_passes or self._torch.compiler.is_compiling():
            return
        with guard("probing the input of a model"):
            for name, tensor in [*tensors_in(args, self._torch.Tensor), *tensors_in(kwargs, self._torch.Tensor)]:
                if tensor.is_floating_point() and tensor.numel():
                    self._numbers.append(("", "input", _dtype(tensor), self._largest(tensor)))
                    if tensor.dim() > 1:
                        rows = self._torch.linalg.vector_norm(tensor.detach().flatten(1), float("inf"), dim=1)
                        self._bad_inputs.append((name, rows))

    def _after_pass(self, *_: Any) -> None:
        self.num_passes += 1

    def _make_hook(self, name: str) -> Any:
        def hook(_module: Any, args: Any, output: Any) -> None:
            if self.num_passes or self._torch.compiler.is_compiling():
                return
            with guard("probing an activation"):
                for side, value in (("input", args), ("output", output)):
                    for _, tensor in tensors_in(value, self._torch.Tensor, 2):
                        if tensor.is_floating_point() and tensor.numel():
                            self._numbers.append((name, side, _dtype(tensor), self._largest(tensor)))

        return hook

    def _largest(self, tensor: Any) -> Any:
        return self._torch.linalg.vector_norm(tensor.detach(), float("inf")).float()

    def remove(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def collect(self) -> dict[str, Any]:
        """Remove the hooks; return the maxima by module in the order of the calls, and rows of bad inputs."""
        self.remove()
        if self.problem:
            return {"problem": self.problem}
        numbers = [number for *_, number in self._numbers]
        values = self._torch.stack(numbers).cpu().tolist() if numbers else []
        calls: list[dict[str, Any]] = []
        inputs: list[float] = []
        for (name, side, dtype, _), value in zip(self._numbers, values, strict=True):
            if name == "":
                inputs.append(value)
            elif side == "input" and (not calls or calls[-1]["module"] != name or "output" in calls[-1]):
                calls.append({"module": name, "dtype": dtype, "input": value})
            elif calls and calls[-1]["module"] == name:
                largest = calls[-1].get(side)
                calls[-1][side] = value if largest is None else _larger(largest, value)
                calls[-1]["dtype"] = dtype
            else:
                calls.append({"module": name, "dtype": dtype, side: value})
        bad_rows: list[int] = []
        for _, rows in self._bad_inputs:
            bad_rows += (~self._torch.isfinite(rows)).nonzero().flatten().cpu().tolist()[:8]
        findings: dict[str, Any] = {"calls": calls, "num_passes": self.num_passes}
        return findings | {"inputs": inputs, "bad_input_rows": sorted(set(bad_rows))[:8]}


def is_compiled(model: Any) -> bool:
    """Return whether torch compiled the model or a part of it."""
    for module in model.modules():
        if getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule":
            return True
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    compiled = getattr(dynamo, "OptimizedModule", None)
    if compiled is None:
        return False
    import gc

    return any(type(owner) is compiled for owner in gc.get_referrers(model)) or any(
        type(owner) is compiled
        for holder in gc.get_referrers(model)
        if isinstance(holder, dict)
        for owner in gc.get_referrers(holder)
    )


def _larger(first: float, second: float) -> float:
    return first if first != first or first >= second else second  # noqa: PLR0124 - NaN is the larger one


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
