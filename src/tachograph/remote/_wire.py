"""The messages between a trainer's machine and a team's server, and the headers of a batch.

A run is sent as the bytes of its journals:

- `PUT …/runs/{id}` registers it, and returns how many bytes of each rank's journal the server has.
- `PUT …/runs/{id}/journal/{rank}?offset=N` appends a batch of whole lines at an offset.
- `PUT …/runs/{id}/files/{path}?offset=N` appends to another file of the run: its console output, captured code,
  annotations or a trace.
- `HEAD` and `PUT …/blobs/{sha256}` ask for and store a file that belongs to a record, under its hash.
- `PUT …/runs/{id}/beat` reports that the trainer is alive while there is nothing to send.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tachograph.journal import Heartbeat, Request, RunFolder

__all__ = [
    "BEFORE_BYTES",
    "MAX_BATCH_BYTES",
    "MAX_BEAT_BYTES",
    "MAX_RANK",
    "RUN_FILES",
    "RUN_ID",
    "TOKEN_FORMAT",
    "BatchAnswer",
    "Beat",
    "Registered",
    "Registration",
    "SendLimits",
    "hash_bytes",
    "run_files",
]

RUN_FILES = {
    "output": (r"\d{12}\.log", 4 << 20),
    "code": (r"[0-9a-f]{40}(?:\.(?:patch|txt|json))?", 16 << 20),
    "annotations": (r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.jsonl", 16 << 20),
    "traces": (r"step-[0-9-]{1,40}\.json\.gz", 1 << 30),
}
"""The folders of a run that are sent besides its journals: names of their files, and the largest size of one."""
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?:~[1-9][0-9]{0,3})?"
"""The id of a run; `~2` and so on distinguish copies whose bytes differ from the first one."""
TOKEN_FORMAT = re.compile(r"tk_([0-9a-f]{8})_([A-Za-z0-9_-]{43})", re.ASCII)
"""An access key: its id and its secret."""
MAX_RANK = 99_999
MAX_BATCH_BYTES = 16 << 20
"""The most plain bytes in a request. A batch is smaller, unless one line is that long."""
MAX_BEAT_BYTES = 4 << 20
"""The most bytes of a beat."""
BEFORE_BYTES = 4096
"""So many bytes before the offset are compared by their hash, so that different journals are never joined."""


class Registration(msgspec.Struct, frozen=True):
    """Announces a run."""

    run_name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    schema: int = 1
    project: Annotated[str, Meta(max_length=1_000)] = ""
    remote_control: bool = False
    """Whether people may steer the run from the server."""
    start: dict[str, Any] = {}
    """Facts of the first `start` record, for messages; the journal has them, too."""


class SendLimits(msgspec.Struct, frozen=True):
    """How the server wants to receive batches."""

    batch_bytes: int = 1 << 20
    """Send no more plain bytes at once, unless a line is longer."""
    max_batch_bytes: int = MAX_BATCH_BYTES
    flush_bytes: int = 64 << 10
    """Send when so many bytes have gathered …"""
    flush_interval_s: float = 1.0
    """… or so much time has passed."""
    beat_interval_s: float = 5.0
    bytes_per_s: float | None = None
    max_bytes: int | None = None
    """How many bytes are kept of all runs of the key."""
    max_open_runs: int | None = None
    """How many runs the key may send at once."""


class Registered(msgspec.Struct, frozen=True):
    """The answer to a registration."""

    run: str
    """The name of the run on the server."""
    have: dict[str, Annotated[int, Meta(ge=0)]]
    """The number of bytes that the server has of the journal of each rank."""
    limits: SendLimits = SendLimits()
    files: dict[str, int] = {}
    """The number of bytes that the server has of the other files."""
    control_version: str = ""
    """Requests up to this version of the control file were made before, and are not for this attempt."""


class Beat(msgspec.Struct, frozen=True):
    """Reports that the trainer is alive, or that its run has ended, and how much is left to send."""

    heartbeat: Heartbeat | None = None
    ranks: dict[Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,4}$")], Heartbeat] = {}
    """The heartbeats of other ranks that run, by rank; of a large job, those of some ranks in turn."""
    lag_bytes: int = 0
    media_pending: int = 0


class BatchAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch or a beat."""

    have: Annotated[int, Meta(ge=0)] = 0
    control: list[Request] = []
    """Requests of people to the trainer, if there are others than in the version that the client named."""
    control_version: str = ""


def hash_bytes(data: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes, as the headers of a batch have it."""
    return hashlib.sha256(data).hexdigest()


def run_files(folder: RunFolder) -> dict[str, int]:
    """Return the size of each file of a run that is sent besides its journals, by its path in the run folder."""
    sizes = {}
    for name, (pattern, max_bytes) in RUN_FILES.items():
        try:
            entries = sorted(os.scandir(folder.path / name), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                if re.fullmatch(pattern, entry.name, re.ASCII) and entry.is_file(follow_symlinks=False):
                    size = entry.stat(follow_symlinks=False).st_size
                    if size <= max_bytes:
                        sizes[f"{name}/{entry.name}"] = size
    return sizes
