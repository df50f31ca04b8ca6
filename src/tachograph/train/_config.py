"""`TrainConfig`: every key of a training config, in groups. Keys that Axolotl also has have the same name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tachograph.train._dataset_config import DatasetConfig
from tachograph.train._known_keys import OFFLOADING
from tachograph.train._templates import check_template_name

__all__ = ["GROUPS", "SHARED_KEYS", "TrainConfig"]

Auto = bool | Literal["auto"]


class ModelKeys(BaseModel):
    """Model and tokenizer."""

    base_model: str | None = Field(None, description="Folder or hub id of the model.")
    base_model_config: str | None = Field(None, description="Folder or hub id of its config, if it is another one.")
    init_from_config: dict[str, Any] | str | None = Field(
        None,
        description="Build the model with random weights, instead of `base_model`: a mapping such as "
        "`{model_type: llama, hidden_size: 256, …}`, or the path of a `config.json`.",
    )
    reinit_weights: bool = Field(False, description="Use only the config of `base_model`, with random weights.")
    overrides_of_model_config: dict[str, Any] = Field(
        default_factory=dict, description="Changes to the model's config."
    )
    overrides_of_model_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of `from_pretrained`."
    )
    model_type: str = Field("AutoModelForCausalLM", description="Class of the model in `transformers`.")
    revision_of_model: str | None = Field(None, description="Revision on the hub.")
    tokenizer_config: str | None = Field(
        None, description="Folder or hub id of the tokenizer; `base_model` by default."
    )
    tokenizer_type: str = Field("AutoTokenizer", description="Class of the tokenizer in `transformers`.")
    trust_remote_code: bool = Field(False, description="Execute code that comes with the model. Read it first.")
    special_tokens: dict[str, str | list[str]] = Field(
        default_factory=dict, description="Special tokens to set, such as `{pad_token: <pad>}`."
    )
    tokens: list[str] = Field(default_factory=list, description="Tokens to add to the vocabulary.")
    resize_token_embeddings_to_32x: bool = Field(False, description="Round the size of the embedding up to 32.")
    attn_implementation: str | None = Field(None, description="Attention: `sdpa`, `eager`, `flash_attention_2`, ….")
    flash_attention: bool = Field(False, description="Same as `attn_implementation: flash_attention_2`.")
    sdp_attention: bool = Field(False, description="Same as `attn_implementation: sdpa`.")
    eager_attention: bool = Field(False, description="Same as `attn_implementation: eager`.")
    flex_attention: bool = Field(False, description="Same as `attn_implementation: flex_attention`.")
    experts_implementation: str | None = Field(
        None, description="Experts of a mixture: `eager`, `grouped_mm`, `batched_mm`, …; by default that of the model."
    )
    torch_dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        None, description="Type of the weights; by default `bfloat16` with `bf16`, else `float32`."
    )
    device_map: str | dict[str, Any] | None = Field(None, description="Where to put the layers; not with torchrun.")
    max_memory: dict[int | str, int | str] | None = Field(
        None, description="Memory of each device, such as `{0: 20GiB, cpu: 100GiB}`, for `device_map: auto`."
    )


class DataKeys(BaseModel):
    """Data."""

    datasets: list[DatasetConfig] = Field(default_factory=list, description="The data to train on.")
    pretraining_dataset: str | list[DatasetConfig] | DatasetConfig | None = Field(
        None, description="Texts to pre-train on; the same as `datasets` of the type `completion`."
    )
    test_datasets: list[DatasetConfig] = Field(default_factory=list, description="The data to evaluate on.")
    val_set_size: float = Field(0.0, ge=0, description="Rows to evaluate on: a share below 1, or a number.")
    shuffle: bool = Field(True, description="Train on the rows in random order.")
    shuffle_merged_datasets: bool = Field(True, description="Older form of `shuffle`: false keeps the order.")
    sequence_len: int = Field(512, ge=1, description="Maximum number of tokens in a row.")
    excess_length_strategy: Literal["drop", "truncate", "raise"] = Field(
        "drop", description="What to do with longer rows. Longer texts of `completion` are always split."
    )
    dataset_exact_deduplication: bool = Field(False, description="Drop rows whose tokens are those of an earlier row.")
    min_sample_len: int = Field(2, ge=1, description="Rows with fewer tokens are dropped.")
    sample_packing: bool = Field(False, description="Put several samples into one row; they do not see each other.")
    eval_sample_packing: bool = Field(False, description="The same for evaluation data.")
    pretrain_multipack_attn: bool = Field(True, description="Must be true: packed samples never see each other.")
    pad_to_sequence_len: bool = Field(False, description="Pad every row to `sequence_len`.")
    chat_template: str | None = Field(
        None,
        description="`tokenizer_default` (the default), a [built-in template](#chat-templates) such as `llama3`, "
        "`tokenizer_default_fallback_llama3`, or `jinja`.",
    )
    chat_template_jinja: str | None = Field(None, description="The template of `jinja`: text, or the path of a file.")
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Further variables of the template, such as `{enable_thinking: false}`."
    )
    default_system_message: str | None = Field(None, description="System message of conversations without one.")
    eot_tokens: list[str] = Field(default_factory=list, description="Tokens that end a message, besides EOS.")
    train_on_inputs: bool = Field(False, description="Train on prompts, too.")


class BatchKeys(BaseModel):
    """Length of the training and batches."""

    micro_batch_size: int = Field(1, ge=1, description="Rows per process and forward pass.")
    gradient_accumulation_steps: int = Field(1, ge=1, description="Forward passes per optimizer step.")
    eval_batch_size: int | None = Field(
        None, ge=1, description="Rows per process in evaluations; `micro_batch_size` by default."
    )
    batch_size: int | None = Field(
        None, ge=1, description="Rows per process and optimizer step, instead of `gradient_accumulation_steps`."
    )
    num_epochs: float = Field(1.0, gt=0, description="Number of passes over the data.")
    max_steps: int | None = Field(None, ge=1, description="Number of optimizer steps; overrides `num_epochs`.")
    group_by_length: bool = Field(False, description="Put rows of similar length into one batch.")
    auto_find_batch_size: bool = Field(False, description="Halve the batch if memory is exhausted.")
    seed: int = Field(42, description="Seed of everything random.")
    dataloader_num_workers: int = Field(0, ge=0, description="Processes that build batches.")
    dataloader_pin_memory: bool = Field(True, description="Copy batches to the GPU faster.")
    dataloader_prefetch_factor: int | None = Field(None, ge=1, description="Batches that each process keeps ready.")
    dataloader_drop_last: bool = Field(False, description="Leave out an incomplete last batch.")
    remove_unused_columns: bool | None = Field(None, description="Drop columns that the model does not take.")


class OptimizerKeys(BaseModel):
    """Optimizer and precision."""

    learning_rate: float = Field(5e-5, gt=0, description="Peak of the learning rate.")
    lr_scheduler: str = Field("cosine", description="Scheduler of `transformers`, such as `cosine` or `linear`.")
    lr_scheduler_kwargs: dict[str, Any] = Field(default_factory=dict, description="Its arguments.")
    cosine_min_lr_ratio: float | None = Field(None, ge=0, le=1, description="End of `cosine`, as a share of the peak.")
    warmup_steps: float | None = Field(
        None, ge=0, description="Steps in which the learning rate rises; below 1, a share of all steps."
    )
    warmup_ratio: float | None = Field(None, ge=0, lt=1, description="Older form of a share in `warmup_steps`.")
    optimizer: str = Field("adamw_torch", description="Optimizer of `transformers`.")
    optim_args: str | dict[str, Any] | None = Field(None, description="Its arguments.")
    optim_target_modules: str | list[str] | None = Field(None, description="Modules of GaLore and similar optimizers.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="First beta of Adam.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Second beta of Adam.")
    adam_epsilon: float = Field(1e-8, gt=0, description="Epsilon of Adam.")
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are clipped to this norm; 0: not at all.")
    label_smoothing_factor: float = Field(0.0, ge=0, lt=1, description="Label smoothing.")
    neftune_noise_alpha: float | None = Field(None, gt=0, description="Noise on embeddings (NEFTune).")
    bf16: Auto | Literal["full"] = Field("auto", description="Train in bfloat16; `auto`: if the GPU can.")
    fp16: Auto = Field(False, description="Train in float16 with loss scaling; needs a GPU.")
    bfloat16: bool = Field(False, description="Weights and computation in bfloat16, without mixed precision.")
    float16: bool = Field(False, description="The same in float16, without loss scaling.")
    float32: bool = Field(False, description="Train in float32, whatever the GPU can.")
    tf32: Auto = Field("auto", description="Use TF32 for matrix products; `auto`: if the GPU can.")
    gradient_checkpointing: bool = Field(False, description="Compute activations again instead of keeping them.")
    gradient_checkpointing_kwargs: dict[str, Any] = Field(
        default_factory=lambda: {"use_reentrant": False}, description="Its arguments."
    )
    torch_compile: Auto = Field(False, description="Compile the model; `auto`: with a GPU.")
    torch_compile_backend: str | None = Field(None, description="Backend of `torch.compile`.")
    torch_compile_mode: str | None = Field(None, description="Mode of `torch.compile`.")
    torch_empty_cache_steps: int | None = Field(None, ge=1, description="Release unused memory of the GPU this often.")
    unfrozen_parameters: list[str] = Field(
        default_factory=list, description="Train only parameters whose names match one of these expressions."
    )


class AdapterKeys(BaseModel):
    """Adapters and quantisation."""

    adapter: str | None = Field(
        None, description="`lora`, `qlora`, or an adapter of a plugin; none: train all weights."
    )
    lora_r: int = Field(8, ge=1, description="Rank.")
    lora_alpha: float = Field(16, gt=0, description="Scale of the adapter, divided by the rank.")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout.")
    lora_target_modules: list[str] | str | None = Field(None, description="Modules that get an adapter.")
    lora_target_parameters: list[str] | None = Field(None, description="Parameters that get an adapter.")
    lora_target_linear: bool = Field(False, description="All linear modules but the last one get an adapter.")
    lora_modules_to_save: list[str] | None = Field(None, description="Modules that are trained as a whole.")
    lora_fan_in_fan_out: bool = Field(False, description="Weights are stored as (in, out), as in GPT-2.")
    lora_bias: Literal["none", "all", "lora_only"] = Field("none", description="Biases that are trained.")
    peft_use_dora: bool = Field(False, description="DoRA.")
    peft_use_rslora: bool = Field(False, description="Rank-stabilised LoRA.")
    peft_init_lora_weights: bool | str = Field(True, description="How the adapter is initialised.")
    peft_layers_to_transform: list[int] | None = Field(None, description="Layers that get an adapter.")
    peft_layers_pattern: list[str] | None = Field(None, description="Name of the list of layers.")
    lora_rank_pattern: dict[str, int] = Field(default_factory=dict, description="Ranks of single modules, by name.")
    lora_alpha_pattern: dict[str, float] = Field(default_factory=dict, description="The same for `lora_alpha`.")
    peft_trainable_token_indices: list[int] | dict[str, list[int]] | None = Field(
        None, description="Tokens whose embeddings are trained."
    )
    peft_ensure_weight_tying: bool = Field(False, description="Keep tied embeddings tied in the adapter.")
    peft_autocast_adapter_dtype: bool = Field(
        True, description="Keep the adapter in float32 if the model is in 16 bits."
    )
    lora_model_dir: str | None = Field(None, description="Folder of an adapter to continue from.")
    merge_lora: bool = Field(False, description="Also save the merged model, in `merged` below `output_dir`.")
    load_in_8bit: bool = Field(False, description="Load the weights in 8 bits (bitsandbytes).")
    load_in_4bit: bool = Field(False, description="Load the weights in 4 bits (bitsandbytes); `adapter: qlora` does.")
    bnb_config_kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of `BitsAndBytesConfig`.")
    model_quantization_config: str | None = Field(
        None, description="Class of another quantisation in `transformers`, such as `Mxfp4Config`."
    )
    model_quantization_config_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Its arguments, such as `{dequantize: true}`."
    )


class PreferenceKeys(BaseModel):
    """Preference training and RL."""

    rl: Literal["dpo", "ipo", "kto", "orpo", "grpo"] | None = Field(None, description="The method; none: SFT.")
    rl_beta: float | None = Field(None, ge=0, description="Weight of staying close to the model before training.")
    dpo_label_smoothing: float | None = Field(None, ge=0, lt=0.5, description="Label smoothing of DPO.")
    dpo_use_weighting: bool | None = Field(None, description="WPO: weight pairs by their probability.")
    dpo_loss_type: list[str] | None = Field(None, description="Losses of DPO, as TRL names them.")
    dpo_loss_weights: list[float] | None = Field(None, description="Their weights.")
    kto_desirable_weight: float | None = Field(None, ge=0, description="Weight of good answers.")
    kto_undesirable_weight: float | None = Field(None, ge=0, description="Weight of bad answers.")
    orpo_alpha: float | None = Field(None, ge=0, description="Weight of the odds ratio.")
    precompute_ref_log_probs: bool | None = Field(None, description="Compute the reference once, before training.")
    trl: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of TRL's trainer, such as `num_generations`, `max_completion_length`, `temperature`, and "
        "`reward_funcs`: dotted paths of functions, or folders of reward models.",
    )


class OutputKeys(BaseModel):
    """Output, checkpoints and evaluation."""

    output_dir: str = Field("./model-out", description="Folder of checkpoints and of the trained model.")
    name: str | None = Field(None, description="Name of the run; by default the name of `output_dir`.")
    save_steps: float | None = Field(None, gt=0, description="Steps between checkpoints, or a share of all steps.")
    saves_per_epoch: int | None = Field(None, ge=0, description="Checkpoints per epoch.")
    save_strategy: Literal["no", "steps", "epoch", "best"] | None = Field(None, description="When to save.")
    save_total_limit: int | None = Field(None, ge=1, description="Number of checkpoints to keep.")
    save_only_model: bool = Field(False, description="Leave the optimizer out of checkpoints: they cannot be resumed.")
    save_safetensors: bool = Field(True, description="Must be true: models are always saved as safetensors.")
    eval_steps: float | None = Field(None, gt=0, description="Steps between evaluations, or a share of all steps.")
    evals_per_epoch: int | None = Field(None, ge=0, description="Evaluations per epoch.")
    eval_strategy: Literal["no", "steps", "epoch"] | None = Field(None, description="When to evaluate.")
    eval_on_start: bool = Field(False, description="Evaluate before the first step, too.")
    early_stopping_patience: int | None = Field(None, ge=1, description="Stop after evaluations without improvement.")
    load_best_model_at_end: bool = Field(False, description="Save the best checkpoint as the result.")
    metric_for_best_model: str | None = Field(None, description="Which checkpoint is best; `eval_loss` by default.")
    greater_is_better: bool | None = Field(None, description="Whether a larger value of that metric is better.")
    logging_steps: float = Field(1, gt=0, description="Steps between logs.")
    logging_first_step: bool = Field(True, description="Log the first step, too.")
    resume_from_checkpoint: str | bool | None = Field(
        None, description="Checkpoint to continue from; true: the last one in `output_dir`."
    )
    auto_resume_from_checkpoints: bool = Field(False, description="Continue from the last checkpoint, if there is one.")
    hub_model_id: str | None = Field(None, description="Id on the hub; nothing is uploaded without `hub_strategy`.")
    hub_strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] | None = Field(
        None, description="When to upload the model to the hub."
    )
    hub_revision: str | None = Field(None, description="Branch on the hub.")


class DistributedKeys(BaseModel):
    """Several processes."""

    fsdp: bool | str | list[str] | None = Field(None, description="Fully sharded data parallel, as in `transformers`.")
    fsdp_version: int | None = Field(None, ge=1, le=2, description="Version of FSDP.")
    fsdp_config: dict[str, Any] | str | None = Field(None, description="Its config, or the path of a JSON file.")
    deepspeed: dict[str, Any] | str | None = Field(None, description="Config of DeepSpeed, or the path of a JSON file.")
    accelerator_config: dict[str, Any] | str | None = Field(
        None, description="Options of Accelerate, as in `TrainingArguments`, or the path of a JSON file."
    )
    ddp_timeout: int | None = Field(None, ge=1, description="Seconds until a collective fails.")
    ddp_backend: str | None = Field(None, description="`nccl`, `gloo`, ….")
    ddp_bucket_cap_mb: int | None = Field(None, ge=1, description="Size of a bucket of gradients.")
    ddp_broadcast_buffers: bool | None = Field(None, description="Broadcast buffers in each step.")
    ddp_find_unused_parameters: bool | None = Field(None, description="Search for parameters without gradient.")
    use_cpu: bool = Field(False, description="Train on the CPU, even if there is a GPU.")


class TelemetryKeys(BaseModel):
    """Telemetry and plugins."""

    plugins: list[Any] = Field(default_factory=list, description="Plugins: names, dotted paths, or mappings.")
    telemetry: dict[str, Any] = Field(
        default_factory=dict, description="The [settings](settings.md) of the run, and `notify`, `rules`, `signals`."
    )
    use_tensorboard: bool = Field(False, description="Also write TensorBoard files.")
    use_wandb: bool | None = Field(None, description="Also send the run to W&B; on if a project is given.")
    wandb_project: str | None = Field(None, description="Project at W&B.")
    wandb_entity: str | None = Field(None, description="Entity at W&B.")
    wandb_mode: str | None = Field(None, description="`online`, `offline`, or `disabled`.")
    wandb_name: str | None = Field(None, description="Name of the run, if there is no `name`.")
    wandb_run_id: str | None = Field(None, description="Older form of `wandb_name`.")
    use_mlflow: bool | None = Field(None, description="Also send the run to MLflow; on if an address is given.")
    mlflow_tracking_uri: str | None = Field(None, description="Address of the tracking server.")
    mlflow_experiment_name: str | None = Field(None, description="Experiment in MLflow.")
    mlflow_run_name: str | None = Field(None, description="Name of the run, if there is no `name`.")
    use_swanlab: bool | None = Field(None, description="Also send the run to SwanLab; on if a project is given.")
    swanlab_project: str | None = Field(None, description="Project at SwanLab.")
    swanlab_experiment_name: str | None = Field(None, description="Name at SwanLab.")
    swanlab_description: str | None = Field(None, description="Description at SwanLab.")
    swanlab_mode: str | None = Field(None, description="`cloud`, `local`, `offline`, or `disabled`.")
    swanlab_workspace: str | None = Field(None, description="Workspace at SwanLab.")
    swanlab_api_key: str | None = Field(None, description="Key; better in SWANLAB_API_KEY.")
    swanlab_web_host: str | None = Field(None, description="Address of a private server.")
    swanlab_api_host: str | None = Field(None, description="Address of its API.")
    swanlab_log_model: bool | None = Field(None, description="Has no effect: checkpoints are not uploaded.")
    swanlab_lark_webhook_url: str | None = Field(None, description="Address of a Lark bot to notify.")
    swanlab_lark_secret: str | None = Field(None, description="Its secret.")
    swanlab_log_completions: bool | None = Field(None, description="Whether to send samples of completions.")
    swanlab_completion_log_interval: int | None = Field(None, description="Steps between two tables of samples.")
    swanlab_completion_max_buffer: int | None = Field(None, description="Maximum number of samples in a table.")


GROUPS: tuple[type[BaseModel], ...] = (
    ModelKeys,
    DataKeys,
    BatchKeys,
    OptimizerKeys,
    AdapterKeys,
    PreferenceKeys,
    OutputKeys,
    DistributedKeys,
    TelemetryKeys,
)


SHARED_KEYS = {"experts_implementation"}
"""Keys that belong to a plugin, if a listed one has an option of that name."""


class TrainConfig(
    TelemetryKeys,
    DistributedKeys,
    OutputKeys,
    PreferenceKeys,
    AdapterKeys,
    OptimizerKeys,
    BatchKeys,
    DataKeys,
    ModelKeys,
):
    """The config of `tacho train`, without the options of plugins."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    @field_validator("pretraining_dataset", mode="before")
    @classmethod
    def _as_dataset(cls, value: Any) -> Any:
        return [{"path": value}] if isinstance(value, str) else value

    @field_validator("save_strategy", "eval_strategy", mode="before")
    @classmethod
    def _read_no(cls, value: Any) -> Any:
        return "no" if value is False else value  # YAML reads `no` as false

    @field_validator("gradient_checkpointing", mode="before")
    @classmethod
    def _check_checkpointing(cls, value: Any) -> Any:
        # Activations stay on the GPU; `clean_values` says so.
        return True if value in OFFLOADING else value

    @field_validator("tokens", mode="before")
    @classmethod
    def _check_tokens(cls, value: Any) -> Any:
        if isinstance(value, dict):
            raise ValueError("expected a list of new tokens; names such as pad_token go into `special_tokens`")
        return value

    @field_validator("chat_template")
    @classmethod
    def _check_template(cls, value: str | None) -> str | None:
        if value is not None:
            check_template_name(value)
        return value

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        _check_model(self)
        _check_data(self)
        _check_precision(self)
        _check_schedule(self)
        _check_batch(self)
        _check_adapter(self)
        return self

    def train_sets(self) -> list[tuple[str, DatasetConfig]]:
        """Return the datasets to train on, each with its key, such as ``datasets[0]``."""
        pretraining = self.pretraining_dataset
        if pretraining is None:
            return [(f"datasets[{index}]", entry) for index, entry in enumerate(self.datasets)]
        entries = [pretraining] if isinstance(pretraining, DatasetConfig) else list(pretraining)
        return [
            (f"pretraining_dataset[{index}]", entry.model_copy(update={"type": "completion"}))
            for index, entry in enumerate(entries)
            if isinstance(entry, DatasetConfig)
        ]

    def eval_sets(self) -> list[tuple[str, DatasetConfig]]:
        """Return the datasets to evaluate on, each with its key, such as ``test_datasets[0]``."""
        return [(f"test_datasets[{index}]", entry) for index, entry in enumerate(self.test_datasets)]

    @property
    def attention(self) -> str | None:
        """The implementation of attention; None: the default of the model."""
        switches = {
            "flash_attention_2": self.flash_attention,
            "sdpa": self.sdp_attention,
            "eager": self.eager_attention,
            "flex_attention": self.flex_attention,
        }
        return self.attn_implementation or next((name for name, is_on in switches.items() if is_on), None)


