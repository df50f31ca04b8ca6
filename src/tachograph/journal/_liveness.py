"""Who writes a run, and whether that process still lives.

The `start` record says which process began; the heartbeat says when its writer was last well. On the machine that
runs it, a process is found dead by its pid, start time and boot id, however recent its heartbeat. From another
machine or container only the heartbeat can be seen, and an old one makes the run *stale*, not crashed.
"""

from __future__ import annotations

import enum
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tachograph.journal._folder import read_small

__all__ = [
    "Heartbeat",
    "ProcessIdentity",
    "RunState",
    "infer_state",
    "read_heartbeat",
    "state_at_end",
    "this_process",
    "uptime_s",
    "writer_of",
]

STALE_AFTER_S = 20.0
_MOST_HEARTBEAT_BYTES = 64 << 10


class RunState(str, enum.Enum):
    """What became of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CRASHED = "crashed"
    STALE = "stale"

    def __str__(self) -> str:
        return self.value


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Names one process for good: a pid alone is used again."""

    host: str
    boot_id: str
    pid: int
    pid_started: int
    """Clock ticks since boot (Linux), else milliseconds since the epoch."""
    pid_namespace: str = ""


class Heartbeat(msgspec.Struct, frozen=True):
    """The writer's last sign of life."""

    run_id: str
    process: ProcessIdentity
    time: float
    uptime_s: float
    journal_bytes: int = 0
    start_bytes: int = 0
    """Where in the journal the `start` record of this process is."""
    num_waiting: int = 0
    num_dropped: int = 0
    num_open_alerts: int = 0
    num_critical_alerts: int = 0
    """Of the open ones, those that are critical."""
    job: str = ""
    """What all processes of a distributed job call it; see `tachograph._base.ranks`."""


def this_process() -> ProcessIdentity:
    """Identify the calling process."""
    pid = os.getpid()
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=_boot_id(),
        pid=pid,
        pid_started=_pid_started(pid) or 0,
        pid_namespace=_pid_namespace(),
    )


def uptime_s() -> float:
    """Seconds since boot, suspended time included: an age no change of the wall clock can falsify."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the last heartbeat, or None if there is none to be read."""
    try:
        return msgspec.json.decode(read_small(path, _MOST_HEARTBEAT_BYTES), type=Heartbeat)
    except (OSError, msgspec.MsgspecError):
        return None


def state_at_end(end: Mapping[str, Any]) -> RunState:
    """Return what an `end` record says has become of a run."""
    return RunState.FINISHED if end.get("status") == "finished" else RunState.FAILED


def infer_state(start: Mapping[str, Any] | None, heartbeat: Heartbeat | None) -> RunState:
    """Judge a run that has no `end` record."""
    process = writer_of(start, heartbeat)
    if heartbeat is not None and heartbeat.process != process:
        heartbeat = None
    if process is None:
        return RunState.STALE
    here = this_process()
    if process.host == here.host and process.boot_id != here.boot_id and process.pid_namespace == here.pid_namespace:
        return RunState.CRASHED  # the machine was restarted under it
    same_boot = process.boot_id == here.boot_id
    if same_boot and process.pid_namespace == here.pid_namespace:
        if _pid_started(process.pid) != process.pid_started:
            return RunState.CRASHED
        if heartbeat is None:
            return RunState.RUNNING
    if heartbeat is None:
        return RunState.STALE
    age_s = uptime_s() - heartbeat.uptime_s if same_boot else time.time() - heartbeat.time
    return RunState.RUNNING if age_s <= STALE_AFTER_S else RunState.STALE


def writer_of(start: Mapping[str, Any] | None, heartbeat: Heartbeat | None) -> ProcessIdentity | None:
    """Return the process that writes a run, or wrote it last: by its heartbeat, else by the `start` record."""
    start = start or {}
    if heartbeat is not None and heartbeat.run_id == start.get("run_id", heartbeat.run_id):
        return heartbeat.process
    try:
        return msgspec.convert(start.get("process"), ProcessIdentity)
    except msgspec.ValidationError:
        return None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        import psutil

        return str(round(psutil.boot_time() / 10))  # boot_time wobbles by a second


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _pid_started(pid: int) -> int | None:
    """Return when a living process started, or None if there is no such process or it is a zombie."""
    try:
        # The command name is in parentheses and may hold anything: count the fields behind it.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in {b"Z", b"X"} else int(fields[19])
    except (OSError, IndexError, ValueError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 1000)
    except psutil.Error:
        return None
