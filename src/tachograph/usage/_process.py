"""Which process speaks for a run, and the id by which its processes are known as one."""

from __future__ import annotations

import os
import re
import sys

from tachograph._base.ranks import group_rank
from tachograph.usage._consent import inherited_choice
from tachograph.usage._folder import Mode

__all__ = [
    "forget_run_id",
    "inherited_run_id",
    "is_id",
    "is_main_process",
    "is_of_multiprocessing",
    "made_run_id",
    "new_id",
    "note_choice",
    "note_fork",
    "note_told",
    "restore_choice",
    "was_told",
]

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

_group_of_parent: list[bool] = [False]


def is_main_process(stated: int, home: int) -> bool:
    """Tell whether this process speaks for its run: the first rank, and no worker of it.

    A worker (of a data loader, say) inherits all that its parent states. It is a rank of its own only if it joined a
    process group itself.

    Args:
        stated: the rank that its launcher states, which counts as long as there is no process group.
        home: the process that was configured, of which others may be children by `fork`.
    """
    group = group_rank()
    if os.getpid() != home or is_of_multiprocessing():
        return group == 0 and not _group_of_parent[0]
    return (stated if group is None else group) == 0


def note_fork() -> None:
    """Remember, in a child of `fork`, what it has only inherited."""
    _group_of_parent[0] = group_rank() is not None


def inherited_run_id(env_prefix: str) -> str | None:
    """Return the id that a process before this one gave the run, unless it is none."""
    given = os.environ.get(_variable(env_prefix), "")
    return given if is_id(given) else None


def made_run_id(env_prefix: str) -> str:
    """Return a new id, which means nothing but this run, and tell it to processes that are started from here."""
    run_id = os.environ[_variable(env_prefix)] = new_id()
    return run_id


def new_id() -> str:
    """Return an id that means nothing."""
    from uuid import uuid4

    return str(uuid4())


def forget_run_id(env_prefix: str) -> None:
    """Tell it no more."""
    os.environ.pop(_variable(env_prefix), None)
    os.environ.pop(_told(env_prefix), None)


def was_told(env_prefix: str, app: str) -> bool:
    """Tell whether the user was given the app's notice in this very run, by a process before this one."""
    run_id = inherited_run_id(env_prefix)
    return run_id is not None and os.environ.get(_told(env_prefix)) == f"{app}:{run_id}"


def note_told(env_prefix: str, app: str, run_id: str) -> None:
    """Let processes that are started from here know that the user was given notice."""
    os.environ[_told(env_prefix)] = f"{app}:{run_id}"


def note_choice(app: str, choice: Mode) -> str | None:
    """Let processes that are started from here know that their user said no; return what they knew before.

    A yes is not passed on.
    """
    name = inherited_choice(app)
    before = os.environ.get(name)
    restore_choice(app, None if choice == "on" else choice)
    return before


def restore_choice(app: str, noted: str | None) -> None:
    """Let them know what they knew before."""
    if noted is None:
        os.environ.pop(inherited_choice(app), None)
    else:
        os.environ[inherited_choice(app)] = noted


def is_id(text: str) -> bool:
    """Tell whether a text is an id as we make them."""
    return re.fullmatch(_ID, text) is not None


def _variable(env_prefix: str) -> str:
    return f"{env_prefix}_USAGE_RUN_ID"


def _told(env_prefix: str) -> str:
    return f"{env_prefix}_USAGE_TOLD"


def is_of_multiprocessing() -> bool:
    """Tell whether this process was started by `multiprocessing`."""
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    return parent is not None and parent() is not None
