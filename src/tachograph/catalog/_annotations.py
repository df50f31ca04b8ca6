"""What people say about a run later: names, notes, tags and marks, beside the journal and never in it.

Each person and machine (an *actor*) appends to a file of its own, ``annotations/<actor>.jsonl``. So two writers need no
lock, also on a network file system, and folders can be merged by copying. Each line is an operation:

    {"id":"…","time":1703200000.1,"actor":"3f9a1c20","by":"ana@host","op":"set","field":"note","value":"long warm-up"}

`fold` computes the result, which does not depend on the order of the lines. For each field, and for each tag, the
operation with the highest ``(time, actor, id)`` wins. Marks are added and removed by id. A line that is incomplete or
unknown is skipped, so that an older version reads the files of a newer one.

Appending to a file does not change the time of its folder, which is all that a list of many runs can afford to look at.
So a writer touches the folder afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import hashlib
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tachograph._base.files import make_folder, open_to_append, open_to_read, read_small, replace_file, write_all
from tachograph._base.paths import config_folder
from tachograph._base.typed import decode_json
from tachograph.exceptions import TachographError, did_you_mean
from tachograph.journal import RunFolder
from tachograph.records import encode

__all__ = [
    "ANNOTATION_FIELDS",
    "JUDGEMENTS",
    "Annotations",
    "AnnotationError",
    "AnnotationOp",
    "MarkedStep",
    "annotate",
    "annotations_folder",
    "author",
    "check_op",
    "fold",
    "inverse_ops",
    "read_annotations",
    "read_ops",
    "this_actor",
]

ANNOTATION_FIELDS: dict[str, str] = {
    "display_name": "a name to show instead of the folder's",
    "note": "a text in Markdown",
    "tags": "words to find the run by",
    "archived": "whether lists leave the run out",
    "group": "a word that groups runs",
    "project": "the project that the run belongs to",
    "rating": "0 to 5",
    "color": "the color of the run in charts, such as #4477aa",
    "pinned": "whether the run is shown first and kept by pruning",
}
JUDGEMENTS = ("right", "wrong")
"""What people say about an alert, in fields such as ``alert.loss_spike@120``; see `_judgements.py`."""
_MAX_CHARS = {"display_name": 200, "note": 100_000, "group": 200, "project": 200, "tags": 100, "color": 30}
_MAX_CUSTOM_CHARS = 1_000
_MAX_MARK_CHARS = 10_000
_MAX_LINE_BYTES = 1 << 20
_MAX_FILE_BYTES = 64 << 20
_MAX_FILES = 1_000
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\.jsonl")


class AnnotationError(TachographError):
    """An annotation is invalid or cannot be written; the message says what to do."""


class AnnotationOp(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """An operation on the annotations of a run: one line of an actor's file."""

    id: str
    time: float
    actor: str
    by: str = ""
    op: str
    """``set`` a field (to null: as if never set), ``add`` or ``remove`` a tag, ``mark`` a step, or ``unmark`` it."""
    field: str = ""
    value: Any = None
    global_step: int | None = None
    text: str = ""

    @property
    def order(self) -> tuple[float, str, str]:
        """Of two operations on one field, the one with the higher order wins."""
        return self.time, self.actor, self.id


class MarkedStep(msgspec.Struct, frozen=True):
    """A remark about a step."""

    id: str
    global_step: int
    text: str
    by: str
    time: float


class Annotations(msgspec.Struct, frozen=True):
    """The folded annotations of a run."""

    values: dict[str, Any] = {}
    """The value of each field that was set, except tags."""
    tags: dict[str, bool] = {}
    """The tags that were added (True) or removed (False)."""
    marks: list[MarkedStep] = []

    def merge_tags(self, base: Sequence[str]) -> list[str]:
        """Return the tags of the training code with those added, without those removed."""
        base_tags = [tag for tag in base if self.tags.get(tag, True)]
        return list(dict.fromkeys([*base_tags, *sorted(tag for tag, is_added in self.tags.items() if is_added)]))


# Folding -------------------------------------------------------------------------------------------------------------


