"""Keys of Axolotl's configs that are not keys here, each with a reason.

`UNSUPPORTED_KEYS` change the trained model, so a config that sets one is rejected. `IGNORED_KEYS` only make the same
training faster or say where temporary files go, so they are dropped with a warning. `RENAMED_KEYS` have another name.
A key that is empty or false has no effect in either program and is accepted. An option of a listed plugin is none of
these.
"""

from __future__ import annotations

__all__ = ["IGNORED_KEYS", "IGNORED_TRL_OPTIONS", "RENAMED_KEYS", "UNSUPPORTED_KEYS"]

_PARALLEL = "this kind of parallelism is not supported; use torchrun with `fsdp` or `deepspeed`"
_REWARD = "training of reward models is not supported; train one with TRL and name its folder in trl.reward_funcs"
_QUANTISATION = "quantisation-aware training is not supported; use `adapter: qlora` or plain training"
_RELORA = "ReLoRA is not supported; use `adapter: lora`"
_OTHER_TRACKER = "this tracker is not supported; see the sinks in `telemetry.sinks`"
_IMAGES = "only text is supported; remove images and audio from the data"
_PLUGIN = "it is an option of a plugin: add that plugin to `plugins`"

UNSUPPORTED_KEYS = {
    "adam_beta3": "no supported optimizer has a third beta; use optim_args",
    "adam_epsilon2": "no supported optimizer has a second epsilon; use optim_args",
    "batch_flattening": "use sample_packing, which also keeps samples apart",
    "context_parallel_size": _PARALLEL,
    "cosine_constant_lr_ratio": "use `lr_scheduler: warmup_stable_decay` with lr_scheduler_kwargs",
    "curriculum_sampling": "use `shuffle: false`, which keeps the order of the data",
    "cut_cross_entropy": "add the plugin cut_cross_entropy to `plugins`",
    "do_bench_eval": "add the plugin lm_eval to `plugins`",
    "do_causal_lm_eval": "add the plugin lm_eval to `plugins`",
    "dp_shard_size": _PARALLEL,
    "dynamic_sampling": "only the options of TRL's GRPO trainer are supported",
    "embedding_lr": "all parameters share one learning rate",
    "embedding_lr_scale": "all parameters share one learning rate",
    "eval_causal_lm_metrics": "add the plugin lm_eval to `plugins`",
    "excess_token_handling": "use excess_length_strategy",
    "experts_implementation": "the model has its own implementation of experts",
    "expert_parallel_size": _PARALLEL,
    "gptq": "models that are quantised with GPTQ cannot be trained here; use `adapter: qlora` on the original model",
    "gptq_disable_exllama": "models that are quantised with GPTQ cannot be trained here",
    "image_resize_algorithm": _IMAGES,
    "image_size": _IMAGES,
    "jagged_restart_steps": "restarts of the learning rate are not supported; use `lr_scheduler: cosine_with_restarts`",
    "kd_ce_alpha": f"{_PLUGIN} (kd)",
    "kd_trainer": f"{_PLUGIN} (kd)",
    "grokfast_alpha": f"{_PLUGIN} (grokfast)",
    "grokfast_lamb": f"{_PLUGIN} (grokfast)",
    "lm_eval_tasks": f"{_PLUGIN} (lm_eval)",
    "llmcompressor": f"{_PLUGIN} (llm_compressor)",
    "diffusion": f"{_PLUGIN} (diffusion)",
    "spectrum_top_fraction": f"{_PLUGIN} (spectrum)",
    "layer_offloading": "offloading of layers is not supported; use `fsdp_config: {cpu_offload: true}`",
    "nemo_gym_auto_clone": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_auto_start": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_config_paths": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_datasets": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_dir": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_enabled": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_head_port": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_multi_turn": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_server_timeout": f"{_PLUGIN} (nemo_gym)",
    "nemo_gym_verify_timeout": f"{_PLUGIN} (nemo_gym)",
    "liger_cross_entropy": f"{_PLUGIN} (liger)",
    "liger_fused_linear_cross_entropy": f"{_PLUGIN} (liger)",
    "liger_glu_activation": f"{_PLUGIN} (liger)",
    "liger_layer_norm": f"{_PLUGIN} (liger)",
    "liger_rms_norm": f"{_PLUGIN} (liger)",
    "liger_rms_norm_gated": f"{_PLUGIN} (liger)",
    "liger_rope": f"{_PLUGIN} (liger)",
    "liger_swiglu": f"{_PLUGIN} (liger)",
    "liger_use_token_scaling": f"{_PLUGIN} (liger)",
    "lisa_n_layers": "LISA is not supported; use unfrozen_parameters or the plugin spectrum",
    "lisa_layers_attribute": "LISA is not supported; use unfrozen_parameters or the plugin spectrum",
    "lisa_step_interval": "LISA is not supported; use unfrozen_parameters or the plugin spectrum",
    "llama4_linearized_experts": "the model has its own implementation of experts",
    "loraplus_lr_embedding": "LoRA+ is not supported; all parameters share one learning rate",
    "loraplus_lr_ratio": "LoRA+ is not supported; all parameters share one learning rate",
    "lr_groups": "all parameters share one learning rate",
    "lr_quadratic_warmup": "use `warmup_steps`, which is linear",
    "mean_resizing_embeddings": "new rows of the embedding are initialised as transformers does",
    "medusa_num_heads": "Medusa heads are not supported",
    "model_quantization_config": "only bitsandbytes is supported: load_in_8bit or load_in_4bit",
    "model_quantization_config_kwargs": "only bitsandbytes is supported: load_in_8bit or load_in_4bit",
    "multimodal": _IMAGES,
    "num_labels": _REWARD,
    "peft_layer_replication": "replication of layers is not supported",
    "process_reward_model": _REWARD,
    "processor_type": _IMAGES,
    "qat": _QUANTISATION,
    "quantization": _QUANTISATION,
    "reference_model": "the reference is the model before training",
    "relora": _RELORA,
    "relora_cpu_offload": _RELORA,
    "relora_prune_ratio": _RELORA,
    "relora_steps": _RELORA,
    "relora_warmup_steps": _RELORA,
    "reward_model": _REWARD,
    "rpo_alpha": "TRL has removed this term; use `dpo_loss_type: [sigmoid, sft]` with dpo_loss_weights",
    "s2_attention": "shifted sparse attention is not supported; use sdp_attention or flash_attention",
    "sequence_parallel_degree": _PARALLEL,
    "shrink_embeddings": "embeddings are never made smaller",
    "simpo_gamma": "SimPO is not supported; use `rl: orpo`, which also needs no reference",
    "skip_prepare_dataset": "data is always checked and tokenised; save it as JSONL, Parquet or a `datasets` folder",
    "streaming": "data is read before training, so that it can be checked; remove the key",
    "tensor_parallel_size": _PARALLEL,
    "use_comet": _OTHER_TRACKER,
    "use_otel_metrics": "use the sink otlp: `telemetry: {sinks: [otlp]}`",
    "use_trackio": _OTHER_TRACKER,
    "xformers_attention": "use sdp_attention, which is as fast",
}

