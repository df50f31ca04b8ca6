"""Hooks into the host process: exit, unhandled exceptions, signals and forks.

A handler that was installed before ours runs after it, unchanged. Hooks are installed with the first run
and removed with the last one. A hook that another library has wrapped in the meantime cannot be removed: it stays in
place and does nothing. Each hook keeps a reference to the handler it replaced, not to "the current one", so no order of
wrapping and of runs can make two handlers call each other forever.

SIGTERM has a hook like that. SIGHUP, SIGUSR1 and SIGUSR2 end a process, too, but schedulers and libraries use them for
purposes of their own, such as requeueing a job. So only the default action is replaced, by a handler that takes the
same action after the last records are written; see `_FatalSignal` for how it stays out of the way of other handlers.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from tachograph._base.guard import faults, guard, suppress
from tachograph._base.tls import leave_tls_at_exit
from tachograph.journal import reset_claims_after_fork
from tachograph.recorder._run import Run

__all__ = ["ProcessState", "latest_run", "live_runs", "on_run_start", "process_state", "watch"]

_SIGNAL_TIMEOUT_S = 2.0
_DUMP_TIMEOUT_S = 0.5
_DUMP_SHARE = 0.1
"""Of `exit_timeout_s`, if that is longer."""

on_run_start: list[Callable[[Run], None]] = []
"""Called with each run that starts in this process."""


class ProcessState:
    """The state of this process's runs, for calls that must be cheap: reading an attribute is the fastest way."""

    __slots__ = ("is_disabled",)

    def __init__(self) -> None:
        self.is_disabled = False
        """Whether the current run records nothing and no other run is open, so that spans need not look for one."""

    def update(self) -> None:
        """Derive the state from the runs."""
        runs = _runs or _current
        self.is_disabled = bool(runs) and not any(run.enabled for run in runs)


process_state = ProcessState()

_runs: list[Run] = []
_current: list[Run] = []
_handlers_in_place: set[str] = set()
_exit_code: list[Any] = []
_old_error: list[BaseException | None] = [None]


def live_runs() -> list[Run]:
    """Return the runs of this process that have not ended, oldest first."""
    return list(_runs)


def latest_run() -> Run | None:
    """Return the run that `tachograph.log` logs to: the last one started, even if it has ended or is a parent's."""
    return _current[0] if _current else None


def watch(run: Run, *, hooks: bool) -> None:
    """Watch a run until it ends: finish it when the process exits, and record why."""
    if not _runs:
        _old_error[0] = _last_error()  # such as an error of an earlier notebook cell
    _runs.append(run)
    _current[:] = [run]
    process_state.update()
    run._on_finish = _unwatch
    for callback in on_run_start:
        with guard("calling a run-start callback"):
            callback(run)
    _finish_at_exit()
    if "fork" not in _handlers_in_place and hasattr(os, "register_at_fork"):
        _handlers_in_place.add("fork")
        os.register_at_fork(after_in_child=_after_fork)
    if hooks:
        for hook in _HOOKS:
            hook.install()
        _replace_default_actions()


def _unwatch(run: Run) -> None:
    with suppress(ValueError):  # a signal handler that finished the run has removed it
        _runs.remove(run)
    if _runs:
        _current[:] = [_runs[-1]]
    else:
        _remove_hooks()
    process_state.update()


def _remove_hooks() -> None:
    for hook in _HOOKS:
        hook.remove()
    _exit_code.clear()


def _after_fork() -> None:
    guard.reset()
    for run in _runs:
        run._detach_from_parent()
    _runs.clear()
    _handlers_in_place.discard("exit")  # `multiprocessing` clears exit handlers in its children
    reset_claims_after_fork()
    _remove_hooks()


# The end of the process ----------------------------------------------------------------------------------------------


