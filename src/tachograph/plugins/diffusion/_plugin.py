"""The plugin: replaces the loss of a trainer by the loss of masked diffusion, and records samples.

The noise of a training step is drawn from a generator that is seeded with the step, and continues through the batches
that the step accumulates. So it does not depend on how a step is divided, and a resumed training draws the same noise
without a state in the checkpoint. Evaluations start with the same seed each time, so their losses are comparable.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import guard, warn
from tachograph.exceptions import NoRunError
from tachograph.plugins._base import BasePlugin, LossResult, PluginConfig, TrainingSetup
from tachograph.plugins.diffusion._process import (
    DiffusionLoss,
    NoisyBatch,
    Segments,
    attention_mask_for,
    diffusion_loss,
    find_segments,
    forward_process,
    shift_logits,
)
from tachograph.plugins.diffusion._sampling import DiffusionSample, attention_of, evaluating, sample
from tachograph.plugins.diffusion._tokens import (
    DEFAULT_MASK_TOKEN,
    choose_mask_token,
    find_mask_token,
    special_ids_of,
)
from tachograph.recorder import current_run

__all__ = ["DiffusionConfig", "DiffusionOptions", "DiffusionPlugin"]

_NOT_MODEL_INPUTS = {"input_ids", "attention_mask", "labels", "num_items_in_batch", "shift_labels"}
_TABLE = "diffusion"


class DiffusionConfig(BaseModel):
    """The section `diffusion` of a config."""

    model_config = ConfigDict(extra="forbid")

    noise_schedule: Literal["linear", "cosine"] = Field(
        "linear", description="How the masking probability grows with the time."
    )
    min_mask_ratio: float | None = Field(
        None, description="A lower limit of the masking probability; none if it is not set."
    )
    max_mask_ratio: float | None = Field(
        None, description="An upper limit of the masking probability; none if it is not set."
    )
    num_diffusion_steps: int | None = Field(
        None, ge=1, description="Draw the time from this many values; from all of [0, 1) if it is not set."
    )
    eps: float = Field(1e-3, gt=0, lt=1, description="The masking probability at time 0.")
    importance_weighting: bool = Field(True, description="Weight the loss of each token with 1/p.")
    mask_token_id: int | None = Field(None, ge=0, description="The id of an existing token to use as mask token.")
    mask_token_str: str | None = Field(
        None, description=f"The mask token as text; added if it does not exist. `{DEFAULT_MASK_TOKEN}` by default."
    )
    generate_samples: bool = Field(True, description="Generate and record samples while training.")
    generation_interval: int = Field(100, ge=1, description="Steps between two sets of samples.")
    num_generation_samples: int = Field(3, ge=1, description="Samples per set.")
    generation_steps: int = Field(128, ge=1, description="Steps to generate a sample.")
    generation_temperature: float = Field(0.0, ge=0, description="0 takes the most likely tokens.")
    generation_max_length: int = Field(100, ge=1, description="Tokens of a sample, including its prompt.")

    @model_validator(mode="after")
    def _check(self) -> DiffusionConfig:
        low = 0.0 if self.min_mask_ratio is None else self.min_mask_ratio
        high = 1.0 if self.max_mask_ratio is None else self.max_mask_ratio
        if not 0 <= low <= high <= 1 or high == 0:
            raise ValueError(
                f"min_mask_ratio={self.min_mask_ratio} and max_mask_ratio={self.max_mask_ratio} must be ratios from 0 "
                f"to 1, the first not above the second"
            )
        if self.mask_token_id is not None and self.mask_token_str:
            raise ValueError(
                f"mask_token_id={self.mask_token_id} and mask_token_str={self.mask_token_str!r} both name the mask "
                f"token: remove one"
            )
        return self


class DiffusionOptions(BaseModel):
    """The options of the plugin."""

    diffusion: DiffusionConfig = Field(
        DiffusionConfig.model_validate({}), description="The objective, the mask token and the samples."
    )


class _Example(NamedTuple):
    """A sequence that samples are generated from."""

    ids: list[int]
    labels: list[int] | None


class _EvaluationOutputs(NamedTuple):
    logits: torch.Tensor
    noisy: NoisyBatch
    segments: Segments


class DiffusionPlugin(BasePlugin):
    """Trains a causal language model by masked diffusion."""

    name = "diffusion"
    Options = DiffusionOptions
    measured = (
        "time of a step compared with next-token prediction: 1.14 on an H200 (12 layers, hidden size 2048, 8 x 2048 "
        "tokens, bfloat16), 1.06 on a CPU (4 layers, hidden size 128)",
        "memory: 0.99 of next-token prediction on the H200",
    )

    options: DiffusionOptions

    def __init__(self) -> None:
        self.mask_token_id: int | None = None
        self._special_ids: set[int] = set()
        self._attention = "sdpa"
        self._tokenizer: Any = None
        self._generator = torch.Generator()
        self._seeded_for: tuple[str, int] | None = None
        self._examples: list[_Example] = []
        self.generates_samples = False

    def plan(self, cfg: PluginConfig, model: Any) -> list[str]:
        """Return the objective and the mask token."""
        self._check_config(cfg)
        options = self.options.diffusion
        schedule = "(1 - cos(t * pi / 2))" if options.noise_schedule == "cosine" else "t"
        lines = [f"masks tokens with p = (1 - {options.eps:g}) * {schedule} + {options.eps:g}"]
        if options.min_mask_ratio is not None or options.max_mask_ratio is not None:
            lines.append(f"limits p to {options.min_mask_ratio or 0:g} … {options.max_mask_ratio or 1:g}")
        if options.num_diffusion_steps is not None:
            lines.append(f"draws t from {options.num_diffusion_steps} values")
        token = options.mask_token_id if options.mask_token_id is not None else options.mask_token_str
        lines.append(
            f"mask token: {token if token not in (None, '') else f'from the tokenizer, or {DEFAULT_MASK_TOKEN}'}"
        )
        if model is not None:
            self._check_model(model)
            lines.append("attention in both directions")
        return lines

    def check_setup(self, cfg: PluginConfig, setup: TrainingSetup) -> None:
        """Check the mask token."""
        options = self.options.diffusion
        choose_mask_token(
            setup.model, setup.tokenizer, mask_token_id=options.mask_token_id, mask_token_str=options.mask_token_str
        )

    def pre_model_load(self, cfg: PluginConfig) -> None:
        """Check the config before the model is loaded."""
        self._check_config(cfg)

    def post_model_build(self, cfg: PluginConfig, model: Any) -> None:
        """Check the model."""
        self._check_model(model)

    def get_trainer_cls(self, cfg: PluginConfig) -> type | None:
        """Return the mixin that counts samples and evaluates."""
        return DiffusionTrainerMixin

    def post_trainer_create(self, cfg: PluginConfig, trainer: Any) -> None:
        """Find or add the mask token, and check that attention works in both directions."""
        options = self.options.diffusion
        model = trainer.accelerator.unwrap_model(trainer.model)
        tokenizer = getattr(trainer, "processing_class", None)
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has a tokenizer
        parallelism = getattr(trainer.accelerator, "parallelism_config", None)
        if getattr(parallelism, "cp_size", 1) > 1 or getattr(parallelism, "sp_size", 1) > 1:
            raise self.error("it does not support context or sequence parallelism: set their sizes to 1")
        num_rows = model.get_input_embeddings().weight.shape[0]
        token = find_mask_token(
            model,
            self._tokenizer,
            mask_token_id=options.mask_token_id,
            mask_token_str=options.mask_token_str,
            may_resize=trainer.optimizer is None,
        )
        self.mask_token_id = token.id
        self.report.changed("mask token", [f"{token.text or '?'} ({token.id})"])
        if token.num_rows_added:
            self.report.changed("embeddings resized", [f"{num_rows} → {num_rows + token.num_rows_added} tokens"])
        if token.is_new and not any(value.requires_grad for value in model.get_input_embeddings().parameters()):
            warn(
                "plugin diffusion: the embedding of the new mask token is not trained, because the embeddings are "
                "frozen: train them as well, or set diffusion.mask_token_id to an existing, unused token"
            )
        self._special_ids = special_ids_of(model, self._tokenizer)
        self._attention = attention_of(model)
        self._check_attention(model)
        self.generates_samples = options.generate_samples and self._can_generate(trainer)
        if self.generates_samples:
            self._choose_examples(trainer)

    def add_callbacks_post_trainer(self, cfg: PluginConfig, trainer: Any) -> list[Any]:
        """Return the callback that generates samples and ends evaluations."""
        return [_DiffusionCallback(self, trainer)]

    # Loss -------------------------------------------------------------------------------------------------------------

    def compute_loss(self, trainer: Any, model: Any, inputs: dict[str, Any]) -> LossResult:
        """Return the loss of the masked tokens of a batch."""
        if "input_ids" not in inputs:
            raise self.error(
                f"a batch has no input_ids, but {', '.join(inputs)}: it works with pre-training and SFT, "
                f"not with preference or reward training"
            )
        options = self.options.diffusion
        ids, padding, labels = inputs["input_ids"], inputs.get("attention_mask"), inputs.get("labels")
        positions = inputs.get("position_ids")
        segments = find_segments(ids, padding, positions, labels)
        noisy = forward_process(
            ids,
            padding,
            labels,
            mask_token_id=self._mask_id(),
            special_ids=sorted(self._special_ids),
            position_ids=positions,
            eps=options.eps,
            schedule=options.noise_schedule,
            min_ratio=options.min_mask_ratio,
            max_ratio=options.max_mask_ratio,
            num_steps=options.num_diffusion_steps,
            generator=self._noise(trainer, model.training),
        )
        others = {name: value for name, value in inputs.items() if name not in _NOT_MODEL_INPUTS}
        mask = attention_mask_for(segments, self._attention, _dtype(model))
        outputs = model(**{"use_cache": False, **others}, input_ids=noisy.input_ids, attention_mask=mask)
        loss = diffusion_loss(
            outputs.logits,
            ids,
            noisy.mask,
            noisy.probability,
            segments,
            labels,
            importance_weighting=options.importance_weighting,
        )
        if model.training:
            self._report(loss, noisy, segments, labels)
            if self.generates_samples and len(self._examples) < options.num_generation_samples:
                self._keep_examples(ids, labels, segments)
        is_mean = labels is None and not options.importance_weighting
        return LossResult(
            total=loss.total / max(loss.num_masked, 1) if is_mean else loss.total,
            num_items=None if is_mean else loss.num_items,
            outputs=outputs if model.training else _EvaluationOutputs(outputs.logits, noisy, segments),
        )

    def num_items(self, batches: list[Any]) -> torch.Tensor | None:
        """Return the number of items that the loss of the batches of one step is divided by; None for a mean."""
        if not batches or any("input_ids" not in batch for batch in batches):
            return None
        if all(batch.get("labels") is not None for batch in batches):
            keys = ("input_ids", "attention_mask", "position_ids", "labels")
            counts = [find_segments(*(batch.get(key) for key in keys)).num_samples for batch in batches]
            return torch.stack(counts).sum()
        if self.options.diffusion.importance_weighting:
            return torch.tensor(sum(batch["input_ids"].numel() for batch in batches))
        return None

    def end_evaluation(self) -> None:
        """Let the next evaluation draw the same noise as this one."""
        self._seeded_for = None

    def _noise(self, trainer: Any, is_training: bool) -> torch.Generator:
        """Return the source of noise: seeded for each training step, and for each evaluation."""
        purpose = ("train", int(trainer.state.global_step)) if is_training else ("evaluate", 0)
        if purpose != self._seeded_for:
            self._seeded_for = purpose
            parallelism = getattr(trainer.accelerator, "parallelism_config", None)
            # Ranks that share a batch (tensor parallelism) must draw the same noise.
            replica = trainer.args.process_index // int(getattr(parallelism, "non_data_parallel_size", 1) or 1)
            seed = f"{trainer.args.seed} {replica} {purpose[0]} {purpose[1]}"
            digest = hashlib.blake2b(seed.encode(), digest_size=7).digest()
            self._generator.manual_seed(int.from_bytes(digest, "big"))
        return self._generator

    def _report(self, loss: DiffusionLoss, noisy: NoisyBatch, segments: Segments, labels: torch.Tensor | None) -> None:
        report, num_masked = self.report, loss.num_masked
        num_tokens = (segments.ids > 0).sum().clamp(min=1)
        report.count("num_masked_tokens", num_masked)
        report.add("mask_ratio", num_masked / num_tokens, num_tokens)
        report.add("avg_p_mask", noisy.probability.sum() / num_tokens, num_tokens)
        if num_masked:
            report.add("accuracy", loss.num_correct / num_masked, num_masked)
            report.add("ce_loss", loss.cross_entropy / num_masked, num_masked)
            report.add("importance_weight_avg", loss.weight / num_masked, num_masked)
        if labels is not None:
            num_answers = ((labels != -100) & (segments.ids > 0)).sum()
            num_samples = segments.num_samples.clamp(min=1)
            report.add("answer_ratio", num_answers / num_tokens, num_tokens)
            report.add("avg_answer_length", num_answers / num_samples, num_samples)

    def _mask_id(self) -> int:
        if self.mask_token_id is None:
            raise self.error("it has no mask token: the trainer was not completed with `session.attach`")
        return self.mask_token_id

    # Checks -----------------------------------------------------------------------------------------------------------

    def _check_config(self, cfg: PluginConfig) -> None:
        if cfg.rl:
            raise self.error(f"it works with pre-training and SFT, not with rl: {cfg.rl}: remove one of them")

    def _check_model(self, model: Any) -> None:
        if getattr(model.config, "is_encoder_decoder", False):
            raise self.error(f"{type(model).__name__} has an encoder and a decoder: choose a causal language model")
        attention_of(model)

    def _check_attention(self, model: Any) -> None:
        """Check that the model looks in both directions, and not at padding: a model may ignore its mask."""
        if any(value.device.type == "meta" or value.numel() == 0 for value in model.parameters()):
            return  # sharded: it cannot run yet
        num_tokens = model.get_input_embeddings().weight.shape[0]
        first, *others = [token for token in range(num_tokens) if token not in self._special_ids][:3]
        rows = [[first, other, other, other] for other in others]
        ids = torch.tensor(rows, device=next(model.parameters()).device)
        padding = torch.tensor([[1, 0, 0, 0]], device=ids.device).expand_as(ids)
        differences = []
        for mask in (None, padding):
            attention = attention_mask_for(find_segments(ids, mask), self._attention, _dtype(model))
            try:
                with evaluating(model):
                    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, 0].float()
            except Exception as error:
                raise self.error(
                    f"{type(model).__name__} cannot be called with an attention mask for both directions: "
                    f"{type(error).__name__}: {error}"
                ) from error
            differences.append(float((logits[0] - logits[1]).abs().max()))
        if differences[0] == 0:
            raise self.error(
                f"{type(model).__name__} does not look at later tokens, whatever its attention mask is: choose a model "
                f"whose layers all use attention"
            )
        if differences[1] > 1e-3 * differences[0]:
            raise self.error(f"{type(model).__name__} looks at padding, although its attention mask hides it")

    # Samples ----------------------------------------------------------------------------------------------------------

    def _can_generate(self, trainer: Any) -> bool:
        problem = None
        if self._tokenizer is None:
            problem = "the trainer has no tokenizer (processing_class)"
        elif getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
            problem = "the model is sharded (FSDP or DeepSpeed), and only rank 0 would run it"
        if problem is not None:
            warn(f"plugin diffusion: no samples are generated, because {problem}; set generate_samples: false")
        return problem is None

    def _choose_examples(self, trainer: Any) -> None:
        """Take the first sequences of the evaluation data; without any, `_keep_examples` takes training sequences."""
        options = self.options.diffusion
        data = getattr(trainer, "eval_dataset", None)
        if data is None or not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or isinstance(data, dict):
            return
        for index in range(min(len(data), options.num_generation_samples)):
            row = data[index]
            if not isinstance(row, dict) or "input_ids" not in row:
                return
            positions = row.get("position_ids")
            lengths = row.get("seq_lengths")  # of the samples in a row that TRL packed
            if positions is not None:
                ids = torch.as_tensor(row["input_ids"])[None]
                labels = _row_tensor(row.get("labels"))
                self._keep_examples(ids, labels, find_segments(ids, None, _row_tensor(positions), labels))
                continue
            end = lengths[0] if lengths else None
            labels = row.get("labels")
            self._add_example(
                list(map(int, row["input_ids"]))[:end], None if labels is None else list(map(int, labels))[:end]
            )

    def _keep_examples(self, ids: torch.Tensor, labels: torch.Tensor | None, segments: Segments) -> None:
        num_samples = self.options.diffusion.num_generation_samples
        for row in segments.is_first.any(dim=1).nonzero().flatten().tolist():
            if len(self._examples) >= num_samples:
                return
            is_sample = segments.ids[row] == segments.ids[row][segments.is_first[row]][0]  # the first of a packed row
            own_labels = None if labels is None else labels[row][is_sample].tolist()
            self._add_example(ids[row][is_sample].tolist(), own_labels)

    def _add_example(self, ids: list[int], labels: list[int] | None) -> None:
        size = self.options.diffusion.generation_max_length
        ids, labels = ids[:size], None if labels is None else labels[:size]
        # The label of the first token says nothing: some collators remove it, because a causal model cannot predict it.
        has_prompt = labels is not None and -100 in labels[1:] and any(label != -100 for label in labels)
        self._examples.append(_Example(ids, labels if has_prompt else None))

    def samples(self, model: Any) -> Iterator[DiffusionSample]:
        """Generate the samples: all answers if there are labels, else random tokens, the same ones each time."""
        options = self.options.diffusion
        for seed, example in enumerate(self._examples):
            yield sample(
                model,
                self._tokenizer,
                example.ids,
                mode="random" if example.labels is None else "sft",
                labels=example.labels,
                steps=options.generation_steps,
                temperature=options.generation_temperature,
                mask_token_id=self._mask_id(),
                seed=seed,
            )


class DiffusionTrainerMixin:
    """Counts the items of a step for the scale of the loss, and evaluates with the same objective."""

    plugin_session: Any

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        trainer: Any = self
        if not getattr(trainer, "model_accepts_loss_kwargs", False) or trainer.args.n_gpu > 1:
            return None
        num_items = trainer.plugin_session.loss.num_items(batch_samples)
        if num_items is None:
            return None
        num_items = num_items.to(device)
        if trainer.args.average_tokens_across_devices and trainer.args.world_size > 1:
            parallelism = getattr(trainer.accelerator, "parallelism_config", None)
            sharing = int(getattr(parallelism, "non_data_parallel_size", 1) or 1)
            num_items = trainer.accelerator.gather(num_items).sum() // sharing
        return num_items.clamp(min=1)  # a step without any label has a loss of 0

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Return the loss; also the logits at each position, and the masked tokens as labels.

        The trainer's own method would compute no loss for batches without labels.
        """
        trainer: Any = self
        batch = trainer._prepare_inputs(inputs)
        with torch.no_grad(), trainer.compute_loss_context_manager():
            loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
        loss = loss.detach().mean()
        if prediction_loss_only:
            return loss, None, None
        targets = torch.where(outputs.noisy.mask, batch["input_ids"], -100)
        return loss, shift_logits(outputs.logits, outputs.segments).detach(), targets


