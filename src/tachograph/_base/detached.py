"""Start Python processes that do not end with this one, such as the process of a sink.

A detached process has a session of its own: Ctrl-C in the terminal and a closed terminal do not reach it. It prints
nothing, because its standard streams are replaced before its code runs. It gets the import path and the arguments of
this process through a pipe, never on its command line, which every user of the machine can read.

Both ends are pipes. The requests to the process are pickled, because an option may be any object. Its replies are
lines of text. A process whose pipe of requests ends knows that this process is gone, however it ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from tachograph._base.guard import faults, suppress
from tachograph._base.threads import TelemetryThread

__all__ = ["DetachedProcess", "ReplyChannel", "is_orphan", "read_requests"]

# The empty entry of the path is the working directory, from which nothing may be imported before the path is set.
_BOOTSTRAP = """import os, sys
sys.path[:] = [folder for folder in sys.path if folder]
from pickle import load
requests = os.fdopen(os.dup(0), "rb")
sys.path[:], sys.argv, module = load(requests)
replies = os.fdopen(os.dup(1), "wb", buffering=0)
for descriptor in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
from importlib import import_module
import_module(module).main(requests, replies)
"""

_NOT_INHERITED = frozenset({"TACHO_LAUNCH"})
"""Variables that would make `tacho run` record the process as a part of the program."""

ReplyChannel = BinaryIO


class DetachedProcess:
    """A process that runs `main(requests, replies)` of a module."""

    def __init__(self, module: str, *labels: str) -> None:
        """Start the process.

        Args:
            module: the module, as a dotted name.
            labels: words that show the purpose of the process in the list of processes.

        Raises:
            OSError: if it cannot be started.
        """
        import subprocess

        if not sys.executable:
            raise OSError("the path of the Python interpreter is unknown")
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _BOOTSTRAP, "tachograph", *labels],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
        )
        self.pid = process.pid
        self._lock = threading.Lock()
        """Held while the process is collected: afterwards another process may have its id."""
        self._is_collected = False
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - pipes, as requested above
        self._requests = os.dup(process.stdin.fileno())
        self._replies = os.dup(process.stdout.fileno())
        process.stdin.close()
        process.stdout.close()
        # Its destructor would warn that the process is still running, which is intended; `replies` collects it.
        process.returncode = 0
        self.send((sys.path, sys.argv if hasattr(sys, "argv") else [], module))

    def send(self, request: object) -> None:
        """Send a request; do nothing if the process has ended.

        Raises:
            Exception: if the request cannot be pickled.
        """
        data = pickle.dumps(request)
        with suppress(OSError):
            while data:
                data = data[os.write(self._requests, data) :]

    def replies(self) -> Iterator[bytes]:
        """Yield the lines that the process sends until it ends."""
        # Not a file object: a thread that waits in one at the exit of the interpreter holds its lock.
        partial_line = b""
        while block := os.read(self._replies, 65_536):
            *lines, partial_line = (partial_line + block).split(b"\n")
            yield from lines
        os.close(self._replies)
        with self._lock:
            with suppress(OSError):  # the program may have collected it
                os.waitpid(self.pid, 0)
            self._is_collected = True

    def close_requests(self) -> None:
        """Send no more requests, so that the process finds the end of them."""
        with suppress(OSError):
            os.close(self._requests)

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM); `replies` finds its end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once; `replies` finds its end."""
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _signal(self, signum: signal.Signals) -> None:
        if self._lock.acquire(blocking=False):  # otherwise it has ended and is being collected
            try:
                if not self._is_collected:
                    with suppress(OSError):
                        os.kill(self.pid, signum)
            finally:
                self._lock.release()

    def leave(self) -> None:
        """Leave the process to itself: send no more requests, and ignore its replies."""
        self.close_requests()
        reaper = TelemetryThread(lambda: list(self.replies()), name="tachograph-reaper")
        with suppress(RuntimeError):  # the interpreter is exiting, so nothing is left to collect
            reaper.start()


def read_requests(requests: BinaryIO, handle: Callable[[Any], None]) -> None:
    """In the process: call a function with each request, or with the error of reading it, and with None at the end."""
    try:
        while True:
            handle(pickle.load(requests))  # noqa: S301 - from the process that started this one
    except faults(EOFError, OSError):
        pass
    except Exception as error:  # noqa: BLE001 - an option may be an object that this process cannot build
        handle(error)
    handle(None)


def is_orphan(parent_pid: int) -> bool:
    """In the process: return whether the process that started it has ended.

    The end of the requests tells the same, unless a forked child of that process keeps the pipe open.
    """
    return hasattr(os, "getppid") and os.getppid() != parent_pid
