"""Chat templates by name, such as `llama3`.

Each file in `templates` writes a conversation as the documentation or the tokenizer of its model does. A template
renders every message or rejects the conversation: one that has no format for tools rejects conversations with tools.
Only reasoning is left out where the model's own format does so, in answers before the last question.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["END_TOKENS", "FALLBACK_PREFIX", "TEMPLATES", "check_template_name", "describe_template", "read_built_in"]

FALLBACK_PREFIX = "tokenizer_default_fallback_"
END_TOKENS = (
    "<end_of_turn>",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|END_RESPONSE|>",
    "<|end|>",
    "<|eom|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|im_end|>",
    "<｜end▁of▁sentence｜>",
    "[|endofturn|]",
)
"""The tokens that end messages in common templates, whether or not a tokenizer has them as special tokens."""
_FOLDER = Path(__file__).with_name("templates")
_NO_TOOLS = (
    "{%- if tools or messages | selectattr('role', 'equalto', 'tool') | list"
    " or messages | selectattr('tool_calls') | list -%}"
    "{{- raise_exception('this template has no format for tools: use `chat_template: tokenizer_default`') -}}"
    "{%- endif -%}\n"
)


class _BuiltIn(NamedTuple):
    file: str
    options: Mapping[str, Any] = MappingProxyType({})
    has_tools: bool = False
    note: str = ""


_NO_BLANKS = {"outside": "", "before": "", "after": "", "between": "", "trims": False}
"""The options of Mistral's formats without blanks."""

TEMPLATES = {
    "alpaca": _BuiltIn("alpaca"),
    "aya": _BuiltIn("cohere"),
    "chatml": _BuiltIn("chatml"),
    "cohere": _BuiltIn("cohere"),
    "deepseek_v2": _BuiltIn("deepseek"),
    "deepseek_v3": _BuiltIn("deepseek"),
    "exaone": _BuiltIn("exaone"),
    "falcon_h1": _BuiltIn("falcon_h1"),
    "gemma": _BuiltIn("gemma"),
    "gemma3": _BuiltIn("gemma3"),
    "gemma3n": _BuiltIn("gemma3"),
    "gemma4": _BuiltIn("gemma4"),
    "gemma4_unified": _BuiltIn("gemma4"),
    "jamba": _BuiltIn("jamba"),
    "llama3": _BuiltIn("llama3"),
    "llama4": _BuiltIn("llama4"),
    "mistral_v1": _BuiltIn(
        "mistral",
        {"outside": " ", "before": " ", "after": " ", "between": " ", "trims": False, "system_at": "first"},
        note="Mixtral 8x7B, version 1: blanks around all texts; the system message is in the first question.",
    ),
    "mistral_v2v3": _BuiltIn(
        "mistral",
        {**_NO_BLANKS, "before": " ", "between": " ", "trims": True, "system_at": "last"},
        note="Mistral 7B, versions 2 and 3: a blank before all texts; the system message is in the last question.",
    ),
    "mistral_v3_tekken": _BuiltIn(
        "mistral", {**_NO_BLANKS, "system_at": "last"}, note="Mistral Nemo: as version 3, without blanks."
    ),
    "mistral_v7_tekken": _BuiltIn(
        "mistral",
        {**_NO_BLANKS, "system_at": "block"},
        note="Mistral Small 3: without blanks; the system message has a block of its own, and there is no default one.",
    ),
    "phi_3": _BuiltIn("phi_3", {"keeps_empty_system": True}),
    "phi_35": _BuiltIn("phi_3", {"keeps_empty_system": False}),
    "qwen2_vl": _BuiltIn("qwen2_vl"),
    "qwen3": _BuiltIn("qwen3", has_tools=True),
    "qwen3_5": _BuiltIn("qwen3_5", has_tools=True),
    "qwen_25": _BuiltIn("qwen_25", has_tools=True),
}
_WITH_IMAGES = ("llama3_2_vision", "llava", "pixtral")
_SPECIAL_NAMES = ("tokenizer_default", "jinja", f"{FALLBACK_PREFIX}NAME")


def check_template_name(name: str) -> None:
    """Raise an error if no template has a name.

    Raises:
        ValueError: naming the templates.
    """
    if name in ("tokenizer_default", "jinja") or name.removeprefix(FALLBACK_PREFIX) in TEMPLATES:
        return
    if name in _WITH_IMAGES:
        raise ValueError("it is a template for images, and only text is supported")
    raise ValueError(
        f"expected one of {', '.join((*_SPECIAL_NAMES, *TEMPLATES))}. `tokenizer_default` is the model's own template; "
        "for another one, give its text in `chat_template_jinja` with `chat_template: jinja`"
    )


def read_built_in(name: str) -> str:
    """Return the text of a built-in template."""
    built_in = TEMPLATES[name]
    options = "".join(f"{{%- set {key} = {_literal(value)} -%}}\n" for key, value in built_in.options.items())
    text = (_FOLDER / f"{built_in.file}.jinja").read_text(encoding="utf-8")
    return ("" if built_in.has_tools else _NO_TOOLS) + options + text


def describe_template(name: str) -> str:
    """Return a sentence about a built-in template: its note, or the comment at the beginning of its file."""
    built_in = TEMPLATES[name]
    text = (_FOLDER / f"{built_in.file}.jinja").read_text(encoding="utf-8")
    return built_in.note or " ".join(text.removeprefix("{#-").partition("-#}")[0].split())


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
