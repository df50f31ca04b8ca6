"""Memory is almost full."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure
from tachograph.records import finite_or_none

__all__ = ["NearOom"]


class NearOom(Rule):
    """The GPU allocator had to free its cache and retry, or the host is almost out of memory.

    A full GPU alone means nothing, because PyTorch keeps the memory it once allocated. A retry of the allocator is the
    real sign: the next larger batch may fail, and every retry costs time.
    """

    name = "near_oom"
    severity = "critical"
    meaning = (
        "The run is one long sequence, one larger batch or one checkpoint away from an out-of-memory error. On the "
        "host, the kernel kills the process without a message."
    )
    advice = (
        "Lower the batch size or the maximum sequence length, or accumulate gradients over more steps.",
        "Use activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.",
        "On the host, use fewer data workers or a smaller prefetch.",
    )
    record_kinds = ("system",)

    class Thresholds(RuleSettings):
        """When the rule fires."""

        host_used_pct: Annotated[
            float, Meta(description="Minimum use of the host's memory in percent.", gt=0, le=100)
        ] = 97.0
        calm_samples: Annotated[int, Meta(description="Samples without a retry that resolve the alert.", ge=1)] = 60

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget all samples."""
        self._retries: float | None = None
        self._num_calm = 0
        self._reported_retries = 0.0

    def on_record(self, record: dict[str, Any]) -> None:
        """Check a system sample."""
        retries = finite_or_none(record.get("gpu_alloc_retries"))
        if retries is not None:
            self._check_gpu(retries)
        used_pct = finite_or_none(record.get("host_mem_used_pct"))
        if used_pct is not None:
            self._check_host(used_pct, finite_or_none(record.get("host_mem_available_gb")))

    def _check_gpu(self, retries: float) -> None:
        before, self._retries = self._retries, retries
        self._num_calm += 1
        if retries > (before or 0.0):
            self._num_calm = 0
            if not self.is_open("gpu") or retries >= 2 * self._reported_retries:
                self._reported_retries = retries
                allocations = "1 allocation was" if retries == 1 else f"{figure(retries)} allocations were"
                evidence = {"metric": "gpu_alloc_retries", "retries": retries, "step": self.context.step}
                self.report(f"GPU memory is almost full: {allocations} retried", key="gpu", evidence=evidence)
        elif self._num_calm >= self.thresholds.calm_samples:
            self.resolve(f"no allocation was retried in the last {self._num_calm} samples", key="gpu")

    def _check_host(self, used_pct: float, available_gb: float | None) -> None:
        if used_pct >= self.thresholds.host_used_pct and not self.is_open("host"):
            evidence = {
                "metric": "host_mem_used_pct",
                "used_pct": used_pct,
                "available_gb": available_gb,
                "step": self.context.step,
            }
            available = f", {figure(available_gb)} GiB left" if available_gb is not None else ""
            self.report(f"Host memory is {figure(used_pct)} % full{available}", key="host", evidence=evidence)
        elif used_pct < self.thresholds.host_used_pct - 5:  # clearly lower, so that the alert does not flap
            self.resolve(f"host memory is {figure(used_pct)} % full now", key="host")
