"""What each rank of a job is doing, as the rules about missing and hanging ranks receive it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["RankStatus", "list_ranks"]

_MAX_LISTED = 8


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One rank at one time."""

    rank: int
    host: str = ""
    state: str = "running"
    """`running`, `silent` (no heartbeat), `gone` (the process ended without a word), `failed` or `ended`."""
    iteration: int | None = None
    """Completed iterations."""
    phase: str = ""
    """What its training thread is doing; see `Heartbeat`."""
    phase_s: float = 0.0
    """For how long it has been doing that."""
    collective: str = ""
    """The function of `torch.distributed` that it is in; empty if it is in none."""
    location: str = ""
    """The innermost line of the program itself, such as `train.py:31`."""
    age_s: float = 0.0
    """For how long rank 0 has had no newer heartbeat."""
    error: str = ""
    """Its last error, in one line."""

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, or may do so."""
        return self.state == "running" and (bool(self.collective) or self.phase == "backward")

    @property
    def name(self) -> str:
        """The rank and its host."""
        return f"rank {self.rank} ({self.host})" if self.host else f"rank {self.rank}"


def list_ranks(statuses: Sequence[RankStatus]) -> str:
    """Return the names of some ranks in one phrase, such as `ranks 2 and 3 (node2)`."""
    if len(statuses) == 1:
        return statuses[0].name
    numbers = [str(status.rank) for status in statuses[:_MAX_LISTED]]
    num_more = len(statuses) - len(numbers)
    last = f"{num_more} more" if num_more else numbers.pop()
    listed = f"{', '.join(numbers)} and {last}"
    hosts = {status.host for status in statuses}
    host = f" ({next(iter(hosts))})" if len(hosts) == 1 and hosts != {""} else ""
    return f"ranks {listed}{host}"