def _finish_at_exit() -> None:
    if "exit" in _handlers_in_place:
        return
    _handlers_in_place.add("exit")
    leave_tls_at_exit()
    atexit.register(_finish_all)
    # Workers of `multiprocessing` may leave without running exit handlers, but not without this.
    workers = sys.modules.get("multiprocessing.process")
    if workers is not None and workers.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _finish_all, exitpriority=100)


def _finish_all() -> None:
    """Finish the runs that the training code left open, with the reason why the process exits."""
    error = sys.exc_info()[1] or _last_error()
    code = error.code if isinstance(error, SystemExit) else _exit_code[-1] if _exit_code else _worker_exit_code()
    for run in live_runs():
        with guard("finishing a run at exit"):
            if error is not None and error is not _old_error[0] and not isinstance(error, SystemExit):
                run._fail(error)  # unhandled, and reported by a hook that replaced ours
            elif code not in (None, 0):
                run.finish("failed", reason=f"exit code {code}")
            else:
                run.finish(reason="exit")


def _worker_exit_code() -> int | None:
    """Return the exit code of a `multiprocessing` worker.

    Since Python 3.13 exit handlers run after the exception was handled, and only a local variable of the launcher's
    frame has the code. Before 3.13 the exception is still current, and `_finish_all` has found it.
    """
    frame: FrameType | None = sys._getframe() if sys.version_info >= (3, 13) else None
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("multiprocessing."):
            code = frame.f_locals.get("code")
            if isinstance(code, int):
                return code
        frame = frame.f_back
    return None


