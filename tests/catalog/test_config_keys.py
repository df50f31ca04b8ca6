"""Which config keys describe the training, and how keys are ranked."""

from __future__ import annotations

from tachograph.catalog import describes_training, is_repeat_key

IGNORED = (
    *(
        "name",
        "run_name",
        "runName",
        "wandb.run_id",
        "experiment-name",
        "output_dir",
        "paths.log_dir",
        "checkpoint_dir",
    ),
    *(
        "data.cache_dir",
        "train.output_dir",
        "config_file",
        "timestamp",
        "start_time",
        "dist.master_port",
        "pid",
        "host",
    ),
    *("local_rank", "rank", "logging.dir"),
)
COMPARED = (
    *("lr", "model.name", "model_name_or_path", "dataset.path", "train_file", "optimizer.name", "lora.rank", "lora_r"),
    *("output_dim", "num_nodes", "seed", "time_limit", "resume_from", "tokenizer.id", "profile", "hostess"),
)


def test_keys_that_do_not_describe_the_training():
    assert [key for key in IGNORED if describes_training(key)] == []
    assert [key for key in COMPARED if not describes_training(key)] == []
    assert is_repeat_key("train.seed") and is_repeat_key("device") and not is_repeat_key("seeding_rate")