def _check_model(config: TrainConfig) -> None:
    if config.base_model is None and config.init_from_config is None:
        raise ValueError(
            "base_model is missing: give the folder or hub id of a model, or build one with init_from_config"
        )
    if config.init_from_config is not None and config.tokenizer_config is None and config.base_model is None:
        raise ValueError("tokenizer_config is missing: a model built by init_from_config has no tokenizer")
    switches = [
        name
        for name in ("flash_attention", "sdp_attention", "eager_attention", "flex_attention")
        if getattr(config, name)
    ]
    if len(switches) > 1 or (switches and config.attn_implementation):
        raise ValueError(
            f"{' and '.join([*switches, 'attn_implementation'][:2])} contradict each other: keep one of them"
        )


def _check_data(config: TrainConfig) -> None:
    if config.datasets and config.pretraining_dataset is not None:
        raise ValueError("datasets and pretraining_dataset contradict each other: keep one of them")
    if config.pretraining_dataset is not None and config.rl:
        raise ValueError(f"pretraining_dataset cannot be used with rl: {config.rl}; use `datasets`")
    if config.val_set_size and config.test_datasets:
        raise ValueError("val_set_size and test_datasets contradict each other: keep one of them")
    if config.val_set_size > 1 and config.val_set_size != int(config.val_set_size):
        raise ValueError(f"val_set_size={config.val_set_size:g}: expected a share below 1 or a whole number of rows")
    if config.chat_template == "jinja" and not config.chat_template_jinja:
        raise ValueError("chat_template: jinja needs chat_template_jinja, the text or the path of the template")
    if config.rl and config.chat_template_kwargs:
        remedy = "use trl.chat_template_kwargs" if config.rl == "grpo" else "remove it"
        raise ValueError(f"chat_template_kwargs cannot be used with rl: {config.rl}; {remedy}")
    if config.rl and (config.sample_packing or config.eval_sample_packing):
        raise ValueError(f"sample_packing cannot be used with rl: {config.rl}")
    if not config.pretrain_multipack_attn:
        raise ValueError("pretrain_multipack_attn: false is not possible, packed samples never see each other")
    if config.sample_packing and config.group_by_length:
        raise ValueError("group_by_length has no effect with sample_packing: remove one of them")


