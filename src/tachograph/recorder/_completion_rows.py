"""Samples of what a model was given and what came of it, made ready for one record that is never too large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tachograph.records import ValueProblem, freeze, to_json

__all__ = ["completion_fields", "completion_row", "text_of"]

_MOST_CELL_CHARS = 8_000
_MOST_ROW_CHARS = 200_000
_MOST_CELLS = 200
_MOST_ROWS = 1_000
_MOST_RECORD_BYTES = 1_000_000


class _Row(dict[str, Any]):
    """A row that was made ready, and need not be again."""


def completion_row(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row that nobody can change any more: without what is None, conversations as texts, long texts cut."""
    if type(cells) is _Row:
        return cells
    row = _Row()
    num_chars = 0
    for name, value in freeze(_as_texts(cells)).items():
        if len(row) >= _MOST_CELLS:
            row["cells"] = ValueProblem("cells", f"a row of completions has more than {_MOST_CELLS} cells")
            break
        if isinstance(value, list):
            value = to_json(value)  # noqa: PLW2901 - a cell is one value
        if isinstance(value, str):
            value = _cut(value, min(_MOST_CELL_CHARS, _MOST_ROW_CHARS - num_chars))  # noqa: PLW2901
            num_chars += len(value)
        row[name] = value
    return row


def _as_texts(cells: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: text_of(value) if _is_conversation(value) else value for name, value in cells.items() if value is not None
    }


def _cut(text: str, most_chars: int) -> str:
    num_chars = getattr(text, "num_chars", len(text))  # what `freeze` has cut already knows how long it was
    if num_chars <= most_chars:
        return text
    return f"{text[: max(most_chars, 0)]}… [cut, {num_chars} characters]"


def completion_fields(
    rows: Iterable[Mapping[str, Any]], step: int | None, table: str, num_dropped: int = 0
) -> dict[str, Any]:
    """Return the fields of a `completions` record; of what is too much for one, the oldest rows go and are counted.

    Args:
        rows: as `completion_row` returns them, oldest first.
        step: the step of the record, and of rows that do not say theirs.
        table: which table the rows belong to.
        num_dropped: rows that were dropped before.
    """
    given = [row if step is None or "step" in row else {"step": step, **row} for row in rows]
    kept: list[Mapping[str, Any]] = []
    num_bytes = 0
    for row in reversed(given[-_MOST_ROWS:]):
        num_bytes += _size_bytes(row)
        if kept and num_bytes > _MOST_RECORD_BYTES:
            break
        kept.append(row)
    kept.reverse()
    columns = dict.fromkeys(name for row in kept for name, value in row.items() if not isinstance(value, ValueProblem))
    num_dropped += len(given) - len(kept)
    return {
        **({} if step is None else {"global_step": step}),
        "table": table,
        "columns": sorted(columns, key=lambda name: name != "step"),  # stable: the others as they first appeared
        "rows": kept,
        **({"num_dropped": num_dropped} if num_dropped else {}),
    }


def _size_bytes(row: Mapping[str, Any]) -> int:
    texts = [text for item in row.items() for text in item if isinstance(text, str)]
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts) + 24 * len(row)


def _is_conversation(value: Any) -> bool:
    """Tell whether a value is a list of messages as chat templates take them."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and len(value) > 0
        and all(isinstance(message, Mapping) and ("role" in message or "content" in message) for message in value)
    )


def text_of(messages: Any) -> str:
    """Return a conversation as one text; a single answer is its content alone, and a text is itself."""
    if isinstance(messages, str):
        return messages
    if not _is_conversation(messages):
        return str(messages)
    if len(messages) == 1 and messages[0].get("role") == "assistant" and not messages[0].get("tool_calls"):
        return _content(messages[0].get("content"))
    return "\n".join(f"{message.get('role', '?')}: {_said(message)}" for message in messages)


def _said(message: Mapping[str, Any]) -> str:
    said = [_content(message.get("content"))]
    if message.get("tool_calls"):
        said.append(f"[calls {message['tool_calls']}]")
    return " ".join(filter(None, said))


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):  # parts: texts, pictures and so on
        return "".join(
            str(part.get("text", f"[{part.get('type', 'part')}]")) if isinstance(part, Mapping) else str(part)
            for part in content
        )
    return str(content)
