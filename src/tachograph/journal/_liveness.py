"""Infer whether the process that records a run is still alive.

A run with an `end` record is finished or failed. Without one, `infer_state` looks at the process that wrote the last
`start` record or heartbeat:

- Same machine and pid namespace: the process is identified by pid, start time and boot id, because pids are reused. If
  it is gone, or the machine has rebooted, the run has *crashed*, however recent the heartbeat.
- Another machine or container: only the heartbeat is visible. An old one makes the run *stale*, not crashed, because
  the process may still run.
- A process that exists but has stopped sending heartbeats, for example because it was suspended, is also *stale*.

On the same boot the age of a heartbeat is measured on the boot clock, which a changed wall clock does not affect.
"""

from __future__ import annotations

import enum
import functools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.files import read_small
from tachograph._base.guard import faults
from tachograph._base.typed import convert, decode_json

__all__ = [
    "MAX_HEARTBEAT_BYTES",
    "REMOTE_NAMESPACE",
    "Heartbeat",
    "ProcessIdentity",
    "RunState",
    "infer_state",
    "infer_writer_state",
    "parse_heartbeat",
    "process_started",
    "read_heartbeat",
    "state_at_end",
    "this_process",
    "uptime_s",
    "writer_of",
]

STALE_AFTER_S = 20.0
REMOTE_NAMESPACE = "remote:"
"""The pid namespace of a process begins with this if its heartbeat came from another machine through a server."""
MAX_HEARTBEAT_BYTES = 64 << 10


_INTERRUPTS = frozenset({"KeyboardInterrupt", "SIGINT", "killed by SIGINT", "killed by signal 2 (SIGINT)"})
"""The reasons in the `end` record of a run that was stopped with Ctrl-C. Its status is `failed`, as before."""


class RunState(str, enum.Enum):
    """The state of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CRASHED = "crashed"
    STALE = "stale"

    @property
    def is_failure(self) -> bool:
        """Whether the run failed or crashed."""
        return self in {RunState.FAILED, RunState.CRASHED}

    def __str__(self) -> str:
        return self.value


class ProcessIdentity(msgspec.Struct, frozen=True, gc=False):
    """Identifies one process permanently, unlike a pid, which is reused."""

    host: str
    boot_id: str
    pid: int
    pid_started: int
    """Clock ticks since boot (Linux), else milliseconds since the epoch."""
    pid_namespace: str = ""

    @property
    def at_home(self) -> ProcessIdentity:
        """The identity as the machine of the process states it, although it came from there through a server."""
        return msgspec.structs.replace(self, pid_namespace=self.pid_namespace.removeprefix(REMOTE_NAMESPACE))


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """The last heartbeat of the writer."""

    run_id: str
    process: ProcessIdentity
    time: float
    uptime_s: float
    journal_bytes: int = 0
    start_bytes: int = 0
    """The offset of this process's `start` record in the journal."""
    num_waiting: int = 0
    num_dropped: int = 0
    num_open_alerts: int = 0
    num_critical_alerts: int = 0
    """The open alerts that are critical."""
    clock_jumps_s: float = 0.0
    """By how much the wall clock was set in total while the run was recorded."""
    job: str = ""
    """The id of the distributed job; see `tachograph._base.ranks.job_id`."""
    iteration: int | None = None
    """The iterations that this rank has completed."""
    phase: str = ""
    """The work of the training thread, such as `data` or `backward`; empty if it is unknown."""
    phase_since: float = 0.0
    """The wall time since when it has been doing that in this iteration, to about the interval of heartbeats."""
    collective: str = ""
    """The function of `torch.distributed` that it is in; empty if it is in none."""
    last_collective: str = ""
    """The last one that returned, with its number in its group, if calls are counted."""
    media_pending: int = 0
    """Records of media that are not stored yet; if the process is killed, they are lost."""
    location: str = ""
    """The innermost line of the program itself, such as `train.py:31`."""
    energy_kwh: dict[str, float] = {}
    """The energy counters that this rank has read since it started; see `tachograph.recorder.collectors.energy`."""
    is_gone: bool = False
    """Whether the process has ended, as its own machine reports to others."""


def this_process() -> ProcessIdentity:
    """Identify the calling process."""
    pid = os.getpid()
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=_boot_id(),
        pid=pid,
        pid_started=_own_start(pid),
        pid_namespace=_pid_namespace(),
    )


