"""Benchmarks of the LM Evaluation Harness: while a model is trained, afterwards, or of any model.

`LMEvalPlugin` is the plugin; `tacho lm-eval` calls `evaluate_config`.
"""

from tachograph.plugins.lm_eval._command import evaluate_config
from tachograph.plugins.lm_eval._plugin import LMEvalPlugin

__all__ = ["LMEvalPlugin", "evaluate_config"]
