"""Find out who a hanging job waits for.

Ranks call the collectives of a group in the same order, so a collective has the same number on all of them. In each
group, the first collective that is not done on some rank is the one that the group is stuck in:

* A member without that number has not called it: the others wait for this rank.
* A member whose device has not begun it, while others have, is still busy with earlier work.
* Members that called different operations, or the same one with different sizes, under one number disagree. A rank that
  skips a call is shifted by one, which shows where the names differ again.
* If every member has begun the same operation, the communication itself stands still.

A rank that others wait for may itself wait in another group. The cause is the group whose missing ranks wait nowhere
else.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from tachograph.diagnostics.flight_recorder._dumps import Collective, DumpFolder, UnreadableDump

__all__ = ["HangReport", "StuckGroup", "find_hang", "format_ranks"]

Verdict = Literal["mismatch", "not_arrived", "no_dump", "not_started", "standstill"]

_UNEQUAL_SIZES = ("all_to_all", "alltoall", "scatter", "gather", "barrier", "coalesced")
"""Operations whose sizes may differ between ranks. This includes all_gather of unequal parts."""

_Signature = tuple[object, ...]
_Entries = dict[int, dict[int, Collective]]
"""The entries of a group: rank, number of the collective, entry."""

_Fronts = dict[int, set[tuple[str, int, bool]]]
"""The calls that each rank waits in: group, number, and whether it is a point-to-point operation."""


class StuckGroup(msgspec.Struct, kw_only=True):
    """A group of ranks that waits in a collective, and why."""

    group: str
    description: str
    ranks: list[int]
    operation: str
    number: int
    verdict: Verdict
    suspects: list[int]
    """The ranks that the others wait for, or that differ from most."""
    waiting: list[int]
    """The ranks that have called it and wait."""
    operations: dict[str, list[int]] = {}
    """The ranks by operation, where they disagree."""
    is_cause: bool = False
    """Whether it does not follow from another group that is stuck."""
    since_ns: int = 0
    """When the first waiting rank called it, as nanoseconds since 1970."""

    @property
    def text(self) -> str:
        """One sentence about it."""
        group = self.description or f"group {self.group}"
        where = f"{self.operation} #{self.number} of {group}"
        suspects = format_ranks(self.suspects)
        have = "has" if len(self.suspects) == 1 else "have"
        waiting = f"; {_count(len(self.waiting))} in it" if self.waiting else ""
        if self.verdict == "mismatch":
            parts = [f"{format_ranks(ranks)}: {name}" for name, ranks in self.operations.items()]
            accused = (
                f"; {suspects} {'differs' if len(self.suspects) == 1 else 'differ'} from most" if self.suspects else ""
            )
            return f"the ranks disagree at or before #{self.number} of {group} ({', '.join(parts)}){accused}"
        if self.verdict == "not_arrived":
            return f"{suspects} {have} not arrived at {where}{waiting}"
        if self.verdict == "no_dump":
            return f"{suspects} {have} no dump, and {where} is not complete{waiting}"
        if self.verdict == "not_started":
            return f"{suspects} {have} called {where} but not begun it: busy with earlier work{waiting}"
        return f"all ranks have called {where}, and it does not end: the communication stands still"


class HangReport(msgspec.Struct, kw_only=True):
    """What the dumps of a job say."""

    num_dumps: int
    missing_dumps: list[int]
    """Ranks that belong to a group but have no dump: they died, or were not asked to write one."""
    unreadable: list[UnreadableDump]
    stuck_groups: list[StuckGroup]
    """Causes first."""
    is_circular: bool = False
    """Whether every rank that others wait for waits in another group."""

    @property
    def suspects(self) -> list[int]:
        """The ranks that the job waits for."""
        return sorted({rank for group in self.stuck_groups if group.is_cause for rank in group.suspects})


def find_hang(folder: DumpFolder) -> HangReport:
    """Find the collectives in which a job is stuck, and the ranks that it waits for."""
    groups = _collect_groups(folder)
    fronts = _find_fronts(folder)
    members = {rank for _, ranks in groups for rank in ranks}
    stuck = [group for key, entries in groups.items() if (group := _judge_group(key, entries, folder, fronts))]
    stuck += _judge_point_to_point(folder, groups, fronts)
    is_circular = _mark_causes(stuck, fronts)
    stuck.sort(key=lambda group: (not group.is_cause, group.verdict != "mismatch", group.since_ns))
    return HangReport(
        num_dumps=len(folder.dumps),
        missing_dumps=sorted(members - set(folder.dumps)),
        unreadable=folder.unreadable,
        stuck_groups=stuck,
        is_circular=is_circular,
    )


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 2`` or ``ranks 0–3, 7``."""
    ordered = sorted(ranks)
    parts: list[str] = []
    start = 0
    for index, rank in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != rank + 1:
            first = ordered[start]
            parts.append(str(first) if first == rank else f"{first}{', ' if rank == first + 1 else '–'}{rank}")
            start = index + 1
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(parts)}"


