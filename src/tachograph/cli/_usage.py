"""`tacho usage`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from tachograph.cli._format import json_text, safe
from tachograph.cli._options import json_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import did_you_mean
from tachograph.usage import (
    MAX_BATCH_EVENTS,
    AppState,
    Decision,
    JsonLines,
    apply_choice,
    clear_choice,
    decision_for,
    find_app,
    list_apps,
    preview,
    purge,
)

__all__ = ["usage"]

Command = TypeVar("Command", bound=Callable[..., Any])

_STATES = {"sent": "sent", "refused": "rejected", "waiting": "waiting", "local": "local"}
"""The states of events, as `--json` and as the text for people name them."""
_NO_APPS = """No app with usage telemetry has run on this machine. Tachograph itself reports nothing to anyone.

Run `tacho usage off` to opt out of every app, now and in the future. Set DO_NOT_TRACK=1 to opt out in one shell."""


def app_argument(command: Command) -> Command:
    """Add the optional name of an app."""
    return click.argument("app", required=False)(command)


@click.group()
def usage() -> None:
    """Show and control the usage reports of frameworks."""


@usage.command("status")
@app_argument
@json_option
def status(app: str | None, as_json: bool) -> None:
    """Show for each app whether it records and sends, why, where it sends, and how much it recorded."""
    states = [state for state in list_apps() if app in {None, state.app}]
    decision = decision_for(app)
    if as_json:
        summaries = [_summary(state) for state in states]
        if not states and app is not None and decision is not None:
            summaries.append({"app": app, **_decision_values(decision)})
        echo(json_text(summaries))
        return
    if states:
        echo("\n\n".join(map(_status_text, states)))
    elif decision is not None:
        subject = "No app has" if app is None else "It has not"
        echo(f"{app or 'every app'}: {decision.mode} ({decision.reason}). {subject} run on this machine yet.")
    else:
        unknown = f"{app} has not run on this machine yet, and no choice is stored for it."
        echo(_NO_APPS if app is None else unknown)


@usage.command("on")
@click.argument("app")
def on(app: str) -> None:
    """Allow an app to send its reports. Consent is given for each app by name."""
    apply_choice("on", app)
    echo(_choice_text("on", app))


@usage.command("off")
@app_argument
def off(app: str | None) -> None:
    """Record and send nothing, for one app or for every app, now and in the future."""
    _withdraw("off", app)


@usage.command("local")
@app_argument
def local(app: str | None) -> None:
    """Record on this machine and send nothing, for one app or for every app, now and in the future."""
    _withdraw("local", app)


@usage.command("unset")
@app_argument
def unset(app: str | None) -> None:
    """Forget the stored choice for one app, or all stored choices. The defaults of each app apply again."""
    subject = app or "every app"
    if not clear_choice(app):
        echo(f"No choice is stored for {subject}.")
        return
    echo(f"Removed: the stored choice for {subject}.")
    for state in list_apps():
        if app in {None, state.app}:
            echo(f"{state.app} is now {state.decision.mode}: {state.decision.reason}.")


@usage.command("preview")
@app_argument
@click.option("--fields", is_flag=True, help="List all events with all their possible fields instead.")
def show_preview(app: str | None, fields: bool) -> None:
    """Show the exact request that would be sent now: pending events and the type of machine. Sends nothing."""
    state = find_app(app)
    if fields:
        for event, info in state.fields.items():
            echo(f"{safe(event, 60)}: {safe(info['doc'], 400)}")
            for name, field in info["fields"].items():
                echo(f"    {safe(name, 60)}: {safe(field['doc'], 400)} [{safe(field['kind'], 400)}]")
        return
    endpoint, events = state.config.receiver, preview(state)
    if state.decision.mode != "on":
        echo(f"By default a run sends none of this: {state.decision.reason}.", err=True)
    if endpoint is None:
        echo(f"{state.app} has no endpoint. These events would be recorded locally:", err=True)
        echo("\n".join(json.dumps(event, indent=2) for event in events))
        return
    echo(f"{'Lines of' if isinstance(endpoint, JsonLines) else 'POST'} {endpoint.name}", err=True)
    for begin in range(0, len(events), MAX_BATCH_EVENTS):
        body = endpoint.body(events[begin : begin + MAX_BATCH_EVENTS])
        echo("\n".join(json.dumps(json.loads(line), indent=2) for line in body.splitlines()))


@usage.command("log")
@app_argument
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=20, show_default=True, help="Number of newest events."
)
@json_option
def log(app: str | None, lines: int, as_json: bool) -> None:
    """List the recorded events of an app, and whether each was sent, was rejected, is waiting or stays local."""
    state = find_app(app)
    events = state.events[-lines:]
    if as_json:
        for item in events:
            refusal = {"refusal": item.refusal} if item.refusal else {}
            echo(json.dumps({"state": item.state, **refusal, **item.event}))
        return
    for item in events:
        properties = safe(json.dumps(item.event["properties"]), 2_000)
        when, name = safe(item.event["timestamp"], 40), safe(item.event["event"], 60)
        echo(
            f"{when}  {_STATES[item.state]:8}  {name}  {properties}"
            + (f"  [{safe(item.refusal, 200)}]" if item.refusal else "")
        )
    if not events:
        echo(f"{state.app} has recorded nothing on this machine.")


@usage.command("purge")
@app_argument
def delete(app: str | None) -> None:
    """Delete the recorded events of one app or of all apps. Stored choices are kept."""
    states = purge(app)
    for state in states:
        received_items = [item for item in state.events if item.state in {"sent", "refused"}]
        echo(f"{state.app}: deleted {_num_events(len(state.events))}")
        if received_items:
            run_ids = sorted({item.event["run_id"] for item in received_items})
            echo(
                f"  {len(received_items)} of them had reached the receiver. "
                "Ask for their deletion with these run ids:\n    "
                + "\n    ".join(safe(run_id, 40) for run_id in run_ids)
            )
    if not states:
        echo("There is nothing to delete.")


def _withdraw(mode: str, app: str | None) -> None:
    num_held_back = apply_choice(mode, app)
    echo(_choice_text(mode, app))
    if num_held_back:
        echo(
            f"{_num_events(num_held_back)} waiting to be sent will stay on this machine. "
            "Run `tacho usage purge` to delete recorded events."
        )


def _choice_text(mode: str, app: str | None) -> str:
    """Return a confirmation of a choice, with the apps for which something else takes precedence."""
    states = list_apps()
    lines = [f"Stored: {mode} for {app or 'every app'}."]
    if app is not None and app not in {state.app for state in states}:
        lines.append(
            f"{app} has not run on this machine yet{did_you_mean(app, [state.app for state in states]) or '.'}"
        )
    for state in states:
        if app in {None, state.app} and state.decision.mode != mode:
            lines.append(f"{state.app} is still {state.decision.mode}: {state.decision.reason}.")
    return "\n".join(lines)


def _status_text(state: AppState) -> str:
    label, endpoint = "endpoint", "none"
    if state.config.receiver is not None:
        label = "sends to" if state.decision.mode == "on" else "would send to"
        endpoint = state.config.receiver.name
    counts = ", ".join(f"{state.count(name)} {text}" for name, text in _STATES.items() if state.count(name))
    refusals = [item.refusal for item in state.events if item.refusal]
    prefix = state.config.env_prefix
    return "\n".join(
        [
            f"{state.app}: {state.decision.mode}",
            f"  reason         {state.decision.reason}",
            f"  {label:14} {safe(endpoint, 200)}",
            f"  recorded       {_num_events(len(state.events))}{f' ({counts})' if counts else ''} in {state.folder}",
            *([f"  last rejection {safe(refusals[-1], 200)}"] if refusals else []),
            f"  inspect        tacho usage preview {state.app}, tacho usage log {state.app}",
            f"  change         tacho usage on|local|off {state.app}, or {prefix}_DO_NOT_TRACK=1",
        ]
    )


def _summary(state: AppState) -> dict[str, Any]:
    return {
        "app": state.app,
        **_decision_values(state.decision),
        "policy": state.config.consent,
        "endpoint": state.config.receiver.name if state.config.receiver is not None else None,
        "folder": str(state.folder),
        "num_events": {name: state.count(name) for name in _STATES},
    }


def _decision_values(decision: Decision) -> dict[str, Any]:
    return {"mode": decision.mode, "reason": decision.reason, "is_explicit": decision.is_explicit}


def _num_events(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"
