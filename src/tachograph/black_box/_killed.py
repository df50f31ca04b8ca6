"""Whether the kernel killed a process because memory was full, and which processes had filled it.

The victim of signal 9 cannot write anything, so its parent or the next reader collects the evidence: the counter of
kills of its control group, compared with the last sample in the journal; the log of the kernel, where it may be read;
and the memory of the processes in the last samples. Without a proof a verdict says *probably*, and only if memory was
almost full. Otherwise there is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tachograph._base.guard import suppress
from tachograph.black_box._dump_writer import DumpContext, DumpWriter
from tachograph.black_box._format import Verdict
from tachograph.black_box._memory_group import MemoryGroup
from tachograph.journal import JournalFollower, ProcessIdentity, RunFolder, this_process, writer_of
from tachograph.records import finite_or_none

__all__ = ["explain_kill", "find_kill", "write_kill_dump"]

_KERNEL_LOG = Path("/dev/kmsg")
_KILL_LINE = re.compile(r"^\d+,\d+,(\d+),[^;]*;.*Killed process (\d+) \(")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_MAX_LOG_LINES = 20_000
_TAIL_BYTES = 512 << 10
_CURVE_S = 300.0
_MAX_CURVE_SAMPLES = 120
_NEARLY_FULL_SHARE = 0.9
_MIN_GROWTH_SHARE = 0.2
_CHILD_FIELD = re.compile(r"child/(.+)/(num|rss_mb)")
_CHILD_NAMES = {"pt_data_worker": "DataLoader workers"}


def find_kill(folder: RunFolder, start: Mapping[str, Any] | None = None, *, is_sigkill: bool = False) -> Verdict | None:
    """Return why the process of a run was killed, or None if there is no sign that memory was full.

    Args:
        folder: the run; its process has ended.
        start: its last `start` record; without it, it is read from the end of the journal.
        is_sigkill: whether the process is known to have been ended by signal 9.
    """
    records = _last_records(folder)
    starts = [record for record in records if record["event"] == "start"]
    start = start if start is not None else starts[-1] if starts else {}
    samples = _curve(records)
    process = writer_of(start, None)
    here = this_process()
    if process is None or (process.host, process.boot_id) != (here.host, here.boot_id):
        # The counters of another machine, or of before a restart, are not available.
        return explain_kill(samples, is_proven=False) if is_sigkill else None
    if process.pid_namespace == here.pid_namespace and _is_in_kernel_log(process):
        return explain_kill(samples, is_proven=True)
    num_kills, num_before = _num_oom_kills(start), _last_value(samples, "cgroup_oom_kills")
    is_proven = num_kills is not None and num_before is not None and num_kills > num_before
    return explain_kill(samples, is_proven=is_proven) if is_proven or is_sigkill else None


def explain_kill(samples: Sequence[Mapping[str, Any]], *, is_proven: bool) -> Verdict | None:
    """Return a verdict from the last `system` records before the end; None if nothing shows that memory was full.

    Args:
        samples: the records, oldest first.
        is_proven: whether the kernel counted or logged the kill.
    """
    last = samples[-1] if samples else {}
    used_gb, limit_gb = (finite_or_none(last.get(name)) for name in ("cgroup_mem_used_gb", "cgroup_mem_limit_gb"))
    available_gb, used_pct = (finite_or_none(last.get(name)) for name in ("host_mem_available_gb", "host_mem_used_pct"))
    is_group_full = used_gb is not None and limit_gb is not None and used_gb >= _NEARLY_FULL_SHARE * limit_gb
    is_host_full = used_pct is not None and used_pct >= 100 * _NEARLY_FULL_SHARE
    if not is_proven and not is_group_full and not is_host_full:
        return None
    text = "The kernel killed it because memory was full" if is_proven else "Probably killed because memory was full"
    if used_gb is not None and limit_gb is not None and (is_group_full or not is_host_full):
        text += f": {used_gb:.1f} of {limit_gb:.1f} GB"
    elif used_pct is not None and available_gb is not None:
        text += f": {used_pct:.0f} % of the memory of the machine, {available_gb:.1f} GB free"
    processes = _processes(last)
    if processes:
        text += "; " + ", ".join(_process_text(name, num, mb) for name, (num, mb) in processes.items())
    growth = _growth_text(samples)
    text += f". {growth}" if growth else ""
    details = {
        "used_gb": used_gb,
        "limit_gb": limit_gb,
        "processes": {name: {"num": num, "rss_mb": mb} for name, (num, mb) in processes.items()},
        "last_sample_at": last.get("time"),
    }
    return Verdict(
        kind="killed_out_of_memory", text=text, confidence="certain" if is_proven else "possible", details=details
    )


def write_kill_dump(folder: RunFolder, verdict: Verdict, step: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Write a dump with the memory of the last minutes for a process that has ended; return records for its journal."""
    records: list[tuple[str, dict[str, Any]]] = []
    writer = DumpWriter(lambda: folder, lambda event, fields: records.append((event, fields)))

    def memory_curve(_context: DumpContext) -> dict[str, Any]:
        return {"samples": [_curve_point(sample) for sample in _curve(_last_records(folder))]}

    writer.add_part("memory_curve", memory_curve)
    writer.write("killed", step=step, verdict=verdict)
    return records