def _count(num_ranks: int) -> str:
    return "1 rank waits" if num_ranks == 1 else f"{num_ranks} ranks wait"


_GroupKey = tuple[str, tuple[int, ...]]


def _collect_groups(folder: DumpFolder) -> dict[_GroupKey, _Entries]:
    """Return the entries of each group, identified by its name and its ranks: names repeat after a group was split."""
    recorders: dict[str, set[int]] = defaultdict(set)
    for rank, dump in folder.dumps.items():
        for entry in dump.collectives:
            recorders[entry.group].add(rank)
    groups: dict[_GroupKey, _Entries] = {}
    for rank, dump in folder.dumps.items():
        for name in {entry.group for entry in dump.collectives}:
            key = (name, _members(name, rank, dump.group_ranks.get(name, ()), recorders[name], folder))
            entries = groups.setdefault(key, {})
            # Of the parts of a coalesced operation, which share a number, the last one counts.
            entries[rank] = {
                entry.number: entry for entry in dump.collectives if entry.group == name and entry.peer is None
            }
    for (_, ranks), entries in groups.items():
        for rank in ranks:
            if rank in folder.dumps:
                entries.setdefault(rank, {})
    return groups


def _members(name: str, rank: int, ranks: tuple[int, ...], recorders: set[int], folder: DumpFolder) -> tuple[int, ...]:
    """Return the ranks of a group. Some backends write none, or those of another group, without the rank itself."""
    if rank in ranks:
        return tuple(sorted(ranks))
    listed_elsewhere = {
        other for other in recorders if other != rank and other in folder.dumps[other].group_ranks.get(name, ())
    }
    return tuple(sorted(recorders - listed_elsewhere))


def _find_fronts(folder: DumpFolder) -> _Fronts:
    """Return the calls that each rank waits in now.

    A program calls collectives ahead of its device, so most pending calls wait only for earlier ones of the same rank.
    A rank waits in the calls that its device has begun. Where devices do not report that, it waits in the earliest one.
    """
    reporting = {entry.backend for dump in folder.dumps.values() for entry in dump.collectives if entry.is_started}
    fronts = _fronts_of(folder, reporting)
    return fronts if any(fronts.values()) else _fronts_of(folder, set())


def _fronts_of(folder: DumpFolder, reporting: set[str]) -> _Fronts:
    """Return the calls that each rank waits in, if these backends report what devices have begun."""
    fronts: _Fronts = {}
    for rank, dump in folder.dumps.items():
        pending = [entry for entry in dump.collectives if not entry.is_done]
        begun = [entry for entry in pending if entry.is_started]
        if not begun and pending and pending[0].backend not in reporting:
            begun = [entry for entry in pending if _call_of(entry) == _call_of(pending[0])]
        fronts[rank] = {_call_of(entry) for entry in begun}
    return fronts