def _check_precision(config: TrainConfig) -> None:
    if config.bf16 in (True, "full") and config.fp16 is True:
        raise ValueError("bf16 and fp16 contradict each other: keep one of them")
    if config.float32 and (config.bf16 in (True, "full") or config.fp16 is True):
        raise ValueError("float32 contradicts bf16 or fp16: keep one of them")
    if config.bfloat16 and config.float16:
        raise ValueError("bfloat16 and float16 contradict each other: keep one of them")
    weights, other = ("bfloat16", "fp16") if config.bfloat16 else ("float16", "bf16")
    if (config.bfloat16 or config.float16) and (config.float32 or getattr(config, other) in (True, "full")):
        raise ValueError(f"{weights} contradicts {'float32' if config.float32 else other}: keep one of them")
    if not config.save_safetensors:
        raise ValueError("save_safetensors: false is not possible, models are always saved as safetensors")


def _check_schedule(config: TrainConfig) -> None:
    for first_key, second_key in (
        ("warmup_steps", "warmup_ratio"),
        ("save_steps", "saves_per_epoch"),
        ("eval_steps", "evals_per_epoch"),
    ):
        if getattr(config, first_key) is not None and getattr(config, second_key) is not None:
            raise ValueError(f"{first_key} and {second_key} contradict each other: keep one of them")
    if config.warmup_steps is not None and config.warmup_steps > 1 and config.warmup_steps % 1:
        raise ValueError(f"warmup_steps={config.warmup_steps:g}: expected a number of steps, or a share below 1")
    has_eval = bool(config.val_set_size or config.test_datasets)
    for key in ("evals_per_epoch", "eval_steps", "early_stopping_patience", "load_best_model_at_end"):
        # Configs for many datasets often set the frequency of evaluations, but nothing to evaluate on.
        if getattr(config, key) and not has_eval and key in ("early_stopping_patience", "load_best_model_at_end"):
            raise ValueError(f"{key} needs evaluation data: set val_set_size or test_datasets")
    if config.cosine_min_lr_ratio is not None and config.lr_scheduler not in ("cosine", "cosine_with_min_lr"):
        raise ValueError(f"cosine_min_lr_ratio needs `lr_scheduler: cosine`, not {config.lr_scheduler!r}")


