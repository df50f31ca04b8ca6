"""Loads the tokenizer, the model's config and the model; also a model without weights, to check a config with."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.train._config import TrainConfig
from tachograph.train._data import Limits
from tachograph.train._problems import Problems

__all__ = [
    "add_adapter",
    "build_meta_model",
    "check_packages",
    "compute_dtype",
    "freeze",
    "is_local",
    "is_pure_precision",
    "limits_of",
    "load_model",
    "load_model_config",
    "load_tokenizer",
    "resize_embeddings",
    "weights_dtype",
]

_SINGLE_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def check_packages(config: TrainConfig, problems: Problems) -> None:
    """Add a problem for each package or device that the config needs and that is missing."""
    import torch

    has_gpu = torch.cuda.is_available() and not config.use_cpu
    reason_by_package = {
        "peft": "adapter" if config.adapter else "",
        "trl": f"rl: {config.rl}" if config.rl else "",
        "bitsandbytes": _quantisation(config) or _bitsandbytes_optimizer(config),
        "flash_attn": "flash_attention" if config.attention == "flash_attention_2" else "",
        "deepspeed": "deepspeed" if config.deepspeed else "",
        "vllm": "trl.use_vllm" if config.rl == "grpo" and config.trl.get("use_vllm") else "",
    }
    for package, reason in reason_by_package.items():
        if reason and importlib.util.find_spec(package) is None:
            command = "tachograph[train]" if package in ("peft", "trl") else package.replace("_", "-")
            remedy = {
                "bitsandbytes": " Or use `optimizer: adamw_torch`."
                if reason.startswith("optimizer")
                else " Or use `adapter: lora` without load_in_8bit and load_in_4bit.",
                "flash_attn": " Or use `sdp_attention: true`.",
                "vllm": " Or set `use_vllm: false`: transformers generates the completions then.",
            }.get(package, "")
            problems.add(f"{reason} needs {package}, which is not installed: pip install '{command}'.{remedy}")
    if config.model_quantization_config:
        try:
            _other_quantisation(config)
        except ConfigError as error:
            problems.add(str(error))
    if config.fp16 is True and not has_gpu:
        problems.add("fp16: true needs a GPU, and there is none: use `bf16: auto`")


def _bitsandbytes_optimizer(config: TrainConfig) -> str:
    from transformers.training_args import OptimizerNames

    is_valid = config.optimizer in {entry.value for entry in OptimizerNames}
    return f"optimizer: {config.optimizer}" if is_valid and re.search("8bit|bnb|paged", config.optimizer) else ""


def _quantisation(config: TrainConfig) -> str:
    if config.adapter == "qlora":
        return "adapter: qlora"
    return "load_in_8bit" if config.load_in_8bit else "load_in_4bit" if config.load_in_4bit else ""


def compute_dtype(config: TrainConfig) -> str:
    """Return the type to compute in: `bfloat16`, `float16` or `float32`."""
    import torch

    if config.float32:
        return "float32"
    if config.bf16 in (True, "full"):
        return "bfloat16"
    if config.fp16 is True:
        return "float16"
    if config.bfloat16 or config.float16:
        return "bfloat16" if config.bfloat16 else "float16"
    has_gpu = torch.cuda.is_available() and not config.use_cpu
    if config.bf16 == "auto" and has_gpu and torch.cuda.is_bf16_supported():
        return "bfloat16"
    return "float16" if config.fp16 == "auto" and has_gpu else "float32"


def is_pure_precision(config: TrainConfig) -> bool:
    """Return whether weights and computation have one type in 16 bits, without mixed precision."""
    has_mixed_precision = config.bf16 in (True, "full") or config.fp16 is True
    return (config.bfloat16 or config.float16) and not has_mixed_precision


def weights_dtype(config: TrainConfig) -> str:
    """Return the type of the weights: `auto`, or the type of the computation.

    With float16 the loss is scaled, which needs gradients, and so trained weights, in float32.
    """
    if config.torch_dtype is not None:
        return config.torch_dtype
    dtype = compute_dtype(config)
    needs_float32 = dtype == "float16" and config.adapter is None and not is_pure_precision(config)
    return "float32" if needs_float32 else dtype


def _class_of(key: str, name: str) -> Any:
    import transformers

    cls = getattr(transformers, name, None)
    if cls is None:
        class_names = [
            entry for entry in dir(transformers) if entry.endswith(("ForCausalLM", "Tokenizer", "TokenizerFast"))
        ]
        raise ConfigError(f"{key}={name!r}: transformers has no such class{did_you_mean(name, class_names)}")
    return cls


def is_local(source: str) -> bool:
    """Return whether a model is a path, and not the name of a repository on the hub."""
    return source.startswith((".", "/", "~")) or source.count("/") > 1 or Path(source).exists()


def _load(key: str, source: str, load: Any) -> Any:
    """Call a function that loads from a folder or the hub, and explain its errors."""
    path = Path(source).expanduser()
    if is_local(source) and not path.exists():
        raise ConfigError(f"{key}={source!r}: no such folder")
    try:
        return load(str(path) if path.exists() else source)
    except Exception as error:  # errors of the hub, of HTTP, of JSON and of damaged files
        reason = str(error).strip().partition("\n")[0][:300]
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"{key}={source!r} brings code of its own, which is not executed: read it, then set "
                "`trust_remote_code: true`"
            ) from error
        if path.exists():
            raise ConfigError(f"{key}={source!r} cannot be loaded: {type(error).__name__}: {reason}") from error
        raise ConfigError(
            f"{key}={source!r}: there is no such folder, and it cannot be loaded from the Hugging Face Hub: "
            f"{type(error).__name__}: {reason}. Without a connection, give the path of a folder."
        ) from error


def load_tokenizer(config: TrainConfig) -> tuple[Any, int]:
    """Return the tokenizer, and the number of tokens that the config adds to it.

    Raises:
        ConfigError: if it cannot be loaded, or cannot be used for training.
    """
    key = "tokenizer_config" if config.tokenizer_config else "base_model"
    source = config.tokenizer_config or config.base_model or ""
    kind = _class_of("tokenizer_type", config.tokenizer_type)
    tokenizer = _load(key, source, lambda path: kind.from_pretrained(path, trust_remote_code=config.trust_remote_code))
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(f"{key}={source!r}: the tokenizer has no fast version, which is needed to mask prompts")
    before = len(tokenizer)
    unknown = [name for name in config.special_tokens if name not in (*_SINGLE_TOKENS, "additional_special_tokens")]
    if unknown:
        raise ConfigError(
            f"special_tokens: unknown name {unknown[0]!r}{did_you_mean(unknown[0], _SINGLE_TOKENS)}; "
            "other tokens go into `tokens`"
        )
    special: dict[str, Any] = dict(config.special_tokens)
    more = special.pop("additional_special_tokens", [])
    if special:
        tokenizer.add_special_tokens(special)
    if more:
        tokenizer.add_tokens([more] if isinstance(more, str) else list(more), special_tokens=True)
    if config.tokens:
        tokenizer.add_tokens(config.tokens)
    num_added = len(tokenizer) - before
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, num_added


def load_model_config(config: TrainConfig, tokenizer: Any) -> Any:
    """Return the config of the model, with the overrides.

    Raises:
        ConfigError: if it cannot be loaded, or an override does not exist.
    """
    from transformers import AutoConfig

    trust = config.trust_remote_code
    if isinstance(config.init_from_config, dict):
        model_config = _build_config(dict(config.init_from_config), tokenizer)
    else:
        source = config.init_from_config or config.base_model_config or config.base_model or ""
        key = (
            "init_from_config"
            if config.init_from_config
            else "base_model_config"
            if config.base_model_config
            else "base_model"
        )
        model_config = _load(
            key,
            source,
            lambda path: AutoConfig.from_pretrained(
                path, trust_remote_code=trust, **({"revision": config.revision_of_model} if key == "base_model" else {})
            ),
        )
    for name, value in config.overrides_of_model_config.items():
        if not hasattr(model_config, name):
            raise ConfigError(
                f"overrides_of_model_config: {model_config.model_type} has no {name!r}"
                f"{did_you_mean(name, model_config.to_dict())}"
            )
        setattr(model_config, name, value)
    model_config.use_cache = False
    return model_config


def _build_config(values: dict[str, Any], tokenizer: Any) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = values.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        hint = did_you_mean(str(kind), CONFIG_MAPPING.keys())
        raise ConfigError(f"init_from_config.model_type={kind!r}: transformers has no such model{hint}")
    defaults = AutoConfig.for_model(kind)
    for name in values:
        if not hasattr(defaults, name):
            raise ConfigError(f"init_from_config: {kind} has no {name!r}{did_you_mean(name, defaults.to_dict())}")
    ids = {name: getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    try:
        return AutoConfig.for_model(kind, **{"vocab_size": len(tokenizer), **ids, **values})
    except Exception as error:  # each model checks its config in its own way
        raise ConfigError(f"init_from_config: {type(error).__name__}: {error}") from error


def limits_of(model_config: Any, num_added: int) -> Limits:
    """Return the limits of the model."""
    text = model_config.get_text_config() if hasattr(model_config, "get_text_config") else model_config
    vocab_size = getattr(text, "vocab_size", None)
    positions = getattr(text, "max_position_embeddings", None)
    return Limits(
        None if num_added else vocab_size, positions if isinstance(positions, int) and positions > 0 else None
    )


def build_meta_model(config: TrainConfig, model_config: Any, tokenizer: Any, num_added: int) -> Any:
    """Return the model without weights, on the `meta` device: it takes no memory.

    Raises:
        ConfigError: if the config does not describe a model.
    """
    import torch

    if config.experts_implementation == "scattermoe":
        raise ConfigError("experts_implementation='scattermoe': add the plugin kernels to `plugins`, which has it")
    try:
        with torch.device("meta"):
            options = {"experts_implementation": config.experts_implementation} if config.experts_implementation else {}
            model = _from_config(config, copy.deepcopy(model_config), **options)  # resizing changes it
    except ConfigError:
        raise
    except Exception as error:  # each model checks its config in its own way
        raise ConfigError(f"the model cannot be built: {type(error).__name__}: {error}") from error
    if config.experts_implementation and not _has_experts(model):
        raise ConfigError(
            f"experts_implementation={config.experts_implementation!r}: {type(model).__name__} has no experts whose "
            "implementation can be chosen; remove the key"
        )
    resize_embeddings(config, model, tokenizer, num_added)
    return model


def _has_experts(model: Any) -> bool:
    """Return whether the model or a part of it lets the implementation of its experts be chosen."""
    checks = [getattr(part, "_can_set_experts_implementation", None) for part in model.modules()]
    return any(check() for check in checks if check is not None)


def _from_config(config: TrainConfig, model_config: Any, **options: Any) -> Any:
    kind = _class_of("model_type", config.model_type)
    if hasattr(kind, "from_config"):
        return kind.from_config(model_config, trust_remote_code=config.trust_remote_code, **options)
    return kind._from_config(model_config, **options)


def resize_embeddings(config: TrainConfig, model: Any, tokenizer: Any, num_added: int) -> None:
    """Make the embedding large enough for tokens that the config adds."""
    size = model.get_input_embeddings().weight.shape[0]
    multiple = 32 if config.resize_token_embeddings_to_32x else None
    if (num_added and len(tokenizer) > size) or (multiple and size % multiple):
        model.resize_token_embeddings(max(len(tokenizer), size), pad_to_multiple_of=multiple, mean_resizing=False)


def load_model(config: TrainConfig, model_config: Any, tokenizer: Any, num_added: int) -> Any:
    """Return the model with its weights, or with random ones.

    Raises:
        ConfigError: if it cannot be loaded.
    """
    import torch

    dtype = weights_dtype(config)
    if config.init_from_config is not None or config.reinit_weights:
        options: dict[str, Any] = {"attn_implementation": config.attention} if config.attention else {}
        if config.experts_implementation:
            options["experts_implementation"] = config.experts_implementation
        torch.manual_seed(config.seed)
        model = _from_config(config, model_config, **options)
        model = model.to(getattr(torch, dtype if dtype != "auto" else "float32"))
    else:
        options = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype), **config.overrides_of_model_kwargs}
        if config.attention:
            options["attn_implementation"] = config.attention
        if config.experts_implementation:
            options["experts_implementation"] = config.experts_implementation
        if config.revision_of_model:
            options["revision"] = config.revision_of_model
        if config.max_memory is not None:
            options["max_memory"] = config.max_memory
        if config.device_map is not None:
            options["device_map"] = config.device_map
        if _quantisation(config) or config.model_quantization_config:
            options["quantization_config"] = _quantisation_config(config)
        kind = _class_of("model_type", config.model_type)
        model = _load(
            "base_model",
            config.base_model or "",
            lambda path: kind.from_pretrained(
                path, config=model_config, trust_remote_code=config.trust_remote_code, **options
            ),
        )
    resize_embeddings(config, model, tokenizer, num_added)
    return model


def _quantisation_config(config: TrainConfig) -> Any:
    import torch
    from transformers import BitsAndBytesConfig

    if config.model_quantization_config:
        return _other_quantisation(config)
    if config.load_in_8bit:
        return BitsAndBytesConfig(load_in_8bit=True, **config.bnb_config_kwargs)
    options = {
        "bnb_4bit_compute_dtype": getattr(torch, compute_dtype(config)),
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        **config.bnb_config_kwargs,
    }
    return BitsAndBytesConfig(load_in_4bit=True, **options)


def _other_quantisation(config: TrainConfig) -> Any:
    """Return the config of a quantisation that `model_quantization_config` names.

    Raises:
        ConfigError: if `transformers` has no such class, or it does not take the arguments.
    """
    import transformers
    from transformers.utils.quantization_config import QuantizationConfigMixin

    name = config.model_quantization_config or ""
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, QuantizationConfigMixin)):
        names = [entry.__name__ for entry in QuantizationConfigMixin.__subclasses__()]
        raise ConfigError(
            f"model_quantization_config={name!r}: transformers has no such quantisation{did_you_mean(name, names)}"
        )
    try:
        return kind(**config.model_quantization_config_kwargs)
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(f"model_quantization_config: {name} rejects its arguments: {error}") from error


def add_adapter(config: TrainConfig, model: Any, more: dict[str, Any]) -> Any:
    """Return the model with its LoRA adapter.

    Args:
        config: the config.
        model: the model.
        more: arguments of the LoRA config that plugins set.

    Raises:
        ConfigError: if the adapter does not fit the model.
    """
    import peft

    if _quantisation(config) and getattr(model, "is_quantized", False):
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=config.gradient_checkpointing,
            gradient_checkpointing_kwargs=config.gradient_checkpointing_kwargs,
        )
    if config.lora_model_dir:
        return _load(
            "lora_model_dir",
            config.lora_model_dir,
            lambda path: peft.PeftModel.from_pretrained(model, path, is_trainable=True),
        )
    targets: Any = "all-linear" if config.lora_target_linear else config.lora_target_modules
    options = {
        "r": config.lora_r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "target_modules": targets,
        "target_parameters": config.lora_target_parameters,
        "modules_to_save": config.lora_modules_to_save,
        "fan_in_fan_out": config.lora_fan_in_fan_out,
        "bias": config.lora_bias,
        "use_dora": config.peft_use_dora,
        "use_rslora": config.peft_use_rslora,
        "init_lora_weights": config.peft_init_lora_weights,
        "layers_to_transform": config.peft_layers_to_transform,
        "layers_pattern": config.peft_layers_pattern,
        "rank_pattern": config.lora_rank_pattern,
        "alpha_pattern": config.lora_alpha_pattern,
        "trainable_token_indices": config.peft_trainable_token_indices,
        "ensure_weight_tying": config.peft_ensure_weight_tying,
        "task_type": "CAUSAL_LM",
        **more,
    }
    try:
        return peft.get_peft_model(
            model, peft.LoraConfig(**options), autocast_adapter_dtype=config.peft_autocast_adapter_dtype
        )
    except (ValueError, TypeError, RuntimeError) as error:
        from torch import nn

        linear = sorted(
            {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
        )
        raise ConfigError(
            f"lora_target_modules={targets!r}: {error}. The linear modules of this model are {', '.join(linear)}; "
            "or set `lora_target_linear: true`."
        ) from error


def freeze(config: TrainConfig, model: Any) -> None:
    """Freeze all parameters that `unfrozen_parameters` does not match.

    Raises:
        ConfigError: if an expression is invalid or matches nothing.
    """
    patterns = {}
    for text in config.unfrozen_parameters:
        try:
            patterns[text] = re.compile(text)
        except re.error as error:
            raise ConfigError(f"unfrozen_parameters: {text!r} is not a valid expression: {error}") from None
    names = [name for name, _ in model.named_parameters()]
    for text, pattern in patterns.items():
        if not any(pattern.match(name) for name in names):
            hint = did_you_mean(text, names) or "."
            raise ConfigError(f"unfrozen_parameters: {text!r} matches no parameter{hint} The first is {names[0]!r}.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(pattern.match(name) for pattern in patterns.values()))
