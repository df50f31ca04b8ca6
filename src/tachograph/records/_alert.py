"""The `alert` record, typed."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph.records._values import finite_or_none, step_of

__all__ = ["AlertRecord"]


class AlertRecord(msgspec.Struct, kw_only=True):
    """One record of an alert: it was opened, updated or resolved.

    The fields are in the order in which they are written. A field that is None is left out of the record.
    """

    time: float | None = None
    global_step: int | None = None
    id: str
    """The same in all records of one alert."""
    rule: str
    status: str
    """`opened`, `updated` or `resolved`."""
    severity: str
    title: str | None = None
    message: str | None = None
    outcome: str | None = None
    """Why it was resolved."""
    evidence: dict[str, Any] | None = None
    occurrence: dict[str, Any] | None = None
    """Facts about this occurrence of a fault that comes and goes."""
    absorbed_by: str | None = None
    """The rule whose alert now covers this fault."""
    cause: dict[str, Any] | None = None
    """What caused the fault, as far as the evidence of a dump shows it: `text`, `confidence`, `kind` and `dump`."""
    meaning: str | None = None
    advice: list[str] | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the record to write: plain values only, and no field that is None, at any depth."""
        record: dict[str, Any] = {"event": "alert"}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None:
                record[name] = _to_json_value(value)
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> AlertRecord:
        """Parse a record, whatever wrote it: a field of the wrong type counts as missing."""
        advice, evidence, occurrence = record.get("advice"), record.get("evidence"), record.get("occurrence")
        cause = record.get("cause")
        return cls(
            time=finite_or_none(record.get("time")),
            global_step=step_of(record),
            id=str(record.get("id", record.get("rule"))),
            rule=str(record.get("rule", "alert")),
            status=str(record.get("status", "updated")),
            severity=str(record.get("severity", "warning")),
            title=_text_or_none(record.get("title")),
            message=_text_or_none(record.get("message")),
            outcome=_text_or_none(record.get("outcome")),
            evidence=evidence if isinstance(evidence, dict) else None,
            occurrence=occurrence if isinstance(occurrence, dict) else None,
            absorbed_by=_text_or_none(record.get("absorbed_by")),
            cause=cause if isinstance(cause, dict) and cause.get("text") else None,
            meaning=_text_or_none(record.get("meaning")),
            advice=[str(line) for line in advice] if isinstance(advice, list) else None,
        )


def _text_or_none(value: Any) -> str | None:
    return str(value) if value else None


def _to_json_value(value: Any) -> Any:
    # Rules copy logged values into the evidence, and those may be numpy scalars.
    if isinstance(value, dict):
        return {name: _to_json_value(item) for name, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_to_json_value(item) for item in value]
    return value.item() if hasattr(value, "item") else value
