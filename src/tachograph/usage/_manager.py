"""The manager: one per app and process. It decides once whether to record, and costs next to nothing if it does not.

Everything that only a recording process needs (the sender, the spool, JSON, the HTTP client) is imported when the first
event is recorded.

**Exit.** `configure` registers one exit handler for all managers. It calls the exit callbacks, which may record last
events, closes all senders, and then waits for all of them together, at most `_EXIT_TIMEOUT_S`. Events that were not
sent by then are on disk and are sent by the next process.

**Fork.** A child forgets the sender of its parent, because threads do not survive a `fork` and locks may be held. The
parent sends its own queue.

**Before `configure`.** A package may take its manager when it is imported, long before the program configures the app.
So `get_instance` returns the same unconfigured manager for each call with one name, and `configure` gives it the state
of the app's manager: both share one `__dict__` from then on. `reset` gives it a state of its own again.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from tachograph._base.guard import suppress, warn
from tachograph._base.ranks import stated_rank
from tachograph._base.tls import leave_tls_at_exit
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._config import KNOWN_PACKAGES, UsageConfig
from tachograph.usage._consent import ChoiceLike, ConsentGate, Decision, is_switch_on
from tachograph.usage._folder import Mode, app_folder, parse_mode, save_app
from tachograph.usage._guard import guard_silently
from tachograph.usage._local_paths import LOCAL_PATHS, is_path_key
from tachograph.usage._process import (
    clear_run_id,
    create_run_id,
    export_choice,
    inherited_run_id,
    is_main_process,
    is_multiprocessing_child,
    mark_notice_shown,
    record_fork,
    restore_choice,
    was_notice_shown,
)
from tachograph.usage._schemas import CONFIG_EVENTS

if TYPE_CHECKING:
    from tachograph.usage._sender import UsageSender

__all__ = ["TelemetryManager", "find_manager"]

_EXIT_TIMEOUT_S = 0.8
"""Limit for the exit of the process: the network and the disk of all apps together."""
_NO_APP = "unknown"
"""The name in a manager of an app whose name is not known yet."""
_DISK_TIMEOUT_S = 0.5
"""Limit for the disk in a shutdown that is not to wait for the network."""


class TelemetryManager:
    """Records how a framework is used, if its user agrees: ``TelemetryManager.configure(UsageConfig(...))``.

    Use `configure` and `get_instance`; do not construct one. Once it is configured, nothing raises or blocks.

    Attributes:
        config: configuration of the app.
        decision: whether events are recorded or sent, and why.
        is_debug: whether events are only printed.
    """

    _instances: ClassVar[dict[str, TelemetryManager]] = {}
    _early: ClassVar[dict[str | None, TelemetryManager]] = {}
    """The managers that were asked for before their app was configured, by the name that was given, if any."""
    _lock: ClassVar[Any] = threading.RLock()
    _reported_problems: ClassVar[set[str]] = set()

    def __init__(self, config: UsageConfig, choice: Mode | None = None) -> None:
        self.config = config
        self.decision = config.decide(choice)
        debug = (f"{config.env_prefix}_USAGE_DEBUG", "TACHO_USAGE_DEBUG")
        self.is_debug = any(is_switch_on(os.environ, name) for name in debug)
        self._choice = choice
        self._exported_before: str | None = None
        self._stated_rank = stated_rank()
        self._configured_pid = os.getpid()
        self._problem: str | None = None
        """Why nothing is recorded, if the app is not configured."""
        self._is_recording = False
        self._sender_lock = threading.RLock()
        self._run_id: str | None = None
        self._owns_run_id = False
        self._sender: UsageSender | None = None
        self._sent_system_info = False
        self._announced_errors = False
        self._exit_callbacks: list[Callable[[], None]] = []

    # Life cycle ------------------------------------------------------------------------------------------------------

    @classmethod
    def configure(cls, config: UsageConfig, *, choice: ChoiceLike = None) -> TelemetryManager:
        """Configure an app, once, at the start of its program.

        With ``consent="opt-out"`` and without a choice of the user, the main process prints a notice and waits for ten
        seconds. Call it in the program and not when a package is imported.

        Args:
            config: configuration of the app.
            choice: the user's choice, for example from a command-line flag: "off", "local", "on", a bool, or None.

        Returns:
            The app's manager; the same one if the app is configured again in the same way.

        Raises:
            ConfigError: if the choice is invalid, or the app is already configured differently.
        """
        if not isinstance(config, UsageConfig):
            raise ConfigError(f"configure expects a UsageConfig, not {type(config).__name__}")
        mode = None if choice is None else parse_mode(choice)
        with cls._lock:
            existing = cls._instances.get(config.app)
            if existing is not None:
                different = existing._differences(config, mode)
                if not different:
                    return existing
                raise ConfigError(
                    f"usage telemetry of {config.app} is already configured with another {' and '.join(different)}; "
                    f"call TelemetryManager.reset({config.app!r}) first"
                )
            manager = cls._instances[config.app] = cls(config, mode)
        try:
            manager._start()
        except BaseException:  # Ctrl-C during the notice
            cls._instances.pop(config.app, None)
            raise
        with cls._lock:
            for name in (config.app, None):
                early = cls._early.get(name)
                if early is not None and early._problem is not None:
                    early.__dict__ = manager.__dict__
        return manager

    @classmethod
    def get_instance(cls, app: str | None = None) -> TelemetryManager:
        """Return the manager of an app. The name is optional if there is only one app.

        Before the app is configured, return a manager that records nothing yet: it records as soon as the app is
        configured, so a module may keep it. Without a name, the app is the next one that is configured. A script that
        imports a framework and calls its functions need not know about telemetry; the first attempt to record
        something is logged.

        Raises:
            ConfigError: if the name is invalid.
        """
        with cls._lock:
            managers = cls._instances
            if app is None and len(managers) == 1:
                return next(iter(managers.values()))
            if app in managers:
                return managers[app]
            if app is None and managers:
                # Not kept: the order in which apps are configured must not decide which one is meant.
                return cls._create_unconfigured(
                    None, f"several apps are configured; pass the name of one: {', '.join(managers)}"
                )
            early = cls._early.get(app)
            if early is None or early._problem is None:
                early = cls._early[app] = cls._create_unconfigured(app)
            return early

    @classmethod
    def _create_unconfigured(cls, app: str | None, problem: str | None = None) -> TelemetryManager:
        """Return a manager that records nothing."""
        if problem is None:
            name = "" if app is None else f" of {app}"
            remedy = "call TelemetryManager.configure(UsageConfig(...)) first"
            problem = f"usage telemetry{name} is not configured: {remedy}{did_you_mean(app or '', cls._instances)}"
        manager = cls(UsageConfig(app=app or _NO_APP), "off")
        manager.decision = manager.decision._replace(reason=problem)
        manager._problem = problem
        return manager

    @classmethod
    def reset(cls, app: str | None = None) -> None:
        """Remove the configuration of an app, or of all, between tests. Queued events are still written."""
        with cls._lock:
            cls._reported_problems.clear()
            for name in [app] if app is not None else list(cls._instances):
                manager = cls._instances.pop(name, None)
                if manager is not None:
                    manager.shutdown(timeout_s=0.0)
                    if manager._choice is not None:
                        restore_choice(name, manager._exported_before)
                    if manager._owns_run_id:
                        clear_run_id(manager.config.env_prefix)
                    for early_name, early in cls._early.items():
                        if early.__dict__ is manager.__dict__:
                            early.__dict__ = cls._create_unconfigured(early_name).__dict__
            if not cls._instances:
                LOCAL_PATHS.clear()

    def shutdown(self, timeout_s: float = _EXIT_TIMEOUT_S, *, may_send: bool = True) -> None:
        """Write the queued events and try to send them. Called at exit automatically.

        Args:
            timeout_s: limit for waiting.
            may_send: whether to try sending now; otherwise the next run does.
        """
        now_s = time.monotonic()
        self._close(may_send=may_send)
        self._join(now_s + timeout_s, now_s + max(timeout_s, _DISK_TIMEOUT_S))

    def add_exit_callback(self, callback: Callable[[], None]) -> None:
        """Call a function when the process exits, while events can still be recorded."""
        self._exit_callbacks.append(callback)

    def remove_exit_callback(self, callback: Callable[[], None]) -> None:
        """Remove a function that `add_exit_callback` added, if it is still there."""
        with suppress(ValueError):
            self._exit_callbacks.remove(callback)

    def _close(self, *, may_send: bool) -> None:
        with guard_silently("shutting down usage telemetry"):
            callbacks, self._exit_callbacks = self._exit_callbacks, []
            for callback in callbacks:
                callback()
        with guard_silently("shutting down usage telemetry"):
            self._is_recording = False
            if self._sender is not None:
                self._sender.close(may_send=may_send)

    def _join(self, deadline_s: float, disk_deadline_s: float) -> None:
        with guard_silently("shutting down usage telemetry"):
            if self._sender is not None:
                self._sender.join(deadline_s, disk_deadline_s)

    def _differences(self, config: UsageConfig, choice: Mode | None) -> list[str]:
        """Return the names of the settings that differ from a configuration."""
        before, now = self.config.facts(), config.facts()
        return [
            *(name for name, value in now.items() if value != before[name]),
            *(["choice"] if choice != self._choice else []),
        ]

    def _start(self) -> None:
        _register_fork_handler()
        if self._choice is not None:
            self._exported_before = export_choice(self.config.app, self._choice)
        if not self.is_debug:
            self._register_app()
            if self.decision.mode == "on" and not self.decision.is_explicit:
                self._ensure_notice()
        self._is_recording = self.decision.mode != "off" or self.is_debug
        if self.enabled:
            _ = self.run_id  # exported before any child process is started
            _register_exit_handler()  # now: it is too late once the interpreter shuts down

    def _register_app(self) -> None:
        """Save the app for `tacho usage`. A user who opted out finds nothing on disk."""
        if (self.decision.mode != "off" or self.decision.source == "policy") and self._is_main:
            with guard_silently("saving the usage telemetry configuration"), suppress(OSError):
                save_app(self.config.app, self.config.facts())

    def _ensure_notice(self) -> None:
        """Show the notice before anything is sent; without a notice, record locally only."""
        config = self.config
        if was_notice_shown(config.env_prefix, config.app):
            return
        if self._is_main:
            from tachograph.usage._notice import show_notice

            if show_notice(config):
                self.decision = config.decide(self._choice)  # the user may have opted out during the pause
                if self.decision.mode == "on":
                    mark_notice_shown(config.env_prefix, config.app, self.run_id)
                return
        self.decision = self.decision._replace(mode="local", reason="the notice could not be shown, so nothing is sent")

    @property
    def _is_main(self) -> bool:
        return is_main_process(self._stated_rank, self._configured_pid)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and unpickled managers are the manager of the same app in that process."""
        return _unpickle_manager, (self.config.app,)

    # State -----------------------------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        """Whether this process records events."""
        if self._problem is not None:
            self._report_problem(self._problem)
        return self._is_recording and self._is_main

    def _report_problem(self, problem: str) -> None:
        if problem not in self._reported_problems:
            self._reported_problems.add(problem)
            warn("%s; nothing is recorded", problem)

    @property
    def run_id(self) -> str:
        """The random id that the events of this run share."""
        if self._run_id is None:
            prefix = self.config.env_prefix
            self._run_id = inherited_run_id(prefix)
            if self._run_id is None:
                self._run_id, self._owns_run_id = create_run_id(prefix), True
        return self._run_id

    @property
    def num_lost(self) -> int:
        """Number of events that were dropped: not written, or rejected by the receiver."""
        return 0 if self._sender is None else self._sender.num_lost

    # Events ----------------------------------------------------------------------------------------------------------

    def send_event(self, event_type: str, properties: Any = None) -> None:
        """Record an event, and send it if the user agreed.

        Args:
            event_type: name of a built-in event or one of the app's own.
            properties: a dict with values of its fields. Unknown fields are dropped; each field makes its value coarse.
                For the events of a config, an object of any other type is a config, as for `send_config`.
        """
        if not self.enabled:
            return
        with guard_silently("recording a usage event"):
            if event_type == "error":
                raise ConfigError("use send_error(exception) or @send_errors to report an error, not send_event")
            if properties is not None and type(properties) is not dict:
                if event_type in CONFIG_EVENTS:
                    self.send_config(properties, event_type)
                    return
                raise ConfigError(
                    f"send_event({event_type!r}) expects a dict of the event's fields, not {type(properties).__name__}"
                )
            self._record(event_type, properties or {})
            if event_type == "config-loaded" and not self._sent_system_info:
                self.send_system_info()

    def send_config(
        self, config: Any, event: str = "config-loaded", *, file: str | os.PathLike[str] | None = None
    ) -> None:
        """Record a config: the fields that ``config_map`` finds in it, and nothing else.

        The paths in the config are read as well, so that none of them is mistaken for the id of a model. They are not
        recorded.

        Args:
            config: an object of any type.
            event: ``config-loaded`` or ``config-processed``.
            file: the file that the config was read from. Pass it if paths in the config may be relative to it.
        """
        if self.enabled:
            with guard_silently("recording a config"):
                from tachograph.usage._properties import config_properties

                config_map = self.config.config_map
                properties = config_properties(config, config_map)
                LOCAL_PATHS.add_config(config, file)
                for name, source in config_map.items():
                    if isinstance(source, str) and is_path_key(source) and isinstance(properties.get(name), str):
                        LOCAL_PATHS.add_path(properties[name])
                if self.is_debug and len(properties) < len(config_map):
                    missing = ", ".join(name for name in config_map if name not in properties)
                    sys.stderr.write(f"[{self.config.app} usage] not found in this config: {missing}\n")
                self.send_event(event, properties)

    def send_model(self, model: Any) -> None:
        """Record a model: `model-load`."""
        if self.enabled:
            with guard_silently("recording a model"):
                from tachograph.usage._properties import model_properties

                self.send_event("model-load", model_properties(model))

    def send_adapter(self, peft_config: Any) -> None:
        """Record an adapter by its PEFT config: `adapter-load`."""
        if self.enabled:
            with guard_silently("recording an adapter"):
                from tachograph.usage._properties import adapter_properties

                self.send_event("adapter-load", adapter_properties(peft_config))

    def send_system_info(self) -> None:
        """Record the type of machine: `system-info`. The first `config-loaded` does so automatically."""
        if self.enabled:
            with guard_silently("recording the system"):
                from tachograph.usage._system import system_info

                self._sent_system_info = True
                self.send_event("system-info", system_info())

    def send_error(self, error: BaseException, function: Callable[..., Any] | None = None) -> None:
        """Record an exception: its type and its places in known packages.

        `KeyboardInterrupt`, `SystemExit` and other intended ends are not recorded.

        Args:
            error: the exception.
            function: the watched function that the exception left, if any.
        """
        if self.enabled:
            with guard_silently("recording an error"):
                from tachograph.usage._errors import error_properties, is_failure

                if not isinstance(error, BaseException):
                    raise ConfigError(f"send_error expects an exception, not {type(error).__name__}")
                if not is_failure(error):
                    return
                self._record("error", error_properties(error, self.config.packages, KNOWN_PACKAGES, function))
                if self.decision.mode == "on" and not self.is_debug and not self._announced_errors:
                    self._announced_errors = True
                    warn(
                        "%s reports errors anonymously, this one as run %s; run `tacho usage log %s` to see the report",
                        self.config.app, self.run_id, self.config.app,
                    )  # fmt: skip

    def _record(self, event: str, properties: dict[str, Any]) -> None:
        from tachograph.usage._event import build_event, recheck_event

        payload = build_event(self.config, self.run_id, event, properties)
        if self.is_debug:
            _print_event(payload, properties, self.decision)
            return
        with self._sender_lock:
            if self._sender is None:
                from tachograph.usage._sender import UsageSender

                endpoint = self.config.receiver if self.decision.mode == "on" else None
                gate = ConsentGate(self.config.app, self.decision)
                recheck = functools.partial(recheck_event, self.config)
                self._sender = UsageSender(app_folder(self.config.app), endpoint, gate, recheck)
                _register_exit_handler()
        self._sender.put(payload)

    def _reset_after_fork(self) -> None:
        """Reset the state that a child of `fork` must not share with its parent."""
        self._sent_system_info = False
        self._exit_callbacks = []
        self._sender_lock = threading.RLock()
        self._sender = None


