"""One rank, or one host, is slower than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import cost, duration, factor, percent

if TYPE_CHECKING:
    from tachograph.diagnostics._ranks import ScoredWindow, SlowRanks, StragglerDetector

__all__ = ["Straggler"]

_PHASE_HINTS = {
    "data": "Its data loader is slow: compare the storage and the processes of its host with the others.",
    "forward": "Its device is slow: compare its clock, temperature and power with the others.",
    "backward": "Its device is slow: compare its clock, temperature and power with the others.",
    "forward and backward": "Its device is slow: compare its clock, temperature and power with the others.",
    "optimizer": "Its optimizer is slow: compare the parameters it updates, and offloading to its host.",
    "rest": "The time is between the phases: garbage collection, other processes on its host, or logging.",
}


class Straggler(Rule):
    """All ranks wait for one rank, or for the ranks of one host, in every step.

    The duration of a step is the same on all ranks, so the rule compares the time in which a rank does not wait for the
    others: in data, forward pass and optimizer, or outside of collectives if these are measured. The reference is the
    median of the ranks with the same work. A rank is slow if it is slower by a share and by several times the usual
    difference between ranks, in three windows of iterations in a row; windows have 16 iterations or more, and are also
    merged to 64 and to 256. If all ranks of a host are slow, the alert names the host instead of its ranks.

    With fewer than four ranks that do the same work, a rank is compared with its own earlier windows. If all ranks
    become slower together, nothing is reported here; see `throughput_regression`. Iterations next to a validation or
    checkpoint do not count, and neither does the time that rank 0 needs for logging. The severity is critical if the
    cost is at least a tenth of the step.

    Without measured collectives the backward pass contains waiting. If it is slower too, the alert includes it only if
    the rank was faster before.
    """

    name = "straggler"
    meaning = (
        "In synchronous training every step is as slow as the slowest rank. Common causes: a GPU that is throttled or "
        "shared, a slower host, slow storage or too few CPU cores for the data loader of that rank, other processes on "
        "its host, or more work for that rank than for the others."
    )
    advice = (
        "Compare clocks, temperature, power and throttle reasons of its GPU with the others "
        "(nvidia-smi -q -d PERFORMANCE).",
        "If the phase is data, check the storage and the CPU load of its host.",
        "Move the rank to another machine: if another rank is slow then, the cause is its work, not the machine.",
    )
    absorbs = ("throughput_regression", "step_time_change", "data_stall")

    class Thresholds(RuleSettings):
        """When the rule fires."""

        least_excess: Annotated[
            float, Meta(description="Minimum excess over the median of the ranks, as a share.", gt=0)
        ] = 0.07
        sigmas: Annotated[float, Meta(description="The same in units of the usual difference between ranks.", gt=0)] = (
            5.0
        )
        windows: Annotated[int, Meta(description="Number of windows in a row.", ge=1)] = 3
        recovered_excess: Annotated[float, Meta(description="Excess below which a rank counts as recovered.", gt=0)] = (
            0.04
        )
        least_own_excess: Annotated[
            float, Meta(description="Minimum excess over its own earlier windows, with fewer than four ranks.", gt=0)
        ] = 0.11
        least_cost: Annotated[float, Meta(description="Minimum excess as a share of the step.", ge=0, lt=1)] = 0.01
        critical_cost: Annotated[
            float, Meta(description="Cost, as a share of the step, from which it is critical.", gt=0)
        ] = 0.1

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all windows."""
        self._detector: StragglerDetector | None = None
        self._reported_costs: dict[str, float] = {}

    def on_rank_restart(self, rank: int) -> None:
        """Forget the process that had the number of this rank."""
        for key in self._detector.restart_rank(rank) if self._detector is not None else ():
            self._close(key, "another process has its rank now")

    def on_rank_window(self, window: ScoredWindow) -> None:
        """Compare the ranks."""
        if self._detector is None or self._detector.world_size != window.world_size:
            self._detector = self._new_detector(window.world_size)
        stragglers, recovered_keys = self._detector.add(window)
        for key in recovered_keys:
            self._close(key, "it is as fast as the others again")
        for straggler in stragglers:
            if straggler.is_host:
                for rank in straggler.ranks:
                    self._close(f"rank:{rank}", f"all ranks of {straggler.name} are slow")
            limits = self.thresholds
            critical_s = limits.critical_cost * straggler.step_s
            reported_s = self._reported_costs.get(straggler.key)
            is_worse = reported_s is not None and (
                straggler.cost_s >= 2 * reported_s or reported_s < critical_s <= straggler.cost_s / 1.1
            )
            if reported_s is None or is_worse:
                self._reported_costs[straggler.key] = straggler.cost_s
                self._report(straggler, window, "critical" if straggler.cost_s >= critical_s else "warning")

    def _new_detector(self, world_size: int) -> StragglerDetector:
        from tachograph.diagnostics._ranks import StragglerDetector, StragglerLimits

        limits = self.thresholds
        for key in list(self._reported_costs):
            self._close(key, "the number of ranks changed")
        return StragglerDetector(
            StragglerLimits(
                limits.least_excess,
                limits.sigmas,
                limits.windows,
                limits.recovered_excess,
                limits.least_own_excess,
                limits.least_cost,
            ),
            world_size,
        )

    def _close(self, key: str, outcome: str) -> None:
        if self._reported_costs.pop(key, None) is not None:
            self.resolve(outcome, key=key)

    def _report(self, straggler: SlowRanks, window: ScoredWindow, severity: str) -> None:
        subject = f"All ranks of {straggler.name} are" if straggler.is_host else f"R{straggler.name[1:]} is"
        others = "before" if straggler.is_individual else "the others"
        phase = f" in {straggler.phase}" if straggler.phase not in (None, "rest") else ""
        at_least = "at least " if straggler.is_lower_bound else ""
        costs = cost(straggler.cost_s, straggler.step_s)
        title = f"{subject} {percent(straggler.excess)} slower than {others}{phase}: {at_least}{costs}"
        if straggler.excess >= 1:
            verb = subject.rpartition(" ")[0] + (" take" if straggler.is_host else " takes")
            title = f"{verb} {factor(1 + straggler.excess)} as long as {others}{phase}: {at_least}{costs}"
        sentences = [
            f"Since step {straggler.since_iteration} its own work takes {duration(straggler.own_s)} of each step, "
            + (f"before {duration(straggler.reference_s)}." if straggler.is_individual else "")
            + (f"elsewhere {duration(straggler.reference_s)}." if not straggler.is_individual else "")
        ]
        if straggler.is_individual:
            sentences.append("There are too few ranks to compare it with, so it is compared with its earlier windows.")
        if straggler.phase in _PHASE_HINTS:
            sentences.append(_PHASE_HINTS[straggler.phase])
        if window.num_missing:
            sentences.append(f"{window.num_missing} ranks are missing in this window.")
        evidence = {
            "rank": None if straggler.is_host else straggler.ranks[0],
            "ranks": straggler.ranks[:64] if straggler.is_host else None,
            "host": straggler.host,
            "phase": straggler.phase,
            "excess": straggler.excess,
            "cost_s": straggler.cost_s,
            "cost_share": straggler.cost_s / straggler.step_s,
            "own_s": straggler.own_s,
            "usual_s": straggler.reference_s,
            "score": straggler.score,
            "z": straggler.z,
            "step_s": straggler.step_s,
            "since_step": straggler.since_iteration,
            "step": window.end - 1,
            "window_steps": straggler.length,
            "num_ranks": window.num_ranks,
            "num_missing": window.num_missing,
        }
        evidence = {name: value for name, value in evidence.items() if value is not None}
        self.report(title, " ".join(sentences), key=straggler.key, severity=severity, evidence=evidence)
