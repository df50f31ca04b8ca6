"""The configuration of an app: its name, the endpoint of its events, and the fields that they may have."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tachograph._base.guard import faults
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._consent import ChoiceLike, Decision, Policy, check_policy, decide
from tachograph.usage._endpoint import Endpoint, parse_endpoint
from tachograph.usage._fields import FIELD_TYPES, Choice, Group, ListOf, SchemaField, Version, describe_fields
from tachograph.usage._folder import check_app
from tachograph.usage._schemas import CONFIG_EVENTS, PACKAGES, SCHEMAS, Schema

__all__ = ["KNOWN_PACKAGES", "UsageConfig", "clean_version", "read_organizations"]

_PREFIX = r"[A-Z][A-Z0-9_]{0,31}"
_EVENT = r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
# Properties that endpoints add to every event.
_RESERVED_FIELDS = ("app", "app_version", "distinct_id")
_FIELD = r"[a-z][a-z0-9_]{0,63}"
_PATH = r"[^.\s]+(?:\.[^.\s]+)*"
_PACKAGE = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_ORGANIZATION = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"

KNOWN_PACKAGES = tuple(name.replace("-", "_") for name in PACKAGES)
"""Packages besides the app's own whose code an error may name, if they are installed."""


@dataclass(frozen=True, kw_only=True)
class UsageConfig:
    """Configuration of a framework that embeds usage telemetry. It is validated at once.

    Attributes:
        app: name of the framework, in lower case.
        env_prefix: prefix of its environment variables, as in ``AXOLOTL`` for ``AXOLOTL_DO_NOT_TRACK``. Defaults to the
            name in upper case.
        endpoint: where events are sent: the URL of a PostHog instance, or a `PostHog`, `OtlpLogs` or `JsonLines`.
            Without one, nothing is ever sent.
        api_key: the project's public key, if the endpoint is a URL. PostHog Cloud needs one.
        organizations: owners on the Hub whose models and datasets may be named.
        consent: the policy if the user made no choice: ``opt-in`` (record nothing), ``local`` (record, do not send) or
            ``opt-out`` (send, after a notice and a pause).
        version: version of the framework; defaults to the version of the installed distribution of its name. An
            invalid one, such as ``unknown``, is not sent.
        packages: packages of the framework, whose code an error may name. Defaults to the one with its name.
        config_map: where to find the fields of the config events in a config: a dotted path, or a function of the
            config.
        events: additional events, and additional fields of built-in ones: ``{"name": {"field": Count("Meaning.")}}`` or
            ``{"name": Schema("When it is recorded.", {"field": …})}``.
        docs_url: a page with more information, for the notice.
    """

    app: str
    env_prefix: str = ""
    endpoint: str | Endpoint | None = None
    api_key: str = ""
    organizations: Sequence[str] = ()
    consent: Policy = "local"
    version: str = ""
    packages: Sequence[str] = ()
    config_map: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)
    events: Mapping[str, Mapping[str, SchemaField] | Schema] = field(default_factory=dict)
    docs_url: str = ""

    def __post_init__(self) -> None:
        check_app(self.app)
        prefix = self.env_prefix or re.sub(r"[^A-Z0-9]", "_", self.app.upper())
        _check("env_prefix", prefix, _PREFIX, "upper case, such as 'AXOLOTL'")
        packages = _check_names("packages", self.packages or (self.app.replace("-", "_"),), _PACKAGE)
        organizations = _check_names("organizations", self.organizations, _ORGANIZATION)
        receiver = self.receiver
        if check_policy(self.consent) == "opt-out" and receiver is None:
            raise ConfigError("consent='opt-out' needs an endpoint; without one use consent='local'")
        if self.docs_url and not (isinstance(self.docs_url, str) and self.docs_url.startswith("https://")):
            raise ConfigError(f"docs_url={self.docs_url!r}: expected a URL that begins with https://")
        # Normalised values; the dataclass is frozen.
        for name, value in {
            "env_prefix": prefix,
            "version": clean_version(self.version),
            "packages": packages,
            "organizations": tuple(organization.lower() for organization in organizations),
        }.items():
            object.__setattr__(self, name, value)
        # Building the schemas validates `events`, so that a mistake is an error here and not while training.
        config_fields = self.schemas[CONFIG_EVENTS[0]].fields
        if not isinstance(self.config_map, Mapping):
            raise ConfigError(f"config_map={self.config_map!r}: expected a mapping from fields to paths in a config")
        for name, source in self.config_map.items():
            is_path = isinstance(source, str) and re.fullmatch(_PATH, source) is not None
            if not is_path and not callable(source):
                raise ConfigError(
                    f"config_map[{name!r}]: expected a path such as 'lora.rank' or a function, got {source!r}"
                )
            if name not in config_fields:
                raise ConfigError(
                    f"config_map: no field {name!r} in {CONFIG_EVENTS[0]}{did_you_mean(str(name), config_fields)}; "
                    f"declare it with events={{{CONFIG_EVENTS[0]!r}: {{{name!r}: …}}}}"
                )

    @property
    def receiver(self) -> Endpoint | None:
        """The endpoint that `endpoint` and `api_key` describe."""
        return parse_endpoint(self.endpoint, self.api_key)

    @cached_property
    def schemas(self) -> dict[str, Schema]:
        """All events of this app by name."""
        return _merge_schemas(self.events)

    def decide(self, choice: ChoiceLike = None) -> Decision:
        """Decide the mode of this app. Without an endpoint it can only record locally."""
        decision = decide(self.app, self.env_prefix, self.consent, choice=choice)
        if decision.mode == "on" and self.receiver is None:
            return decision._replace(mode="local", reason=f"{decision.reason}; {self.app} has no endpoint")
        return decision

    def facts(self) -> dict[str, Any]:
        """Return everything as plain values, for `tacho usage` and to compare two configurations."""
        receiver = self.receiver
        return {
            "app": self.app,
            "env_prefix": self.env_prefix,
            "consent": self.consent,
            "endpoint": None if receiver is None else receiver.facts(),
            "organizations": list(self.organizations),
            "version": self.version,
            "packages": list(self.packages),
            "config_map": {
                name: source if isinstance(source, str) else getattr(source, "__qualname__", type(source).__qualname__)
                for name, source in self.config_map.items()
            },
            "docs_url": self.docs_url,
            "events": {
                name: {"doc": schema.doc, "fields": describe_fields(schema.fields)}
                for name, schema in self.schemas.items()
            },
        }


