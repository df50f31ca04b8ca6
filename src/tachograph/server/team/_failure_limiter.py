"""Limits how often one client may present a wrong key."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque

from tachograph._base.clock import Clock, SystemClock

__all__ = ["FailureLimiter"]


class FailureLimiter:
    """Counts the failures of each client address within a sliding window. Use it from one thread.

    An IPv6 client owns a whole /64 network, so its addresses count as one. If there are too many addresses, the ones
    that failed longest ago are removed first.

    Args:
        max_failures: how many failures are allowed within the window.
        window_s: length of the window.
        max_addresses: how many addresses are remembered.
        clock: for tests.
    """

    def __init__(
        self,
        *,
        max_failures: int = 10,
        window_s: float = 60.0,
        max_addresses: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        self._max_failures = max_failures
        self._window_s = window_s
        self._max_addresses = max_addresses
        self._clock = clock or SystemClock()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        """The times of the latest failures; the address with the latest one is the last."""

    def __len__(self) -> int:
        """Return the number of remembered addresses."""
        return len(self._failures)

    def wait_s(self, address: str) -> float:
        """Return the seconds for which the address must wait; 0 if it may try now."""
        times = self._failures.get(_client_of(address))
        if times is None or len(times) < self._max_failures:
            return 0.0
        return max(0.0, times[0] + self._window_s - self._clock.steady_s())

    def add_failure(self, address: str) -> float:
        """Count a failure; return the seconds for which the address must wait from now on."""
        client, now_s = _client_of(address), self._clock.steady_s()
        times = self._failures.setdefault(client, deque(maxlen=self._max_failures))
        times.append(now_s)
        self._failures.move_to_end(client)
        while len(self._failures) > self._max_addresses or self._is_outdated(now_s):
            self._failures.popitem(last=False)
        return self.wait_s(address)

    def _is_outdated(self, now_s: float) -> bool:
        """Return whether the first address has no failure within the window."""
        times = next(iter(self._failures.values()))
        return times[-1] <= now_s - self._window_s


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
