"""Prometheus: the latest values of a run, at an address that Prometheus scrapes or in a file of the node exporter.

The address exists as long as the run: afterwards its series end, like the series of any program. A file outlives the
run, so at the end it keeps only the facts about the run and its final state. The next run with this sink removes files
that have not been written for a day.
"""

from __future__ import annotations

import contextlib
import errno
import http.server
import os
import socket
import socketserver
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tachograph._base.files import replace_file
from tachograph._base.threads import TelemetryThread
from tachograph.bridges.prometheus._text import TOO_MANY_NAMES, RunMetrics
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder

__all__ = ["PrometheusSink", "check_options"]

_PORT = 9797
_HOST = "127.0.0.1"
_BIND_TIMEOUT_S = 15.0
"""How long to wait for the port: the sink of an earlier attempt may be about to end."""
_MAX_FILE_AGE_S = 86_400.0
_FILE_PREFIX = "tachograph-"


def check_options(
    port: int | None = None, host: str | None = None, textfile: str | os.PathLike[str] | None = None
) -> None:
    """Raise `ConfigError` for an invalid option of `PrometheusSink`; whether the port is free is found out later."""
    if port is not None and (type(port) is not int or not 0 < port < 1 << 16):
        raise ConfigError(f"port must be a number from 1 to 65535, got {port!r}")
    if host is not None and (not isinstance(host, str) or not host):
        raise ConfigError(f"host must be a non-empty string, got {host!r}")
    if textfile is not None:
        _check_folder(textfile)


class PrometheusSink:
    """Serves the latest values of a run.

    Args:
        port: the port of the address `http://HOST:PORT/metrics`; 9797 if neither a port nor a folder is given.
        host: the address to listen on; only this machine can reach the default, 127.0.0.1.
        textfile: the folder of the node exporter's textfile collector, which gets one file per run.
    """

    name = "prometheus"

    def __init__(
        self, port: int | None = None, host: str | None = None, textfile: str | os.PathLike[str] | None = None
    ) -> None:
        check_options(port, host, textfile)
        self._folder = None if textfile is None else _check_folder(textfile)
        self._file: Path | None = None
        self.on_rejected: Callable[[int, str, str], None] = lambda num_items, items, reason: None
        self._start: tuple[str, dict[str, Any]] = ("", {})
        self._metrics = RunMetrics(*self._start)
        self._page = b""
        self._server: _ScrapeServer | None = None
        if port is not None or host is not None or textfile is None:
            self._server = _bind(host or _HOST, port or _PORT, self)

    @property
    def page(self) -> bytes:
        """The response to a scrape."""
        return self._page

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Start to serve."""
        if self._folder is not None:
            self._file = self._folder / f"{_FILE_PREFIX}{folder.name}.prom"
            _remove_old_files(self._folder)
        self._start = folder.name, start
        if self._server is not None:
            self._server.start()

    def replay(self, records: Iterable[dict[str, Any]]) -> None:
        """Find the values of earlier records, which may not occur again."""
        self._metrics = RunMetrics(*self._start)
        for record in records:
            self._metrics.add(record)

    def write(self, records: list[dict[str, Any]]) -> None:
        """Publish the latest values."""
        num_dropped = self._metrics.num_dropped
        for record in records:
            self._metrics.add(record)
        self._publish()
        if self._metrics.num_dropped > num_dropped:
            self.on_rejected(self._metrics.num_dropped - num_dropped, "names of metrics", TOO_MANY_NAMES)

    def _publish(self) -> None:
        self._page = self._metrics.render()  # replaced as a whole: a scrape is in another thread
        if self._file is not None:
            replace_file(self._file, self._page, below=self._file.parent)

    def close(self) -> None:
        """Stop to serve, and leave in the file how the run ended."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._file is not None and self._metrics.state is not None:
            if self._metrics.state == "running":  # it was killed
                self._metrics.set_state("failed")
            self._metrics.clear_values()
            self._publish()


class _ScrapeServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answers scrapes, each in a thread; not `HTTPServer`, which looks up the name of the host."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, host: str, port: int, sink: PrometheusSink) -> None:
        self.sink = sink
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._thread: TelemetryThread | None = None
        super().__init__((host, port), _ScrapeHandler)

    def start(self) -> None:
        if self._thread is None:
            self._thread = TelemetryThread(self.serve_forever, name="tachograph-scrapes")
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self.shutdown()
        self.server_close()


class _ScrapeHandler(http.server.BaseHTTPRequestHandler):
    timeout = 10
    server: _ScrapeServer

    def do_GET(self) -> None:
        is_found = self.path.partition("?")[0] == "/metrics"
        body = self.server.sink.page if is_found else b"The metrics are at /metrics.\n"
        self.send_response(200 if is_found else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def _bind(host: str, port: int, sink: PrometheusSink) -> _ScrapeServer:
    deadline_s = time.monotonic() + _BIND_TIMEOUT_S
    while True:
        try:
            return _ScrapeServer(host, port, sink)
        except OSError as error:
            if time.monotonic() < deadline_s and error.errno == errno.EADDRINUSE:
                time.sleep(0.2)
                continue
            raise ConfigError(
                f"cannot listen on port {port} of {host}: {error.strerror or error}. Choose another one with `port`, "
                "or use `textfile`, which several runs can share"
            ) from None


def _check_folder(textfile: Any) -> Path:
    if not isinstance(textfile, (str, os.PathLike)) or not os.fspath(textfile):
        raise ConfigError(f"textfile must be the path of a folder, got {textfile!r}")
    folder = Path(os.path.abspath(textfile))
    if not folder.is_dir():
        raise ConfigError(f"textfile: {str(folder)!r} is not a folder; create the one that the node exporter reads")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"textfile: no permission to write to {str(folder)!r}")
    return folder


def _remove_old_files(folder: Path) -> None:
    oldest_s = time.time() - _MAX_FILE_AGE_S
    for file in folder.glob(f"{_FILE_PREFIX}*.prom"):
        with contextlib.suppress(OSError):  # of another user
            status = file.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_mtime < oldest_s:
                file.unlink()
