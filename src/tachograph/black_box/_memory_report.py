"""Which tensors hold the memory of a GPU, from a snapshot of PyTorch's allocator. Pure functions over plain values.

The allocator reserves *segments* from the driver and divides them into *blocks*. A block in use holds one storage, so
its address tells to which parameter, gradient or optimizer state it belongs. Blocks that no Python object refers to are
activations, which only the graph of autograd holds, and workspaces. Free blocks stay reserved: at the time of an error
the blocks smaller than the request are lost to fragmentation, because the allocator has released all segments that
are free as a whole before it gives up.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tachograph.black_box._format import Verdict

__all__ = [
    "CATEGORIES",
    "KnownStorage",
    "account_memory",
    "allocation_sites",
    "batch_growth",
    "memory_verdict",
]

CATEGORIES: dict[str, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers",
    "tensors": "other tensors in Python variables",
    "activations": "activations and the rest",
    "pending": "freed, but still in use by a stream",
    "cached": "cached, free",
    "fragmented": "lost to fragmentation",
}
"""The uses of reserved memory, with their names for a person. They add up to the reserved memory."""

_MAX_BLOCKS = 500_000
_NUM_LARGEST = 8
_MAX_FRAMES = 3
_GIB = 1 << 30
_MIN_TEXT_SHARE = 0.03
_MIN_EARLIER_BATCHES = 3
_MIN_KEPT = 32
"""Equal tensors in variables: the functions of a forward pass have fewer."""
_MIN_KEPT_SHARE = 0.1
"""Less of the reserved memory is not the cause."""

_MAX_ROUNDING_BYTES = 2 << 20


class KnownStorage(NamedTuple):
    """A storage on the device that a Python object refers to."""

    address: int
    category: str
    label: str = ""
    """Shape and type of the tensor, to group equal ones."""


def account_memory(
    segments: Iterable[Mapping[str, Any]],
    storages: Iterable[KnownStorage],
    *,
    device: int,
    requested_bytes: int = 0,
    total_bytes: int | None = None,
    free_bytes: int | None = None,
) -> dict[str, Any]:
    """Return how the memory of a device is used, in bytes.

    Args:
        segments: as `torch.cuda.memory_snapshot` returns them.
        storages: the storages of known tensors; of two with the same address, the first counts.
        device: the number of the device; segments of others are ignored.
        requested_bytes: the allocation that failed; 0 if none did.
        total_bytes: the memory of the device.
        free_bytes: the memory that the driver has left.
    """
    storage_by_address: dict[int, KnownStorage] = {}
    for storage in storages:
        storage_by_address.setdefault(storage.address, storage)
    addresses = sorted(storage_by_address)
    uses_bytes = dict.fromkeys(CATEGORIES, 0)
    labels: dict[tuple[str, str], list[int]] = {}
    unknown_sizes: dict[int, int] = {}
    reserved_bytes = num_blocks = 0
    is_expandable = False
    for segment in segments:
        if segment.get("device", device) != device:
            continue
        reserved_bytes += segment["total_size"]
        is_expandable = is_expandable or bool(segment.get("is_expandable"))
        address = segment["address"]
        blocks = segment["blocks"]
        num_blocks += len(blocks)
        if num_blocks > _MAX_BLOCKS:
            # Too many to look at one by one: count the rest of the segment's memory as a whole.
            active_bytes = segment.get("active_size", segment.get("allocated_size", 0))
            uses_bytes["activations"] += active_bytes
            uses_bytes["cached"] += segment["total_size"] - active_bytes
            continue
        rest_bytes = segment["total_size"]
        for block in blocks:
            start, size = block.get("address", address), block["size"]
            address = start + size
            rest_bytes -= size
            category = _category_of_state(block["state"], size, requested_bytes)
            if category == "activations":
                content = _storage_in(storage_by_address, addresses, start, size)
                if content is None:
                    unknown_sizes[size] = unknown_sizes.get(size, 0) + 1
                else:
                    category = content.category
                    labels.setdefault((category, content.label), []).append(size)
            uses_bytes[category] += size
        uses_bytes["cached"] += max(0, rest_bytes)
    report: dict[str, Any] = {
        "device": device,
        "requested_bytes": requested_bytes,
        "reserved_bytes": reserved_bytes,
        "uses_bytes": uses_bytes,
        "accounted_share": 1.0 if not reserved_bytes else round(sum(uses_bytes.values()) / reserved_bytes, 4),
        "is_expandable": is_expandable,
        "num_blocks": num_blocks,
        "largest": _largest(labels),
        "largest_unknown": [
            {"size_bytes": size, "num": num}
            for size, num in sorted(unknown_sizes.items(), key=lambda item: -item[0] * item[1])[:_NUM_LARGEST]
        ],
    }
    if total_bytes is not None and free_bytes is not None and free_bytes + reserved_bytes > total_bytes:
        report["limit_bytes"] = total_bytes  # of the process, as `set_per_process_memory_fraction` sets it
    elif total_bytes is not None and free_bytes is not None:
        outside_bytes = max(0, total_bytes - free_bytes - reserved_bytes)
        report |= {"total_bytes": total_bytes, "free_bytes": free_bytes, "outside_bytes": outside_bytes}
    return report


def _category_of_state(state: str, size: int, requested_bytes: int) -> str:
    if state == "active_allocated":
        return "activations"
    if state.startswith("active"):  # freed by the program, and waited for by another stream
        return "pending"
    return "fragmented" if size < requested_bytes else "cached"


def _storage_in(
    storage_by_address: Mapping[int, KnownStorage], addresses: Sequence[int], start: int, size: int
) -> KnownStorage | None:
    """Return the known storage in a block; usually it starts where the block does."""
    if start in storage_by_address:
        return storage_by_address[start]
    position = bisect.bisect_left(addresses, start)
    if position < len(addresses) and addresses[position] < start + size:
        return storage_by_address[addresses[position]]
    return None


def _largest(labels: Mapping[tuple[str, str], list[int]]) -> list[dict[str, Any]]:
    """Return the groups of equal tensors with most memory."""
    ordered = sorted(labels.items(), key=lambda item: -sum(item[1]))[:_NUM_LARGEST]
    return [
        {"category": category, "tensor": label, "num": len(sizes), "size_bytes": sum(sizes)}
        for (category, label), sizes in ordered
    ]


def batch_growth(current: Mapping[str, Sequence[int]], earlier: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """Say that the batch of a step is larger than all before; empty if it is not, or there are too few to compare.

    Args:
        current: the shapes of its tensors by name.
        earlier: the shapes of earlier batches.
    """
    for name, shape in current.items():
        shapes = [batch[name] for batch in earlier if len(batch.get(name, ())) == len(shape) > 0]
        if len(shapes) < _MIN_EARLIER_BATCHES:
            continue
        largest = max(shapes, key=_num_values)
        if _num_values(shape) > _num_values(largest):
            subject = f"{name!r} of this step has" if name else "The batch of this step has"
            return (
                f"{subject} {_shape_text(shape)} values; the largest of {len(shapes)} before had {_shape_text(largest)}"
            )
    return ""


def _num_values(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= int(size)
    return product


def _shape_text(shape: Sequence[int]) -> str:
    return " × ".join(f"{int(size):,}" for size in shape)


def memory_verdict(
    report: Mapping[str, Any],
    *,
    growth: str = "",
    logits_shape: tuple[int, int] | None = None,
    allocator_variable: str = "PYTORCH_CUDA_ALLOC_CONF",
) -> Verdict:
    """Return the cause of an error in one paragraph, with advice only where a number supports it.

    Args:
        report: as `account_memory` returns it.
        growth: as `batch_growth` returns it.
        logits_shape: tokens of the batch and size of the vocabulary, if both are known.
        allocator_variable: the environment variable that configures the allocator.
    """
    requested_bytes, uses_bytes = report["requested_bytes"], report["uses_bytes"]
    text = f"GPU {report['device']} is out of memory"
    if requested_bytes:
        text += f": {_size(requested_bytes)} were requested"
        if report.get("free_bytes") is not None:
            text += f", {_size(report['free_bytes'])} of {_size(report['total_bytes'])} are free"
        elif report.get("limit_bytes") is not None:
            text += f", and this process may use {_size(report['limit_bytes'])}"
    total_bytes = report["reserved_bytes"] + report.get("outside_bytes", 0)
    holders = [(CATEGORIES[name], uses_bytes[name]) for name in CATEGORIES]
    holders.append(("outside of PyTorch (context, libraries, other processes)", report.get("outside_bytes", 0)))
    large = sorted(
        (item for item in holders if item[1] >= _MIN_TEXT_SHARE * total_bytes > 0), key=lambda item: -item[1]
    )
    if large:
        text += ". In use: " + ", ".join(f"{name} {_size(num_bytes)}" for name, num_bytes in large)
    causes = sorted(_causes(report, allocator_variable), key=lambda cause: -cause.num_bytes)
    advice = [cause.advice for cause in causes]
    logits = _logits_text(requested_bytes, report["largest_unknown"], logits_shape)
    advice += [sentence for sentence in (logits, growth) if sentence]
    kind = causes[0].kind if causes else "gpu_larger_batch" if growth else "gpu_out_of_memory"
    details = {"uses_bytes": dict(uses_bytes), "advice": advice}
    return Verdict(kind=kind, text=". ".join([text, *advice]), confidence="certain", details=details)


class _Cause(NamedTuple):
    kind: str
    num_bytes: int
    """How much memory it holds."""
    advice: str


def _causes(report: Mapping[str, Any], allocator_variable: str) -> Iterator[_Cause]:
    """Yield what holds memory that the training does not need."""
    requested_bytes, uses_bytes = report["requested_bytes"], report["uses_bytes"]
    fragmented_bytes = uses_bytes["fragmented"]
    min_bytes = _MIN_KEPT_SHARE * report["reserved_bytes"]
    if requested_bytes and fragmented_bytes >= max(requested_bytes, min_bytes) and not report["is_expandable"]:
        yield _Cause(
            "gpu_fragmented",
            fragmented_bytes,
            f"Free blocks that are too small hold {_size(fragmented_bytes)}: set "
            f"{allocator_variable}=expandable_segments:True",
        )
    num_graphs = report.get("num_graph_scalars", 0)
    tensors = next((item for item in report["largest"] if item["category"] == "tensors"), None)
    if num_graphs >= _MIN_KEPT:  # the graphs keep the other tensors
        yield _Cause(
            "gpu_graphs_kept",
            uses_bytes["tensors"] + uses_bytes["activations"],
            f"{num_graphs:,} scalars in Python variables, such as losses, hold the graph of autograd and with it "
            "activations of earlier steps: keep numbers (.item() or .detach()) instead",
        )
    elif (
        tensors is not None and tensors["num"] >= _MIN_KEPT and tensors["size_bytes"] >= 0.1 * report["reserved_bytes"]
    ):
        yield _Cause(
            "gpu_tensors_kept",
            tensors["size_bytes"],
            f"{tensors['num']:,} tensors {tensors['tensor']} in Python variables hold {_size(tensors['size_bytes'])}: "
            "keep numbers (.item()) or copies on the CPU instead",
        )


def _logits_text(
    requested_bytes: int, largest_unknown: Sequence[Mapping[str, int]], logits_shape: tuple[int, int] | None
) -> str:
    """Recognise the logits of a language model by their exact size, among the request and the largest blocks."""
    if logits_shape is None:
        return ""
    num_values = logits_shape[0] * logits_shape[1]
    sizes = {item["size_bytes"]: item["num"] for item in largest_unknown}
    matches = []
    for width in (2, 4):
        exact_bytes = num_values * width
        if exact_bytes < 64 << 20:  # too small to matter, and to tell from others
            continue
        num = sum(count for size, count in sizes.items() if 0 <= size - exact_bytes < _MAX_ROUNDING_BYTES)
        num += 0 <= requested_bytes - exact_bytes < _MAX_ROUNDING_BYTES
        matches += [exact_bytes] * num
    if not matches:
        return ""
    shape = f"{logits_shape[0]:,} tokens × {logits_shape[1]:,}"
    return f"{_size(sum(matches))} have the size of the logits ({shape}): the plugin cut_cross_entropy avoids them"


def allocation_sites(segments: Iterable[Mapping[str, Any]], device: int) -> list[dict[str, Any]]:
    """Return the places in the program that allocated most of the memory in use, if stacks were recorded."""
    sizes: dict[tuple[str, ...], list[int]] = {}
    for segment in segments:
        if segment.get("device", device) != device:
            continue
        for block in segment["blocks"]:
            frames = block.get("frames") or ()
            if not frames and block.get("history"):
                frames = block["history"][0].get("frames") or ()
            if block["state"] == "active_allocated" and frames:
                sizes.setdefault(_site(frames), []).append(block["size"])
    ordered = sorted(sizes.items(), key=lambda item: -sum(item[1]))[: 2 * _NUM_LARGEST]
    return [{"frames": list(site), "num": len(blocks), "size_bytes": sum(blocks)} for site, blocks in ordered]


def _site(frames: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the innermost frames outside of torch, innermost first."""
    lines = [f"{frame.get('filename')}:{frame.get('line')} in {frame.get('name')}" for frame in frames]
    program_lines = [line for line in lines if "/torch/" not in line and ".py:" in line]
    return tuple((program_lines or lines)[:_MAX_FRAMES])


def _size(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB / 10 else f"{num_bytes / (1 << 20):.1f} MiB"
