"""Communication between the ranks has become slower."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import cost, duration, percent

if TYPE_CHECKING:
    from tachograph.diagnostics._ranks import ScoredWindow

__all__ = ["SlowCommunication"]

_HISTORY = 20
_MAD_TO_SIGMA = 1.4826
_MAX_FORWARD_RISE = 0.05


class SlowCommunication(Rule):
    """Collectives take longer than before, although no rank arrives late.

    The last rank to arrive at a collective does not wait for others, so the lowest wait of all ranks is the time of the
    transfer itself. The rule compares it with its median over the last twenty windows. It reports nothing while ranks
    arrive at different times: then the waiting has another cause.

    Without measured collectives, the shortest backward pass of all ranks is used, and only if the forward pass takes as
    long as before.
    """

    name = "slow_communication"
    meaning = (
        "The same data takes longer to move between the ranks: a link or network card with errors or a lower speed, a "
        "congested switch, other jobs on the same network, or a fallback from a fast transport to a slow one."
    )
    advice = (
        "Check the error counters and the speed of links and network cards on all hosts.",
        'Record with ranks="collectives" to separate communication from the backward pass.',
        "Run the benchmark of the communication library (nccl-tests) on pairs of hosts to find the slow link.",
    )
    absorbs = ("throughput_regression", "step_time_change")

    class Thresholds(RuleSettings):
        """When the rule fires."""

        rise: Annotated[float, Meta(description="Minimum increase of the transfer time, as a share.", gt=0)] = 0.2
        least_cost: Annotated[float, Meta(description="Minimum increase as a share of the step.", ge=0, lt=1)] = 0.02
        sigmas: Annotated[float, Meta(description="Minimum increase in units of its usual differences.", gt=0)] = 5.0
        windows: Annotated[int, Meta(description="Number of windows in a row.", ge=1)] = 3
        history: Annotated[int, Meta(description="Minimum number of earlier windows.", ge=2, le=_HISTORY)] = 3

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all windows."""
        self._history: deque[tuple[float, float]] = deque(maxlen=_HISTORY)  # transfer, forward
        self._is_measured = False
        self._num_slow = 0
        self._num_calm = 0
        self._since = 0

    def on_rank_restart(self, rank: int) -> None:
        """Start over: the ranks may communicate in another way."""
        self.resolve("a rank was replaced")
        self.reset()

    def on_rank_window(self, window: ScoredWindow) -> None:
        """Compare the transfer with earlier windows."""
        if window.level:
            return
        if window.is_measured != self._is_measured:
            self.reset()
            self._is_measured = window.is_measured
        transfer_s = window.transfer_s if window.is_measured else window.lowest("backward")
        forward_s = 0.0 if window.is_measured else window.typical("forward")
        if transfer_s is None or forward_s is None:
            return
        limits = self.thresholds
        if len(self._history) < limits.history:
            self._history.append((transfer_s, forward_s))
            return
        usual_s = median(transfer for transfer, _ in self._history)
        usual_forward_s = median(forward for _, forward in self._history)
        rise_s = transfer_s - usual_s
        deviation_s = median(abs(transfer - usual_s) for transfer, _ in self._history)
        spread_s = max(_MAD_TO_SIGMA * deviation_s, window.error_of("wait" if window.is_measured else "backward"))
        is_slow = (
            rise_s >= limits.rise * usual_s
            and rise_s >= limits.sigmas * spread_s
            and rise_s >= limits.least_cost * window.step_s
            and forward_s <= (1 + _MAX_FORWARD_RISE) * usual_forward_s
        )
        if is_slow and not window.is_any_rank_late:
            self._since = window.first_iteration if not self._num_slow else self._since
            self._num_slow += 1
            self._num_calm = 0
            if self._num_slow >= limits.windows and not self.is_open():
                self._report(window, transfer_s, usual_s)
            return
        self._num_slow = 0
        if self.is_open():
            self._num_calm = self._num_calm + 1 if rise_s < limits.rise / 2 * usual_s else 0
            if self._num_calm >= limits.windows:
                self.resolve(f"it takes {duration(transfer_s)} again")
        elif not is_slow:
            self._history.append((transfer_s, forward_s))

    def _report(self, window: ScoredWindow, transfer_s: float, usual_s: float) -> None:
        rise_s = transfer_s - usual_s
        costs = cost(rise_s, window.step_s)
        title = f"Communication between ranks takes {percent(rise_s / usual_s)} longer: {costs}"
        message = f"Since step {self._since} it takes {duration(transfer_s)}, before {duration(usual_s)}."
        if not window.is_measured:
            title = f"Communication between ranks is probably slower: backward takes {costs} more on all ranks"
            message = (
                f"Since step {self._since} the shortest backward pass takes {duration(transfer_s)}, before "
                f"{duration(usual_s)}, while the forward pass takes as long as before."
            )
        evidence = {
            "transfer_s": transfer_s,
            "usual_s": usual_s,
            "cost_s": rise_s,
            "cost_share": rise_s / window.step_s,
            "step_s": window.step_s,
            "since_step": self._since,
            "step": window.end - 1,
            "num_ranks": window.num_ranks,
            "num_missing": window.num_missing,
        }
        self.report(title, f"{message} No rank is late.", evidence=evidence)
