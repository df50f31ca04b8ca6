"""Keeps background threads out of OpenSSL when the process exits.

C's `exit` frees the tables of OpenSSL while daemon threads are still running. A thread that is verifying a certificate
or loading the trust store at that moment crashes the process, and the exit code of the user's program becomes -11.

A thread therefore marks itself while it may be inside of OpenSSL. The handler that `leave_tls_at_exit` registers runs
after all other exit handlers of ours: it shuts the sockets of such threads down, so that they return from OpenSSL, and
waits for them. A thread that waits for a name or a connection is not inside of OpenSSL and delays nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

from tachograph._base.guard import suppress

__all__ = ["enter_tls", "leave_tls", "leave_tls_at_exit", "tls_section"]

_TIMEOUT_S = 1.0
"""How long to wait for a thread whose socket was shut down."""
_LOADING_TIMEOUT_S = 10.0
"""How long to wait for a thread without a socket. It computes, for 50 ms or as long as a busy machine takes."""
_POLL_S = 0.002

_sockets: dict[int, socket.socket | None] = {}
"""The socket of each thread in a section, by the id of the thread; None before there is one."""
_flags: set[str] = set()
"""`registered`: the handler is registered. `exiting`: no thread may enter a section any more."""


def enter_tls(connection: socket.socket | None = None) -> None:
    """Mark the calling thread as one that uses OpenSSL, until it calls `leave_tls`.

    Args:
        connection: the socket that the exit handler shuts down.

    Raises:
        OSError: if the process is exiting.
    """
    thread_id = threading.get_ident()
    _sockets[thread_id] = connection
    if "exiting" in _flags:  # checked after entering, so that the exit handler waits for this thread or it stops here
        _sockets.pop(thread_id, None)
        raise OSError("the process is exiting")


def leave_tls() -> None:
    """End the mark of `enter_tls`, if there is one."""
    _sockets.pop(threading.get_ident(), None)


@contextlib.contextmanager
def tls_section() -> Iterator[None]:
    """Mark the calling thread while it is in the block."""
    enter_tls()
    try:
        yield
    finally:
        leave_tls()


def leave_tls_at_exit() -> None:
    """Register the exit handler. Call it before registering another one: handlers registered later run earlier."""
    if "registered" not in _flags:
        _flags.add("registered")
        atexit.register(_stop_tls)
        os.register_at_fork(after_in_child=_sockets.clear)


def _stop_tls() -> None:
    """Make threads that use OpenSSL return from it, and wait for them."""
    _flags.add("exiting")
    start_s = time.monotonic()
    while connections := list(_sockets.values()):
        if time.monotonic() > start_s + (_LOADING_TIMEOUT_S if None in connections else _TIMEOUT_S):
            break
        for connection in connections:
            if connection is not None:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # without the state of an SSLSocket
        time.sleep(_POLL_S)
