"""Reports the memory of a GPU when an allocation fails, whether the program catches the error or not.

PyTorch calls an observer before it raises. It runs on the training thread, inside the failed allocation, so it
allocates nothing on the device: it reads the blocks of the allocator and the addresses of tensors. Modules, optimizers
and tensors are found through the garbage collector, so no framework needs to register them.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tachograph._base.guard import guard, suppress
from tachograph.black_box._dump_writer import DumpContext, DumpWriter
from tachograph.black_box._memory_report import (
    KnownStorage,
    account_memory,
    allocation_sites,
    batch_growth,
    memory_verdict,
)

__all__ = ["MemoryReporter", "known_storages"]

_REASON = "out_of_memory"
_MAX_OBJECTS = 5_000_000
_MAX_SCAN_S = 1.0
_MAX_HISTORY = 100_000
_SIZE_IN_MESSAGE = re.compile(r"Tried to allocate ([\d.]+) (GiB|MiB|KiB|bytes)")
_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}

_reporters: weakref.WeakSet[MemoryReporter] = weakref.WeakSet()
_attached_pids: set[int] = set()
"""Observers cannot be removed, so there is one in a process, which calls the reporters of its runs."""


class MemoryReporter:
    """A collector of a run that writes a dump when a GPU is out of memory.

    Args:
        writer: writes the dumps.
        last_step: returns the last step.
        ring: returns the last steps, as `StepRing`, or None.
        records_history: whether to record where memory is allocated, for the viewer of PyTorch.
    """

    def __init__(
        self,
        writer: DumpWriter,
        last_step: Callable[[], int | None] = lambda: None,
        ring: Callable[[], Any] = lambda: None,
        *,
        records_history: bool = False,
    ) -> None:
        self._writer = writer
        self._last_step = last_step
        self._ring = ring
        self._records_history = records_history
        self._has_history = False
        self._is_attached = False
        writer.add_part("memory", self._memory_part)

    def collect(self) -> None:
        """Attach the observer once the program uses CUDA."""
        cuda = _initialized_cuda()
        if self._is_attached or cuda is None:
            return
        self._is_attached = True
        _reporters.add(self)
        if os.getpid() not in _attached_pids:
            attach = getattr(sys.modules["torch"]._C, "_cuda_attach_out_of_memory_observer", None)
            if attach is not None:
                _attached_pids.add(os.getpid())
                attach(_observe)
        if self._records_history:
            with guard("recording the history of the allocator"):
                cuda.memory._record_memory_history(max_entries=_MAX_HISTORY, stacks="python")
                self._has_history = True

    def close(self) -> None:
        """Stop reporting."""
        _reporters.discard(self)
        if self._has_history:
            self._has_history = False
            with guard("recording the history of the allocator"):
                sys.modules["torch"].cuda.memory._record_memory_history(enabled=None)

    def forget(self) -> None:
        """Stop reporting in a forked child."""
        _reporters.discard(self)

    def on_out_of_memory(self, device: int, requested_bytes: int, total_bytes: int, free_bytes: int) -> None:
        """Write a dump about an allocation that failed."""
        if self._writer.may_write(_REASON):
            details = {
                "device": device,
                "requested_bytes": requested_bytes,
                "total_bytes": total_bytes,
                "free_bytes": free_bytes,
            }
            self._writer.write(_REASON, step=self._last_step(), details={"gpu_memory": details})

    def _memory_part(self, context: DumpContext) -> dict[str, Any] | None:
        """Return the report of the device that an error or a request is about."""
        cuda = _initialized_cuda()
        if cuda is None or context.reason == "signal":  # which leaves no time
            return None
        request = context.details.get("gpu_memory")
        if not isinstance(request, Mapping):
            is_error = "OutOfMemoryError" in type(context.error).__name__
            if not is_error and context.alert is not None:
                return None  # takes too long for a dump about something else
            if context.error is not None and not is_error:
                return None
            total_bytes, free_bytes = None, None
            with suppress(Exception):
                free_bytes, total_bytes = cuda.mem_get_info()
            request = {
                "device": cuda.current_device(),
                "requested_bytes": _requested_bytes(context.error),
                "total_bytes": total_bytes,
                "free_bytes": free_bytes,
            }
        return self._report(context, cuda, request)

    def _report(self, context: DumpContext, cuda: Any, request: Mapping[str, Any]) -> dict[str, Any]:
        started_at = time.monotonic()
        device = request["device"]
        if self._has_history:
            snapshot = cuda.memory._snapshot()
            segments = snapshot["segments"]
        else:
            segments = cuda.memory_snapshot()
        objects = list(_objects())
        report = account_memory(segments, known_storages(objects, device), **request)
        report["num_graph_scalars"] = _num_graph_scalars(objects)
        if self._has_history:
            report["sites"] = allocation_sites(segments, device)
            context.add_file("memory_snapshot.pickle", pickle.dumps(snapshot))
        if request["requested_bytes"]:
            current, earlier = _batch_shapes(self._ring())
            report["growth"] = batch_growth(current, earlier)
            context.verdict = context.verdict or memory_verdict(
                report,
                growth=report["growth"],
                logits_shape=_logits_shape(current, objects),
                allocator_variable=_allocator_variable(),
            )
        report["took_s"] = round(time.monotonic() - started_at, 3)
        return report


def _observe(device: int, requested_bytes: int, total_bytes: int, free_bytes: int) -> None:
    """Call the reporters of this process. The exception follows when this returns."""
    if os.getpid() not in _attached_pids:
        return  # a forked worker
    for reporter in list(_reporters):
        with guard("reporting the memory of a GPU"):
            reporter.on_out_of_memory(device, requested_bytes, total_bytes, free_bytes)


def _initialized_cuda() -> Any:
    """Return `torch.cuda` if the program has initialised it, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with suppress(Exception):  # torch may be half imported by another thread
        if cuda is not None and cuda.is_initialized():
            return cuda
    return None


