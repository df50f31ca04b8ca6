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

Answers are not trusted: sizes and pauses that a server names are limited, and an answer that makes no progress is a
failure, after which the sender waits.
"""

from __future__ import annotations

import contextlib
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
    Heartbeat,
    Request,
    RunFolder,
    RunState,
    complete_size,
    current_state,
    infer_writer_state,
    journal_size,
    open_journal,
    read_heartbeat,
    this_process,
    write_requests,
)
from tachograph.records import decode
from tachograph.remote._connection import Connection, ConnectionFailedError, ServerResponse, printable
from tachograph.remote._wire import (
    BEFORE_BYTES,
    MAX_BATCH_BYTES,
    MAX_BEAT_BYTES,
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

__all__ = ["RunSender", "SendState", "lag_bytes", "read_send_state"]

_ROUTE = "/api/v1/ingest/runs"
_MIN_PAUSE_S = 0.5
_MAX_PAUSE_S = 60.0
_MAX_GENERATION = 1_000
_POLL_S = 0.5
_MAX_STATE_BYTES = 1 << 20
_HEAD_BYTES = 4 << 20
_NEVER = 1 << 62
_MAX_REQUESTS = 100
"""In one answer of the server."""
_MAX_FORWARDED = 100_000
_MAX_BEAT_RANKS = 1_000
"""A beat every five seconds then states each of 4,000 ranks often enough to be seen as running."""


class SendState(msgspec.Struct):
    """The content of `.tacho/server.json`: how far a run was sent to a server."""

    server: str
    generation: int = 1
    run: str = ""
    """The name of the run on the server."""
    have: dict[str, int] = {}
    """The number of bytes of each rank's journal that the server has."""
    error: str = ""
    """Why the last attempt failed."""
    is_gone: bool = False
    """Whether the run was deleted on the server."""


def read_send_state(folder: RunFolder) -> SendState | None:
    """Return how far a run was sent, or None if it was never sent."""
    try:
        return decode_json(read_small(folder.private / "server.json", _MAX_STATE_BYTES), SendState)
    except (OSError, msgspec.MsgspecError):
        return None


