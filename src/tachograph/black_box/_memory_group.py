"""The memory of the control group of this process, and of its child processes, as the kernel accounts for it.

Containers, Slurm and systemd limit control groups (cgroups). When one is full, the kernel kills one of its
processes and counts that in `oom_kill`. Versions 1 and 2 of the interface differ in the names of files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tachograph._base.guard import suppress

__all__ = ["MemoryGroup", "child_memory_fields"]

_PROC_CGROUP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_GIB = 1 << 30
_MIB = 1 << 20
_UNLIMITED_BYTES = 1 << 60
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_MAX_THREADS = 256
_MAX_CHILDREN = 512
_MAX_NAMES = 4
_MIN_GROUP_MB = 100.0


class _FileNames(NamedTuple):
    used: str
    limit: str
    events: str
    cache: str
    """The line of `memory.stat` with the cache that the kernel frees first."""


_V1 = _FileNames("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "total_inactive_file")
_V2 = _FileNames("memory.current", "memory.max", "memory.events", "inactive_file")


class MemoryGroup:
    """A control group with a memory controller.

    Args:
        folder: its folder.
        root: the folder of the outermost group that is visible; limits of all groups up to it apply.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self._root = root
        self._names = _V2 if (folder / _V2.events).exists() else _V1

    @classmethod
    def of_this_process(cls) -> MemoryGroup | None:
        """Return the group of this process, or None if there is none or it is not visible."""
        with suppress(OSError):
            for line in _PROC_CGROUP.read_text().splitlines():
                _number, controllers, path = line.split(":", 2)
                if controllers and "memory" not in controllers.split(","):
                    continue
                for root in (_MOUNT / "memory",) if controllers else (_MOUNT, _MOUNT / "unified"):
                    # In a container the path may belong to the host, and the group is at the root.
                    for folder in (root / path.lstrip("/"), root):
                        if any((folder / names.events).exists() for names in (_V1, _V2)):
                            return cls(folder, root)
        return None

    @classmethod
    def reopen(cls, path: str, inode: int) -> MemoryGroup | None:
        """Return a group that was identified by `path` and `inode` before, or None if it does not exist any more."""
        with suppress(OSError):
            if Path(path).stat().st_ino == inode:
                return cls(Path(path), Path(path))
        return None

    @property
    def inode(self) -> int | None:
        """Identifies the group: another one at the same path has another inode."""
        with suppress(OSError):
            return self.folder.stat().st_ino
        return None

    @property
    def num_oom_kills(self) -> int | None:
        """How many of its processes the kernel has killed because memory was full; None if it is not counted."""
        return self._read_line(self._names.events, "oom_kill")

    @property
    def used_bytes(self) -> int | None:
        """The memory in use, without cache that the kernel frees first."""
        used_bytes = _read_number(self.folder / self._names.used)
        if used_bytes is None:
            return None
        return max(0, used_bytes - (self._read_line("memory.stat", self._names.cache) or 0))

    @property
    def limit_bytes(self) -> int | None:
        """The lowest limit that applies; None if there is none."""
        limits_bytes = []
        for folder in (self.folder, *self.folder.parents):
            limit_bytes = _read_number(folder / self._names.limit)
            if limit_bytes is not None and limit_bytes < _UNLIMITED_BYTES:
                limits_bytes.append(limit_bytes)
            if folder == self._root:
                break
        return min(limits_bytes, default=None)

    def fields(self) -> dict[str, float]:
        """Return use, limit and kills, under the names of fields in `system` records."""
        values: dict[str, float | None] = {
            "cgroup_mem_used_gb": _gb(self.used_bytes),
            "cgroup_mem_limit_gb": _gb(self.limit_bytes),
            "cgroup_oom_kills": self.num_oom_kills,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _read_line(self, file: str, name: str) -> int | None:
        with suppress(OSError, ValueError):
            for line in (self.folder / file).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
        return None


def _read_number(path: Path) -> int | None:
    with suppress(OSError, ValueError):  # v2 writes `max` for no limit
        return int(path.read_text())
    return None


def _gb(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / _GIB, 3)


def child_memory_fields(pid: int) -> dict[str, float]:
    """Return number and memory of the children of a process by name; Linux only, and only names with much memory.

    Pages that a forked child still shares with its parent count in both.
    """
    groups: dict[str, list[float]] = {}
    for child in _child_pids(pid)[:_MAX_CHILDREN]:
        with suppress(OSError, ValueError, IndexError):
            rss_mb = int(Path(f"/proc/{child}/statm").read_text().split()[1]) * _PAGE_BYTES / _MIB
            name = Path(f"/proc/{child}/comm").read_text().strip().replace("/", "_")
            groups.setdefault(name, []).append(rss_mb)
    largest = sorted(groups.items(), key=lambda item: -sum(item[1]))[:_MAX_NAMES]
    fields: dict[str, float] = {}
    for name, sizes_mb in largest:
        if sum(sizes_mb) >= _MIN_GROUP_MB:
            fields[f"child/{name}/num"] = len(sizes_mb)
            fields[f"child/{name}/rss_mb"] = round(sum(sizes_mb), 1)
    return fields


def _child_pids(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    children: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task")[:_MAX_THREADS]:
            with suppress(OSError):  # the thread has ended, or the kernel has no such file
                children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children
