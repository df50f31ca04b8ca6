"""Listening: the address, the token, and what is printed about them."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable
from urllib.parse import quote

import uvicorn

from tachograph.exceptions import ServeError
from tachograph.journal import RunFolder
from tachograph.server._access import Access, is_loopback
from tachograph.server._app import create_app

__all__ = ["serve"]


def serve(
    log_dir: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    token: str | None = None,
    allow_hosts: tuple[str, ...] = (),
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the dashboard until interrupted.

    Args:
        log_dir: the folder that holds the runs.
        host: the address to listen on. One that others can reach needs a token; it is made if none is given.
        port: the port; 0 for any that is free.
        token: what must be known to see anything.
        allow_hosts: further names that the server goes by.
        on_ready: called with the address of the dashboard, which holds the token, once it can be reached.

    Raises:
        ServeError: if the address cannot be listened on, or the folder is that of a single run.
    """
    folder = RunFolder(log_dir)
    if folder.exists():
        raise ServeError(
            f"{folder.path} is a run; give the folder that holds it: --log-dir {folder.path.resolve().parent}"
        )
    if token is not None and not re.fullmatch(r"[!-~]{1,256}", token):
        raise ServeError("--token: use up to 256 letters, digits and signs of ASCII, without spaces")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    access = Access(token, (*allow_hosts, host), port)
    config = uvicorn.Config(
        create_app(log_dir, access, is_closing=lambda: server.should_exit),
        log_level=logging.WARNING,
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
        timeout_keep_alive=30,
    )
    server = uvicorn.Server(config)
    on_ready(_url(host, port, token))
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ServeError(f"--host {host!r}: {getattr(error, 'strerror', None) or error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = (
                "another dashboard may be open there; stop it, or take another port with --port (0: any that is free)"
            )
        else:
            hint = "take another --host or --port"
        raise ServeError(f"cannot listen on {host}:{port} ({error.strerror}): {hint}") from error
    return listener


def _url(host: str, port: int, token: str | None) -> str:
    shown = host if host not in {"0.0.0.0", "::"} else socket.gethostname()  # noqa: S104
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")
