"""The state of a run as Prometheus metrics, in its text format.

Prometheus keeps a series for every combination of labels forever, so labels have few values: the run, the GPU, the kind
of a record. A field of ours gets a metric of its own, in base units. A metric of the user keeps its name, in the label
`name` of one metric, because its name may be anything; there is a limit on the number of names.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from tachograph.records import KINDS, METRIC_KINDS, SEVERITIES, is_number, step_of
from tachograph.sinks import scalar_metrics

__all__ = ["TOO_MANY_NAMES", "RunMetrics"]

_MAX_NAMES = 500
TOO_MANY_NAMES = f"a run can have {_MAX_NAMES} names, because Prometheus keeps a series for each"
_MAX_DROPPED_NAMES = 10_000
_MIB, _GIB = float(1 << 20), float(1 << 30)
_STATES = ("running", "finished", "failed")
_INFO = ("run_id", "session_tag", "perf_tag", "host", "tachograph")


class _Field(NamedTuple):
    """The metric for a field of a record."""

    metric: str
    help: str
    factor: float = 1.0


_FIELDS = {
    "epoch": _Field("training_epoch", "Epoch of the latest step."),
    "sec_per_step": _Field("step_duration_seconds", "Mean duration of the latest steps."),
    "samples_per_sec": _Field("samples_per_second", "Samples per second of the latest steps."),
    "cpu_mem_rss_mb": _Field("process_resident_memory_bytes", "Memory of the training process.", _MIB),
    "gpu_mem_allocated": _Field("torch_memory_allocated_bytes", "GPU memory that torch's tensors use.", _GIB),
    "gpu_mem_reserved": _Field("torch_memory_reserved_bytes", "GPU memory that torch has reserved.", _GIB),
    "window/tokens_per_sec": _Field("tokens_per_second", "Tokens per second of the latest window."),
    "window/mfu": _Field("model_flops_utilization_ratio", "Share of the peak FLOP/s that the model uses."),
    "system/num_threads": _Field("process_threads", "Threads of the training process."),
    "system/process_cpu_pct": _Field("process_cpu_usage_ratio", "CPU that the process uses; 1 is one CPU.", 0.01),
    "system/cpu_pct": _Field("host_cpu_usage_ratio", "Share of all CPUs of the machine that is in use.", 0.01),
    "system/host_mem_used_pct": _Field("host_memory_usage_ratio", "Share of the machine's memory in use.", 0.01),
    "system/host_mem_available_gb": _Field("host_memory_available_bytes", "Memory that programs can get.", _GIB),
    "system/disk_free_gb": _Field("disk_free_bytes", "Free space where the run is recorded.", _GIB),
    "system/net_sent_mb_per_s": _Field("network_transmit_bytes_per_second", "Bytes sent by the machine.", 1e6),
    "system/net_received_mb_per_s": _Field("network_receive_bytes_per_second", "Bytes received by the machine.", 1e6),
}
_SYSTEM_COPIES = {"system/cpu_mem_rss_mb": "cpu_mem_rss_mb"}
_GPU_FIELDS = {
    "util_pct": _Field("gpu_utilization_ratio", "Share of the time in which the GPU was busy.", 0.01),
    "mem_used_gb": _Field("gpu_memory_used_bytes", "Memory of the GPU in use, by any process.", _GIB),
    "mem_total_gb": _Field("gpu_memory_bytes", "Memory of the GPU.", _GIB),
    "power_w": _Field("gpu_power_watts", "Power of the GPU."),
    "temp_c": _Field("gpu_temperature_celsius", "Temperature of the GPU."),
}
_GPU = re.compile(r"system/gpu(\d{1,3})_(\w+)")
_SHARE = re.compile(r"window/share_([a-z]+)")


class RunMetrics:
    """The latest values of one run.

    Args:
        run: the name of the run.
        start: its first `start` record.
    """

    def __init__(self, run: str, start: dict[str, Any]) -> None:
        self._run = run
        self._families: dict[str, tuple[str, str, dict[tuple[tuple[str, str], ...], float]]] = {}
        self.state: str | None = None
        """`running`, `finished` or `failed`; None before the first record that tells."""
        self._dropped_names: set[str] = set()
        self._open_alerts: dict[str, str] = {}
        labels = {key: str(start[key]) for key in _INFO if start.get(key)}
        labels = {("version" if key == "tachograph" else key): value for key, value in labels.items()}
        self._set("run_info", 1, "Facts about the run, as labels.", labels)
        if is_number(start.get("time")):
            self._set("run_start_time_seconds", start["time"], "When the run started, in seconds since the epoch.")

    @property
    def num_dropped(self) -> int:
        """How many names of metrics are left out, because there are too many."""
        return len(self._dropped_names)

    def set_state(self, state: str) -> None:
        """Set the state of the run."""
        if state == self.state:
            return
        self.state = state
        for each_state in _STATES:
            self._set("run_state", float(each_state == state), "1 for the state of the run.", {"state": each_state})

    def add(self, record: dict[str, Any]) -> None:
        """Update the values from a record."""
        kind = record["event"]
        self._count("records_total", "Records by kind.", {"kind": kind if kind in KINDS else "other"})
        if is_number(record.get("time")):
            self._set("last_record_time_seconds", record["time"], "Time of the latest record.")
            if kind == "checkpoint":
                self._set("last_checkpoint_time_seconds", record["time"], "Time of the latest checkpoint.")
        if kind == "start" or kind in METRIC_KINDS:
            self.set_state("running")
        step = step_of(record)
        if step is not None and kind in METRIC_KINDS:
            self._set("training_step", step, "Latest step. It goes back when a run is resumed from a checkpoint.")
        for name, value in scalar_metrics(record).items():
            if is_number(value):
                self._set_metric(_SYSTEM_COPIES.get(name, name), value)
        match kind:
            case "start":
                self._open_alerts.clear()  # a resume closes the alerts of earlier attempts
                self._families.pop("run_end_time_seconds", None)
            case "end":
                self.set_state("finished" if record.get("status") == "finished" else "failed")
                if is_number(record.get("time")):
                    self._set("run_end_time_seconds", record["time"], "When the run ended.")
            case "alert":
                self._add_alert(record)

    def clear_values(self) -> None:
        """Drop all values except the facts about the run and how it ended."""
        facts = {"run_info", "run_state", "run_start_time_seconds", "run_end_time_seconds", "last_record_time_seconds"}
        self._families = {name: family for name, family in self._families.items() if name in facts}

    def render(self) -> bytes:
        """Return all values in Prometheus' text format."""
        lines: list[str] = []
        for name, (kind, text, samples) in sorted(self._families.items()):
            metric = f"tachograph_{name}"
            lines += [f"# HELP {metric} {_escape_help(text)}", f"# TYPE {metric} {kind}"]
            for labels, value in samples.items():
                pairs = ",".join(f'{key}="{_escape_label(text)}"' for key, text in (("run", self._run), *labels))
                lines.append(f"{metric}{{{pairs}}} {_format_value(value)}")
        return ("\n".join(lines) + "\n").encode("utf-8", "replace")

    def _set_metric(self, name: str, value: float) -> None:
        field, labels = _FIELDS.get(name), {}
        if match := _GPU.fullmatch(name):
            field, labels = _GPU_FIELDS.get(match[2]), {"gpu": match[1]}
        elif match := _SHARE.fullmatch(name):
            field, labels = _Field("window_time_ratio", "Share of the time by phase."), {"phase": match[1]}
        if field is not None:
            self._set(field.metric, value * field.factor, field.help, labels)
            return
        samples = self._family("metric", "gauge", f"Latest value of a logged metric; up to {_MAX_NAMES} names.")
        key = (("name", name),)
        if key in samples or len(samples) < _MAX_NAMES:
            samples[key] = value
        elif len(self._dropped_names) < _MAX_DROPPED_NAMES:
            self._dropped_names.add(name)
        help_text = f"Metrics that are left out because there are more than {_MAX_NAMES} names."
        self._set("metric_names_dropped", self.num_dropped, help_text)

    def _add_alert(self, record: dict[str, Any]) -> None:
        if record.get("status") == "resolved":
            self._open_alerts.pop(str(record.get("id")), None)
        else:
            self._open_alerts[str(record.get("id"))] = str(record.get("severity"))
        severities = list(self._open_alerts.values())
        for severity in SEVERITIES:
            self._set("open_alerts", severities.count(severity), "Alerts that are open.", {"severity": severity})

    def _set(self, metric: str, value: float, text: str, labels: dict[str, str] | None = None) -> None:
        self._family(metric, "gauge", text)[tuple((labels or {}).items())] = value

    def _count(self, metric: str, text: str, labels: dict[str, str]) -> None:
        samples, key = self._family(metric, "counter", text), tuple(labels.items())
        samples[key] = samples.get(key, 0.0) + 1.0

    def _family(self, metric: str, kind: str, text: str) -> dict[tuple[tuple[str, str], ...], float]:
        return self._families.setdefault(metric, (kind, text, {}))[2]


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _format_value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