def _requested_bytes(error: BaseException | None) -> int:
    match = _SIZE_IN_MESSAGE.search(str(error)) if error is not None else None
    return 0 if match is None else int(float(match[1]) * _UNITS[match[2]])


def _allocator_variable() -> str:
    """Return the name of the variable that configures the allocator, which PyTorch 2.9 renamed."""
    version = re.match(r"(\d+)\.(\d+)", str(sys.modules["torch"].__version__))
    is_new = version is not None and (int(version[1]), int(version[2])) >= (2, 9)
    return "PYTORCH_ALLOC_CONF" if is_new else "PYTORCH_CUDA_ALLOC_CONF"


def known_storages(objects: Iterable[Any], device: int, kind: str = "cuda") -> list[KnownStorage]:
    """Return the storages on a device of parameters, gradients, optimizer states, buffers and other tensors.

    Args:
        objects: modules, optimizers and tensors.
        device: the number of the device.
        kind: the type of the device; `cpu` has no numbers.
    """
    torch = sys.modules["torch"]
    by_category: dict[str, list[Any]] = {
        name: [] for name in ("parameters", "gradients", "optimizer", "buffers", "tensors")
    }
    for owner in objects:
        if isinstance(owner, torch.nn.Module):
            by_category["parameters"] += [value for value in owner._parameters.values() if value is not None]
            by_category["buffers"] += [value for value in owner._buffers.values() if value is not None]
        elif isinstance(owner, torch.Tensor):
            by_category["parameters" if isinstance(owner, torch.nn.Parameter) else "tensors"].append(owner)
        else:
            by_category["optimizer"] += _tensors_of_state(torch, owner)
    by_category["gradients"] = [
        gradient
        for value in by_category["parameters"]
        # Reading `grad` of other tensors warns.
        if (gradient := getattr(value, "grad", None)) is not None
    ]
    storages: list[KnownStorage] = []
    for category, tensors in by_category.items():
        for tensor in tensors:
            with suppress(Exception):  # a tensor without a storage, such as a fake one
                local = getattr(tensor, "_local_tensor", tensor)  # the shard of a DTensor
                if local.device.type == kind and local.device.index in (device, None):
                    label = f"{list(local.shape)} {str(local.dtype).removeprefix('torch.')}"
                    storages.append(KnownStorage(local.untyped_storage().data_ptr(), category, label))
    return storages


def _objects() -> Iterator[Any]:
    """Yield the modules, optimizers and tensors of the process, within a time limit."""
    torch = sys.modules["torch"]
    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
    until_s = time.monotonic() + _MAX_SCAN_S
    for number, candidate in enumerate(gc.get_objects()[:_MAX_OBJECTS]):
        # By the class: `isinstance` would ask proxies of other libraries for it, which may load them.
        if issubclass(type(candidate), kinds):
            yield candidate
        if number % 10_000 == 0 and time.monotonic() > until_s:
            return


def _tensors_of_state(torch: Any, optimizer: Any) -> list[Any]:
    tensors = []
    for state in list(getattr(optimizer, "state", {}).values()):
        for value in state.values() if isinstance(state, Mapping) else ():
            if isinstance(value, torch.Tensor):
                tensors.append(value)
    return tensors


def _batch_shapes(ring: Any) -> tuple[dict[str, tuple[int, ...]], list[dict[str, tuple[int, ...]]]]:
    """Return the shapes of the current batch by name, and of the earlier ones."""
    last = getattr(ring, "last_batch", None)
    if last is None:
        return {}, []

    def shapes(batch: Any) -> dict[str, tuple[int, ...]]:
        return {str(name): tuple(map(int, shape)) for name, shape, _dtype in batch.tensors}

    return shapes(last), [shapes(batch) for entry in list(ring.entries) for batch in entry.batches]


def _num_graph_scalars(objects: Iterable[Any]) -> int:
    """Return the number of scalars, such as losses, that still hold the graph of autograd with its activations."""
    torch = sys.modules["torch"]
    return sum(
        isinstance(owner, torch.Tensor) and owner.numel() == 1 and owner.grad_fn is not None for owner in objects
    )


def _logits_shape(batch: Mapping[str, tuple[int, ...]], objects: Iterable[Any]) -> tuple[int, int] | None:
    """Return the number of tokens and the size of the vocabulary, if the batch and a module say so."""
    ids = batch.get("input_ids")
    if ids is None or len(ids) != 2:
        return None
    nn = sys.modules["torch"].nn
    modules = [owner for owner in objects if isinstance(owner, nn.Module)]
    largest = max((module.out_features for module in modules if isinstance(module, nn.Linear)), default=0)
    vocabularies = {module.num_embeddings for module in modules if isinstance(module, nn.Embedding)}
    return (ids[0] * ids[1], largest) if largest in vocabularies else None
