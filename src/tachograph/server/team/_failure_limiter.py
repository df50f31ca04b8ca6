"""Limits how often one client may present a wrong key."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable
from pathlib import Path

import msgspec

from tachograph.server.team._shared_file import SharedFile

__all__ = ["FailureLimiter"]

_NUM_FILES = 256


class _Failures(msgspec.Struct):
    """The times of the latest failures of some clients; the one that failed last is the last."""

    times: dict[str, list[float]] = {}


class FailureLimiter:
    """Counts the failures of each client address within a sliding window. Any thread and any process may use it.

    An IPv6 client owns a whole /64 network, so its addresses count as one. The clients are divided among some files. If
    a file has too many, the ones that failed longest ago are removed first.

    Args:
        root: the data folder.
        max_failures: how many failures are allowed within the window.
        window_s: length of the window.
        max_addresses: how many addresses are remembered in a file.
        num_files: how many files there are.
        clock: see `SharedFile`.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_failures: int = 10,
        window_s: float = 60.0,
        max_addresses: int = 40,
        num_files: int = _NUM_FILES,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._root = root
        self._max_failures = max_failures
        self._window_s = window_s
        self._max_addresses = max_addresses
        self._num_files = num_files
        self._clock = clock

    def wait_s(self, address: str) -> float:
        """Return the seconds for which the address must wait; 0 if it may try now.

        Raises:
            OSError: if the file of the client cannot be opened.
        """
        client = _client_of(address)
        with self._file_of(client).update() as (failures, now_s):
            return self._wait_s(failures.times.get(client, []), now_s)

    def add_failure(self, address: str) -> float:
        """Count a failure; return the seconds for which the address must wait from now on.

        Raises:
            OSError: if the file of the client cannot be opened.
        """
        client = _client_of(address)
        with self._file_of(client).update() as (failures, now_s):
            times = [*failures.times.pop(client, []), now_s][-self._max_failures :]
            failures.times = {
                # A time in the future is one from before the clock was set.
                each: others
                for each, others in failures.times.items()
                if abs(now_s - others[-1]) < self._window_s
            }
            failures.times[client] = times
            while len(failures.times) > self._max_addresses:
                del failures.times[next(iter(failures.times))]
            return self._wait_s(times, now_s)

    def _wait_s(self, times: list[float], now_s: float) -> float:
        if len(times) < self._max_failures:
            return 0.0
        return min(self._window_s, max(0.0, times[0] + self._window_s - now_s))

    def _file_of(self, client: str) -> SharedFile[_Failures]:
        number = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=4).digest(), "big")
        path = self._root / ".server" / "failures" / f"{number % self._num_files:02x}.json"
        return SharedFile(path, _Failures, below=self._root, clock=self._clock)


def _client_of(address: str) -> str:
    """Return the text under which an address is counted."""
    try:
        client = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if isinstance(client, ipaddress.IPv4Address):
        return str(client)
    if client.ipv4_mapped is not None:
        return str(client.ipv4_mapped)
    return str(ipaddress.ip_network((client, 64), strict=False))
