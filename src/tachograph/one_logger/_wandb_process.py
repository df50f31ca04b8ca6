"""The process of a W&B exporter: calls W&B in the stead of the training process.

Each request has a number and gets one reply, a line of JSON with the same number and an error, which is empty if the
request succeeded. The request `open` is repeated until it succeeds, and gets a reply for each attempt. When the
requests end, the process finishes the run and ends within a bounded time.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import time
from typing import Any, BinaryIO

import msgspec

from tachograph._base.detached import ReplyChannel, read_requests
from tachograph._base.guard import suppress
from tachograph._base.threads import TelemetryThread
from tachograph.records import mask_text

__all__ = ["WandbReply", "WandbRequest", "main"]

_GIVE_UP_S = 120.0
_PAUSE_S = 10.0
"""Between two attempts to start the run."""


class WandbRequest(msgspec.Struct, frozen=True):
    """A call of a method of `WandbClient`; the first one creates it."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class WandbReply(msgspec.Struct):
    """The end of a call."""

    number: int
    error: str = ""


def main(requests: BinaryIO, replies: ReplyChannel) -> None:
    """Serve requests until they end."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # sent to the job; this process ends after the training process
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, frame: None)
    # The training code may use W&B itself. Its service ends with the training process, before this one.
    os.environ.pop("WANDB_SERVICE", None)
    request_queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    was_opened = False

    def receive(request: Any) -> None:
        if request is None:  # here, because the main thread may be inside the client
            if not was_opened:
                os._exit(1)  # there is nothing to finish
            faulthandler.dump_traceback_later(_GIVE_UP_S, exit=True)
        request_queue.put(request)

    def reply_to(request: WandbRequest, error: str = "") -> None:
        with suppress(OSError):  # the training process has ended
            replies.write(msgspec.json.encode(WandbReply(request.number, error)) + b"\n")

    client: Any = None
    TelemetryThread(read_requests, name="tachograph-requests", args=(requests, receive)).start()
    while isinstance(request := request_queue.get(), WandbRequest):
        try:
            if request.method == "import":
                from tachograph.one_logger._wandb_client import WandbClient
            elif request.method == "open":
                client = WandbClient(*request.arguments)
                was_opened = True
            else:
                getattr(client, request.method)(*request.arguments)
            client = None if request.method == "finish" else client
            reply_to(request)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - W&B may raise anything
            reply_to(request, mask_text(f"{type(error).__name__}: {error}")[:500])
            if request.method == "open":
                time.sleep(_PAUSE_S)
                request_queue.put(request)
    if client is not None:  # the training process was killed
        with suppress(Exception):
            client.finish(1)
