"""`wandb.Settings`, and the environment variables of W&B that have an effect here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tachograph._base.settings import parse_switch

__all__ = ["VARIABLES", "WandbSettings", "is_disabled"]

VARIABLES = {
    "dir": "WANDB_DIR",
    "entity": "WANDB_ENTITY",
    "group": "WANDB_RUN_GROUP",
    "id": "WANDB_RUN_ID",
    "job_type": "WANDB_JOB_TYPE",
    "mode": "WANDB_MODE",
    "name": "WANDB_NAME",
    "notes": "WANDB_NOTES",
    "project": "WANDB_PROJECT",
    "resume": "WANDB_RESUME",
    "tags": "WANDB_TAGS",
}
"""The variable that gives an argument of `init` its default. The API key is not among them: it is never read."""

_FIELDS = {
    "mode": "mode",
    "project": "project",
    "entity": "entity",
    "run_id": "id",
    "run_name": "name",
    "run_group": "group",
    "run_job_type": "job_type",
    "run_notes": "notes",
    "run_tags": "tags",
    "root_dir": "dir",
    "resume": "resume",
    "reinit": "reinit",
    "save_code": "save_code",
    "sync_tensorboard": "sync_tensorboard",
}
"""Fields of the settings, each with the argument of `init` that it stands for."""


class WandbSettings:
    """Settings of W&B. Only `silent` and the fields that stand for an argument of `init` have an effect."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def update(self, *others: Mapping[str, Any], **values: Any) -> None:
        """Set several fields."""
        for other in others:
            self.__dict__.update(other)
        self.__dict__.update(values)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `init` that the fields stand for."""
        arguments = {_FIELDS[name]: value for name, value in vars(self).items() if name in _FIELDS}
        return {name: value for name, value in arguments.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None  # every other field of W&B has its default


def is_disabled() -> bool:
    """Return whether `WANDB_DISABLED` says so."""
    return parse_switch(os.environ.get("WANDB_DISABLED", "")) is True
