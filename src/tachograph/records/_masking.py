"""Secrets are masked before they are written: by the name they stand under and by what they look like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MASK", "is_secret_name", "mask_arguments", "mask_mapping", "mask_text"]

MASK = "[masked]"

_SECRET_WORDS = {
    "apikey", "authorization", "bearer", "cookie", "credential", "dbpassword", "hftoken", "pass", "passphrase",
    "passwd", "password", "pwd", "secret", "webhook",
}  # fmt: skip
# `pad_token` is vocabulary and `num_key_value_heads` a shape; `hf_token` and `api_key` are secrets. What stands in
# front of the word decides.
_TOKEN_OWNERS = {
    "access", "api", "auth", "aws", "azure", "bearer", "bot", "gcp", "gh", "github", "gitlab", "hf", "hub",
    "huggingface", "id", "login", "mlflow", "neptune", "oauth", "openai", "refresh", "session", "slack", "swanlab",
    "use", "user", "wandb",
}  # fmt: skip
_KEY_OWNERS = {
    "access", "account", "anthropic", "api", "aws", "azure", "encryption", "gcp", "hf", "openai", "private", "secret",
    "service", "signing", "ssh", "swanlab", "wandb",
}  # fmt: skip

# Compared without the "s" of a plural, which "pass" has by nature.
_SECRET_STEMS = {word.removesuffix("s") for word in _SECRET_WORDS}

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LOOKS_SECRET = re.compile(
    r"hf_[A-Za-z0-9]{20,}"
    r"|sk[-_][A-Za-z0-9_-]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|[rps]k_(?:live|test)_[A-Za-z0-9]{10,}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{40,}|wandb_v1_[A-Za-z0-9_]{20,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|https://hooks\.slack\.com/[^\s\"']+|https://discord(?:app)?\.com/api/webhooks/[^\s\"']+"
    r"|(?<=://)[^/\s:@]{0,128}:[^/\s@]{1,256}(?=@)|(?<=://)[^/\s:@]{16,256}(?=@)"
    r"|(?i:(?<=bearer )|(?<=basic ))[A-Za-z0-9._~+/-]{12,}=*"
    # name=value in a text or an address: ?api_key=…, &sig=…, HF_TOKEN=…, password: …
    r"|(?i:(?<=key=)|(?<=token=)|(?<=secret=)|(?<=password=)|(?<=passwd=)|(?<=pwd=)|(?<=sig=)|(?<=signature=))"
    r"[^&\s\"']+"
)


def mask_text(text: str) -> str:
    """Replace what looks like a key, a token, a private key or a password in an address."""
    return _LOOKS_SECRET.sub(MASK, text) if len(text) >= 12 else text


def mask_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values with everything under a secret's name masked, at any depth."""
    return {name: _masked(name, value) for name, value in values.items()}


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Mask a command line: ``--hf-token x`` and ``--hf-token=x`` alike."""
    masked: list[str] = []
    after_secret = False
    for argument in arguments:
        name, equals, _value = argument.partition("=")
        if after_secret and not argument.startswith("--"):
            masked.append(MASK)
        elif equals and is_secret_name(name.lstrip("-")):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(mask_text(argument))
        after_secret = argument.startswith("-") and not equals and is_secret_name(argument.lstrip("-"))
    return masked


def is_secret_name(name: str) -> bool:
    """Tell whether what stands under a name is a secret."""
    words = [word.lower().removesuffix("s") for word in _WORDS.findall(name)]
    if not _SECRET_STEMS.isdisjoint(words) or "".join(words) in _SECRET_STEMS:
        return True
    if words and words[-1] == "token":
        is_plural = name.rstrip("_").lower().endswith("s")
        return not _TOKEN_OWNERS.isdisjoint(words[:-1]) or (len(words) == 1 and not is_plural)
    return bool(words) and words[-1] == "key" and not _KEY_OWNERS.isdisjoint(words[:-1])


def _masked(name: str, value: Any) -> Any:
    is_empty = value is None or isinstance(value, bool) or value in ("", [], {})
    if not is_empty and is_secret_name(name):
        return MASK
    if isinstance(value, dict):
        return mask_mapping(value)
    if isinstance(value, list):
        return [_masked("", item) for item in value]
    return value
