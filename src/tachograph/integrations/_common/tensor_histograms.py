"""Histograms of gradients and weights, counted on the device at the step of an optimizer.

The bins are powers of two, so nothing has to be known about the values first: the sign and the exponent of a number are
the nine highest bits of its float32 form, and counting these is the whole histogram. The counts of all tensors go into
one matrix per device, which the media thread copies to the host and folds into bins. The training thread only launches
kernels: `bincount` and `unique` would wait for the device, and minimum and maximum are not needed.

Gradients are read when the optimizer is about to step: by then a `GradScaler` has unscaled them, accumulation is
complete, and clipping is done. A step with a closure computes its gradients itself, so these are read after it. Fused
optimizers unscale inside of their kernel; for them the scale is divided out here.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tachograph._base.guard import guarded, suppress
from tachograph.integrations._common.loop_observer import LoopObserver
from tachograph.media import ExponentCounts
from tachograph.recorder import RankRun, Run, latest_run

__all__ = ["TensorHistograms"]

_MAX_VALUES = 1 << 20
"""Larger tensors are counted in part."""
_MAX_TENSORS = 2_000
"""The tensors beyond these are added up by module."""
_NUM_KEYS = 512
_LARGEST_FLOAT32 = 3.4e38
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class TensorHistograms:
    """Counts the gradients or the weights of a model every so many steps of its optimizers.

    Args:
        model: the model, for the names of its parameters.
        observer: knows the run and the step.
        kind: which tensors are counted.
        every: the number of steps of each optimizer from one sampling to the next; the first step is sampled.
    """

    def __init__(
        self, model: Any, observer: LoopObserver, kind: Literal["gradients", "weights", "both"], every: int
    ) -> None:
        self._model = weakref.ref(model)
        self._names = _parameter_names(model)  # a wrapper may be gone at the first step
        self._observer = observer
        self._has_gradients = kind in {"gradients", "both"}
        self._has_weights = kind in {"weights", "both"}
        self._every = every
        self._num_steps: dict[int, int] = {}
        self._counted: list[ExponentCounts] = []
        """The counts of the current step, which are recorded when it has finished: the first step starts the run."""
        self._problems: set[str] = set()
        observer.on_compiled_step.append(self._report_compiled_step)

    def remove(self) -> None:
        """Stop looking for compiled steps. The owner of the hooks removes these."""
        with suppress(ValueError):
            self._observer.on_compiled_step.remove(self._report_compiled_step)

    def step_hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return hooks to call before and after the step of an optimizer."""
        is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling
        num_steps, every = self._num_steps, self._every

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling():
                return
            number = num_steps[id(optimizer)] = num_steps.get(id(optimizer), -1) + 1
            if number % every == 0 and not _has_closure(args, kwargs):
                self._count(optimizer)

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling():
                return
            if num_steps.get(id(optimizer), 1) % every == 0:
                if _has_closure(args, kwargs):
                    self._count(optimizer)
                self._record()

        return before_step, after_step

    def _report_compiled_step(self) -> None:
        self._report("the step of an optimizer is compiled, so its gradients and weights cannot be read")

    @property
    def _run(self) -> Run | None:
        return self._observer.run or latest_run()

    def _is_wanted(self) -> bool:
        """Return whether a record would be written: none is on other ranks than 0, and none without media."""
        run = self._run
        if run is None:
            return True  # the first step may start one
        settings = run.settings
        return run.enabled and not isinstance(run, RankRun) and settings.media and settings.media_keep != "off"

    @guarded("counting gradients and weights")
    def _count(self, optimizer: Any) -> None:
        torch: Any = sys.modules["torch"]
        if not self._is_wanted():
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            self._report("the step of an optimizer is captured as a CUDA graph, so its gradients cannot be read")
            return
        with torch.no_grad():
            self._counted = self._count_tensors(torch, optimizer)

    def _count_tensors(self, torch: Any, optimizer: Any) -> list[ExponentCounts]:
        model = self._model()
        if model is not None:
            self._names |= _parameter_names(model)  # sharding replaces parameters
        is_sharded = model is not None and _has_flat_parameters(model)
        scale = getattr(optimizer, "grad_scale", None)
        tensors: dict[Any, list[tuple[str, Any, bool]]] = {}
        for parameter, name in _named(optimizer, self._names):
            for group, tensor in (("gradients", parameter.grad), ("weights", parameter)):
                is_asked_for = self._has_gradients if group == "gradients" else self._has_weights
                if tensor is None or not is_asked_for:
                    continue
                local, is_shard = _local_part(tensor.detach())
                if local.layout is not torch.strided or local.device.type not in {"cpu", "cuda"}:
                    self._report(f"tensors on {local.device.type} with the layout {local.layout} are not counted")
                elif local.is_floating_point() or local.is_complex():
                    if group == "gradients" and scale is not None:
                        local = _sample(torch, local)[0] / scale.to(local.device, non_blocking=True)
                    tensors.setdefault(local.device, []).append((f"{group}/{name}", local, is_shard or is_sharded))
        return [_counts_on_device(torch, device, entries) for device, entries in tensors.items()]

    @guarded("recording histograms of gradients and weights")
    def _record(self) -> None:
        counted, self._counted = self._counted, []
        run = self._run
        if counted and run is not None and self._is_wanted():
            run.log({"histograms": counted}, step=self._observer.row_step)

    def _report(self, problem: str) -> None:
        run = self._run
        if run is not None and problem not in self._problems:
            self._problems.add(problem)
            run.report_error("histograms_not_recorded", "histograms", problem)


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether a step computes its gradients itself. The first argument of a hook is the optimizer."""
    return len(args) > 1 or kwargs.get("closure") is not None


def _parameter_names(model: Any) -> dict[int, str]:
    """Return the names of the parameters by id, without the parts that wrappers add."""
    parallel = getattr(sys.modules.get("torch.nn.parallel"), "DistributedDataParallel", None)
    if parallel is not None and isinstance(model, parallel):
        model = model.module
    names: dict[int, str] = {}
    for path, parameter in model.named_parameters():
        name = path
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        names[id(parameter)] = name
    return names


def _named(optimizer: Any, names: dict[int, str]) -> Iterator[tuple[Any, str]]:
    number = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter, names.get(id(parameter)) or f"parameter {number}"
            number += 1


def _has_flat_parameters(model: Any) -> bool:
    """Return whether FSDP has flattened the parameters, so that each process has a shard of them."""
    sharded_class = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return sharded_class is not None and any(isinstance(module, sharded_class) for module in model.modules())


def _local_part(tensor: Any) -> tuple[Any, bool]:
    """Return the part of a distributed tensor that this process has, and whether it is one."""
    to_local = getattr(tensor, "to_local", None)
    return (tensor, False) if to_local is None else (to_local(), True)


def _sample(torch: Any, tensor: Any) -> tuple[Any, bool]:
    """Return at most about a million values of a tensor, in any order, and whether some are left out."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_contiguous():  # such as one with its channels last: the same memory in another order
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    stride = -(-tensor.numel() // _MAX_VALUES)
    if stride <= 1:
        return tensor.reshape(-1), False
    if tensor.is_contiguous():
        return tensor.view(-1)[::stride], True
    return tensor[::stride].reshape(-1)[:_MAX_VALUES], True


def _counts_on_device(torch: Any, device: Any, entries: list[tuple[str, Any, bool]]) -> ExponentCounts:
    """Count the exponents of tensors of one device into one matrix. Waits for nothing."""
    rows = _assign_rows([name for name, _, _ in entries])
    row_names = list(dict.fromkeys(rows))
    numbers = {name: number for number, name in enumerate(row_names)}
    facts: list[dict[str, Any]] = [{} for _ in row_names]
    matrix = torch.zeros((len(row_names), _NUM_KEYS), dtype=torch.float64, device=device)
    for row_name, (_, tensor, is_shard) in zip(rows, entries, strict=True):
        row = numbers[row_name]
        sample, is_partial = _sample(torch, tensor)
        if is_partial:
            facts[row]["sampled"] = True
        if is_shard:
            facts[row]["shard"] = True
        matrix[row] += _count_keys(torch, _keys(torch, sample))
    return ExponentCounts(matrix, row_names, facts)


def _assign_rows(names: list[str]) -> list[str]:
    """Return the row of each tensor: its own for the first ones, then one for a module, at last one for all others."""
    rows = names[:_MAX_TENSORS]
    modules: dict[str, None] = {}
    for name in names[_MAX_TENSORS:]:
        module = _module_name(name)
        if module in modules or len(modules) < _MAX_TENSORS:
            modules[module] = None
            rows.append(module)
        else:
            rows.append(f"{name.partition('/')[0]}/*")
    return rows


def _module_name(name: str) -> str:
    """Return the name of what tensors are added up for that have no row of their own: `gradients/layers.7.*`."""
    kind, _, path = name.partition("/")
    module = ".".join(path.split(".")[:-1][:2])
    return f"{kind}/{module}.*" if module else f"{kind}/*"


def _keys(torch: Any, sample: Any) -> Any:
    """Return sign and exponent of each value: the nine highest bits of its float32 form."""
    if sample.dtype == torch.float64:  # a finite value must not become infinite
        limited = sample.clamp(-_LARGEST_FLOAT32, _LARGEST_FLOAT32)
        sample = torch.where(torch.isinf(sample), sample, limited)
    # Not in place: the sample may be the gradient itself.
    return (sample.to(torch.float32).contiguous().view(torch.int32) >> 23) & (_NUM_KEYS - 1)


def _count_keys(torch: Any, keys: Any) -> Any:
    """Return how often each key occurs."""
    if keys.device.type == "cpu":
        return torch.bincount(keys, minlength=_NUM_KEYS)
    if torch.are_deterministic_algorithms_enabled():  # `histc` raises then
        edges = torch.arange(_NUM_KEYS, dtype=keys.dtype, device=keys.device)
        ends = torch.searchsorted(keys.sort().values, edges, right=True)
        return ends.diff(prepend=ends.new_zeros(1))
    # Exact, because float32 counts to 2²⁴. With given limits it does not look for a minimum.
    return torch.histc(keys.to(torch.float32), bins=_NUM_KEYS, min=-0.5, max=_NUM_KEYS - 0.5)
