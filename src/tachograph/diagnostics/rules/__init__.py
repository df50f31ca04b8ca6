"""The built-in rules, one file each, and `RULES`, which also contains the rules of installed packages."""

from tachograph.diagnostics._catalog import RuleCatalog

__all__ = ["RULES"]

# The order matters: rules receive a value in this order. `loss_reset` must see a value before `loss_spike` reports it,
# and `exploding_gradients` must not learn values that `vanishing_gradients` reports.
_BUILT_IN = {
    # Loss
    "not_finite": "NotFinite",
    "loss_reset": "LossReset",
    "divergence": "Divergence",
    "loss_spike": "LossSpike",
    "loss_shift": "LossShift",
    "plateau": "Plateau",
    "validation_blow_up": "ValidationBlowUp",
    "overfitting": "Overfitting",
    "dead_learning_rate": "DeadLearningRate",
    "loss_scale_collapse": "LossScaleCollapse",
    "no_training_loss": "NoTrainingLoss",
    # Gradients
    "vanishing_gradients": "VanishingGradients",
    "exploding_gradients": "ExplodingGradients",
    # Ranks, before the rules about speed: a slow rank absorbs them
    "straggler": "Straggler",
    "slow_communication": "SlowCommunication",
    "unequal_work": "UnequalWork",
    # Speed
    "throughput_regression": "ThroughputRegression",
    "step_time_change": "StepTimeChange",
    "slower_than_baseline": "SlowerThanBaseline",
    "step_outliers": "StepOutliers",
    "data_stall": "DataStall",
    "low_gpu_utilisation": "LowGpuUtilisation",
    "rank_gone": "RankGone",
    "rank_hang": "RankHang",
    "hang": "Hang",
    "checkpoint_interval": "CheckpointInterval",
    # Memory
    "memory_growth": "MemoryGrowth",
    "near_oom": "NearOom",
    # Reinforcement learning
    "entropy_collapse": "EntropyCollapse",
    "kl_outlier": "KlOutlier",
    "zero_variance_rewards": "ZeroVarianceRewards",
    "truncated_completions": "TruncatedCompletions",
    "reward_drop": "RewardDrop",
}

RULES = RuleCatalog({name: f"{__name__}.{name}:{rule}" for name, rule in _BUILT_IN.items()})
"""Every rule by name. Nothing is imported before it is looked up."""
