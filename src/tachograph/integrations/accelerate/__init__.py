"""Hugging Face Accelerate: a tracker for `log_with`, which can also observe the loop of an accelerator."""

from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from tachograph.integrations.accelerate._tracker import TachographTracker

__all__ = ["TachographTracker"]

# Once this module is imported, `Accelerator(log_with="tachograph")` is enough.
LOGGER_TYPE_TO_CLASS.setdefault(TachographTracker.name, TachographTracker)
