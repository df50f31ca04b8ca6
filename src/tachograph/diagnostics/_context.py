"""The position of the run, shared by the engine, the alert tracker and the rules."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["RunContext"]


class RunContext:
    """Mutable facts about the run. The engine writes them; rules and the tracker read them.

    Attributes:
        step: the current step; None before the first one.
        time_s: the time of the current record in Unix seconds; None if records carry no time.
        num_progress: grows with everything the training code records. The `hang` rule polls it.
        is_adversarial: whether the losses of a GAN are recorded. No rule judges them.
        is_reinforcement: whether rewards are recorded. The loss is then a poor measure of progress.
        is_work_recorded: whether the batch size, the tokens or the sequence length of a step are recorded.
        world_size: the number of ranks in the job.
        max_steps: the planned number of steps; None if no record says it.
        may_be_reset: whether the loss has jumped to its initial value and may fall again as at the start. Rules that
            report a high loss wait until `loss_reset` has decided.
        announce_change: call it with `lr`, `batch` or `restart` when something changed that explains the values that
            follow. The engine passes it on to every rule.
    """

    __slots__ = (
        "announce_change",
        "is_adversarial",
        "is_reinforcement",
        "is_work_recorded",
        "max_steps",
        "may_be_reset",
        "num_progress",
        "step",
        "time_s",
        "world_size",
    )

    def __init__(self) -> None:
        self.step: int | None = None
        self.time_s: float | None = None
        self.num_progress = 0
        self.is_adversarial = False
        self.is_reinforcement = False
        self.is_work_recorded = False
        self.world_size = 1
        self.max_steps: float | None = None
        self.may_be_reset = False
        self.announce_change: Callable[[str], None] = lambda change: None
