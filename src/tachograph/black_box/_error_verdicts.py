"""Causes of exceptions that PyTorch raises without naming the sample: from the functions on the stack.

Only the innermost functions of PyTorch are looked at, and of their arguments shapes and the places of values that are
out of range.
"""

from __future__ import annotations

import dis
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from tachograph.black_box._format import Verdict

__all__ = ["judge_error"]

_MAX_ELEMENTS = 1 << 24
_MAX_INDICES = 16
_KILLED = re.compile(r"killed by signal: ([A-Za-z ]+)")
_ENDS_OF_WORKERS = {
    -7: "SIGBUS, usually because shared memory (/dev/shm) is full: use fewer workers or smaller batches, or enlarge it",
    -9: "SIGKILL, usually from the kernel because memory was full: see the memory of child processes in the charts",
    -11: "SIGSEGV, a crash in compiled code of the dataset",
    -15: "SIGTERM, from another process",
}


def judge_error(error: BaseException, indices: Sequence[int] | None = None) -> Verdict | None:
    """Return the cause of an exception; None if its stack does not show it.

    Args:
        error: the exception.
        indices: the sample numbers of the last batch, if they are known.
    """
    entry, frames = error.__traceback__, []
    while entry is not None:
        frames.append(entry.tb_frame)
        entry = entry.tb_next
    for frame in reversed(frames):
        test = _TESTS.get((_file_of(frame), frame.f_code.co_name))
        if test is not None:
            return test(frame, error, indices)
    return None


def _file_of(frame: FrameType) -> str:
    return "/".join(frame.f_code.co_filename.replace(os.sep, "/").split("/")[-3:])


def _embedding(frame: FrameType, error: BaseException, indices: Sequence[int] | None) -> Verdict | None:
    values: Any
    weight: Any
    values, weight = frame.f_locals.get("input"), frame.f_locals.get("weight")
    if not isinstance(error, IndexError) or not _is_on_host(values) or not hasattr(weight, "shape"):
        return None
    num_rows = int(weight.shape[0])
    bad_index = _first_bad_index(values, num_rows, None, indices)
    if bad_index is None:
        return None
    return Verdict(
        kind="index_out_of_range",
        text=(
            f"An embedding of {num_rows:,} rows was given the index {bad_index.value:,}{bad_index.sample}. "
            f"Indices must be from 0 to {num_rows - 1:,}: compare the vocabularies of model and tokenizer."
        ),
        confidence="certain",
        details={"value": bad_index.value, "num_rows": num_rows, **bad_index.details},
    )


def _cross_entropy(frame: FrameType, error: BaseException, indices: Sequence[int] | None) -> Verdict | None:
    logits: Any
    labels: Any
    logits, labels = frame.f_locals.get("input"), frame.f_locals.get("target")
    if not isinstance(error, (IndexError, RuntimeError)) or not _is_on_host(labels) or not hasattr(logits, "shape"):
        return None
    num_classes = int(logits.shape[1] if len(logits.shape) > 1 else logits.shape[0])
    bad_index = _first_bad_index(labels, num_classes, frame.f_locals.get("ignore_index"), indices)
    if bad_index is None:
        return None
    return Verdict(
        kind="label_out_of_range",
        text=(
            f"The loss has {num_classes:,} classes, but the label{bad_index.sample} is {bad_index.value:,}. "
            f"Labels must be from 0 to {num_classes - 1:,}."
        ),
        confidence="certain",
        details={"value": bad_index.value, "num_classes": num_classes, **bad_index.details},
    )


def _batch_norm(frame: FrameType, error: BaseException, _indices: Sequence[int] | None) -> Verdict | None:
    values: Any = frame.f_locals.get("input")
    if not isinstance(error, ValueError) or not hasattr(values, "shape") or int(values.shape[0]) != 1:
        return None
    return Verdict(
        kind="batch_of_one",
        text=(
            "The batch has 1 sample, from which BatchNorm cannot compute a variance. It is usually the rest of the "
            "data: use drop_last=True, or another batch size."
        ),
        confidence="certain",
        details={"shape": [int(size) for size in values.shape]},
    )


def _fetch(frame: FrameType, error: BaseException, _indices: Sequence[int] | None) -> Verdict | None:
    """The dataset or the collate function raised in this process."""
    index = frame.f_locals["idx"] if "idx" in frame.f_locals else _requested_index(frame, error)
    batch = frame.f_locals.get("possibly_batched_index")
    return _bad_samples(error, [index] if isinstance(index, int) else batch)


def _requested_index(fetch: FrameType, error: BaseException) -> Any:
    """Return the index that a dataset was asked for; None if its function may have changed the variable.

    Since Python 3.12 a comprehension has no frame, and its variable is gone when it has raised.
    """
    entry = error.__traceback__
    while entry is not None and entry.tb_frame is not fetch:
        entry = entry.tb_next
    if entry is None or entry.tb_next is None:
        return None
    frame = entry.tb_next.tb_frame
    code = frame.f_code
    if code.co_name != "__getitem__" or code.co_argcount < 2:
        return None
    name = code.co_varnames[1]
    assigned = (step.argval for step in dis.get_instructions(code) if step.opname.startswith("STORE_"))
    is_changed = any(name == target or (isinstance(target, tuple) and name in target) for target in assigned)
    return None if is_changed else frame.f_locals.get(name)


