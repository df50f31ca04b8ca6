"""Decide by the name of a value whether the value is a secret.

Masking training data is as bad as missing a secret, so names are split into words: `hf_token` and `api_key` are
secrets; `pad_token`, `num_key_value_heads` and `pass@1` are not. A number is a secret only under a name such as
`password`.
"""

from __future__ import annotations

import binascii
import functools
import re
from typing import Any

__all__ = ["is_channel", "is_secret", "kind_of_name", "looks_generated"]

# Any value under these names is a secret, even a number.
_ALWAYS_SECRET_WORDS = {"passphrase", "passwd", "password", "pwd", "secret"}
# A text under these names is a secret.
_SECRET_WORDS = {
    "apikey", "authorization", "authtoken", "bearer", "cookie", "cred", "credential", "jwt", "passcode", "webhook",
}  # fmt: skip
_SECRET_ENDINGS = ("accesskey", "accesstoken", "apikey", "authtoken", "hftoken", "privatekey", "secretkey", "wandbkey")
# Names of tokens that are written as one word.
_TOKENS = {"bottoken", "idtoken", "identitytoken", "refreshtoken", "registrytoken", "sessiontoken"}
_PASS_OWNERS = {"db", "ftp", "http", "mail", "mysql", "pg", "postgres", "proxy", "redis", "smtp", "ssh", "user"}
_SALT_OWNERS = {"auth", "cookie", "encryption", "hash", "hashing", "hmac", "security", "session", "sign", "signing"}
_PAT_OWNERS = {"azure", "github", "gitlab"}
_KEY_OWNERS = {
    "access", "account", "anthropic", "api", "app", "application", "auth", "aws", "azure", "clearml", "cohere", "comet",
    "consumer", "databricks", "datadog", "dd", "deepseek", "deploy", "encryption", "fireworks", "gcp", "gemini",
    "google", "gpg", "groq", "hf", "huggingface", "kaggle", "langchain", "langsmith", "license", "master", "mistral",
    "neptune", "nvidia", "openai", "openrouter", "perplexity", "pgp", "pinecone", "private", "replicate", "secret",
    "sendgrid", "service", "signing", "ssh", "stripe", "subscription", "swanlab", "together", "twilio", "wandb",
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
_GENERATED_VALUE = re.compile(r"(?=[^\d]{0,40}\d)[A-Za-z0-9+/_.-]{12,4096}={0,2}|[A-Za-z0-9+/_-]{10,4096}={1,2}")


def is_secret(name: str, value: Any) -> bool:
    """Return whether the name of a value marks it as a secret."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    kind = kind_of_name(name)
    if kind in {"", "always"}:
        return kind == "always"
    if isinstance(value, (int, float)):
        return False
    if kind == "token":
        return not _is_in_brackets(value)
    return kind != "auth" or (isinstance(value, str) and (looks_generated(value) or _is_encoded_login(value)))


def is_channel(name: str) -> bool:
    """Return whether a name contains the name of a service whose addresses are credentials, such as a chat."""
    return not _CHANNELS.isdisjoint(word.lower() for word in _WORDS.findall(name))


def looks_generated(value: str) -> bool:
    """Return whether a text could be a key or base64: one word of at least 12 characters, with a digit or padding."""
    return _GENERATED_VALUE.fullmatch(value) is not None


def _is_encoded_login(value: str) -> bool:
    """Return whether a value is `user:password` in base64, as Docker keeps it under `auth`, and not a method's name."""
    try:
        return b":" in binascii.a2b_base64(value[:4096].encode("ascii", "ignore"))
    except ValueError:
        return False


@functools.lru_cache(maxsize=4096)
def kind_of_name(name: str) -> str:
    """Return which values under a name are secret: "always" any, "text", "token" or "auth" some, "" none."""
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    is_plural = bool(words) and words[-1].endswith("s") and not words[-1].endswith("ss")
    stems = [word[:-1] if word.endswith("s") and not word.endswith("ss") else word for word in words]
    if not stems:
        return ""
    stem_text = "".join(stems)
    if not _ALWAYS_SECRET_WORDS.isdisjoint(stems) or stem_text.endswith(("password", "passwd")):
        return "always"
    *before, last = stems
    if not _SECRET_WORDS.isdisjoint(stems) or stem_text.endswith(_SECRET_ENDINGS):
        return "text"
    if last in _ADDRESSES and not _CHANNELS.isdisjoint(before):
        return "text"
    if last == "auth":
        return "auth"
    if last == "signature" and before[:1] in (["x"], ["url"]):  # X-Amz-Signature
        return "text"
    owners = {"pass": _PASS_OWNERS, "pat": _PAT_OWNERS, "salt": _SALT_OWNERS, "key": _KEY_OWNERS}.get(last)
    if owners is not None:
        return "" if owners.isdisjoint(before[-1:] if last == "pass" else before) else "text"
    if last in _TOKENS:
        return "token"
    if last != "token" or not _TOKENIZER_WORDS.isdisjoint([*before, *words]):
        return ""
    return "token" if before or not is_plural else ""


def _is_in_brackets(value: Any) -> bool:
    """Return whether a value is a special token such as <pad>, </s>, [MASK] or <|user|>."""
    if isinstance(value, list):
        return all(map(_is_in_brackets, value))
    return isinstance(value, str) and (value[:1], value[-1:]) in {("<", ">"), ("[", "]"), ("{", "}")}