def fold(ops: Iterable[AnnotationOp]) -> Annotations:
    """Return the result of operations, whatever their order."""
    latest: dict[tuple[str, str], AnnotationOp] = {}
    marks: dict[str, AnnotationOp] = {}
    removed_ids: set[str] = set()
    for op in ops:
        if op.op == "mark" and op.global_step is not None:
            earlier_op = marks.get(op.id)
            marks[op.id] = op if earlier_op is None else max(earlier_op, op, key=_precedence)
        elif op.op == "unmark":
            removed_ids.add(str(op.value))
        elif op.op in {"set", "add", "remove"}:
            key = (op.field, str(op.value) if op.op != "set" else "")
            earlier_op = latest.get(key)
            latest[key] = op if earlier_op is None else max(earlier_op, op, key=_precedence)
    values = {field: op.value for (field, _), op in sorted(latest.items()) if op.op == "set" and op.value is not None}
    tags = {tag: op.op == "add" for (field, tag), op in sorted(latest.items()) if field == "tags" and op.op != "set"}
    remaining_ops = [op for op_id, op in marks.items() if op_id not in removed_ids]
    marked_steps = [MarkedStep(op.id, op.global_step or 0, op.text, op.by, op.time) for op in remaining_ops]
    return Annotations(values, tags, sorted(marked_steps, key=lambda mark: (mark.global_step, mark.time, mark.id)))


def _precedence(op: AnnotationOp) -> tuple[tuple[float, str, str], bytes]:
    # Two lines with the same id should be the same; if they are not, every reader must still choose the same one.
    return op.order, msgspec.json.encode(op)


# Reading -------------------------------------------------------------------------------------------------------------


def annotations_folder(folder: RunFolder) -> Path:
    """Return the folder with the annotations of a run."""
    return folder.path / "annotations"


def read_annotations(folder: RunFolder) -> Annotations:
    """Return the folded annotations of a run; none if there are none or they cannot be read."""
    return fold(read_ops(folder))


def read_ops(folder: RunFolder) -> Iterator[AnnotationOp]:
    """Yield the valid operations on a run, file by file."""
    ops_folder = annotations_folder(folder)
    try:
        names = sorted(name for name in os.listdir(ops_folder) if _FILE_NAME.fullmatch(name))[:_MAX_FILES]
    except OSError:
        return
    for name in names:
        try:
            with open_to_read(ops_folder / name, below=folder.path) as file:
                lines = file.read(_MAX_FILE_BYTES).split(b"\n")
        except OSError:
            continue
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                if line and len(line) <= _MAX_LINE_BYTES:
                    op = decode_json(line, AnnotationOp)
                    if _is_valid(op):
                        yield op


def _is_valid(op: AnnotationOp) -> bool:
    try:
        check_op(op)
    except AnnotationError:
        return False
    return True


# Checking ------------------------------------------------------------------------------------------------------------


def check_op(op: AnnotationOp) -> None:
    """Raise `AnnotationError` if an operation is invalid."""
    if op.op in {"add", "remove"}:
        if op.field != "tags":
            raise AnnotationError(f"{op.op} works for tags only, not for {op.field!r}; use set")
        _check_tag(op.value)
    elif op.op == "mark":
        if op.global_step is None or not op.text.strip() or len(op.text) > _MAX_MARK_CHARS:
            raise AnnotationError(f"a mark needs global_step and a text of at most {_MAX_MARK_CHARS} characters")
    elif op.op == "unmark":
        if not isinstance(op.value, str):
            raise AnnotationError("unmark needs the id of the mark as its value")
    elif op.op == "set":
        _check_value(op.field, op.value)
    else:
        raise AnnotationError(f"unknown operation {op.op!r}{did_you_mean(op.op, ('set', 'add', 'remove', 'mark'))}")


def _check_tag(tag: Any) -> None:
    is_word = isinstance(tag, str) and tag == tag.strip() and tag.isprintable() and 0 < len(tag) <= _MAX_CHARS["tags"]
    if not is_word or tag[:1] in {"+", "-"}:
        raise AnnotationError(f"{tag!r} cannot be a tag: use 1 to 100 printable characters, the first not + or -")


def _check_value(field: str, value: Any) -> None:
    prefix, _, rest = field.partition(".")
    if prefix == "custom" and rest:
        is_short = not isinstance(value, str) or len(value) <= _MAX_CUSTOM_CHARS
        if not is_short or not isinstance(value, (str, int, float, type(None))):
            raise AnnotationError(f"{field}: expected a number, true, false or at most {_MAX_CUSTOM_CHARS} characters")
        return
    if prefix == "alert" and rest:
        if value is not None and value not in JUDGEMENTS:
            raise AnnotationError(f"{field}: expected right, wrong or null, got {value!r}")
        return
    if field not in ANNOTATION_FIELDS or field == "tags":
        hint = "; use add and remove" if field == "tags" else did_you_mean(field, ANNOTATION_FIELDS)
        raise AnnotationError(f"{field!r} cannot be set{hint}")
    if value is None:
        return
    if field in {"archived", "pinned"}:
        if not isinstance(value, bool):
            raise AnnotationError(f"{field}: expected true or false, got {value!r}")
    elif field == "rating":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 5:
            raise AnnotationError(f"rating: expected a number from 0 to 5, got {value!r}")
    elif not isinstance(value, str) or len(value) > _MAX_CHARS[field]:
        raise AnnotationError(f"{field}: expected a text of at most {_MAX_CHARS[field]} characters")


