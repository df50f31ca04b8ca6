"""Lightning 2, as `lightning.pytorch` and as `pytorch_lightning`: a callback that records a run, and a logger.

Both work with a trainer of either package; `_bases` explains how.
"""

from tachograph.integrations.lightning._callback import TachographCallback
from tachograph.integrations.lightning._logger import TachographLogger

__all__ = ["TachographCallback", "TachographLogger"]
