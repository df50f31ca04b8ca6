"""Starts the server: binds the address, loads the token and runs uvicorn.

Which requests need the token depends on the address and on whether a token was given:

- On loopback without a given token, the owner's own processes need none, and the printed URL has none. Others need the
  token in the owner's token file. Where users cannot be told apart, everyone needs it, and the URL contains it.
- On any other address, or with a given token, everyone needs the token, and the URL contains it. A given token is also
  for a proxy that runs as the owner and forwards requests of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import quote

import uvicorn

from tachograph.exceptions import ServeError
from tachograph.journal import RunFolder, announce_dashboard
from tachograph.server._access import Access, is_loopback
from tachograph.server._app import LogDirs, create_app
from tachograph.server._peer import is_peer_known
from tachograph.server._protocol import LimitedProtocol
from tachograph.server._token import TOKEN_PATTERN, load_token, token_path

__all__ = ["bind_address", "create_server", "serve"]

_SEND_BUFFER_BYTES = 256 << 10


def serve(
    log_dir: LogDirs,
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    token: str | None = None,
    allow_hosts: tuple[str, ...] = (),
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the dashboard until interrupted.

    Args:
        log_dir: The folder that holds the runs, or several folders.
        host: The address to listen on. An address that other machines can reach requires a token; the user's own is
            loaded or generated if none is given.
        port: The port; 0 picks a free one.
        token: The token that every client must send, including the user's own processes.
        allow_hosts: Additional `Host` names to accept.
        on_ready: Called with the dashboard's URL once the server accepts connections. It includes the token if a
            browser of the user needs it.

    Raises:
        ServeError: The address cannot be bound, the token is invalid, or the folder is a single run.
    """
    for each in [log_dir] if isinstance(log_dir, (str, os.PathLike)) else log_dir:
        folder = RunFolder(each)
        if folder.exists():
            raise ServeError(
                f"{folder.path} is a single run; serve its parent folder: --log-dir {folder.path.resolve().parent}"
            )
    if token is not None and not TOKEN_PATTERN.fullmatch(token):
        raise ServeError("invalid token: use 1 to 256 printable ASCII characters without spaces")
    # Bound before uvicorn starts: the cookie name and the printed URL need the port, which may be chosen by the system.
    listener = bind_address(host, port)
    port = listener.getsockname()[1]
    access = _choose_access(token, (*allow_hosts, host), port, is_local=is_loopback(host))
    server = create_server(log_dir, access)
    with contextlib.suppress(ImportError):  # not installed
        import_module(
            "uvloop"
        )  # uvicorn would import it after `on_ready`, and a Ctrl-C during this import can get lost
    log_dirs = [log_dir] if isinstance(log_dir, (str, os.PathLike)) else list(log_dir)
    with announce_dashboard(_dashboard_url(host, port, None), log_dirs):
        on_ready(_dashboard_url(host, port, access.token if access.owner_uid is None else None))
        server.run(sockets=[listener])


def _choose_access(token: str | None, hosts: tuple[str, ...], port: int, *, is_local: bool) -> Access:
    """Return the access policy; see the module for the rules."""
    if token is not None:
        return Access(token, hosts, port)
    try:
        token = load_token()
    except OSError:  # no home folder, or a read-only one: a token for this server only, which the URL must contain
        return Access(secrets.token_urlsafe(24), hosts, port)
    if is_local and is_peer_known():
        return Access(token, hosts, port, owner_uid=os.geteuid(), token_path=str(token_path()))
    return Access(token, hosts, port)


def create_server(log_dir: LogDirs, access: Access, **options: Any) -> uvicorn.Server:
    """Return a server for a log folder or several, with the limits of `LimitedProtocol`.

    Args:
        log_dir: The folder that holds the runs, or several folders.
        access: The access policy.
        options: More arguments of `create_app`.
    """
    config = uvicorn.Config(
        create_app(log_dir, access, is_closing=lambda: server.should_exit, **options),
        http=LimitedProtocol,
        ws="none",
        # A header must not be able to change the address of a client.
        proxy_headers=False,
        # Requests must not be able to fill the terminal.
        log_level=logging.ERROR,
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
        timeout_keep_alive=30,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_not_about_shutdown)
    server = uvicorn.Server(config)
    return server


def _is_not_about_shutdown(record: logging.LogRecord) -> bool:
    """Drop complaints about requests that the end of the server interrupts, and the tracebacks of these requests."""
    error = record.exc_info[1] if record.exc_info else None
    return "timeout graceful shutdown exceeded" not in str(record.msg) and not _is_cancellation(error)


def _is_cancellation(error: BaseException | None) -> bool:
    inner = getattr(error, "exceptions", ())  # of a group
    return isinstance(error, asyncio.CancelledError) or (bool(inner) and all(map(_is_cancellation, inner)))


def bind_address(host: str, port: int, *, is_shared: bool = False, listens: bool = True) -> socket.socket:
    """Return a socket that is bound to an address.

    Args:
        host: the address.
        port: the port; 0 picks a free one.
        is_shared: whether other processes of the same user may bind the port, too, if they also share it.
        listens: whether to accept connections.

    Raises:
        ServeError: if the address cannot be bound; the message names the remedy.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ServeError(f"--host {host!r}: {getattr(error, 'strerror', None) or error}") from error
    # Allow a restart on the same port while old connections are in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Connections inherit it. Otherwise the kernel buffers megabytes for a client that does not read.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listener.bind(address)
        if listens:
            listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "another dashboard may be running; stop it, or choose another port with --port (0 picks a free one)"
        else:
            hint = "choose another --host or --port"
        raise ServeError(f"cannot listen on {host}:{port} ({error.strerror}): {hint}") from error
    return listener


def _dashboard_url(host: str, port: int, token: str | None) -> str:
    url_host = host if host not in {"0.0.0.0", "::"} else socket.gethostname()  # noqa: S104
    url_host = f"[{url_host}]" if ":" in url_host else url_host
    return f"http://{url_host}:{port}/" + (f"#token={quote(token, safe='')}" if token else "")