def _call_of(entry: Collective) -> tuple[str, int, bool]:
    return entry.group, entry.number, entry.peer is not None


def _judge_group(key: _GroupKey, entries: _Entries, folder: DumpFolder, fronts: _Fronts) -> StuckGroup | None:
    """Return the collective in which a group is stuck, or at which its ranks first disagree; None if all is well."""
    name, ranks = key
    calls_in = {
        rank: {number for number in by_number if (name, number, False) in fronts.get(rank, ())}
        for rank, by_number in entries.items()
    }
    number = min((number for numbers in calls_in.values() for number in numbers), default=None)
    mismatch = _first_mismatch(entries)
    if mismatch is not None and (number is None or mismatch <= number):
        return _mismatch(key, entries, mismatch)
    if number is None:
        return None
    called = [rank for rank, by_number in entries.items() if number in by_number and not by_number[number].is_done]
    waiting = [rank for rank in called if number in calls_in[rank]]
    example = entries[waiting[0]][number]
    not_arrived = [rank for rank, by_number in entries.items() if max(by_number, default=-1) < number]
    without_dump = [rank for rank in ranks if rank not in folder.dumps]
    verdict: Verdict = "standstill"
    suspects: list[int] = []
    if not_arrived:
        verdict, suspects = "not_arrived", not_arrived
    elif without_dump:
        verdict, suspects = "no_dump", without_dump
    elif len(waiting) < len(called):
        verdict, suspects = "not_started", [rank for rank in called if rank not in waiting]
    return StuckGroup(
        group=name,
        description=example.description,
        ranks=list(ranks),
        operation=example.operation,
        number=number,
        verdict=verdict,
        suspects=sorted(suspects),
        waiting=sorted(rank for rank in waiting if rank not in suspects),
        since_ns=min(entries[rank][number].created_ns for rank in waiting),
    )


def _first_mismatch(entries: _Entries) -> int | None:
    """Return the first number at which ranks have different operations, where all rings reach back."""
    recorded = [by_number for by_number in entries.values() if by_number]
    if len(recorded) < 2:
        return None
    first = max(min(by_number) for by_number in recorded)
    signatures: dict[int, _Signature] = {}
    mismatches = set()
    for by_number in recorded:
        for number, entry in by_number.items():
            if number >= first and signatures.setdefault(number, _signature(entry)) != _signature(entry):
                mismatches.add(number)
    # Calls that are done on all ranks have matched, whatever their sizes.
    mismatches = {
        number
        for number in mismatches
        if len({by_number[number].operation for by_number in recorded if number in by_number}) > 1
        or not all(by_number[number].is_done for by_number in recorded if number in by_number)
    }
    return min(mismatches, default=None)


def _signature(entry: Collective) -> _Signature:
    if any(name in entry.operation.lower() for name in _UNEQUAL_SIZES):
        return (entry.operation,)
    return (entry.operation, tuple(map(_num_elements, entry.sizes)), entry.dtypes)


def _num_elements(shapes: tuple[Any, ...]) -> int:
    """Return the number of elements of tensors, whose shapes may differ between ranks."""
    return sum(math.prod(shape) if isinstance(shape, tuple) else shape for shape in shapes)


