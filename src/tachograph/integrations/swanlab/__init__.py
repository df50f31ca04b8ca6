"""The names that Axolotl's SwanLab integration documents, recording into the run; the sink `swanlab` passes it on.

`SwanLabRLHFCompletionCallback` needs transformers, which is imported when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.bridges.swanlab.completions import CompletionLogger
from tachograph.bridges.swanlab.config import SwanLabConfig
from tachograph.bridges.swanlab.profiling import (
    DEFAULT_PROFILING_CONFIG,
    ProfilingConfig,
    swanlab_profile,
    swanlab_profiling_context,
    swanlab_profiling_context_advanced,
)

if TYPE_CHECKING:
    from tachograph.integrations.swanlab._callback import SwanLabRLHFCompletionCallback

__all__ = [
    "DEFAULT_PROFILING_CONFIG",
    "CompletionLogger",
    "ProfilingConfig",
    "SwanLabConfig",
    "SwanLabRLHFCompletionCallback",
    "swanlab_profile",
    "swanlab_profiling_context",
    "swanlab_profiling_context_advanced",
]


def __getattr__(name: str) -> Any:
    if name != "SwanLabRLHFCompletionCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tachograph.integrations.swanlab._callback import SwanLabRLHFCompletionCallback

    return SwanLabRLHFCompletionCallback
