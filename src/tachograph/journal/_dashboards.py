"""Which dashboards run on this machine: one file for each in the state folder of the user.

A run that starts prints the address of its page. It must not wait for a network, so it only reads these files and
checks whether the process of the dashboard still exists. Tokens are never written here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import msgspec

from tachograph._base.files import replace_file
from tachograph._base.guard import faults, suppress
from tachograph._base.paths import state_folder
from tachograph._base.typed import decode_json
from tachograph.journal._liveness import ProcessIdentity, RunState, infer_writer_state, this_process

__all__ = ["announce_dashboard", "page_of_run"]

_MAX_FILES = 50
_MAX_BYTES = 64 << 10


class _Dashboard(msgspec.Struct):
    url: str
    """Without a token."""
    log_dirs: list[str]
    """Resolved paths."""
    process: ProcessIdentity


@contextlib.contextmanager
def announce_dashboard(url: str, log_dirs: Sequence[str | os.PathLike[str]]) -> Iterator[None]:
    """Let runs that start find this dashboard, until the context ends."""
    process = this_process()
    dashboard = _Dashboard(url.partition("#")[0].rstrip("/"), [os.path.realpath(each) for each in log_dirs], process)
    folder = state_folder() / "dashboards"
    path = folder / f"{process.pid}.json"
    with suppress(OSError):  # no home folder, or a read-only one
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(dashboard), below=folder, mode=0o600)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def page_of_run(path: str | os.PathLike[str]) -> str | None:
    """Return the address of the page of a run in a dashboard that is running, or None."""
    from urllib.parse import quote  # not when the package is imported

    run_path = os.path.realpath(path)
    for dashboard in _running_dashboards():
        for log_dir in dashboard.log_dirs:
            if run_path.startswith(log_dir.rstrip(os.sep) + os.sep):
                if len(dashboard.log_dirs) > 1:  # ids of runs in several folders have labels
                    return f"{dashboard.url}/"
                name = os.path.relpath(run_path, log_dir).replace(os.sep, "/")
                return f"{dashboard.url}/#/run/{quote(name, safe='')}"
    return None


def _running_dashboards() -> Iterator[_Dashboard]:
    caller = this_process()
    try:
        paths = sorted((state_folder() / "dashboards").glob("*.json"))
    except faults(OSError):
        return
    for path in paths[:_MAX_FILES]:
        with suppress(OSError, msgspec.MsgspecError):
            with path.open("rb") as file:
                dashboard = decode_json(file.read(_MAX_BYTES), _Dashboard)
            state = infer_writer_state(dashboard.process, None, caller)
            if state is RunState.RUNNING:
                yield dashboard
            elif state is RunState.CRASHED:  # it was killed
                path.unlink()
