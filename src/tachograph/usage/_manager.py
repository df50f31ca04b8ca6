"""The manager: one per app and process. It decides once whether anything is recorded, and is cheap where nothing is."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from tachograph._base.guard import warn
from tachograph._base.ranks import stated_rank
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._config import KNOWN_PACKAGES, UsageConfig
from tachograph.usage._consent import Choices, Decision, is_set, less
from tachograph.usage._folder import Mode, app_folder, as_mode, stored_choice, tell_of
from tachograph.usage._process import (
    forget_run_id,
    inherited_run_id,
    is_main_process,
    is_of_multiprocessing,
    made_run_id,
    note_choice,
    note_fork,
    note_told,
    restore_choice,
    was_told,
)
from tachograph.usage._quiet import quiet

if TYPE_CHECKING:
    from tachograph.usage._sender import Sender

__all__ = ["TelemetryManager", "manager_of"]

_EXIT_TIMEOUT_S = 0.8
"""Longest time that the end of the process waits for the network and the disk, of all apps together."""
_DISK_TIMEOUT_S = 0.5
"""How long an end that waits for nothing waits for the disk, which takes a moment."""


class TelemetryManager:
    """Records what a framework is used for, if its user agrees: ``TelemetryManager.configure(UsageConfig(...))``.

    Nothing here raises or waits once it is configured. Use `configure` and `get_instance`; do not construct one.

    Attributes:
        config: what the framework said.
        decision: whether anything is recorded or sent, and why.
    """

    _instances: ClassVar[dict[str, TelemetryManager]] = {}
    _lock: ClassVar[Any] = threading.RLock()
    _problems: ClassVar[set[str]] = set()

    def __init__(self, config: UsageConfig, choice: Mode | None = None) -> None:
        self.config = config
        self.decision = config.decide(choice)
        debug = (f"{config.env_prefix}_USAGE_DEBUG", "TACHO_USAGE_DEBUG")
        self.is_debugged = any(is_set(os.environ, name) for name in debug)
        self._choice = choice
        self._noted_before: str | None = None
        self._stated_rank = stated_rank()
        self._home = os.getpid()
        self._records = False
        self._own_lock = threading.RLock()
        self._run_id: str | None = None
        self._made_run_id = False
        self._sender: Sender | None = None
        self._told_of_system = False
        self._told_of_errors = False
        self._last_words: list[Callable[[], None]] = []

    # Life ------------------------------------------------------------------------------------------------------------

    @classmethod
    def configure(cls, config: UsageConfig, *, choice: Choices = None) -> TelemetryManager:
        """Decide for an app, once, where its program begins.

        With ``consent="opt-out"`` and no choice of the user's, this prints a notice and waits for ten seconds on the
        main process: call it in the program, not when a package is imported.

        Args:
            config: what the app says of itself.
            choice: what the user said, say by a flag on the command line: "off", "local", "on", a bool, or None.

        Returns:
            The app's manager; the same one if it is configured again in the same way.

        Raises:
            ConfigError: if the choice is none, or the app was configured differently before.
        """
        if not isinstance(config, UsageConfig):
            raise ConfigError(f"configure takes a UsageConfig, not {type(config).__name__}")
        mode = None if choice is None else as_mode(choice)
        with cls._lock:
            known = cls._instances.get(config.app)
            if known is not None:
                different = known._differences(config, mode)
                if not different:
                    return known
                raise ConfigError(
                    f"usage telemetry of {config.app} is configured already, with another {' and '.join(different)}; "
                    f"TelemetryManager.reset({config.app!r}) forgets that"
                )
            manager = cls._instances[config.app] = cls(config, mode)
        try:
            manager._begin()
        except BaseException:  # Ctrl-C while the notice stands there
            cls._instances.pop(config.app, None)
            raise
        return manager

    @classmethod
    def get_instance(cls, app: str | None = None) -> TelemetryManager:
        """Return the manager of an app; its name may be left out where there is one.

        Where it was not configured, or there are several and none is named, it is one that records nothing, and that
        is said once: who imports a framework and calls its functions need not know of telemetry.

        Raises:
            ConfigError: if this cannot be the name of an app.
        """
        with cls._lock:
            known = dict(cls._instances)
        if app is None and len(known) == 1:
            return next(iter(known.values()))
        if app in known:
            return known[app]
        if app is None and known:
            problem = f"several apps have usage telemetry, of which none is named: {', '.join(known)}"
        else:
            whose = "" if app is None else f" of {app}"
            remedy = "call TelemetryManager.configure(UsageConfig(...)) first"
            problem = f"usage telemetry{whose} is not configured: {remedy}{did_you_mean(app or '', known)}"
        if problem not in cls._problems:
            cls._problems.add(problem)
            warn("%s; nothing is recorded", problem)
        return cls._idle(app or "unknown", problem)

    @classmethod
    def _idle(cls, app: str, reason: str) -> TelemetryManager:
        """Return a manager that does nothing."""
        manager = cls(UsageConfig(app=app), "off")
        manager.decision = manager.decision._replace(reason=reason)
        return manager

    @classmethod
    def reset(cls, app: str | None = None) -> None:
        """Forget an app, or all: what tests do between them. Events that are queued are written down."""
        with cls._lock:
            cls._problems.clear()
            for name in [app] if app is not None else list(cls._instances):
                manager = cls._instances.pop(name, None)
                if manager is not None:
                    manager.shutdown(timeout_s=0.0)
                    if manager._choice is not None:
                        restore_choice(name, manager._noted_before)
                    if manager._made_run_id:
                        forget_run_id(manager.config.env_prefix)

    def shutdown(self, timeout_s: float = _EXIT_TIMEOUT_S, *, may_send: bool = True) -> None:
        """Write down what is queued and try to send it. The end of the process does it.

        Args:
            timeout_s: longest time to wait for that.
            may_send: whether to try it now; else the next run does.
        """
        now_s = time.monotonic()
        self._close(may_send=may_send)
        self._join(now_s + timeout_s, now_s + max(timeout_s, _DISK_TIMEOUT_S))

    def before_end(self, last_word: Callable[[], None]) -> None:
        """Call something when the process ends, before it is too late to record anything."""
        self._last_words.append(last_word)

    def not_before_end(self, last_word: Callable[[], None]) -> None:
        """Do not call it, for there is nothing left to say."""
        with contextlib.suppress(ValueError):
            self._last_words.remove(last_word)

    def _close(self, *, may_send: bool) -> None:
        with quiet("ending usage telemetry"):
            words, self._last_words = self._last_words, []
            for word in words:
                word()
        with quiet("ending usage telemetry"):
            self._records = False
            if self._sender is not None:
                self._sender.close(may_send=may_send)

    def _join(self, deadline_s: float, disk_deadline_s: float) -> None:
        with quiet("ending usage telemetry"):
            if self._sender is not None:
                self._sender.join(deadline_s, disk_deadline_s)

    def _differences(self, config: UsageConfig, choice: Mode | None) -> list[str]:
        """Return by what this is another than what would be configured now."""
        before, now = self.config.facts(), config.facts()
        return [
            *(name for name, value in now.items() if value != before[name]),
            *(["choice"] if choice != self._choice else []),
        ]

    def _begin(self) -> None:
        _watch_forks()
        if self._choice is not None:
            self._noted_before = note_choice(self.config.app, self._choice)
        if not self.is_debugged:
            self._tell_of_app()
            if self.decision.mode == "on" and not self.decision.is_explicit:
                self._see_to_notice()
        self._records = self.decision.mode != "off" or self.is_debugged
        if self.enabled:
            _ = self.run_id  # before any process is started from here
            _watch_exit()  # now: an end that has begun takes no more orders

    def _tell_of_app(self) -> None:
        """Let `tacho usage` know of the app. One who has said no finds nothing on the disk."""
        if (self.decision.mode != "off" or self.decision.source == "policy") and self._is_main:
            with quiet("telling that an app has usage telemetry"), contextlib.suppress(OSError):
                tell_of(self.config.app, self.config.facts())

    def _see_to_notice(self) -> None:
        """Give notice before anything is sent, or send nothing."""
        config = self.config
        if was_told(config.env_prefix, config.app):
            return
        if self._is_main:
            from tachograph.usage._notice import give_notice

            if give_notice(config):
                self.decision = config.decide(self._choice)  # they may have said no meanwhile
                if self.decision.mode == "on":
                    note_told(config.env_prefix, config.app, self.run_id)
                return
        self.decision = self.decision._replace(mode="local", reason="nobody could be told that reports would be sent")

    @property
    def _is_main(self) -> bool:
        return is_main_process(self._stated_rank, self._home)

    def _mode_now(self) -> Mode:
        """Return what holds now: the user may have thought better of it since it was decided."""
        if self.decision.source in {"choice", "environment"}:
            return self.decision.mode
        stored = stored_choice(self.config.app)
        return self.decision.mode if stored is None else less(self.decision.mode, stored.mode)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, is the manager of the same app there."""
        return _manager_there, (self.config.app,)

    # Facts -----------------------------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether this process records events."""
        return self._records and self._is_main

    @property
    def run_id(self) -> str:
        """The id that events of this run share. It is made for the run and means nothing else."""
        if self._run_id is None:
            prefix = self.config.env_prefix
            self._run_id = inherited_run_id(prefix)
            if self._run_id is None:
                self._run_id, self._made_run_id = made_run_id(prefix), True
        return self._run_id

    @property
    def num_lost(self) -> int:
        """Events that could neither be written nor sent."""
        return 0 if self._sender is None else self._sender.num_lost

    # Events ----------------------------------------------------------------------------------------------------------

    def send_event(self, event: str, properties: dict[str, Any] | None = None) -> None:
        """Record an event, and send it if that is agreed.

        Args:
            event: its name, one of the schemas.
            properties: values for its fields. What is no field of it is left out; each field makes its value coarse.
        """
        if not self.enabled:
            return
        with quiet("recording a usage event"):
            if event == "error":
                raise ConfigError("an error is told with send_error(exception) or @send_errors, not with send_event")
            if properties is not None and type(properties) is not dict:
                raise ConfigError(
                    f"send_event({event!r}) takes a dict of the event's fields, not {type(properties).__name__}; "
                    "a config is told with send_config(config), which takes from it what config_map says"
                )
            self._record(event, properties or {})
            if event == "config-loaded" and not self._told_of_system:
                self.send_system_info()

    def send_config(self, config: Any, event: str = "config-loaded") -> None:
        """Tell of a config: what ``config_map`` finds in it, and nothing else.

        Args:
            config: of any type.
            event: ``config-loaded`` or ``config-processed``.
        """
        if self.enabled:
            with quiet("telling of a config"):
                from tachograph.usage._facts import config_facts

                places = self.config.config_map
                facts = config_facts(config, places)
                if self.is_debugged and len(facts) < len(places):
                    missing = ", ".join(name for name in places if name not in facts)
                    sys.stderr.write(
                        f"[{self.config.app} usage] config_map finds nothing in this config for {missing}\n"
                    )
                self.send_event(event, facts)

    def send_model(self, model: Any) -> None:
        """Tell of a model: `model-load`."""
        if self.enabled:
            with quiet("telling of a model"):
                from tachograph.usage._facts import model_facts

                self.send_event("model-load", model_facts(model))

    def send_adapter(self, peft_config: Any) -> None:
        """Tell of an adapter by its config: `adapter-load`."""
        if self.enabled:
            with quiet("telling of an adapter"):
                from tachograph.usage._facts import adapter_facts

                self.send_event("adapter-load", adapter_facts(peft_config))

    def send_system_info(self) -> None:
        """Tell what kind of machine this is: `system-info`. The first `config-loaded` does it."""
        if self.enabled:
            with quiet("telling of the system"):
                from tachograph.usage._system import system_info

                self._told_of_system = True
                self.send_event("system-info", system_info())

    def send_error(self, error: BaseException, function: Callable[..., Any] | None = None) -> None:
        """Tell of an exception: its type and where in the code of known packages it arose.

        `KeyboardInterrupt`, `SystemExit` and whatever else is a decision and no failure is not told.

        Args:
            error: the exception.
            function: the function that let it pass, if it is to be named.
        """
        if self.enabled:
            with quiet("telling of an error"):
                from tachograph.usage._errors import error_properties, is_failure

                if not isinstance(error, BaseException):
                    raise ConfigError(f"send_error takes an exception, not {type(error).__name__}")
                if not is_failure(error):
                    return
                self._record("error", error_properties(error, self.config.packages, KNOWN_PACKAGES, function))
                if self.decision.mode == "on" and not self.is_debugged and not self._told_of_errors:
                    self._told_of_errors = True
                    warn(
                        "%s reports errors anonymously, this one as run %s; `tacho usage log %s` shows what it says",
                        self.config.app, self.run_id, self.config.app,
                    )  # fmt: skip

    def _record(self, event: str, properties: dict[str, Any]) -> None:
        from tachograph.usage._event import checked_event, make_event

        made = make_event(self.config, self.run_id, event, properties)
        if self.is_debugged:
            _print(made, properties, self.decision)
            return
        with self._own_lock:
            if self._sender is None:
                from tachograph.usage._sender import Sender

                endpoint = self.config.receiver if self.decision.mode == "on" else None
                checked = functools.partial(checked_event, self.config)
                self._sender = Sender(app_folder(self.config.app), endpoint, self._mode_now, checked)
                _watch_exit()
        self._sender.put(made)

    def _forget_parent(self) -> None:
        """Begin anew in a child of `fork`: what is queued is the parent's to send, and every lock may be held."""
        self._told_of_system = False
        self._last_words = []
        self._own_lock = threading.RLock()
        self._sender = None


