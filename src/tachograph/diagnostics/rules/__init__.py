"""The rules, one file each. A rule sees values and records, and says when a fault begins and ends; it does nothing
else.
"""

from tachograph.diagnostics._rule import Rule
from tachograph.diagnostics.rules.checkpoint_interval import CheckpointInterval
from tachograph.diagnostics.rules.data_stall import DataStall
from tachograph.diagnostics.rules.dead_learning_rate import DeadLearningRate
from tachograph.diagnostics.rules.divergence import Divergence
from tachograph.diagnostics.rules.entropy_collapse import EntropyCollapse
from tachograph.diagnostics.rules.exploding_gradients import ExplodingGradients
from tachograph.diagnostics.rules.hang import Hang
from tachograph.diagnostics.rules.kl_outlier import KlOutlier
from tachograph.diagnostics.rules.loss_reset import LossReset
from tachograph.diagnostics.rules.loss_scale_collapse import LossScaleCollapse
from tachograph.diagnostics.rules.loss_spike import LossSpike
from tachograph.diagnostics.rules.low_gpu_utilisation import LowGpuUtilisation
from tachograph.diagnostics.rules.memory_growth import MemoryGrowth
from tachograph.diagnostics.rules.near_oom import NearOom
from tachograph.diagnostics.rules.not_finite import NotFinite
from tachograph.diagnostics.rules.overfitting import Overfitting
from tachograph.diagnostics.rules.plateau import Plateau
from tachograph.diagnostics.rules.reward_drop import RewardDrop
from tachograph.diagnostics.rules.step_outliers import StepOutliers
from tachograph.diagnostics.rules.step_time_change import StepTimeChange
from tachograph.diagnostics.rules.throughput_regression import ThroughputRegression
from tachograph.diagnostics.rules.truncated_completions import TruncatedCompletions
from tachograph.diagnostics.rules.vanishing_gradients import VanishingGradients
from tachograph.diagnostics.rules.zero_variance_rewards import ZeroVarianceRewards

__all__ = ["RULES"]

# The order is that in which they hear of a value: a loss that starts anew must be known before it is called a spike.
_LOSS = (NotFinite, LossReset, Divergence, LossSpike, Plateau, Overfitting, DeadLearningRate, LossScaleCollapse)
_GRADIENTS = (ExplodingGradients, VanishingGradients)
_SPEED = (ThroughputRegression, StepTimeChange, StepOutliers, DataStall, LowGpuUtilisation, Hang, CheckpointInterval)
_MEMORY = (MemoryGrowth, NearOom)
_REINFORCEMENT = (EntropyCollapse, KlOutlier, ZeroVarianceRewards, TruncatedCompletions, RewardDrop)

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (*_LOSS, *_GRADIENTS, *_SPEED, *_MEMORY, *_REINFORCEMENT)}
"""Every rule by its name."""
