"""`RunSender`: copies the journals of one run to a server.

The server decides where to continue: it returns how many bytes it has of each journal, when the run is registered and
with every batch. So the sender keeps no queue and no cursor. It stores its progress and its last failure in
`.tacho/server.json`, only to show them to people.

`poll` sends a batch if one is due, and returns when to call it again. It never raises. After a failure it waits, up to
a minute, and tries again for ever, because the journal is the queue:

- 409: the server has fewer bytes than expected, for example after it was restored from a backup. Continue where it is.
- 412: the bytes differ, because the journal was replaced or another trainer has the same id. Register the run again,
  and if they still differ, under the next generation of its id (`id~2`), so that both are kept. One answer is not
  enough, because a bad connection may have changed a header of the request.
- 410: the run was deleted on the server. Stop.
- 413: send less at once. 429 and 503: wait as long as the server says.
- 401 and 403: the key was revoked or lacks a scope. Wait for a minute: the key may be replaced in the meantime.

The map of all ranks, which rank 0 replaces again and again, is sent whole: at most once per minute, when a run is
registered, and at the end.

Media files and artifacts follow the records that name them, see `_media` and `_artifacts`. Whenever a batch of a
journal is due, it comes first, and a part of a media file comes before a part of an artifact.

Answers are not trusted: sizes and pauses that a server names are limited, and an answer that makes no progress is a
failure, after which the sender waits.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tachograph._base.files import make_folder, open_to_read, read_small, replace_file
from tachograph._base.guard import guard
from tachograph._base.typed import decode_json
from tachograph.journal import (
    LAST_NODE_NUMBER,
    Heartbeat,
    RankHeartbeats,
    Request,
    RunFolder,
    RunState,
    complete_size,
    current_state,
    infer_writer_state,
    journal_size,
    list_rank_journals,
    open_journal,
    read_heartbeat,
    read_node_facts,
    read_rank_map,
    this_process,
    write_requests,
)
from tachograph.records import decode
from tachograph.remote._artifacts import ArtifactSender, artifact_lag_bytes
from tachograph.remote._connection import Connection, ConnectionFailedError, ServerResponse, printable
from tachograph.remote._media import MediaSender, media_lag_bytes
from tachograph.remote._node_relay import NodeRelay
from tachograph.remote._parts import FilesPausedError, is_unknown_route
from tachograph.remote._wire import (
    BEFORE_BYTES,
    MAX_BATCH_BYTES,
    MAX_BEAT_BYTES,
    MAX_JOB_CHARS,
    MAX_RANK,
    RUN_ID,
    BatchAnswer,
    Beat,
    Registered,
    Registration,
    SendLimits,
    hash_bytes,
    run_files,
)

__all__ = [
    "ROUTE",
    "RetryError",
    "RunSender",
    "SendState",
    "decode_answer",
    "lag_bytes",
    "read_send_state",
    "unsent_bytes",
]

ROUTE = "/api/v1/ingest/runs"
_MIN_PAUSE_S = 0.5
_MAX_PAUSE_S = 60.0
_MAX_GENERATION = 1_000
_POLL_S = 0.5
_MAX_STATE_BYTES = 1 << 20
_HEAD_BYTES = 4 << 20
_NEVER = 1 << 62
_MAX_REQUESTS = 100
_RELAY_INTERVAL_S = 1.0
"""How often to ask for the state of ranks on other machines: rank 0 waits for it before it says why it has ended."""
"""In one answer of the server."""
_MAX_FORWARDED = 100_000
_MAX_BEAT_RANKS = 1_000
"""A beat every five seconds then states each of 4,000 ranks often enough to be seen as running."""
_RANK_MAP_INTERVAL_S = 60.0
"""How often to send the map of all ranks while it changes: of a large job, it has a megabyte."""


class SendState(msgspec.Struct):
    """The content of `.tacho/server.json`: how far a run was sent to a server."""

    server: str
    generation: int = 1
    run: str = ""
    """The name of the run on the server."""
    have: dict[str, int] = {}
    """The number of bytes that the server has of each journal: of a rank, such as `7`, or of a host, `host-12`."""
    error: str = ""
    """Why the last attempt failed."""
    is_gone: bool = False
    """Whether the run was deleted on the server."""
    media_offset: int = 0
    """The server has all media that the journal names up to here."""
    num_missing_media: int = 0
    """Media files that could not be sent, because they are not in the run folder."""
    num_rejected_media: int = 0
    """Media files that the server rejected."""
    artifact_offset: int = 0
    """The server has all artifacts that the journal names up to here."""
    num_missing_artifacts: int = 0
    """Artifacts, or files of them, that could not be sent, because they are not in the log folder."""
    num_rejected_artifacts: int = 0
    """Artifacts, or files of them, that the server rejected."""


def read_send_state(folder: RunFolder) -> SendState | None:
    """Return how far a run was sent, or None if it was never sent."""
    try:
        return decode_json(read_small(folder.private / "server.json", _MAX_STATE_BYTES), SendState)
    except (OSError, msgspec.MsgspecError):
        return None


def lag_bytes(folder: RunFolder, have: Mapping[str, int]) -> int:
    """Return how many bytes of a run's journals are missing on a server that has so many of each."""
    return sum(max(0, _complete_bytes(path) - have.get(key, 0)) for key, path in _journals(folder).items())