def _last_error() -> BaseException | None:
    """Return the last unhandled exception."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


# Hooks ---------------------------------------------------------------------------------------------------------------


class _Hook:
    """One place where a process calls a handler."""

    def __init__(
        self,
        get_handler: Callable[[], Any],
        set_handler: Callable[[Any], Any],
        make_handler: Callable[[Any], Callable[..., Any]],
    ) -> None:
        self._get_handler = get_handler
        self._set_handler = set_handler
        self._make_handler = make_handler
        self._our_handler: Any = None
        self._previous: Any = None

    def install(self) -> None:
        """Install our handler unless it is already the current one."""
        previous = self._get_handler()
        if self._our_handler is None or previous is not self._our_handler:
            our_handler = self._make_handler(previous)
            if our_handler is not previous:
                self._set_handler(our_handler)
                self._our_handler, self._previous = our_handler, previous

    def remove(self) -> None:
        """Restore the handler that we replaced, unless ours has been replaced since."""
        if self._our_handler is not None and self._get_handler() is self._our_handler:
            self._set_handler(self._previous)
            self._our_handler = None


def _excepthook(previous: Callable[..., Any]) -> Callable[..., Any]:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_interactive = hasattr(sys, "ps1") or sys.flags.interactive  # a typo at the prompt ends nothing
        for run in live_runs():
            with guard("recording an unhandled exception"):
                if is_interactive:
                    run.log_error(error)
                else:
                    run._fail(error)
        previous(kind, error, trace)

    return hook


def _thread_excepthook(previous: Callable[..., Any]) -> Callable[..., Any]:
    def hook(arguments: threading.ExceptHookArgs) -> None:
        error = arguments.exc_value
        is_first = error is not None and not isinstance(error, SystemExit) and id(error) not in _in_progress
        if error is not None and is_first:
            _in_progress.add(id(error))  # or a second hook of ours in the chain would record it again
            name = arguments.thread.name if arguments.thread is not None else "?"
            for run in live_runs():
                run.log_error(error, where=f"thread {name}")
        try:
            previous(arguments)
        finally:
            if is_first:
                _in_progress.discard(id(error))

    return hook


def _sys_exit(previous: Callable[..., Any]) -> Callable[..., Any]:
    def exit(code: Any = None, /) -> None:  # noqa: A001 - it stands in for sys.exit
        """Remember the code: exit handlers cannot find it anywhere else."""
        if threading.current_thread() is threading.main_thread():  # elsewhere it ends the thread, not the process
            _exit_code[:] = [code] if code not in (None, 0) else []
        previous(code)

    return exit


def _sigterm(previous: Any) -> Any:
    # None: installed by C code, which we could not call. Ignored signals stay ignored.
    if previous is None or previous is signal.SIG_IGN:
        return previous

    def handler(number: int, frame: FrameType | None) -> None:
        is_first = number not in _in_progress
        with guard("recording SIGTERM"):
            for run in live_runs():
                if is_first and run.status == "running":
                    _record_signal(run, "SIGTERM")
                if callable(previous):
                    run.flush(_SIGNAL_TIMEOUT_S)  # the handler decides whether the run continues
                else:
                    run.finish("failed", reason="SIGTERM")
        if callable(previous):
            _in_progress.add(number)
            try:
                previous(number, frame)
            finally:
                _in_progress.discard(number)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    return handler


def _record_signal(run: Run, name: str) -> None:
    """Record a signal, and let the writer thread capture the progress since the last checkpoint."""
    run.event("signal", signal=name)
    if run.black_box is not None:
        run.black_box.on_signal(name)
        timeout_s = max(_DUMP_TIMEOUT_S, _DUMP_SHARE * run.settings.exit_timeout_s)
        run.flush(timeout_s)  # of the last steps, which the dump contains; the next call waits for the dump
        run.flush(timeout_s)


class _FatalSignal:
    """A handler that ends the process like the default action, after the last records are written.

    It must not be mistaken for a handler that was installed on purpose. It is equal to `signal.SIG_DFL`, so that a
    library that installs its own handler only where there is none, as Lightning does to requeue a job, finds none. If a
    handler installed later calls it as the previous one, it does not end the process, because the default action could
    not have been called either. It is never removed: without a run it is the default action, and to remove it could
    remove a handler of C code, such as the handler of `faulthandler`, which Python does not know.
    """

    def __eq__(self, other: object) -> bool:
        return other is self or other == signal.SIG_DFL

    def __hash__(self) -> int:
        return hash(signal.SIG_DFL)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        is_current = _current_handler(number) is self
        with guard(f"recording {name}"):
            for run in live_runs():
                if run.status == "running":
                    _record_signal(run, name)
                if is_current:
                    run.finish("failed", reason=name)
                else:
                    run.flush(_SIGNAL_TIMEOUT_S)
        if is_current:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_fatal_signal = _FatalSignal()
_current_handler: Callable[[int], Any] = importlib.import_module("_signal").getsignal
"""`signal.getsignal` returns `SIG_DFL` for a handler that is equal to it; this one returns the handler."""


def _replace_default_actions() -> None:
    if threading.current_thread() is not threading.main_thread():  # Python allows it only there
        return
    caught_mask = _caught_signals()
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2"):
        number = getattr(signal, name, None)
        is_default = number is not None and _current_handler(number) in (signal.SIG_DFL, int(signal.SIG_DFL))
        if number is not None and is_default and caught_mask is not None and not caught_mask >> (number - 1) & 1:
            signal.signal(number, _fatal_signal)


def _caught_signals() -> int | None:
    """Return a bit for each signal that has a handler, including handlers of C code; None where that is unknown."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    except faults(OSError, ValueError, StopIteration):
        return None


def _get_sigterm() -> Any:
    return signal.getsignal(signal.SIGTERM)


def _set_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # Python allows it only there
        signal.signal(signal.SIGTERM, handler)


_in_progress: set[int] = set()
"""Exceptions and signals that one of our hooks is passing on right now."""

_HOOKS = (
    _Hook(lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook), _excepthook),
    _Hook(lambda: threading.excepthook, lambda hook: setattr(threading, "excepthook", hook), _thread_excepthook),
    _Hook(lambda: sys.exit, lambda hook: setattr(sys, "exit", hook), _sys_exit),
    _Hook(_get_sigterm, _set_sigterm, _sigterm),
)
