"""Renders conversations, and finds the parts of the text to train on.

A template renders a whole conversation. Where a message starts and ends is found by rendering the conversation up to
it: if that text is the beginning of the whole one, its length is the boundary. Where the content of a message starts,
after the header of its role, is found by rendering the message with another content. Templates that render a message
differently once others follow (some drop earlier reasoning) break this; then the content of the message is searched in
the text. If that fails, too, the row is an error: training on the wrong tokens would not be noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.exceptions import did_you_mean
from tachograph.train._dataset_config import DatasetConfig
from tachograph.train._problems import Problems, RowError

__all__ = ["CHATML", "ChatFormat", "Rendered", "parse_messages", "resolve_template"]

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
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
    if name == "chatml":
        return CHATML
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    if template:
        return str(template)
    if name == "tokenizer_default_fallback_chatml":
        return CHATML
    problems.add(
        f"{origin}: the tokenizer has no chat template: set `chat_template: chatml`, or give one with "
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
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._dataset = dataset
        self._train_on_inputs = train_on_inputs
        self._system_message = system_message
        added_tokens = getattr(tokenizer, "added_tokens_decoder", {})
        special = {str(token) for token in added_tokens.values() if getattr(token, "special", False)}
        self._ends = sorted({*special, *map(str, tokenizer.all_special_tokens), *eot_tokens}, key=len, reverse=True)

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

    def _content_start(self, text: str, messages: list[dict[str, Any]], number: int, tools: Any) -> int | None:
        """Return where the content of a message starts; None if the template renders it differently."""
        content = messages[number]["content"]
        try:
            other = self._text([*messages[:number], {**messages[number], "content": _PLACEHOLDER}], tools)
        except RowError:
            return None
        header, placeholder, _ = other.partition(_PLACEHOLDER)
        is_same = text.startswith((header + content, header + content.strip()))  # some templates strip it
        return len(header) if placeholder and content.strip() and is_same else None

    def _span(
        self, text: str, messages: list[dict[str, Any]], number: int, tools: Any, position: int
    ) -> tuple[int, int]:
        """Return start and end of a message: of its content and of the token that ends it."""
        message = messages[number]
        content = message["content"].strip()
        start = None
        if message["role"] == "assistant" and number:
            start = self._beginning(text, messages[:number], tools, prompt=True)
        if start is None or start < position:
            start = self._content_start(text, messages, number, tools)
        if start is None or start < position:
            before = self._beginning(text, messages[:number], tools) or position
            start = text.find(content, max(before, position)) if content else -1
        if start < 0:
            raise RowError(
                f"message {number + 1} cannot be found in the text of the chat template, so the prompt cannot be "
                "masked: use another template, or `train_on_inputs: true`"
            )
        is_last = number == len(messages) - 1  # rendering takes most of the time
        end = len(text) if is_last else self._beginning(text, messages[: number + 1], tools)
        if end is None or end < start:
            end = start + len(content)
            end_token = next((token for token in self._ends if text.startswith(token, end)), "")
            return start, end + len(end_token)
        stripped_end = len(text[:end].rstrip())
        if any(text[start:stripped_end].endswith(token) for token in self._ends):
            end = stripped_end  # the line break after the end token belongs to the template
        return start, end

    def _without_end(self, text: str, start: int, end: int) -> int:
        token = next((token for token in self._ends if text[start:end].endswith(token)), "")
        return end - len(token)
