"""Counts the collectives of a rank, with ``ranks="collectives"``.

The functions of `torch.distributed` are wrapped for as long as the run is recorded. Each call has a number in its
group. All members of a group call the same collectives in the same order, so ranks with different numbers, or with
different functions under one number, disagree. The heartbeat states the call that a rank is in; see
`ActivityObserver`.

A call takes about two microseconds longer. Functions that were imported by name before are not counted, and neither
are calls from C++, such as those of DDP; both are the same on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.import_watch import ImportWatch
from tachograph._base.patching import Patches

__all__ = ["COLLECTIVES", "CollectiveCounter"]

_FUNCTIONS = (
    *("all_reduce", "reduce", "broadcast", "barrier", "monitored_barrier"),
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "gather", "gather_object"),
    *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "broadcast_object_list"),
    *("all_to_all", "all_to_all_single"),
)
_POINT_TO_POINT = ("send", "recv", "isend", "irecv")
"""Calls between two ranks. They have no numbers, because other ranks do not call them."""

COLLECTIVES = "collectives"
"""The name of the event with the totals of a rank."""

_INTERVAL_S = 60.0
_MAX_TOTALS = 200

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
        self._watch = ImportWatch({"torch.distributed": self._wrap})
        self._numbers: dict[str, int] = {}  # by the name of the group: a reference would keep the group alive
        self._totals: dict[tuple[str, str], _Totals] = {}
        self._current: tuple[str, Any, int] | None = None
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
                outer, self._current = self._current, (name, group, number)
                started_at = _perf_counter()
                try:
                    return original(*args, **kwargs)
                finally:
                    waited_s = _perf_counter() - started_at
                    self._current = outer
                    totals = totals_of.get((key, name))
                    if totals is None:
                        totals = totals_of[key, name] = _Totals(_group_name(group))
                    totals.num_calls += 1
                    totals.wait_s += waited_s
                    totals.num_bytes += getattr(args[0], "nbytes", 0) if args else 0

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
