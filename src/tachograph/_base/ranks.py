"""Which process of a distributed job this is: its rank, how many there are, and what names the job for all of them."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["group_rank", "job_id", "local_rank", "rank", "stated_rank", "world_size"]

_PAIRS = (
    ("RANK", "WORLD_SIZE"),
    ("GLOBAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Where launchers say the rank and the number of ranks. Of Slurm's two counts only that of the step tells how many
processes were started: a script that `sbatch` runs by itself has a job of many tasks and is alone.
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
    """Return this process's rank in its job, 0 where there is none or it cannot be told."""
    return _placed()[0]


def world_size() -> int:
    """Return how many processes train together, 1 where that cannot be told."""
    return _placed()[1]


def group_rank() -> int | None:
    """Return this process's rank in torch's process group, None where there is none."""
    group = _process_group()
    return None if group is None else group[0]


def stated_rank() -> int:
    """Return the rank that a launcher states, 0 where none does.

    Unlike `rank` this believes a variable that stands alone: for what one process may do, and rather none than two.
    """
    stated = map(_count, ("RANK", "GLOBAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))
    own = next((count for count in stated if count is not None), None)
    return rank() if own is None else own


def local_rank() -> int | None:
    """Return this process's place among those on the same machine, None where nobody says it."""
    known = (_count(name) for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"))
    return next((place for place in known if place is not None), None)


def job_id() -> str:
    """Return a text that all processes of a job share, as far as its launcher tells them apart; empty for one alone.

    A job that torchrun restarts has another one.
    """
    if world_size() <= 1:
        return ""
    known = [os.environ.get(variable, "") for variable in _JOB_VARIABLES]
    address = os.environ.get("MASTER_ADDR", "")
    if address.startswith("127.") or address in {"", "localhost", "::1"}:
        import socket

        known.append(socket.gethostname())  # then all are on one machine, and others may call theirs the same
    if any(known[: len(_JOB_VARIABLES)]):
        return ":".join(known)
    return f"{known[-1]}:{os.getppid()}"  # started by one process, as `torch.multiprocessing.spawn` does


def _placed() -> tuple[int, int]:
    group = _process_group()
    if group is not None:
        return group
    for rank_variable, size_variable in _PAIRS:
        own, size = _count(rank_variable), _count(size_variable)
        if own is not None and size is not None and own < size > 1:
            return own, size
    # Lightning tells the processes it starts nothing but their place on the node.
    own, size = _count("LOCAL_RANK"), _count("WORLD_SIZE")
    if own is not None and size is not None and own < size > 1 and not _count("NODE_RANK"):
        return own, size
    return 0, 1


def _process_group() -> tuple[int, int] | None:
    """Return what torch says, if the training code has loaded it and has set up a process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:  # noqa: BLE001 - torch may be half imported by another thread
        return None
    return None


def _count(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
