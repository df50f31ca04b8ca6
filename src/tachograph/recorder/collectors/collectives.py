"""Counts and times the collectives of a rank, with ``ranks="collectives"``.

The functions of `torch.distributed` are wrapped for as long as the run is recorded. Each call has a number in its
group. All members of a group call the same collectives in the same order, so ranks with different numbers, or with
different functions under one number, disagree. The heartbeat states the call that a rank is in; see
`ActivityObserver`.

The time inside them is the waiting for other ranks; the rest of an iteration is its own work. Calls that return
before they are complete wait in `Work.wait`, and DDP waits in its backward pass; see `DdpWaits`. On a GPU neither says
when the work is done, so windows are not timed there: they have the phases of the loop.

A call takes about two microseconds longer. Functions that were imported by name before are not counted, and neither
are calls from C++; both are the same on all ranks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.import_watch import ImportWatch
from tachograph._base.patching import Patches
from tachograph.recorder.collectors.ddp_waits import DdpWaits
from tachograph.records import COLLECTIVES

__all__ = ["CollectiveCounter"]

_FUNCTIONS = (
    *("all_reduce", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "gather", "gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "broadcast_object_list"),
    *("all_to_all", "all_to_all_single"),
)
_POINT_TO_POINT = ("send", "recv", "isend", "irecv")
"""Calls between two ranks. They have no numbers, because other ranks do not call them."""

_INTERVAL_S = 60.0
_MAX_TOTALS = 200
_MAX_WAITS = 2048
"""Waits that the writer has not assigned to iterations yet; it does so at least twice per second."""

_perf_counter = time.perf_counter


class _Totals:
    """The calls of one function in one group."""

    __slots__ = ("group", "num_bytes", "num_calls", "wait_s")

    def __init__(self, group: str) -> None:
        self.group = group
        self.num_calls = 0
        self.num_bytes = 0
        self.wait_s = 0.0


class CollectiveCounter:
    """Wraps the functions of `torch.distributed` and counts their calls. A collector of the run.

    Args:
        add_record: adds a record to the run.
    """

    def __init__(self, add_record: Callable[[str, dict[str, Any]], None]) -> None:
        self._add_record = add_record
        self._patches = Patches()
        self._ddp = DdpWaits(self._add_wait, self._stop_timing)
        self._watch = ImportWatch({"torch.distributed": self._wrap, "torch.nn.parallel.distributed": self._wrap_ddp})
        self._numbers: dict[str, int] = {}  # by the name of the group: a reference would keep the group alive
        self._totals: dict[tuple[str, str], _Totals] = {}
        self._current: tuple[str, Any, int] | None = None
        self._last: tuple[str, Any, int] | None = None
        self._waits: deque[tuple[float, float]] = deque(maxlen=_MAX_WAITS)
        self._are_waits_lost = False
        self._is_timed = True
        """Whether all waiting is seen from Python; see the module docstring."""
        self.num_calls = 0
        """Numbered calls so far, in all groups."""
        self._num_recorded = 0
        self._next_record_at = time.monotonic() + _INTERVAL_S
        self._watch.install()

    # On the training thread ----------------------------------------------------------------------------------------

    def _wrap(self, module: Any) -> None:
        with guard("wrapping collectives"):
            if not module.is_available():
                return
            compiler = _compiler()
            for name in (*_FUNCTIONS, *_POINT_TO_POINT):
                self._patches.wrap(module, name, self._wrapper(name, module.ProcessGroup, compiler))
            self._patches.wrap(module.Work, "wait", self._wrap_work)

    def _wrap_ddp(self, module: Any) -> None:
        with guard("wrapping DDP"):
            self._ddp.wrap(self._patches, module)

    def _wrap_work(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            if self._current is not None:  # of a collective, which is timed itself
                return original(*args, **kwargs)
            started_at = _perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._add_wait(started_at, _perf_counter())

        return wait

    def _add_wait(self, started_at: float, ended_at: float) -> None:
        waits = self._waits
        if len(waits) >= _MAX_WAITS:
            self._are_waits_lost = True
        waits.append((started_at, ended_at))

    def _stop_timing(self) -> None:
        self._is_timed = False

    def _wrapper(self, name: str, group_type: type, compiler: Any) -> Callable[[Any], Any]:
        numbers, totals_of = self._numbers, self._totals
        is_numbered = name not in _POINT_TO_POINT

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def collective(*args: Any, **kwargs: Any) -> Any:
                if compiler.is_compiling():  # the compiler replaces the original by an operation of its graph
                    return original(*args, **kwargs)
                group: Any = kwargs.get("group")
                if group is None:
                    for argument in args:
                        if isinstance(argument, group_type):
                            group = argument
                            break
                key = "" if group is None else group.group_name
                number = 0
                if is_numbered:
                    number = numbers[key] = numbers.get(key, 0) + 1
                    self.num_calls += 1
                outer, self._current = self._current, (name, group, number)
                started_at = _perf_counter()
                try:
                    return original(*args, **kwargs)
                finally:
                    ended_at = _perf_counter()
                    self._current = outer
                    if outer is None:
                        self._last = (name, key, number)
                        waits = self._waits
                        if len(waits) >= _MAX_WAITS:
                            self._are_waits_lost = True
                        waits.append((started_at, ended_at))
                    totals = totals_of.get((key, name))
                    if totals is None:
                        totals = totals_of[key, name] = _Totals(_group_name(group))
                    totals.num_calls += 1
                    totals.wait_s += ended_at - started_at
                    if args:
                        tensor = args[0]
                        totals.num_bytes += getattr(tensor, "nbytes", 0)
                        if getattr(tensor, "is_cuda", False):
                            self._is_timed = False

            return collective

        return make

    # On the writer thread ------------------------------------------------------------------------------------------

    def describe(self, name: str) -> str:
        """Return the call that the training thread is in, such as `all_reduce #13 of dp`, if it is of this function."""
        current = self._current
        if current is None or current[0] != name or not current[2]:
            return name
        group = _group_name(current[1])
        return f"{name} #{current[2]} of {group}" if group else f"{name} #{current[2]}"

    @property
    def last_call(self) -> str:
        """The last numbered call that returned, such as `all_reduce #12`; empty if there is none."""
        last = self._last
        return f"{last[0]} #{last[2]}" if last is not None and last[2] else ""

    def wait_in_iteration(self, start_s: float, stop_s: float) -> tuple[float, int] | None:
        """Return how long the rank waited in collectives during an iteration, and how many calls there were so far.

        None if the waiting is not known, as on a GPU.

        Iterations are asked for in the order of time: earlier waits are forgotten.
        """
        total_s = 0.0
        waits = self._waits
        while waits and waits[0][1] <= stop_s:
            started_at, ended_at = waits.popleft()
            total_s += max(0.0, ended_at - max(started_at, start_s))
        if self._are_waits_lost:
            self._are_waits_lost = False
            return None
        return (total_s, self.num_calls) if self._is_timed and self.num_calls else None

    def collect(self) -> None:
        """Record the totals once a minute."""
        if time.monotonic() >= self._next_record_at:
            self._next_record_at = time.monotonic() + _INTERVAL_S
            self._record()

    def _record(self) -> None:
        totals_of = list(self._totals.items())[:_MAX_TOTALS]
        num_calls = sum(totals.num_calls for _, totals in totals_of)
        if num_calls == self._num_recorded:
            return
        self._num_recorded = num_calls
        rows = [
            {
                "function": name,
                "group": totals.group or "world",
                "calls": totals.num_calls,
                "bytes": totals.num_bytes,
                "wait_s": round(totals.wait_s, 6),
            }
            for (_, name), totals in totals_of
        ]
        self._add_record("event", {"name": COLLECTIVES, "collectives": rows})

    def close(self) -> None:
        """Restore the functions, and record the totals."""
        self.forget()
        self._record()

    def forget(self) -> None:
        """Restore the functions."""
        self._ddp.close()
        self._watch.remove()
        self._patches.undo()


def _compiler() -> Any:
    import torch.compiler

    return torch.compiler


def _group_name(group: Any) -> str:
    """Return the name of a group other than that of all ranks, as `new_group` or the device mesh describe it."""
    if group is None:
        return ""
    description = str(getattr(group, "group_desc", ""))
    if description == "default_pg":
        return ""
    return f"{(description if description != 'undefined' else str(getattr(group, 'group_name', '?'))):.40}"
