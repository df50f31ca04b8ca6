"""The notice that is shown before an app with the policy ``opt-out`` sends anything, and the pause to prevent it."""

from __future__ import annotations

import os
import sys
from time import sleep
from typing import Any

from tachograph._base.guard import faults
from tachograph.usage._config import UsageConfig

__all__ = ["PAUSE_S", "show_notice"]

PAUSE_S = 10.0


def show_notice(config: UsageConfig) -> bool:
    """Print the notice and pause; return whether it could be printed."""
    endpoint = config.receiver.name if config.receiver is not None else ""
    docs = f"  Read more:   {config.docs_url}\n" if config.docs_url else ""
    text = (
        f"\n{config.app} sends anonymous usage reports to {endpoint}\n"
        "  They contain versions, the type of hardware, coarse settings and timings of training, and the types of\n"
        "  errors with their places in known packages. They contain no data, messages, paths or names of yours, and\n"
        "  no id of you or your machine. Like any server, the receiver sees your IP address.\n"
        f"  Preview:     tacho usage preview {config.app}\n{docs}"
        f"  Turn off:    tacho usage off {config.app}    or  {config.env_prefix}_DO_NOT_TRACK=1\n"
        f"  Agree:       tacho usage on {config.app}     or  {config.env_prefix}_DO_NOT_TRACK=0\n"
        f"Nothing has been sent yet. {config.app} continues in {PAUSE_S:.0f} seconds; press Ctrl-C to stop it.\n\n"
    )
    if _is_devnull(sys.stderr):
        return False
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except faults(AttributeError, OSError, ValueError):  # there is no stream, or it is closed
        return False
    sleep(PAUSE_S)
    return True


def _is_devnull(stream: Any) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except faults(AttributeError, OSError, ValueError):
        return False  # a stream without a file, as in a notebook
