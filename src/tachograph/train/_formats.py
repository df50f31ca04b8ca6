"""The formats of rows for pre-training and SFT: which columns they have, and how they become a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tachograph.exceptions import did_you_mean
from tachograph.train._chat import ChatFormat, Rendered, parse_messages, resolve_template
from tachograph.train._config import TrainConfig
from tachograph.train._dataset_config import CustomFormat, DatasetConfig
from tachograph.train._problems import Problems, RowError

__all__ = ["column_of", "format_of", "text_of"]

Format = Callable[[Mapping[str, Any]], Rendered]

_NAMES = {
    "chat_template": "chat_template",
    "axolotl.integrations.kd.chat_template": "chat_template",
    "alpaca": "alpaca",
    "completion": "completion",
    "pretrain": "completion",
    "input_output": "input_output",
}
_TASK = "Below is an instruction that describes a task"
_RESPONSE = "Write a response that appropriately completes the request."
_ALPACA = {
    "system_prompt": f"{_TASK}. {_RESPONSE}",
    "format": "### Instruction:\n{instruction}\n\n### Response:\n",
    "system_format": "{system}\n\n",
}
_ALPACA_WITH_INPUT = {
    "system_prompt": f"{_TASK}, paired with an input that provides further context. {_RESPONSE}",
    "format": "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
    "system_format": "{system}\n\n",
}
"""The prompts of the Alpaca dataset; a system prompt of the row takes the place of the sentence."""
_PREFERENCE_PREFIXES = ("chatml.", "chat_template.", "llama3.", "zephyr.", "user_defined.")


def format_of(
    key: str, dataset: DatasetConfig, config: TrainConfig, tokenizer: Any, problems: Problems
) -> Format | None:
    """Return the function that renders a row; None if the type is wrong, which is added to the problems."""
    kind = dataset.type
    trains_on_inputs = config.train_on_inputs if dataset.train_on_inputs is None else dataset.train_on_inputs
    if isinstance(kind, CustomFormat):
        return _custom(kind, trains_on_inputs)
    if kind is None:
        problems.add(f"{key}.type is missing: expected one of {', '.join(sorted(set(_NAMES.values())))}, or a mapping")
        return None
    name = _NAMES.get(kind)
    if name is None:
        if kind.startswith(_PREFERENCE_PREFIXES):
            hint = ": it is a format of preference data; set `rl: dpo`, kto, orpo or grpo"
        elif kind.startswith("sharegpt"):
            hint = (
                "; use `chat_template` with `field_messages: conversations` and "
                "`message_property_mappings: {role: from, content: value}`"
            )
        else:
            hint = (
                did_you_mean(kind, _NAMES) or "."
            ) + f" Available: {', '.join(sorted(set(_NAMES.values())))}, or a mapping"
        problems.add(f"{key}.type={kind!r}: unknown format{hint}")
        return None
    if name == "completion":
        return lambda row: _completion(row, dataset.field)
    if name == "input_output":
        return _segments
    if name == "alpaca":
        plain, with_input = (
            _custom(CustomFormat.model_validate({**prompts, "field_system": dataset.field_system}), trains_on_inputs)
            for prompts in (_ALPACA, _ALPACA_WITH_INPUT)
        )
        return lambda row: with_input(row) if row.get("input") else plain(row)
    template = resolve_template(
        dataset.chat_template or config.chat_template,
        dataset.chat_template_jinja or config.chat_template_jinja,
        tokenizer,
        key,
        problems,
    )
    if template is None:
        return None
    chat = ChatFormat(
        tokenizer,
        template,
        dataset,
        train_on_inputs=trains_on_inputs,
        system_message=config.default_system_message,
        eot_tokens=config.eot_tokens,
        template_options=config.chat_template_kwargs,
    )
    return lambda row: _conversation(row, dataset, chat)


def column_of(row: Mapping[str, Any], column: str, key: str) -> Any:
    """Return a column of a row.

    Args:
        row: the row.
        column: the name of the column.
        key: the config key that names the column, for the message.

    Raises:
        RowError: if it is missing.
    """
    if column not in row:
        names = ", ".join(map(str, list(row)[:8])) or "none"
        hint = did_you_mean(column, map(str, row)) or f"; name it with `{key}`"
        raise RowError(f"column {column!r} is missing (columns: {names}){hint}")
    return row[column]


def text_of(row: Mapping[str, Any], column: str, key: str, *, may_be_empty: bool = False) -> str:
    """Return a column that holds a text.

    Raises:
        RowError: if it is missing, not a text, or empty.
    """
    value = column_of(row, column, key)
    if not isinstance(value, str):
        got = "null" if value is None else f"{type(value).__name__} {value!r:.40}"
        raise RowError(f"column {column!r} must be a text, got {got}")
    if not value.strip() and not may_be_empty:
        raise RowError(f"column {column!r} is empty")
    return value


def _completion(row: Mapping[str, Any], column: str) -> Rendered:
    text = text_of(row, column, "field")
    return Rendered(text, [(0, len(text))], add_special_tokens=True, add_eos=True, can_split=True)


def _segments(row: Mapping[str, Any]) -> Rendered:
    segments = column_of(row, "segments", "type")
    if not isinstance(segments, list) or not segments:
        raise RowError("column 'segments': expected a list such as [{label: true, text: …}]")
    text, spans = "", []
    for number, segment in enumerate(segments, 1):
        if not isinstance(segment, dict) or not isinstance(segment.get("text"), str):
            raise RowError(f"column 'segments', entry {number}: expected an object with `label` and `text`")
        if segment.get("label") is True:
            spans.append((len(text), len(text) + len(segment["text"])))
        text += segment["text"]
    if not spans:
        raise RowError("column 'segments': no entry has `label: true`, so nothing would be trained on")
    return Rendered(text, spans)


def _custom(custom: CustomFormat, trains_on_inputs: bool) -> Format:
    def render(row: Mapping[str, Any]) -> Rendered:
        instruction = text_of(row, custom.field_instruction, "type.field_instruction")
        output = text_of(row, custom.field_output, "type.field_output")
        input_text = row.get(custom.field_input) or ""
        system = row.get(custom.field_system) or custom.system_prompt
        for column, value in ((custom.field_input, input_text), (custom.field_system, system)):
            if not isinstance(value, str):
                raise RowError(f"column {column!r} must be a text, got {type(value).__name__} {value!r:.40}")
        pattern = custom.no_input_format if not input_text and custom.no_input_format is not None else custom.format
        system_text = custom.system_format.format(system=system) if system and "{system}" not in pattern else ""
        prompt = system_text + pattern.format(instruction=instruction, input=input_text, system=system)
        text = prompt + output
        spans = [(0 if trains_on_inputs else len(prompt), len(text))]
        return Rendered(text, spans, add_special_tokens=True, add_eos=True)

    return render


def _conversation(row: Mapping[str, Any], dataset: DatasetConfig, chat: ChatFormat) -> Rendered:
    column = dataset.field_messages
    if column not in row and column == "messages" and "conversations" in row:
        raise RowError("column 'messages' is missing; set `field_messages: conversations`")
    messages = parse_messages(column_of(row, column, "field_messages"), column, dataset)
    if not messages:
        raise RowError(f"column {column!r} has only system messages, which drop_system_message removes")
    tools = row.get(dataset.field_tools)
    if tools is not None and not isinstance(tools, list):
        raise RowError(f"column {dataset.field_tools!r} must be a list of tools, got {type(tools).__name__}")
    return chat.render(messages, tools)
