"""Benchmarks of the LM Evaluation Harness: while a model is trained, afterwards, or of any model.

`LMEvalPlugin` is the plugin; `evaluate_config` is what `tacho lm-eval` calls.
"""

from tachograph.plugins.lm_eval._command import evaluate_config
from tachograph.plugins.lm_eval._plugin import LMEvalPlugin

__all__ = ["LMEvalPlugin", "evaluate_config"]
