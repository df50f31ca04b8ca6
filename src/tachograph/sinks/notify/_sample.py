"""Messages as they would be, for those who try out a channel."""

from __future__ import annotations

import time
from typing import Any

from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._settings import NotifySettings
from tachograph.sinks.notify._story import Story, StoryState

__all__ = ["sample_message"]

_ALERT = {
    "event": "alert",
    "id": "sample",
    "rule": "loss_spike",
    "severity": "critical",
    "title": "Loss spike",
    "global_step": 120,
    "message": "This is a test of `tacho notify test`: train_loss rose from 0.61 to 4.2 within 3 steps.",
    "meaning": "A bad batch, or a learning rate that is too high.",
    "advice": ["Look at the batch of that step.", "Lower the learning rate, or clip the gradient."],
}
_RECORDS: dict[str, list[dict[str, Any]]] = {
    "start": [],
    "complete": [{"event": "end", "status": "finished", "reason": "This is a test of `tacho notify test`."}],
    "error": [
        {
            "event": "error",
            "fatal": True,
            "error_type": "RuntimeError",
            "error_message": "a test of `tacho notify test`",
        },
        {"event": "end", "status": "failed", "reason": "RuntimeError"},
    ],
    "alert": [{**_ALERT, "status": "opened"}],
    "resolved": [
        {**_ALERT, "status": "resolved", "outcome": "This is a test of `tacho notify test`: train_loss is back."}
    ],
    "milestone": [{"event": "step", "global_step": 121, "train_loss": 0.4931}],
}


def sample_message(event: str, settings: NotifySettings, *, host: str) -> Message:
    """Return a message such as a run would send, made in the same way."""
    chosen = NotifySettings(
        milestones=("train_loss < 0.5",),
        metrics=("train_loss", "lr", "val_loss"),
        project=settings.project,
        dashboard_url=settings.dashboard_url,
    )
    # A run that was never recorded: whatever is tried twice is a message of its own.
    story = Story("sample-run", chosen, StoryState())
    began_s = time.time() - 754.0
    start = {"event": "start", "time": began_s, "run_id": str(time.time_ns()), "host": host, "max_steps": 500}
    step = {"event": "step", "global_step": 120, "train_loss": 0.6123, "lr": 3e-4, "val_loss": 0.66}
    messages = [
        message
        for record in (start, step, *_RECORDS[event])
        for message in story.take({"time": time.time(), **record})
        if message.event == event
    ]
    return messages[-1]
