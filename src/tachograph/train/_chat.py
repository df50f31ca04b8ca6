"""Renders conversations, and finds the parts of the text to train on.

A template renders a whole conversation. Where a message starts and ends is found by rendering the conversation up to
it: if that text is the beginning of the whole one, its length is the boundary. Templates that render a message
differently once others follow (some drop earlier reasoning, some move the system message) break this. Then the whole
conversation is rendered with another content of the message: the texts before and after that content are the same in
both. If that fails, too, the content is searched in the text, unless a message before it contains the same text. If
nothing helps, the row is an error: training on the wrong tokens would not be noticed.

A message ends with the token that ends its turn. Line breaks and further tokens after a line break belong to the
template, and are not trained on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.exceptions import did_you_mean
from tachograph.train._dataset_config import DatasetConfig
from tachograph.train._problems import Problems, RowError
from tachograph.train._templates import END_TOKENS, FALLBACK_PREFIX, TEMPLATES, read_built_in

__all__ = ["ChatFormat", "Rendered", "parse_messages", "resolve_template"]

_ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
}


_PLACEHOLDER = "\u2063tachograph\u2063"
"""A content that no header of a template contains."""
_PROMPT_TAIL = 8
"""Characters at the end of a generation prompt that identify it."""


class Rendered(NamedTuple):
    """A text to tokenise, and the parts of it to train on.

    Attributes:
        text: the text.
        spans: start and end of each part that is trained on, in characters.
        add_special_tokens: whether the tokenizer adds BOS and the like.
        add_eos: whether to append EOS, and to train on it.
        can_split: whether a long text may become several rows.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    add_special_tokens: bool = False
    add_eos: bool = False
    can_split: bool = False


def resolve_template(
    name: str | None, jinja: str | None, tokenizer: Any, origin: str, problems: Problems
) -> str | None:
    """Return the text of a chat template; None if it cannot be found, which is added to the problems."""
    if name == "jinja" or (name is None and jinja):
        return _read_template(jinja or "", origin, problems)
    if name in TEMPLATES:
        return read_built_in(name)
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    if template:
        return str(template)
    if name is not None and name.startswith(FALLBACK_PREFIX):
        return read_built_in(name.removeprefix(FALLBACK_PREFIX))
    problems.add(
        f"{origin}: the tokenizer has no chat template: set `chat_template` to a name such as chatml, or give one with "
        "`chat_template: jinja` and chat_template_jinja"
    )
    return None


def _read_template(text: str, origin: str, problems: Problems) -> str | None:
    import jinja2

    if "{" not in text:
        try:
            text = Path(text).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            problems.add(f"chat_template_jinja={text!r}: the file cannot be read: {error.strerror}")
            return None
    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False).parse(  # noqa: S701
            text.replace("{% generation %}", "").replace("{% endgeneration %}", "")
        )
    except jinja2.TemplateSyntaxError as error:
        problems.add(f"chat_template_jinja, line {error.lineno}: invalid template: {error.message}")
        return None
    return text


def parse_messages(conversation: Any, column: str, dataset: DatasetConfig) -> list[dict[str, Any]]:
    """Return the messages of a conversation with the names `role` and `content`.

    Raises:
        RowError: if they are not messages.
    """
    if not isinstance(conversation, list) or not conversation:
        got = "an empty list" if conversation == [] else type(conversation).__name__
        raise RowError(f"column {column!r}: expected a list of messages, got {got}")
    mapping = dataset.message_property_mappings
    role_key, content_key = mapping["role"], mapping["content"]
    roles = {**_ROLES, **{name: role for role, names in (dataset.roles or {}).items() for name in [role, *names]}}
    messages = []
    for number, entry in enumerate(conversation):
        location = f"column {column!r}, message {number + 1}"
        if not isinstance(entry, dict):
            raise RowError(f"{location}: expected an object with {role_key!r} and {content_key!r}, got {entry!r:.60}")
        if role_key not in entry:
            hint = "; set `message_property_mappings: {role: from, content: value}`" if "from" in entry else ""
            raise RowError(f"{location}: {role_key!r} is missing (it has {', '.join(map(str, entry))}){hint}")
        role = roles.get(entry[role_key]) if isinstance(entry[role_key], str) else None
        if role is None:
            hint = did_you_mean(str(entry[role_key]), roles) or ";"
            raise RowError(
                f"{location}: unknown role {entry[role_key]!r}{hint} name it in `roles`, such as "
                f"{{assistant: [{entry[role_key]}]}}"
            )
        content = entry.get(content_key)
        if content is None and not entry.get("tool_calls"):
            raise RowError(f"{location}: {content_key!r} is missing or null")
        if content is not None and not isinstance(content, str):
            raise RowError(f"{location}: {content_key!r} must be a text, got {type(content).__name__}")
        if role == "system" and dataset.drop_system_message:
            continue
        # A column of a table has the same fields in every message: fields that a message does not have are null.
        others = {
            key: value for key, value in entry.items() if value is not None and key not in (role_key, content_key)
        }
        for name, field in [(dataset.template_thinking_key, dataset.field_thinking), *mapping.items()]:
            if field in others:
                others[name] = others.pop(field)
        messages.append({**others, "role": role, "content": content or ""})
    return messages