class _DiffusionCallback(TrainerCallback):
    """Generates and records samples, and ends evaluations."""

    def __init__(self, plugin: DiffusionPlugin, trainer: Any) -> None:
        self._plugin = plugin
        self._trainer = trainer

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Start the next evaluation with the same noise."""
        self._plugin.end_evaluation()

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Start the next evaluation with the same noise."""
        self._plugin.end_evaluation()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Generate samples every `generation_interval` steps, on rank 0."""
        options = self._plugin.options.diffusion
        is_due = state.global_step % options.generation_interval == 0
        if not (is_due and self._plugin.generates_samples and state.is_world_process_zero):
            return
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        samples = list(self._plugin.samples(model))
        accuracies = [sample.accuracy for sample in samples if sample.accuracy is not None]
        if accuracies:
            self._plugin.report.set("sample_accuracy", sum(accuracies) / len(accuracies))
        with guard("recording samples of the plugin diffusion"):
            rows = [
                {key: value for key, value in sample._asdict().items() if key != "ids" and value is not None}
                for sample in samples
            ]
            try:
                current_run().log_completions(rows, step=state.global_step, table=_TABLE)
            except NoRunError:
                for row in rows:
                    logging.getLogger("tachograph").info("diffusion sample at step %s: %s", state.global_step, row)


def _row_tensor(values: Any) -> torch.Tensor | None:
    """Return a row of a dataset as a batch of one row."""
    return None if values is None else torch.as_tensor(values)[None]


def _dtype(model: Any) -> torch.dtype:
    """Return the type of a mask that is added to attention scores."""
    dtype = next(model.parameters()).dtype
    return dtype if dtype.is_floating_point else torch.get_default_dtype()