def _last_records(folder: RunFolder) -> list[dict[str, Any]]:
    with suppress(OSError):
        return list(JournalFollower.from_end(folder.journal, _TAIL_BYTES).poll())
    return []


def _curve(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples of the last minutes of the last attempt."""
    samples: list[dict[str, Any]] = []
    for record in records:
        if record["event"] == "start":
            samples = []
        elif record["event"] == "system" and finite_or_none(record.get("time")) is not None:
            samples.append(record)
    until_s = samples[-1]["time"] if samples else 0.0
    return [sample for sample in samples if sample["time"] >= until_s - _CURVE_S][-_MAX_CURVE_SAMPLES:]


def _curve_point(sample: Mapping[str, Any]) -> dict[str, Any]:
    names = ("time", "cpu_mem_rss_mb", "cgroup_mem_used_gb", "cgroup_mem_limit_gb", "host_mem_used_pct")
    return {name: value for name, value in sample.items() if name in names or _CHILD_FIELD.fullmatch(name)}


def _processes(sample: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
    """Return number and memory in MB of the training process and of its children by name, the largest first."""
    sizes: dict[str, tuple[int, float]] = {}
    own_mb = finite_or_none(sample.get("cpu_mem_rss_mb"))
    if own_mb is not None:
        sizes["training process"] = (1, own_mb)
    for field in sample:
        match = _CHILD_FIELD.fullmatch(field)
        if match is not None and match[2] == "rss_mb":
            num, mb = (finite_or_none(sample.get(f"child/{match[1]}/{name}")) for name in ("num", "rss_mb"))
            if num and mb is not None:
                sizes[_CHILD_NAMES.get(match[1], f"child processes {match[1]!r}")] = (int(num), mb)
    return dict(sorted(sizes.items(), key=lambda item: -item[1][1]))


def _process_text(name: str, num: int, size_mb: float) -> str:
    size_gb = size_mb / num / 1024
    size = f"{size_gb:.1f} GB" if size_gb >= 0.1 else f"{size_mb / num:.0f} MB"
    return f"{name} {size}" if num == 1 else f"{name} {num} × {size}"


def _growth_text(samples: Sequence[Mapping[str, Any]]) -> str:
    """Say which processes grew most over the curve, if they grew much."""
    if len(samples) < 2:
        return ""
    before, after = _processes(samples[0]), _processes(samples[-1])
    # A group that was not there before did not grow: it started.
    growth_mb = {name: after[name][1] - before[name][1] for name in after if name in before}
    name = max(growth_mb, key=growth_mb.__getitem__, default=None)
    if name is None or growth_mb[name] < _MIN_GROWTH_SHARE * after[name][1]:
        return ""
    lasted_s = samples[-1]["time"] - samples[0]["time"]
    lasted = f"{lasted_s / 60:.0f} minutes" if lasted_s >= 120 else f"{lasted_s:.0f} s"
    subject = f"The {name}" if name == "training process" else name[0].upper() + name[1:]
    return f"{subject} grew by {growth_mb[name] / 1024:.1f} GB in the last {lasted}"


def _last_value(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next(
        (value for sample in reversed(samples) if (value := finite_or_none(sample.get(name))) is not None), None
    )


def _num_oom_kills(start: Mapping[str, Any]) -> int | None:
    """Return the count of the control group that the process was in, if it still exists."""
    identity = start.get("memory_cgroup")
    if not isinstance(identity, Mapping) or not isinstance(identity.get("path"), str):
        return None
    inode = identity.get("inode")
    group = MemoryGroup.reopen(identity["path"], inode) if isinstance(inode, int) else None
    return None if group is None else group.num_oom_kills


def _is_in_kernel_log(process: ProcessIdentity) -> bool:
    """Return whether the kernel logged that it killed a process; usually only root may read that."""
    # An earlier process may have had the same id. Lines begin with priority, number and microseconds since boot.
    started_us = process.pid_started / os.sysconf("SC_CLK_TCK") * 1e6
    with suppress(OSError):
        # The log has the process ids of the machine.
        if os.readlink("/proc/self/ns/pid") != _INITIAL_PID_NAMESPACE:
            return False
        descriptor = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        try:
            for _ in range(_MAX_LOG_LINES):
                line = os.read(descriptor, 8192).decode("utf-8", "replace")
                match = _KILL_LINE.search(line)
                if match is not None and int(match[2]) == process.pid and int(match[1]) >= started_us:
                    return True
                if not line:
                    break
        except BlockingIOError:  # the end of the log
            pass
        finally:
            os.close(descriptor)
    return False
