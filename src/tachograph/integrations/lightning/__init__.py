"""Lightning 2, as `lightning.pytorch` and as `pytorch_lightning`: a callback that records a run, and a logger.

Both work with a trainer of either package; `_bases` explains how. `RunOptions`, `TrainerRun`, `imported_packages` and
`lightning_class` are for `tachograph.one_logger`, which records a trainer into a run of its own.
"""

from tachograph.integrations._common.integration_run import RunOptions
from tachograph.integrations.lightning._bases import imported_packages, lightning_class
from tachograph.integrations.lightning._callback import TachographCallback
from tachograph.integrations.lightning._logger import TachographLogger
from tachograph.integrations.lightning._trainer_run import TrainerRun

__all__ = [
    "RunOptions",
    "TachographCallback",
    "TachographLogger",
    "TrainerRun",
    "imported_packages",
    "lightning_class",
]
