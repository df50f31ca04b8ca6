"""One HTTP connection, with limits that uvicorn does not have.

uvicorn waits without end for the rest of a request, and for a client that stops reading its response. Here a
connection has deadlines instead:

- **Request.** From the first byte until the last byte of the body. The deadline does not move when more bytes arrive,
  so a client cannot extend it by sending one byte at a time.
- **Silence.** A connection without a first byte may last longer: browsers open connections before they need them, and a
  request sent at the moment in which the server closes one fails in the page.
- **Response.** While a byte waits to be sent, the response waits too, so at most one block of it is in memory. A client
  that reads less than `min_progress_bytes` within a deadline is disconnected.
- Between two requests, uvicorn's own keep-alive timeout applies.

The number of connections is limited, with a part reserved for the owner's processes, so that other users of the machine
cannot lock the owner out.

The connection also determines the user at its other end (see `_peer`), as early as possible, and hands it to the
application in the state of each request.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tachograph.server._peer import PEER_UID, find_peer_uid

__all__ = ["LimitedProtocol"]


class LimitedProtocol(H11Protocol):
    """Serves one connection within the limits described above."""

    request_timeout_s = 20.0
    """Bodies are small (see `_access.MAX_BODY_BYTES`), so a complete request takes no longer than this."""
    silence_timeout_s = 300.0
    response_timeout_s = 60.0
    min_progress_bytes = 64 << 10
    """Together with the timeout: a client must read about a kilobyte per second."""
    max_connections = 512
    max_foreign_connections = 256
    """The limit for connections that are not known to come from the owner's own processes."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._request_deadline: asyncio.TimerHandle | None = None
        self._is_silent = True
        self._response_deadline: asyncio.TimerHandle | None = None
        self._num_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Determine the peer, and reject the connection if there are too many."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        peer_uid = None if connection is None else find_peer_uid(connection)
        self.app_state = {**self.app_state, PEER_UID: peer_uid}
        is_own = peer_uid is not None and peer_uid == os.geteuid()  # known only where there are uids
        if len(self.connections) > (self.max_connections if is_own else self.max_foreign_connections):
            transport.abort()
            return
        # Pause while anything is unsent. Not 0, with which asyncio would pause a TLS connection for ever.
        transport.set_write_buffer_limits(high=1)
        self._request_deadline = self.loop.call_later(self.silence_timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and start or stop waiting for the rest of a request."""
        if self._is_silent:
            self._is_silent = False
            self._stop_request_deadline()
        super().data_received(data)
        their_state = self.conn.their_state
        if their_state is h11.SEND_BODY or (their_state is h11.IDLE and self.conn.trailing_data[0]):
            self._start_request_deadline()
            return
        self._stop_request_deadline()
        if their_state is h11.IDLE:
            # The request was answered before its body was complete; the rest of the body has just stopped uvicorn's
            # keep-alive timeout.
            self._start_request_deadline()

    def pause_writing(self) -> None:
        """Hold the response back until the client has read the data sent so far."""
        super().pause_writing()
        self._start_response_deadline()

    def resume_writing(self) -> None:
        """Continue the response."""
        super().resume_writing()
        self._stop_response_deadline()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        self._stop_request_deadline()
        self._stop_response_deadline()
        super().connection_lost(error)

    def _start_request_deadline(self) -> None:
        if self._request_deadline is None:
            self._request_deadline = self.loop.call_later(self.request_timeout_s, self.transport.abort)

    def _stop_request_deadline(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _start_response_deadline(self) -> None:
        self._num_unsent = self.transport.get_write_buffer_size()
        self._response_deadline = self.loop.call_later(self.response_timeout_s, self._check_progress)

    def _check_progress(self) -> None:
        if self.transport.get_write_buffer_size() > self._num_unsent - self.min_progress_bytes:
            self.transport.abort()
        else:
            self._start_response_deadline()

    def _stop_response_deadline(self) -> None:
        if self._response_deadline is not None:
            self._response_deadline.cancel()
            self._response_deadline = None
