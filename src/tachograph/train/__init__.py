"""`tacho train`: train a language model from one config file, with plugins, and record the run.

`load` reads a config. The job that it returns can be checked, planned and run.
"""

from tachograph.train._arms import ArmProbe as ArmProbe
from tachograph.train._arms import CheckedArms as CheckedArms
from tachograph.train._arms import TrainArm as TrainArm
from tachograph.train._arms import call_in_process as call_in_process
from tachograph.train._arms import check_arms as check_arms
from tachograph.train._arms import probe_arm as probe_arm
from tachograph.train._arms import train_arm as train_arm
from tachograph.train._config import TrainConfig
from tachograph.train._job import CheckedJob, TrainJob, TrainResult, load
from tachograph.train._job import missing_packages as missing_packages
from tachograph.train._keys import CheckedPlugin as CheckedPlugin
from tachograph.train._keys import check_keys as check_keys
from tachograph.train._plan import TrainPlan
from tachograph.train._replay import Replay as Replay
from tachograph.train._replay import replay as replay

# The others are for the commands of Tachograph.
__all__ = ["CheckedJob", "TrainConfig", "TrainJob", "TrainPlan", "TrainResult", "load"]
