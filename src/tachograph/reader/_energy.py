"""The energy that a run used, from the counters that were read while it was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tachograph.records import finite_or_none

__all__ = ["Energy", "parse_energy", "total_energy"]


class Energy(msgspec.Struct, kw_only=True):
    """Energy by its source. A part without a counter is missing, never estimated."""

    kwh: float
    """The sum of the parts."""
    gpu_kwh: float | None = None
    """Of the GPUs that the run used."""
    cpu_kwh: float | None = None
    """Of the processors and the memory of all machines of the run, whatever ran on them."""
    num_gpus: int = 0
    num_hosts: int = 0
    """The machines whose processors were measured."""
    cost: float | None = None
    """With the stated price; None if there is none."""
    currency: str = ""
    carbon_g: float | None = None
    """Emitted CO2 in grams, with the stated carbon intensity; None if there is none."""
    gaps: list[str] = []
    """Parts that are not included, such as ranks without counters."""

    @property
    def parts_text(self) -> str:
        """The measured and the missing parts, such as `GPU only`."""
        parts = [("GPU", self.gpu_kwh), ("processors", self.cpu_kwh)]
        measured = [(name, kwh) for name, kwh in parts if kwh is not None]
        if len(measured) == 1:
            return ", ".join([f"{measured[0][0]} only", *self.gaps])
        return ", ".join([*(f"{name} {format_kwh(kwh)}" for name, kwh in measured), *self.gaps])

    @property
    def text(self) -> str:
        """The energy with its parts, cost and emissions, in one line."""
        text = f"{format_kwh(self.kwh)} ({self.parts_text})"
        if self.cost is not None:
            text += f", {self.cost:.2f} {self.currency}".rstrip()
        if self.carbon_g is not None:
            text += f", {format_grams(self.carbon_g)} CO2"
        return text


def format_kwh(kwh: float) -> str:
    """Return an amount of energy with its unit."""
    return f"{kwh:,.1f} kWh" if kwh >= 100 else f"{kwh:.3g} kWh" if kwh >= 0.1 else f"{1000 * kwh:.3g} Wh"


def format_grams(grams: float) -> str:
    """Return a mass with its unit."""
    return f"{grams / 1000:,.3g} kg" if grams >= 1000 else f"{grams:.3g} g"


def parse_energy(record: Mapping[str, Any], start: Mapping[str, Any]) -> Energy | None:
    """Return the energy of an attempt up to an `energy` record; None if the record has none.

    Args:
        record: the record.
        start: the `start` record of the attempt, with the number of ranks.
    """
    gpu_kwh, cpu_kwh, price, carbon_g_per_kwh = (
        _amount(record.get(name)) for name in ("gpu_kwh", "cpu_kwh", "price_per_kwh", "carbon_g_per_kwh")
    )
    if gpu_kwh is None and cpu_kwh is None:
        return None
    kwh = (gpu_kwh or 0.0) + (cpu_kwh or 0.0)
    num_ranks, world_size = _count(record.get("num_ranks")), _count(start.get("world_size"))
    return Energy(
        kwh=kwh,
        gpu_kwh=gpu_kwh,
        cpu_kwh=cpu_kwh,
        num_gpus=_count(record.get("num_gpus")),
        num_hosts=_count(record.get("num_hosts")),
        cost=None if price is None else kwh * price,
        currency=str(record.get("currency") or "")[:20],
        carbon_g=None if carbon_g_per_kwh is None else kwh * carbon_g_per_kwh,
        gaps=[f"{num_ranks} of {world_size} ranks"] if 0 < num_ranks < world_size else [],
    )


def total_energy(attempts: Sequence[Energy | None]) -> Energy | None:
    """Return the sum over attempts; None if no attempt has any."""
    measured = [energy for energy in attempts if energy is not None]
    if not measured:
        return None
    gaps = dict.fromkeys(gap for energy in measured for gap in energy.gaps)
    if len(measured) < len(attempts):
        gaps[f"{len(measured)} of {len(attempts)} attempts"] = None
    has_one_currency = len({energy.currency for energy in measured}) == 1
    for name in ("GPU", "processors"):
        field = "gpu_kwh" if name == "GPU" else "cpu_kwh"
        num_with_part = sum(getattr(energy, field) is not None for energy in measured)
        if 0 < num_with_part < len(measured):
            gaps[f"{name} in {num_with_part} of {len(attempts)} attempts"] = None
    return Energy(
        kwh=sum(energy.kwh for energy in measured),
        gpu_kwh=_sum_known(energy.gpu_kwh for energy in measured),
        cpu_kwh=_sum_known(energy.cpu_kwh for energy in measured),
        num_gpus=max(energy.num_gpus for energy in measured),
        num_hosts=max(energy.num_hosts for energy in measured),
        # A sum over some of the attempts would be too low.
        cost=_sum_all([energy.cost for energy in measured]) if has_one_currency else None,
        currency=measured[-1].currency,
        carbon_g=_sum_all([energy.carbon_g for energy in measured]),
        gaps=list(gaps),
    )


def _sum_known(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values else None


def _sum_all(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) if len(known_values) == len(values) else None


def _amount(value: Any) -> float | None:
    number = finite_or_none(value)
    return number if number is not None and number >= 0 else None


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
