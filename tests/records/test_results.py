from __future__ import annotations

import pytest

from tachograph.records import metric_direction, result_name_in, result_names_in, signal_of

LOWER = (
    *(
        "val_loss",
        "valLoss",
        "eval/squad_loss",
        "val_ppl",
        "val/bpb",
        "val/nll",
        "val/ce_loss",
        "eval_wer",
        "valid/cer",
    ),
    *("val_rmse", "val_error", "dev_perplexity", "neg_log_likelihood", "MSELoss", "test/FID", "policy_loss"),
    *("sec_per_step", "eval_runtime", "step_time_ms", "gpu_mem", "time_to_accuracy", "loss_per_token"),
)
HIGHER = (
    *("val_acc", "val_acc1", "val/acc@1", "val_top1", "val/top5_acc", "val_mIoU", "val/mAP", "eval_f1", "val_f1_epoch"),
    *("eval_rougeL", "test_dice", "val/ROC_AUC", "recall@20", "val_neg_mse", "success_rate", "eval/pass@1"),
    *("rollout/ep_rew_mean", "AverageReturn", "EpRet", "return", "eval/episodic_return", "val/reward", "reward_100"),
    *("samples_per_sec", "eval_samples_per_second", "tokens/per/second", "goodput", "losses/explained_variance"),
)
NEITHER = (
    *("loss_scale", "reward_std", "StdEpRet", "grad_norm", "lr", "width", "D(x)", "loss_G", "d_loss", "ep_len_mean"),
    *("kl", "entropy", "loss_weight", "num_errors", "rollout/ep_len_mean", "clip_fraction"),
)


@pytest.mark.parametrize(
    ("name", "direction"),
    [*((name, -1) for name in LOWER), *((name, 1) for name in HIGHER), *((name, 0) for name in NEITHER)],
)
def test_the_direction_of_a_metric(name, direction):
    assert metric_direction(name) == direction


@pytest.mark.parametrize(
    "name",
    [
        *("val_acc1", "val_top1", "val_mIoU", "val_ppl", "val/bpb", "eval_wer", "valLoss", "val_rmse", "val/reward"),
        *("return", "train/return", "AverageReturn", "EpRet", "reward_mean", "rollout/ep_rew_mean", "success_rate"),
        *("test_f1", "test/mAP", "eval/return_mean"),
    ],
)
def test_a_measured_result_tells_more_than_the_training_loss(name):
    others = ["train_loss", "loss_scale", "eval_runtime", "eval_samples_per_second", "val/step_time", "ep_len", "width"]
    assert result_name_in([*others, name]) == name


@pytest.mark.parametrize(
    "names",
    [
        [
            "val_loss",
            "val_accuracy",
            "val_mIoU",
            "test_loss",
            "test_f1",
            "episode_reward",
            "success_rate",
            "train_loss",
        ],
        ["val_mIoU", "val_iou/class_3"],
        ["return", "train/loss"],
    ],
)
def test_the_order_of_results(names):
    for first in range(len(names)):
        assert result_name_in(reversed(names[first:])) == names[first]


def test_what_was_not_measured_on_other_data_is_no_result():
    assert result_name_in(["train_accuracy", "train/f1", "step_time_ms", "val/step_time", "reward_std"]) is None


def test_parts_of_a_reward_are_no_reward():
    rewards = ("return", "train/episode_return", "AverageEpRet", "eval/mean_reward_100", "undiscounted_return")
    assert {(signal_of(name) or ("",))[0] for name in rewards} == {"reward"}
    parts = ("MaxEpRet", "rewards/format_reward/mean", "rewards/chosen", "reward_model_loss", "return_code", "100")
    assert not any((signal_of(name) or ("",))[0] == "reward" for name in parts)


def test_results_are_measures_of_quality():
    results = ["eval_f1", "test_loss", "episode_return", "eval_loss", "success_rate"]
    costs = [
        "eval_runtime",
        "eval_samples_per_second",
        "eval_steps_per_second",
        "val/step_time",
        "train_loss",
        "loss_G",
    ]
    assert result_names_in([*costs, *results]) == results
