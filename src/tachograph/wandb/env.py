"""The names of W&B's environment variables."""

from __future__ import annotations

__all__ = ["API_KEY", "DIR", "ENTITY", "MODE", "NAME", "PROJECT", "RUN_ID", "SILENT"]

API_KEY = "WANDB_API_KEY"
DIR = "WANDB_DIR"
ENTITY = "WANDB_ENTITY"
MODE = "WANDB_MODE"
NAME = "WANDB_NAME"
PROJECT = "WANDB_PROJECT"
RUN_ID = "WANDB_RUN_ID"
SILENT = "WANDB_SILENT"
