"""Sample messages for `tacho notify test`."""

from __future__ import annotations

import time
from typing import Any

from tachograph.sinks.notify._builder import BuilderState, MessageBuilder
from tachograph.sinks.notify._message import Message
from tachograph.sinks.notify._settings import NotifySettings

__all__ = ["sample_message"]

_ALERT = {
    "event": "alert",
    "id": "sample",
    "rule": "loss_spike",
    "severity": "critical",
    "title": "Loss spike",
    "global_step": 120,
    "message": "This is a test message from `tacho notify test`: train_loss rose from 0.61 to 4.2 within 3 steps.",
    "meaning": "A bad batch, or a learning rate that is too high.",
    "advice": ["Inspect the batch of that step.", "Lower the learning rate, or clip the gradient."],
}
_RECORDS: dict[str, list[dict[str, Any]]] = {
    "start": [],
    "complete": [{"event": "end", "status": "finished", "reason": "This is a test message from `tacho notify test`."}],
    "error": [
        {
            "event": "error",
            "fatal": True,
            "error_type": "RuntimeError",
            "error_message": "test error from `tacho notify test`",
        },
        {"event": "end", "status": "failed", "reason": "RuntimeError"},
    ],
    "alert": [{**_ALERT, "status": "opened"}],
    "resolved": [
        {
            **_ALERT,
            "status": "resolved",
            "outcome": "This is a test message from `tacho notify test`: train_loss has recovered.",
        }
    ],
    "milestone": [{"event": "step", "global_step": 121, "train_loss": 0.4931}],
}


def sample_message(event: str, settings: NotifySettings, *, host: str) -> Message:
    """Return a message for an event, built from sample records as for a real run."""
    sample_settings = NotifySettings(
        milestones=("train_loss < 0.5",),
        metrics=("train_loss", "lr", "val_loss"),
        project=settings.project,
        dashboard_url=settings.dashboard_url,
    )
    # The run id is unique, so that a receiver does not treat the second sample as a repetition of the first.
    builder = MessageBuilder("sample-run", sample_settings, BuilderState())
    start_s = time.time() - 754.0
    start = {"event": "start", "time": start_s, "run_id": str(time.time_ns()), "host": host, "max_steps": 500}
    step = {"event": "step", "global_step": 120, "train_loss": 0.6123, "lr": 3e-4, "val_loss": 0.66}
    messages = [
        message
        for record in (start, step, *_RECORDS[event])
        for message in builder.handle({"time": time.time(), **record})
        if message.event == event
    ]
    return messages[-1]
