"""Anonymous usage telemetry for frameworks. Disabled or local unless the user agrees; private by construction.

Example:
    >>> from tachograph.usage import TelemetryManager, UsageConfig, send_errors
    >>> manager = TelemetryManager.configure(UsageConfig(app="greyjacket"))
    >>> manager.send_event("train-start", {"max_steps": 500})
    >>> @send_errors
    ... def train(config): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.usage._config import UsageConfig, read_organizations
from tachograph.usage._manager import TelemetryManager
from tachograph.usage._send_errors import send_errors

if TYPE_CHECKING:
    from tachograph.usage._consent import Decision, decide
    from tachograph.usage._describe import describe
    from tachograph.usage._endpoint import JsonLines, OtlpLogs, PostHog
    from tachograph.usage._fields import (
        Choice,
        Count,
        Device,
        Flag,
        Group,
        HubId,
        ListOf,
        Measure,
        ModelType,
        Seconds,
        Size,
        Version,
    )
    from tachograph.usage._folder import clear_choice as clear_choice
    from tachograph.usage._folder import set_choice
    from tachograph.usage._inspection import AppState as AppState
    from tachograph.usage._inspection import apply_choice as apply_choice
    from tachograph.usage._inspection import decision_for as decision_for
    from tachograph.usage._inspection import find_app as find_app
    from tachograph.usage._inspection import list_apps as list_apps
    from tachograph.usage._inspection import preview as preview
    from tachograph.usage._inspection import purge as purge
    from tachograph.usage._metrics import RuntimeMetrics, RuntimeMetricsTracker
    from tachograph.usage._schemas import Schema
    from tachograph.usage._sender import MAX_BATCH_EVENTS as MAX_BATCH_EVENTS
    from tachograph.usage.callback import TelemetryCallback as TelemetryCallback

__all__ = [
    "Choice",
    "Count",
    "Decision",
    "Device",
    "Flag",
    "Group",
    "HubId",
    "JsonLines",
    "ListOf",
    "Measure",
    "ModelType",
    "OtlpLogs",
    "PostHog",
    "RuntimeMetrics",
    "RuntimeMetricsTracker",
    "Schema",
    "Seconds",
    "Size",
    "TelemetryManager",
    "UsageConfig",
    "Version",
    "decide",
    "describe",
    "read_organizations",
    "send_errors",
    "set_choice",
]

_MODULES = {
    **dict.fromkeys(("Decision", "decide"), "_consent"),
    **dict.fromkeys(("JsonLines", "OtlpLogs", "PostHog"), "_endpoint"),
    **dict.fromkeys(("RuntimeMetrics", "RuntimeMetricsTracker"), "_metrics"),
    "Schema": "_schemas",
    "TelemetryCallback": "callback",  # not in `__all__`: it needs transformers
    "describe": "_describe",
    "set_choice": "_folder",
    # Not in `__all__`: only the command `tacho usage` needs them.
    **dict.fromkeys(
        ("AppState", "apply_choice", "decision_for", "find_app", "list_apps", "preview", "purge"), "_inspection"
    ),
    "MAX_BATCH_EVENTS": "_sender",
    "clear_choice": "_folder",
}


def __getattr__(name: str) -> Any:
    if name not in __all__ and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES.get(name, '_fields')}"), name)


def __dir__() -> list[str]:
    return __all__
