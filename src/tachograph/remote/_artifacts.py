"""`ArtifactSender`: sends the artifacts that the records of a run name, after the records.

One version at a time is named to the server with its list of files. The server says which contents
it lacks; when it has all of them, it adds the version to the project, under a number of its own.

A version that was removed from the log folder, or changed, cannot be sent. It is counted and reported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from tachograph._base.files import open_to_read
from tachograph.exceptions import ArtifactError
from tachograph.journal import JournalFollower, RunFolder
from tachograph.journal.artifacts import ArtifactStore, ArtifactVersion, blob_path
from tachograph.records import ARTIFACT, decode, to_json
from tachograph.remote._parts import FileToSend, PartSender, decode_answer
from tachograph.remote._wire import MAX_BATCH_BYTES, ArtifactAnswer

__all__ = ["ArtifactSender", "artifact_lag_bytes"]


class _ArtifactRecord(NamedTuple):
    """The record of an artifact."""

    name: str
    version: str
    digest: str
    aliases: list[str]
    time: float

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"


class ArtifactSender(PartSender[_ArtifactRecord]):
    """Sends the artifacts of one run; see `PartSender`."""

    _kind = "artifact"

    def restart(self) -> None:
        """Start again from the beginning of the journal."""
        super().restart()
        self._num_rejected_before = 0
        """How many files were rejected before the ones of the first artifact."""

    def _items_in(self, folder: RunFolder, lines: bytes) -> Iterator[_ArtifactRecord]:
        return _artifacts_in(lines)

    def _name_next(self, folder: RunFolder, run_id: str) -> None:
        """Name the first artifact to the server, and learn which of its contents are missing there."""
        entry = self._unnamed[0]
        if self.num_rejected + self.num_missing > self._num_rejected_before:
            self._skip()  # it cannot become complete
            return
        try:
            version = _find(folder, entry)
        except ArtifactError as error:
            self.num_missing += 1
            self._report_once(f"{entry} is not in the log folder any more: {error}")
            self._skip()
            return
        body = _encode(version, entry)
        if len(body) > MAX_BATCH_BYTES:
            self._reject_version(f"its list of {len(version.files):,} files is too long; pack them into archives")
            return
        response = self._request(f"/api/v1/ingest/runs/{run_id}/artifacts", body)
        if response is None:
            return
        if response.status in {400, 413}:
            self._reject_version(response.reason)
            return
        reply = decode_answer(self._accept(response), ArtifactAnswer)
        hashes = {file.sha256 for file in version.files if file.url is None}
        for sha256, have in reply.missing.items():
            if sha256 in hashes:
                open_file = functools.partial(_open_content, folder.path.parent, sha256)
                self._unsent.append(FileToSend(sha256, open_file, have))
        if not self._unsent:
            self._skip()

    def _reject_version(self, reason: str) -> None:
        self.num_rejected += 1
        self._report_once(f"the server does not accept {self._unnamed[0]}: {reason}")
        self._skip()

    def _skip(self) -> None:
        """Continue with the next artifact."""
        self._unnamed.popleft()
        self._num_rejected_before = self.num_rejected + self.num_missing


def artifact_lag_bytes(folder: RunFolder, sent_offset: int) -> int:
    """Return the size of the contents of the artifacts that a journal names after an offset."""
    follower = JournalFollower(folder.journal, sent_offset)
    sizes: dict[str, int] = {}
    while lines := follower.poll_lines():
        for entry in _artifacts_in(lines):
            try:
                sizes.update(ArtifactStore(folder.path.parent).contents(entry.name, entry.version))
            except ArtifactError:
                continue
    return sum(sizes.values())


def _artifacts_in(lines: bytes) -> Iterator[_ArtifactRecord]:
    """Yield the artifacts that the records in some lines say the run stored."""
    if b'"artifact"' not in lines:  # as in most journals
        return
    for line in lines.split(b"\n"):
        if b'"artifact"' not in line:
            continue
        try:
            record = decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if record["event"] == "event" and record.get("name") == ARTIFACT:
            yield _ArtifactRecord(
                str(record.get("artifact")),
                str(record.get("version")),
                str(record.get("digest")),
                _texts(record.get("aliases")),
                float(record["time"]),
            )


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _find(folder: RunFolder, entry: _ArtifactRecord) -> ArtifactVersion:
    """Return the version that a record names.

    Raises:
        ArtifactError: if it was removed, or is another one now.
    """
    version = ArtifactStore(folder.path.parent).find(str(entry))
    if version.digest != entry.digest:
        raise ArtifactError("its files differ from the recorded ones")
    return version


def _encode(version: ArtifactVersion, entry: _ArtifactRecord) -> bytes:
    version = msgspec.structs.replace(version, aliases=entry.aliases, log_dir="")
    return to_json({"version": msgspec.to_builtins(version), "time": entry.time}).encode()


def _open_content(log_dir: Path, sha256: str) -> BinaryIO | None:
    try:
        return open_to_read(blob_path(log_dir, sha256), below=log_dir)
    except OSError:
        return None
