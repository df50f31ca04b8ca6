"""The process that captures the code of a run, so that the work takes no time from the training.

It sends each part of the `code` record once the files of that part are stored, and an empty line at the end. It ends
early, leaving no partial file, when the run ends or when the training process is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from typing import Any, BinaryIO

import msgspec

from tachograph._base.detached import ReplyChannel
from tachograph._base.guard import suppress
from tachograph._base.threads import TelemetryThread
from tachograph.reader.captured_code import kill_running_git
from tachograph.recorder.collectors.code.capture import capture_parts
from tachograph.records import mask_mapping, mask_text

__all__ = ["MAX_S", "main"]

MAX_S = 60.0
"""When the process gives up. Each step has its own limit, which is shorter."""


def main(requests: BinaryIO, replies: ReplyChannel) -> None:
    """Capture the code that the first request names, and send the fields of the record as lines of JSON."""
    signal.signal(signal.SIGTERM, _exit)
    timer = threading.Timer(MAX_S, _exit_at_once)  # a network disk may hang in a way that no limit can end
    timer.daemon = True
    timer.start()
    if hasattr(os, "nice"):
        os.nice(10)  # no process waits for it
    with suppress(OSError):  # the training process has ended
        try:
            request = pickle.load(requests)  # noqa: S301 - from the process that started it
            TelemetryThread(_exit_with_parent, name="tachograph-parent", args=(requests,)).start()
            for name, part in capture_parts(request):
                _send(replies, mask_mapping({name: part}))
        except Exception as error:  # noqa: BLE001 - reported in the record; such as a folder whose name is not UTF-8
            _send(replies, {"missing": mask_text(f"{type(error).__name__}: {error!a}")[:500]})
        replies.write(b"\n")


def _send(replies: ReplyChannel, fields: dict[str, Any]) -> None:
    replies.write(msgspec.json.encode(fields) + b"\n")


def _exit(*_: object) -> None:
    kill_running_git()
    sys.exit(1)  # unlike `os._exit`, removes a file that is being written


def _exit_at_once() -> None:
    kill_running_git()
    os._exit(1)


def _exit_with_parent(requests: BinaryIO) -> None:
    """Wait for the end of the requests: no process is left that could use the result."""
    while os.read(requests.fileno(), 4_096):  # not `requests.read`, whose lock blocks the exit of the interpreter
        pass
    os.kill(os.getpid(), signal.SIGTERM)
