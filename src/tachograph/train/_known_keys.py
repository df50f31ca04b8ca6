"""Keys of Axolotl's configs that are not keys here, each with a reason.

`UNSUPPORTED_KEYS` change the trained model, so a config that sets one is rejected. With `IGNORED_KEYS` the model is the
same: they change speed, memory, files, or what else is computed beside the training. They are dropped with a note,
which says what is missing. `PLUGIN_KEYS` are options of plugins that are not listed, and `RENAMED_KEYS` have another
name. A key that is empty or false has no effect in either
program and is accepted. An option of a listed plugin is none of these.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "IGNORED_KEYS",
    "IGNORED_TRL_OPTIONS",
    "OFFLOADING",
    "OFF_VALUES",
    "OTHER_NAMES",
    "PLUGIN_KEYS",
    "RENAMED_KEYS",
    "UNSUPPORTED_KEYS",
    "rejected_keys",
]

OTHER_NAMES = {
    "model_config": "overrides_of_model_config",
    "model_kwargs": "overrides_of_model_kwargs",
    "model_revision": "revision_of_model",
    "type_of_model": "model_type",
}
"""Names that Axolotl has beside the names of these keys, with the same meaning."""

OFF_VALUES: dict[str, Any] = {
    "context_parallel_size": 1,
    "dp_replicate_size": 1,
    "dp_shard_size": 1,
    "expert_parallel_size": 1,
    "sequence_parallel_degree": 1,
    "tensor_parallel_size": 1,
}
"""Values that turn a key off."""

OFFLOADING = ("offload", "offload_disk", "unsloth")
"""Values of `gradient_checkpointing` that move activations to the host."""

_PARALLEL = (
    "this kind of parallelism is not supported; without it, more rows make a step. Use torchrun with `fsdp` or "
    "`deepspeed`, and fit gradient_accumulation_steps"
)
_REWARD = "training of reward models is not supported; train one with TRL and name its folder in trl.reward_funcs"
_QUANTISATION = "quantisation-aware training is not supported; use `adapter: qlora` or plain training"
_RELORA = "ReLoRA is not supported; use `adapter: lora`"
_LISA = "LISA is not supported; use unfrozen_parameters or the plugin spectrum"
_ONE_RATE = "all parameters share one learning rate"
_IMAGES = "only text is supported; remove images and audio from the data"
_FLOAT8 = "training in float8 is not supported; use `bf16: true`"
_OPTIMIZER = "this optimizer is not available; see `optimizer`"
_JAGGED = "restarts of the learning rate are not supported; use `lr_scheduler: cosine_with_restarts`"
_POSE = "training on skipped positions (PoSE) is not supported"
_EBFT = "this method is not supported; see `rl`"
_EAFT = "weighting tokens by their entropy (EAFT) is not supported"
_RAY = "Ray is not supported, and without it fewer processes make a step: use torchrun"
_FLOAT4 = "models with weights in FP4 or FP8 are not supported; use the original model, with `adapter: qlora`"
_EXPERTS = "experts keep their precision here, which needs more memory than 4 bits: remove the key if it suffices"

UNSUPPORTED_KEYS = {
    "adam_beta3": "no supported optimizer has a third beta; use optim_args",
    "adam_epsilon2": "no supported optimizer has a second epsilon; use optim_args",
    "added_tokens_overrides": "tokens cannot be replaced; add new ones with `tokens` or `special_tokens`",
    "batch_flattening": "use sample_packing, which also keeps samples apart",
    "center_rewards_coefficient": _REWARD,
    "cls_model_config": "the class of the config is read from the model; use base_model_config",
    "context_parallel_size": _PARALLEL,
    "cosine_constant_lr_ratio": "use `lr_scheduler: warmup_stable_decay` with lr_scheduler_kwargs",
    "cpo_alpha": "SimPO and CPO are not supported; use `rl: orpo`, which also needs no reference",
    "curriculum_sampling": "use `shuffle: false`, which keeps the order of the data",
    "dataset_shard_idx": "use `shards` and `shards_idx` of a dataset",
    "dataset_shard_num": "use `shards` and `shards_idx` of a dataset",
    "dion_lr": _OPTIMIZER,
    "dion_momentum": _OPTIMIZER,
    "dion_rank_fraction": _OPTIMIZER,
    "dion_rank_multiple_of": _OPTIMIZER,
    "dpo_norm_loss": "TRL has no such loss; see dpo_loss_type",
    "dsv4_bf16_all": _FLOAT4,
    "dsv4_fp4_grouped_mode": _FLOAT4,
    "dsv4_fp8_nonexpert_mode": _FLOAT4,
    "dynamic_sampling": "only the options of TRL's GRPO trainer are supported",
    "eaft_alpha": _EAFT,
    "eaft_k": _EAFT,
    "ebft": _EBFT,
    "embedding_lr": _ONE_RATE,
    "embedding_lr_scale": _ONE_RATE,
    "embeddings_skip_upcast": "embeddings have the type of the other weights; use `torch_dtype: float32`",
    "eval_sequence_len": "evaluations use sequence_len, too",
    "excess_token_handling": "use excess_length_strategy",
    "expert_parallel_backend": _PARALLEL,
    "expert_parallel_fallback_on_unsupported": _PARALLEL,
    "expert_parallel_num_nvl_bytes": _PARALLEL,
    "expert_parallel_num_rdma_bytes": _PARALLEL,
    "expert_parallel_size": _PARALLEL,
    "expert_parallel_token_capacity": _PARALLEL,
    "fix_untrained_tokens": "embeddings of unused tokens are not changed",
    "fp32_norm_classes": "all weights have one type; use `torch_dtype: float32`",
    "fp32_norms": "all weights have one type; use `torch_dtype: float32`",
    "fp8": _FLOAT8,
    "fp8_config": _FLOAT8,
    "fp8_enable_fsdp_float8_all_gather": _FLOAT8,
    "freeze_mm_modules": _IMAGES,
    "gemma4_fp8_nonexpert": _FLOAT4,
    "gemma4_nf4_nonexpert": _FLOAT4,
    "gptq": "models that are quantised with GPTQ cannot be trained here; use `adapter: qlora` on the original model",
    "gptq_disable_exllama": "models that are quantised with GPTQ cannot be trained here",
    "image_resize_algorithm": _IMAGES,
    "image_size": _IMAGES,
    "jagged_restart_anneal_steps": _JAGGED,
    "jagged_restart_steps": _JAGGED,
    "jagged_restart_warmup_steps": _JAGGED,
    "lisa_layers_attribute": _LISA,
    "lisa_n_layers": _LISA,
    "lisa_step_interval": _LISA,
    "llama4_linearized_experts": _EXPERTS,
    "loraplus_lr_embedding": "LoRA+ is not supported; all parameters share one learning rate",
    "loraplus_lr_ratio": "LoRA+ is not supported; all parameters share one learning rate",
    "lr_div_factor": "use lr_scheduler_kwargs",
    "lr_groups": _ONE_RATE,
    "lr_quadratic_warmup": "use `warmup_steps`, which is linear",
    "max_prompt_len": "prompts are not truncated; see sequence_len and excess_length_strategy",
    "mean_resizing_embeddings": "new rows of the embedding are initialised as transformers does",
    "medusa_num_heads": "Medusa heads are not supported",
    "mora": "MoRA is not supported; use `adapter: lora`",
    "multimodal": _IMAGES,
    "nonexpert_quantization": _FLOAT4,
    "num_labels": _REWARD,
    "nvfp4_merge_aware": _FLOAT4,
    "nvfp4_merge_aware_start_step": _FLOAT4,
    "peft": "LoftQ is not supported; use `adapter: qlora`, or peft_init_lora_weights such as pissa",
    "peft_layer_replication": "replication of layers is not supported",
    "pose_max_context_len": _POSE,
    "pose_num_chunks": _POSE,
    "pose_split_on_token_ids": _POSE,
    "pretraining_sample_concatenation": "samples are never concatenated without a boundary; use sample_packing",
    "process_reward_model": _REWARD,
    "processor_kwargs": _IMAGES,
    "processor_type": _IMAGES,
    "qat": _QUANTISATION,
    "qgalore_cos_threshold": _OPTIMIZER,
    "qgalore_gamma_proj": _OPTIMIZER,
    "qgalore_proj_bits": _OPTIMIZER,
    "qgalore_proj_group_size": _OPTIMIZER,
    "qgalore_proj_quant": _OPTIMIZER,
    "qgalore_proj_type": _OPTIMIZER,
    "qgalore_queue_size": _OPTIMIZER,
    "qgalore_rank": _OPTIMIZER,
    "qgalore_scale": _OPTIMIZER,
    "qgalore_update_proj_gap": _OPTIMIZER,
    "quantization": _QUANTISATION,
    "quantize_moe_experts": _EXPERTS,
    "ray_num_workers": _RAY,
    "ray_run_name": _RAY,
    "reference_model": "the reference is the model before training",
    "relora": _RELORA,
    "relora_cpu_offload": _RELORA,
    "relora_prune_method": _RELORA,
    "relora_prune_ratio": _RELORA,
    "relora_steps": _RELORA,
    "relora_warmup_steps": _RELORA,
    "resources_per_worker": _RAY,
    "reward_model": _REWARD,
    "role_boundaries": _IMAGES,
    "rope_scaling": "use `overrides_of_model_config: {rope_scaling: …}`",
    "rpo_alpha": "TRL has removed this term; use `dpo_loss_type: [sigmoid, sft]` with dpo_loss_weights",
    "s2_attention": "shifted sparse attention is not supported; use sdp_attention or flash_attention",
    "sage_attention": "attention in 8 bits is not supported; use sdp_attention or flash_attention",
    "scaling_softmax": "attention with a scaled softmax is not supported",
    "scaling_softmax_bias": "attention with a scaled softmax is not supported",
    "scaling_softmax_factor": "attention with a scaled softmax is not supported",
    "sequence_parallel_degree": _PARALLEL,
    "shrink_embeddings": "embeddings are never made smaller",
    "shuffle_before_merging_datasets": "rows of all datasets are shuffled together; see `shuffle`",
    "simpo_gamma": "SimPO is not supported; use `rl: orpo`, which also needs no reference",
    "skip_prepare_dataset": "data is always checked and tokenised; save it as JSONL, Parquet or a `datasets` folder",
    "tensor_parallel_size": _PARALLEL,
    "tokenizer_use_mistral_common": (
        "tokenizers of mistral-common give no positions of tokens, which masking of prompts needs. Set "
        "tokenizer_config to a repository with a tokenizer.json, and remove the key"
    ),
    "torchdistx_path": _OPTIMIZER,
    "trainer_cls": "a plugin can bring a trainer; see `plugins`",
    "use_eaft": _EAFT,
    "use_mora": "MoRA is not supported; use `adapter: lora`",
    "use_onebitllms": "training in one bit is not supported",
    "use_pose": _POSE,
    "use_ray": _RAY,
}

_KERNELS = "the model's own kernels are used"
_WITH_KERNELS = "add the plugin kernels to `plugins` to use its kernels"
_NOT_NEEDED = "it is not needed"
_OTHER_TRACKER = "the run is not sent there; see the sinks in `telemetry.sinks`"
_MORE_MEMORY = "the model is the same, but training needs more memory"
_SHARDING = "FSDP shards over all processes; the rows of a step are the same"
_NO_SAMPLES = "no texts are generated in evaluations"
_LM_EVAL = "no such metrics are computed; add the plugin lm_eval"
_IN_MEMORY = "all data is read, checked and packed before training, so it must fit into memory"
_INTERNAL = "it is computed"
_NO_CHAT = "it is not about training"

IGNORED_KEYS = {
    "activation_offloading": _MORE_MEMORY,
    "axolotl_config_path": _INTERNAL,
    "bench_dataset": _LM_EVAL,
    "bench_split": _LM_EVAL,
    "chunked_cross_entropy": f"{_MORE_MEMORY}; the plugin cut_cross_entropy needs less",
    "chunked_cross_entropy_num_chunks": f"{_MORE_MEMORY}; the plugin cut_cross_entropy needs less",
    "comet_api_key": _OTHER_TRACKER,
    "comet_experiment_config": _OTHER_TRACKER,
    "comet_experiment_key": _OTHER_TRACKER,
    "comet_mode": _OTHER_TRACKER,
    "comet_online": _OTHER_TRACKER,
    "comet_project_name": _OTHER_TRACKER,
    "comet_workspace": _OTHER_TRACKER,
    "dataset_keep_in_memory": "tokenised data is always in memory",
    "dataset_num_proc": "data is tokenised by the threads of the tokenizer",
    "dataset_prepared_path": "data is read and checked at each start, and not cached",
    "dataset_processes": "data is tokenised by the threads of the tokenizer",
    "ddp": "it is read from the environment",
    "debug": _NOT_NEEDED,
    "deepcompile": _KERNELS,
    "device": "it is read from the environment",
    "do_bench_eval": _LM_EVAL,
    "do_causal_lm_eval": _LM_EVAL,
    "dp_replicate_size": _SHARDING,
    "dp_shard_size": _SHARDING,
    "dpo_generate_during_eval": _NO_SAMPLES,
    "dpo_padding_free": _MORE_MEMORY,
    "dpo_use_liger_kernel": _KERNELS,
    "dpo_use_logits_to_keep": _KERNELS,
    "dsv4_fp8_lora_kernel": _KERNELS,
    "dsv4_shared_mlp_lora_kernel": _KERNELS,
    "dynamic_checkpoint": "the dashboard and `tacho control` save a checkpoint at any moment",
    "eval_causal_lm_metrics": _LM_EVAL,
    "eval_max_new_tokens": _NO_SAMPLES,
    "eval_table_size": _NO_SAMPLES,
    "experimental_skip_move_to_device": _MORE_MEMORY,
    "expert_backend": _KERNELS,
    "flash_attn_cross_entropy": _KERNELS,
    "flash_attn_d512": _KERNELS,
    "flash_attn_fuse_mlp": _KERNELS,
    "flash_attn_fuse_qkv": _KERNELS,
    "flash_attn_rms_norm": _KERNELS,
    "flash_optimum": _KERNELS,
    "flex_attn_compile_kwargs": _KERNELS,
    "fsdp_final_state_dict_type": "the model is always saved as a whole",
    "fused_attn_kernel": _KERNELS,
    "gc_collect_steps": _NOT_NEEDED,
    "gc_steps": _NOT_NEEDED,
    "gemma4_hybrid_attn_impl": _KERNELS,
    "generate_samples": _NO_SAMPLES,
    "generation_do_sample": _NO_SAMPLES,
    "generation_max_new_tokens": _NO_SAMPLES,
    "generation_prompt_ratio": _NO_SAMPLES,
    "generation_temperature": _NO_SAMPLES,
    "generation_top_k": _NO_SAMPLES,
    "generation_top_p": _NO_SAMPLES,
    "gpu_memory_limit": "the memory of the GPU is not limited",
    "gradio_max_new_tokens": _NO_CHAT,
    "gradio_server_name": _NO_CHAT,
    "gradio_server_port": _NO_CHAT,
    "gradio_share": _NO_CHAT,
    "gradio_temperature": _NO_CHAT,
    "gradio_title": _NO_CHAT,
    "heads_k_stride": "it has an effect only with context_parallel_size",
    "hf_mlflow_log_artifacts": "checkpoints are recorded, but not uploaded",
    "hf_use_auth_token": "log in with `hf auth login` or set HF_TOKEN",
    "include_tkps": "throughput is always recorded",
    "include_tokens_per_second": "throughput is always recorded",
    "is_falcon_derived_model": "the architecture is read from the model",
    "is_llama_derived_model": "the architecture is read from the model",
    "is_mistral_derived_model": "the architecture is read from the model",
    "is_preprocess": _INTERNAL,
    "is_qwen_derived_model": "the architecture is read from the model",
    "large_head_attention": _KERNELS,
    "layer_offloading": _MORE_MEMORY,
    "liger_kernel_impl": _KERNELS,
    "local_rank": "the rank is read from the environment",
    "lora_embedding_kernel": _KERNELS,
    "lora_mlp_kernel": _KERNELS,
    "lora_o_kernel": _KERNELS,
    "lora_on_cpu": _NOT_NEEDED,
    "lora_qkv_kernel": _KERNELS,
    "loss_watchdog_patience": "the diagnosis of the run finds a diverging loss",
    "loss_watchdog_threshold": "the diagnosis of the run finds a diverging loss",
    "low_cpu_mem_usage": "models are always loaded this way",
    "merge_method": _NOT_NEEDED,
    "moe_bnb_fast": _KERNELS,
    "moe_dequant_chunk_size": _KERNELS,
    "moe_grouped_backend": _KERNELS,
    "multipack_real_batches": "micro_batch_size counts packed rows",
    "num_dataset_shards_to_save": _NOT_NEEDED,
    "num_generation_samples": _NO_SAMPLES,
    "otel_metrics_host": "no metrics are served; use the sink prometheus or otlp in `telemetry.sinks`",
    "otel_metrics_port": "no metrics are served; use the sink prometheus or otlp in `telemetry.sinks`",
    "pad_to_multiple_of": _NOT_NEEDED,
    "ple_cpu_offload": _MORE_MEMORY,
    "preprocess_iterable": _INTERNAL,
    "pretrain_multipack_buffer_size": _IN_MEMORY,
    "profiler_steps": "steps are always profiled by spans",
    "profiler_steps_start": _NOT_NEEDED,
    "push_dataset_to_hub": "data is never uploaded",
    "qlora_sharded_model_loading": _MORE_MEMORY,
    "ring_attn_func": "it has an effect only with context_parallel_size",
    "sample_packing_bin_size": _NOT_NEEDED,
    "sample_packing_eff_est": _INTERNAL,
    "sample_packing_group_size": _NOT_NEEDED,
    "sample_packing_mp_start_method": _NOT_NEEDED,
    "sample_packing_sequentially": _NOT_NEEDED,
    "save_first_step": _NOT_NEEDED,
    "sdpa_varlen": _KERNELS,
    "selective_checkpointing": _MORE_MEMORY,
    "streaming": _IN_MEMORY,
    "streaming_multipack_buffer_size": _IN_MEMORY,
    "strict": "unknown keys are always errors",
    "tiled_mlp": _MORE_MEMORY,
    "tiled_mlp_num_shards": _MORE_MEMORY,
    "tiled_mlp_use_original_mlp": _MORE_MEMORY,
    "tokenizer_legacy": "the tokenizer is loaded as it was saved",
    "tokenizer_save_jinja_files": _NOT_NEEDED,
    "tokenizer_use_fast": "fast tokenizers are used",
    "torch_compile_options": _KERNELS,
    "total_num_tokens": _INTERNAL,
    "total_supervised_tokens": _INTERNAL,
    "trackio_project_name": _OTHER_TRACKER,
    "trackio_run_name": _OTHER_TRACKER,
    "trackio_space_id": _OTHER_TRACKER,
    "use_comet": _OTHER_TRACKER,
    "use_dsv4_kernels": _KERNELS,
    "use_glm_dsa_kernels": _KERNELS,
    "use_kernels": _WITH_KERNELS,
    "use_otel_metrics": "no metrics are served; use the sink prometheus or otlp in `telemetry.sinks`",
    "use_scattermoe": _WITH_KERNELS,
    "use_sonicmoe": _WITH_KERNELS,
    "use_trackio": _OTHER_TRACKER,
    "vllm": (
        "no vLLM server is started here; TRL's options of vLLM go into the section trl: vllm_gpu_memory_utilization, "
        "vllm_max_model_length …"
    ),
    "wandb_log_model": "checkpoints are recorded, but not uploaded",
    "wandb_watch": "gradients are not sent to W&B",
    "world_size": "it is read from the environment",
    "xformers_attention": "the model's default attention is used, which is as fast",
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

_KEYS_OF_PLUGINS = {
    "cut_cross_entropy": ["cut_cross_entropy"],
    "densemixer": ["dense_mixer"],
    "diffusion": ["diffusion"],
    "grokfast": ["grokfast_alpha", "grokfast_lamb"],
    "kd": ["kd_ce_alpha", "kd_trainer"],
    "liger": [
        "liger_cross_entropy",
        "liger_fused_linear_cross_entropy",
        "liger_glu_activation",
        "liger_layer_norm",
        "liger_rms_norm",
        "liger_rms_norm_gated",
        "liger_rope",
        "liger_swiglu",
        "liger_use_token_scaling",
    ],
    "llm_compressor": ["llmcompressor"],
    "lm_eval": ["lm_eval_tasks"],
    "nemo_gym": [
        "nemo_gym_auto_clone",
        "nemo_gym_auto_start",
        "nemo_gym_config_paths",
        "nemo_gym_datasets",
        "nemo_gym_dir",
        "nemo_gym_enabled",
        "nemo_gym_head_port",
        "nemo_gym_multi_turn",
        "nemo_gym_server_timeout",
        "nemo_gym_verify_timeout",
    ],
    "spectrum": ["spectrum_top_fraction"],
}
PLUGIN_KEYS = {
    key: f"it is an option of a plugin: add that plugin to `plugins` ({plugin})"
    for plugin, keys in _KEYS_OF_PLUGINS.items()
    for key in keys
}

RENAMED_KEYS = {
    "eta_min": "use cosine_min_lr_ratio, a share of learning_rate",
    "evaluation_strategy": "it is named 'eval_strategy'",
    "eval_per_epoch": "it is named 'evals_per_epoch'",
    "max_packed_sequence_len": "use `sample_packing: true`, and `sequence_len` for the length",
    "noisy_embedding_alpha": "it is named 'neftune_noise_alpha'",
    "run_name": "it is named 'name'",
    "save_per_epoch": "it is named 'saves_per_epoch'",
    "dpo_beta": "it is named 'rl_beta'",
}


def rejected_keys() -> dict[str, str]:
    """Return the keys that are errors, each with what it changes and a remedy."""
    reasons = {
        key: f"it changes the trained model, and cannot be ignored: {reason}"
        for key, reason in UNSUPPORTED_KEYS.items()
    }
    return {**PLUGIN_KEYS, **reasons}