def _unpickle_manager(app: str) -> TelemetryManager:
    """Return the manager of an app; one that records nothing until the app is configured in this process."""
    return TelemetryManager.get_instance(None if app == _NO_APP else app)


def find_manager(function: Callable[..., Any], app: str | None) -> TelemetryManager | None:
    """Return the manager for a function: of the named app, else of the app of its package, else the only one."""
    managers = TelemetryManager._instances
    if app is not None:
        return managers.get(app)
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    for manager in managers.values():
        if package in manager.config.packages:
            return manager
    return next(iter(managers.values())) if len(managers) == 1 else None


def _print_event(event: dict[str, Any], properties: dict[str, Any], decision: Decision) -> None:
    import json

    lines = [f"{event['event']}: printed only, not stored or sent (without debug: {decision.mode}, {decision.reason})"]
    recorded_properties = event["properties"]
    dropped_names = [
        str(name) for name, value in properties.items() if name not in recorded_properties and not _is_empty(value)
    ]
    if dropped_names:
        lines.append(f"{event['event']}: dropped: unknown field or wrong type: {', '.join(dropped_names)}")
    sys.stderr.write("".join(f"[{event['app']} usage] {line}\n" for line in lines) + json.dumps(event, indent=2) + "\n")
    sys.stderr.flush()


