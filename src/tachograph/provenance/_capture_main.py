"""The process that captures the code of a run, so that the work takes no time from the training.

The result is written to a file first, then sent. A run that is still recorded adds it to its journal and deletes the
file; one that has ended meanwhile has named the file in its journal, and readers find the result there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from typing import BinaryIO

import msgspec

from tachograph._base.detached import ReplyChannel
from tachograph.journal import RunFolder
from tachograph.provenance._capture import CaptureRequest, capture
from tachograph.provenance._result import write_result
from tachograph.records import mask_mapping, mask_text

__all__ = ["MAX_S", "main"]

MAX_S = 60.0
"""When the process gives up. Each step has its own limit, which is shorter."""


def main(requests: BinaryIO, replies: ReplyChannel) -> None:
    """Capture what the first request names, and reply with the fields of the record as JSON."""
    timer = threading.Timer(MAX_S, os._exit, (1,))  # a network disk may hang in a way that no limit can end
    timer.daemon = True
    timer.start()
    if hasattr(os, "nice"):
        os.nice(10)  # nobody waits for it
    request: CaptureRequest | None = None
    try:
        request = pickle.load(requests)  # noqa: S301 - from the process that started it
        reply = msgspec.json.encode(mask_mapping(capture(request)))
    except Exception as error:  # noqa: BLE001 - reported in the record; such as a folder whose name is not UTF-8
        reason = mask_text(f"{type(error).__name__}: {error!a}")[:500]
        reply = msgspec.json.encode({"missing": reason})
    if request is not None and request.result:
        with contextlib.suppress(OSError):  # such as a run that was removed
            write_result(RunFolder(request.run_folder), request.result, reply)
    with contextlib.suppress(OSError):  # the program has ended
        replies.write(reply + b"\n")
