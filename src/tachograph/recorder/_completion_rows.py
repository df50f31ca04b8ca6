"""Convert completion samples into the fields of one bounded `completions` record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tachograph.records import ValueProblem, freeze, to_json

__all__ = ["completion_fields", "completion_row", "text_of"]

_MAX_CELL_CHARS = 8_000
_MAX_ROW_CHARS = 200_000
_MAX_CELLS = 200
_MAX_ROWS = 1_000
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
            value = _cut(value, min(_MAX_CELL_CHARS, _MAX_ROW_CHARS - num_chars))  # noqa: PLW2901
            num_chars += len(value)
        row[name] = value
    return row


def _conversations_to_text(cells: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: text_of(value) if _is_conversation(value) else value for name, value in cells.items() if value is not None
    }


def _cut(text: str, max_chars: int) -> str:
    num_chars = getattr(text, "num_chars", len(text))  # `freeze` may have truncated it already and kept the full length
    if num_chars <= max_chars:
        return text
    return f"{text[: max(max_chars, 0)]}… [cut, {num_chars} characters]"


def completion_fields(
    rows: Iterable[Mapping[str, Any]], step: int | None, table: str, num_dropped: int = 0
) -> dict[str, Any]:
    """Return the fields of a `completions` record. Drop and count the oldest rows if they exceed its limits.

    Args:
        rows: rows returned by `completion_row`, oldest first.
        step: the step of the record, and of rows without a step of their own.
        table: the table that the rows belong to.
        num_dropped: rows that were dropped earlier.
    """
    given = [row if step is None or "step" in row else {"step": step, **row} for row in rows]
    kept: list[Mapping[str, Any]] = []
    num_bytes = 0
    for row in reversed(given[-_MAX_ROWS:]):
        num_bytes += _size_bytes(row)
        if kept and num_bytes > _MAX_RECORD_BYTES:
            break
        kept.append(row)
    kept.reverse()
    columns = dict.fromkeys(name for row in kept for name, value in row.items() if not isinstance(value, ValueProblem))
    num_dropped += len(given) - len(kept)
    return {
        **({} if step is None else {"global_step": step}),
        "table": table,
        "columns": sorted(columns, key=lambda name: name != "step"),  # stable: the others keep their order
        "rows": kept,
        **({"num_dropped": num_dropped} if num_dropped else {}),
    }


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
        and all(isinstance(message, Mapping) and ("role" in message or "content" in message) for message in value)
    )


def text_of(messages: Any) -> str:
    """Return a conversation as one string. A single assistant message becomes its content; a string stays as it is."""
    if isinstance(messages, str):
        return messages
    if not _is_conversation(messages):
        return str(messages)
    if len(messages) == 1 and messages[0].get("role") == "assistant" and not messages[0].get("tool_calls"):
        return _content_text(messages[0].get("content"))
    return "\n".join(f"{message.get('role', '?')}: {_message_text(message)}" for message in messages)


def _message_text(message: Mapping[str, Any]) -> str:
    parts = [_content_text(message.get("content"))]
    if message.get("tool_calls"):
        parts.append(f"[calls {message['tool_calls']}]")
    return " ".join(filter(None, parts))


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):  # multimodal content: a list of text, image, … parts
        return "".join(
            str(part.get("text", f"[{part.get('type', 'part')}]")) if isinstance(part, Mapping) else str(part)
            for part in content
        )
    return str(content)