def _manager_there(app: str) -> TelemetryManager:
    """Return the manager of an app; one that does nothing where the app is not configured."""
    return TelemetryManager._instances.get(app) or TelemetryManager._idle(app, f"{app} is not configured here")


def manager_of(function: Callable[..., Any], app: str | None) -> TelemetryManager | None:
    """Return the manager that a function belongs to: the one named, that of its package, or the only one."""
    known = TelemetryManager._instances
    if app is not None:
        return known.get(app)
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    for manager in known.values():
        if package in manager.config.packages:
            return manager
    return next(iter(known.values())) if len(known) == 1 else None


def _print(event: dict[str, Any], given: dict[str, Any], decision: Decision) -> None:
    import json

    lines = [f"{event['event']}: printed, neither kept nor sent ({decision.mode}: {decision.reason})"]
    dropped = [str(name) for name, value in given.items() if name not in event["properties"] and not _is_empty(value)]
    if dropped:
        lines.append(f"{event['event']}: left out, for it is no such field or not of its kind: {', '.join(dropped)}")
    sys.stderr.write("".join(f"[{event['app']} usage] {line}\n" for line in lines) + json.dumps(event, indent=2) + "\n")
    sys.stderr.flush()


def _is_empty(value: Any) -> bool:
    return value is None or (type(value) in (dict, list, tuple, str) and not value)


