"""Read the dumps of PyTorch's flight recorder.

A dump is a dictionary, as JSON or as a pickle, with the last collectives that a rank has called. The files come from
other machines, so they are read without executing anything: the unpickler knows only the instructions that plain values
need, and every value is checked before it is used.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from tachograph._base.typed import decode_json
from tachograph.exceptions import ConfigError

__all__ = ["Collective", "FlightDump", "DumpFolder", "UnreadableDump", "read_dumps"]

NO_PEER = -1
_MAX_FILE_BYTES = 256 << 20
_MAX_ENTRIES = 1_000_000
_RANK_IN_NAME = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w{0,9})?$|(?i:rank)[_-]?(\d{1,7})(?!\d)")
_PLAIN_INSTRUCTIONS = (
    {pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK}
    | {pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.FLOAT, pickle.BINFLOAT}
    | {pickle.INT, pickle.LONG, pickle.LONG1, pickle.BININT, pickle.BININT1, pickle.BININT2}
    | {pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8}
    | {pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS}
    | {pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3}
    | {pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET}
)
_PEERS = re.compile(r"^(?P<op>send|recv)\s+(?P<rank>\d+)\s*(?:->|<-)\s*(?P<peer>\d+)")


class Collective(msgspec.Struct, frozen=True):
    """One call of a collective, or of a point-to-point operation, on one rank."""

    group: str
    description: str
    number: int
    """The number of the collective within its group, the same on all ranks."""
    operation: str
    """Such as ``all_reduce``, without the backend."""
    sizes: tuple[Any, ...]
    dtypes: tuple[str, ...]
    is_done: bool
    is_started: bool
    """Whether the device has begun it. Backends without a device do not know."""
    created_ns: int
    backend: str = ""
    peer: int | None = None
    """The other side of a point-to-point operation, as its rank within the group; `NO_PEER` for a batch of several."""


class FlightDump(msgspec.Struct):
    """The dump of one rank."""

    rank: int
    path: str
    group_ranks: dict[str, tuple[int, ...]]
    """The ranks of each group, as far as the dump contains them."""
    collectives: list[Collective]


class UnreadableDump(msgspec.Struct):
    """A file that could not be used, and why."""

    path: str
    reason: str


class DumpFolder(msgspec.Struct):
    """The dumps of a folder."""

    dumps: dict[int, FlightDump]
    unreadable: list[UnreadableDump]


class _PlainUnpickler(pickle._Unpickler):
    """Unpickles dictionaries, lists, tuples, texts and numbers; refuses every other instruction.

    The unpickler in Python keeps its memo in a dictionary; the one in C allocates an array as large as a file demands.
    """

    dispatch: ClassVar[dict[int, Callable[..., Any]]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) in _PLAIN_INSTRUCTIONS
    }

    def _load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self._set(self.stack[-1], key, value)  # type: ignore[attr-defined]

    def _load_setitems(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        for index in range(0, len(items) - 1, 2):
            self._set(self.stack[-1], items[index], items[index + 1])  # type: ignore[attr-defined]

    @staticmethod
    def _set(target: object, key: object, value: object) -> None:
        # The hash of a deeply nested tuple would overflow the stack of the interpreter.
        if not isinstance(target, dict) or not isinstance(key, (str, int)):
            raise pickle.UnpicklingError("a key is neither a text nor a number")
        target[key] = value

    dispatch[pickle.SETITEM[0]] = _load_setitem
    dispatch[pickle.SETITEMS[0]] = _load_setitems


def read_dumps(folder: str | Path) -> DumpFolder:
    """Read all dumps of a folder; the name of each file ends in its rank, as PyTorch writes it.

    Raises:
        ConfigError: There is no such folder, or it contains no dump.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder; give the folder that has one flight recorder dump per rank")
    dumps: dict[int, FlightDump] = {}
    unreadable: list[UnreadableDump] = []
    for file in sorted(path.iterdir(), key=lambda file: file.name):
        match = _RANK_IN_NAME.search(file.name)
        if match is None or not file.is_file():
            continue
        rank = int(match.group(1) or match.group(2))
        if rank in dumps:
            unreadable.append(UnreadableDump(file.name, f"rank {rank} has another dump: {Path(dumps[rank].path).name}"))
            continue
        try:
            dumps[rank] = _parse_dump(rank, file)
        except (ValueError, OSError) as error:
            unreadable.append(UnreadableDump(file.name, str(error)))
    if not dumps:
        reasons = "; ".join(f"{file.path}: {file.reason}" for file in unreadable[:3])
        hint = reasons or "the name of a dump ends in the rank, such as trace_0"
        raise ConfigError(f"{path}: no flight recorder dump could be read ({hint})")
    return DumpFolder(dumps, unreadable)


