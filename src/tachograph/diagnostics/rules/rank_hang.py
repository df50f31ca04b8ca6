"""A job of several ranks hangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tachograph.diagnostics._hang_limits import PAUSES, HangLimits, HangThresholds
from tachograph.diagnostics._rank_status import RankStatus, list_ranks
from tachograph.diagnostics._rule import Rule
from tachograph.diagnostics._text import duration

__all__ = ["RankHang"]

_MAX_CALLS = 4
_ENDED = frozenset({"ended", "failed"})
_DOING = {
    "data": "waiting for data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    "checkpoint": "saving a checkpoint",
    "validation": "validating",
    "testing": "testing",
}


class RankHang(Rule):
    """No rank has completed an iteration for several times the longest one so far.

    A rank that waits in a collective or in the backward pass waits for others. The ranks that do something else are the
    ones that the job waits for, so they are named, with what they have been doing since when. So are ranks that have
    ended or failed while others wait for them. Validation, checkpoints and the first iteration are allowed to take
    longer. Every rank writes its Python stacks to a file once; equal stacks are shown together.
    """

    name = "rank_hang"
    severity = "critical"
    meaning = (
        "A rank waits for data, storage or a lock, or has left the loop, and the others wait for it; or the ranks call "
        "different collectives; or the network stands still."
    )
    advice = (
        "Read the stack of the rank that is named: tacho show RUN --ranks.",
        "Compare the collectives of the ranks: tacho doctor --flight-recorder DIR.",
        "If the data of a rank ended early, make all ranks take the same number of steps.",
    )
    absorbs = ("hang",)

    Thresholds = HangThresholds
    thresholds: HangThresholds

    def reset(self) -> None:
        """Forget all iterations."""
        self._limits = HangLimits(self.thresholds)

    def on_rank_statuses(self, statuses: Sequence[RankStatus], time_s: float) -> None:
        """Compare the time since the last iteration of any rank with the longest one."""
        running = [status for status in statuses if status.state == "running"]
        latest = max((status.iteration for status in statuses if status.iteration is not None), default=None)
        pause = next((status.phase for status in running if status.phase in PAUSES), "")
        took_s = self._limits.observe(latest, pause, time_s)
        if took_s is not None:
            self.resolve(f"the job continued after {duration(took_s)}")
        ended = [status for status in statuses if status.state in _ENDED]
        is_any_missing = len(running) + len(ended) < len(statuses)  # which `rank_gone` reports
        # A rank that works on after the others have ended does not hang; one that waits for them does.
        may_hang = any(status.waits for status in running) if ended else len(running) > 1
        waited_s = time_s - (self._limits.since_s or time_s)
        # Heartbeats of the first second have no activity yet, and one from before the hang does not tell who waits. A
        # rank that sends no more of them is silent soon.
        are_all_known = all(
            (status.phase or status.collective or status.location) and 2 * status.age_s < waited_s for status in running
        )
        is_hang = may_hang and not is_any_missing and self._limits.is_exceeded(time_s) and are_all_known
        if is_hang and not self.is_open():
            self._report(running, ended, waited_s)

    def _report(self, running: list[RankStatus], ended: list[RankStatus], waited_s: float) -> None:
        waiting = [status for status in running if status.waits]
        busy = [status for status in running if not status.waits]
        evidence: dict[str, Any] = {
            "waited_s": waited_s,
            "limit_s": self._limits.limit_s,
            "longest_iteration_s": self._limits.longest_s,
            "step": self._limits.iteration,
            "num_waiting": len(waiting),
        }
        collectives = _disagreement(waiting)
        unrecorded = self._unrecorded_ranks(running + ended)
        if unrecorded:
            evidence["unrecorded_ranks"] = [status.rank for status in unrecorded]
        if ended and not busy:
            evidence["ranks"] = [status.rank for status in ended]
            verb = "failed" if any(status.state == "failed" for status in ended) else "ended"
            title = f"{_subject(ended, f'{verb} already')}; {_count(len(waiting))} in {_waiting_in(waiting)}"
        elif busy and waiting:
            evidence |= {"ranks": [status.rank for status in busy], "phase": busy[0].phase, "at": busy[0].location}
            title = (
                f"{_subject(busy, 'not arrived')}: {_doing(busy)} for "
                f"{duration(max(status.phase_s for status in busy))}; "
                f"{_count(len(waiting))} in {_waiting_in(waiting)}"
            )
        elif len(collectives) > 1:
            (common, _), (rare, _) = collectives.most_common()[0], collectives.most_common()[-1]
            suspects = [status for status in waiting if status.collective == rare]
            evidence |= {"ranks": [status.rank for status in suspects], "collectives": dict(collectives)}
            name = list_ranks(suspects)
            verb = "is" if len(suspects) == 1 else "are"
            title = f"Ranks disagree: {name} {verb} in {rare}, {collectives[common]} in {common}"
        elif waiting and unrecorded:
            verb = "is" if len(unrecorded) == 1 else "are"
            title = f"{_count(len(waiting))} in {_waiting_in(waiting)}; {list_ranks(unrecorded)} {verb} not recorded"
        elif waiting:
            calls = Counter(status.collective or status.phase for status in waiting).most_common(_MAX_CALLS)
            places = f"all {len(waiting)} ranks wait in {calls[0][0]}"
            if len(calls) > 1:  # collectives of different groups
                places = ", ".join(f"{_count(num_ranks)} in {call}" for call, num_ranks in calls)
            title = f"Communication stands still: {places}"
        else:
            title = f"No iteration for {duration(waited_s)}: all ranks are {_doing(busy)}"
        self.report(title, f"No rank has completed an iteration for {duration(waited_s)}.", evidence=evidence)

    def _unrecorded_ranks(self, recorded: Sequence[RankStatus]) -> list[RankStatus]:
        """Return the ranks of the job that have left nothing: not recorded, or dead before their first heartbeat."""
        numbers = {status.rank for status in recorded}
        return [RankStatus(rank=rank) for rank in range(self.context.world_size) if rank not in numbers]


def _subject(statuses: Sequence[RankStatus], participle: str) -> str:
    name = list_ranks(statuses)
    return f"{name[0].upper()}{name[1:]} {'has' if len(statuses) == 1 else 'have'} {participle}"


def _disagreement(waiting: Sequence[RankStatus]) -> Counter[str]:
    """Return the collectives that ranks of one group are in, if these differ; groups call collectives of their own."""
    by_group: dict[str, Counter[str]] = {}
    for status in waiting:
        if status.collective:
            group = status.collective.partition(" of ")[2]
            by_group.setdefault(group, Counter())[status.collective] += 1
    return max(by_group.values(), key=lambda calls: (len(calls), sum(calls.values())), default=Counter())


def _doing(statuses: Sequence[RankStatus]) -> str:
    phase, location = Counter((status.phase, status.location) for status in statuses).most_common(1)[0][0]
    doing = _DOING.get(phase, "")
    return f"{doing} ({location})" if doing and location else doing or f"at {location or 'an unknown line'}"


def _waiting_in(statuses: Sequence[RankStatus]) -> str:
    return Counter(status.collective or status.phase for status in statuses).most_common(1)[0][0]


def _count(num_ranks: int) -> str:
    return f"{num_ranks} ranks wait" if num_ranks > 1 else "1 rank waits"
