"""`tacho train`: train a language model from one config file, with plugins, and record the run.

`load` reads a config. The job that it returns can be checked, planned and run.
"""

from tachograph.train._config import TrainConfig
from tachograph.train._job import CheckedJob, TrainJob, TrainResult, load
from tachograph.train._plan import TrainPlan

__all__ = ["CheckedJob", "TrainConfig", "TrainJob", "TrainPlan", "TrainResult", "load"]
