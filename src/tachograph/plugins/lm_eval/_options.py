"""The options of the plugin and of `tacho lm-eval`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from tachograph.plugins.lm_eval._tasks import parse_tasks

__all__ = ["LMEvalOptions"]


class LMEvalOptions(BaseModel):
    """The options of the LM Evaluation Harness."""

    lm_eval_tasks: list[str] = Field(
        description="Tasks, groups or tags of the harness; `name:5` evaluates with five examples in the prompt."
    )
    lm_eval_batch_size: int | Literal["auto"] = Field(8, description="Requests per batch, or `auto`.")
    lm_eval_post_train: bool = Field(True, description="Evaluate after training.")
    lm_eval_steps: int | None = Field(
        None, ge=1, description="Also evaluate during training, each time after this many steps."
    )
    lm_eval_model: str | None = Field(
        None, min_length=1, description="Model to evaluate instead of the trained one: a folder or a hub id."
    )
    lm_eval_include_path: str | list[str] | None = Field(None, description="Folders with YAML files of your own tasks.")
    lm_eval_include_defaults: bool = Field(
        True, description="Whether tasks that are not in `lm_eval_include_path` are searched in the harness."
    )
    lm_eval_limit: int | float | None = Field(
        None, gt=0, description="Use the first documents of each task only: a number, or a fraction below 1."
    )
    lm_eval_apply_chat_template: bool = Field(False, description="Format prompts with the tokenizer's chat template.")

    @field_validator("lm_eval_tasks")
    @classmethod
    def _check_tasks(cls, tasks: list[str]) -> list[str]:
        parse_tasks(tasks)
        return tasks

    @field_validator("lm_eval_batch_size", mode="before")
    @classmethod
    def _check_batch_size(cls, size: Any) -> Any:
        if size is None:  # a key without a value
            return cls.model_fields["lm_eval_batch_size"].default
        is_number = isinstance(size, int) and not isinstance(size, bool)
        if (is_number and size < 1) or not (is_number or size == "auto"):
            raise ValueError("expected a number of at least 1, or auto")
        return size