def read_organizations(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names in a YAML file that lists organizations of the Hub: ``UsageConfig(organizations=…)``.

    The file has one key, `organizations`, with a list of names.

    Raises:
        ConfigError: if the file cannot be read or has another content.
    """
    import yaml

    from tachograph._base.config import parse_yaml

    file = os.fspath(path)
    try:
        with open(file, encoding="utf-8") as text:
            content = parse_yaml(text.read())
    except faults(OSError) as error:
        raise ConfigError(f"cannot read the organizations in {file!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file!r} is not valid YAML: {getattr(error, 'problem', None) or error}") from None
    names = content.get("organizations") if isinstance(content, Mapping) else None
    if not isinstance(names, list):
        raise ConfigError(f"{file!r}: expected the key `organizations` with a list of names")
    return _check_names(f"organizations in {file!r}", names, _ORGANIZATION)


def clean_version(version: Any) -> str:
    """Return the public part of a version; empty if it is invalid."""
    public_version = Version("").clean(version, ())
    return public_version if isinstance(public_version, str) else ""


def _merge_schemas(events: Mapping[str, Mapping[str, SchemaField] | Schema]) -> dict[str, Schema]:
    """Return the events of an app and the built-in ones. A field of one config event is added to both."""
    schemas = dict(SCHEMAS)
    if not isinstance(events, Mapping):
        raise ConfigError(f"events={events!r}: expected a mapping from names of events to their fields")
    for event, schema in events.items():
        doc, fields = schema if isinstance(schema, Schema) else ("", schema)
        if event == "error":
            raise ConfigError("events: 'error' is built from an exception and cannot have additional fields")
        _check("events", event, _EVENT, "a name such as 'dataset-packed'")
        if not isinstance(fields, Mapping) or not isinstance(doc, str):
            raise ConfigError(f"events[{event!r}]: expected a mapping from names to fields such as Count('…')")
        for name, item in fields.items():
            _check(f"events[{event!r}]", name, _FIELD, "a name such as 'num_packs'")
            _check_field(f"events[{event!r}][{name!r}]", item)
            if not isinstance(item.doc, str) or not item.doc.strip():
                raise ConfigError(
                    f"events[{event!r}][{name!r}]: describe the field for your users, as in Count('Number of packs.')"
                )
            if name in _RESERVED_FIELDS:
                raise ConfigError(f"events[{event!r}]: {name!r} is part of every event; use another name")
            if event in SCHEMAS and name in SCHEMAS[event].fields:
                raise ConfigError(f"events[{event!r}]: the field {name!r} exists already; use another name")
        for name_to_extend in CONFIG_EVENTS if event in CONFIG_EVENTS else (event,):
            old = schemas.get(name_to_extend, Schema(doc or "A custom event of the app.", {}))
            schemas[name_to_extend] = Schema(old.doc, {**old.fields, **fields})
    return schemas


def _check_field(where: str, item: Any) -> None:
    # The exact type: a subclass could return anything from `clean`.
    if type(item) not in FIELD_TYPES:
        names = ", ".join(kind.__name__ for kind in FIELD_TYPES)
        raise ConfigError(f"{where}: expected a field, one of {names}; got {type(item).__name__}")
    if isinstance(item, Group):
        for name, inner in item.fields.items():
            _check(where, name, _FIELD, "a name such as 'num_packs'")
            _check_field(f"{where}[{name!r}]", inner)
    if isinstance(item, ListOf):
        _check_field(where, item.field)
        if not isinstance(item.most, int) or item.most < 1:
            raise ConfigError(f"{where}: most={item.most!r}: expected an integer of at least 1")
    if isinstance(item, Choice):
        # Imported here: most apps declare no choice, and one that is off should not compile the patterns.
        from tachograph.usage._redact import is_private

        if not item.words or not all(isinstance(word, str) for word in item.words.values()):
            raise ConfigError(
                f"{where}: expected words to choose from, as in Choice('Packing method.', 'full', 'none')"
            )
        for word in item.words.values():
            if is_private(word):
                raise ConfigError(f"{where}: {word!r} looks private and would be redacted; use short, plain words")


def _check(name: str, value: Any, pattern: str, description: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ConfigError(f"{name}={value!r}: expected {description}")


def _check_names(name: str, values: Any, pattern: str) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"{name}={values!r}: expected a list of names")
    for value in values:
        _check(name, value, pattern, "names without spaces or slashes")
    return tuple(values)