def _check_batch(config: TrainConfig) -> None:
    """Translate `batch_size` to `gradient_accumulation_steps`."""
    if config.batch_size is None:
        return
    if "micro_batch_size" not in config.model_fields_set:
        raise ValueError(
            "batch_size counts the rows of a step. Set micro_batch_size, the rows per device, and "
            "gradient_accumulation_steps"
        )
    num_passes, rest = divmod(config.batch_size, config.micro_batch_size)
    has_steps = "gradient_accumulation_steps" in config.model_fields_set
    if rest or (has_steps and config.gradient_accumulation_steps != num_passes):
        raise ValueError(
            f"batch_size={config.batch_size} must be micro_batch_size × gradient_accumulation_steps: remove it"
        )
    config.gradient_accumulation_steps = num_passes


def _check_adapter(config: TrainConfig) -> None:
    if config.adapter is None:
        adapter_keys = [name for name in ("lora_model_dir", "merge_lora") if getattr(config, name)]
        if adapter_keys:
            raise ValueError(f"{adapter_keys[0]} needs an adapter: add `adapter: lora`")
        if config.load_in_8bit or config.load_in_4bit:
            key = "load_in_8bit" if config.load_in_8bit else "load_in_4bit"
            raise ValueError(f"{key}: quantised weights cannot be trained; add `adapter: qlora` or remove the key")
    bits_key = "load_in_8bit" if config.load_in_8bit else "load_in_4bit" if config.load_in_4bit else ""
    if config.model_quantization_config and (bits_key or config.adapter == "qlora"):
        raise ValueError(
            f"model_quantization_config and {bits_key or 'adapter: qlora'} contradict each other: keep one of them"
        )
    if config.model_quantization_config_kwargs and not config.model_quantization_config:
        raise ValueError("model_quantization_config_kwargs has no effect without model_quantization_config")
    if config.load_in_8bit and config.load_in_4bit:
        raise ValueError("load_in_8bit and load_in_4bit contradict each other: keep one of them")
    if config.adapter == "qlora" and config.load_in_8bit:
        raise ValueError("adapter: qlora loads the weights in 4 bits: remove load_in_8bit, or use `adapter: lora`")
    if config.adapter in ("lora", "qlora") and not config.lora_model_dir:
        targets = config.lora_target_modules, config.lora_target_parameters, config.lora_target_linear or None
        if not any(targets):
            raise ValueError(
                f"adapter: {config.adapter} needs to know its modules: set `lora_target_linear: true`, or "
                "lora_target_modules, such as [q_proj, v_proj]"
            )
    if config.unfrozen_parameters and config.adapter:
        raise ValueError("unfrozen_parameters cannot be used with an adapter: remove one of them")
