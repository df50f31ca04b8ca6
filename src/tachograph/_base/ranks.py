"""The identity of this process in a distributed job: its rank, the number of ranks, and an id that all ranks share."""

from __future__ import annotations

import os
import sys
from typing import Any

from tachograph._base.guard import reraise_from_signal_handler

__all__ = ["group_rank", "is_beside_rank_0", "job_id", "local_rank", "rank", "stated_rank", "world_size"]

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("GLOBAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Environment variables in which launchers pass the rank and the number of ranks.

Slurm sets two counts. Only the step's count is the number of started processes: a script that `sbatch` runs directly
belongs to a job with many tasks but is the only process.
"""

_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def rank() -> int:
    """Return the rank of this process in its job, or 0 if there is no job or the rank is unknown."""
    return _rank_and_size()[0]


def world_size() -> int:
    """Return the number of processes in the job, or 1 if it is unknown."""
    return _rank_and_size()[1]


def group_rank() -> int | None:
    """Return the rank of this process in torch's process group, or None if there is no group."""
    group = _process_group()
    return None if group is None else group[0]


def stated_rank() -> int:
    """Return the rank that a launcher states, or 0 if none does.

    Unlike `rank`, this accepts a rank variable without a matching size. Use it for work that at most one process may
    do, where doing it in no process is better than doing it in two.
    """
    ranks = map(_parse_count, ("RANK", "GLOBAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))
    first_rank = next((count for count in ranks if count is not None), None)
    return rank() if first_rank is None else first_rank


def local_rank() -> int | None:
    """Return the rank of this process on its machine, or None if the launcher does not state it."""
    ranks = (
        _parse_count(name) for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID")
    )
    return next((local for local in ranks if local is not None), None)


def is_beside_rank_0() -> bool:
    """Return whether the launcher states that rank 0 runs on this machine."""
    local_size = _parse_count("LOCAL_WORLD_SIZE")
    return _parse_count("GROUP_RANK") == 0 or (local_size is not None and local_size >= world_size())


def job_id() -> str:
    """Return an id that all processes of a job share, or an empty string for a job of one process.

    The id changes when torchrun restarts the job.
    """
    if world_size() <= 1:
        return ""
    id_parts = [os.environ.get(variable, "") for variable in _JOB_VARIABLES]
    address = os.environ.get("MASTER_ADDR", "")
    if address.startswith("127.") or address in {"", "localhost", "::1"}:
        import socket

        id_parts.append(socket.gethostname())  # a local address: jobs on other machines may use the same one
    if any(id_parts[: len(_JOB_VARIABLES)]):
        return ":".join(id_parts)
    return f"{id_parts[-1]}:{os.getppid()}"  # started by one process, as `torch.multiprocessing.spawn` does


def _rank_and_size() -> tuple[int, int]:
    group = _process_group()
    if group is not None:
        return group
    for rank_variable, size_variable in _RANK_VARIABLES:
        own_rank, size = _parse_count(rank_variable), _parse_count(size_variable)
        if own_rank is not None and size is not None and own_rank < size > 1:
            return own_rank, size
    # Lightning passes only the local rank to the processes it starts.
    own_rank, size = _parse_count("LOCAL_RANK"), _parse_count("WORLD_SIZE")
    if own_rank is not None and size is not None and own_rank < size > 1 and not _parse_count("NODE_RANK"):
        return own_rank, size
    return 0, 1


def _process_group() -> tuple[int, int] | None:
    """Return rank and size of torch's process group, if the training code has initialised one."""
    torch_distributed: Any = sys.modules.get("torch.distributed")
    try:
        if torch_distributed is not None and torch_distributed.is_available() and torch_distributed.is_initialized():
            return int(torch_distributed.get_rank()), int(torch_distributed.get_world_size())
    except Exception as error:  # noqa: BLE001 - torch may be half imported by another thread
        reraise_from_signal_handler(error)
        return None
    return None


def _parse_count(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
