"""The recorder: what the training loop talks to, and the thread that writes for it. Never blocks training."""

from tachograph.recorder._control import Control
from tachograph.recorder._init import current_run, init, log
from tachograph.recorder._run import Run

__all__ = ["Control", "Run", "current_run", "init", "log"]