def _is_empty(value: Any) -> bool:
    return value is None or (type(value) in (dict, list, tuple, str) and not value)


_lifecycle_flags: set[str] = set()
"""`exit` and `fork`: the handler is registered in this process. `end`: the shutdown has begun."""


def _register_exit_handler() -> None:
    if "exit" not in _lifecycle_flags:
        _lifecycle_flags.add("exit")
        leave_tls_at_exit()
        atexit.register(_shutdown_all)
        if is_multiprocessing_child():
            from multiprocessing.util import Finalize  # a worker may exit without running exit handlers

            Finalize(None, _shutdown_all, exitpriority=100)


def _register_fork_handler() -> None:
    if "fork" not in _lifecycle_flags and hasattr(os, "register_at_fork"):
        _lifecycle_flags.add("fork")
        os.register_at_fork(after_in_child=_after_fork)


def _shutdown_all() -> None:
    """Shut down all managers within one common deadline."""
    if "end" in _lifecycle_flags:
        return  # registered twice in a child of `fork`
    _lifecycle_flags.add("end")
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    managers = list(TelemetryManager._instances.values())
    # Importing a module now would reset the state from which Python derives the exit code after Ctrl-C.
    may_send = getattr(sys, "last_type", None) is not KeyboardInterrupt or "tachograph._base.http" in sys.modules
    for manager in managers:
        manager._close(may_send=may_send)
    for manager in managers:
        manager._join(deadline_s, deadline_s)


def _after_fork() -> None:
    record_fork()
    _lifecycle_flags.difference_update(("exit", "end"))  # `multiprocessing` clears exit handlers in its children
    TelemetryManager._lock = threading.RLock()
    for manager in TelemetryManager._instances.values():
        manager._reset_after_fork()
