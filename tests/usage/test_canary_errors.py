"""Exceptions and code full of secrets: reports contain only public types and places."""

from __future__ import annotations

import asyncio
import builtins
import importlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.exceptions import ConfigError
from tachograph.usage import TelemetryManager, send_errors
from tachograph.usage._endpoint import parse_endpoint
from tests.conftest import HANG_S, Script, wait_for
from tests.usage.conftest import PostHogReceiver
from tests.usage.planted import SECRETS, leaked, leaves, machine
from tests.usage.test_canary import Canary, canary

__all__ = ["canary"]

Start = Callable[..., Script]

NAMES = ("alice", "acme_merger", "AcmeMerger", "patients", "Liddell")
"""Parts of private names in code, which redaction cannot distinguish from other names."""

OWN = {"packages": ["tachograph"]}
"""Known wherever it is; during development it is not installed."""

PUBLIC = {"user exception", "other code"}


def public(text: str) -> bool:
    """Return whether a name is public: part of Python or of a known package."""
    module, _, name = text.rpartition(".")
    if not module:
        return text in PUBLIC or hasattr(builtins, text) or text in {"tachograph", "numpy"}
    if module.partition(".")[0] not in {"tachograph", "numpy", *sys.stdlib_module_names}:
        return False
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(text))
    except ImportError:
        return False


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A user's package in which every name is private."""
    folder = tmp_path / "alice" / "site-packages" / "torch"
    package = folder / "acme_merger"
    package.mkdir(parents=True)
    source = '''
    from tachograph.usage import UsageConfig, send_errors

    class AcmeMergerError(ValueError):
        """A user exception."""

    class AcmeMergerKeyError(AcmeMergerError, KeyError):
        """A user exception with two bases."""

    def patients_of_liddell(secret, kind=AcmeMergerError):
        acme_merger_patients = secret
        raise kind(acme_merger_patients)

    def through_known_code(secret):
        UsageConfig(app=secret)

    @send_errors
    def watched_patients(secret):
        patients_of_liddell(secret)

    class Patients:
        @send_errors
        def watched(self, secret):
            (lambda alice: patients_of_liddell(alice))(secret)

        @send_errors
        async def watched_later(self, secret):
            patients_of_liddell(secret, RuntimeError)

        @send_errors
        def watched_one_by_one(self, secret):
            yield secret
            through_known_code(secret)
    '''
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "patients.py").write_text(textwrap.dedent(source), encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("acme_merger.patients")
    for name in ("acme_merger.patients", "acme_merger"):
        del sys.modules[name]


def stuffed(error: BaseException, secret: str) -> BaseException:
    """Return an exception with secrets in its attributes and notes."""
    error.patients = secret  # type: ignore[attr-defined]
    vars(error)[secret] = secret
    if hasattr(error, "add_note"):
        error.add_note(secret)
    return error


def forged(module: str, name: str, base: type[BaseException] = ValueError) -> type[BaseException]:
    kind = type(name, (base,), {"__module__": module})
    kind.__qualname__ = name
    return kind


class _Meta(type):
    """Returns private names for its classes."""

    def __repr__(cls) -> str:
        return "acme_merger"

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return "acme_merger"


class AcmeMergerMeta(ValueError, metaclass=_Meta):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("acme_merger")

    __repr__ = __str__

    def __eq__(self, _other: object) -> bool:
        raise RuntimeError("acme_merger")

    def __hash__(self) -> int:
        raise RuntimeError("acme_merger")

    def __bool__(self) -> bool:
        raise RuntimeError("acme_merger")


def errors(secret: str) -> Iterator[BaseException]:
    """Return exceptions of Python and of a user that contain a secret."""
    plain = (
        ValueError, KeyError, RuntimeError, OSError, ImportError, ArithmeticError, LookupError, Unspeakable,
        AcmeMergerMeta, ConfigError,
    )  # fmt: skip
    yield from (kind(secret) for kind in plain)
    yield FileNotFoundError(2, "No such file or directory", secret)
    yield OSError(5, secret, secret, None, secret)
    yield UnicodeDecodeError("utf-8", secret.encode(), 0, 1, secret)
    yield json.JSONDecodeError(secret, secret, 0)
    yield subprocess.CalledProcessError(1, [secret], secret, secret)
    yield ModuleNotFoundError(secret, name=secret, path=secret)
    yield SyntaxError(secret, (secret, 1, 1, secret))
    yield ValueError((secret,), {secret: secret}, [secret])
    names = ("AcmeMergerError", "ValueError", "Tensor", "Module", "patients")
    modules = (
        "torch",
        "builtins",
        "tachograph.exceptions",
        "json",
        "acme_merger.patients",
        "transformers.trainer",
        "__main__",
    )
    for module in (*modules, secret):
        for name in names:
            yield forged(module, name)(secret)
    yield forged("torch", "OutOfMemoryError")(secret)
    yield forged("tachograph.exceptions", "ConfigError")(secret)
    group = getattr(builtins, "ExceptionGroup", None)
    if group is not None:  # since 3.11
        members = [ValueError(secret), forged("torch", "AcmeMergerError")(secret), KeyError(secret)]
        yield group(secret, [*members, group(secret, members)])
        yield type("AcmeMergerGroup", (group,), {})(secret, members)


def raised(error: BaseException, secret: str) -> BaseException:
    """Return an exception that was raised with a cause and a context."""
    try:
        try:
            try:
                raise stuffed(forged("torch", "AcmeMergerCause")(secret), secret)
            except ValueError:
                raise stuffed(KeyError(secret), secret)  # noqa: B904
        except KeyError as cause:
            raise stuffed(error, secret) from cause
    except BaseException as caught:
        return caught


def check(canary: Canary) -> set[str]:
    """Search for secrets; return all texts that were sent."""
    events = canary.events()
    assert {event["event"] for event in events} == {"error"}
    texts = set()
    for event in events:
        assert set(event["properties"]) - {"app"} <= {
            "function", "type", "base", "causes", "members", "frames",
            "$lib", "$lib_version", "$process_person_profile", "$geoip_disable", "$ip",
        }  # fmt: skip
        assert event["properties"]["type"]
        for frame in event["properties"].get("frames", []):
            assert set(frame) in ({"module", "function", "line"}, {"module"})
            if frame["module"] == "other code":
                assert set(frame) == {"module"}
            texts.add(frame["module"])
        names = ("function", "type", "base", "causes", "members")
        texts |= set(leaves([event["properties"].get(name, []) for name in names]))
    assert {text for text in texts if not public(text)} == set()
    assert leaked(canary.places(), more=(*NAMES, *machine())) == []
    return texts


@pytest.mark.slow
def test_report_contains_nothing_of_the_exception(canary: Canary) -> None:
    made = (raised(error, secret) for secret in SECRETS for error in errors(secret))
    canary.send(made, lambda manager, error: manager.send_error(error), **OWN)
    texts = check(canary)
    assert {"user exception", "other code", "ValueError", "KeyError", "FileNotFoundError"} <= texts
    assert {"json.decoder.JSONDecodeError", "tachograph.exceptions.ConfigError"} <= texts
    causes = {tuple(event["properties"]["causes"]) for event in canary.events()}
    assert causes == {("KeyError", "user exception")}


def test_report_names_code_only_in_known_packages(canary: Canary, user_code: Any) -> None:
    """Watched functions of all kinds, in a folder that looks like an installation of torch."""

    def fail(_manager: TelemetryManager, secret: str) -> None:
        patients = user_code.Patients()
        with pytest.raises(ValueError):
            user_code.watched_patients(secret)
        with pytest.raises(ValueError):
            patients.watched(secret)
        with pytest.raises(RuntimeError):
            asyncio.run(patients.watched_later(secret))
        with pytest.raises(ConfigError):
            list(patients.watched_one_by_one(secret))

    secrets = [secret for secret in SECRETS if secret != "acme_merger"]  # a valid name of an app
    canary.send(iter(secrets), fail, **OWN)
    canary._num_sent *= 4
    texts = check(canary)
    assert {"user exception", "ValueError", "RuntimeError", "tachograph.exceptions.ConfigError"} <= texts
    assert "tachograph.usage._config" in texts
    assert "function" not in {name for event in canary.events() for name in event["properties"]}


def test_error_through_known_code_names_it(canary: Canary, user_code: Any) -> None:
    def fail(manager: TelemetryManager, secret: str) -> None:
        try:
            user_code.through_known_code(secret)
        except ConfigError as error:
            manager.send_error(error, parse_endpoint)

    canary.send(iter(["/home/alice/acme-merger/patients.jsonl"]), fail, **OWN)
    assert "tachograph.usage._config" in check(canary)
    [event] = canary.events()
    places = [(frame["module"], frame.get("function")) for frame in event["properties"]["frames"]]
    assert places[0] == ("other code", None)
    assert places[-1] == ("tachograph.usage._folder", "check_app")
    assert event["properties"]["function"] == "tachograph.usage._endpoint.parse_endpoint"


@pytest.mark.expects_faults
def test_exception_with_failing_attributes_is_not_quoted(canary: Canary) -> None:
    class Meta(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise RuntimeError("acme_merger")

    class Odd(ValueError, metaclass=Meta):
        pass

    class NoCause(ValueError):
        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]
            raise RuntimeError("acme_merger")

    TelemetryManager.reset()
    manager = canary.configure()
    for kind in (Odd, NoCause):
        with pytest.raises(ValueError):
            send_errors(lambda kind=kind: (_ for _ in ()).throw(kind("acme_merger")))()
        manager.send_error(kind("acme_merger"))
    manager.send_event("train-end")
    manager.shutdown(HANG_S)
    assert "train-end" in {event["event"] for event in canary.receiver.events()}
    assert leaked(canary.places()) == []


# A user's package with the name of a known one -----------------------------------------------------------------------

SHADOWING = """
import sys
from tachograph.usage import TelemetryManager, UsageConfig, _manager, send_errors
_manager._EXIT_TIMEOUT_S = 240.0  # a busy machine may need longer than a process waits at its exit
config = UsageConfig(app="greyjacket", endpoint=sys.argv[1], api_key="phc_x")
manager = TelemetryManager.configure(config, choice="on")
import PACKAGE.acme_merger.patients as patients
assert "site-packages" not in patients.__file__
try:
    send_errors(patients.patients_of_liddell)()
except ValueError:
    print("raised")
"""


# A folder without __init__ is imported only if no real package has its name.
@pytest.mark.parametrize(
    "package, has_init",
    [
        ("datasets", True),
        ("code", True),
        ("profile", True),
        ("optimum", True),
        ("optimum", False),
        ("greyjacket", True),
    ],
)
def test_package_is_not_known_by_name_alone(
    script: Start, receiver: PostHogReceiver, tmp_path: Path, package: str, has_init: bool
) -> None:
    """Many projects have a folder `datasets` or `code`, which is private."""
    inner = tmp_path / package / "acme_merger"
    inner.mkdir(parents=True)
    if has_init:
        (tmp_path / package / "__init__.py").write_text("", encoding="utf-8")
        (inner / "__init__.py").write_text("", encoding="utf-8")
    source = """
    class AcmeMergerError(ValueError):
        pass

    def patients_of_liddell():
        raise AcmeMergerError("acme_merger")
    """
    (inner / "patients.py").write_text(textwrap.dedent(source), encoding="utf-8")
    program = script(SHADOWING.replace("PACKAGE", package), receiver.address)
    code, out, err = program.wait()
    assert (code, out) == (0, "raised\n"), err
    [event] = wait_for(receiver.events, what="the error")
    if package == "greyjacket":  # declared by the app as its own
        assert event["properties"]["type"] == "greyjacket.acme_merger.patients.AcmeMergerError"
        return
    assert event["properties"]["type"] == "user exception"
    assert leaked({"what was received": receiver.raw}, more=NAMES) == []
