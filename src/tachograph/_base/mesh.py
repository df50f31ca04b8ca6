"""The position of this process in the mesh of its job: data, tensor, pipeline and expert parallel.

Read from the state of modules that the training code has loaded. Nothing is imported, and no function is called that
could create a process group, so this is safe in any thread.
"""

from __future__ import annotations

import sys
from typing import Any

from tachograph._base.guard import reraise_from_signal_handler

__all__ = ["mesh_coordinates"]

_TORCH_PREFIX = "mesh_"
"""`DeviceMesh` describes the process group of its dimension `dp` as `mesh_dp`."""

_NAMES = {
    "data": ("dp", "ddp", "fsdp", "hsdp", "data", "data_parallel", "dp_replicate", "dp_shard", "replicate", "shard"),
    "tensor": ("tp", "tensor", "tensor_parallel", "model", "model_parallel"),
    "pipeline": ("pp", "pipe", "pipeline", "pipeline_parallel", "stage"),
    "expert": ("ep", "expert", "expert_parallel"),
    "context": ("cp", "context", "context_parallel", "sp", "sequence", "sequence_parallel"),
}
_NAME_OF = {alias: name for name, aliases in _NAMES.items() for alias in aliases}
_MAX_DIMENSIONS = 8

# Names of functions, first those of Megatron. Others are of DeepSpeed's grid of a pipeline, and of older versions.
_RANK_FUNCTIONS = {
    "data": ("get_data_parallel_rank",),
    "tensor": ("get_tensor_model_parallel_rank", "get_slice_parallel_rank", "get_model_parallel_rank"),
    "pipeline": ("get_pipeline_model_parallel_rank", "get_pipe_parallel_rank", "get_stage_id"),
    "expert": ("get_expert_model_parallel_rank",),
    "context": ("get_context_parallel_rank",),
}


def mesh_coordinates() -> dict[str, int]:
    """Return the coordinates of this process, such as ``{"data": 3, "pipeline": 1}``; empty if no mesh is known.

    Dimensions of size one are left out. Megatron's state comes before DeepSpeed's, and that before the device mesh of
    torch, which both may use themselves.
    """
    for read in (_from_megatron, _from_deepspeed, _from_torch):
        try:
            coordinates = read()
        except Exception as error:  # noqa: BLE001 - the state of another library, perhaps half made
            reraise_from_signal_handler(error)
            continue
        if coordinates:
            return coordinates
    return {}


def _from_megatron() -> dict[str, int]:
    for name in ("megatron.core.parallel_state", "megatron.core.mpu", "megatron.mpu"):
        state: Any = sys.modules.get(name)
        if state is not None and state.model_parallel_is_initialized():
            return _call_rank_functions(state)
    return {}


def _from_deepspeed() -> dict[str, int]:
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    if groups is None:
        return {}
    coordinates = _call_rank_functions(groups.mpu) if getattr(groups, "mpu", None) is not None else {}
    for members in list(getattr(groups, "_EXPERT_PARALLEL_GROUP_RANKS", {}).values()):
        own_rank = _own_rank()
        if len(members) > 1 and own_rank in members:
            coordinates.setdefault("expert", list(members).index(own_rank))
    return coordinates


def _call_rank_functions(state: Any) -> dict[str, int]:
    coordinates: dict[str, int] = {}
    for dimension, names in _RANK_FUNCTIONS.items():
        for name in names:
            get_rank = getattr(state, name, None)
            get_size = getattr(state, name.replace("_rank", "_world_size"), None)
            try:
                if get_rank is not None and (get_size is None or get_size() > 1):
                    coordinates[dimension] = int(get_rank())
                    break
            except Exception as error:  # noqa: BLE001 - such as the group of a dimension that is not in use
                reraise_from_signal_handler(error)
    return coordinates


def _from_torch() -> dict[str, int]:
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None:
        return {}
    own_rank = _own_rank()
    coordinates: dict[str, int] = {}
    for group, members in list(distributed._world.pg_group_ranks.items()):
        dimension = str(getattr(group, "group_desc", ""))  # the key for groups of others is a number
        if not dimension.startswith(_TORCH_PREFIX) or len(members) < 2 or own_rank not in members:
            continue
        dimension = dimension[len(_TORCH_PREFIX) :]
        name = _NAME_OF.get(dimension.lower(), dimension)
        name = dimension if name in coordinates else name  # such as `dp_shard` beside `dp_replicate`
        if len(coordinates) < _MAX_DIMENSIONS:
            coordinates.setdefault(f"{name:.40}", int(members[own_rank]))
    return coordinates


def _own_rank() -> int:
    distributed: Any = sys.modules["torch.distributed"]
    return int(distributed.get_rank())
