"""Convert completion samples into the fields of one bounded `completions` record."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tachograph.records import OMIT, RecordCut, ValueProblem, bounded_items, freeze, to_json, to_plain

__all__ = ["completion_fields", "completion_row", "text_of"]

_MAX_CELL_CHARS = 8_000
_MAX_ROW_CHARS = 200_000
_MAX_CELLS = 200
_MAX_ROWS = 1_000
_MAX_ROWS_READ = 10_000
_MAX_MESSAGES = 1_000
_MAX_RECORD_BYTES = 1_000_000


class _Row(dict[str, Any]):
    """A row that `completion_row` has built already, so that it is not converted twice."""


def completion_row(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return an immutable copy of a sample: None values dropped, conversations as text, long strings truncated."""
    if type(cells) is _Row:
        return cells
    row = _Row()
    num_chars = 0
    for name, value in freeze(_conversations_to_text(cells)).items():
        if len(row) >= _MAX_CELLS:
            row["cells"] = ValueProblem("cells", f"a completion row has more than {_MAX_CELLS} cells")
            break
        if isinstance(value, list):
            value = to_json(value)  # noqa: PLW2901 - a cell holds one value
        if isinstance(value, str):
            value = _truncate(value, min(_MAX_CELL_CHARS, _MAX_ROW_CHARS - num_chars))  # noqa: PLW2901
            num_chars += len(value)
        row[name] = value
    return row


def _conversations_to_text(cells: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: text_of(value) if _is_conversation(value) else value
        for name, value in bounded_items(cells, 2 * _MAX_CELLS)
        if value is not None
    }


def _truncate(text: str, max_chars: int) -> str:
    num_chars = getattr(text, "num_chars", len(text))  # `freeze` may have truncated it already and kept the full length
    if num_chars <= max_chars:
        return text
    return f"{text[: max(max_chars, 0)]}… [cut, {num_chars} characters]"


def completion_fields(
    rows: Iterable[Mapping[str, Any]], step: int | None, table: str, num_dropped: int = 0
) -> dict[str, Any]:
    """Return the fields of a `completions` record. Drop and count the oldest rows if they exceed its limits.

    Args:
        rows: samples, oldest first. The newest are converted first, and conversion stops when the record is full.
        step: the step of the record, and of rows without a step of their own.
        table: the table that the rows belong to.
        num_dropped: rows that were dropped earlier.
    """
    newest, num_rows, is_complete = _newest(rows)
    newest_rows: list[Mapping[str, Any]] = []
    num_bytes = 0
    for cells in reversed(newest):
        row = completion_row(cells)
        row = row if step is None or "step" in row else {"step": step, **row}
        num_bytes += _size_bytes(row)
        if newest_rows and num_bytes > _MAX_RECORD_BYTES:
            break
        newest_rows.append(row)
    newest_rows.reverse()
    columns = dict.fromkeys(
        name for row in newest_rows for name, value in row.items() if not isinstance(value, ValueProblem)
    )
    num_dropped += num_rows - len(newest_rows)
    fields = {
        **({} if step is None else {"global_step": step}),
        "table": table,
        "columns": sorted(columns, key=lambda name: name != "step"),  # stable: the others keep their order
        "rows": newest_rows,
        **({"num_dropped": num_dropped} if num_dropped else {}),
    }
    if not is_complete:
        fields["\0"] = RecordCut(table, f"rows after the first {_MAX_ROWS_READ} of one call were not read")
    return fields


def _newest(rows: Iterable[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], int, bool]:
    """Return the newest rows, how many there are in all, and whether all were read: a generator may never end."""
    if type(rows) in (list, tuple):
        return rows[-_MAX_ROWS:], len(rows), True  # type: ignore[arg-type, index]
    iterator = iter(rows)
    newest: deque[Mapping[str, Any]] = deque(maxlen=_MAX_ROWS)
    num_rows = 0
    for row in itertools.islice(iterator, _MAX_ROWS_READ):
        newest.append(row)
        num_rows += 1
    return newest, num_rows, num_rows < _MAX_ROWS_READ or next(iterator, None) is None


def _size_bytes(row: Mapping[str, Any]) -> int:
    """Estimate the size of an encoded row; encoding it here would double the work of the writer."""
    texts = [text for item in row.items() for text in item if isinstance(text, str)]
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts) + 24 * len(row)


def _is_conversation(value: Any) -> bool:
    """Return whether a value is a list of messages in the format of chat templates."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(value) > 0
        and all(
            isinstance(message, Mapping) and ("role" in message or "content" in message)
            for message in itertools.islice(value, _MAX_MESSAGES)
        )
    )


def text_of(messages: Any) -> str:
    """Return a conversation as one string. A single assistant message becomes its content; a string stays as it is."""
    if isinstance(messages, str):
        return messages
    if not _is_conversation(messages):
        return _plain_text(messages)
    if len(messages) == 1 and messages[0].get("role") == "assistant" and not messages[0].get("tool_calls"):
        return _content_text(messages[0].get("content"))
    lines = [
        f"{_plain_text(message.get('role', '?'))}: {_message_text(message)}"
        for message in itertools.islice(messages, _MAX_MESSAGES)
    ]
    if len(messages) > _MAX_MESSAGES:
        lines.append(f"… [cut, {len(messages)} messages]")
    return "\n".join(lines)


def _message_text(message: Mapping[str, Any]) -> str:
    parts = [_content_text(message.get("content"))]
    if message.get("tool_calls"):
        parts.append(f"[calls {_plain_text(message['tool_calls'])}]")
    return " ".join(filter(None, parts))


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):  # multimodal content: a list of text, image, … parts
        return "".join(
            _plain_text(part.get("text", f"[{part.get('type', 'part')}]") if isinstance(part, Mapping) else part)
            for part in itertools.islice(content, _MAX_MESSAGES)
        )
    return _plain_text(content)


def _plain_text(value: Any) -> str:
    """Return a value as a string, within the limits of a record: `str` of a nested value may never return."""
    if type(value) is str:
        return value
    problems: list[ValueProblem] = []
    plain = to_plain(value, "text", problems)
    if plain is OMIT:
        return f"[{type(value).__name__}]"
    return f"{plain}… [cut]" if problems else str(plain)
