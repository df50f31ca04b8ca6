"""The HTTP interface of ClickHouse, with the standard library: every server since 2018 has it.

Answers are requested by column: `columns` wraps a query so that it returns one row of arrays, which numpy reads without
a loop over rows. Strings are returned as one text and their lengths. `wait_end_of_query` makes the server complete
its answer before it sends the status, so that an error in the middle is not mistaken for a short answer.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import itertools
import re
import ssl
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import numpy as np

from tachograph.exceptions import ColumnStoreError
from tachograph.server.columns._address import PASSWORD_VARIABLE, StoreAddress

__all__ = ["ClickHouseClient", "Columns", "quote"]

Columns = dict[str, Any]
"""Columns by name: numpy arrays, and lists of texts or bytes."""
_DTYPES = {
    "Float64": "<f8",
    "Int64": "<i8",
    "UInt64": "<u8",
    "UInt32": "<u4",
    "UInt16": "<u2",
    "UInt8": "<u1",
}
_TEXTS = {"String", "Bytes"}
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\0": "\\0", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_ERROR_CODE = re.compile(r"Code: (\d+)")
_RETRYABLE_CODES = {159, 160, 164, 202, 203, 209, 210, 241, 242, 252, 253, 279, 285, 286, 319, 999}
"""Timeouts, overload, lack of memory, too many parts, an unreachable shard, and lost connections to ZooKeeper."""
_WRONG_PASSWORD_CODES = {192, 193, 194, 516}


def quote(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + "".join(_ESCAPES.get(character, character) for character in text) + "'"


class ClickHouseClient:
    """Sends statements to a server. Thread-safe: each thread has a connection, which stays open."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[http.client.HTTPConnection] = []
        self._version: tuple[int, int] | None = None

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of the server."""
        if self._version is None:
            major, minor = self.execute("SELECT version()").decode().split(".")[:2]
            self._version = (int(major), int(minor))
        return self._version

    def execute(self, sql: str, **settings: int) -> bytes:
        """Run a statement and return its answer, by default as tab-separated text.

        Raises:
            ColumnStoreError: if the server cannot be reached or rejects the statement.
        """
        return self._post({"wait_end_of_query": 1, **settings}, sql.encode())

    def insert(self, table: str, rows: bytes) -> None:
        """Insert rows in the format RowBinary; returns when the server has them.

        Raises:
            ColumnStoreError: as for `execute`. Some of the rows may have been inserted.
        """
        settings = {"insert_distributed_sync": 1} if self.address.cluster else {}
        self._post({"query": f"INSERT INTO {table} FORMAT RowBinary", **settings}, rows)

    def columns(self, sql: str, kinds: Mapping[str, str]) -> Columns:
        """Return the columns of a query.

        Args:
            sql: the query.
            kinds: the types of its columns, by their names.

        Raises:
            ColumnStoreError: as for `execute`.
        """
        wrapped = []
        for name, kind in kinds.items():
            if kind in _TEXTS:
                lengths = f"groupArray(toUInt32(length(toString({name}))))"
                wrapped += [lengths, f"arrayStringConcat(groupArray(toString({name})), '')"]
            else:
                wrapped.append(f"groupArray({name})")
        answer = self.execute(f"SELECT {', '.join(wrapped)} FROM ({sql}) FORMAT RowBinary")
        try:
            return _read_columns(answer, kinds)
        except (ValueError, IndexError):
            raise ColumnStoreError(f"the answer of {self.address.text} is incomplete", may_retry=True) from None

    def close(self) -> None:
        """Close the connections of all threads; a later statement opens a new one."""
        with self._lock:
            for connection in self._open:
                connection.close()

    def _disconnect(self) -> None:
        """Close the connection of this thread."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()

    def _post(self, parameters: dict[str, Any], body: bytes) -> bytes:
        headers = self._headers()
        if self.address.is_compressed:
            body = gzip.compress(body, 1)
            headers |= {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
            parameters = {**parameters, "enable_http_compression": 1}
        path = f"/?{urlencode(parameters)}"
        is_kept = getattr(getattr(self._local, "connection", None), "sock", None) is not None
        try:
            try:
                status, answer = self._request(path, body, headers)
            except (http.client.HTTPException, ConnectionError):
                if not is_kept:
                    raise
                # The server closed an idle connection. Statements can be repeated: see `_schema`.
                status, answer = self._request(path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise ColumnStoreError(f"cannot reach {self.address.text}: {reason}", may_retry=True) from error
        if status == 200:
            return answer
        raise self._rejection(status, answer.decode("utf-8", "replace"))

    def _request(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        try:
            connection = self._connection()
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except BaseException:
            self._disconnect()
            raise
        if response.headers.get("Content-Encoding") == "gzip":
            answer = gzip.decompress(answer)
        return response.status, answer

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            host, port, timeout_s = self.address.host, self.address.port, self.address.timeout_s
            if self.address.is_secure:
                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
            else:
                connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
            self._local.connection = connection
            with self._lock:
                self._open.append(connection)
        return connection

    def _headers(self) -> dict[str, str]:
        user, password = self.address.user, self.address.password
        if not user and not password:
            return {}
        token = base64.b64encode(f"{user or 'default'}:{password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}

    def _rejection(self, status: int, text: str) -> ColumnStoreError:
        found = _ERROR_CODE.search(text)
        code = int(found[1]) if found else 0
        if code in _WRONG_PASSWORD_CODES:
            user = self.address.user or "default"
            reason = f"wrong user or password for {user!r}; set {PASSWORD_VARIABLE}"
        else:
            reason = " ".join(text.split())[:500] or f"HTTP {status}"
        may_retry = code in _RETRYABLE_CODES or (not found and status >= 500)
        return ColumnStoreError(f"{self.address.text}: {reason}", may_retry=may_retry, code=code)


def _read_columns(answer: bytes, kinds: Mapping[str, str]) -> Columns:
    found: Columns = {}
    place = 0
    for name, kind in kinds.items():
        if kind in _TEXTS:
            lengths, place = _read_array(answer, place, "<u4")
            size, place = _read_size(answer, place)
            ends = list(itertools.accumulate(lengths.tolist(), initial=place))
            if ends[-1] != place + size:
                raise ValueError("lengths do not match the text")
            pieces = [answer[begin:end] for begin, end in itertools.pairwise(ends)]
            found[name] = pieces if kind == "Bytes" else [piece.decode("utf-8", "replace") for piece in pieces]
            place += size
        else:
            found[name], place = _read_array(answer, place, _DTYPES[kind])
    return found


def _read_array(answer: bytes, place: int, dtype: str) -> tuple[Any, int]:
    count, place = _read_size(answer, place)
    array = np.frombuffer(answer, dtype, count, place) if count else np.empty(0, dtype)
    return array, place + array.nbytes


def _read_size(answer: bytes, place: int) -> tuple[int, int]:
    """Read a number of variable length: seven bits per byte, the lowest first."""
    size, shift = 0, 0
    while True:
        byte = answer[place]
        size |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return size, place