_watched: set[str] = set()


def _watch_exit() -> None:
    if "exit" not in _watched:
        _watched.add("exit")
        atexit.register(_end_all)
        if is_of_multiprocessing():
            from multiprocessing.util import Finalize  # a worker may leave without running exit handlers

            Finalize(None, _end_all, exitpriority=100)


def _watch_forks() -> None:
    if "fork" not in _watched and hasattr(os, "register_at_fork"):
        _watched.add("fork")
        os.register_at_fork(after_in_child=_after_fork)


def _end_all() -> None:
    """End all managers, which together wait no longer than one."""
    if "end" in _watched:
        return  # a child of `fork` has this on its list twice
    _watched.add("end")
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    managers = list(TelemetryManager._instances.values())
    # A module that is imported now would make Python forget that Ctrl-C ended it, and exit with another code.
    may_send = getattr(sys, "last_type", None) is not KeyboardInterrupt or "tachograph._base.http" in sys.modules
    for manager in managers:
        manager._close(may_send=may_send)
    for manager in managers:
        manager._join(deadline_s, deadline_s)


def _after_fork() -> None:
    note_fork()
    _watched.difference_update(("exit", "end"))  # `multiprocessing` clears exit handlers in its children
    TelemetryManager._lock = threading.RLock()
    for manager in TelemetryManager._instances.values():
        manager._forget_parent()
