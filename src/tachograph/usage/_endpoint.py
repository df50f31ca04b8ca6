"""Where events are sent: PostHog's batch API, a collector of OTLP logs, or a file.

An endpoint is a plain value that builds the bytes of a request. The HTTP client is imported when something is sent.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tachograph._base.guard import faults
from tachograph._base.version import __version__
from tachograph.exceptions import ConfigError

__all__ = ["Endpoint", "Event", "JsonLines", "OtlpLogs", "PostHog", "parse_endpoint", "endpoint_from_facts"]

Event = dict[str, Any]
"""An event as stored: uuid, event, timestamp, run_id, app, app_version, properties."""

# Plain HTTP is allowed only where nothing leaves the machine.
_LOOPBACK = r"(?i)http://(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?(?:/.*)?"


class Endpoint(Protocol):
    """Receives events."""

    @property
    def name(self) -> str:
        """Where events are sent, for people."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return it as plain values, from which `endpoint_from_facts` can build it again."""
        ...

    def body(self, events: Sequence[Event]) -> bytes:
        """Return the body of the request for some events."""
        ...

    def send(self, events: Sequence[Event], timeout_s: float, before_send: Callable[[], None]) -> None:
        """Send some events.

        Args:
            events: those to send.
            timeout_s: limit for the connection and for each read.
            before_send: called when everything is ready, right before the first byte is sent.

        Raises:
            DeliveryError: if they were not delivered, or `before_send` raised it.
        """
        ...


@dataclass(frozen=True)
class PostHog:
    """PostHog, or any server with its batch API: ``PostHog("https://eu.i.posthog.com", "phc_…")``.

    Events are anonymous: they create no person profile, GeoIP lookup is disabled, and the instance is asked not to
    store the IP address.

    Attributes:
        url: URL of the instance.
        api_key: the project's public key, which can only write. A server of your own may need none.
    """

    url: str
    api_key: str = ""

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not isinstance(self.api_key, str):
            raise ConfigError(f"api_key={self.api_key!r}: expected a string: the project's public key (phc_…)")
        if not self.api_key and _is_posthog_cloud(self.url):
            raise ConfigError("a PostHog endpoint needs api_key, the project's public key (phc_…)")
        if self.url.rstrip("/").endswith(("/e", "/capture")):
            raise ConfigError(f"endpoint {self.url!r} takes single events; expected only the URL of the instance")
        if self.api_key.startswith(("phx_", "phs_")):
            raise ConfigError(
                "api_key: this is a private key of PostHog, which anyone could read in your package; "
                "use the project's public key (phc_…)"
            )

    @property
    def name(self) -> str:
        """The URL of the request."""
        return f"{_with_path(self.url, '/batch')}/"

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"kind": "PostHog", "url": self.url, "api_key": self.api_key}

    def body(self, events: Sequence[Event]) -> bytes:
        """Return a batch request."""
        return _json({"api_key": self.api_key, "batch": [_posthog_event(event) for event in events]})

    def send(self, events: Sequence[Event], timeout_s: float, before_send: Callable[[], None]) -> None:
        """Send a batch request."""
        _post(self.name, self.body(events), {}, timeout_s, before_send)


