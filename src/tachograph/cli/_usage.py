"""`tacho usage`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from tachograph.cli._format import json_text, safe
from tachograph.cli._options import json_option
from tachograph.exceptions import did_you_mean
from tachograph.usage import Decision, JsonLines
from tachograph.usage._inspection import AppState, all_apps, choose, decided_for, one_app, preview, purge
from tachograph.usage._sender import MOST_PER_BATCH

__all__ = ["usage"]

Command = TypeVar("Command", bound=Callable[..., Any])

_STATES = ("sent", "refused", "waiting", "local")
_NONE = """No app with usage telemetry has run here, and Tachograph itself reports nothing to anyone.

`tacho usage off` says no for every app that you will ever use; DO_NOT_TRACK=1 does so for one shell."""


def app_argument(command: Command) -> Command:
    """Add the app, which may be left out."""
    return click.argument("app", required=False)(command)


@click.group()
def usage() -> None:
    """See and decide what frameworks report of how they are used."""


@usage.command("status")
@app_argument
@json_option
def status(app: str | None, as_json: bool) -> None:
    """Say what is decided for each app, and why; what it kept here; where it would send it."""
    states = [state for state in all_apps() if app in {None, state.app}]
    decision = decided_for(app)
    if as_json:
        summaries = [_summary(state) for state in states]
        if not states and app is not None and decision is not None:
            summaries.append({"app": app, **_decided(decision)})
        click.echo(json_text(summaries))
        return
    if states:
        click.echo("\n\n".join(map(_told, states)))
    elif decision is not None:
        click.echo(f"{app or 'every app'}: {decision.mode}, for {decision.reason}. It has not run here yet.")
    else:
        click.echo(_NONE if app is None else f"{app} has not run here yet, and nothing is chosen for it.")


@usage.command("on")
@click.argument("app")
def on(app: str) -> None:
    """Agree that an app sends its reports. It is agreed for each app by its name."""
    choose("on", app)
    click.echo(_now("on", app))


@usage.command("off")
@app_argument
def off(app: str | None) -> None:
    """Record nothing and send nothing, for an app or for every app there is and will be."""
    _withdraw("off", app)


@usage.command("local")
@app_argument
def local(app: str | None) -> None:
    """Record on this machine and send nothing, for an app or for every app there is and will be."""
    _withdraw("local", app)


@usage.command("preview")
@app_argument
@click.option("--fields", is_flag=True, help="List instead every event there is, with every field it may have.")
def show_preview(app: str | None, fields: bool) -> None:
    """Show the very request that would be sent now: what waits, and what this machine is like. Nothing is sent."""
    state = one_app(app)
    if fields:
        for event, about in state.fields.items():
            click.echo(f"{safe(event, 60)}: {safe(about['doc'], 400)}")
            for name, field in about["fields"].items():
                click.echo(f"    {safe(name, 60)}: {safe(field['doc'], 400)} [{safe(field['kind'], 400)}]")
        return
    receiver, events = state.config.receiver, preview(state)
    if state.decision.mode != "on":
        click.echo(f"A run that nobody told otherwise sends nothing of this: {state.decision.reason}.", err=True)
    if receiver is None:
        click.echo(f"{state.app} has nowhere to send it. As it would be kept here:", err=True)
        click.echo("\n".join(json.dumps(event, indent=2) for event in events))
        return
    click.echo(f"{'Lines of' if isinstance(receiver, JsonLines) else 'POST'} {receiver.name}", err=True)
    for begin in range(0, len(events), MOST_PER_BATCH):
        body = receiver.body(events[begin : begin + MOST_PER_BATCH])
        click.echo("\n".join(json.dumps(json.loads(line), indent=2) for line in body.splitlines()))


@usage.command("log")
@app_argument
@click.option("-n", "--lines", type=click.IntRange(min=1), default=20, show_default=True, help="How many, the newest.")
@json_option
def log(app: str | None, lines: int, as_json: bool) -> None:
    """List the events that an app recorded here, and whether each was sent, waits, or stays here."""
    state = one_app(app)
    kept = state.events[-lines:]
    if as_json:
        for item in kept:
            refusal = {"refusal": item.refusal} if item.refusal else {}
            click.echo(json.dumps({"state": item.state, **refusal, **item.event}))
        return
    for item in kept:
        properties = safe(json.dumps(item.event["properties"]), 2_000)
        click.echo(
            f"{safe(item.event['timestamp'], 40)}  {item.state:7}  {safe(item.event['event'], 60)}  {properties}"
            + (f"  [{safe(item.refusal, 200)}]" if item.refusal else "")
        )
    if not kept:
        click.echo(f"{state.app} has recorded nothing here.")


@usage.command("purge")
@app_argument
def delete(app: str | None) -> None:
    """Delete what an app recorded here, or what all did. What you chose stays."""
    states = purge(app)
    for state in states:
        gone = [kept for kept in state.events if kept.state in {"sent", "refused"}]
        click.echo(f"{state.app}: deleted {_events(len(state.events))}")
        if gone:
            run_ids = sorted({kept.event["run_id"] for kept in gone})
            click.echo(
                f"  {len(gone)} of them had reached the receiver, under these ids, by which it can find them:\n    "
                + "\n    ".join(safe(run_id, 40) for run_id in run_ids)
            )
    if not states:
        click.echo("There is nothing to delete.")


def _withdraw(mode: str, app: str | None) -> None:
    num_waiting = choose(mode, app)
    click.echo(_now(mode, app))
    if num_waiting:
        click.echo(f"{_events(num_waiting)} that waited will not be sent; `tacho usage purge` deletes what is kept.")


def _now(mode: str, app: str | None) -> str:
    """Return what holds after a choice, which something stronger may overrule."""
    states = all_apps()
    lines = [f"Stored: {mode} for {app or 'every app'}."]
    if app is not None and app not in {state.app for state in states}:
        lines.append(f"{app} has not run here yet{did_you_mean(app, [state.app for state in states]) or '.'}")
    for state in states:
        if app in {None, state.app} and state.decision.mode != mode:
            lines.append(f"{state.app} is {state.decision.mode} all the same: {state.decision.reason}.")
    return "\n".join(lines)


def _told(state: AppState) -> str:
    where = state.config.receiver.name if state.config.receiver is not None else "nowhere"
    sends = "goes to" if state.decision.mode == "on" else "would go to"
    counts = ", ".join(f"{state.count(name)} {name}" for name in _STATES if state.count(name))
    refusals = [kept.refusal for kept in state.events if kept.refusal]
    prefix = state.config.env_prefix
    return "\n".join(
        [
            f"{state.app}: {state.decision.mode}",
            f"  why          {state.decision.reason}",
            f"  {sends:12} {safe(where, 200)}",
            f"  kept here    {_events(len(state.events))}{f' ({counts})' if counts else ''} in {state.folder}",
            *([f"  refused      {safe(refusals[-1], 200)}"] if refusals else []),
            f"  see it       tacho usage preview {state.app}, tacho usage log {state.app}",
            f"  change it    tacho usage on|local|off {state.app}, or {prefix}_DO_NOT_TRACK=1",
        ]
    )


def _summary(state: AppState) -> dict[str, Any]:
    return {
        "app": state.app,
        **_decided(state.decision),
        "policy": state.config.consent,
        "endpoint": state.config.receiver.name if state.config.receiver is not None else None,
        "folder": str(state.folder),
        "num_events": {name: state.count(name) for name in _STATES},
    }


def _decided(decision: Decision) -> dict[str, Any]:
    return {"mode": decision.mode, "reason": decision.reason, "is_explicit": decision.is_explicit}


def _events(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"