# Writing -------------------------------------------------------------------------------------------------------------

_last_time = [0.0]
_time_lock = threading.Lock()


def annotate(folder: RunFolder, changes: Iterable[Mapping[str, Any]], *, by: str = "") -> list[AnnotationOp]:
    """Append operations to the annotations of a run and return them.

    Args:
        folder: the run.
        changes: for each operation its ``op``, ``field``, ``value`` …, and optionally its ``id``: repeating a request
            with the same id has no further effect.
        by: who makes the changes; by default the user of this process.

    Raises:
        AnnotationError: if an operation is invalid, or the folder cannot be written. Then nothing was written.
    """
    actor = this_actor()
    ops = [_new_op(actor, by or author(), change) for change in changes]
    for op in ops:
        check_op(op)
    block = b"".join(encode(msgspec.to_builtins(op)) + b"\n" for op in ops)
    ops_folder = annotations_folder(folder)
    try:
        make_folder(ops_folder, below=folder.path)
        path = ops_folder / f"{actor}.jsonl"
        descriptor = open_to_append(path, below=folder.path, mode=0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size + len(block) > _MAX_FILE_BYTES:
                raise AnnotationError(f"{path} is full; delete it or move it away")
            # A writer that was killed may have left part of a line.
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            write_all(descriptor, b"\n" + block if is_torn else block)
        finally:
            os.close(descriptor)
        os.utime(ops_folder)
    except OSError as error:
        raise AnnotationError(
            f"cannot annotate {folder.name!r}: {error.strerror or error} ({error.filename or ops_folder}); "
            "make the run folder writable, or copy the run to a folder of your own"
        ) from error
    return ops


def _new_op(actor: str, by: str, change: Mapping[str, Any]) -> AnnotationOp:
    unknown = [name for name in change if name not in {"op", "field", "value", "global_step", "text", "id"}]
    if unknown:
        raise AnnotationError(f"unknown field {unknown[0]!r} of an operation")
    step = change.get("global_step")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int)):
        raise AnnotationError(f"global_step: expected an integer, got {step!r}")
    op_id = change.get("id")
    if op_id is not None and not (isinstance(op_id, str) and 0 < len(op_id) <= 64):
        raise AnnotationError("id: expected 1 to 64 characters")
    now = _next_time()
    return AnnotationOp(
        id=op_id or f"{round(now * 1e6):014x}{secrets.token_hex(5)}",
        time=now,
        actor=actor,
        by=by,
        op=str(change.get("op", "set")),
        field=str(change.get("field", "")),
        value=change.get("value"),
        global_step=step,
        text=str(change.get("text", "")),
    )


def _next_time() -> float:
    """Return the time; later than any returned before, so that the last operation of this process wins."""
    with _time_lock:
        _last_time[0] = max(round(time.time(), 6), _last_time[0] + 1e-6)
        return _last_time[0]


def inverse_ops(before: Annotations, base_tags: Sequence[str], ops: Iterable[AnnotationOp]) -> list[dict[str, Any]]:
    """Return operations that undo others, given the annotations before them."""
    tags = before.merge_tags(base_tags)
    undone: list[dict[str, Any]] = []
    for op in ops:
        if op.op == "set":
            undone.append({"op": "set", "field": op.field, "value": before.values.get(op.field)})
        elif op.op in {"add", "remove"}:
            undone.append({"op": "add" if op.value in tags else "remove", "field": "tags", "value": op.value})
        elif op.op == "mark":
            undone.append({"op": "unmark", "value": op.id})
    return undone


def author() -> str:
    """Return the name of this user and machine: shown, never trusted."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def this_actor() -> str:
    """Return the id of this user on this machine: random, and kept in the user's configuration folder."""
    return _actor_in(config_folder(), socket.gethostname())


@functools.lru_cache(maxsize=8)
def _actor_in(folder: Path, host: str) -> str:
    # One home folder may be shared by many machines, and each needs a file of its own.
    path = folder / "actors" / hashlib.blake2b(host.encode(), digest_size=6).hexdigest()
    for _ in range(2):
        try:
            actor = read_small(path, 100).decode("ascii", "replace").strip()
        except OSError:
            actor = ""
        if re.fullmatch(r"[0-9a-f]{8}", actor):
            return actor
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, secrets.token_hex(4).encode() + b"\n", below=path.parent)
    # The folder cannot be written: derive an id that is the same the next time.
    return hashlib.blake2b(author().encode(), digest_size=4).hexdigest()
