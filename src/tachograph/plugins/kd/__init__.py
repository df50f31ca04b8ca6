"""Knowledge distillation: train a student on the distributions of a teacher.

The teacher is one of three:

- log-probabilities of its top k tokens in the dataset (`target_token_ids`, `target_logprobs`, `target_mask`);
- a second model in this process (`kd_teacher`), with its full vocabulary;
- a vLLM or SGLang server (`kd_online_server_base_url`), which scores each batch.

`_loss.py` has the loss, `_targets.py` the convention and formats of targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator

from tachograph.exceptions import PluginError
from tachograph.plugins._base import BasePlugin, LossResult, PluginConfig, Slots, TrainingSetup
from tachograph.plugins._device_timer import DeviceTimer
from tachograph.plugins._output_head import HeadInput, OutputHead, check_setup
from tachograph.plugins.kd._loss import DenseTeacher, KDLoss, TopKTargets, kd_loss
from tachograph.plugins.kd._server import TeacherServer, TeacherServerError
from tachograph.plugins.kd._targets import (
    LOGPROBS_COLUMN,
    SOURCE_COLUMNS,
    TARGET_COLUMNS,
    TargetCollator,
    batch_targets,
    row_targets,
)

__all__ = [
    "TARGET_COLUMNS",
    "DenseTeacher",
    "KDLoss",
    "KDOptions",
    "KDPlugin",
    "TargetCollator",
    "TopKTargets",
    "kd_loss",
    "row_targets",
]

_DEFAULT_TOPK = 20
"""As many as a vLLM server returns unless it is configured otherwise."""


class KDOptions(BaseModel):
    """The options of knowledge distillation."""

    kd_trainer: bool = Field(True, description="`false` turns the plugin off.")
    kd_alpha: float | None = Field(None, ge=0, description="The factor of the divergence from the teacher; 1 if unset.")
    kd_ce_alpha: float | None = Field(
        None, ge=0, description="The factor of the cross entropy with the labels; 0 if unset."
    )
    kd_temperature: float | None = Field(None, gt=0, description="The temperature of both distributions; 1 if unset.")
    kd_temperature_min: float | None = Field(
        None, gt=0, description="The temperature at the end of training; it falls to it along a cosine."
    )
    kd_beta: float = Field(
        0.0, ge=0, le=1, description="0: forward Kullback-Leibler divergence; 1: reverse; between: Jensen-Shannon."
    )
    kd_normalize_topk: bool | None = Field(
        None, description="Renormalise the student's probabilities over the teacher's top k tokens."
    )
    kd_chunk_size: int | None = Field(None, ge=1, description="Tokens per chunk of the loss; chosen if unset.")
    kd_teacher: str | None = Field(None, description="Path or hub id of a teacher that runs in this process.")
    kd_teacher_dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="The type of that teacher's weights."
    )
    kd_online_server_base_url: str | None = Field(None, description="Address of a server that runs the teacher.")
    kd_online_server: Literal["vllm", "sglang"] = Field("vllm", description="The kind of that server.")
    kd_online_topk: int | None = Field(None, ge=1, description="Tokens per position that it returns; 20 if unset.")
    kd_online_timeout: float = Field(120, gt=0, description="Seconds that one request may take.")
    kd_online_model: str | None = Field(None, description="The model on the server; the first one if unset.")

    @model_validator(mode="after")
    def _check(self) -> KDOptions:
        url = self.kd_online_server_base_url
        if not self.kd_trainer:
            return self
        if self.kd_alpha == 0:
            raise ValueError("kd_alpha=0 ignores the teacher: set it above 0, or remove the plugin")
        if self.kd_temperature_min is not None and self.kd_temperature_min > (self.kd_temperature or 1.0):
            raise ValueError(
                f"kd_temperature_min={self.kd_temperature_min:g} must not be above "
                f"kd_temperature={self.kd_temperature or 1.0:g}: the temperature falls"
            )
        if self.kd_teacher is not None and url is not None:
            raise ValueError("kd_teacher and kd_online_server_base_url are two teachers: remove one of them")
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"kd_online_server_base_url={url!r} must start with http:// or https://")
        if self.kd_online_topk is not None and url is None:
            raise ValueError(f"kd_online_topk={self.kd_online_topk} has no effect without kd_online_server_base_url")
        if self.kd_normalize_topk and self.kd_teacher is not None:
            raise ValueError("kd_normalize_topk=True has no effect with kd_teacher, which has the full vocabulary")
        return self


class KDPlugin(BasePlugin):
    """Trains a student on the distributions of a teacher."""

    name = "kd"
    needs = ("a teacher: log-probabilities in the data, a model or a server",)
    Options = KDOptions
    slots = (Slots.LOSS,)
    measured = (
        "the loss alone on an H200 (8,192 tokens, vocabulary of 128,256, hidden size 2048, bfloat16): 1.47x the time "
        "and 0.16x the memory of the usual one with a teacher in the process; 1.01x and 0.11x with log-probabilities "
        "of 20 tokens",
    )

    options: KDOptions
    _head: OutputHead

    def __init__(self) -> None:
        self._teacher: Any = None
        self._teacher_head: OutputHead | None = None
        self._server: TeacherServer | None = None
        self._timer = DeviceTimer(self.report, "teacher_ms")

    @property
    def _is_offline(self) -> bool:
        return self.options.kd_teacher is None and self.options.kd_online_server_base_url is None

    def off_reason(self, cfg: PluginConfig) -> str:
        """Return whether the config turns it off."""
        return "" if self.options.kd_trainer else "kd_trainer is false"

    def claims(self, cfg: PluginConfig) -> Iterable[str]:
        """Return the loss, and the collator if the targets are in the dataset."""
        return (Slots.LOSS, Slots.COLLATOR) if self._is_offline else (Slots.LOSS,)

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return where the targets come from."""
        options = self.options
        if model is not None:
            OutputHead(self, model)
        if options.kd_teacher is not None:
            from transformers import AutoConfig

            try:
                config = AutoConfig.from_pretrained(options.kd_teacher)
            except (OSError, ValueError) as error:
                raise self._teacher_error(error) from error
            if model is not None:
                self._check_vocabulary(
                    int(config.get_text_config().vocab_size), int(model.config.get_text_config().vocab_size)
                )
            return [f"runs the teacher {options.kd_teacher} ({config.model_type}) on every batch"]
        if options.kd_online_server_base_url is not None:
            return [
                f"asks {options.kd_online_server_base_url} for the {options.kd_online_topk or _DEFAULT_TOPK} most "
                f"likely tokens of every position"
            ]
        return ["uses the log-probabilities in the dataset (`logprobs_field`)"]

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Check that the teacher can be reached, or that all datasets have log-probabilities."""
        check_setup(self, cfg, setup)
        url = self.options.kd_online_server_base_url
        if url is not None:
            if cfg.sample_packing:
                raise self.error("a server scores rows that are not packed: remove sample_packing, or use kd_teacher")
            self._connect(url)
        elif self._is_offline:
            columns = _columns_of(setup.train_dataset)
            if columns is not None and not _has_targets(columns):
                raise self._no_logprobs_error(columns)
            has_logprobs = [bool(dataset.get("logprobs_field")) for dataset in cfg.datasets or []]
            if any(has_logprobs) and not all(has_logprobs):
                raise self.error(
                    f"datasets[{has_logprobs.index(False)}] has no log-probabilities of a teacher: set its "
                    "`logprobs_field`, or use kd_teacher or kd_online_server_base_url"
                )

    # Set-up ----------------------------------------------------------------------------------------------------------

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Patch the head of the student, and load or find the teacher."""
        head = OutputHead(self, trainer.model)
        options = self.options
        if options.kd_teacher is not None:
            self._load_teacher(trainer, head)
        elif options.kd_online_server_base_url is not None:
            self._server, model = self._connect(options.kd_online_server_base_url)
            self.report.changed("teachers connected", [f"{model} at {options.kd_online_server_base_url}"])
        else:
            self._use_dataset(trainer, head)
        head.attach(trainer)
        self._head = head

    def _load_teacher(self, trainer: Any, head: OutputHead) -> None:
        from transformers import AutoModelForCausalLM

        path = str(self.options.kd_teacher)
        try:
            teacher = AutoModelForCausalLM.from_pretrained(path, dtype=self.options.kd_teacher_dtype)
        except (OSError, ValueError) as error:
            raise self._teacher_error(error) from error
        teacher.requires_grad_(False).eval().to(trainer.args.device)
        # With a cache, models do not look for the samples of a packed row: each would attend to the ones before it.
        for config in (teacher.config, teacher.config.get_text_config()):
            config.use_cache = False
        teacher_head = OutputHead(self, teacher)
        self._check_vocabulary(teacher_head.vocabulary, head.vocabulary)
        teacher_head.patch()
        self._teacher, self._teacher_head = teacher, teacher_head
        self.report.changed("teachers loaded", [path])

    def _teacher_error(self, error: Exception) -> Exception:
        return self.error(
            f"cannot load kd_teacher={self.options.kd_teacher!r}: {error}. "
            f"It must be a folder with a causal language model, or a hub id."
        )

    def _check_vocabulary(self, teacher: int, student: int) -> None:
        if teacher != student:
            raise self.error(
                f"the teacher has {teacher} tokens and the student {student}: use a teacher with the same tokenizer, "
                f"or resize the embeddings of one of them"
            )

    def _connect(self, url: str) -> tuple[TeacherServer, str]:
        """Return the server and the name of its model."""
        options = self.options
        server = TeacherServer(
            url,
            kind=options.kd_online_server,
            topk=options.kd_online_topk or _DEFAULT_TOPK,
            timeout_s=options.kd_online_timeout,
            model=options.kd_online_model,
        )
        try:
            server.check()
            return server, server.connect()
        except TeacherServerError as error:
            raise self.error(f"{error}. Start the server first, or correct kd_online_server_base_url.") from error

    def _use_dataset(self, trainer: Any, head: OutputHead) -> None:
        columns = _columns_of(trainer.train_dataset)
        if getattr(trainer.args, "packing", False) or (columns is not None and "position_ids" in columns):
            raise self.error(
                "packing mixes the rows that the log-probabilities belong to: set `sample_packing` (packing) to false, "
                "or use kd_teacher"
            )
        if columns is not None and not _has_targets(columns):
            raise self._no_logprobs_error(columns)
        collator = TargetCollator(trainer.data_collator, head.vocabulary, error=_row_error)
        self._check_rows(trainer.train_dataset, collator)
        trainer._set_signature_columns_if_needed()  # otherwise the trainer drops columns that the model does not use
        if trainer._signature_columns is not None:
            self.patches.replace(trainer, "_signature_columns", [*trainer._signature_columns, *SOURCE_COLUMNS])
        self.patches.replace(trainer, "data_collator", collator)
        self.report.changed("columns added to batches", TARGET_COLUMNS)

    def _no_logprobs_error(self, columns: set[str]) -> Exception:
        return self.error(
            f"the dataset has no log-probabilities of a teacher, only {', '.join(sorted(columns))}: set "
            f"`logprobs_field` of the dataset, create {TARGET_COLUMNS[0]} and {TARGET_COLUMNS[1]} with "
            f"tachograph.plugins.kd.row_targets, or use kd_teacher or kd_online_server_base_url"
        )

    def _check_rows(self, dataset: Any, collator: TargetCollator) -> None:
        """Check all rows, because a bad one would end the training when it is used."""
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            return
        for index in range(len(dataset)):
            try:
                collator.check(dataset[index])
            except (ValueError, TypeError, KeyError, RuntimeError) as error:
                raise self.error(f"row {index} of the dataset: {error}") from error

    # Training --------------------------------------------------------------------------------------------------------

    def compute_loss(self, trainer: Any, model: Any, inputs: dict[str, Any]) -> LossResult:
        """Return the loss of a batch."""
        targets = {key: inputs[key] for key in TARGET_COLUMNS if key in inputs}
        inputs = {key: value for key, value in inputs.items() if key not in TARGET_COLUMNS}
        labels = self._head.labels_of(inputs)
        num_labels = 0
        if self._is_offline and not targets:
            if model.training:
                raise self.error(
                    f"the batch has no {TARGET_COLUMNS[0]}, only {', '.join(sorted(inputs))}: "
                    f"use the trainer's data collator, which keeps them"
                )
            outputs = model(**inputs)  # evaluation without a teacher: the cross entropy
            num_labels = int((labels != -100).sum())
            return LossResult(outputs.loss * num_labels, num_labels, outputs)
        with self._timer.measure(labels.device):
            teacher = self._targets_of(inputs, targets)

        def loss(head: HeadInput) -> torch.Tensor:
            nonlocal num_labels
            result = self._loss(head, teacher, self._temperature(trainer.state))
            num_labels = result.num_labels
            return result.total / max(num_labels, 1)

        outputs = self._head.run(model, inputs, loss)
        mean = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        needs_logits = not model.training and self._head.needs_logits
        reported_outputs = model(**inputs) if needs_logits else {"loss": mean}
        return LossResult(mean * num_labels, num_labels, reported_outputs)

    def _targets_of(self, inputs: dict[str, Any], targets: dict[str, Any]) -> TopKTargets | DenseTeacher:
        """Return the teacher's distributions of a batch, one row per token."""
        if self._teacher_head is not None:
            return self._run_teacher(self._teacher_head, inputs)
        if self._server is not None:
            targets = self._ask_server(self._server, inputs)
        device = inputs["input_ids"].device
        return TopKTargets(*(targets[key].flatten(0, 1).to(device) for key in TARGET_COLUMNS))

    def _run_teacher(self, head: OutputHead, inputs: dict[str, Any]) -> DenseTeacher:
        head_inputs: list[HeadInput] = []

        def capture(entry: HeadInput) -> torch.Tensor:
            head_inputs.append(entry)
            return entry.hidden_states.new_zeros(())

        with torch.no_grad():
            head.run(self._teacher, inputs, capture)
        entry = head_inputs[0]
        return DenseTeacher(entry.hidden_states, entry.weight, entry.bias, entry.scale, entry.softcap)

    def _ask_server(self, server: TeacherServer, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        if mask is None or mask.shape != ids.shape:
            raise self.error(
                "the batch has no attention_mask with a value per token: an online teacher needs rows that are "
                "padded, not packed. Turn packing and padding_free off."
            )
        positions = [row.nonzero().squeeze(1).tolist() for row in mask.cpu()]
        tokens = ids.cpu()
        try:
            candidates = server.score(
                [tokens[index, row_positions].tolist() for index, row_positions in enumerate(positions)]
            )
            return batch_targets(candidates, positions, tuple(ids.shape), self._head.vocabulary)
        except (TeacherServerError, ValueError) as error:
            raise self.error(str(error)) from error

    def _loss(self, head: HeadInput, teacher: TopKTargets | DenseTeacher, temperature: float) -> KDLoss:
        options = self.options
        rows = len(teacher[0])
        if rows != len(head.labels):
            raise self.error(
                f"the teacher has {rows} positions and the student {len(head.labels)}: adapters that add virtual "
                f"tokens (prompt or prefix tuning) are not supported"
            )
        if isinstance(teacher, DenseTeacher):
            teacher = teacher._replace(hidden_states=teacher.hidden_states.to(head.hidden_states.device))
        result: KDLoss = kd_loss(
            head.hidden_states,
            head.weight,
            head.labels,
            teacher,
            alpha=1.0 if options.kd_alpha is None else options.kd_alpha,
            ce_alpha=options.kd_ce_alpha or 0.0,
            temperature=temperature,
            beta=options.kd_beta,
            normalize_topk=bool(options.kd_normalize_topk),
            bias=head.bias,
            scale=head.scale,
            softcap=head.softcap,
            ignore_index=head.ignore_index,
            chunk_size=options.kd_chunk_size,
        )
        self._report(result, temperature, is_dense=isinstance(teacher, DenseTeacher))
        return result

    def _report(self, loss: KDLoss, temperature: float, *, is_dense: bool) -> None:
        report = self.report
        num_labels, num_targets = max(loss.num_labels, 1), loss.num_targets.clamp(min=1)
        report.set("temperature", temperature)
        report.add("kl", loss.divergence / num_targets)
        report.add("ce", loss.cross_entropy / num_labels)
        report.add("total", loss.total.detach() / num_labels)
        report.add("target_share", loss.num_targets / num_labels)
        report.add("agree_at_1", loss.agreements / num_targets)
        if not is_dense:
            report.add("teacher_topk_mass", loss.topk_mass / num_targets)

    def _temperature(self, state: Any) -> float:
        """Return the temperature of the current step."""
        high, low = self.options.kd_temperature or 1.0, self.options.kd_temperature_min
        if low is None or not state.max_steps:
            return high
        progress = min(state.global_step / state.max_steps, 1.0)
        return low + (high - low) * (1 + math.cos(math.pi * progress)) / 2

    def is_active(self) -> bool:
        """Return whether a loss was computed since the last call, and read the times of a GPU."""
        self._timer.flush()
        return super().is_active()

    def post_train_unload(self, cfg: PluginConfig) -> None:
        """Release the teacher."""
        self._teacher = self._teacher_head = None


def _has_targets(columns: set[str]) -> bool:
    return LOGPROBS_COLUMN in columns or columns.issuperset(TARGET_COLUMNS[:2])


def _row_error(problem: str) -> Exception:
    """Return the error of a row that is found while training; a function, because workers of the loader pickle it."""
    return PluginError(f"plugin {KDPlugin.name}: a row of the dataset: {problem}")


def _columns_of(dataset: Any) -> set[str] | None:
    """Return the columns of a dataset; None if they are not known before it is read."""
    columns = getattr(dataset, "column_names", None)
    if columns is not None:
        return set(columns)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and len(dataset):
        return set(dataset[0])
    return None
