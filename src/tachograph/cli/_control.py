"""`tacho control`: list the controls of a run, or request new values and wait until the trainer acknowledges them."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
import rich_click as click

from tachograph.cli._audit import audit_local_change
from tachograph.cli._format import add_row, json_text, new_console, new_table, number, safe
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._terminal import echo
from tachograph.exceptions import ControlError
from tachograph.journal import LOG_EVERY_MAX, LOG_EVERY_MIN, PROFILE_STEPS_MAX, JournalFollower, journal_size
from tachograph.reader import RunHistory, read, request_control

__all__ = ["control", "wait_for_acks"]

# A request with one of these statuses gets no further answer; "pending" does.
_FINAL_STATUSES = {"applied", "clamped", "unchanged", "superseded", "rejected"}


@click.command()
@run_argument
@log_dir_option
@json_option
@click.option(
    "--log-every",
    metavar="N|default",
    help=f"Record every Nth step ({LOG_EVERY_MIN} to {LOG_EVERY_MAX}); `default` restores the initial value.",
)
@click.option(
    "--set",
    "values",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a control that the training loop registered, such as lr_scale=0.5.",
)
@click.option("--checkpoint-now", is_flag=True, help="Ask the training loop to save a checkpoint.")
@click.option(
    "--profile-steps",
    type=int,
    metavar="N",
    help=f"Trace the next N steps (1 to {PROFILE_STEPS_MAX}) with torch's profiler.",
)
@click.option("--stop", is_flag=True, help="Ask the training loop to stop.")
@click.option(
    "--wait", "wait_s", type=float, default=0.0, help="Seconds to wait until the trainer confirms the request."
)
def control(
    run: str,
    log_dir: str,
    as_json: bool,
    log_every: str | None,
    values: tuple[str, ...],
    checkpoint_now: bool,
    profile_steps: int | None,
    stop: bool,
    wait_s: float,
) -> None:
    """List the values of a running training that you can change, or change them."""
    history = read(run, log_dir)
    requests: dict[str, Any] = dict(_parse_assignment(text) for text in values)
    if log_every is not None:
        requests["log_every"] = _parse_log_every(log_every, history)
    if checkpoint_now:
        requests["checkpoint_now"] = True
    if profile_steps is not None:
        requests["profile_steps"] = profile_steps
    if stop:
        requests["stop"] = True
    if not requests:
        _print_controls(history, as_json=as_json)
        return
    # Follow from the current end of the journal: answers are written after the request.
    follower = JournalFollower(history.folder.journal, journal_size(history.folder.journal))
    old = {name: history.controls[name].value for name in requests if name in history.controls}
    ids = request_control(history, requests, source="cli")
    audit_local_change(history.folder.path.parent, "control", [history.folder.name], old=old, new=requests)
    acks = wait_for_acks(follower, ids, wait_s)
    if as_json:
        echo(json_text({"requested": requests, "ids": ids, "answers": acks}))
    else:
        for name, value in requests.items():
            echo(_format_ack(name, value, acks.get(name)))
    if any(ack.get("status") == "rejected" for ack in acks.values()):
        raise SystemExit(1)


def _parse_log_every(text: str, history: RunHistory) -> Any:
    if text == "default":
        return history.controls["log_every"].initial
    try:
        return int(text)
    except ValueError:
        message = f"{text!r}: expected a number of steps, or default"
        raise click.BadParameter(message, param_hint="--log-every") from None


def _parse_assignment(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, where VALUE is a boolean or a finite number."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ControlError(f"--set {text!r}: expected NAME=VALUE, such as --set lr_scale=0.5")
    if value.lower() in {"true", "false"}:
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            numeric_value = kind(value)
        except ValueError:
            continue
        if math.isfinite(numeric_value):
            return name, numeric_value
    raise ControlError(f"--set {text!r}: {value!r} is not a finite number, true or false")


def wait_for_acks(follower: JournalFollower, ids: dict[str, str], wait_s: float) -> dict[str, dict[str, Any]]:
    """Return the latest answer to each request, by name; stop early when all of them are final."""
    acks: dict[str, dict[str, Any]] = {}
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        for record in follower.poll():
            if record.get("name") == "control_ack" and ids.get(str(record.get("control"))) == record.get("id"):
                acks[str(record["control"])] = record
        if all(acks.get(name, {}).get("status") in _FINAL_STATUSES for name in ids):
            break
        time.sleep(0.1)
    return acks


def _format_ack(name: str, value: Any, ack: dict[str, Any] | None) -> str:
    if ack is None:
        return f"{name}={value} requested; the trainer polls every few seconds (use --wait 10 to see its answer)"
    status = ack.get("status")
    if ack.get("path"):
        hint = "; open it in ui.perfetto.dev" if name == "profile_steps" else ""
        return f"{name}={value} {safe(status)}: {safe(ack['path'])} in the run folder{hint}"
    if status == "pending":
        wait_s = ack.get("wait_s") or 0
        when = f"in about {wait_s:g} s" if wait_s else "at the next step"
        return f"{name}={value} received by the trainer; it takes effect {when}"
    detail = f": {safe(ack['reason'])}" if ack.get("reason") else f"; current value: {number(ack.get('value'))}"
    return f"{name}={value} {safe(status)}{detail}"


def _print_controls(history: RunHistory, *, as_json: bool) -> None:
    controls = history.controls
    if as_json:
        echo(json_text(msgspec.to_builtins(controls)))
        return
    table = new_table("control", "value", "min", "max", "last answer")
    for name, view in controls.items():
        cells = (number(view.value), number(view.min), number(view.max), safe(view.last_answer or "–"))
        add_row(table, safe(name), *cells)
    new_console().print(table)
