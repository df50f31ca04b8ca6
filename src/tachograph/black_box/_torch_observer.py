"""Observes every loop of PyTorch in a process, whichever framework runs it: optimizer steps and batches of loaders.

The global hooks of torch's optimizers mark the steps. Batches are seen where torch's loaders deliver them, and the
sample numbers where a loader takes them from its batch sampler: with worker processes that is several batches earlier,
so the numbers wait in a queue until their batch is delivered. Nothing is changed, and no tensor is kept.

Gradients on the CPU are probed before each step: two numbers are read, of the first and of the last parameter. If one
is not finite, the weights are still intact, the batch still exists, and the evidence is better than at any time later.
Gradients on a GPU are not: reading one would wait for the device.

Everything here runs on the training thread, takes some microseconds and never raises.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from types import FrameType
from typing import Any, Protocol

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph.black_box._ring import MAX_EVENTS, STATE_EVERY, StepRing, tensors_in

__all__ = ["StepListener", "TorchObserver"]

_TOKENS_MASK = "attention_mask"
_MAX_MASK_ELEMENTS = 1 << 20
_MAX_WAITING = 4096
_MAX_TENSORS = 8
_FIRST_ADDRESS = 4096
"""No memory is mapped below."""

_READ_ONLY = 0x100
"""`PyBUF_READ` of the C API of Python."""

_reference = weakref.ref


class StepListener(Protocol):
    """Handles the steps that are observed."""

    ring: StepRing
    wants_boundary: bool
    """Whether `at_boundary` is to be called."""

    def at_boundary(self) -> None:
        """Handle that the training thread is between two steps."""
        ...

    def on_bad_gradient(self) -> None:
        """Handle that a gradient is not finite and the optimizer is about to step."""
        ...


class TorchObserver:
    """The hooks of one process, for one run at a time."""

    def __init__(self, listener: StepListener) -> None:
        self._listener = listener
        self._torch = sys.modules["torch"]
        self._patches = Patches()
        self._optimizers: dict[int, Any] = {}
        self._probes: dict[int, Any] = {}
        """By optimizer: the memory as numbers, the shift from an address to an index, and the groups with the first
        and the last parameter; None if gradients cannot be read without waiting."""
        self._may_read_gradients = True
        """Whether the gradients of an optimizer can be read, as far as known. Otherwise no batch is read again."""
        self._num_sources = 0
        self._loader: Any = None
        self.autocast: tuple[str, Any] | None = None
        """The type of device and the type of the last mixed precision, if the loop uses one."""
        self._is_ahead = False
        """Whether the last iterator was requested by a loader that fetches each batch one step early."""
        self._install()

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that have stepped and still exist."""
        return [optimizer for reference in self._optimizers.values() if (optimizer := reference()) is not None]

    @property
    def loader(self) -> Any:
        """The loader of the last batch, if it still exists."""
        return None if self._loader is None else self._loader()

    def current_batch(self) -> dict[str, Any]:
        """Return the tensors of the last batch that still exist."""
        batch = self._listener.ring.last_batch
        references = {} if batch is None else {str(name): reference for name, _, _, reference in batch.tensors}
        tensors = {name: reference() for name, reference in references.items() if reference is not None}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def close(self) -> None:
        """Remove the hooks."""
        self._patches.undo()

    def _install(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        handles = (
            register_optimizer_step_pre_hook(self._make_before_step()),
            register_optimizer_step_post_hook(self._make_after_step()),
        )
        for handle in handles:
            self._patches.on_undo(handle.remove)
        self._patches.wrap(self._torch.autocast, "__enter__", self._wrap_enter_autocast)
        loaders = sys.modules.get("torch.utils.data.dataloader")
        if loaders is not None:
            self._patches.wrap(loaders.DataLoader, "_get_iterator", self._wrap_get_iterator)
            self._patches.wrap(loaders._BaseDataLoaderIter, "_next_index", self._wrap_next_index)
            for iterator_class in (loaders._SingleProcessDataLoaderIter, loaders._MultiProcessingDataLoaderIter):
                self._patches.wrap(iterator_class, "_next_data", self._wrap_next_data)

    # Optimizers ----------------------------------------------------------------------------------------------------

    def _make_before_step(self) -> Callable[..., None]:
        is_compiling, probes = self._torch.compiler.is_compiling, self._probes

        def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            try:
                probe = probes[id(optimizer)]
            except KeyError:
                self._add_optimizer(optimizer)
                probe = probes.get(id(optimizer))
            if probe is None:
                return
            numbers, shift, first, last = probe
            try:
                groups = optimizer.param_groups
                for parameter in (groups[last]["params"][-1], groups[first]["params"][0]):
                    gradient = parameter.grad
                    if gradient is not None and (address := gradient.data_ptr()):  # 0: its memory was freed
                        value = numbers[(address - _FIRST_ADDRESS) >> shift]
                        if value - value != 0.0:  # NaN or infinite
                            self._listener.on_bad_gradient()
                            return
            except IndexError:  # its groups have changed
                self._add_optimizer(optimizer)

        return before_step

    def _make_after_step(self) -> Callable[..., None]:
        listener, is_compiling = self._listener, self._torch.compiler.is_compiling
        ring = listener.ring

        def after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            number = ring.num_steps + 1
            remainder = number % STATE_EVERY
            if remainder > 1:
                ring.num_steps = number
                ring.events.append(perf_counter())
            else:
                ring.add_step(perf_counter(), self._generators() if remainder else None)
            if listener.wants_boundary:
                listener.at_boundary()

        return after_step

    def _wrap_enter_autocast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(autocast: Any) -> Any:  # noqa: N807 - the name of the method that it replaces
            self.autocast = (autocast.device, autocast.fast_dtype) if autocast._enabled else None
            return original(autocast)

        return __enter__

    def _add_optimizer(self, optimizer: Any) -> None:
        with guard("observing an optimizer"):
            self._add_probe(optimizer)
            self._may_read_gradients = any(probe is not None for probe in self._probes.values())

    def _add_probe(self, optimizer: Any) -> None:
        key = id(optimizer)
        self._optimizers[key] = weakref.ref(optimizer, lambda _: (self._optimizers.pop(key, None), None)[1])
        weakref.finalize(optimizer, self._probes.pop, key, None).atexit = False
        self._probes[key] = None
        torch = self._torch
        readers = {torch.float32: ("f", 2), torch.float64: ("d", 3)}
        numbers = [number for number, group in enumerate(optimizer.param_groups) if group["params"]]
        if not numbers:
            return
        first, last = numbers[0], numbers[-1]
        ends = (optimizer.param_groups[first]["params"][0], optimizer.param_groups[last]["params"][-1])
        is_plain = all(
            type(end) in (torch.nn.Parameter, torch.Tensor) and end.device.type == "cpu" and end.numel() for end in ends
        )
        if is_plain and ends[0].dtype == ends[1].dtype and not any(_is_sparse(end.grad) for end in ends):
            reader = readers.get(ends[0].dtype)
            self._probes[key] = None if reader is None else (_memory_as(reader[0]), reader[1], first, last)

    def _generators(self) -> dict[str, Any]:
        """Return the state of the random generators."""
        states: dict[str, Any] = {}
        with guard("reading the random generators"):
            torch = self._torch
            states["cpu"] = torch.get_rng_state()
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                device = torch.cuda.current_device()
                generator = torch.cuda.default_generators[device]
                if not torch.cuda.is_current_stream_capturing():
                    states[f"cuda:{device}"] = {"seed": generator.initial_seed(), "offset": generator.get_offset()}
        return states

    # Loaders -------------------------------------------------------------------------------------------------------

    def _wrap_get_iterator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _get_iterator(loader: Any) -> Any:
            # Before: workers are sent their first batches while the iterator is created.
            with guard("observing a loader"):
                self._is_ahead = _is_called_by_accelerate()
                self._loader = weakref.ref(loader)
            return original(loader)

        return _get_iterator

    def _wrap_next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            try:
                current = iterator._tachograph_pass
                if current[0] is not iterator._sampler_iter:
                    current = self._start_pass(iterator, indices)
            except AttributeError:
                current = self._start_pass(iterator, indices)
            current[1].append(indices)
            return indices

        return _next_index

    def _start_pass(self, iterator: Any, indices: Any) -> tuple[Any, ...]:
        """Return the state of a new pass over the data, which the iterator of the loader carries."""
        self._num_sources += 1
        # An iterable dataset has no sample numbers, and workers that need not keep the order deliver any batch.
        has_numbers = isinstance(indices, (list, tuple)) and bool(indices) and indices[0] is not None
        has_numbers = has_numbers and bool(getattr(iterator, "_in_order", True))
        state: tuple[Any, ...] = (
            iterator._sampler_iter,
            deque(maxlen=_MAX_WAITING),
            self._num_sources,
            has_numbers,
            self._is_ahead,
        )
        iterator._tachograph_pass, iterator._tachograph_delayed = state, None
        return state

    def _wrap_next_data(self, original: Callable[..., Any]) -> Callable[..., Any]:
        listener, torch = self._listener, self._torch
        is_grad_enabled, tensor_type, ring = torch.is_grad_enabled, torch.Tensor, listener.ring

        # One function with plain tuples: each further call costs a microsecond when the caches are cold.
        def _next_data(iterator: Any) -> Any:
            if listener.wants_boundary:
                listener.at_boundary()
            data = original(iterator)
            try:
                if not is_grad_enabled():  # validation
                    return data
                try:
                    sampler_iter, waiting, source, has_numbers, is_ahead = iterator._tachograph_pass
                except AttributeError:  # it began before the run
                    return data
                indices = waiting.popleft() if waiting else None
                if not has_numbers or sampler_iter is not iterator._sampler_iter:
                    indices = None
                kind, tensors = type(data), []
                if kind is dict or kind is list or kind is tuple:
                    may_read = self._may_read_gradients
                    for name, v in data.items() if kind is dict else enumerate(data):
                        if type(v) is tensor_type:
                            tensors.append((name, v.shape, v.dtype, _reference(v) if may_read else None))
                if not tensors or len(tensors) > _MAX_TENSORS:
                    tensors = _first_tensors(tensors, data, tensor_type)
                num_tokens = None if ring.num_steps % STATE_EVERY else _count_tokens(data, tensor_type)
                batch = (source, iterator._num_yielded, tensors, indices, num_tokens)
                if is_ahead or len(ring.events) >= MAX_EVENTS:
                    self._add_batch(iterator, batch, is_ahead=is_ahead)
                else:
                    ring.events.append(batch)
            except Exception as fault:
                guard.report("observing a batch", fault)
                if guard.strict:
                    raise
            return data

        return _next_data

    def _add_batch(self, iterator: Any, batch: tuple[Any, ...] | None, *, is_ahead: bool) -> None:
        if is_ahead:  # the user of the loader gets the batch before this one
            batch, iterator._tachograph_delayed = iterator._tachograph_delayed, batch
        if batch is not None:
            self._listener.ring.add_batch(batch)


def _first_tensors(tensors: list[Any], batch: Any, tensor_type: Any) -> list[Any]:
    """Return the description of a batch with many tensors, or of an unusual kind."""
    return tensors[:_MAX_TENSORS] or [
        (name, tensor.shape, tensor.dtype, _reference(tensor)) for name, tensor in tensors_in(batch, tensor_type)
    ]


def _count_tokens(batch: Any, tensor_type: Any) -> int | None:
    mask = batch.get(_TOKENS_MASK) if isinstance(batch, Mapping) else None
    if isinstance(mask, tensor_type) and mask.device.type == "cpu" and mask.numel() <= _MAX_MASK_ELEMENTS:
        return int(mask.sum())
    return None


def _memory_as(type_code: str) -> memoryview:
    """Return the memory of the process as numbers: to read one that way takes a third of the time of a ctypes object.

    Nothing is read here. An address is that of a tensor that exists.
    """
    make_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
        ("PyMemoryView_FromMemory", ctypes.pythonapi)
    )
    view: memoryview = make_view(_FIRST_ADDRESS, (sys.maxsize - _FIRST_ADDRESS) // 8 * 8, _READ_ONLY)
    numbers: memoryview = view.cast(type_code)  # type: ignore[call-overload]
    return numbers


def _is_sparse(tensor: Any) -> bool:
    return tensor is not None and (tensor.is_sparse or not tensor.is_contiguous())


def _is_called_by_accelerate() -> bool:
    """Return whether a loader of Accelerate requests the iterator: it fetches each batch one step early."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(8):
        if frame is not None:
            if frame.f_globals.get("__name__") == "accelerate.data_loader":
                return True
            frame = frame.f_back
    return False
