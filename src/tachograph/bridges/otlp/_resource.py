"""The resource: which run of which program on which machine sent the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tachograph._base.version import __version__
from tachograph.bridges.otlp._values import key_values

__all__ = ["resource_of"]


def resource_of(start: Mapping[str, Any], run_id: str, attempt: int, attributes: Mapping[str, Any]) -> Resource:
    """Return the resource of an attempt.

    Args:
        start: the `start` record of the attempt.
        run_id: the id of the run.
        attempt: the number of the attempt, from 1.
        attributes: attributes that override the attributes of the run.
    """
    process = start["process"] if isinstance(start.get("process"), dict) else {}
    git = start["git"] if isinstance(start.get("git"), dict) else {}
    values = {
        "service.instance.id": run_id,
        "telemetry.sdk.name": "tachograph",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
        "host.name": process.get("host") or start.get("host"),
        "os.description": start.get("platform"),
        "process.pid": process.get("pid"),
        "process.command_args": start.get("command") or None,
        "process.runtime.version": start.get("python"),
        "vcs.ref.head.revision": git.get("commit"),
        "vcs.ref.head.name": git.get("branch"),
        "tachograph.run.id": run_id,
        "tachograph.run.name": start.get("run_name"),
        "tachograph.attempt": attempt or None,
        "tachograph.session_tag": start.get("session_tag"),
        "tachograph.perf_tag": start.get("perf_tag"),
        "tachograph.tags": start.get("tags") or None,
        "tachograph.world_size": start.get("world_size"),
    }
    return Resource(attributes=key_values({**values, **attributes}))