def unsent_bytes(folder: RunFolder, state: SendState | None) -> int:
    """Return how many bytes of records, media and artifacts are left to send; all, if the run was never sent."""
    state = state or SendState("")
    num_bytes = lag_bytes(folder, state.have) + media_lag_bytes(folder, state.media_offset)
    return num_bytes + artifact_lag_bytes(folder, state.artifact_offset)


class RunSender:
    """Sends the journals of one run, and hands requests from the server to the trainer."""

    def __init__(
        self,
        folder: RunFolder,
        connection: Connection,
        report: Callable[[str, str, str], None],
        *,
        remote_control: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to send a run.

        Args:
            folder: the run.
            connection: the server.
            report: called with the kind, the name `server` and the reason of a failure; once per outage and kind.
            remote_control: whether requests from the server are handed to the trainer.
            clock: returns the time in seconds, on a clock that nobody sets.
        """
        self.folder = folder
        self.is_complete = False
        """Whether the server had every complete line, all media and all artifacts at the last `poll`."""
        self.num_sent_bytes = 0
        """Bytes that this sender sent, and that the server accepted."""
        self._connection = connection
        self._report = report
        self._remote_control = remote_control
        self._clock = clock
        address = connection.address.url
        stored_state = read_send_state(folder)
        self.state = stored_state if stored_state is not None and stored_state.server == address else SendState(address)
        self._stored_json = b""
        self._run_id = ""
        self._limits = SendLimits()
        self._is_registered = False
        self._is_node = False
        """Whether the folder belongs to a machine without rank 0; see `NodeSender`."""
        self._relay = NodeRelay()
        self._retry_at_s = 0.0
        self._num_failures = 0
        self._reported_kinds: set[str] = set()
        self._saw_mismatch = False
        """Whether the server reported different bytes, and was not asked again yet."""
        self._waiting_since_s: dict[str, float] = {}
        self._sent_file_bytes: dict[str, int] = {}
        """The number of bytes that the server has of each other file."""
        self._sent_map_version: tuple[int, int, int] | None = None
        """Inode, time and size of the map of all ranks that was sent."""
        self._rank_map_at_s = 0.0
        """When to send the next map."""
        self._accepts_rank_map = True
        self._unsent_bytes: dict[str, int] = {}
        """The bytes that are left to send of each journal; 0 if only a part of a line is left."""
        self._rejected_journals: set[str] = set()
        """Journals of hosts, if the server is of an earlier version."""
        self._last_beat_s = -1e9
        self._max_beat_ranks = _MAX_BEAT_RANKS
        self._next_rank = 0
        """The index of the rank whose heartbeat is the first of the next beat."""
        self._control_version = ""
        self._forwarded_request_ids: set[str] = set()
        self._max_batch_bytes = 1 << 20
        self._media = MediaSender(connection, self._check, report, clock)
        self._artifacts = ArtifactSender(connection, self._check, report, clock)
        self._files_at_s = 0.0
        """When to send the next part of a media file or an artifact."""
        self._num_files_failures = 0
        self._files_error = ""

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder, to which the journal was moved."""
        self.folder = folder

    def poll(self, *, flush: bool = False, ignore_pause: bool = False) -> float:
        """Send a batch if one is due; return the seconds after which to call again.

        Args:
            flush: send everything now, instead of waiting for more.
            ignore_pause: try now, although the last attempt failed just before.
        """
        now_s = self._clock()
        if now_s < self._retry_at_s and not ignore_pause:
            return self._retry_at_s - now_s
        if self.state.is_gone:
            return _MAX_PAUSE_S
        try:
            if not self._is_registered:
                self._register()
            due = [key for key, path in _journals(self.folder).items() if self._send_journal(key, path, flush)]
            if not due and (flush or self._clock() - self._last_beat_s >= self._limits.beat_interval_s):
                self._send_files()
                self._send_rank_map(flush)
            files_wait_s = None if due else self._send_media_and_artifacts()
            senders = (self._media, self._artifacts)
            has_all_files = all(each.is_complete(self.state.have.get("0", 0)) for each in senders)
            self.is_complete = not any(self._unsent_bytes.values()) and has_all_files
            if self._clock() - self._last_beat_s >= self._beat_interval_s:
                self._send_beat()
        except RetryError as failure:
            return self._fail(str(failure), failure.wait_s)
        except ConnectionFailedError as failure:
            return self._fail(f"cannot reach {self.state.server}: {failure}", None, kind="cannot reach")
        except (OSError, EOFError, zlib.error) as error:  # the last two if a compressed journal is damaged
            return self._fail(f"cannot read the run: {getattr(error, 'strerror', None) or error}", None)
        self._num_failures = 0
        self._reported_kinds.clear()
        self.state.error = self._files_error
        self._store()
        if due:
            return 0.0
        if flush and files_wait_s is not None and not any(self._unsent_bytes.values()):
            return files_wait_s  # nothing else is left
        return min(_POLL_S, self._limits.flush_interval_s, _POLL_S if files_wait_s is None else files_wait_s)

    def close(self) -> None:
        """Tell the server that nothing is left, close the connection and store how far the run was sent."""
        if self.is_complete:
            with contextlib.suppress(RetryError, ConnectionFailedError):
                self._send_beat()
        self._connection.close()
        self._store()

    # Requests ------------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        start = self._read_start()
        run_id = str(start.get("run_id") or "")
        if not re.fullmatch(RUN_ID, run_id) or "~" in run_id:
            raise RetryError("the journal has no run id yet", _POLL_S)
        self._run_id = run_id if self.state.generation == 1 else f"{run_id}~{self.state.generation}"
        facts: dict[str, Any] = {
            name: start[name] for name in ("time", "schema", "world_size", "session_tag") if name in start
        }
        body = Registration(
            run_name=self.folder.name[:200],
            schema=schema if isinstance(schema := start.get("schema"), int) else 1,
            project=str(start.get("project") or "")[:200],
            remote_control=self._remote_control,
            start=facts,
            job=heartbeat.job[:MAX_JOB_CHARS] if (heartbeat := read_heartbeat(self.folder.heartbeat)) else "",
        )
        response = self._connection.request("PUT", f"{ROUTE}/{self._run_id}", msgspec.json.encode(body))
        self._accept_registration(decode_answer(self._check(response), Registered))
        self._media.restart()
        self._artifacts.restart()

    def _accept_registration(self, reply: Registered) -> None:
        self._limits = _clamp_limits(reply.limits)
        self._max_batch_bytes = min(self._limits.batch_bytes, self._limits.max_batch_bytes)
        keys = _journals(self.folder).keys()
        self.state.run = printable(reply.run, 300)
        self.state.have = {key: max(0, have) for key, have in reply.have.items() if key in keys}
        self._sent_file_bytes = {path: max(0, have) for path, have in reply.files.items()}
        self._sent_map_version, self._rank_map_at_s, self._accepts_rank_map = None, 0.0, True
        self._set_control_version(reply.control_version)
        self._is_registered = True

    def _send_journal(self, key: str, path: Path, flush: bool) -> bool:
        """Send one batch of a journal if it is due; return whether more is due at once."""
        if key in self._rejected_journals:
            return False
        have = self.state.have.get(key, 0)
        size = journal_size(path)
        if size < have:
            self._diverge()
        self._unsent_bytes[key] = size - have
        if size == have:
            self._waiting_since_s.pop(key, None)
            return False
        now_s = self._clock()
        waited_s = now_s - self._waiting_since_s.setdefault(key, now_s)
        is_small = size - have < self._limits.flush_bytes and waited_s < self._limits.flush_interval_s
        if is_small and have and not flush:  # a new run is sent at once, so that it appears on the server
            return False
        before, data = self._read_batch(path, have)
        if not data:  # the last line is not complete
            self._unsent_bytes[key] = 0
            return False
        headers = {
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "gzip",
            "Tacho-Bytes": str(len(data)),
            "Tacho-Sha256": hash_bytes(data),
            "Tacho-Before": hash_bytes(before),
            "Tacho-Now": f"{time.time():.3f}",
            "Tacho-Control": self._control_version,
        }
        response = self._connection.request(
            "PUT", f"{ROUTE}/{self._run_id}/journal/{key}?offset={have}", _compress(data), headers
        )
        if response.status == 409:
            server_bytes = decode_answer(response, BatchAnswer).have
            if not 0 <= server_bytes < have:  # it would be sent again and again
                raise RetryError(response.reason, None)
            self.state.have[key] = server_bytes
            return True
        if response.status == 412:
            self._diverge()
        is_unknown = response.status in {400, 404} and not key.isdecimal() and not have
        if is_unknown and not self._is_node:  # a server of an earlier version
            self._rejected_journals.add(key)
            self._unsent_bytes[key] = 0
            return False
        if response.status == 413 and len(data) > 1024:
            self._max_batch_bytes = len(data) // 2
            return True
        reply = decode_answer(self._check(response), BatchAnswer)
        if reply.have < have + len(data):
            self._connection.close()
            raise RetryError("the answer of the server does not fit the request", None)
        self._saw_mismatch = False
        self._adopt_pace(reply)
        self.state.have[key] = reply.have
        self.num_sent_bytes += len(data)
        self._waiting_since_s.pop(key, None)
        self._forward_requests(reply)
        self._unsent_bytes[key] = max(0, size - reply.have)
        return self._unsent_bytes[key] >= (1 if flush else self._limits.flush_bytes)

    def _send_files(self) -> None:
        """Send the missing parts of the other files of the run; skip files that the server does not accept."""
        for path, size in run_files(self.folder).items():
            while self._sent_file_bytes.get(path, 0) < size:
                have = self._sent_file_bytes.get(path, 0)
                with open_to_read(self.folder.path / path, below=self.folder.path) as file:
                    file.seek(have)
                    data = file.read(self._max_batch_bytes)
                if not data:
                    break
                headers = {
                    "Content-Type": "application/octet-stream",
                    "Content-Encoding": "gzip",
                    "Tacho-Bytes": str(len(data)),
                    "Tacho-Sha256": hash_bytes(data),
                }
                target = f"{ROUTE}/{self._run_id}/files/{path}?offset={have}"
                response = self._connection.request("PUT", target, _compress(data), headers)
                if response.status in {400, 404, 412}:  # also a server that does not know these files yet
                    self._sent_file_bytes[path] = _NEVER
                    break
                if response.status == 409 and 0 <= (server_bytes := decode_answer(response, BatchAnswer).have) < have:
                    self._sent_file_bytes[path] = server_bytes
                    continue
                reply = decode_answer(self._check(response), BatchAnswer)
                if reply.have < have + len(data):
                    raise RetryError("the server did not store a part of a file", None)
                self._sent_file_bytes[path] = reply.have

    def _send_rank_map(self, flush: bool) -> None:
        """Replace the map of all ranks on the server if it has changed; a damaged one is skipped."""
        now_s = self._clock()
        if not self._accepts_rank_map or (now_s < self._rank_map_at_s and not flush):
            return
        try:
            file_info = os.stat(self.folder.rank_map)
        except FileNotFoundError:
            return
        version = (file_info.st_ino, file_info.st_mtime_ns, file_info.st_size)
        if version == self._sent_map_version:
            return
        rank_map = read_rank_map(self.folder)
        if rank_map is not None and rank_map.is_valid:
            data = msgspec.json.encode(rank_map)
            headers = {
                "Content-Type": "application/json",
                "Content-Encoding": "gzip",
                "Tacho-Bytes": str(len(data)),
                "Tacho-Sha256": hash_bytes(data),
            }
            response = self._connection.request("PUT", f"{ROUTE}/{self._run_id}/rank-map", _compress(data), headers)
            if is_unknown_route(response):  # a server of an earlier version
                self._accepts_rank_map = False
            elif response.status not in {400, 413}:
                self._check(response)
        self._sent_map_version, self._rank_map_at_s = version, now_s + _RANK_MAP_INTERVAL_S

    def _send_media_and_artifacts(self) -> float | None:
        """Send a part of a file; return the seconds until the next part, None if there is nothing to send."""
        now_s = self._clock()
        if now_s < self._files_at_s:
            return self._files_at_s - now_s
        num_sent_before = self._media.num_sent_bytes + self._artifacts.num_sent_bytes
        journal_bytes = self.state.have.get("0", 0)
        try:
            wait_s = self._media.send_next(self.folder, self._run_id, journal_bytes, self._limits.bytes_per_s)
            if wait_s is None:
                wait_s = self._artifacts.send_next(self.folder, self._run_id, journal_bytes, self._limits.bytes_per_s)
        except FilesPausedError as failure:
            self._files_error = str(failure)
            wait_s = self._pause_s(self._num_files_failures) if failure.wait_s is None else max(failure.wait_s, 0.05)
            self._num_files_failures += 1
        else:
            self._num_files_failures, self._files_error = 0, ""
        self.num_sent_bytes += self._media.num_sent_bytes + self._artifacts.num_sent_bytes - num_sent_before
        self.state.media_offset = self._media.sent_offset
        self.state.num_missing_media = self._media.num_missing
        self.state.num_rejected_media = self._media.num_rejected
        self.state.artifact_offset = self._artifacts.sent_offset
        self.state.num_missing_artifacts = self._artifacts.num_missing
        self.state.num_rejected_artifacts = self._artifacts.num_rejected
        self._files_at_s = now_s + (wait_s or 0.0)
        return wait_s

    def _send_beat(self) -> None:
        heartbeat = read_heartbeat(self.folder.heartbeat)
        is_running = heartbeat is not None and current_state(self.folder) is RunState.RUNNING
        beat = Beat(
            heartbeat if is_running else None,
            self._running_ranks(),
            lag_bytes=sum(self._unsent_bytes.values()),
            media_pending=self._media.num_pending,
            media_offset=self._media.sent_offset,
        )
        headers = {"Tacho-Now": f"{time.time():.3f}", "Tacho-Control": self._control_version}
        target = f"{ROUTE}/{self._run_id}/beat"
        response = self._connection.request("PUT", target, msgspec.json.encode(beat), headers)
        if response.status == 413 and beat.ranks:  # a server of an earlier version, to which ranks mean nothing
            self._max_beat_ranks = 0
            beat = msgspec.structs.replace(beat, ranks={})
            response = self._connection.request("PUT", target, msgspec.json.encode(beat), headers)
        reply = decode_answer(self._check(response), BatchAnswer)
        self._adopt_pace(reply)
        self._forward_requests(reply)
        if reply.nodes or reply.ranks:
            self._relay.receive(self.folder, reply, self._fetch)
        self._last_beat_s = self._clock()

    def _adopt_pace(self, reply: BatchAnswer) -> None:
        """Send as often as the server can bear now."""
        limits = self._limits
        if (reply.flush_interval_s, reply.beat_interval_s) != (limits.flush_interval_s, limits.beat_interval_s):
            self._limits = _clamp_limits(
                msgspec.structs.replace(
                    limits,
                    flush_interval_s=reply.flush_interval_s or limits.flush_interval_s,
                    beat_interval_s=reply.beat_interval_s or limits.beat_interval_s,
                )
            )

    @property
    def _beat_interval_s(self) -> float:
        interval_s = self._limits.beat_interval_s
        return min(interval_s, _RELAY_INTERVAL_S) if self._relay.is_active else interval_s

    def _fetch(self, key: str, offset: int) -> bytes:
        """Return bytes of the journal of another machine; empty if the server has none."""
        response = self._connection.request("GET", f"{ROUTE}/{self._run_id}/journal/{key}?offset={offset}")
        return response.body if response.status == 200 else b""

    def _running_ranks(self) -> dict[str, Heartbeat]:
        """Return the heartbeats of other ranks that run, of as many ranks as fit into a beat; of more, in turns."""
        all_heartbeats = RankHeartbeats(self.folder, max_relayed_age_s=-1.0)
        ranks = [rank for rank in all_heartbeats.ranks if 0 < rank <= MAX_RANK]
        turn = ranks[self._next_rank : self._next_rank + self._max_beat_ranks]
        self._next_rank = 0 if self._next_rank + len(turn) >= len(ranks) else self._next_rank + len(turn)
        heartbeats: dict[str, Heartbeat] = {}
        num_bytes = 0
        caller = this_process()
        for rank, heartbeat in all_heartbeats.get_all(turn).items():
            if infer_writer_state(heartbeat.process, heartbeat, caller) is not RunState.RUNNING:
                continue
            num_bytes += len(msgspec.json.encode(heartbeat)) + 16
            if num_bytes > MAX_BEAT_BYTES // 2:
                break
            heartbeats[str(rank)] = heartbeat
        return heartbeats

    def _check(self, response: ServerResponse) -> ServerResponse:
        """Return the answer if the request succeeded; else raise `RetryError`."""
        status = response.status
        if status == 200:
            return response
        if status == 410:
            self.state.is_gone = True
            raise RetryError(f"{response.reason}; it is not sent again", _MAX_PAUSE_S)
        if status == 404 and self._is_registered:  # the index of the server was lost
            self._is_registered = False
        if status in {401, 403}:
            raise RetryError(f"{response.reason}; check the key with `tacho whoami`", _MAX_PAUSE_S)
        if status == 507:
            raise RetryError(response.reason, response.wait_s or _MAX_PAUSE_S)
        raise RetryError(response.reason, response.wait_s)

    def _diverge(self) -> NoReturn:
        """Continue as another run if the server has other bytes under this id, also when it is asked again."""
        self._is_registered = False
        if self.state.generation >= _MAX_GENERATION:
            raise RetryError("the server has other records under each id of the run", _MAX_PAUSE_S)
        self._saw_mismatch = not self._saw_mismatch
        if self._saw_mismatch:
            raise RetryError("the copy on the server seems to differ", None)
        self.state.generation += 1
        self.state.have = {}
        self._report("server_diverged", "server", "the server has other records under this id; sending a second copy")
        reason = "the copy on the server differs"
        self._reported_kinds.add(reason)  # by the line above
        raise RetryError(reason, None)

    def _forward_requests(self, reply: BatchAnswer) -> None:
        """Write the requests of people on the server to `control.json`, where the trainer finds them."""
        self._set_control_version(reply.control_version)
        for request in reply.control[:_MAX_REQUESTS] if self._remote_control else ():
            if request.id not in self._forwarded_request_ids and len(self._forwarded_request_ids) < _MAX_FORWARDED:
                self._forwarded_request_ids.add(request.id)
                self._write_request(request)

    def _set_control_version(self, version: str) -> None:
        if re.fullmatch(r"[!-~]{1,100}", version):  # it is sent back in a header
            self._control_version = version

    def _write_request(self, request: Request) -> None:
        with guard("handing over a request"):
            source = f"server:{request.source}"[:100]
            write_requests(self.folder, {request.name: request.value}, source=source, ids={request.name: request.id})

    def _fail(self, reason: str, wait_s: float | None, kind: str = "") -> float:
        kind = kind or reason.partition(":")[0]  # such as the status of an answer
        self._num_failures += 1
        self.is_complete = False
        pause_s = self._pause_s(self._num_failures - 1)
        pause_s = (pause_s if wait_s is None else max(wait_s, 0.05)) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        self._retry_at_s = self._clock() + pause_s
        self.state.error = reason
        self._store()
        # One failure alone is usual: a server restarts, a connection breaks.
        if kind not in self._reported_kinds and (self._num_failures > 1 or wait_s == _MAX_PAUSE_S):
            self._reported_kinds.add(kind)
            self._report("server_failed", "server", f"{reason}; will be retried")
        return pause_s

    @staticmethod
    def _pause_s(num_failures: int) -> float:
        """Return how long to wait after so many failures in a row before the last one."""
        return min(_MIN_PAUSE_S * float(2 ** min(num_failures, 10)), _MAX_PAUSE_S)

    # Files ---------------------------------------------------------------------------------------------------------

    def _read_start(self) -> dict[str, Any]:
        try:
            with open_journal(self.folder.journal) as file:
                return decode(file.readline(_HEAD_BYTES))
        except (OSError, ValueError, msgspec.MsgspecError):
            return {}

    def _read_batch(self, path: Path, offset: int) -> tuple[bytes, bytes]:
        """Return the bytes before an offset, and whole lines from there."""
        with open_journal(path) as file:
            start = max(0, offset - BEFORE_BYTES)
            file.seek(start)
            before = file.read(offset - start)
            data = file.read(self._max_batch_bytes)
            end = data.rfind(b"\n") + 1
            if not end and len(data) == self._max_batch_bytes:  # one line that is longer
                data += file.readline(self._limits.max_batch_bytes - len(data))
                end = data.rfind(b"\n") + 1
                if not end and len(data) >= self._limits.max_batch_bytes:
                    reason = f"{path.name} has a line of more than {len(data)} bytes, which the server does not accept"
                    raise RetryError(reason, _MAX_PAUSE_S)
            return before, data[:end]

    def _store(self) -> None:
        """Store the state if it changed."""
        data = msgspec.json.encode(self.state)
        if data == self._stored_json:
            return
        with contextlib.suppress(OSError):  # only for people; the server knows how far the run was sent
            make_folder(self.folder.private, below=self.folder.path)
            replace_file(self.folder.private / "server.json", data, below=self.folder.path)
            self._stored_json = data


class RetryError(Exception):
    """A request failed; try again after a pause."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def _journals(folder: RunFolder) -> dict[str, Path]:
    """Return the journals of a run: of rank 0, of other ranks, and of hosts; not the ones that other machines send."""
    journals = {"0": folder.journal} if folder.exists() else {}
    max_number = MAX_RANK if journals or read_node_facts(folder) is None else LAST_NODE_NUMBER
    others = (journal for journal in list_rank_journals(folder) if journal.number <= max_number)
    return journals | {journal.key: journal.path for journal in others if journal.number or journal.is_host}


def _complete_bytes(path: Path) -> int:
    """Return the size of a journal up to the last newline; 0 if it cannot be read."""
    try:
        with open_journal(path) as file:
            return complete_size(file)
    except OSError:
        return 0


def _clamp_limits(limits: SendLimits) -> SendLimits:
    """Return limits of a server within bounds: it cannot make the sender read much at once, or poll without a pause."""
    return SendLimits(
        batch_bytes=min(max(limits.batch_bytes, 1_024), MAX_BATCH_BYTES),
        max_batch_bytes=min(max(limits.max_batch_bytes, 1_024), MAX_BATCH_BYTES),
        flush_bytes=min(max(limits.flush_bytes, 1), MAX_BATCH_BYTES),
        flush_interval_s=min(max(limits.flush_interval_s, 0.1), _MAX_PAUSE_S),
        beat_interval_s=min(max(limits.beat_interval_s, 0.5), _MAX_PAUSE_S),
        bytes_per_s=limits.bytes_per_s,
        max_bytes=limits.max_bytes,
        max_open_runs=limits.max_open_runs,
    )


def _compress(data: bytes) -> bytes:
    # Level 1: a third of the size for a fifth of the time of level 6.
    compressor = zlib.compressobj(1, wbits=31)
    return compressor.compress(data) + compressor.flush()


def decode_answer(response: ServerResponse, kind: type[Any]) -> Any:
    try:
        return decode_json(response.body, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise RetryError(f"HTTP {response.status}: the answer is not from a Tachograph server", None) from None
