"""Secrets are masked before they are written: by the name they stand under and by what they look like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MASK", "mask_arguments", "mask_mapping", "mask_text"]

MASK = "[masked]"

_SECRET_WORDS = {
    "apikey",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "secrets",
    "webhook",
}
_SECRET_PAIRS = {("access", "key"), ("account", "key"), ("api", "key"), ("private", "key"), ("secret", "key")}
# `pad_token` and `eos_token` are vocabulary; `hf_token` is a key. What stands in front of the word decides.
_TOKEN_OWNERS = {
    "access", "api", "auth", "aws", "azure", "bearer", "bot", "gcp", "gh", "github", "gitlab", "hf", "hub",
    "huggingface", "id", "login", "mlflow", "neptune", "oauth", "openai", "refresh", "session", "slack", "swanlab",
    "use", "user", "wandb",
}  # fmt: skip

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LOOKS_SECRET = re.compile(
    r"hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{40,}|wandb_v1_[A-Za-z0-9_]{20,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|https://hooks\.slack\.com/[^\s\"']+|https://discord(?:app)?\.com/api/webhooks/[^\s\"']+"
    r"|(?<=://)[^/\s:@]{1,128}:[^/\s@]{1,256}(?=@)"
    r"|(?i:(?<=bearer )[A-Za-z0-9._~+/-]{16,}=*)"
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
        if after_secret and not argument.startswith("-"):
            masked.append(MASK)
        elif equals and _is_secret(name.lstrip("-")):
            masked.append(f"{name}={MASK}")
        else:
            masked.append(mask_text(argument))
        after_secret = argument.startswith("-") and not equals and _is_secret(argument.lstrip("-"))
    return masked


def _masked(name: str, value: Any) -> Any:
    if isinstance(value, (str, dict, list)) and value and _is_secret(name):
        return MASK
    if isinstance(value, dict):
        return mask_mapping(value)
    if isinstance(value, list):
        return [_masked(name, item) for item in value]
    return value


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    if _SECRET_WORDS.intersection(words) or "".join(words) in _SECRET_WORDS:
        return True
    if _SECRET_PAIRS.intersection(itertools.pairwise(words)):
        return True
    if words and words[-1] == "token":
        return len(words) == 1 or not _TOKEN_OWNERS.isdisjoint(words[:-1])
    return False
