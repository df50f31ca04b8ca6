"""Receives runs: the routes below `/api/v1/ingest/`, as an ASGI application of its own.

They are apart from the API of the dashboard, because they have other rules. Only a key in the header `Authorization` is
accepted, never a cookie, so a page in a browser cannot send anything. A body may be large, and is checked in this
order: the key, the length, the size after inflating (which is announced in a header and enforced while inflating, so
that a small body cannot become a large one), and the hash of the plain bytes. Only then are they appended.

Work on files is done in a few threads of its own, so that requests of the dashboard do not delay it.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tachograph._base.typed import decode_json
from tachograph.exceptions import ArtifactError
from tachograph.journal import MAX_RANK_MAP_BYTES, ControlFileError, read_requests
from tachograph.journal.artifacts import ArtifactStore
from tachograph.records import RankMap
from tachograph.remote import (
    MAX_ARTIFACT_FILES,
    MAX_BATCH_BYTES,
    MAX_BEAT_BYTES,
    MAX_JOB_CHARS,
    ArtifactAnswer,
    BatchAnswer,
    Beat,
    Join,
    Joined,
    MediaAnswer,
    MediaFiles,
    Registered,
    Registration,
    SendLimits,
    SentArtifact,
    hash_bytes,
)
from tachograph.server._errors import ApiError, error_response
from tachograph.server.team._access import TeamAccess
from tachograph.server.team._blobs import BlobStore
from tachograph.server.team._copies import (
    AmbiguousJobError,
    CopyBusyError,
    CopyError,
    CopyGoneError,
    DivergedError,
    InvalidBatchError,
    NotYourRunError,
    OutOfOrderError,
    RunCopies,
    RunCopy,
    StorageFullError,
    UnknownRunError,
    check_journal,
    project_folder,
)
from tachograph.server.team._key_usage import list_blob
from tachograph.server.team._keys import AccessKey
from tachograph.server.team._metrics import ServerMetrics
from tachograph.server.team._send_pace import SendPace

__all__ = ["INGEST_PREFIX", "IngestApp"]

Result = TypeVar("Result")

INGEST_PREFIX = "/api/v1/ingest/"
_MAX_BODY_BYTES = MAX_BATCH_BYTES + (64 << 10)
_MAX_JSON_BYTES = 256 << 10
_NUM_THREADS = 4
_RUN = re.compile(
    r"/api/v1/ingest/runs/([^/]+)(?:/(journal/([^/]+)|beat|media|artifacts|rank-map|files/([^/]+/[^/]+)))?"
)
_JOBS = "/api/v1/ingest/jobs"
_BLOB = re.compile(r"/api/v1/ingest/blobs/([^/]+)")
_BLOB_PARAMETERS = {
    "run": r"[^/]{1,100}",
    "ext": r"[a-z0-9]{1,10}(\.[a-z0-9]{1,10})?",
    "offset": r"[0-9]{1,15}",
    "size": r"[0-9]{1,15}",
}
_STATUS: dict[type[CopyError], tuple[int, str]] = {
    InvalidBatchError: (400, "invalid_batch"),
    NotYourRunError: (403, "not_your_run"),
    UnknownRunError: (404, "no_such_run"),
    OutOfOrderError: (409, "out_of_order"),
    AmbiguousJobError: (409, "ambiguous_job"),
    CopyGoneError: (410, "deleted"),
    DivergedError: (412, "diverged"),
    CopyBusyError: (503, "busy"),
    StorageFullError: (507, "disk_full"),
}


class IngestApp:
    """Receives runs from trainers, and returns requests of people to them."""

    def __init__(
        self,
        copies: RunCopies,
        blobs: BlobStore,
        access: TeamAccess,
        metrics: ServerMetrics,
        *,
        limits: SendLimits | None = None,
    ) -> None:
        self._copies = copies
        self._blobs = blobs
        self._access = access
        self._metrics = metrics
        self._limits = limits or SendLimits()
        self.pace = SendPace(self._limits.flush_interval_s, self._limits.beat_interval_s)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tachograph-ingest")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._respond(scope, Headers(scope=scope), receive)
        except ApiError as error:
            response = error_response(error)
        except CopyError as error:
            response = _copy_error_response(error)
        except OSError as error:
            # The reason may name files of the server, which are none of the client's business.
            self._metrics.add_fault("cannot write a copy", error)
            response = error_response(
                ApiError(503, "storage", "the server cannot store runs now", {"Retry-After": "5"})
            )
        self._metrics.count("ingest_requests", status=response.status_code)
        response.headers["Cache-Control"] = "no-store"
        await response(scope, receive, send)

    def close(self) -> None:
        """Wait for the work on files that has begun."""
        self._threads.shutdown(wait=True)

    async def _respond(self, scope: Scope, headers: Headers, receive: Receive) -> Response:
        self._access.check_request(scope, headers)
        key = self._access.authenticate_key(scope, headers, "write")
        blob = _BLOB.fullmatch(scope["path"])
        if blob is not None:
            return await self._respond_to_blob(blob[1], scope, headers, receive, key)
        match = _RUN.fullmatch(scope["path"])
        if match is None and scope["path"] != _JOBS:
            raise ApiError(404, "not_found", "there is no such route for sending runs")
        parts: tuple[Any, ...] = match.groups() if match is not None else ("", "", None, None)
        run_id, part, rank, path = parts
        if scope["method"] == "GET" and rank is not None:
            offset = _parse_offset(scope)
            await self._check_rate(key)
            return await self._in_thread(self._read, run_id, check_journal(rank), offset, key)
        if scope["method"] != "PUT":
            raise ApiError(405, "wrong_method", f"{scope['method']} is not allowed here", {"Allow": "PUT"})
        if match is None:
            body = await _read_body(receive, headers, _MAX_JSON_BYTES)
            return await self._in_thread(self._join, _parse(body, Join), key)
        if part is None:
            body = await _read_body(receive, headers, _MAX_JSON_BYTES)
            return await self._in_thread(self._register, run_id, _parse(body, Registration), key)
        if part == "beat":
            body = await _read_body(receive, headers, MAX_BEAT_BYTES)
            return await self._in_thread(self._beat, run_id, _parse(body, Beat), key, headers)
        if part == "media":
            body = await _read_body(receive, headers, _MAX_JSON_BYTES)
            return await self._in_thread(self._link_media, run_id, _parse(body, MediaFiles), key)
        await self._check_rate(key)
        if part == "artifacts":
            body = await _read_body(receive, headers, MAX_BATCH_BYTES)
            return await self._in_thread(self._receive_artifact, run_id, body, key)
        offset = _parse_offset(scope) if part != "rank-map" else 0
        body = await _read_body(receive, headers, _MAX_BODY_BYTES)
        if part == "rank-map":
            return await self._in_thread(self._store_rank_map, run_id, body, key, headers)
        if path is not None:
            return await self._in_thread(self._append_to_file, run_id, path, offset, body, key, headers)
        return await self._in_thread(self._append, run_id, check_journal(rank), offset, body, key, headers)

    async def _respond_to_blob(
        self, digest: str, scope: Scope, headers: Headers, receive: Receive, key: AccessKey
    ) -> Response:
        if scope["method"] not in {"HEAD", "PUT"}:
            raise ApiError(405, "wrong_method", f"{scope['method']} is not allowed here", {"Allow": "HEAD, PUT"})
        query = _parse_blob_query(scope)
        if scope["method"] == "HEAD":
            return await self._in_thread(self._report_blob, digest, query, key)
        await self._check_rate(key)
        body = await _read_body(receive, headers, MAX_BATCH_BYTES)
        return await self._in_thread(self._add_blob, digest, query, body, key, headers)

    def _report_blob(self, digest: str, query: _BlobQuery, key: AccessKey) -> Response:
        project = self._project_of(key, query.run)
        has_blob = self._blobs.has(digest, project)
        num_bytes = 0 if has_blob else self._blobs.part_bytes(digest, project, key.name)
        headers = {} if has_blob else {"Tacho-Have": str(num_bytes)}
        return Response(status_code=200 if has_blob else 404, headers=headers)

    def _add_blob(self, digest: str, query: _BlobQuery, body: bytes, key: AccessKey, headers: Headers) -> Response:
        copy = None if query.run is None else self._copies.open(query.run, key.name, key.project)
        project = self._project_of(key, query.run)
        if query.size is None:  # the whole file
            had_blob = self._blobs.has(digest, project)
            if not had_blob:
                self._check_room(key, len(body))
            num_new_bytes = len(body) if self._blobs.add(digest, body, project, key.name) else 0
            response = Response(status_code=201 if num_new_bytes else 200)
        else:
            if hash_bytes(body) != headers.get("tacho-sha256", ""):
                raise ApiError(400, "invalid_batch", "the body does not match Tacho-Sha256: it was changed on its way")
            if not self._blobs.has(digest, project):
                self._check_room(key, len(body))
            have, num_new_bytes = self._blobs.append(
                digest, body, project, key.name, offset=query.offset, size_bytes=query.size
            )
            if copy is not None and query.ext is not None and have == query.size:
                self._blobs.link(copy.folder, digest, query.ext, project)
            response = _json(BatchAnswer(have))
        if num_new_bytes:
            self._copies.usage.add_bytes(key.name, num_new_bytes)
        self._count(key, body, body)
        return response

    def _link_media(self, run_id: str, query: MediaFiles, key: AccessKey) -> Response:
        """Add the media files that the project has to a run; return the others."""
        copy = self._copies.open(run_id, key.name, key.project)
        project = self._project_of(key, run_id)
        missing = {
            digest: self._blobs.part_bytes(digest, project, key.name)
            for digest, extension in query.files
            if not self._blobs.link(copy.folder, digest, extension, project)
        }
        return _json(MediaAnswer(missing))

    def _receive_artifact(self, run_id: str, body: bytes, key: AccessKey) -> Response:
        """Add a version of an artifact to the project if it has all contents; return the missing ones."""
        message = _parse(body, SentArtifact)
        copy = self._copies.open(run_id, key.name, key.project)
        project, _, run_name = copy.entry.folder.partition("/")
        self._check_room(key, len(body))
        version = msgspec.structs.replace(message.version, run_id=run_id.partition("~")[0], run_name=run_name)
        try:
            outcome = ArtifactStore(self._copies.root / project).receive(
                version,
                min(message.time, time.time()),  # a clock that is ahead must not keep an alias from moving later
                lambda digest, target: self._blobs.link_to(digest, target, project),
                max_missing=MAX_ARTIFACT_FILES,
            )
        except ArtifactError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None  # the message names a path of the server
            raise InvalidBatchError(str(error)) from None
        if outcome.version is None:
            missing = {each: self._blobs.part_bytes(each, project, key.name) for each in outcome.missing_hashes}
            return _json(ArtifactAnswer(missing, is_removed=not missing))
        if outcome.is_new:
            list_blob(self._copies.root, key.name, outcome.manifest_path)
            self._copies.usage.add_bytes(key.name, len(body))
        return _json(ArtifactAnswer(version=outcome.version.version))

    def _project_of(self, key: AccessKey, run_id: str | None) -> str | None:
        """Return the folder of the project of a run, or else of a key; None if the key is for all projects."""
        if run_id is not None:
            return self._copies.open(run_id, key.name, key.project).entry.folder.partition("/")[0]
        return None if key.project is None else project_folder(key.project)

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        result: Awaitable[Result] = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        return await result

    async def _check_rate(self, key: AccessKey) -> None:
        """Raise `ApiError` if a key has sent too much in the last seconds."""
        if key.max_bytes_per_s is not None:
            wait_s = await self._in_thread(self._copies.usage.send_wait_s, key.name, key.max_bytes_per_s)
            if wait_s > 0:
                message = f"the key {key.name!r} may send {key.max_bytes_per_s} bytes per second"
                raise ApiError(429, "too_fast", message, {"Retry-After": f"{wait_s:.3f}"})

    def _register(self, run_id: str, registration: Registration, key: AccessKey) -> Response:
        usage = self._copies.usage
        if key.max_open_runs is not None and not usage.open_run(key.name, run_id, key.max_open_runs):
            message = f"the key {key.name!r} may send {key.max_open_runs} runs at once; one that ends makes room soon"
            raise ApiError(429, "too_many_runs", message, {"Retry-After": "30"})
        copy = self._copies.register(run_id, registration, key.name, key.project)
        self._metrics.count("registrations")
        return _json(self._registered(copy, key))

    def _join(self, query: Join, key: AccessKey) -> Response:
        copy = self._copies.join(query, key.name, key.project)
        return _json(Joined(copy.entry.run_id, self._registered(copy, key)))

    def _read(self, run_id: str, journal: str, offset: int, key: AccessKey) -> Response:
        copy = self._copies.open(run_id, key.name, key.project)
        return Response(copy.read(journal, offset), media_type="application/x-ndjson")

    def _registered(self, copy: RunCopy, key: AccessKey) -> Registered:
        version, _ = _control_of(copy, "")
        limits = msgspec.structs.replace(
            self._limits,
            max_bytes=key.max_bytes,
            max_open_runs=key.max_open_runs,
            flush_interval_s=self.pace.flush_interval_s,
            beat_interval_s=self.pace.beat_interval_s,
        )
        if key.max_bytes_per_s is not None:
            limits = msgspec.structs.replace(limits, bytes_per_s=float(key.max_bytes_per_s))
        name = copy.folder.path.relative_to(self._copies.root).as_posix()
        return Registered(name, copy.have(), limits, copy.files(), version)

    def _append(
        self, run_id: str, journal: str, offset: int, body: bytes, key: AccessKey, headers: Headers
    ) -> Response:
        copy = self._copies.open(run_id, key.name, key.project)
        data = _plain_bytes(body, headers)
        self._check_room(key, len(data))
        have = copy.append(journal, offset, data, headers.get("tacho-before", ""))
        self._count(key, data, body)
        return _json(self._batch_answer(copy, have, headers))

    def _append_to_file(
        self, run_id: str, path: str, offset: int, body: bytes, key: AccessKey, headers: Headers
    ) -> Response:
        copy = self._copies.open(run_id, key.name, key.project)
        data = _plain_bytes(body, headers)
        self._check_room(key, len(data))
        have = copy.append_to_file(path, offset, data)
        self._count(key, data, body)
        return _json(BatchAnswer(have))

    def _store_rank_map(self, run_id: str, body: bytes, key: AccessKey, headers: Headers) -> Response:
        copy = self._copies.open(run_id, key.name, key.project)
        data = _plain_bytes(body, headers)
        if len(data) > MAX_RANK_MAP_BYTES:
            raise ApiError(413, "too_large", f"the map exceeds {MAX_RANK_MAP_BYTES} bytes")
        copy.store_rank_map(_parse(data, RankMap))
        self._count(key, data, body)
        return _json(BatchAnswer())

    def _check_room(self, key: AccessKey, num_bytes: int) -> None:
        if key.max_bytes is not None and not self._copies.usage.has_room(key.name, num_bytes, key.max_bytes):
            message = f"the runs of the key {key.name!r} have reached {key.max_bytes} bytes, which is its limit"
            raise ApiError(507, "quota", f"{message}: delete some, or ask an administrator", {"Retry-After": "60"})

    def _count(self, key: AccessKey, data: bytes, body: bytes) -> None:
        if key.max_bytes_per_s is not None:
            self._copies.usage.add_sent_bytes(key.name, len(data), key.max_bytes_per_s)
        self._metrics.count("ingest_bytes", len(data))
        self._metrics.count("ingest_body_bytes", len(body))

    def _beat(self, run_id: str, beat: Beat, key: AccessKey, headers: Headers) -> Response:
        copy = self._copies.open(run_id, key.name, key.project)
        if beat.is_node:
            copy.store_node_beat(beat)
            return _json(BatchAnswer())
        copy.store_beat(beat, _skew_s(headers))
        if beat.heartbeat is not None:
            self._copies.set_job(copy.entry, beat.heartbeat.job[:MAX_JOB_CHARS])
        if key.max_open_runs is not None:
            self._copies.usage.open_run(key.name, run_id, key.max_open_runs)
        self._copies.close_idle()
        nodes, ranks = copy.relay()
        answer = self._batch_answer(copy, 0, headers)
        return _json(msgspec.structs.replace(answer, nodes=nodes, ranks=ranks))

    def _batch_answer(self, copy: RunCopy, have: int, headers: Headers) -> BatchAnswer:
        requests: list[Any] = []
        version = ""
        if copy.entry.remote_control:
            version, requests = _control_of(copy, headers.get("tacho-control", ""))
        return BatchAnswer(
            have,
            requests,
            version,
            flush_interval_s=self.pace.flush_interval_s,
            beat_interval_s=self.pace.beat_interval_s,
        )


def _control_of(copy: RunCopy, client_version: str) -> tuple[str, list[Any]]:
    """Return the version of the control file, and its requests if the client has another version."""
    try:
        file_info = os.lstat(copy.folder.control)
        version = f"{file_info.st_ino:x}-{file_info.st_mtime_ns:x}-{file_info.st_size:x}"
        if version == client_version:
            return version, []
        return version, read_requests(copy.folder)
    except (OSError, ControlFileError):
        return "none", []


def _plain_bytes(body: bytes, headers: Headers) -> bytes:
    """Inflate a body and check it against its headers."""
    num_bytes = _parse_size(headers.get("tacho-bytes", ""))
    if not 0 < num_bytes <= MAX_BATCH_BYTES:
        raise ApiError(413, "too_large", f"Tacho-Bytes must be between 1 and {MAX_BATCH_BYTES}")
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding == "gzip":
        inflater = zlib.decompressobj(wbits=31)
        try:
            data = inflater.decompress(body, num_bytes + 1)
        except zlib.error:
            raise ApiError(400, "invalid_batch", "the body is not valid gzip") from None
        if not inflater.eof or inflater.unused_data:
            raise ApiError(400, "invalid_batch", "the body is longer or shorter than Tacho-Bytes")
    elif encoding == "identity":
        data = body
    else:
        raise ApiError(415, "unknown_encoding", "use Content-Encoding: gzip, or none")
    if len(data) != num_bytes:
        raise ApiError(400, "invalid_batch", "the body is longer or shorter than Tacho-Bytes")
    if hash_bytes(data) != headers.get("tacho-sha256", ""):
        raise ApiError(400, "invalid_batch", "the body does not match Tacho-Sha256: it was changed on its way")
    return data


def _skew_s(headers: Headers) -> float | None:
    """Return by how much the clock of the client is ahead."""
    try:
        ahead_s = float(headers.get("tacho-now", "")) - time.time()
    except ValueError:
        return None
    return ahead_s if math.isfinite(ahead_s) else None


def _parse_size(text: str) -> int:
    """Return a number of bytes in a header; -1 if it is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else -1


