"""The recorder: what the training loop talks to, and the thread that writes for it. Never blocks training."""

from tachograph.recorder._begin import begin_run, current_run, log
from tachograph.recorder._control import Control
from tachograph.recorder._run import Run

__all__ = ["Control", "Run", "begin_run", "current_run", "log"]
