"""Memory that is all but full."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from tachograph.diagnostics._rule import Rule, RuleSettings
from tachograph.diagnostics._text import figure
from tachograph.records import finite_or_none

__all__ = ["NearOom"]


class NearOom(Rule):
    """The GPU's allocator had to free its cache and try again, or the host has hardly any memory left.

    A full GPU says nothing, since PyTorch keeps what it has once been given. A retry of the allocator does: the next
    larger batch may fail, and every retry costs time.
    """

    name = "near_oom"
    severity = "critical"
    meaning = (
        "The run is one long sequence, one larger batch or one checkpoint away from an out-of-memory error; on the "
        "host the kernel will kill the process without a word."
    )
    advice = (
        "Lower the batch size or the longest sequence, or accumulate gradients over more steps.",
        "Use activation checkpointing, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation.",
        "On the host use fewer data workers, or a smaller prefetch.",
    )
    kinds = ("system",)

    class Thresholds(RuleSettings):
        """When it fires."""

        host_used_pct: Annotated[
            float, Meta(description="Share of the host's memory in use that is too much.", gt=0, le=100)
        ] = 97.0
        calm_samples: Annotated[int, Meta(description="Samples without a sign of it that resolve it.", ge=1)] = 60

    thresholds: Thresholds

    def reset(self) -> None:
        """Forget everything."""
        self._retries: float | None = None
        self._num_calm = 0
        self._told = 0.0

    def on_record(self, record: dict[str, Any]) -> None:
        """Look at a sample."""
        retries, used = finite_or_none(record.get("gpu_alloc_retries")), finite_or_none(record.get("host_mem_used_pct"))
        if retries is not None:
            before, self._retries = self._retries, retries
            self._num_calm += 1
            if retries > (before or 0.0):
                self._num_calm = 0
                if not self.is_open("gpu") or retries >= 2 * self._told:
                    self._told = retries
                    evidence = {"metric": "gpu_alloc_retries", "retries": retries, "step": self.now.step}
                    times = "an allocation" if retries == 1 else f"{figure(retries)} allocations"
                    title = f"GPU memory is all but full: {times} had to be tried again"
                    self.found(title, key="gpu", evidence=evidence)
            elif self._num_calm >= self.thresholds.calm_samples:
                self.over("no allocation had to be tried again for a while", key="gpu")
        if used is not None and used >= self.thresholds.host_used_pct and not self.is_open("host"):
            left = finite_or_none(record.get("host_mem_available_gb"))
            evidence = {"metric": "host_mem_used_pct", "used_pct": used, "available_gb": left, "step": self.now.step}
            title = f"Host memory is {figure(used)} % full"
            self.found(
                title if left is None else f"{title}, {figure(left)} GiB are left", key="host", evidence=evidence
            )
        elif used is not None and used < self.thresholds.host_used_pct - 5:
            self.over(f"host memory is {figure(used)} % full now", key="host")
