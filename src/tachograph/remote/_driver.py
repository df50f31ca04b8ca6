"""`ServerSink`: sends a run from the process that `SinkProcess` starts for it, and from `tacho sync`."""

from __future__ import annotations

import time
from collections.abc import Callable

from tachograph._base.guard import guard
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.threads import TelemetryThread
from tachograph.journal import RunFolder, read_node_facts
from tachograph.remote._address import parse_server
from tachograph.remote._connection import Connection
from tachograph.remote._credentials import current_token
from tachograph.remote._node import NodeSender
from tachograph.remote._sender import RunSender

__all__ = ["SenderThread", "ServerSink"]

_RETRY_S = 30.0
"""How long to wait after a fault that no one expected."""


class ServerSink:
    """Sends runs to a team's server. It reads the files of a run itself, instead of its records."""

    name = "server"

    def __init__(self, server: str, *, remote_control: bool = False, allow_plain_http: bool = False) -> None:
        self._address = parse_server(server, allow_plain_http=allow_plain_http)
        self._remote_control = remote_control

    def follow(self, folder: RunFolder, report: Callable[[str, str, str], None]) -> SenderThread:
        """Return a thread that sends a run."""
        connection = Connection(self._address, lambda: current_token(self._address))
        if read_node_facts(folder) is not None:
            return SenderThread(NodeSender(folder, connection, report))
        return SenderThread(RunSender(folder, connection, report, remote_control=self._remote_control))


class SenderThread:
    """A thread that sends one run until it is closed."""

    def __init__(self, sender: RunSender) -> None:
        self.sender = sender
        self._is_closing = ReentrantEvent()
        self._thread = TelemetryThread(self._run, name="tachograph-server")

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def move(self, folder: RunFolder) -> None:
        """Continue in another folder, to which the journal was moved."""
        self.sender.move(folder)

    def close(self, timeout_s: float) -> bool:
        """Send the rest; wait for it until the timeout. Return whether the server has everything."""
        self._is_closing.set()
        deadline_s = time.monotonic() + max(timeout_s, 0.0)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self._thread.is_alive() and self.sender.is_complete

    def _run(self) -> None:
        while not self._is_closing.is_set():
            self._is_closing.wait(self._poll())
        # The first attempt ignores the pause after an earlier failure: the training process may be waiting.
        pause_s = self._poll(flush=True, ignore_pause=True)
        while not self.sender.is_complete and not self.sender.state.is_gone:
            time.sleep(pause_s)
            pause_s = self._poll(flush=True)
        self.sender.close()

    def _poll(self, **options: bool) -> float:
        with guard("sending a run"):
            return self.sender.poll(**options)
        return _RETRY_S
