"""The kinds of records in a journal."""

from __future__ import annotations

SCHEMA_VERSION = 1

KINDS: dict[str, str] = {
    "start": "a process started recording: names, config, system and git facts; a resumed run has several",
    "code": "everything captured to repeat the run: git state, diff, source files, packages; once per attempt",
    "step": "the values logged for a training step or a window of steps",
    "epoch": "end of an epoch",
    "validation": "results on held-out data; names carry the prefix `val_`",
    "test": "results on test data; names carry the prefix `test_`",
    "checkpoint": "a checkpoint was saved",
    "system": "a sample of CPU, memory, disk, network and GPU",
    "energy": "energy that GPUs and processors have used in this attempt, from their counters; about twice a minute",
    "profile": "durations of code timed with `profile_function` and `profile_block`, about once a second",
    "rank": "how long one rank of a distributed job took for a window of iterations, and how long it may have waited",
    "span_start": "a span started; it is open until its `span_stop`",
    "span_stop": "a span ended: duration, status and attributes",
    "span": "a span without records inside: start and stop in one record",
    "event": "a named event, optionally inside a span",
    "alert": "a rule opened, updated or resolved an alert; records with the same `id` belong to one alert",
    "dump": "evidence was captured in `dumps/`: reason, step, cause as far as it is clear, files",
    "control_change": "the value of a control changed",
    "completions": "samples of model output: prompts, completions, rewards, one row each",
    "media": "images, tables, sounds and other media of a step; the files are in `media/`; without items, a gap",
    "histograms": "distributions of values at a step, as counts in bins",
    "log": "the last lines the program printed, recorded after it ended",
    "error": "the training code raised an exception",
    "telemetry_error": "telemetry dropped data or failed; states what and how much",
    "end": "the run ended; states the final status",
}
"""Kinds that this version writes, with their descriptions. Readers pass unknown kinds through unchanged."""

SEVERITIES = ("info", "warning", "critical")
"""Severities of alerts, least severe first."""


STALL_RULES = ("hang", "rank_hang", "rank_gone")
"""Rules whose alerts say that training stands still. No set: the `rule` in a journal may be a value without a hash."""

FATAL_DUMPS = ("exception", "gpu_error", "killed", "out_of_memory", "signal")
"""Reasons of dumps that may say what ended a run."""


def severity_rank(severity: str) -> int:
    """Return the position of a severity in `SEVERITIES`; an unknown one counts as a warning."""
    return SEVERITIES.index(severity if severity in SEVERITIES else "warning")


CONFIG_CHANGED = "config_changed"
"""Name of the event that adds to the config of a run or changes it."""

SUMMARY = "summary"
"""Name of the event that states results of the whole run."""

RUN_LABELED = "run_labeled"
"""Name of the event that changes the `display_name`, the `tags` or the `notes` of a run."""

METRIC_DEFINED = "define_metric"
"""Name of the event that states the x axis of a metric, as `step_metric`, or what else W&B's `define_metric` does."""

BASELINE_SPEED = "baseline_speed"
"""The name of the event with the step times of earlier runs that should be equally fast."""

PARENT = "parent"
"""Name of the event that states a run or checkpoint which the run started from."""

ARTIFACT = "artifact"
"""Name of the event that states a version of an artifact which the run stored."""

ARTIFACT_USED = "artifact_used"
"""Name of the event that states a version of an artifact which the run used."""

AB_ARM = "ab_arm"
"""Name of the event that states which arm of an A/B test is used from now on."""

COLLECTIVES = "collectives"
"""Name of the event with the totals of a rank's calls of collective functions."""

RANK_MESH = "rank_mesh"
"""Name of the event that states the position of a rank in the mesh of its job, as `mesh`."""

METRIC_KINDS = ("step", "epoch", "validation", "test", "system", "profile")
"""Kinds whose numeric fields are metrics."""

POINT_KINDS = frozenset({"step", "system", "profile"})
"""Metric kinds that are too frequent to list one by one; they appear only as points in charts."""

RESERVED_FIELDS = frozenset({"event", "time", "more"})
"""Fields of the record itself; a metric with such a name is stored with a trailing underscore."""