def lag_bytes(folder: RunFolder, have: Mapping[str, int]) -> int:
    """Return how many bytes of a run's journals are missing on a server that has so many of each rank."""
    return sum(max(0, _complete_bytes(path) - have.get(str(rank), 0)) for rank, path in _journals(folder).items())


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
        """Whether the server had every complete line at the last `poll`."""
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
        self._retry_at_s = 0.0
        self._num_failures = 0
        self._reported_kinds: set[str] = set()
        self._saw_mismatch = False
        """Whether the server reported different bytes, and was not asked again yet."""
        self._waiting_since_s: dict[int, float] = {}
        self._sent_file_bytes: dict[str, int] = {}
        """The number of bytes that the server has of each other file."""
        self._unsent_bytes: dict[int, int] = {}
        """The bytes that are left to send of each rank's journal; 0 if only a part of a line is left."""
        self._last_beat_s = -1e9
        self._max_beat_ranks = _MAX_BEAT_RANKS
        self._next_rank = 0
        """The index of the rank whose heartbeat is the first of the next beat."""
        self._control_version = ""
        self._forwarded_request_ids: set[str] = set()
        self._max_batch_bytes = 1 << 20

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
            due = [rank for rank, path in _journals(self.folder).items() if self._send_journal(rank, path, flush)]
            if not due and (flush or self._clock() - self._last_beat_s >= self._limits.beat_interval_s):
                self._send_files()
            self.is_complete = not any(self._unsent_bytes.values())
            if self._clock() - self._last_beat_s >= self._limits.beat_interval_s:
                self._send_beat()
        except _RetryError as failure:
            return self._fail(str(failure), failure.wait_s)
        except ConnectionFailedError as failure:
            return self._fail(f"cannot reach {self.state.server}: {failure}", None, kind="cannot reach")
        except (OSError, EOFError, zlib.error) as error:  # the last two if a compressed journal is damaged
            return self._fail(f"cannot read the run: {getattr(error, 'strerror', None) or error}", None)
        self._num_failures = 0
        self._reported_kinds.clear()
        self.state.error = ""
        self._store()
        return 0.0 if due else min(_POLL_S, self._limits.flush_interval_s)

    def close(self) -> None:
        """Tell the server that nothing is left, close the connection and store how far the run was sent."""
        if self.is_complete:
            with contextlib.suppress(_RetryError, ConnectionFailedError):
                self._send_beat()
        self._connection.close()
        self._store()

    # Requests ------------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        start = self._read_start()
        run_id = str(start.get("run_id") or "")
        if not re.fullmatch(RUN_ID, run_id) or "~" in run_id:
            raise _RetryError("the journal has no run id yet", _POLL_S)
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
        )
        response = self._connection.request("PUT", f"{_ROUTE}/{self._run_id}", msgspec.json.encode(body))
        reply = _decode(self._check(response), Registered)
        self._limits = _clamp_limits(reply.limits)
        self._max_batch_bytes = min(self._limits.batch_bytes, self._limits.max_batch_bytes)
        ranks = {str(rank) for rank in _journals(self.folder)}
        self.state.run = printable(reply.run, 300)
        self.state.have = {rank: max(0, have) for rank, have in reply.have.items() if rank in ranks}
        self._sent_file_bytes = {path: max(0, have) for path, have in reply.files.items()}
        self._set_control_version(reply.control_version)
        self._is_registered = True

    def _send_journal(self, rank: int, path: Path, flush: bool) -> bool:
        """Send one batch of a journal if it is due; return whether more is due at once."""
        have = self.state.have.get(str(rank), 0)
        size = journal_size(path)
        if size < have:
            self._diverge()
        self._unsent_bytes[rank] = size - have
        if size == have:
            self._waiting_since_s.pop(rank, None)
            return False
        now_s = self._clock()
        waited_s = now_s - self._waiting_since_s.setdefault(rank, now_s)
        is_small = size - have < self._limits.flush_bytes and waited_s < self._limits.flush_interval_s
        if is_small and have and not flush:  # a new run is sent at once, so that it appears on the server
            return False
        before, data = self._read_batch(path, have)
        if not data:  # the last line is not complete
            self._unsent_bytes[rank] = 0
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
            "PUT", f"{_ROUTE}/{self._run_id}/journal/{rank}?offset={have}", _compress(data), headers
        )
        if response.status == 409:
            server_bytes = _decode(response, BatchAnswer).have
            if not 0 <= server_bytes < have:  # it would be sent again and again
                raise _RetryError(response.reason, None)
            self.state.have[str(rank)] = server_bytes
            return True
        if response.status == 412:
            self._diverge()
        if response.status == 413 and len(data) > 1024:
            self._max_batch_bytes = len(data) // 2
            return True
        reply = _decode(self._check(response), BatchAnswer)
        if reply.have < have + len(data):
            self._connection.close()
            raise _RetryError("the answer of the server does not fit the request", None)
        self._saw_mismatch = False
        self.state.have[str(rank)] = reply.have
        self.num_sent_bytes += len(data)
        self._waiting_since_s.pop(rank, None)
        self._forward_requests(reply)
        self._unsent_bytes[rank] = max(0, size - reply.have)
        return self._unsent_bytes[rank] >= (1 if flush else self._limits.flush_bytes)

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
                target = f"{_ROUTE}/{self._run_id}/files/{path}?offset={have}"
                response = self._connection.request("PUT", target, _compress(data), headers)
                if response.status in {400, 404, 412}:  # also a server that does not know these files yet
                    self._sent_file_bytes[path] = _NEVER
                    break
                if response.status == 409 and 0 <= (server_bytes := _decode(response, BatchAnswer).have) < have:
                    self._sent_file_bytes[path] = server_bytes
                    continue
                reply = _decode(self._check(response), BatchAnswer)
                if reply.have < have + len(data):
                    raise _RetryError("the server did not store a part of a file", None)
                self._sent_file_bytes[path] = reply.have

    def _send_beat(self) -> None:
        heartbeat = read_heartbeat(self.folder.heartbeat)
        is_running = heartbeat is not None and current_state(self.folder) is RunState.RUNNING
        beat = Beat(
            heartbeat if is_running else None,
            self._running_ranks(),
            lag_bytes=sum(self._unsent_bytes.values()),
        )
        headers = {"Tacho-Now": f"{time.time():.3f}", "Tacho-Control": self._control_version}
        target = f"{_ROUTE}/{self._run_id}/beat"
        response = self._connection.request("PUT", target, msgspec.json.encode(beat), headers)
        if response.status == 413 and beat.ranks:  # a server of an earlier version, to which ranks mean nothing
            self._max_beat_ranks = 0
            beat = msgspec.structs.replace(beat, ranks={})
            response = self._connection.request("PUT", target, msgspec.json.encode(beat), headers)
        self._forward_requests(_decode(self._check(response), BatchAnswer))
        self._last_beat_s = self._clock()

    def _running_ranks(self) -> dict[str, Heartbeat]:
        """Return the heartbeats of other ranks that run, of as many ranks as fit into a beat; of more, in turns."""
        ranks = [rank for rank in self.folder.other_ranks() if 0 < rank <= MAX_RANK]
        turn = ranks[self._next_rank : self._next_rank + self._max_beat_ranks]
        self._next_rank = 0 if self._next_rank + len(turn) >= len(ranks) else self._next_rank + len(turn)
        heartbeats: dict[str, Heartbeat] = {}
        num_bytes = 0
        caller = this_process()
        for rank in turn:
            heartbeat = read_heartbeat(self.folder.rank_heartbeat(rank))
            if heartbeat is None or infer_writer_state(heartbeat.process, heartbeat, caller) is not RunState.RUNNING:
                continue
            num_bytes += len(msgspec.json.encode(heartbeat)) + 16
            if num_bytes > MAX_BEAT_BYTES // 2:
                break
            heartbeats[str(rank)] = heartbeat
        return heartbeats

    def _check(self, response: ServerResponse) -> ServerResponse:
        """Return the answer if the request succeeded; else raise `_RetryError`."""
        status = response.status
        if status == 200:
            return response
        if status == 410:
            self.state.is_gone = True
            raise _RetryError(f"{response.reason}; it is not sent again", _MAX_PAUSE_S)
        if status == 404 and self._is_registered:  # the index of the server was lost
            self._is_registered = False
        if status in {401, 403}:
            raise _RetryError(f"{response.reason}; check the key with `tacho whoami`", _MAX_PAUSE_S)
        if status == 507:
            raise _RetryError(response.reason, response.wait_s or _MAX_PAUSE_S)
        raise _RetryError(response.reason, response.wait_s)

    def _diverge(self) -> NoReturn:
        """Continue as another run if the server has other bytes under this id, also when it is asked again."""
        self._is_registered = False
        if self.state.generation >= _MAX_GENERATION:
            raise _RetryError("the server has other records under each id of the run", _MAX_PAUSE_S)
        self._saw_mismatch = not self._saw_mismatch
        if self._saw_mismatch:
            raise _RetryError("the copy on the server seems to differ", None)
        self.state.generation += 1
        self.state.have = {}
        self._report("server_diverged", "server", "the server has other records under this id; sending a second copy")
        reason = "the copy on the server differs"
        self._reported_kinds.add(reason)  # by the line above
        raise _RetryError(reason, None)

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
        pause_s = min(_MIN_PAUSE_S * 2 ** min(self._num_failures - 1, 10), _MAX_PAUSE_S)
        pause_s = (pause_s if wait_s is None else max(wait_s, 0.05)) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        self._retry_at_s = self._clock() + pause_s
        self.state.error = reason
        self._store()
        # One failure alone is usual: a server restarts, a connection breaks.
        if kind not in self._reported_kinds and (self._num_failures > 1 or wait_s == _MAX_PAUSE_S):
            self._reported_kinds.add(kind)
            self._report("server_failed", "server", f"{reason}; will be retried")
        return pause_s

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
                    raise _RetryError(reason, _MAX_PAUSE_S)
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


class _RetryError(Exception):
    """A request failed; try again after a pause."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def _journals(folder: RunFolder) -> dict[int, Path]:
    """Return the journals of a run by rank."""
    journals = {0: folder.journal} if folder.exists() else {}
    others = (rank for rank in folder.other_ranks() if 0 < rank <= MAX_RANK)
    return journals | {rank: folder.rank_journal(rank) for rank in others}


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


def _decode(response: ServerResponse, kind: type[Any]) -> Any:
    try:
        return decode_json(response.body, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _RetryError(f"HTTP {response.status}: the answer is not from a Tachograph server", None) from None
