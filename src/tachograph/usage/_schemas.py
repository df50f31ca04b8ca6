"""The schema of every built-in event. A value without a field here never leaves the process.

The texts are shown to users, in `tacho usage preview --fields` and in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tachograph.usage._fields import (
    Choice,
    CodeName,
    Count,
    Device,
    Flag,
    Group,
    HubId,
    LineNumber,
    ListOf,
    Measure,
    ModelType,
    SchemaField,
    Seconds,
    Size,
    Version,
)

__all__ = ["CONFIG_EVENTS", "PACKAGES", "SCHEMAS", "Schema"]


class Schema(NamedTuple):
    """An event: a sentence on when it is recorded, and its fields by name."""

    doc: str
    fields: Mapping[str, SchemaField]


PACKAGES = (
    "accelerate", "autoawq", "bitsandbytes", "datasets", "deepspeed", "flash-attn", "huggingface-hub", "keras",
    "lightning", "liger-kernel", "lm_eval", "mamba-ssm", "numpy", "optimum", "peft", "pytorch-lightning", "ray",
    "safetensors", "sentencepiece", "tachograph", "tokenizers", "torch", "torchao", "transformers", "triton", "trl",
    "vllm", "xformers",
)  # fmt: skip
"""Distributions whose version is sent if they are installed, and whose code an error may name."""

CONFIG_EVENTS = ("config-loaded", "config-processed")

_DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8", "float8_e4m3fn", "float8_e5m2", "int8", "int4", "nf4")
_DTYPE_ALIASES = {
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
_PARALLELISMS = (
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

_CONFIG: dict[str, SchemaField] = {
    "base_model": HubId("Base model."),
    "model_type": ModelType("Type of the model."),
    "method": Choice("Training method.", *_METHODS),
    "adapter": Choice("Adapter, or full fine-tuning.", *_ADAPTERS),
    "lora_rank": Count("Rank of the adapter."),
    "lora_alpha": Measure("Scale of the adapter."),
    "lora_dropout": Measure("Dropout of the adapter."),
    "num_datasets": Count("Number of datasets in the config."),
    "dataset": HubId("The dataset, if there is only one."),
    "sequence_length": Count("Maximum number of tokens per sample."),
    "sample_packing": Flag("Whether samples are packed."),
    "batch_size": Count("Samples per device and step."),
    "gradient_accumulation": Count("Batches per optimizer step."),
    "num_epochs": Measure("Epochs to train."),
    "max_steps": Count("Steps to train."),
    "learning_rate": Measure("Learning rate."),
    "weight_decay": Measure("Weight decay."),
    "optimizer": Choice("Optimizer.", *_OPTIMIZERS),
    "scheduler": Choice("Learning-rate schedule.", *_SCHEDULERS),
    "warmup_steps": Count("Warm-up steps."),
    "dtype": Choice("Data type of the computation.", *_DTYPES, also=_DTYPE_ALIASES),
    "quantization": Choice("Quantization of the weights.", *_QUANTIZATIONS),
    "attention": Choice("Attention implementation.", *_ATTENTIONS),
    "gradient_checkpointing": Flag("Whether activations are recomputed."),
    "compile": Flag("Whether the model is compiled."),
    "distributed": Choice("Parallelism.", *_PARALLELISMS),
    "trackers": ListOf(
        "Trackers in use.",
        Choice("", *_TRACKERS),
    ),
}

_LOGGED_METRICS: dict[str, SchemaField] = {
    "loss": Measure("Loss."),
    "eval_loss": Measure("Loss of the last evaluation."),
    "ppl": Measure("Perplexity."),
    "learning_rate": Measure("Learning rate."),
    "grad_norm": Measure("Gradient norm."),
    "tokens_total": Count("Tokens so far."),
    "tokens_trainable": Count("Tokens so far that contribute to the loss."),
    "tokens_per_second_per_gpu": Measure("Tokens per second and device."),
}

_METRICS: dict[str, SchemaField] = {
    "metrics": Group("Last logged value of each metric.", _LOGGED_METRICS),
    "metric_steps": Group("Step at which each metric was logged.", {name: Count("Step.") for name in _LOGGED_METRICS}),
}

_PEAKS: dict[str, SchemaField] = {
    "peak_cpu_memory": Size("Peak memory of the main process."),
    "peak_gpu_memory": ListOf("Peak memory of torch on each accelerator visible to the main process.", Size("")),
    "peak_gpu_memory_source": Choice(
        "Whether the peak comes from torch's own counter or from samples.", "allocator_high_water_mark", "sampled"
    ),
}

SCHEMAS: dict[str, Schema] = {
    "config-loaded": Schema("A config was loaded. The first one is followed by `system-info`.", _CONFIG),
    "config-processed": Schema("The config is final, with defaults filled in.", _CONFIG),
    "system-info": Schema(
        "Once per process, after the config.",
        {
            "os": Choice("Operating system.", "Linux", "Darwin", "Windows"),
            "architecture": Choice("Processor architecture.", "x86_64", "amd64", "arm64", "aarch64", "ppc64le"),
            "python": Version("Version of Python."),
            "num_cpus": Count("Logical CPUs."),
            "memory": Size("Memory of the machine."),
            "accelerator": Choice("Type of the accelerators.", "cuda", "rocm", "mps", "xpu", "npu", "none"),
            "num_accelerators": Count("Number of accelerators visible to this process."),
            "accelerators": ListOf(
                "The accelerators.", Group("", {"name": Device("Model."), "memory": Size("Memory.")}), 8
            ),
            "packages": Group("Versions of installed packages.", {name: Version("Version.") for name in PACKAGES}),
        },
    ),
    "model-load": Schema(
        "A model was loaded.",
        {
            "base_model": HubId("Base model."),
            "model_type": ModelType("Type of the model."),
            "num_parameters": Count("Number of parameters."),
            "num_trainable_parameters": Count("Number of trainable parameters."),
            "num_layers": Count("Number of layers."),
            "hidden_size": Count("Hidden size."),
            "vocab_size": Count("Size of the vocabulary."),
            "num_experts": Count("Number of experts per layer."),
            "dtype": Choice("Data type of the weights.", *_DTYPES, also=_DTYPE_ALIASES),
            "quantization": Choice("Quantization.", *_QUANTIZATIONS),
            "attention": _CONFIG["attention"],
        },
    ),
    "adapter-load": Schema(
        "An adapter was created or loaded.",
        {
            "kind": Choice("Type of adapter.", *_PEFT_TYPES),
            "task": Choice("Task of the model.", *_TASKS),
            "rank": Count("Rank."),
            "alpha": Measure("Scale."),
            "dropout": Measure("Dropout."),
            "bias": Choice("Which biases are trained.", "none", "all", "lora_only"),
            "num_target_modules": Count("Number of target modules listed by name."),
            "all_linear": Flag("Whether all linear layers are targets."),
            "use_dora": Flag("Whether DoRA is used."),
            "use_rslora": Flag("Whether rank-stabilized LoRA is used."),
        },
    ),
    "train-start": Schema(
        "Training started.",
        {
            "start_step": Count("Steps completed before this process, when resumed."),
            "resumed": Flag("Whether training resumed from a checkpoint."),
            "max_steps": Count("Steps to train."),
            "num_epochs": Measure("Epochs to train."),
            "batch_size": Count("Samples per device and step."),
            "gradient_accumulation": Count("Batches per optimizer step."),
            "world_size": Count("Number of training processes."),
        },
    ),
    "train-progress": Schema(
        "After the first step, then every 100 steps. Multiples of 100 are reported early if a minute has passed.",
        {
            "step": Count("Steps completed."),
            "start_step": Count("Steps completed before this process."),
            "epoch": Count("Completed epochs."),
            "progress": Measure("Epochs, including the fraction of the current one."),
            "steps_per_second": Measure("Steps per second since the previous report."),
            "elapsed_s": Seconds("Time since the start of training."),
            "since_last_report_s": Seconds("Time since the previous report."),
            "cpu_memory": Size("Memory of the main process."),
            "gpu_memory": ListOf("Memory of torch on each accelerator visible to the main process.", Size("")),
            **_PEAKS,
            **_METRICS,
        },
    ),
    "train-end": Schema(
        "Training ended, or the process ended during training.",
        {
            "outcome": Choice(
                "How: `interrupted` by Ctrl-C, `failed` with an uncaught error, `unfinished` for an unknown reason.",
                "finished",
                "interrupted",
                "failed",
                "unfinished",
            ),
            "step": Count("Steps completed."),
            "start_step": Count("Steps completed before this process."),
            "total_s": Seconds("Duration of the training."),
            "total_steps": Count("Steps completed by this process."),
            "steps_per_second": Measure("Mean steps per second."),
            "epochs_completed": Count("Epochs completed by this process."),
            "average_epoch_s": Seconds("Mean duration of an epoch."),
            "train_loss": Measure("Mean training loss, as reported by the trainer."),
            **_PEAKS,
            **_METRICS,
        },
    ),
    "error": Schema(
        "A watched function raised an exception. Messages, notes, arguments and variables are never included.",
        {
            "function": CodeName("The watched function, if it belongs to a known package."),
            "type": CodeName("Type of the exception if Python or a known package defines it, else `user exception`."),
            "base": CodeName("For a user exception, its nearest base class from Python or a known package."),
            "causes": ListOf("Types of its causes, nearest first.", CodeName(""), 8),
            "members": ListOf("Types of the exceptions in an exception group.", CodeName(""), 8),
            "frames": ListOf(
                "The traceback, innermost frame last. Consecutive frames of other code are one entry, `other code`.",
                Group(
                    "",
                    {
                        "module": CodeName("Module of a known package, or `other code`."),
                        "function": CodeName("Function."),
                        "line": LineNumber("Line."),
                    },
                ),
                40,
            ),
        },
    ),
}
"""The built-in events by name."""
