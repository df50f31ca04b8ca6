"""What `tacho usage` asks: which apps there are, what is decided for each and why, what they kept and would send."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._config import UsageConfig
from tachograph.usage._consent import Decision, decide, named_policy
from tachograph.usage._endpoint import Endpoint, Event, endpoint_from
from tachograph.usage._folder import EVERY, app_folder, check_app, known_apps, set_choice, stored_choice
from tachograph.usage._process import new_id
from tachograph.usage._spool import Kept, delete_events, keep_here, kept_events

__all__ = ["AppState", "all_apps", "choose", "decided_for", "one_app", "preview", "purge"]


class AppState(NamedTuple):
    """An app that ran here, as far as it is known."""

    app: str
    config: UsageConfig
    decision: Decision
    folder: Path
    events: list[Kept]
    fields: dict[str, Any]
    """What each event may say, in words."""

    def count(self, state: str) -> int:
        """Return how many events are ``sent``, ``refused``, ``waiting`` or ``local``."""
        return sum(kept.state == state for kept in self.events)


def all_apps() -> list[AppState]:
    """Return every app that ran here."""
    return [_state(facts) for facts in known_apps()]


def one_app(app: str | None) -> AppState:
    """Return an app, or the only one there is.

    Raises:
        ConfigError: if it is not known, or there are several and none is named.
    """
    apps = {state.app: state for state in all_apps()}
    if app is None and len(apps) == 1:
        return next(iter(apps.values()))
    if app is not None and app in apps:
        return apps[app]
    if app is None and apps:
        raise ConfigError(f"several apps have usage telemetry: name one of {', '.join(apps)}")
    if app is None:
        raise ConfigError("no app with usage telemetry has run here")
    check_app(app)
    known = f"; those that have: {', '.join(apps)}" if apps else ""
    raise ConfigError(f"no app {app!r} with usage telemetry has run here{did_you_mean(app, apps) or known}")


def decided_for(app: str | None) -> Decision | None:
    """Return what holds for an app that has not run here, or for all, if anything but a policy says so.

    Raises:
        ConfigError: if the app cannot be one.
    """
    if app is None:
        stored = stored_choice(EVERY)
        return None if stored is None else Decision(stored.mode, stored.reason, "stored")
    decision = decide(app, UsageConfig(app=app).env_prefix, "local")
    return None if decision.source == "policy" else decision


def choose(mode: str, app: str | None) -> int:
    """Store a choice; where nothing may be sent any more, return how many events that waited stay here.

    Raises:
        ConfigError: if the app cannot be one, or the choice cannot be stored.
    """
    set_choice(mode, app)
    states = [state for state in all_apps() if app in {None, state.app}] if mode != "on" else []
    for state in states:
        keep_here(state.folder)
    return sum(state.count("waiting") for state in states)


def preview(state: AppState) -> list[Event]:
    """Return what would be sent now: what waits, and what this machine is like unless that is among it."""
    from tachograph.usage._event import checked_event, make_event
    from tachograph.usage._system import system_info

    fields = {event: about["fields"] for event, about in state.fields.items()}
    waiting = [checked_event(state.config, kept.event, fields) for kept in state.events if kept.state == "waiting"]
    events = [event for event in waiting if event is not None]
    if not any(event["event"] == "system-info" for event in events):
        events.append(make_event(state.config, new_id(), "system-info", system_info()))
    return events


def purge(app: str | None) -> list[AppState]:
    """Delete what an app kept, or all; return what there was."""
    states = all_apps() if app is None else [one_app(app)]
    for state in states:
        try:
            delete_events(state.folder)
        except OSError as error:
            raise ConfigError(f"cannot delete {state.folder}: {error.strerror}") from error
    return states


def _state(facts: dict[str, Any]) -> AppState:
    app = facts["app"]
    config = _config(facts)
    decision = config.decide()
    if decision.source == "policy" and named_policy(facts.get("consent")) is None:
        decision = decision._replace(reason=f"what {app} said of its policy cannot be read, and it is taken for local")
    folder, receiver = app_folder(app), config.receiver
    kept = list(kept_events(folder, None if receiver is None else receiver.name))
    return AppState(app, config, decision, folder, kept, _fields(facts))


def _config(facts: dict[str, Any]) -> UsageConfig:
    """Return what an app said of itself, as far as a file that anyone could have written is to be believed."""
    endpoint: Endpoint | None = endpoint_from(facts.get("endpoint"))
    texts = {name: facts[name] for name in ("env_prefix", "version") if isinstance(facts.get(name), str)}
    organizations = facts.get("organizations")
    policy = named_policy(facts.get("consent"))
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


def _fields(facts: dict[str, Any]) -> dict[str, Any]:
    try:
        return {
            str(event): {
                "doc": str(about["doc"]),
                "fields": {
                    str(name): {"doc": str(field["doc"]), "kind": str(field["kind"])}
                    for name, field in about["fields"].items()
                },
            }
            for event, about in facts["events"].items()
        }
    except (KeyError, TypeError, AttributeError):
        fields: dict[str, Any] = UsageConfig(app=facts["app"]).facts()["events"]
        return fields