_NOT_NEEDED = "it is not needed"
_KERNELS = "the model's own kernels are used"

IGNORED_KEYS = {
    "dataset_keep_in_memory": "tokenised data is always in memory",
    "dataset_num_proc": "data is tokenised by the threads of the tokenizer",
    "dataset_prepared_path": "data is read and checked at each start, and not cached",
    "dataset_processes": "data is tokenised by the threads of the tokenizer",
    "debug": _NOT_NEEDED,
    "eval_max_new_tokens": "no texts are generated in evaluations",
    "eval_table_size": "no texts are generated in evaluations",
    "flash_attn_cross_entropy": _KERNELS,
    "flash_attn_fuse_mlp": _KERNELS,
    "flash_attn_fuse_qkv": _KERNELS,
    "flash_attn_rms_norm": _KERNELS,
    "flash_optimum": _KERNELS,
    "gc_steps": _NOT_NEEDED,
    "gpu_memory_limit": "the memory of the GPU is not limited",
    "hf_use_auth_token": "log in with `hf auth login` or set HF_TOKEN",
    "include_tkps": "throughput is always recorded",
    "include_tokens_per_second": "throughput is always recorded",
    "is_falcon_derived_model": "the architecture is read from the model",
    "is_llama_derived_model": "the architecture is read from the model",
    "is_mistral_derived_model": "the architecture is read from the model",
    "is_qwen_derived_model": "the architecture is read from the model",
    "local_rank": "the rank is read from the environment",
    "lora_mlp_kernel": _KERNELS,
    "lora_o_kernel": _KERNELS,
    "lora_on_cpu": _NOT_NEEDED,
    "lora_qkv_kernel": _KERNELS,
    "loss_watchdog_patience": "the diagnosis of the run finds a diverging loss",
    "loss_watchdog_threshold": "the diagnosis of the run finds a diverging loss",
    "low_cpu_mem_usage": "models are always loaded this way",
    "multipack_real_batches": "micro_batch_size counts packed rows",
    "profiler_steps": "steps are always profiled by spans",
    "push_dataset_to_hub": "data is never uploaded",
    "sample_packing_bin_size": _NOT_NEEDED,
    "sample_packing_group_size": _NOT_NEEDED,
    "sample_packing_sequentially": _NOT_NEEDED,
    "save_first_step": _NOT_NEEDED,
    "strict": "unknown keys are always errors",
    "tokenizer_legacy": "the tokenizer is loaded as it was saved",
    "tokenizer_use_fast": "fast tokenizers are used",
    "vllm": (
        "no vLLM server is started here; TRL's options of vLLM go into the section trl: vllm_gpu_memory_utilization, "
        "vllm_max_model_length …"
    ),
    "wandb_log_model": "checkpoints are recorded, but not uploaded",
    "wandb_watch": "gradients are not sent to W&B",
    "use_kernels": "add the plugin kernels to `plugins` to use its kernels",
    "use_scattermoe": "add the plugin kernels to `plugins` to use its kernels",
    "use_sonicmoe": "add the plugin kernels to `plugins` to use its kernels",
}

_ASYNCHRONOUS = "completions are generated between the steps"
_WEIGHTS = "TRL sends the weights to vLLM before completions are generated"

IGNORED_TRL_OPTIONS = {
    "async_prefetch": _ASYNCHRONOUS,
    "use_data_producer": _ASYNCHRONOUS,
    "vllm_lora_sync": _WEIGHTS,
    "vllm_sync_interval": _WEIGHTS,
}
"""Options of the section `trl` that Axolotl's own trainer has, and TRL's has not; they change the speed only."""

RENAMED_KEYS = {
    "batch_size": (
        "it counts the rows of a step. Set micro_batch_size, the rows per device, and gradient_accumulation_steps"
    ),
    "evaluation_strategy": "it is named 'eval_strategy'",
    "eval_per_epoch": "it is named 'evals_per_epoch'",
    "max_packed_sequence_len": "use `sample_packing: true`, and `sequence_len` for the length",
    "noisy_embedding_alpha": "it is named 'neftune_noise_alpha'",
    "run_name": "it is named 'name'",
    "save_per_epoch": "it is named 'saves_per_epoch'",
    "dpo_beta": "it is named 'rl_beta'",
}
