"""Brings the ranks of other machines to the machine of rank 0, from the server to which all of them are sent.

Rank 0 compares the ranks of its job, and reads their journals and heartbeats in the folder of the run. Where the
machines share no folder, `NodeRelay` writes the files of the other machines into it, as the server has received them:
the journals under the same names, and the heartbeats of up to a thousand ranks into one file, in a host's layout.

The time of a heartbeat is corrected by how long ago the server received it, so the clocks of the machines do not
matter. If the server cannot be reached, nothing is written, and the age of the file shows that nothing has come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tachograph._base.files import make_folder, open_to_append, replace_file, write_all
from tachograph._base.guard import suppress
from tachograph.journal import FIRST_NODE_NUMBER, Heartbeat, HostHeartbeat, RunFolder, uptime_s
from tachograph.remote._wire import BatchAnswer, RelayedHeartbeat

__all__ = ["NodeRelay"]

_RANKS_PER_FILE = 1_000
_MAX_FILES = 10_000
_MAX_BYTES_AT_ONCE = 8 << 20
_MAX_BYTES = 64 << 30
"""The most bytes that a server can make this machine store."""


class NodeRelay:
    """Writes the files of ranks on other machines into the folder of the run."""

    def __init__(self) -> None:
        self.is_active = False
        """Whether the run has ranks on other machines."""
        self._heartbeats: dict[int, dict[int, Heartbeat]] = {}
        self._num_bytes = 0

    def receive(self, folder: RunFolder, reply: BatchAnswer, fetch: Callable[[str, int], bytes]) -> None:
        """Write the journals and heartbeats that an answer of the server names.

        Args:
            folder: the run.
            reply: the answer to a beat.
            fetch: returns bytes of a journal from an offset.
        """
        self.is_active = True
        with suppress(OSError):
            make_folder(folder.ranks, below=folder.path)
            make_folder(folder.private / "ranks", below=folder.path)
            num_bytes_before = self._num_bytes
            for key, size in list(reply.nodes.items())[:_MAX_FILES]:
                if min(_MAX_BYTES, num_bytes_before + _MAX_BYTES_AT_ONCE) > self._num_bytes:
                    self._add_journal(folder, key, size, fetch)
            # After the journals: a rank that has ended on purpose has written so there.
            self._add_heartbeats(folder, reply.ranks)

    def _add_journal(self, folder: RunFolder, key: str, size: int, fetch: Callable[[str, int], bytes]) -> None:
        path = folder.host_journal(int(key.removeprefix("host-")))
        fd: Any = None
        try:
            have = path.stat().st_size if path.exists() else 0
            if have >= size:
                return
            data = fetch(key, have)[: size - have]
            if data:
                fd = open_to_append(path, below=folder.path)
                if os.fstat(fd).st_size == have:
                    write_all(fd, data)
                    self._num_bytes += len(data)
        finally:
            if fd is not None:
                os.close(fd)

    def _add_heartbeats(self, folder: RunFolder, heartbeats: dict[str, RelayedHeartbeat]) -> None:
        now_s, now_uptime_s = time.time(), uptime_s()
        for rank, relayed in heartbeats.items():
            age_s = max(0.0, relayed.age_s)
            shift_s = now_s - age_s - relayed.heartbeat.time
            phase_since = relayed.heartbeat.phase_since
            heartbeat = msgspec.structs.replace(
                relayed.heartbeat,
                time=now_s - age_s,
                uptime_s=now_uptime_s - age_s,
                phase_since=phase_since + shift_s if phase_since else 0.0,
            )
            self._heartbeats.setdefault(int(rank) // _RANKS_PER_FILE, {})[int(rank)] = heartbeat
        for group, members in self._heartbeats.items():
            data = msgspec.json.encode(HostHeartbeat(dict(sorted(members.items()))))
            replace_file(folder.host_heartbeat(FIRST_NODE_NUMBER + group), data, below=folder.path)