async def _read_body(receive: Receive, headers: Headers, max_bytes: int) -> bytes:
    if not 0 <= _parse_size(headers.get("content-length", "0")) <= max_bytes:
        raise ApiError(413, "too_large", f"the body exceeds {max_bytes} bytes")
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "cut_off", "the client closed the connection")
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise ApiError(413, "too_large", f"the body exceeds {max_bytes} bytes")
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


class _BlobQuery(NamedTuple):
    """The parameters of a request about a blob."""

    run: str | None
    ext: str | None
    offset: int
    size: int | None
    """The size of the whole file, if the body is a part of it."""


def _parse_blob_query(scope: Scope) -> _BlobQuery:
    try:
        pairs = parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True)
    except ValueError:
        pairs = [("", "")]
    values = dict(pairs)
    is_valid = len(values) == len(pairs) and all(
        name in _BLOB_PARAMETERS and re.fullmatch(_BLOB_PARAMETERS[name], value, re.ASCII) for name, value in pairs
    )
    if not is_valid or ("offset" in values) != ("size" in values):
        raise ApiError(400, "bad_query", "expected nothing, or ?run=ID&ext=EXTENSION&offset=0&size=BYTES")
    size = int(values["size"]) if "size" in values else None
    return _BlobQuery(values.get("run"), values.get("ext"), int(values.get("offset", "0")), size)


def _parse_offset(scope: Scope) -> int:
    match = re.fullmatch(rb"offset=([0-9]{1,15})", scope["query_string"])
    if match is None:
        raise ApiError(400, "bad_query", "expected one parameter, the offset: ?offset=0")
    return int(match[1])


def _parse(body: bytes, kind: type[Any]) -> Any:
    try:
        return decode_json(body, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError(400, "bad_body", str(error)[:300]) from None


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), 200, media_type="application/json")


def _copy_error_response(error: CopyError) -> Response:
    status, code = _STATUS[type(error)]
    headers = {"Retry-After": "2"} if status == 503 else {"Retry-After": "60"} if status == 507 else {}
    response = error_response(ApiError(status, code, str(error), headers))
    if isinstance(error, OutOfOrderError):
        body = {"have": error.have, "error": {"code": code, "message": str(error)}}
        response = Response(msgspec.json.encode(body), status, media_type="application/json")
    return response
