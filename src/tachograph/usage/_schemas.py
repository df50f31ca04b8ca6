"""Every event there is, and every field it may have. What is not here does not leave the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tachograph.usage._fields import (
    Choice,
    CodeName,
    Count,
    Device,
    Field,
    Flag,
    Group,
    HubId,
    Line,
    ListOf,
    Measure,
    ModelType,
    Seconds,
    Size,
    Version,
)

__all__ = ["CONFIG_EVENTS", "MEASURED", "PACKAGES", "SCHEMAS", "Schema"]


class Schema(NamedTuple):
    """An event: when it is recorded, and its fields."""

    doc: str
    fields: Mapping[str, Field]


PACKAGES = (
    "accelerate", "autoawq", "bitsandbytes", "datasets", "deepspeed", "flash-attn", "huggingface-hub", "keras",
    "lightning", "liger-kernel", "lm_eval", "mamba-ssm", "numpy", "optimum", "peft", "pytorch-lightning", "ray",
    "safetensors", "sentencepiece", "tachograph", "tokenizers", "torch", "torchao", "transformers", "triton", "trl",
    "vllm", "xformers",
)  # fmt: skip
"""Distributions whose version is told, if they are installed, and whose code an error may name."""

CONFIG_EVENTS = ("config-loaded", "config-processed")

_DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8", "float8_e4m3fn", "float8_e5m2", "int8", "int4", "nf4")
_ALSO_DTYPES = {
    **{f"torch.{name}": name for name in _DTYPES},
    "fp32": "float32", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8",
}  # fmt: skip

_METHODS = (
    "pretraining", "sft", "dpo", "kto", "orpo", "cpo", "simpo", "ipo", "grpo", "rloo", "ppo", "reward", "prm",
    "gkd",
)  # fmt: skip
_ADAPTERS = (
    "full", "lora", "qlora", "dora", "loha", "lokr", "ia3", "prompt", "prefix", "llama-adapter",
)  # fmt: skip
_OPTIMIZERS = (
    "adamw", "adamw_torch", "adamw_torch_fused", "adamw_torch_8bit", "adamw_torch_4bit", "adamw_bnb_8bit",
    "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "adam", "adafactor", "sgd", "lion", "lion_8bit",
    "paged_lion_8bit", "muon", "shampoo", "soap", "sophia", "came_pytorch", "galore_adamw", "apollo_adamw",
    "lomo", "adalomo", "schedule_free_adamw", "schedule_free_sgd", "optimi_adamw", "prodigy",
)  # fmt: skip
_SCHEDULERS = (
    "constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr",
    "polynomial", "inverse_sqrt", "reduce_lr_on_plateau", "warmup_stable_decay", "one_cycle", "rex",
)  # fmt: skip
_QUANTIZATIONS = (
    "none", "4bit", "8bit", "bitsandbytes", "awq", "gptq", "hqq", "fp8", "fbgemm_fp8", "mxfp4", "torchao",
    "compressed-tensors",
)  # fmt: skip
_ATTENTIONS = (
    "eager", "sdpa", "flash_attention", "flash_attention_2", "flash_attention_3", "flex_attention", "xformers",
    "sage",
)  # fmt: skip
_SPREADS = (
    "none", "ddp", "fsdp", "fsdp2", "deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3", "tensor_parallel",
    "context_parallel", "pipeline_parallel",
)  # fmt: skip
_TRACKERS = (
    "tachograph", "wandb", "mlflow", "comet", "tensorboard", "swanlab", "trackio", "clearml", "neptune", "aim",
)  # fmt: skip
_PEFT_TYPES = (
    "LORA", "ADALORA", "LOHA", "LOKR", "IA3", "OFT", "BOFT", "VERA", "XLORA", "PROMPT_TUNING", "P_TUNING",
    "PREFIX_TUNING", "MULTITASK_PROMPT_TUNING", "LN_TUNING", "FOURIERFT", "HRA", "BONE", "RANDLORA", "SHIRA",
)  # fmt: skip
_TASKS = (
    "CAUSAL_LM", "SEQ_CLS", "SEQ_2_SEQ_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION",
)  # fmt: skip

_CONFIG: dict[str, Field] = {
    "base_model": HubId("The model that is trained."),
    "model_type": ModelType("What kind of model it is."),
    "method": Choice("How it is trained.", *_METHODS),
    "adapter": Choice("What is trained of it.", *_ADAPTERS),
    "lora_rank": Count("Rank of the adapter."),
    "lora_alpha": Measure("Scale of the adapter."),
    "lora_dropout": Measure("Dropout of the adapter."),
    "num_datasets": Count("Datasets in the config."),
    "dataset": HubId("The dataset, if there is one."),
    "sequence_length": Count("Tokens in a sample at most."),
    "sample_packing": Flag("Whether samples are packed together."),
    "batch_size": Count("Samples per device and step."),
    "gradient_accumulation": Count("Batches per optimizer step."),
    "num_epochs": Measure("Epochs to train."),
    "max_steps": Count("Steps to train."),
    "learning_rate": Measure("Learning rate."),
    "weight_decay": Measure("Weight decay."),
    "optimizer": Choice("Optimizer.", *_OPTIMIZERS),
    "scheduler": Choice("Learning-rate schedule.", *_SCHEDULERS),
    "warmup_steps": Count("Steps of warm-up."),
    "dtype": Choice("Numbers that are computed with.", *_DTYPES, also=_ALSO_DTYPES),
    "quantization": Choice("Numbers that weights are kept in.", *_QUANTIZATIONS),
    "attention": Choice("Implementation of attention.", *_ATTENTIONS),
    "gradient_checkpointing": Flag("Whether activations are computed again instead of kept."),
    "compile": Flag("Whether the model is compiled."),
    "distributed": Choice("How the work is spread.", *_SPREADS),
    "trackers": ListOf(
        "Trackers in use.",
        Choice("", *_TRACKERS),
    ),
}

MEASURED: dict[str, Field] = {
    "loss": Measure("Loss."),
    "eval_loss": Measure("Loss of the latest evaluation."),
    "ppl": Measure("Perplexity."),
    "learning_rate": Measure("Learning rate."),
    "grad_norm": Measure("Gradient norm."),
    "tokens_total": Count("Tokens so far."),
    "tokens_trainable": Count("Tokens so far that count for the loss."),
    "tokens_per_second_per_gpu": Measure("Throughput of a device."),
}

_METRICS: dict[str, Field] = {
    "metrics": Group("What the trainer logged last of each; what it never logged is missing.", MEASURED),
    "metric_steps": Group("The step each of them was logged at.", {name: Count("Step.") for name in MEASURED}),
}

_PEAKS: dict[str, Field] = {
    "peak_cpu_memory": Size("Most memory that the main process held."),
    "peak_gpu_memory": ListOf("Most memory that torch held on each accelerator the main process sees.", Size("")),
    "peak_gpu_memory_source": Choice(
        "Whether torch kept count of the peak or it was sampled.", "allocator_high_water_mark", "sampled"
    ),
}

SCHEMAS: dict[str, Schema] = {
    "config-loaded": Schema("A config was read. `system-info` follows it.", _CONFIG),
    "config-processed": Schema("The config is as it will be used, with defaults filled in.", _CONFIG),
    "system-info": Schema(
        "Beside the config, once per process.",
        {
            "os": Choice("Operating system.", "Linux", "Darwin", "Windows"),
            "architecture": Choice("Processor architecture.", "x86_64", "amd64", "arm64", "aarch64", "ppc64le"),
            "python": Version("Version of Python."),
            "num_cpus": Count("Logical CPUs."),
            "memory": Size("Memory of the machine."),
            "accelerator": Choice("Kind of accelerators.", "cuda", "rocm", "mps", "xpu", "npu", "none"),
            "num_accelerators": Count("Accelerators this process may use."),
            "accelerators": ListOf(
                "Each of them.", Group("", {"name": Device("Model."), "memory": Size("Its memory.")}), 8
            ),
            "packages": Group(
                "Versions of packages that are installed.", {name: Version("Version.") for name in PACKAGES}
            ),
        },
    ),
    "model-load": Schema(
        "A model was loaded.",
        {
            "base_model": HubId("Where it came from."),
            "model_type": ModelType("What kind of model it is."),
            "num_parameters": Count("Parameters."),
            "num_trainable_parameters": Count("Those that are trained."),
            "num_layers": Count("Layers."),
            "hidden_size": Count("Width."),
            "vocab_size": Count("Entries of the vocabulary."),
            "num_experts": Count("Experts per layer."),
            "dtype": Choice("Numbers of its weights.", *_DTYPES, also=_ALSO_DTYPES),
            "quantization": Choice("How it is quantised.", *_QUANTIZATIONS),
            "attention": _CONFIG["attention"],
        },
    ),
    "adapter-load": Schema(
        "An adapter was made or loaded.",
        {
            "kind": Choice("Kind of adapter.", *_PEFT_TYPES),
            "task": Choice("What the model is for.", *_TASKS),
            "rank": Count("Rank."),
            "alpha": Measure("Scale."),
            "dropout": Measure("Dropout."),
            "bias": Choice("Which biases are trained.", "none", "all", "lora_only"),
            "num_target_modules": Count("Modules named to be adapted."),
            "all_linear": Flag("Whether all linear layers are."),
            "use_dora": Flag("Whether magnitudes are trained apart."),
            "use_rslora": Flag("Whether the scale is stabilised by rank."),
        },
    ),
    "train-start": Schema(
        "Training begins.",
        {
            "start_step": Count("Steps done before, of a training that goes on."),
            "resumed": Flag("Whether it goes on from a checkpoint."),
            "max_steps": Count("Steps to train."),
            "num_epochs": Measure("Epochs to train."),
            "batch_size": Count("Samples per device and step."),
            "gradient_accumulation": Count("Batches per optimizer step."),
            "world_size": Count("Processes that train together."),
        },
    ),
    "train-progress": Schema(
        "After the first step, then every 100 steps or, at a multiple of 100, every minute.",
        {
            "step": Count("Steps done."),
            "start_step": Count("Steps done before this process began."),
            "epoch": Count("Whole epochs done."),
            "progress": Measure("Epochs done, with their fraction."),
            "steps_per_second": Measure("Speed since the report before."),
            "elapsed_s": Seconds("Time since training began."),
            "since_last_report_s": Seconds("Time since the report before."),
            "cpu_memory": Size("Memory that the main process holds."),
            "gpu_memory": ListOf("Memory that torch holds on each accelerator the main process sees.", Size("")),
            **_PEAKS,
            **_METRICS,
        },
    ),
    "train-end": Schema(
        "Training has ended, or the process has before it could.",
        {
            "outcome": Choice(
                "How: by Ctrl-C, an error that nobody caught, or in a way unseen, if not as it should.",
                "finished",
                "interrupted",
                "failed",
                "unfinished",
            ),
            "step": Count("Steps done."),
            "start_step": Count("Steps done before this process began."),
            "total_s": Seconds("How long it took."),
            "total_steps": Count("Steps done by this process."),
            "steps_per_second": Measure("Speed over all."),
            "epochs_completed": Count("Whole epochs that this process saw to their end."),
            "average_epoch_s": Seconds("How long an epoch took."),
            "train_loss": Measure("Mean loss, as the trainer says it."),
            **_PEAKS,
            **_METRICS,
        },
    ),
    "error": Schema(
        "A function that is watched raised an exception. Never its message, notes, arguments or variables.",
        {
            "function": CodeName("The function that is watched, if it is of a known package."),
            "type": CodeName("Type of the exception if it is Python's or of a known package, else `user exception`."),
            "base": CodeName("The nearest such type that a user exception derives from."),
            "causes": ListOf("Types of the exceptions that led to it, nearest first.", CodeName(""), 8),
            "members": ListOf("Types of the exceptions in a group.", CodeName(""), 8),
            "frames": ListOf(
                "Where it happened, innermost last. Code of anyone else is one entry, `other code`.",
                Group(
                    "",
                    {
                        "module": CodeName("Module of a known package, or `other code`."),
                        "function": CodeName("Function in it."),
                        "line": Line("Line."),
                    },
                ),
                40,
            ),
        },
    ),
}
"""By name."""
