"""The names of One Logger that nothing else in Tachograph uses."""

from __future__ import annotations

from tachograph.spans import NameEnum

__all__ = ["ApplicationType", "CheckPointType", "NVTXColor"]


class ApplicationType(NameEnum):
    """The kind of an application."""

    TRAINING = "training"
    VALIDATION = "validation"
    BATCH_INFERENCE = "batch_inference"
    ONLINE_INFERENCE = "online_inference"
    DATA_PROCESSING = "data_processing"


class CheckPointType(NameEnum):
    """Whether all nodes share a checkpoint."""

    GLOBAL = "global"
    LOCAL = "local"


class NVTXColor(NameEnum):
    """Colours of spans in a profiler's timeline."""

    UNSET = "unset"
    GREEN = "green"
    BLUE = "blue"
    YELLOW = "yellow"
    PURPLE = "purple"
    RAPIDS = "rapids"
    CYAN = "cyan"
    RED = "red"
    WHITE = "white"
    DARK_GREEN = "darkgreen"
    ORANGE = "orange"
