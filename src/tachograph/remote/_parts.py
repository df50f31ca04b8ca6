"""`PartSender`: sends the files that a run names to a server, by their hash and in parts: media and artifacts.

It reads only the part of the journal that the server has, so no file is sent before the record that names it. There is
no cursor. A sender that starts names all files again, and the server says which ones it lacks.

`send_next` makes one request, so that new bytes of the journal wait for one part at most, which takes about a second:
on a slow connection parts become smaller. A failure that concerns files alone, such as a full disk, pauses files alone.
A file that the server rejects, or that no longer exists, is counted and skipped.
"""

from __future__ import annotations

import abc
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, ClassVar, Generic, TypeVar

import msgspec

from tachograph._base.typed import decode_json
from tachograph.journal import JournalFollower, RunFolder
from tachograph.reader import file_size
from tachograph.remote._connection import Connection, ServerResponse
from tachograph.remote._wire import MAX_BATCH_BYTES, BatchAnswer, hash_bytes

__all__ = ["FileToSend", "FilesPausedError", "PartSender", "decode_answer", "is_unknown_route"]

_FIRST_PART_BYTES = 1 << 20
_MIN_PART_BYTES = 64 << 10
_SLOW_PART_S = 1.0
_MAX_SCAN_S = 0.2
_MAX_REPEATS = 3
"""How often the server may want a part of a file again."""

Item = TypeVar("Item")