@dataclass(frozen=True)
class OtlpLogs:
    """A collector that accepts OTLP logs over HTTP as JSON: ``OtlpLogs("https://collector.example.com:4318")``.

    Attributes:
        url: URL of the collector, without ``/v1/logs``.
        headers: additional headers. Anyone can read them in your package, so they must not contain secrets.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_url(self.url)
        headers = self.headers
        if not isinstance(headers, Mapping) or not all(
            isinstance(text, str) and text.isprintable() for item in headers.items() for text in item
        ):
            raise ConfigError(f"OtlpLogs headers={headers!r}: expected a mapping from names to single-line strings")

    @property
    def name(self) -> str:
        """The URL of the request."""
        return _with_path(self.url, "/v1/logs")

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"kind": "OtlpLogs", "url": self.url, "headers": dict(self.headers)}

    def body(self, events: Sequence[Event]) -> bytes:
        """Return an export request with one resource for each app and run."""
        resources: dict[tuple[str, str, str], list[Event]] = {}
        for event in events:
            resources.setdefault((event["app"], event.get("app_version", ""), event["run_id"]), []).append(event)
        return _json({"resourceLogs": [_resource(*key, items) for key, items in resources.items()]})

    def send(self, events: Sequence[Event], timeout_s: float, before_send: Callable[[], None]) -> None:
        """Send an export request."""
        _post(self.name, self.body(events), self.headers, timeout_s, before_send)


@dataclass(frozen=True)
class JsonLines:
    """A file to which events are appended, one JSON object per line: for your own machines and for tests.

    Attributes:
        path: the file.
    """

    path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if not isinstance(self.path, (str, os.PathLike)) or not os.fspath(self.path):
            raise ConfigError(f"JsonLines({self.path!r}): expected the path of a file")

    @property
    def name(self) -> str:
        """The file."""
        return os.fspath(self.path)

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"kind": "JsonLines", "path": self.name}

    def body(self, events: Sequence[Event]) -> bytes:
        """Return the lines."""
        return b"".join(_json(event) + b"\n" for event in events)

    def send(self, events: Sequence[Event], timeout_s: float, before_send: Callable[[], None]) -> None:
        """Append the lines with one write: several processes may write to the file."""
        from tachograph._base.files import open_user_file
        from tachograph._base.http import DeliveryError

        before_send()
        try:
            with open_user_file(self.path, mode=0o600) as file:
                body = self.body(events)
                if file.write(body) != len(body):
                    file.write(b"\n")  # keeps the torn line apart from the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except faults(OSError) as error:
            raise DeliveryError(f"the file cannot be written: {error.strerror}", may_retry=True) from None


def parse_endpoint(given: Any, api_key: str) -> Endpoint | None:
    """Return the endpoint for a URL or an endpoint; None for none.

    Raises:
        ConfigError: if it is neither.
    """
    if isinstance(given, str) and given:
        return PostHog(given, api_key)
    if given is not None and not isinstance(given, (PostHog, OtlpLogs, JsonLines)):
        raise ConfigError(
            f"endpoint={given!r}: expected the URL of a PostHog instance, or a PostHog, OtlpLogs or JsonLines"
        )
    if api_key:
        raise ConfigError("api_key needs a URL: use endpoint='https://…', or endpoint=PostHog('https://…', api_key)")
    return given


def endpoint_from_facts(facts: Any) -> Endpoint | None:
    """Return the endpoint that `Endpoint.facts` described, None if the values are invalid."""
    kinds: dict[str, Any] = {"PostHog": PostHog, "OtlpLogs": OtlpLogs, "JsonLines": JsonLines}
    try:
        values = dict(facts)
        endpoint: Endpoint = kinds[values.pop("kind")](**values)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    return endpoint


def _check_url(url: Any) -> None:
    from urllib.parse import urlsplit

    if not isinstance(url, str) or not (url.startswith("https://") or re.fullmatch(_LOOPBACK, url)):
        raise ConfigError(f"endpoint {url!r}: expected a URL that begins with https:// (http:// only for this machine)")
    try:
        parts = urlsplit(url)
        is_plain = bool(parts.hostname) and "@" not in parts.netloc and not parts.query and not parts.fragment
        _ = parts.port
    except ValueError:
        is_plain = False
    if not is_plain or not url.isprintable() or " " in url:
        raise ConfigError(f"endpoint {url!r}: expected a plain URL, without user, password, query or spaces")


def _with_path(url: str, path: str) -> str:
    """Return a URL that ends with a path, which it may do already."""
    return url.rstrip("/").removesuffix(path) + path


def _is_posthog_cloud(url: str) -> bool:
    from urllib.parse import urlsplit

    return (urlsplit(url).hostname or "").endswith("posthog.com")


def _posthog_event(event: Event) -> dict[str, Any]:
    envelope = {
        "app": event["app"],
        "app_version": event.get("app_version"),
        "$lib": "tachograph",
        "$lib_version": __version__,
        # PostHog would otherwise create a person for the run id, and look up and store the IP address.
        "$process_person_profile": False,
        "$geoip_disable": True,
        "$ip": None,
    }
    return {
        "event": event["event"],
        "uuid": event["uuid"],
        "distinct_id": event["run_id"],
        "timestamp": event["timestamp"],
        "properties": {
            **event["properties"],
            **{name: value for name, value in envelope.items() if name[0] == "$" or value},
        },
    }


def _resource(app: str, app_version: str, run_id: str, events: Sequence[Event]) -> dict[str, Any]:
    attributes = {"service.name": app, "service.version": app_version, "service.instance.id": run_id}
    return {
        "resource": {"attributes": _attributes({name: value for name, value in attributes.items() if value})},
        "scopeLogs": [
            {
                "scope": {"name": "tachograph.usage", "version": __version__},
                "logRecords": [_log_record(event) for event in events],
            }
        ],
    }


def _log_record(event: Event) -> dict[str, Any]:
    from datetime import datetime

    seconds = datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).timestamp()
    is_error = event["event"] == "error"
    return {
        "timeUnixNano": str(int(seconds * 1e6) * 1_000),
        "severityNumber": 17 if is_error else 9,
        "severityText": "ERROR" if is_error else "INFO",
        "eventName": event["event"],
        "body": {"stringValue": event["event"]},
        "attributes": _attributes({"log.record.uid": event["uuid"], **event["properties"]}),
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _any_value(value)} for name, value in values.items()]


def _any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):  # before int, of which it is a subclass
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}  # protobuf's JSON mapping for 64-bit integers
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": _attributes(value)}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any_value(item) for item in value]}}
    return {"stringValue": str(value)}


def _json(value: Any) -> bytes:
    import json

    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, before_send: Callable[[], None]) -> None:
    from tachograph._base.http import check_response, post

    response = post(lambda: url, body, headers, timeout_s=timeout_s, before_send=before_send)
    check_response(response, lambda text, max_chars: " ".join(text.split())[:max_chars])
