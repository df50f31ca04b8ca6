"""The journals and heartbeats of ranks other than 0: one file per rank, or one per host in a large job.

In a file of a host each line states its rank in `from_rank`, the second field: ``{"event":"rank","from_rank":17,…``. A
rank may have records in both kinds of files, because it continues with a file of its own if the rank that writes the
file of its host dies.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from tachograph._base.files import read_small_files
from tachograph._base.guard import faults
from tachograph._base.typed import decode_json
from tachograph.journal._folder import RunFolder
from tachograph.journal._liveness import MAX_HEARTBEAT_BYTES, Heartbeat, parse_heartbeat
from tachograph.journal._node_folder import FIRST_NODE_NUMBER

__all__ = [
    "MAX_HOST_RANKS",
    "HostHeartbeat",
    "RankJournal",
    "RankHeartbeats",
    "list_rank_journals",
    "mark_rank",
    "split_by_rank",
]

MAX_HOST_RANKS = 1_024
"""In one file of a host."""
_JOURNAL = re.compile(r"(host-)?(\d{5,9})\.jsonl(?:\.gz)?")
_HEARTBEAT = re.compile(r"(host-)?(\d{5,9})\.json")
_MAX_HOST_HEARTBEAT_BYTES = 4 << 20
_EVENT = re.compile(rb'(?m)^\{"event":"[^"\\]*"')
_MARKED = re.compile(rb'(?m)^\{"event":"[^"\\]*","from_rank":(\d{1,9}),.*\n')


class RankJournal(NamedTuple):
    """A file with the records of one rank, or of the ranks of one host."""

    number: int
    """The rank; of a host, the rank that writes the file."""
    is_host: bool
    path: Path
    """Of the plain file, which may be compressed; open it with `open_journal`."""

    @property
    def key(self) -> str:
        """How the file is called where it has no path, such as ``7`` or ``host-12``."""
        return f"host-{self.number}" if self.is_host else str(self.number)


class HostHeartbeat(msgspec.Struct):
    """The last heartbeats of the ranks of one host."""

    ranks: dict[int, Heartbeat] = {}


class RankHeartbeats:
    """The heartbeats of all ranks other than 0; of ranks with files of their own, read on demand.

    Args:
        folder: the run.
        max_relayed_age_s: how long ago heartbeats of other machines may have come from the server; older ones do not
            show that a rank is silent, because the connection may be broken. Without a limit, all are read.
    """

    def __init__(self, folder: RunFolder, *, max_relayed_age_s: float = float("inf")) -> None:
        self._folder = folder
        self.has_relayed = False
        """Whether heartbeats came from the server."""
        self._from_hosts: dict[int, Heartbeat] = {}
        self._own: set[int] = set()
        hosts: list[str] = []
        for is_host, number in _numbers(folder.private / "ranks", _HEARTBEAT):
            if not is_host:
                self._own.add(number)
                continue
            path = folder.host_heartbeat(number)
            if number >= FIRST_NODE_NUMBER:
                self.has_relayed = True
                if _age_s(path) > max_relayed_age_s:
                    continue
            hosts.append(path.name)
        for _, data in read_small_files(folder.private / "ranks", hosts, _MAX_HOST_HEARTBEAT_BYTES):
            for rank, heartbeat in _parse_host_heartbeat(data).items():
                stored = self._from_hosts.get(rank)
                if stored is None or stored.time < heartbeat.time:
                    self._from_hosts[rank] = heartbeat

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a heartbeat, in order."""
        return sorted(self._own | self._from_hosts.keys())

    def is_from_host(self, rank: int) -> bool:
        """Return whether the records of a rank are written by another process."""
        return rank in self._from_hosts

    def get(self, rank: int) -> Heartbeat | None:
        """Return the last heartbeat of a rank, or None if it is missing or invalid."""
        return self.get_all([rank]).get(rank)

    def get_all(self, ranks: Collection[int]) -> dict[int, Heartbeat]:
        """Return the last heartbeat of each rank that has a valid one, in this order; faster than `get` for each."""
        heartbeats = {rank: self._from_hosts[rank] for rank in ranks if rank in self._from_hosts}
        names = [f"{rank:05d}.json" for rank in ranks if rank in self._own]
        for name, data in read_small_files(self._folder.private / "ranks", names, MAX_HEARTBEAT_BYTES):
            rank, own = int(name.removesuffix(".json")), parse_heartbeat(data)
            from_host = heartbeats.get(rank)
            if own is not None and (from_host is None or own.time >= from_host.time):
                heartbeats[rank] = own
        return {rank: heartbeats[rank] for rank in ranks if rank in heartbeats}


def list_rank_journals(folder: RunFolder) -> list[RankJournal]:
    """Return the journals of all ranks other than 0, plain or compressed: files of hosts first, in order."""
    ranks = folder.ranks
    numbers = sorted(_numbers(folder.ranks, _JOURNAL), key=lambda item: (not item[0], item[1]))
    return [
        RankJournal(number, is_host, ranks / (f"host-{number:05d}.jsonl" if is_host else f"{number:05d}.jsonl"))
        for is_host, number in numbers
    ]


def mark_rank(lines: bytes, rank: int) -> bytes:
    """Return the lines of a rank as a file of a host has them."""
    mark = b',"from_rank":%d' % rank
    return _EVENT.sub(lambda match: match[0] + mark, lines)


def split_by_rank(journal: RankJournal, lines: bytes) -> dict[int, bytes]:
    """Return the lines of each rank in lines of a journal; invalid lines of a host belong to no rank."""
    if not journal.is_host:
        return {journal.number: lines}
    by_rank: dict[int, list[bytes]] = {}
    for match in _MARKED.finditer(lines):
        by_rank.setdefault(int(match[1]), []).append(match[0])
    return {rank: b"".join(rank_lines) for rank, rank_lines in sorted(by_rank.items())}


def _numbers(folder: Path, pattern: re.Pattern[str]) -> set[tuple[bool, int]]:
    try:
        matches = [pattern.fullmatch(name) for name in os.listdir(folder)]
    except faults(OSError):
        return set()
    return {(match[1] is not None, int(match[2])) for match in matches if match is not None}


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except faults(OSError):
        return float("inf")


def _parse_host_heartbeat(data: bytes) -> dict[int, Heartbeat]:
    try:
        return decode_json(data, HostHeartbeat).ranks
    except msgspec.MsgspecError:
        return {}