class FilesPausedError(Exception):
    """The server does not accept files now; other requests may succeed."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class FileToSend:
    """A file that the server lacks.

    Attributes:
        sha256: its hash.
        open: returns the file, or None if it is gone.
        extension: the extension of a media file, with which the server adds it to the run.
        have: how many bytes the server has.
    """

    def __init__(self, sha256: str, open: Callable[[], BinaryIO | None], have: int, extension: str = "") -> None:  # noqa: A002
        self.sha256 = sha256
        self.open = open
        self.have = have
        self.extension = extension
        self.num_repeats = 0

    def __str__(self) -> str:
        return f"{self.sha256[:12]}….{self.extension}" if self.extension else f"{self.sha256[:12]}…"


class PartSender(abc.ABC, Generic[Item]):
    """Sends the files of one run over a connection that its journals also use.

    Args:
        connection: the server.
        check: returns an answer, or raises if the whole run cannot be sent now.
        report: called with the kind, the name and the reason of a failure, at most once for each kind.
        clock: returns the time in seconds.
    """

    _kind: ClassVar[str]
    """The kind of files in messages: `media` or `artifact`."""

    def __init__(
        self,
        connection: Connection,
        check: Callable[[ServerResponse], ServerResponse],
        report: Callable[[str, str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._check = check
        self._report = report
        self._clock = clock
        self._is_reported = False
        self._part_bytes = _FIRST_PART_BYTES
        self._unnamed: deque[Item] = deque()
        """The items that the journal names and that the server was not asked about yet."""
        self._unsent: deque[FileToSend] = deque()
        """The files that it lacks."""
        self.num_sent_bytes = 0
        """Bytes that the server accepted."""
        self.num_missing = 0
        """Files that the journal names and that are neither on this machine nor on the server."""
        self.num_rejected = 0
        """Files that the server rejected for good."""
        self.restart()

    def restart(self) -> None:
        """Start again from the beginning of the journal."""
        self.sent_offset = 0
        """The server has all files that the journal names up to here, apart from missing and rejected ones."""
        self._scan_offset = 0
        self._unnamed.clear()
        self._unsent.clear()
        self.num_missing = self.num_rejected = 0
        self._is_accepted = True

    def is_complete(self, journal_bytes: int) -> bool:
        """Return whether the server has all files that so many bytes of the journal name, as far as it accepts them."""
        return not self._is_accepted or self.sent_offset >= journal_bytes

    def send_next(self, folder: RunFolder, run_id: str, journal_bytes: int, bytes_per_s: float | None) -> float | None:
        """Read the journal for a moment, or make one request; return the seconds until the next one, None if done.

        Args:
            folder: the run.
            run_id: its id on the server.
            journal_bytes: how many bytes of the journal the server has.
            bytes_per_s: the limit of the key.

        Raises:
            FilesPausedError: if the server does not accept files now.
            ConnectionFailedError: if there was no answer.
        """
        if not self._is_accepted:
            return None
        wait_s = 0.0
        if self._unsent:
            num_bytes = self._send_part(run_id)
            wait_s = 2 * num_bytes / bytes_per_s if bytes_per_s is not None and bytes_per_s > 0 else 0.0
        else:
            deadline_s = self._clock() + _MAX_SCAN_S
            while not self._unnamed and self._scan_offset < journal_bytes and self._clock() < deadline_s:
                self._scan(folder, journal_bytes)
            if self._unnamed:
                self._name_next(folder, run_id)
        if self._unsent or self._unnamed:
            return wait_s
        self.sent_offset = self._scan_offset
        return wait_s if self._scan_offset < journal_bytes else None

    @abc.abstractmethod
    def _items_in(self, folder: RunFolder, lines: bytes) -> Iterable[Item]:
        """Return the items that some lines of the journal name."""

    @abc.abstractmethod
    def _name_next(self, folder: RunFolder, run_id: str) -> None:
        """Name the next items to the server, and add the files that it lacks to the unsent ones."""

    def _scan(self, folder: RunFolder, journal_bytes: int) -> None:
        follower = JournalFollower(folder.journal, self._scan_offset, end=journal_bytes)
        lines = follower.poll_lines()
        self._unnamed.extend(self._items_in(folder, lines))
        # A journal that became shorter is noticed by the sender of the journal.
        self._scan_offset = follower.offset if lines else journal_bytes

    def _request(self, target: str, body: bytes) -> ServerResponse | None:
        """Name items to the server; None if it is too old to know the route."""
        response = self._connection.request("PUT", target, body)
        if is_unknown_route(response):
            self._is_accepted = False
            self._report_once(f"the server is too old to receive {self._kind} files")
            return None
        return response

    def _send_part(self, run_id: str) -> int:
        """Send the next part of the first file; return its size."""
        entry = self._unsent[0]
        file = entry.open()
        if file is None:  # thinned or deleted in the meantime
            self.num_missing += 1
            self._unsent.popleft()
            return 0
        with file:
            size_bytes, data = self._read_part(file, entry)
        extension = f"&ext={entry.extension}" if entry.extension else ""
        target = f"/api/v1/ingest/blobs/{entry.sha256}?run={run_id}{extension}&offset={entry.have}&size={size_bytes}"
        headers = {"Content-Type": "application/octet-stream", "Tacho-Sha256": hash_bytes(data)}
        started_s = self._clock()
        response = self._connection.request("PUT", target, data, headers)
        self._adapt_part_size(self._clock() - started_s)
        if response.status == 409:
            self._repeat_from(entry, decode_answer(response, BatchAnswer).have, response)
        elif response.status == 413 and self._part_bytes > _MIN_PART_BYTES:
            self._part_bytes = max(_MIN_PART_BYTES, len(data) // 2)
        elif response.status in {400, 412, 413}:
            self._reject(response.reason)
        else:
            have = decode_answer(self._accept(response), BatchAnswer).have
            if have < entry.have + len(data):
                self._repeat_from(entry, have, response)
                return len(data)
            entry.have = have
            self.num_sent_bytes += len(data)
            if have >= size_bytes:
                self._unsent.popleft()
        return len(data)

    def _read_part(self, file: BinaryIO, entry: FileToSend) -> tuple[int, bytes]:
        size_bytes = file_size(file)
        if entry.have >= size_bytes:
            entry.have = 0  # a part of another size: let the server compare
        file.seek(entry.have)
        return size_bytes, file.read(self._part_bytes)

    def _adapt_part_size(self, duration_s: float) -> None:
        if duration_s > _SLOW_PART_S:
            self._part_bytes = max(_MIN_PART_BYTES, self._part_bytes // 2)
        elif duration_s < _SLOW_PART_S / 4:
            self._part_bytes = min(MAX_BATCH_BYTES // 4, self._part_bytes * 2)

    def _repeat_from(self, entry: FileToSend, have: int, response: ServerResponse) -> None:
        """Continue where the server is, unless that happens again and again."""
        entry.num_repeats += 1
        if entry.num_repeats > _MAX_REPEATS:
            self._reject(f"HTTP {response.status}: the server wants the same part again and again")
            return
        entry.have = max(0, min(have, entry.have))

    def _reject(self, reason: str) -> None:
        """Skip the first file."""
        self.num_rejected += 1
        self._report_once(f"the server rejected {self._unsent.popleft()}: {reason}")

    def _accept(self, response: ServerResponse) -> ServerResponse:
        """Return the answer if the request succeeded."""
        if response.status in {429, 503, 507}:
            raise FilesPausedError(f"{self._kind}: {response.reason}", response.wait_s)
        return self._check(response)

    def _report_once(self, reason: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._report(f"{self._kind}_not_sent", "server", reason)


def is_unknown_route(response: ServerResponse) -> bool:
    """Return whether a server is too old to know the address of a request."""
    if response.status != 404:
        return False
    try:
        error = decode_json(response.body, dict[str, Any]).get("error")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return isinstance(error, dict) and error.get("code") == "not_found"


def decode_answer(response: ServerResponse, kind: type[Any]) -> Any:
    """Return the body of an answer.

    Raises:
        FilesPausedError: if it is not one of a Tachograph server.
    """
    try:
        return decode_json(response.body, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        reason = f"HTTP {response.status}: the answer is not from a Tachograph server"
        raise FilesPausedError(reason, None) from None
