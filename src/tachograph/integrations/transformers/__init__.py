"""Hugging Face `Trainer`: a callback that records the run, its spans and metrics, and applies control requests."""

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from tachograph.integrations.transformers._call_stack import find_trainer
from tachograph.integrations.transformers._callback import TachographCallback

__all__ = ["TachographCallback", "find_trainer"]

# Once this module is imported, `TrainingArguments(report_to="tachograph")` is enough.
INTEGRATION_TO_CALLBACK.setdefault("tachograph", TachographCallback)
