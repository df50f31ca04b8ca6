"""Which process of a run records events, and the environment variables that child processes inherit.

``<PREFIX>_USAGE_RUN_ID``
    The id that all processes of a run share.
``<PREFIX>_USAGE_TOLD``
    ``app:run_id`` once the notice of that app was shown in that run, so that a child does not show it again.
``TACHO_USAGE_CHOICE_<APP>``
    An opt-out (``off`` or ``local``) that was passed to `TelemetryManager.configure`. An opt-in is not inherited.
"""

from __future__ import annotations

import functools
import os
import re
import sys

from tachograph._base.ranks import group_rank
from tachograph.usage._consent import inherited_choice_variable
from tachograph.usage._folder import Mode

__all__ = [
    "clear_run_id",
    "create_run_id",
    "export_choice",
    "inherited_run_id",
    "is_id",
    "is_main_process",
    "is_multiprocessing_child",
    "mark_notice_shown",
    "new_id",
    "record_fork",
    "restore_choice",
    "was_notice_shown",
]

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

_WORKER_COMMANDS = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")
"""How the Python code begins that `multiprocessing` passes to the interpreters it starts."""

_inherited_group: list[bool] = [False]
"""Whether the process group of this process was created by its parent before a `fork`."""


def is_main_process(launcher_rank: int, configured_pid: int) -> bool:
    """Return whether this process records events for its run: rank 0, and not a worker of it.

    A worker, of a data loader for example, inherits the rank that its parent states. It counts as a rank of its own
    only if it joined a process group itself.

    Args:
        launcher_rank: the rank that the launcher states; used as long as there is no process group.
        configured_pid: the process that called `configure`. This one may be its child by `fork`.
    """
    # A process group is more reliable than the environment, which workers inherit.
    group = group_rank()
    if os.getpid() != configured_pid or is_multiprocessing_child():
        return group == 0 and not _inherited_group[0]
    return (launcher_rank if group is None else group) == 0


def record_fork() -> None:
    """Remember, in a child of `fork`, whether its process group is the parent's."""
    _inherited_group[0] = group_rank() is not None


def inherited_run_id(env_prefix: str) -> str | None:
    """Return the run id that a parent process exported, None if there is no valid one."""
    run_id = os.environ.get(_run_id_variable(env_prefix), "")
    return run_id if is_id(run_id) else None


def create_run_id(env_prefix: str) -> str:
    """Create a run id and export it to child processes."""
    run_id = new_id()
    os.environ[_run_id_variable(env_prefix)] = run_id
    return run_id


def new_id() -> str:
    """Return a random id."""
    from uuid import uuid4

    return str(uuid4())


def clear_run_id(env_prefix: str) -> None:
    """Stop exporting the run id and the mark of the notice."""
    os.environ.pop(_run_id_variable(env_prefix), None)
    os.environ.pop(_notice_variable(env_prefix), None)


def was_notice_shown(env_prefix: str, app: str) -> bool:
    """Return whether an earlier process of this very run showed the notice of the app."""
    run_id = inherited_run_id(env_prefix)
    return run_id is not None and os.environ.get(_notice_variable(env_prefix)) == f"{app}:{run_id}"


def mark_notice_shown(env_prefix: str, app: str, run_id: str) -> None:
    """Export to child processes that the notice was shown."""
    os.environ[_notice_variable(env_prefix)] = f"{app}:{run_id}"


def export_choice(app: str, choice: Mode) -> str | None:
    """Export an opt-out to child processes, and return the value that was exported before.

    An opt-in is not exported.
    """
    before = os.environ.get(inherited_choice_variable(app))
    restore_choice(app, None if choice == "on" else choice)
    return before


def restore_choice(app: str, previous_value: str | None) -> None:
    """Export the value that `export_choice` returned."""
    if previous_value is None:
        os.environ.pop(inherited_choice_variable(app), None)
    else:
        os.environ[inherited_choice_variable(app)] = previous_value


def is_id(text: str) -> bool:
    """Return whether a text is an id as `new_id` creates them."""
    return re.fullmatch(_ID, text) is not None


def is_multiprocessing_child() -> bool:
    """Return whether `multiprocessing` started this process, also while the process is still starting.

    A child that is spawned imports the main module again, before `multiprocessing` knows that it has a parent. The
    server of the start method "forkserver" imports modules for its children and never has one.
    """
    if _has_worker_command():
        return True
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # `_inheriting` is set while the main module is imported, by joblib's workers as well.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)


@functools.cache
def _has_worker_command() -> bool:
    """Return whether the command line is one of `multiprocessing`. It is there from the first line of a process on."""
    return any(argument.startswith(_WORKER_COMMANDS) for argument in sys.orig_argv)


def _run_id_variable(env_prefix: str) -> str:
    return f"{env_prefix}_USAGE_RUN_ID"


def _notice_variable(env_prefix: str) -> str:
    return f"{env_prefix}_USAGE_TOLD"
