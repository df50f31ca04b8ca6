"""The vocabulary of the journal."""

from __future__ import annotations

SCHEMA_VERSION = 1

KINDS: dict[str, str] = {
    "start": "a process began to record: names, config, system and git facts; a resumed run has several",
    "step": "what was logged for a training step, or for a window of steps",
    "epoch": "end of an epoch",
    "validation": "results on held-out data; names carry the prefix `val_`",
    "test": "results on test data; names carry the prefix `test_`",
    "checkpoint": "a checkpoint was saved",
    "system": "a sample of CPU, memory, disk, network and GPU",
    "profile": "what functions and blocks took that are timed with `profile` and `profiling`, in about a second",
    "span_start": "a stretch of time began that has a name and is still going on",
    "span_stop": "it ended: its length, how, and all that was said about it",
    "span": "one that began and ended with nothing recorded inside: start and stop in one",
    "event": "something with a name happened, perhaps in a span",
    "alert": "a rule found a fault, saw it go on, or saw it end; records with the same `id` are one alert",
    "control_change": "a control took a new value",
    "completions": "samples of what the model was given and what came of it: prompts, answers, rewards, one row each",
    "log": "the last lines that the program printed, recorded when it has ended",
    "error": "the training code raised",
    "telemetry_error": "telemetry itself lost or refused something; says what and how much",
    "end": "the run ended, with its status",
}
"""Kinds this version writes. A reader takes any other kind as it is."""

SEVERITIES = ("info", "warning", "critical")
"""Of alerts, the least first."""


def severity_rank(severity: str) -> int:
    """Return how bad a severity is; one that nobody knows counts as a warning."""
    return SEVERITIES.index(severity if severity in SEVERITIES else "warning")


METRIC_KINDS = ("step", "epoch", "validation", "test", "system", "profile")
"""Kinds whose numbers are series."""

POINT_KINDS = frozenset({"step", "system", "profile"})
"""Those of them that come so often that they are points of charts, and are not listed one by one."""

RESERVED_FIELDS = frozenset({"event", "time", "more"})
"""Fields that belong to the record; a metric of that name is stored with an underscore behind it."""
