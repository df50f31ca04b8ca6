"""The process of a `WandBExporterAsync`: calls W&B in the stead of the training process.

Each request has a number and gets one reply, a line of JSON with the same number and an error, which is empty if the
request succeeded. When the requests end, the process finishes the run and ends within a bounded time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import queue
import signal
import threading
from typing import Any, BinaryIO

import msgspec

from tachograph._base.detached import ReplyChannel, read_requests
from tachograph.records import mask_text

__all__ = ["WandbReply", "WandbRequest", "main"]

_GIVE_UP_S = 120.0


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
    request_queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive(request: Any) -> None:
        if request is None:  # here, because the main thread may be inside the client
            faulthandler.dump_traceback_later(_GIVE_UP_S, exit=True)
        request_queue.put(request)

    threading.Thread(target=read_requests, args=(requests, receive), daemon=True).start()
    client: Any = None
    while isinstance(request := request_queue.get(), WandbRequest):
        reply = WandbReply(request.number)
        try:
            if request.method == "open":
                from tachograph.one_logger._wandb_client import WandbClient

                client = WandbClient(*request.arguments)
            else:
                getattr(client, request.method)(*request.arguments)
            client = None if request.method == "finish" else client
        except (Exception, SystemExit) as error:  # noqa: BLE001 - W&B may raise anything
            reply.error = mask_text(f"{type(error).__name__}: {error}")[:500]
        with contextlib.suppress(OSError):  # the training process has ended
            replies.write(msgspec.json.encode(reply) + b"\n")
    if client is not None:  # the training process was killed
        with contextlib.suppress(Exception):
            client.finish(1)
