"""Hardware errors of GPUs: one that the driver has lost, and memory errors that ECC could not correct."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tachograph._base.nvml import GpuProbe
from tachograph.black_box._dump_writer import DumpContext, DumpWriter
from tachograph.black_box._format import Verdict

__all__ = ["GpuErrors"]

_REASON = "gpu_error"
_THROTTLE_REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class GpuErrors:
    """Compares the error counters of GPUs with their values at the start. Used by the thread of the system sampler.

    Args:
        writer: writes a dump when a GPU fails, and adds the counters to dumps about errors of CUDA.
        last_step: returns the last step.
    """

    def __init__(self, writer: DumpWriter, last_step: Callable[[], int | None] = lambda: None) -> None:
        self._writer = writer
        self._last_step = last_step
        self._first: dict[str, dict[str, int | bool]] | None = None
        self._last: dict[str, dict[str, int | bool]] = {}
        self._reported_texts: set[str] = set()
        writer.add_part("gpu_errors", self._gpu_part)

    def check(self, gpus: GpuProbe, sample: Mapping[str, Any]) -> None:
        """Read the counters, and write a dump if a GPU has failed.

        Args:
            gpus: reads the counters.
            sample: the current sample of the system, with temperatures and power.
        """
        self._last = gpus.error_counters()
        if self._first is None:
            self._first = self._last
            return
        for index, counters in self._last.items():
            before = self._first.get(index, {})
            num_errors = counters.get("ecc_uncorrected", 0) - before.get("ecc_uncorrected", 0)
            if counters["is_lost"] and not before.get("is_lost"):
                self._report("gpu_lost", f"GPU {index} is lost: the driver cannot reach it any more", sample)
            elif num_errors > 0:
                noun = "error" if num_errors == 1 else "errors"
                text = f"GPU {index} had {num_errors} uncorrectable memory {noun} (ECC) since the start"
                self._report("gpu_memory_error", text, sample)

    def _report(self, kind: str, text: str, sample: Mapping[str, Any]) -> None:
        if text in self._reported_texts:
            return
        self._reported_texts.add(text)
        verdict = Verdict(kind=kind, text=text, confidence="certain")
        readings = {name: value for name, value in sample.items() if name.startswith("gpu/")}
        self._writer.write(_REASON, step=self._last_step(), verdict=verdict, details={"gpu_readings": readings})

    def _gpu_part(self, context: DumpContext) -> dict[str, Any] | None:
        """Return the counters now and at the start, for dumps about errors of GPUs."""
        is_cuda_error = context.error is not None and "CUDA error" in str(context.error)
        if not self._last or not (context.reason == _REASON or is_cuda_error):
            return None
        first = self._first or {}
        gpus = {}
        for index, counters in self._last.items():
            mask = counters.get("throttle_reasons", 0)
            reasons = [name for bit, name in _THROTTLE_REASONS.items() if mask & bit]
            gpus[index] = {"now": counters, "at_start": first.get(index, {}), "throttled_by": reasons}
        return {"gpus": gpus, "readings": dict(context.details.get("gpu_readings") or {})}
