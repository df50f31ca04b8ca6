"""`DatasetConfig`: one entry of `datasets`, with the names of Axolotl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tachograph.exceptions import did_you_mean
from tachograph.train._templates import check_template_name

__all__ = ["CustomFormat", "DatasetConfig", "Section"]


class Section(BaseModel):
    """A part of the config that accepts no unknown keys, and names the nearest one."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    foreign_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of Axolotl that are not supported, each with the reason."""

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            unknown = [str(key) for key in values if key not in cls.model_fields]
            if unknown:
                hints = [
                    f"unsupported key {key!r}: {cls.foreign_keys[key]}"
                    if key in cls.foreign_keys
                    else f"unknown key {key!r}{did_you_mean(key, cls.model_fields)}"
                    for key in unknown
                ]
                raise ValueError("; ".join(hints))
            return {key: value for key, value in values.items() if value is not None}
        return values


class CustomFormat(Section):
    """A format of your own: which columns hold which part, and how the prompt is written."""

    system_prompt: str = Field("", description="Text of the system prompt, where a row has none.")
    field_system: str = Field("system", description="Column with the system prompt.")
    field_instruction: str = Field("instruction", description="Column with the instruction.")
    field_input: str = Field("input", description="Column with further input; it may be empty.")
    field_output: str = Field("output", description="Column with the answer.")
    field_prompt: str = Field("prompt", description="Column with the prompt (rl).")
    field_chosen: str = Field("chosen", description="Column with the better answer (rl).")
    field_rejected: str = Field("rejected", description="Column with the worse answer (rl).")
    field_completion: str = Field("completion", description="Column with the answer (rl: kto).")
    field_label: str = Field("label", description="Column that says whether the answer is good (rl: kto).")
    format: str = Field("{instruction} {input}", description="The prompt, with the names in braces replaced.")
    no_input_format: str | None = Field(None, description="The prompt of a row without input.")
    system_format: str = Field("{system}", description="How the system prompt is written before the prompt.")

    @field_validator("format", "no_input_format", "system_format")
    @classmethod
    def _check_format(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                text.format(instruction="", input="", system="", prompt="")
            except (KeyError, IndexError, ValueError) as error:
                raise ValueError(
                    f"{text!r} cannot be filled in ({error!r}): use {{instruction}}, {{input}} and {{system}}, "
                    "and write other braces twice"
                ) from None
        return text


_OTHER_COLUMNS = "use `type: chat_template` with message_property_mappings, or a mapping in `type`"
_STEPS = "training of reward models is not supported"


class DatasetConfig(Section):
    """One entry of `datasets` or `test_datasets`."""

    foreign_keys = {
        "conversation": "use `type: chat_template` with chat_template",
        "field_human": _OTHER_COLUMNS,
        "field_model": _OTHER_COLUMNS,
        "input_format": "use `type` with a mapping that has `format`",
        "input_transform": "rows are not changed by functions; prepare the data before",
        "max_completion_length": _STEPS,
        "message_field_training_detail": "parts of a message cannot be chosen; use `type: input_output`",
        "preprocess_shards": "data is read in one pass; remove the key",
        "skip": "rows cannot be skipped; prepare the data before",
        "split_thinking": "the chat template splits reasoning; remove the key, or use field_thinking",
        "step_separator": _STEPS,
        "train_on_eot": "use train_on_eos, which is about every token that ends a message",
        "train_on_last_step_only": _STEPS,
    }
    path: str = Field(description="A file (JSONL, JSON, Parquet, CSV), a folder, or an id on the Hugging Face Hub.")
    type: str | CustomFormat | None = Field(
        None,
        description="The format of the rows: `chat_template`, `alpaca`, `completion`, `input_output`, a mapping such "
        "as `{field_instruction: …, field_output: …, format: …}`; with `rl` see [below](#preference-and-rl-data).",
    )
    split: str | None = Field(None, description="Split of a hub dataset or a `datasets` folder; `train` by default.")
    name: str | None = Field(None, description="Configuration of a hub dataset.")
    data_files: str | list[str] | None = Field(None, description="Files inside `path`, or of a hub dataset.")
    ds_type: Literal["json", "csv", "parquet", "arrow", "text"] | None = Field(
        None, description="Kind of file, if its name does not say so."
    )
    revision: str | None = Field(None, description="Revision of a hub dataset.")
    trust_remote_code: bool = Field(False, description="Must be false: scripts of datasets are not executed.")
    shards: int | None = Field(None, ge=1, description="Use only one of that many parts of the data.")
    shards_idx: int = Field(0, ge=0, description="Which part to use.")
    field: str = Field("text", description="Column with the text of `completion`.")
    text_column: str | None = Field(None, description="Same as `field`, in `pretraining_dataset`.")
    field_messages: str = Field("messages", description="Column with the list of messages.")
    field_tools: str = Field("tools", description="Column with the tools that the template shows.")
    field_system: str = Field("system", description="Column with a system prompt (`alpaca`, rl).")
    field_chosen: str = Field("chosen", description="Column with the better answer (rl).")
    field_rejected: str = Field("rejected", description="Column with the worse answer (rl).")
    field_completion: str = Field("completion", description="Column with the answer (rl: kto).")
    field_label: str = Field("label", description="Column that says whether the answer is good (rl: kto).")
    field_prompt: str = Field("prompt", description="Column with the prompt (rl).")
    message_property_mappings: dict[str, str] = Field(
        default_factory=lambda: {"role": "role", "content": "content"},
        description="Names of the fields of a message, such as `{role: from, content: value}`.",
    )
    message_field_role: str | None = Field(None, description="Older form of `message_property_mappings.role`.")
    message_field_content: str | None = Field(None, description="Older form of `message_property_mappings.content`.")
    field_thinking: str = Field("reasoning_content", description="Field of a message with the reasoning of an answer.")
    template_thinking_key: str = Field(
        "reasoning_content", description="Name of that field in the chat template, such as `thinking`."
    )
    message_field_training: str | None = Field(
        None, description="Field of a message that says whether to train on it, whatever its role."
    )
    roles: dict[str, list[str]] | None = Field(
        None, description="Further names of roles, such as `{assistant: [bot]}`."
    )
    roles_to_train: list[str] = Field(
        default_factory=lambda: ["assistant"], description="Roles whose messages are trained on."
    )
    train_on_inputs: bool | None = Field(None, description="Train on prompts, too; overrides the top-level key.")
    train_on_eos: Literal["turn", "last", "none"] = Field(
        "turn", description="Train on the end of each trained message, of the last one, or of none."
    )
    chat_template: str | None = Field(None, description="Template of this dataset; overrides the top-level key.")
    chat_template_jinja: str | None = Field(None, description="Template as text, or the path of a file.")
    drop_system_message: bool = Field(False, description="Remove system messages.")
    logprobs_field: str | None = Field(None, description="Column with a teacher's log-probabilities (plugin kd).")
    temperature: float | None = Field(None, gt=0, description="Temperature of those log-probabilities (plugin kd).")

    @field_validator("chat_template")
    @classmethod
    def _check_template(cls, value: str | None) -> str | None:
        if value is not None:
            check_template_name(value)
        return value

    @model_validator(mode="after")
    def _check(self) -> DatasetConfig:
        mapping = {"role": "role", "content": "content", **self.message_property_mappings}
        if self.message_field_role:
            mapping["role"] = self.message_field_role
        if self.message_field_content:
            mapping["content"] = self.message_field_content
        self.message_property_mappings = mapping
        if self.text_column:
            self.field = self.text_column
        if self.trust_remote_code:
            raise ValueError("trust_remote_code: scripts of datasets are not executed; use a data file instead")
        if self.shards_idx >= (self.shards or 1):
            raise ValueError(f"shards_idx={self.shards_idx} must be smaller than shards={self.shards or 1}")
        return self
