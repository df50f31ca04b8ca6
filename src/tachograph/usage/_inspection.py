"""What `tacho usage` shows and changes: the apps on this machine, their decisions, and their recorded events."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tachograph._base.guard import faults
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._config import UsageConfig
from tachograph.usage._consent import Decision, decide, parse_policy
from tachograph.usage._endpoint import Endpoint, Event, endpoint_from_facts
from tachograph.usage._folder import ALL_APPS, app_folder, check_app, known_apps, set_choice, stored_choice
from tachograph.usage._process import new_id
from tachograph.usage._spool import StoredEvent, delete_events, keep_all_local, read_events

__all__ = ["AppState", "list_apps", "apply_choice", "decision_for", "find_app", "preview", "purge"]


class AppState(NamedTuple):
    """An app that ran on this machine."""

    app: str
    config: UsageConfig
    decision: Decision
    folder: Path
    events: list[StoredEvent]
    fields: dict[str, Any]
    """Description of each event and its fields."""

    def count(self, state: str) -> int:
        """Return the number of events that are ``sent``, ``refused``, ``waiting`` or ``local``."""
        return sum(stored_event.state == state for stored_event in self.events)


def list_apps() -> list[AppState]:
    """Return every app that ran on this machine."""
    return [_state(facts) for facts in known_apps()]


def find_app(app: str | None) -> AppState:
    """Return an app, or the only one if no name is given.

    Raises:
        ConfigError: if it is unknown, or no name is given and there are several.
    """
    apps = {state.app: state for state in list_apps()}
    if app is None and len(apps) == 1:
        return next(iter(apps.values()))
    if app is not None and app in apps:
        return apps[app]
    if app is None and apps:
        raise ConfigError(f"several apps have usage telemetry; pass the name of one: {', '.join(apps)}")
    if app is None:
        raise ConfigError("no app with usage telemetry has run on this machine")
    check_app(app)
    app_list = f"; known apps: {', '.join(apps)}" if apps else ""
    raise ConfigError(f"no app {app!r} has run on this machine{did_you_mean(app, apps) or app_list}")


def decision_for(app: str | None) -> Decision | None:
    """Return the decision for an app that has not run on this machine, or for all apps.

    Returns:
        None if only the app's policy, which is unknown, would decide.

    Raises:
        ConfigError: if the name is invalid.
    """
    if app is None:
        choice = stored_choice(ALL_APPS)
        return None if choice is None else Decision(choice.mode, choice.reason, "stored")
    decision = decide(app, UsageConfig(app=app).env_prefix, "local")
    return None if decision.source == "policy" else decision


def apply_choice(mode: str, app: str | None) -> int:
    """Store a choice for an app or all apps, and hold back their pending events unless it is "on".

    Returns:
        The number of events that were held back.

    Raises:
        ConfigError: if the name is invalid, or the choice cannot be stored.
    """
    # Stored first: a process that starts a new file after the rename already sees the choice.
    set_choice(mode, app)
    states = [state for state in list_apps() if app in {None, state.app}] if mode != "on" else []
    for state in states:
        keep_all_local(state.folder)
    return sum(state.count("waiting") for state in states)


def preview(state: AppState) -> list[Event]:
    """Return the events that would be sent now: the pending ones, and `system-info` unless it is among them."""
    from tachograph.usage._event import build_event, recheck_event
    from tachograph.usage._system import system_info

    # The schemas of the app are known only to the app; its saved description has the names of the fields.
    fields = {event: info["fields"] for event, info in state.fields.items()}
    waiting = [
        recheck_event(state.config, stored_event.event, fields)
        for stored_event in state.events
        if stored_event.state == "waiting"
    ]
    events = [event for event in waiting if event is not None]
    if not any(event["event"] == "system-info" for event in events):
        events.append(build_event(state.config, new_id(), "system-info", system_info()))
    return events


def purge(app: str | None) -> list[AppState]:
    """Delete the events of an app or all apps; return the states before."""
    states = list_apps() if app is None else [find_app(app)]
    for state in states:
        try:
            delete_events(state.folder)
        except faults(OSError) as error:
            raise ConfigError(f"cannot delete {state.folder}: {error.strerror}") from error
    return states


def _state(facts: dict[str, Any]) -> AppState:
    app = facts["app"]
    config = _config(facts)
    decision = config.decide()
    if decision.source == "policy" and parse_policy(facts.get("consent")) is None:
        decision = decision._replace(reason=f"the policy of {app} cannot be read; local is assumed")
    folder, receiver = app_folder(app), config.receiver
    events = list(read_events(folder, None if receiver is None else receiver.name))
    return AppState(app, config, decision, folder, events, _describe(facts))


def _config(facts: dict[str, Any]) -> UsageConfig:
    """Return the saved configuration of an app. Invalid values are ignored, because anyone can edit the file."""
    endpoint: Endpoint | None = endpoint_from_facts(facts.get("endpoint"))
    texts = {name: facts[name] for name in ("env_prefix", "version") if isinstance(facts.get(name), str)}
    organizations = facts.get("organizations")
    policy = parse_policy(facts.get("consent"))
    try:
        return UsageConfig(
            app=facts["app"],
            endpoint=endpoint,
            consent=policy if policy is not None and (policy != "opt-out" or endpoint is not None) else "local",
            organizations=organizations if isinstance(organizations, list) else (),
            **texts,
        )
    except ConfigError:
        return UsageConfig(app=facts["app"])


def _describe(facts: dict[str, Any]) -> dict[str, Any]:
    try:
        return {
            str(event): {
                "doc": str(info["doc"]),
                "fields": {
                    str(name): {"doc": str(field["doc"]), "kind": str(field["kind"])}
                    for name, field in info["fields"].items()
                },
            }
            for event, info in facts["events"].items()
        }
    except (KeyError, TypeError, AttributeError):
        fields: dict[str, Any] = UsageConfig(app=facts["app"]).facts()["events"]
        return fields
