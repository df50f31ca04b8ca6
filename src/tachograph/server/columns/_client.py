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
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import numpy as np

from tachograph._base.http import HttpConnection
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
_CHECK_EVERY_S = 5.0
"""How long an answer is a sign that the server answers the next statement, too."""
_CHECK_TIMEOUT_S = 3.0
_CHECK_AGAIN_S = 15.0
"""How long a server that did not answer is left alone."""


def quote(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + "".join(_ESCAPES.get(character, character) for character in text) + "'"


class ClickHouseClient:
    """Sends statements to a server. Thread-safe: each thread has a connection, which stays open."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: list[HttpConnection] = []
        self._version: tuple[int, int] | None = None
        self._check_lock = threading.Lock()
        self._next_check_s = 0.0
        self._is_answering = False

    @property
    def is_answering(self) -> bool:
        """Whether the server answers at once. One that hangs would delay each statement by the whole time limit.

        It is asked if it has not answered anything for a few seconds.
        """
        if time.monotonic() < self._next_check_s:
            return self._is_answering
        with self._check_lock:
            if time.monotonic() >= self._next_check_s and not self._check():
                self._is_answering, self._next_check_s = False, time.monotonic() + _CHECK_AGAIN_S
            return self._is_answering

    def _check(self) -> bool:
        connection = self._new_connection(_CHECK_TIMEOUT_S)
        try:
            self._send(connection, {}, b"SELECT 1")
        except ColumnStoreError:
            return False
        finally:
            connection.close()
        return True

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of the server."""
        if self._version is None:
            major, minor = self.execute("SELECT version()").decode().split(".")[:2]
            self._version = (int(major), int(minor))
        return self._version

    def execute(self, sql: str, **settings: int) -> bytes:
        """Run a statement and return the response, by default as tab-separated text.

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
        expressions = []
        for name, kind in kinds.items():
            if kind in _TEXTS:
                lengths = f"groupArray(toUInt32(length(toString({name}))))"
                expressions += [lengths, f"arrayStringConcat(groupArray(toString({name})), '')"]
            else:
                expressions.append(f"groupArray({name})")
        response_body = self.execute(f"SELECT {', '.join(expressions)} FROM ({sql}) FORMAT RowBinary")
        try:
            return _read_columns(response_body, kinds)
        except (ValueError, IndexError):
            raise ColumnStoreError(f"the answer of {self.address.text} is incomplete", may_retry=True) from None

    def close(self) -> None:
        """Close the connections of all threads; a later statement opens a new one."""
        with self._lock:
            for connection in self._connections:
                connection.close()

    def _post(self, parameters: dict[str, Any], body: bytes) -> bytes:
        return self._send(self._connection(), parameters, body)

    def _send(self, connection: HttpConnection, parameters: dict[str, Any], body: bytes) -> bytes:
        headers = self._headers()
        if self.address.is_compressed:
            body = gzip.compress(body, 1)
            headers |= {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
            parameters = {**parameters, "enable_http_compression": 1}
        path = f"/?{urlencode(parameters)}"
        try:
            # Statements can be repeated: see `_schema`.
            response = connection.request("POST", path, body, headers)
            response_body = gzip.decompress(response.body) if response.encoding == "gzip" else response.body
        except (OSError, http.client.HTTPException) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise ColumnStoreError(f"cannot reach {self.address.text}: {reason}", may_retry=True) from error
        if response.status == 200:
            self._is_answering, self._next_check_s = True, time.monotonic() + _CHECK_EVERY_S
            return response_body
        raise self._rejection(response.status, response_body.decode("utf-8", "replace"))

    def _connection(self) -> HttpConnection:
        connection: HttpConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._new_connection(self.address.timeout_s)
            self._local.connection = connection
            with self._lock:
                self._connections.append(connection)
        return connection

    def _new_connection(self, timeout_s: float) -> HttpConnection:
        address = self.address
        return HttpConnection(address.host, address.port, is_secure=address.is_secure, timeout_s=timeout_s)

    def _headers(self) -> dict[str, str]:
        user, password = self.address.user, self.address.password
        if not user and not password:
            return {}
        token = base64.b64encode(f"{user or 'default'}:{password}".encode()).decode()
        return {"Authorization": f"Basic {token}"}

    def _rejection(self, status: int, text: str) -> ColumnStoreError:
        match = _ERROR_CODE.search(text)
        code = int(match[1]) if match else 0
        if code in _WRONG_PASSWORD_CODES:
            user = self.address.user or "default"
            reason = f"wrong user or password for {user!r}; set {PASSWORD_VARIABLE}"
        else:
            reason = " ".join(text.split())[:500] or f"HTTP {status}"
        may_retry = code in _RETRYABLE_CODES or (not match and status >= 500)
        return ColumnStoreError(f"{self.address.text}: {reason}", may_retry=may_retry, code=code)


def _read_columns(response_body: bytes, kinds: Mapping[str, str]) -> Columns:
    columns: Columns = {}
    offset = 0
    for name, kind in kinds.items():
        if kind in _TEXTS:
            lengths, offset = _read_array(response_body, offset, "<u4")
            size, offset = _read_size(response_body, offset)
            ends = list(itertools.accumulate(lengths.tolist(), initial=offset))
            if ends[-1] != offset + size:
                raise ValueError("lengths do not match the text")
            pieces = [response_body[begin:end] for begin, end in itertools.pairwise(ends)]
            columns[name] = pieces if kind == "Bytes" else [piece.decode("utf-8", "replace") for piece in pieces]
            offset += size
        else:
            columns[name], offset = _read_array(response_body, offset, _DTYPES[kind])
    return columns


def _read_array(response_body: bytes, offset: int, dtype: str) -> tuple[Any, int]:
    count, offset = _read_size(response_body, offset)
    array = np.frombuffer(response_body, dtype, count, offset) if count else np.empty(0, dtype)
    return array, offset + array.nbytes


def _read_size(response_body: bytes, offset: int) -> tuple[int, int]:
    """Read a number of variable length: seven bits per byte, the lowest first."""
    size, shift = 0, 0
    while True:
        byte = response_body[offset]
        size |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return size, offset
