"""The functions of `wandb.util` that training code uses."""

from __future__ import annotations

import secrets
import string

__all__ = ["generate_id"]

_CHARACTERS = string.ascii_lowercase + string.digits


def generate_id(length: int = 8) -> str:
    """Return a random id of lower-case letters and digits."""
    return "".join(secrets.choice(_CHARACTERS) for _ in range(length))