def _parse_dump(rank: int, path: Path) -> FlightDump:
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        raise ValueError("the file is empty")
    if size_bytes > _MAX_FILE_BYTES:
        raise ValueError(f"the file is larger than {_MAX_FILE_BYTES >> 20} MiB")
    content = _decode(path.read_bytes())
    if not isinstance(content, dict) or not content.keys() & {"entries", "version"}:
        raise ValueError("not a flight recorder dump: it has neither entries nor a version")
    entries = content.get("entries", [])  # there is none before the first collective
    if not isinstance(entries, (list, tuple)):
        raise ValueError("not a flight recorder dump: its entries are not a list")
    if len(entries) > _MAX_ENTRIES:
        raise ValueError(f"more than {_MAX_ENTRIES:,} entries")
    return FlightDump(
        rank=rank,
        path=str(path),
        group_ranks=dict(_parse_groups(content.get("pg_config"))),
        collectives=_parse_entries([entry for entry in entries if isinstance(entry, dict)]),
    )


def _decode(data: bytes) -> object:
    if data.lstrip()[:1] == b"{":
        try:
            return decode_json(data, dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"incomplete or invalid JSON: {error}") from None
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except KeyError as error:
        code = error.args[0]
        shown_code = (
            f"instruction {bytes([code])!r}" if isinstance(code, int) and 0 <= code < 256 else "an unknown value"
        )
        raise ValueError(f"refused to unpickle: {shown_code} is not needed for a dump") from None
    except Exception as error:  # noqa: BLE001 - a pickle from elsewhere may fail in any way
        raise ValueError(f"incomplete or invalid pickle: {type(error).__name__}: {error}") from None


def _parse_groups(config: object) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yield the name and the ranks of each group; the ranks are a text such as ``[0, 1]``."""
    if not isinstance(config, dict):
        return
    for name, group in config.items():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, (list, tuple)):
            yield str(name), tuple(rank for rank in ranks if isinstance(rank, int))
        elif isinstance(ranks, str):
            yield str(name), tuple(int(number) for number in re.findall(r"\d{1,9}", ranks))


def _parse_entries(entries: list[dict[Any, Any]]) -> list[Collective]:
    """Return the calls of a rank.

    NCCL updates the states of its calls; what it retired without completing was aborted. Other backends only ever say
    "scheduled", but retire finished ones.
    """
    with_states = {_backend(entry) for entry in entries if entry.get("state") in {"started", "completed"}}
    collectives = [_parse_entry(entry, has_states=_backend(entry) in with_states) for entry in entries]
    return _with_states_of_batches(collectives)


def _backend(entry: dict[Any, Any]) -> str:
    return str(entry.get("profiling_name") or "").partition(":")[0]


def _with_states_of_batches(collectives: list[Collective]) -> list[Collective]:
    """Give the sends and receives of a batch the state of the batch: an entry with the same number that follows them.

    Without that entry, those before a later one of the group that is done are done, too.
    """
    resolved: list[Collective] = []
    batches: dict[tuple[str, int], Collective] = {}
    groups_with_done: set[str] = set()
    for stated_entry in reversed(collectives):
        entry = stated_entry
        if entry.peer == NO_PEER:
            batches[entry.group, entry.number] = entry
        elif entry.peer is not None and not entry.is_done:
            batch = batches.get((entry.group, entry.number))
            if batch is not None:
                entry = msgspec.structs.replace(entry, is_done=batch.is_done, is_started=batch.is_started)
            elif not entry.is_started and entry.group in groups_with_done:
                entry = msgspec.structs.replace(entry, is_done=True)
        if entry.peer is not None and entry.is_done:
            groups_with_done.add(entry.group)
        resolved.append(entry)
    return resolved[::-1]


def _parse_entry(entry: dict[Any, Any], *, has_states: bool) -> Collective:
    group = entry.get("process_group", entry.get("pg_id"))
    name, description = (group if isinstance(group, (list, tuple)) and len(group) == 2 else (group, ""))  # fmt: skip
    profiling_name = str(entry.get("profiling_name") or "")
    operation = profiling_name.partition(":")[2] or profiling_name
    peers = _PEERS.match(operation)
    is_p2p = bool(entry.get("is_p2p")) or peers is not None
    state = str(entry.get("state") or "")
    return Collective(
        group=str(name),
        description="" if description == "undefined" else str(description),
        number=_integer(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))),
        operation=peers.group("op") if peers else operation,
        sizes=(_frozen(entry.get("input_sizes")), _frozen(entry.get("output_sizes"))),
        dtypes=tuple(str(dtype) for dtype in _sequence(entry.get("input_dtypes"))),
        is_done=state == "completed" or (entry.get("retired") is True and not has_states),
        is_started=state == "started" or bool(entry.get("time_discovered_started_ns")),
        created_ns=_integer(entry.get("time_created_ns")),
        backend=_backend(entry),
        peer=int(peers.group("peer")) if peers else (NO_PEER if is_p2p else None),
    )


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _sequence(value: object) -> list[Any]:
    return list(value[:1000]) if isinstance(value, (list, tuple)) else []


def _frozen(sizes: object) -> tuple[Any, ...]:
    """Return sizes such as ``[[3, 4]]`` as tuples, two levels deep."""
    return tuple(
        tuple(_integer(number) for number in _sequence(size)) if isinstance(size, (list, tuple)) else _integer(size)
        for size in _sequence(sizes)
    )