def uptime_s() -> float:
    """Return seconds since boot, including suspended time; changes of the wall clock do not affect it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(clock) if clock is not None else time.monotonic()


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the last heartbeat, or None if it is missing or invalid."""
    try:
        return parse_heartbeat(read_small(path, MAX_HEARTBEAT_BYTES))
    except faults(OSError):
        return None


def parse_heartbeat(data: bytes) -> Heartbeat | None:
    """Return a heartbeat from the content of its file, or None if it is invalid."""
    try:
        return decode_json(data, Heartbeat)
    except msgspec.MsgspecError:
        return None


def state_at_end(end: Mapping[str, Any]) -> RunState:
    """Return the state given by an `end` record."""
    if end.get("status") == "finished":
        return RunState.FINISHED
    return RunState.INTERRUPTED if str(end.get("reason")) in _INTERRUPTS else RunState.FAILED


def infer_state(start: Mapping[str, Any] | None, heartbeat: Heartbeat | None) -> RunState:
    """Return the state of a run that has no `end` record; see the module for the rules."""
    return infer_writer_state(writer_of(start, heartbeat), heartbeat, this_process())


def infer_writer_state(
    process: ProcessIdentity | None, heartbeat: Heartbeat | None, caller: ProcessIdentity
) -> RunState:
    """Return the state of a run that has no `end` record, given the process that recorded it last.

    `CRASHED` is final: the process is gone for good, and only a resume, which writes to the journal, changes the state.

    Args:
        process: The process that recorded the run last.
        heartbeat: The last heartbeat in the run folder.
        caller: The calling process; see `this_process`.
    """
    if heartbeat is not None and heartbeat.process != process:  # left by another run in the same folder
        heartbeat = None
    if process is None:
        return RunState.STALE
    if heartbeat is not None and heartbeat.is_gone:
        return RunState.CRASHED
    if (
        process.host == caller.host
        and process.boot_id != caller.boot_id
        and process.pid_namespace == caller.pid_namespace
    ):
        return RunState.CRASHED  # the machine has rebooted since
    same_boot = process.boot_id == caller.boot_id
    if same_boot and process.pid_namespace == caller.pid_namespace:
        if _is_alive(process) is False:
            return RunState.CRASHED
        if heartbeat is None:  # deleted, but the process exists
            return RunState.RUNNING
    if heartbeat is None:
        return RunState.STALE
    age_s = uptime_s() - heartbeat.uptime_s if same_boot else time.time() - heartbeat.time
    return RunState.RUNNING if age_s <= STALE_AFTER_S else RunState.STALE


def writer_of(start: Mapping[str, Any] | None, heartbeat: Heartbeat | None) -> ProcessIdentity | None:
    """Return the process that records the run or did so last, from its heartbeat or else its `start` record."""
    start = start or {}
    if heartbeat is not None and heartbeat.run_id == start.get("run_id", heartbeat.run_id):
        return heartbeat.process
    try:
        return convert(start.get("process"), ProcessIdentity)
    except faults(msgspec.ValidationError):
        return None


def process_started(pid: int) -> int | None:
    """Return the start time of a process of this machine, which distinguishes it from a later one with the same pid."""
    try:
        return _pid_started(pid)
    except faults(OSError):
        return None


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except faults(OSError):
        import psutil

        return str(round(psutil.boot_time() / 10))  # boot_time varies by about a second


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except faults(OSError):
        return ""


def _own_start(pid: int) -> int:
    try:
        return _pid_started(pid) or 0
    except faults(OSError):
        return 0


def _is_alive(process: ProcessIdentity) -> bool | None:
    """Return whether a process of this machine still runs; None if that is unknown, as with too many open files."""
    try:
        return _pid_started(process.pid) == process.pid_started
    except faults(OSError):
        return None


def _pid_started(pid: int) -> int | None:
    """Return the start time of a running process, or None if it does not exist or is a zombie.

    Raises:
        OSError: if it may exist but cannot be examined.
    """
    try:
        # The command name, in parentheses, may contain anything: parse the fields after it.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in {b"Z", b"X"} else int(fields[19])
    except faults(FileNotFoundError, ProcessLookupError, IndexError, ValueError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 1000)
    except faults(psutil.NoSuchProcess):
        return None
    except faults(psutil.Error) as error:
        raise PermissionError(str(error)) from error