def _mismatch(key: _GroupKey, entries: _Entries, number: int) -> StuckGroup:
    name, ranks = key
    callers = {rank: by_number[number] for rank, by_number in entries.items() if number in by_number}
    by_signature: dict[_Signature, list[int]] = defaultdict(list)
    for rank, entry in sorted(callers.items()):
        by_signature[_signature(entry)].append(rank)
    largest = max(len(members) for members in by_signature.values())
    majorities = [members for members in by_signature.values() if len(members) == largest]
    suspects = sorted(set(callers) - set(majorities[0])) if len(majorities) == 1 else []
    operations = Counter(entry.operation for entry in callers.values())
    example = callers[majorities[0][0]]
    names: dict[str, list[int]] = {}
    for members in by_signature.values():
        entry = callers[members[0]]
        label = entry.operation if len(operations) > 1 else f"{entry.operation} of {_format_sizes(entry)}"
        names[label] = sorted(names.get(label, []) + members)
    return StuckGroup(
        group=name,
        description=example.description,
        ranks=list(ranks),
        operation=example.operation,
        number=number,
        verdict="mismatch",
        suspects=suspects,
        waiting=sorted(rank for rank, entry in callers.items() if not entry.is_done),
        operations=names,
        since_ns=min(entry.created_ns for entry in callers.values()),
    )


def _format_sizes(entry: Collective) -> str:
    shapes = ["×".join(map(str, size)) if isinstance(size, tuple) else str(size) for size in entry.sizes[0][:3]]
    more = " …" if len(entry.sizes[0]) > 3 else ""
    return f"{', '.join(shapes) or 'nothing'}{more} {'/'.join(sorted(set(entry.dtypes)))}".rstrip()


def _judge_point_to_point(folder: DumpFolder, groups: dict[_GroupKey, _Entries], fronts: _Fronts) -> list[StuckGroup]:
    """Return sends and receives that wait for a rank which has not called the other half, or not begun it."""
    group_ranks = {(name, rank): ranks for (name, ranks), entries in groups.items() for rank in entries}
    pending: dict[_Half, Collective] = {}
    for rank, dump in folder.dumps.items():
        for entry in dump.collectives:
            ranks = group_ranks[entry.group, rank]
            if entry.peer is not None and not entry.is_done and 0 <= entry.peer < len(ranks):
                # Ranks in the name of the operation count within the group.
                is_send = entry.operation == "send"
                sender, receiver = (rank, ranks[entry.peer]) if is_send else (ranks[entry.peer], rank)
                pending.setdefault((entry.group, is_send, sender, receiver), entry)
    stuck = []
    for (name, is_send, sender, receiver), entry in pending.items():
        rank, peer = (sender, receiver) if is_send else (receiver, sender)
        if _call_of(entry) not in fronts[rank]:
            continue
        other_half = pending.get((name, not is_send, sender, receiver))
        verdict: Verdict = "not_arrived" if peer in folder.dumps else "no_dump"
        if other_half is not None:
            verdict = "standstill" if _call_of(other_half) in fronts[peer] else "not_started"
            if verdict == "standstill" and not is_send:
                continue  # listed as a send
        stuck.append(
            StuckGroup(
                group=name,
                description=entry.description,
                ranks=sorted((rank, peer)),
                operation=f"send to rank {peer}" if is_send else f"receive from rank {peer}",
                number=entry.number,
                verdict=verdict,
                suspects=[] if verdict == "standstill" else [peer],
                waiting=sorted((rank, peer)) if verdict == "standstill" else [rank],
                since_ns=entry.created_ns,
            )
        )
    return stuck


_Half = tuple[str, bool, int, int]
"""A half of a point-to-point operation: group, whether it is the send, sender, receiver."""


def _mark_causes(stuck: list[StuckGroup], fronts: _Fronts) -> bool:
    """Mark the groups that do not follow from others. Returns whether all of them follow from each other."""
    if any(group.verdict == "mismatch" for group in stuck):
        # Ranks that disagree block all others, whatever those wait in.
        for group in stuck:
            group.is_cause = group.verdict == "mismatch"
        return False
    for group in stuck:
        idle = [rank for rank in group.suspects if not fronts.get(rank)]
        if idle:
            group.is_cause, group.suspects = True, sorted(idle)
    if any(group.is_cause for group in stuck):
        return False
    standing = [group for group in stuck if not group.suspects]
    for group in standing or stuck:
        group.is_cause = True
    return bool(stuck) and not standing
