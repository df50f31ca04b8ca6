"""What a user is told before anything is sent without their having said so, and the time to stop it."""

from __future__ import annotations

import os
import sys
from time import sleep
from typing import Any

from tachograph.usage._config import UsageConfig

__all__ = ["PAUSE_S", "give_notice"]

PAUSE_S = 10.0


def give_notice(config: UsageConfig) -> bool:
    """Say what is about to happen, and give the user time to prevent it; tell whether it could be said."""
    where = config.receiver.name if config.receiver is not None else ""
    more = f"  Read more:     {config.docs_url}\n" if config.docs_url else ""
    text = (
        f"\n{config.app} sends anonymous usage reports to {where}\n"
        "  What: versions, kind of hardware, coarse settings and timings of training, types of errors and where in\n"
        "  the code of known packages they arose. No data, messages, paths or names of yours, and no id of you or\n"
        "  your machine. The receiver sees the address that reports come from, as any server does.\n"
        f"  See it first:  tacho usage preview {config.app}\n{more}"
        f"  Turn it off:   tacho usage off {config.app}    or  {config.env_prefix}_DO_NOT_TRACK=1\n"
        f"  Agree to it:   tacho usage on {config.app}     or  {config.env_prefix}_DO_NOT_TRACK=0\n"
        f"Nothing has been sent. {config.app} goes on in {PAUSE_S:.0f} seconds; Ctrl-C stops {config.app}.\n\n"
    )
    if _is_nowhere(sys.stderr):
        return False
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # there is no such stream, or nobody reads it
        return False
    sleep(PAUSE_S)
    return True


def _is_nowhere(stream: Any) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except (AttributeError, OSError, ValueError):
        return False  # a stream without a file, say of a notebook
