"""The parts of a dump that come from the details of an investigation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.black_box._dump_writer import DumpContext, DumpPart
from tachograph.black_box._frames import describe_error, describe_stacks
from tachograph.black_box._output import describe_output
from tachograph.black_box._ring import MAX_INDICES
from tachograph.black_box._verdicts import Evidence, judge_hang

__all__ = ["evidence_of", "evidence_parts"]

_ALERT_FIELDS = ("id", "rule", "severity", "title", "message", "global_step")


def evidence_parts(steps: DumpPart, open_alerts: DumpPart, progress: DumpPart) -> Mapping[str, DumpPart]:
    """Return the parts of a dump in their order, among them three that know the run."""
    return {
        "alert": _alert_part,
        "open_alerts": open_alerts,
        "steps": steps,
        "layers": _layers_part,
        "activations": _activations_part,
        "repeated_pass": _repeated_pass_part,
        "batch": _batch_part,
        "exception": _exception_part,
        "stacks": _stacks_part,
        "progress": progress,
        "output": _output_part,
    }


def evidence_of(context: DumpContext) -> Evidence | None:
    """Return the evidence of the investigation that makes a dump, or None if there is none."""
    evidence = context.details.get("evidence")
    return evidence if isinstance(evidence, Evidence) else None


def _alert_part(context: DumpContext) -> dict[str, Any] | None:
    alert = context.alert
    if alert is None:
        return None
    return {name: alert[name] for name in _ALERT_FIELDS if alert.get(name) is not None}


def _exception_part(context: DumpContext) -> dict[str, Any] | None:
    return None if context.error is None else describe_error(context.error)


def _output_part(context: DumpContext) -> dict[str, Any] | None:
    return describe_output(context.run_folder)


def _stacks_part(context: DumpContext) -> dict[str, Any] | None:
    """Return the stacks of a process that hangs, or that did not come to the end of a step in time."""
    if context.reason != "hang" and not context.details.get("is_late"):
        return None
    stacks = describe_stacks()
    context.verdict = context.verdict or judge_hang(stacks)
    return stacks


def _layers_part(context: DumpContext) -> dict[str, Any] | None:
    evidence = evidence_of(context)
    if evidence is None or not evidence.layers:
        return None
    return {"is_at_fault": evidence.is_at_fault, "layers": evidence.layers}


def _activations_part(context: DumpContext) -> dict[str, Any] | None:
    evidence = evidence_of(context)
    return evidence.activations if evidence is not None and evidence.activations else None


def _repeated_pass_part(context: DumpContext) -> dict[str, Any] | None:
    evidence = evidence_of(context)
    return evidence.repeated if evidence is not None and evidence.repeated else None


def _batch_part(context: DumpContext) -> dict[str, Any] | None:
    evidence = evidence_of(context)
    if evidence is None or not (evidence.batch or evidence.indices):
        return None
    indices = {} if evidence.indices is None else {"indices": evidence.indices[:MAX_INDICES]}
    position = {"position": evidence.position} if evidence.position else {}
    return {**evidence.batch, "step": evidence.step, **position, **indices}
