"""Secrets are masked before they are written: by the name they stand under and by what they look like.

A mask that hides training data is as bad as one that misses a secret, so names are read word by word: `hf_token` and
`api_key` are secrets, `pad_token`, `num_key_value_heads` and `pass@1` are not, and a number is one only under a name
like `password`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MASK", "is_secret", "mask_arguments", "mask_mapping", "mask_text"]

MASK = "[masked]"

# Any value under these is a secret, a number too.
_STRONG = {"passphrase", "passwd", "password", "pwd", "secret"}
# A text under these is.
_WORDS_OF_SECRETS = {"apikey", "authorization", "authtoken", "bearer", "cookie", "credential", "jwt", "webhook"}
_ENDINGS = ("password", "passwd", "authtoken", "apikey", "accesstoken", "hftoken", "wandbkey")
_PASS_OWNERS = {"db", "ftp", "http", "mail", "proxy", "redis", "smtp", "user"}
_PAT_OWNERS = {"azure", "github", "gitlab"}
_KEY_OWNERS = {
    "access", "account", "anthropic", "api", "auth", "aws", "azure", "clearml", "cohere", "comet", "deepseek",
    "encryption", "gcp", "gemini", "groq", "hf", "kaggle", "license", "master", "mistral", "openai", "private",
    "replicate", "secret", "service", "signing", "ssh", "swanlab", "together", "wandb",
}  # fmt: skip
# Whoever knows such an address can write to the people behind it.
_CHANNELS = {"bot", "dingtalk", "discord", "feishu", "hook", "lark", "mattermost", "slack", "telegram", "wecom"}
_ADDRESSES = {"endpoint", "uri", "url"}
# What stands before the "token" of a vocabulary or of a measurement.
_VOCABULARY = {
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
# Each of the above has one of these in it. Looking for them is a hundred times faster than looking for a match, and
# few texts have any.
_HINTS = (
    "hf_", "sk-", "gsk_", "r8_", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "dckr_pat_", "AKIA", "ASIA", "xox", "AIza", "ya29.", "npm_", "pypi-", "wandb_v1_", "eyJ", "-----BEGIN ", "://",
    "sig=", "signature=", "api.telegram.org/bot",
)  # fmt: skip
_HINTS_OF_ANY_CASE = ("signature=", "bearer ", "authorization: ", "wandb login ")
# name=value, name: value, "name": "value" in a text; the name decides.
_NAME_OF_VALUE = re.compile(r"""([A-Za-z][\w.-]{1,63})["']?\s?[=:]\s?["']?""")
_VALUE_OF_NAME = re.compile(r"""[^\s&"',;]+""")


def mask_text(text: str) -> str:
    """Replace what looks like a key, a token, a private key or a password."""
    if len(text) < 8:
        return text
    if any(hint in text for hint in _HINTS) or any(hint in text.lower() for hint in _HINTS_OF_ANY_CASE):
        text = _LOOKS_SECRET.sub(MASK, text)
    return _mask_named(text) if "=" in text or ":" in text else text


def mask_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with everything that is a secret by its name masked, at any depth."""
    return {name: _masked(name, value) for name, value in values.items()}


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
    """Tell whether a value is a secret, judging by the name it stands under."""
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
    if not _STRONG.isdisjoint(stems) or joined.endswith(("password", "passwd")):
        return True
    if isinstance(value, (int, float)):
        return False
    *before, last = stems
    if not _WORDS_OF_SECRETS.isdisjoint(stems) or joined.endswith(_ENDINGS):
        return True
    if last in _ADDRESSES and not _CHANNELS.isdisjoint(before):
        return True
    owners = {"pass": _PASS_OWNERS, "pat": _PAT_OWNERS, "key": _KEY_OWNERS}.get(last)
    if owners is not None:
        return not owners.isdisjoint(before[-1:] if last == "pass" else before)
    if last != "token":
        return False
    is_vocabulary = not _VOCABULARY.isdisjoint([*before, *words]) or _is_in_brackets(value)
    return not is_vocabulary and (bool(before) or not is_plural)


def _is_in_brackets(value: Any) -> bool:
    """Tell special tokens, such as <pad>, </s>, [MASK] or <|user|>, from secrets."""
    if isinstance(value, list):
        return all(map(_is_in_brackets, value))
    return isinstance(value, str) and (value[:1], value[-1:]) in {("<", ">"), ("[", "]"), ("{", "}")}


def _masked(name: str, value: Any) -> Any:
    if is_secret(name, value):
        return MASK
    if isinstance(value, dict) and name == "notify":
        return {key: _masked_notice(str(key), item) for key, item in value.items()}
    if isinstance(value, dict) and not _CHANNELS.isdisjoint(word.lower() for word in _WORDS.findall(name)):
        return {key: MASK if is_secret(f"{name}_{key}", item) else _masked(key, item) for key, item in value.items()}
    if isinstance(value, dict):
        return mask_mapping(value)
    if isinstance(value, list):
        return [_masked("", item) for item in value]
    return value


def _masked_notice(name: str, value: Any) -> Any:
    """Mask what a `notify` section says: each address is one to write to, and a template may hold a key."""
    if isinstance(value, dict) and name != "template":
        return {key: _masked_notice(str(key), item) for key, item in value.items()}
    if name == "template" or (isinstance(value, str) and "://" in value and name != "dashboard_url"):
        return MASK if value else value
    return _masked(name, value)


def _mask_named(text: str) -> str:
    parts: list[str] = []
    position = 0
    while (name := _NAME_OF_VALUE.search(text, position)) is not None:
        parts.append(text[position : name.end()])
        position = name.end()
        value = _VALUE_OF_NAME.match(text, position)
        # What is no secret may itself begin with a name: "failed: password=…".
        if value is not None and not value[0].startswith(MASK[:7]) and is_secret(name[1], value[0]):
            parts.append(MASK)
            position = value.end()
    return "".join([*parts, text[position:]])
