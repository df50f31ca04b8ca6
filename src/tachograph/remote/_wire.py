"""The messages between a trainer's machine and a team's server, and the headers of a batch.

A run is sent as the bytes of its journals:

- `PUT …/runs/{id}` registers it, and returns how many bytes of each rank's journal the server has.
- `PUT …/runs/{id}/journal/{rank}?offset=N` appends a batch of whole lines at an offset. In a large job, `host-` and a
  number are the journal of a host.
- `PUT …/runs/{id}/files/{path}?offset=N` appends to another file of the run: its console output, captured code,
  annotations or a trace.
- `PUT …/runs/{id}/rank-map` replaces the map of all ranks, which rank 0 keeps; see `RankMap`.
- `PUT …/runs/{id}/media` names media files of the run. The server adds the ones in the project to the run, and returns
  which ones are missing, and how many bytes it has of each.
- `PUT …/blobs/{sha256}?run=ID&ext=webp&offset=N&size=M` sends a part of such a file.
- `PUT …/runs/{id}/artifacts` names a version of an artifact. The server adds it to the project if it has all contents,
  and returns which ones are missing; they are sent as parts, too, without `ext`.
- `HEAD …/blobs/{sha256}?run=ID` asks for one file: 200 if the project has it, else 404, and the header `Tacho-Have` has
  the number of bytes.
- `PUT …/runs/{id}/beat` reports that the trainer is alive while there is nothing to send.

A machine whose ranks do not see the folder of rank 0 (see `journal._node_folder`) adds its files to the run of rank 0:

- `PUT …/jobs` returns the run of a job, once rank 0 has registered it.
- The journals and the beat of the machine are sent like others. Their keys are `host-` and a large number.
- The answer to a beat of rank 0's machine names these journals and has the heartbeats of their ranks, and
  `GET …/runs/{id}/journal/host-{number}?offset=N` returns the bytes of such a journal. So rank 0 judges all ranks.
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
from tachograph.journal.artifacts import ArtifactVersion

__all__ = [
    "BEFORE_BYTES",
    "MAX_ARTIFACT_FILES",
    "MAX_BATCH_BYTES",
    "MAX_BEAT_BYTES",
    "MAX_JOB_CHARS",
    "MAX_MEDIA_FILES",
    "MAX_RANK",
    "RUN_FILES",
    "RUN_ID",
    "TOKEN_FORMAT",
    "ArtifactAnswer",
    "BatchAnswer",
    "Beat",
    "Join",
    "Joined",
    "MediaAnswer",
    "MediaFiles",
    "Registered",
    "Registration",
    "RelayedHeartbeat",
    "SendLimits",
    "SentArtifact",
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
MAX_JOB_CHARS = 2_000
MAX_MEDIA_FILES = 500
"""The most media files in a request that names some."""
MAX_ARTIFACT_FILES = 5_000
"""The most missing files of an artifact in an answer."""
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
    job: Annotated[str, Meta(max_length=MAX_JOB_CHARS)] = ""
    """The id of the distributed job that the run belongs to, by which other machines join it."""


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
    """The number of bytes that the server has of each journal, by rank, or `host-` and the number of a host."""
    limits: SendLimits = SendLimits()
    files: dict[str, int] = {}
    """The number of bytes that the server has of the other files."""
    control_version: str = ""
    """Requests up to this version of the control file were made before, and are not for this attempt."""


class Join(msgspec.Struct, frozen=True):
    """Asks for the run of a distributed job, to which a machine adds the files of its ranks."""

    job: Annotated[str, Meta(min_length=1, max_length=MAX_JOB_CHARS)]
    run_name: Annotated[str, Meta(max_length=1_000)] = ""
    """The name that the program gave to the run; empty if it gave none."""
    age_s: Annotated[float, Meta(ge=0)] = 0.0
    """How long ago the ranks started. A run that has ended before belongs to an earlier job with the same id."""


class Joined(msgspec.Struct, frozen=True):
    """The answer to `Join`."""

    run_id: Annotated[str, Meta(max_length=100)]
    registered: Registered


class RelayedHeartbeat(msgspec.Struct, frozen=True):
    """The heartbeat of a rank of another machine."""

    age_s: float
    """How long ago the server received it."""
    heartbeat: Heartbeat


class Beat(msgspec.Struct, frozen=True):
    """Reports that the trainer is alive, or that its run has ended, and how much is left to send."""

    heartbeat: Heartbeat | None = None
    ranks: dict[Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,4}$")], Heartbeat] = {}
    """The heartbeats of other ranks that run, by rank; of a large job, those of some ranks in turn."""
    lag_bytes: int = 0
    media_pending: int = 0
    """How many media files are known to be missing on the server."""
    media_offset: int = 0
    """The server has all media that the first so many bytes of the journal name, apart from files that the trainer's
    machine has lost."""
    is_node: bool = False
    """Whether a machine without rank 0 reports the state of its ranks; it knows nothing else."""


class MediaFiles(msgspec.Struct, frozen=True):
    """Names media files of a run."""

    files: Annotated[list[tuple[str, str]], Meta(max_length=MAX_MEDIA_FILES)]
    """SHA-256 and extension of each."""


class MediaAnswer(msgspec.Struct, frozen=True):
    """The answer to `MediaFiles`."""

    missing: dict[str, Annotated[int, Meta(ge=0)]] = {}
    """By SHA-256, how many bytes the server has of each file that is not complete."""


class SentArtifact(msgspec.Struct, frozen=True):
    """Names a version of an artifact that the run logged."""

    version: ArtifactVersion
    """As it is on the trainer's machine, with the aliases with which the run logged it."""
    time: float
    """When the run logged it, in seconds since the epoch."""


class ArtifactAnswer(msgspec.Struct, frozen=True):
    """The answer to `SentArtifact`."""

    missing: dict[str, Annotated[int, Meta(ge=0)]] = {}
    """By SHA-256, how many bytes the server has of contents that are not complete; at most `MAX_ARTIFACT_FILES`."""
    version: str = ""
    """The version on the server, which numbers versions itself; empty if contents are missing."""
    is_removed: bool = False
    """Whether the version was removed on the server, so that it is not wanted any more."""


class BatchAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch or a beat."""

    have: Annotated[int, Meta(ge=0)] = 0
    control: list[Request] = []
    """Requests of people to the trainer, if there are others than in the version that the client named."""
    control_version: str = ""
    flush_interval_s: float | None = None
    """How long records may gather from now on, by the load of the server; None as registered."""
    beat_interval_s: float | None = None
    """The same for beats."""
    nodes: dict[Annotated[str, Meta(pattern=r"^host-[1-9][0-9]{8}$")], Annotated[int, Meta(ge=0)]] = {}
    """The number of bytes of each journal that machines without rank 0 have sent; in the answer to a beat only."""
    ranks: dict[Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,4}$")], RelayedHeartbeat] = {}
    """The heartbeats of their ranks; of a large job, some in turn."""


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
