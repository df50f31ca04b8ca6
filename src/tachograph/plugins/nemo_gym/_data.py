"""Rows of NeMo Gym's datasets, as prompts.

A row has `responses_create_params`, the parameters of a request in the format of OpenAI's Responses API, and fields
that its server needs. The whole row is sent to the server. The trainer needs its messages only.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.plugins.nemo_gym._options import GymDataset

__all__ = [
    "ROW_COLUMN",
    "SERVER_COLUMN",
    "GymRow",
    "Prompt",
    "GymDataError",
    "needs_rendering",
    "prompt_ids",
    "prompt_of",
    "read_rows",
]

ROW_COLUMN = "nemo_gym_row"
"""The column with the row as JSON. Its fields differ between rows, which a table of `datasets` cannot represent."""
SERVER_COLUMN = "nemo_gym_server_name"
_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_PROBLEMS = 10
_PROBE = "message of the developer"


class GymDataError(Exception):
    """A row, or a dataset, cannot be used; the text names the file and line."""


class GymRow(NamedTuple):
    """A row, with its location for messages."""

    location: str
    values: dict[str, Any]
    server_name: str | None


class Prompt(NamedTuple):
    """The messages and tools of a row, in the format of chat templates.

    Attributes:
        messages: the messages.
        tools: the functions that the model may call.
        is_plain: whether it consists of texts only, which every trainer can render.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    is_plain: bool


def read_rows(datasets: Sequence[GymDataset], gym_dir: str, *, seed: int, is_shuffled: bool) -> list[GymRow]:
    """Return the rows of all datasets, in an order that depends on the seed only.

    Args:
        datasets: the datasets.
        gym_dir: where relative paths may start.
        seed: decides on the order, and on the rows that `max_samples` selects.
        is_shuffled: whether to change the order; else `max_samples` selects the first rows.

    Raises:
        GymDataError: naming up to ten rows.
    """
    order = random.Random(seed)  # noqa: S311 - not a secret
    rows: list[GymRow] = []
    problems: list[str] = []
    for number, dataset in enumerate(datasets):
        key = f"nemo_gym_datasets[{number}]"
        own_rows: list[GymRow] = []
        for line_number, line in _lines_of(key, dataset, gym_dir):
            location = f"{dataset.path}, line {line_number}"
            try:
                values = _parse_line(line)
                prompt_of(values, is_multi_turn=True)
            except ValueError as error:
                problems.append(f"{location}: {error}")
                if len(problems) == _MAX_PROBLEMS:
                    raise GymDataError("; ".join(problems)) from None
                continue
            own_rows.append(GymRow(location, values, dataset.server_name))
        if not own_rows and not problems:
            raise GymDataError(f"{key}.path={dataset.path!r}: the file has no rows")
        if is_shuffled:
            order.shuffle(own_rows)
        rows += own_rows[: dataset.max_samples]
    if problems:
        raise GymDataError("; ".join(problems))
    if is_shuffled:
        order.shuffle(rows)
    return rows


def _lines_of(key: str, dataset: GymDataset, gym_dir: str) -> Iterator[tuple[int, bytes]]:
    path = Path(dataset.path).expanduser()
    candidates = [path, Path(gym_dir).expanduser() / path]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        places = " and ".join(repr(str(candidate.absolute())) for candidate in dict.fromkeys(candidates))
        raise GymDataError(f"{key}.path={dataset.path!r}: no such file; looked for {places}")
    try:
        with file.open("rb") as stream:
            yield from ((number, line) for number, line in enumerate(stream, 1) if line.strip())
    except OSError as error:
        raise GymDataError(f"{key}.path={dataset.path!r} cannot be read: {error.strerror}") from error


def _parse_line(line: bytes) -> dict[str, Any]:
    def reject(name: str) -> None:
        raise ValueError(f"{name} is not valid JSON")

    try:
        values = json.loads(line, parse_constant=reject)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object, got a {type(values).__name__}")
    return values