def _process_data(frame: FrameType, error: BaseException, _indices: Sequence[int] | None) -> Verdict | None:
    """The dataset raised in a worker, for the batch that would be delivered next."""
    current = getattr(frame.f_locals.get("self"), "_tachograph_pass", None)
    waiting = current[1] if isinstance(current, tuple) and current[3] else None
    return _bad_samples(error, waiting[0] if waiting else None)


def _try_get_data(frame: FrameType, error: BaseException, _indices: Sequence[int] | None) -> Verdict | None:
    """A worker ended without an exception."""
    workers = getattr(frame.f_locals.get("self"), "_workers", None)
    if not isinstance(error, (RuntimeError, OSError, EOFError)) or not isinstance(workers, list):
        return None
    codes = [code for worker in workers if (code := getattr(worker, "exitcode", None))]
    return _worker_ended(codes[0]) if codes else None


def _on_worker_end(_frame: FrameType, error: BaseException, _indices: Sequence[int] | None) -> Verdict | None:
    """The signal handler of PyTorch has found a worker that was killed; its message has the description of a signal."""
    match = _KILLED.search(str(error))
    names = {signal.strsignal(-code): code for code in _ENDS_OF_WORKERS}
    return _worker_ended(names[match[1]]) if match is not None and match[1] in names else None


def _worker_ended(code: int) -> Verdict:
    reason = _ENDS_OF_WORKERS.get(code, f"exit code {code}")
    return Verdict(
        kind="loader_worker_ended",
        text=f"A worker process of the DataLoader ended without an exception: {reason}.",
        confidence="certain",
        details={"exit_code": code},
    )


def _bad_samples(error: BaseException, indices: Any) -> Verdict | None:
    if not isinstance(indices, (list, tuple)) or not all(isinstance(index, int) for index in indices) or not indices:
        return None
    numbers = ", ".join(f"{index:,}" for index in indices[:_MAX_INDICES]) + (
        " …" if len(indices) > _MAX_INDICES else ""
    )
    text = (
        f"The dataset raised {type(error).__name__} for the sample with index {numbers}."
        if len(indices) == 1
        else f"The dataset raised {type(error).__name__} for a batch of the samples with the indices {numbers}."
    )
    details = {"indices": list(indices[:512])}
    return Verdict(kind="bad_sample", text=text, confidence="certain", details=details)


class _BadIndex:
    """A value that is out of range, and the sample that has it."""

    def __init__(self, value: int, row: int | None, num_rows: int, indices: Sequence[int] | None) -> None:
        self.value = value
        self.sample = ""
        self.details: dict[str, Any] = {}
        if row is None:
            return
        self.sample = f" of sample {row} of the batch"
        self.details = {"rows": [row]}
        if indices is not None and len(indices) == num_rows:
            self.sample += f" (index {indices[row]:,} of the dataset)"
            self.details["indices"] = [indices[row]]


def _first_bad_index(values: Any, size: int, ignored: Any, indices: Sequence[int] | None) -> _BadIndex | None:
    is_outside = (values < 0) | (values >= size)
    if isinstance(ignored, int):
        is_outside &= values != ignored
    places = is_outside.nonzero()
    if not len(places):
        return None
    first = tuple(int(number) for number in places[0])
    num_rows = int(values.shape[0]) if values.dim() else 1
    # Of a flattened batch the position says nothing about the sample, unless there is one value per sample.
    is_row = values.dim() > 1 or (indices is not None and len(indices) == num_rows)
    return _BadIndex(int(values[first]), first[0] if first and is_row else None, num_rows, indices)


def _is_on_host(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return False
    return tensor.device.type == "cpu" and not tensor.is_floating_point() and 0 < tensor.numel() <= _MAX_ELEMENTS


_Test = Callable[[FrameType, BaseException, "Sequence[int] | None"], "Verdict | None"]
_FUNCTIONS, _FETCH, _LOADER = "torch/nn/functional.py", "data/_utils/fetch.py", "utils/data/dataloader.py"
_TESTS: dict[tuple[str, str], _Test] = {
    (_FUNCTIONS, "embedding"): _embedding,
    (_FUNCTIONS, "cross_entropy"): _cross_entropy,
    (_FUNCTIONS, "nll_loss"): _cross_entropy,
    (_FUNCTIONS, "batch_norm"): _batch_norm,
    (_FETCH, "fetch"): _fetch,
    (_FETCH, "<listcomp>"): _fetch,
    (_LOADER, "_process_data"): _process_data,
    (_LOADER, "_try_get_data"): _try_get_data,
    ("data/_utils/signal_handling.py", "handler"): _on_worker_end,
}
"""The function that judges an exception, by the file and the name of the innermost function of PyTorch that has one."""
