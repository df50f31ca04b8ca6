"""Mask secrets before they are written, by the name of a field and by the pattern of a value.

Masking training data is as bad as missing a secret, so names are split into words: `hf_token` and `api_key` are
secrets; `pad_token`, `num_key_value_heads` and `pass@1` are not. A number is a secret only under a name such as
`password`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MASK", "is_secret", "mask_arguments", "mask_mapping", "mask_text"]

MASK = "[masked]"

# Any value under these names is a secret, even a number.
_ALWAYS_SECRET_WORDS = {"passphrase", "passwd", "password", "pwd", "secret"}
# A text under these names is a secret.
_SECRET_WORDS = {"apikey", "authorization", "authtoken", "bearer", "cookie", "credential", "jwt", "webhook"}
_SECRET_ENDINGS = ("password", "passwd", "authtoken", "apikey", "accesstoken", "hftoken", "wandbkey")
_PASS_OWNERS = {"db", "ftp", "http", "mail", "proxy", "redis", "smtp", "user"}
_PAT_OWNERS = {"azure", "github", "gitlab"}
_KEY_OWNERS = {
    "access", "account", "anthropic", "api", "auth", "aws", "azure", "clearml", "cohere", "comet", "deepseek",
    "encryption", "gcp", "gemini", "groq", "hf", "kaggle", "license", "master", "mistral", "openai", "private",
    "replicate", "secret", "service", "signing", "ssh", "swanlab", "together", "wandb",
}  # fmt: skip
# The address of such a channel is a credential: it allows anyone to post there.
_CHANNELS = {"bot", "dingtalk", "discord", "feishu", "hook", "lark", "mattermost", "slack", "telegram", "wecom"}
_ADDRESSES = {"endpoint", "uri", "url"}
# Words before "token" that mean a token of a tokenizer, or a count of tokens.
_TOKENIZER_WORDS = {
    "added", "additional", "assistant", "audio", "begin", "bod", "boi", "bos", "box", "class", "cls", "decoder", "end",
    "eod", "eoi", "eos", "eot", "fill", "first", "forced", "human", "image", "img", "input", "instruction", "label",
    "last", "mask", "max", "min", "new", "next", "num", "object", "output", "pad", "padding", "per", "point", "prefix",
    "prompt", "ref", "response", "role", "sep", "separator", "special", "start", "stop", "suffix", "system", "target",
    "text", "think", "tool", "trigger", "unk", "unknown", "user", "video", "vision",
}  # fmt: skip

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_VALUE = r"[A-Za-z0-9_-]"
_LOOKS_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{20,}"
    rf"|sk-(?={_VALUE}*\d){_VALUE}{{20,}}|gsk_[A-Za-z0-9]{{20,}}|r8_[A-Za-z0-9]{{20,}}"
    r"|[rps]k_(?:live|test)_[A-Za-z0-9]{10,}"
    rf"|gh[pousr]_[A-Za-z0-9]{{30,}}|github_pat_[A-Za-z0-9_]{{30,}}|glpat-{_VALUE}{{20,}}|dckr_pat_{_VALUE}{{20,}}"
    r"|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    rf"|AIza{_VALUE}{{35}}|ya29\.{_VALUE}{{20,}}"
    rf"|npm_[A-Za-z0-9]{{36}}|pypi-{_VALUE}{{40,}}|wandb_v1_[A-Za-z0-9_]{{20,}}"
    rf"|eyJ{_VALUE}{{10,}}\.{_VALUE}{{10,}}\.{_VALUE}{{5,}}"
    r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|https://hooks\.slack(?:-gov)?\.com/[^\s\"']+|https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/[^\s\"']+"
    r"|https://[\w.-]*(?:feishu\.cn|larksuite\.com)/open-apis/bot/[^\s\"']+"
    r"|https://oapi\.dingtalk\.com/robot/[^\s\"']+|https://qyapi\.weixin\.qq\.com/cgi-bin/webhook/[^\s\"']+"
    r"|https://[\w.-]+\.webhook\.office\.com/[^\s\"']+|(?<=api\.telegram\.org/bot)[^/\s\"']+"
    r"|(?<=://)[^/\s:@]{0,128}:(?!\d{1,5}[/?])\S{1,256}(?=@)|(?<=://)[^/\s:@]{16,256}(?=@)"
    r"|(?<=[?&]sig=)[^&\s\"']+|(?<=[?&]signature=)[^&\s\"']+|(?i:(?<=x-amz-signature=))[^&\s\"']+"
    r"|(?i:(?<=bearer )|(?<=authorization: basic )|(?<=authorization: token ))[A-Za-z0-9._~+/-]{8,}=*"
    r"|(?i:(?<=wandb login ))[0-9a-f]{32,}"
)
# Every match of the pattern contains one of these. Searching for them is a hundred times faster than matching, and few
# texts contain any.
_HINTS = (
    "hf_", "sk-", "gsk_", "r8_", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "dckr_pat_", "AKIA", "ASIA", "xox", "AIza", "ya29.", "npm_", "pypi-", "wandb_v1_", "eyJ", "-----BEGIN ", "://",
    "sig=", "signature=", "api.telegram.org/bot",
)  # fmt: skip
_CASELESS_HINTS = ("signature=", "bearer ", "authorization: ", "wandb login ")
# name=value, name: value, "name": "value" inside a text; the name decides.
_NAME_BEFORE_VALUE = re.compile(r"""([A-Za-z][\w.-]{1,63})["']?\s?[=:]\s?["']?""")
_VALUE_AFTER_NAME = re.compile(r"""[^\s&"',;]+""")


def mask_text(text: str) -> str:
    """Replace anything that looks like an API key, a token, a private key or a password."""
    if len(text) < 8:
        return text
    if any(hint in text for hint in _HINTS) or any(hint in text.lower() for hint in _CASELESS_HINTS):
        text = _LOOKS_SECRET.sub(MASK, text)
    return _mask_named_values(text) if "=" in text or ":" in text else text


def mask_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with every secret masked, at any depth; names decide what is a secret."""
    return {name: _mask_value(name, value) for name, value in values.items()}


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Mask a command line: ``--hf-token x`` and ``--hf-token=x`` alike."""
    masked: list[str] = []
    name = ""
    for argument in arguments:
        own, equals, value = argument.partition("=")
        if name and not argument.startswith("--") and is_secret(name, argument):
            masked.append(MASK)
        elif equals and is_secret(own.lstrip("-"), value):
            masked.append(f"{own}={MASK}")
        else:
            masked.append(mask_text(argument))
        name = argument.lstrip("-") if argument.startswith("-") and not equals else ""
    return masked


def is_secret(name: str, value: Any) -> bool:
    """Return whether the name of a value marks it as a secret."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    is_plural = bool(words) and words[-1].endswith("s") and not words[-1].endswith("ss")
    stems = [word[:-1] if word.endswith("s") and not word.endswith("ss") else word for word in words]
    if not stems:
        return False
    joined = "".join(stems)
    if not _ALWAYS_SECRET_WORDS.isdisjoint(stems) or joined.endswith(("password", "passwd")):
        return True
    if isinstance(value, (int, float)):
        return False
    *before, last = stems
    if not _SECRET_WORDS.isdisjoint(stems) or joined.endswith(_SECRET_ENDINGS):
        return True
    if last in _ADDRESSES and not _CHANNELS.isdisjoint(before):
        return True
    owners = {"pass": _PASS_OWNERS, "pat": _PAT_OWNERS, "key": _KEY_OWNERS}.get(last)
    if owners is not None:
        return not owners.isdisjoint(before[-1:] if last == "pass" else before)
    if last != "token":
        return False
    is_vocabulary = not _TOKENIZER_WORDS.isdisjoint([*before, *words]) or _is_in_brackets(value)
    return not is_vocabulary and (bool(before) or not is_plural)


def _is_in_brackets(value: Any) -> bool:
    """Return whether a value is a special token such as <pad>, </s>, [MASK] or <|user|>."""
    if isinstance(value, list):
        return all(map(_is_in_brackets, value))
    return isinstance(value, str) and (value[:1], value[-1:]) in {("<", ">"), ("[", "]"), ("{", "}")}


def _mask_value(name: str, value: Any) -> Any:
    if is_secret(name, value):
        return MASK
    if isinstance(value, dict) and name == "notify":
        return {key: _mask_notify(str(key), item) for key, item in value.items()}
    if isinstance(value, dict) and not _CHANNELS.isdisjoint(word.lower() for word in _WORDS.findall(name)):
        return {
            key: MASK if is_secret(f"{name}_{key}", item) else _mask_value(key, item) for key, item in value.items()
        }
    if isinstance(value, dict):
        return mask_mapping(value)
    if isinstance(value, list):
        return [_mask_value("", item) for item in value]
    return value


def _mask_notify(name: str, value: Any) -> Any:
    """Mask a `notify` section: every address is a credential, and a template may contain a key."""
    if isinstance(value, dict) and name != "template":
        return {key: _mask_notify(str(key), item) for key, item in value.items()}
    if name == "template" or (isinstance(value, str) and "://" in value and name != "dashboard_url"):
        return MASK if value else value
    return _mask_value(name, value)


def _mask_named_values(text: str) -> str:
    parts: list[str] = []
    position = 0
    while (name := _NAME_BEFORE_VALUE.search(text, position)) is not None:
        parts.append(text[position : name.end()])
        position = name.end()
        value = _VALUE_AFTER_NAME.match(text, position)
        # A value that is not a secret may start with another name: "failed: password=…".
        if value is not None and not value[0].startswith(MASK[:7]) and is_secret(name[1], value[0]):
            parts.append(MASK)
            position = value.end()
    return "".join([*parts, text[position:]])