class ChatFormat:
    """Renders conversations with one template."""

    def __init__(
        self,
        tokenizer: Any,
        template: str,
        dataset: DatasetConfig,
        *,
        train_on_inputs: bool,
        system_message: str | None = None,
        eot_tokens: Sequence[str] = (),
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._dataset = dataset
        self._train_on_inputs = train_on_inputs
        self._system_message = system_message
        self._template_options = dict(template_options or {})
        added_tokens = getattr(tokenizer, "added_tokens_decoder", {})
        special = {str(token) for token in added_tokens.values() if getattr(token, "special", False)}
        ends = [*END_TOKENS, *eot_tokens, *([tokenizer.eos_token] if tokenizer.eos_token else [])]
        self._end = re.compile(_pattern_of(ends))
        any_end = _pattern_of([*ends, *special, *map(str, tokenizer.all_special_tokens)])
        self._last_end = re.compile(rf"({any_end})(?:\s+{any_end})*\s*\Z")
        self._only_end = re.compile(rf"{any_end}\Z")

    def render(self, messages: list[dict[str, Any]], tools: Any = None) -> Rendered:
        """Return the text of a conversation and the parts to train on.

        Raises:
            RowError: if the template rejects the conversation, or nothing of it would be trained on.
        """
        if self._system_message and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self._system_message}, *messages]
        text = self._text(messages, tools)
        if self._train_on_inputs:
            return Rendered(text, [(0, len(text))])
        trained_numbers = [number for number, message in enumerate(messages) if self._is_trained(message)]
        if not trained_numbers:
            roles = ", ".join(sorted({message["role"] for message in messages}))
            raise RowError(
                f"no message is trained on: the roles are {roles}, and roles_to_train is "
                f"{self._dataset.roles_to_train}; set roles_to_train or `train_on_inputs: true`"
            )
        spans = []
        position = 0
        for number in trained_numbers:
            keeps_end = self._dataset.train_on_eos == "turn" or (
                self._dataset.train_on_eos == "last" and number == trained_numbers[-1]
            )
            start, end = self._span(text, messages, number, tools, position)
            position = end
            spans.append((start, end if keeps_end else self._without_end(text, start, end)))
        return Rendered(text, spans)

    def _is_trained(self, message: dict[str, Any]) -> bool:
        field = self._dataset.message_field_training
        if field is not None and isinstance(message.get(field), bool):
            return bool(message[field])
        return message["role"] in self._dataset.roles_to_train

    def _text(self, messages: list[dict[str, Any]], tools: Any, add_generation_prompt: bool = False) -> str:
        import jinja2

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=tools or None,
                    chat_template=self._template,
                    add_generation_prompt=add_generation_prompt,
                    tokenize=False,
                    **self._template_options,
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RowError(f"the chat template rejects the conversation: {error}") from error

    def _beginning(self, whole: str, messages: list[dict[str, Any]], tools: Any, prompt: bool = False) -> int | None:
        """Return the length of the first messages in the whole text; None if they are rendered differently there."""
        if not messages:
            return 0
        try:
            text = self._text(messages, tools, prompt)
        except RowError:
            return None
        return len(text) if whole.startswith(text) else None

    def _content_span(
        self, text: str, messages: list[dict[str, Any]], number: int, tools: Any
    ) -> tuple[int, int] | None:
        """Return where the content of a message is; None if the texts around it depend on it."""
        message = messages[number]
        try:
            other = self._text(
                [*messages[:number], {**message, "content": _PLACEHOLDER}, *messages[number + 1 :]], tools
            )
        except RowError:
            return None
        before, _, after = other.partition(_PLACEHOLDER)
        start, end = len(before), len(text) - len(after)
        is_same = text.startswith(before) and text.endswith(after) and start <= end
        content = message["content"].strip()
        if not content and message.get("tool_calls") and text.startswith(before):
            return start, start
        is_content = bool(content) and text[start:end].strip() in (content, _answer_of(content))
        return (start, end) if is_same and is_content else None

    def _with_leading_blanks(
        self, text: str, messages: list[dict[str, Any]], number: int, tools: Any, start: int
    ) -> int:
        """Return the start of an answer with the blanks that the model writes: those after the generation prompt."""
        try:
            prompt = self._text(messages[:number], tools, add_generation_prompt=True)
        except RowError:
            return start
        for first in range(start, len(text[:start].rstrip()) - 1, -1):
            if prompt.endswith(text[max(0, first - _PROMPT_TAIL) : first]):
                return first
        return start

    def _span(
        self, text: str, messages: list[dict[str, Any]], number: int, tools: Any, position: int
    ) -> tuple[int, int]:
        """Return start and end of a message: of its content and of the token that ends it."""
        message = messages[number]
        start = content_span = None
        if message["role"] == "assistant" and number:
            start = self._beginning(text, messages[:number], tools, prompt=True)
        if start is None or start < position:
            content_span = self._content_span(text, messages, number, tools)
            start = content_span[0] if content_span else self._search(text, messages, number, tools, position)
            if message["role"] == "assistant" and number:
                start = self._with_leading_blanks(text, messages, number, tools, start)
        is_last = number == len(messages) - 1  # rendering takes most of the time
        end = len(text) if is_last else self._beginning(text, messages[: number + 1], tools)
        if end is None or end < start:
            content_span = content_span or self._content_span(text, messages, number, tools)
            return start, self._end_of_turn(text, message, start, content_span[1] if content_span else None)
        match = self._last_end.search(text, start, end)
        return start, match.end(1) if match else end

    def _search(self, text: str, messages: list[dict[str, Any]], number: int, tools: Any, position: int) -> int:
        """Return where the content of a message starts, by searching it after the previous trained message."""
        content = messages[number]["content"].strip()
        before = self._beginning(text, messages[:number], tools)
        untrained_messages: list[dict[str, Any]] = []
        for other in reversed(messages[:number] if before is None else []):
            if self._is_trained(other):
                break
            untrained_messages.append(other)
        start = text.find(content, max(before or 0, position)) if content else -1
        if start < 0 or any(content in other["content"] for other in untrained_messages):
            raise RowError(
                f"message {number + 1} cannot be found in the text of the chat template, so the prompt cannot be "
                "masked: use another template, or `train_on_inputs: true`"
            )
        return start

    def _end_of_turn(self, text: str, message: dict[str, Any], start: int, content_end: int | None) -> int:
        """Return the end of a message: of its content, the calls of tools after it, and the token that ends it."""
        if content_end is None:
            answer_text = _answer_of(message["content"])
            answer_start = text.find(answer_text, start)
            content_end = answer_start + len(answer_text) if answer_start >= 0 else start
        match = self._end.search(text, content_end)
        if match is not None and (message.get("tool_calls") or not text[content_end : match.start()].strip()):
            return match.end()
        if message.get("tool_calls"):
            raise RowError(
                "the end of a message with calls of tools cannot be found in the text of the chat template: name the "
                "token that ends a message in eot_tokens"
            )
        return content_end

    def _without_end(self, text: str, start: int, end: int) -> int:
        match = self._only_end.search(text, start, end)
        return match.start() if match else end


def _answer_of(content: str) -> str:
    """Return a content without the reasoning at its beginning, which some templates move or drop."""
    return content.rpartition("</think>")[2].strip()


def _pattern_of(tokens: Sequence[str]) -> str:
    """Return an expression that matches one or more of the tokens in a row."""
    return f"(?:{'|'.join(re.escape(token) for token in sorted(set(tokens), key=len, reverse=True))})+"