def prompt_of(values: Mapping[str, Any], *, is_multi_turn: bool) -> Prompt:
    """Return the messages of a row, all of them, and its tools.

    Args:
        values: the row.
        is_multi_turn: whether an agent renders the prompt, which also knows items that are neither messages nor calls.

    Raises:
        ValueError: if it has none.
    """
    parameters = values.get("responses_create_params")
    if not isinstance(parameters, dict):
        has = f" (it has {', '.join(map(repr, values))})" if values else ""
        raise ValueError(f"'responses_create_params' is missing{has}: expected {{'input': [messages]}}")
    items = parameters.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise ValueError(f"'responses_create_params.input': expected a list of messages, got {items!r:.40}")
    messages: list[dict[str, Any]] = []
    instructions = parameters.get("instructions")
    if isinstance(instructions, str) and instructions.strip():
        messages.append({"role": "system", "content": instructions})
    is_plain = True
    for number, item in enumerate(items, 1):
        message = _message_of(item, number, is_multi_turn)
        is_plain &= message is not None and set(message) == {"role", "content"}
        messages += [message] if message is not None else []
    if not messages:
        raise ValueError("'responses_create_params.input' has no message")
    tools = [_tool_of(tool) for tool in parameters.get("tools") or [] if isinstance(tool, dict)]
    return Prompt(messages, tools, is_plain and not tools)


def _message_of(item: Any, number: int, is_multi_turn: bool) -> dict[str, Any] | None:
    location = f"'responses_create_params.input', item {number}"
    if not isinstance(item, dict):
        raise ValueError(f"{location}: expected an object, got {item!r:.40}")
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise ValueError(f"{location}: unknown role {role!r:.40}; expected {', '.join(_ROLES)}")
        return {"role": role, "content": _text_of(item.get("content"), location)}
    if kind == "function_call":
        arguments = item.get("arguments")
        with contextlib.suppress(ValueError):  # templates also print texts
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        call = {"name": str(item.get("name")), "arguments": arguments}
        call_id = str(item.get("call_id") or "")
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": call_id, "function": call}],
        }
    if kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, str) else json.dumps(output)
        return {"role": "tool", "content": content, "tool_call_id": str(item.get("call_id") or "")}
    if kind == "reasoning" or is_multi_turn:
        return None
    raise ValueError(f"{location}: items of type {kind!r:.40} need `nemo_gym_multi_turn: true`")


def _text_of(content: Any, location: str) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{location}: 'content' must be a text, or a list of parts with 'text', got {content!r:.60}")
    return "".join(str(text) for text in texts)


def _tool_of(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool of the Responses API in the format of chat templates."""
    if isinstance(tool.get("function"), dict):
        return tool
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}


def needs_rendering(tokenizer: Any, prompt: Prompt, template: str | None) -> bool:
    """Return whether the trainer would render a prompt incompletely: without tools or messages of a developer."""
    has_developer = any(message["role"] == "developer" for message in prompt.messages)
    return not prompt.is_plain or (has_developer and not _renders_developer(tokenizer, template))


def prompt_ids(
    tokenizer: Any, prompt: Prompt, *, template: str | None = None, options: Mapping[str, Any] | None = None
) -> list[int]:
    """Return the tokens of a prompt, with its tools and all its messages.

    A message of the role `developer` is rendered as `system`, if the template does not know the role.

    Args:
        tokenizer: the tokenizer.
        prompt: the prompt.
        template: the chat template, if it is not the tokenizer's.
        options: further variables of the template.

    Raises:
        ValueError: if the template fails, or leaves out a message.
    """
    messages = prompt.messages
    if any(message["role"] == "developer" for message in messages) and not _renders_developer(tokenizer, template):
        messages = [
            {**message, "role": "system"} if message["role"] == "developer" else message for message in messages
        ]
    arguments = {
        "tools": prompt.tools or None,
        "chat_template": template,
        "add_generation_prompt": True,
        **(options or {}),
    }
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    except Exception as error:  # noqa: BLE001 - templates raise anything
        raise ValueError(f"the chat template fails: {type(error).__name__}: {error}") from None
    for message in messages:
        content = message["content"].strip()
        if message["role"] != "assistant" and content not in text:
            raise ValueError(
                f"the chat template leaves out the message of the role {message['role']!r}: set chat_template or "
                "chat_template_jinja to a template that knows it"
            )
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _renders_developer(tokenizer: Any, template: str | None) -> bool:
    text = template if template is not None else tokenizer.chat_template
    return _template_knows_developer(tokenizer, text if isinstance(text, str) else None)


@functools.lru_cache(maxsize=8)
def _template_knows_developer(tokenizer: Any, template: str | None) -> bool:
    probe = [{"role": "developer", "content": _PROBE}, {"role": "user", "content": "x"}]
    try:
        text = tokenizer.apply_chat_template(probe, tokenize=False, chat_template=template, add_generation_prompt=True)
    except Exception:  # noqa: BLE001 - templates raise anything
        return False
    return _PROBE in text
