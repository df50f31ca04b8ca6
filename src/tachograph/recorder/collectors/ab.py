"""`ab`: switch a change of the training on and off inside one process, so that both ways are timed side by side.

The schedule is A B B A, repeated, in blocks of a few steps: whatever makes a run slower or faster over time then weighs
on both arms alike. It depends on nothing but the number of calls, because all ranks of a job must switch together: a
rank that does not record, or that has no run at all, follows the same schedule.
"""

from __future__ import annotations

from typing import Any

from tachograph._base import ranks
from tachograph._base.guard import guard, warn
from tachograph.recorder._process import _current
from tachograph.recorder._run import Run
from tachograph.records import AB_ARM

__all__ = ["ab"]

_ORDER = (0, 1, 1, 0)
_MIN_BLOCK = 3
"""The first two steps of a block are not timed."""
_MAX_WARNINGS = 20


class _Schedule:
    """The arms of an A/B test, and where it stands."""

    __slots__ = ("arm", "arms", "block", "is_alone", "names", "num_blocks", "num_left", "recorded", "run", "status")

    def __init__(self, arms: tuple[str, ...], block: int, run: Run | None, *, is_alone: bool) -> None:
        self.arms = arms if len(arms) == 2 else ("", *arms)
        self.names = arms if len(arms) == 2 else ("off", *arms)
        self.block = block
        self.is_alone = is_alone
        """Whether there are no other ranks, which would have to switch at the same step."""
        self.arm = self.arms[0]
        self.num_blocks = self.num_left = 0
        self.attach(run)

    def attach(self, run: Run | None) -> None:
        """Record the switches in another run from now on."""
        self.run = run
        self.status = None if run is None else run.status
        self.recorded: str | None = None

    @property
    def is_recording(self) -> bool:
        return self.run is not None and self.run.enabled and self.status == "running"

    def start_block(self) -> str:
        """Start the next block and return its arm, which is the first one as long as nothing is recorded."""
        self.num_left = self.block - 1
        if self.is_recording or not self.is_alone:
            self.arm = self.arms[_ORDER[self.num_blocks % len(_ORDER)]]
            self.num_blocks += 1
            self.record()
        return self.arm

    def record(self) -> None:
        """Record the arm, unless it is the one recorded last."""
        name = self.names[self.arms.index(self.arm)]
        if self.is_recording and self.run is not None and name != self.recorded:
            self.recorded = name
            # The writer adds the step: it knows the last one that was logged.
            self.run.add_record("event", {"name": AB_ARM, "arm": name, "arms": list(self.names), "block": self.block})


_schedules: dict[tuple[str, ...], _Schedule] = {}
"""The test of this process by its arms; at most one."""
_reported_problems: set[str] = set()


def ab(*arms: str, block: int = 10) -> str:
    """Return which of two ways this training step takes. Call it once per step; `tacho ab RUN` compares their speed.

    The arms take turns of `block` steps, in the order A B B A. Each switch is recorded in the current run. Without a
    run, the first arm is returned. All ranks of a distributed job follow the same schedule. Costs about a microsecond
    and never raises.

    Args:
        arms: the names of both arms. A single name stands for a change that is off or on: the result is then an empty
            string or the name.
        block: the number of steps until the next turn, at least 3. The first two of each block are not compared.

    Example:
        >>> for batch in loader:
        ...     model = compiled if tachograph.ab("eager", "compiled") == "compiled" else eager
        ...     use_fused_loss = bool(tachograph.ab("fused_loss"))  # or this: a run has one test at a time
    """
    try:
        # The hot path. The keys of `_schedules` have been checked, and `_current` contains the latest run.
        run = _current[0] if _current else None
        if arms in _schedules:
            schedule = _schedules[arms]
            if schedule.num_left and schedule.run is run and (run is None or run.status is schedule.status):
                schedule.num_left -= 1
                return schedule.arm
        return _next_arm(arms, block, run)
    except Exception as fault:  # noqa: BLE001 - training continues whatever was passed
        return _after_fault(arms, block, fault)


def _next_arm(arms: tuple[str, ...], block: int, run: Run | None) -> str:
    """Return the arm at the start of a block, and after anything has changed."""
    problem = _problem(arms, block)
    if problem is not None:
        return _reject(arms, problem)
    schedule = _schedules.get(arms)
    if schedule is None:
        other = next(iter(_schedules.values()), None)
        if other is not None and ((other.run is run and other.is_recording) or not other.is_alone):
            names = " and ".join(map(repr, other.names))
            return _reject(arms, f"{names} are being compared, and a run has one A/B test at a time")
        _schedules.clear()
        schedule = _schedules[arms] = _Schedule(arms, block, run, is_alone=ranks.world_size() == 1)
    elif schedule.run is not run or (run is not None and run.status is not schedule.status):
        if schedule.is_alone:
            schedule = _schedules[arms] = _Schedule(arms, block, run, is_alone=True)
        else:  # the other ranks do not start anew
            schedule.attach(run)
            if schedule.num_left:
                schedule.num_left -= 1
                schedule.record()
                return schedule.arm
    return schedule.start_block()


def _problem(arms: tuple[Any, ...], block: Any) -> str | None:
    if not all(isinstance(arm, str) and arm for arm in arms) or len(set(arms)) != len(arms) or len(arms) not in {1, 2}:
        return "expected the names of two arms, or one name for on and off"
    if type(block) is not int or block < _MIN_BLOCK:
        return f"block={block!r:.40} is not a number of steps of at least {_MIN_BLOCK}"
    return None


def _reject(arms: tuple[str, ...], problem: str) -> str:
    """Warn once; return the first arm."""
    if problem not in _reported_problems and len(_reported_problems) < _MAX_WARNINGS:
        _reported_problems.add(problem)
        warn("tachograph.ab(%s): %s; the first arm is used throughout", ", ".join(map(repr, arms))[:200], problem)
    return arms[0] if len(arms) > 1 else ""


def _after_fault(arms: tuple[str, ...], block: int, fault: Exception) -> str:
    problem = _problem(arms, block)  # such as arms that cannot be the key of a dict
    if problem is None:
        guard.report("switching arms", fault)
        if guard.strict:
            raise fault
    return _reject(arms, problem or "a fault inside telemetry")
