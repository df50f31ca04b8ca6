"""The energy that GPUs and processors use while a run is recorded, from their own counters.

Nothing is estimated: without a counter, or without permission to read it, a part is missing. Counters have keys, so
that ranks which read the same counter do not count it twice: `gpu:` and the UUID of the GPU, or `cpu:`, the host and
the domain of RAPL. Rank 0 reads the counters of the other ranks from their heartbeats and records the sum.

A GPU counts from the start of the attempt as soon as this process uses it. The counter covers the whole GPU, so it
includes other programs on it; a MIG instance has no counter of its own and is left out. RAPL covers all processors of
the machine.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tachograph._base import ranks
from tachograph._base.guard import faults, suppress
from tachograph._base.nvml import GpuProbe
from tachograph._base.settings import Settings
from tachograph.journal import RankHeartbeats, RunFolder

__all__ = ["EnergyMeter", "energy_fields", "read_rank_energy"]

_MJ_PER_KWH = 3.6e9
_UJ_PER_KWH = 3.6e12
_POWERCAP = Path("/sys/class/powercap")
_DOMAIN_FOLDER = re.compile(r"intel-rapl:\d+(:\d+)?")
_DOMAIN_NAME = re.compile(r"package-\d+|dram")
"""Packages do not include the memory of servers. `core` and `uncore` are parts of packages, `psys` contains them."""
_MAX_PACKAGE_W = 1_000.0
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


class EnergyMeter:
    """Adds up the counters of this machine since it was created.

    Args:
        gpus: reads the counters of GPUs.
        powercap: the folder of the kernel with the counters of processors.
    """

    def __init__(self, gpus: GpuProbe, powercap: Path | None = None) -> None:
        self._gpus = gpus
        # One rank of each machine reads the counters of the machine.
        self._domains = {} if ranks.local_rank() else _find_domains(powercap or _POWERCAP)
        self._last_mj = gpus.energy_mj()
        self._used_mj: dict[str, int] = {}
        self._uuids_in_use: set[str] = set()

    @property
    def has_counters(self) -> bool:
        """Whether there is anything to read."""
        return bool(self._last_mj or self._domains)

    def read(self) -> dict[str, float]:
        """Return the kWh of each counter so far: GPUs that this process uses, and processors."""
        counters: dict[str, float] = {}
        readings_mj = self._gpus.energy_mj()
        for uuid, reading_mj in readings_mj.items():
            # The counter restarts when the driver is loaded again. The use in between is unknown.
            added_mj = max(0, reading_mj - self._last_mj.get(uuid, reading_mj))
            self._used_mj[uuid] = self._used_mj.get(uuid, 0) + added_mj
            self._last_mj[uuid] = reading_mj
        if readings_mj:
            self._uuids_in_use |= _gpus_in_use(self._gpus)
        for uuid in self._uuids_in_use & self._used_mj.keys():
            counters[f"gpu:{uuid}"] = self._used_mj[uuid] / _MJ_PER_KWH
        for key, domain in self._domains.items():
            used_uj = domain.read()
            if used_uj is not None:
                counters[key] = used_uj / _UJ_PER_KWH
        return counters


class _RaplDomain:
    """Adds up one counter of RAPL, which wraps around at a value that the kernel states."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = int(self._path.read_text())
        self._last_read_at = time.monotonic()
        self._used_uj = 0
        self._is_known = True

    def read(self) -> int | None:
        """Return the energy since the first reading; None if it is not known."""
        try:
            reading_uj = int(self._path.read_text())
        except faults(OSError, ValueError):
            self._is_known = False  # a gap, in which it may have wrapped around
            return None
        now_s = time.monotonic()
        # It may have wrapped around more than once.
        if (now_s - self._last_read_at) * _MAX_PACKAGE_W * 1e6 > self._range_uj:
            self._is_known = False
        added_uj = reading_uj - self._last_uj
        self._used_uj += added_uj if added_uj >= 0 else added_uj + self._range_uj
        self._last_uj, self._last_read_at = reading_uj, now_s
        return self._used_uj if self._is_known else None


def _find_domains(powercap: Path) -> dict[str, _RaplDomain]:
    """Return the counters of processors and their memory that this user may read; usually only root may."""
    domains: dict[str, _RaplDomain] = {}
    with suppress(OSError):
        for folder in sorted(powercap.iterdir()):
            if not _DOMAIN_FOLDER.fullmatch(folder.name):
                continue
            with suppress(OSError, ValueError):
                if _DOMAIN_NAME.fullmatch((folder / "name").read_text().strip()):
                    domains[f"cpu:{socket.gethostname()}/{folder.name}"] = _RaplDomain(folder)
    return domains


def _gpus_in_use(gpus: GpuProbe) -> set[str]:
    """Return the UUIDs of the GPUs on which torch has allocated memory, or on which the driver lists this process."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with suppress(Exception):  # torch may be half imported by another thread
        if cuda is not None and cuda.is_initialized():
            indices = [index for index in range(cuda.device_count()) if cuda.memory_stats_as_nested_dict(index)]
            uuids = {str(cuda.get_device_properties(index).uuid) for index in indices}
            return {uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in uuids}
    with suppress(OSError, psutil.Error):
        # In a container the driver still reports the ids of the host.
        if os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE:
            process = psutil.Process()
            pids = {process.pid, *(child.pid for child in process.children(recursive=True))}
            return {uuid for uuid, users in gpus.process_ids().items() if pids & users}
    return set()


def read_rank_energy(folder: RunFolder, job: str) -> list[dict[str, float]]:
    """Return the counters of the other ranks of a job, from their last heartbeats."""
    heartbeats = RankHeartbeats(folder)
    return [
        heartbeat.energy_kwh
        for heartbeat in heartbeats.get_all(heartbeats.ranks).values()
        if heartbeat.job == job and heartbeat.energy_kwh
    ]


def energy_fields(counters_by_rank: Iterable[Mapping[str, float]], settings: Settings) -> dict[str, Any]:
    """Return the fields of an `energy` record; empty without counters.

    Args:
        counters_by_rank: the counters of each rank. A counter that several ranks read counts once, from the rank that
            started first.
        settings: have the price and the carbon intensity, if the user stated them.
    """
    by_key: dict[str, float] = {}
    num_ranks = 0
    for counters in counters_by_rank:
        num_ranks += bool(counters)
        for key, kwh in counters.items():
            by_key[key] = max(kwh, by_key.get(key, 0.0))
    fields: dict[str, Any] = {}
    gpus, processors = ([key for key in by_key if key.startswith(prefix)] for prefix in ("gpu:", "cpu:"))
    if gpus:
        fields |= {"gpu_kwh": round(sum(by_key[key] for key in gpus), 9), "num_gpus": len(gpus)}
    if processors:
        fields["cpu_kwh"] = round(sum(by_key[key] for key in processors), 9)
        fields["num_hosts"] = len({key.partition("/")[0] for key in processors})
    if not fields:
        return {}
    if ranks.world_size() > 1:
        fields["num_ranks"] = num_ranks
    stated = {
        "price_per_kwh": settings.energy_price_per_kwh,
        "currency": settings.energy_currency,
        "carbon_g_per_kwh": settings.carbon_g_per_kwh,
    }
    return {**fields, **{name: value for name, value in stated.items() if value}}
