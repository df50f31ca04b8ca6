"""TRL: record samples of the texts that a trainer generates, compares or learns from.

`TachographCallback` of `tachograph.integrations.transformers` uses this module on its own.
"""

from tachograph.integrations.trl._capture import CompletionCapture, capture_completions

__all__ = ["CompletionCapture", "capture_completions"]
