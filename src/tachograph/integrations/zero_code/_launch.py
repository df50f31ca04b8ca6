"""Starts a program so that it is recorded, passes on its output and signals, and records how it ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tachograph._init import init
from tachograph.exceptions import ConfigError, LogDirError, TachographError
from tachograph.integrations.zero_code._launch_spec import Order, Word, words
from tachograph.integrations.zero_code._output import Output, tee
from tachograph.journal import RunFolder, RunState
from tachograph.reader import overview
from tachograph.recorder import append_after_exit
from tachograph.records import check_run_name

__all__ = ["Launch", "launch"]

_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_CAPTURE_TIMEOUT_S = 1.0


class Launch(NamedTuple):
    """What became of a program."""

    returncode: int
    """Its exit code; negative: minus the signal that ended it."""
    run: str | None
    """The folder of its run, None if nothing could be recorded."""
    saw_training: bool
    why: str | None = None
    """Why something is not recorded, if it is known."""


def launch(
    command: Sequence[str],
    *,
    name: str | None = None,
    resume: bool = False,
    tags: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    captures: bool = True,
) -> Launch:
    """Run a program and record it.

    Args:
        command: the program and its arguments. A path that ends in ``.py``, or ``-m module``, is run with this Python.
        name: the name of the run; that of the script if not given.
        resume: continue the run of that name, if there is one.
        tags: words to find the run by.
        settings: settings of the run, for all processes of the program.
        captures: whether the last lines of its output are kept. Then the output passes through this process.

    Raises:
        ConfigError: if the program cannot be started, or cannot be reached.
        RunNameError: for a name that cannot be a folder.
        LogDirError: if the folder of the runs cannot be written.
    """
    settings = dict(settings or {})
    settings["log_dir"] = os.path.abspath(settings.get("log_dir") or os.environ.get("TACHO_LOG_DIR") or "logs")
    if name is not None:
        check_run_name(name)
    command = _runnable(command)
    _check_folder(settings["log_dir"])
    output = Output() if captures else None
    with _folder() as letters:
        order = Order(letters, name, _name_of(command), resume, tuple(tags))
        pid, returncode = _run(command, _environment(order, settings), output)
        runs, others, errors, faults = (words(letters, kind) for kind in ("run", "rank", "error", "fault"))
    told = _of_program(runs, pid)
    if told is not None:
        folder = RunFolder(told["folder"])
        _close(folder, _end(returncode), output)
        return Launch(returncode, str(folder.path), saw_training=True)
    if others:
        elsewhere = "its processes are of a job whose first rank records elsewhere"
        return Launch(returncode, None, saw_training=True, why=elsewhere)
    fault = _of_program(faults, pid)
    why = f"{fault['python']}: {fault['fault']}" if fault is not None else None
    try:
        run = _record_end(order, settings, returncode, _of_program(errors, pid), output, why)
    except (TachographError, OSError) as error:  # the program has run, and its exit code is what counts
        return Launch(returncode, None, saw_training=False, why=str(error))
    return Launch(returncode, run, saw_training=False, why=why)


def _of_program(told: Sequence[Word], pid: int) -> dict[str, Any] | None:
    """Return what the program itself told; if it did not, then what the last of the processes that it started did."""
    own = [word.said for word in told if word.pid == pid]
    return own[-1] if own else told[-1].said if told else None


# The program ---------------------------------------------------------------------------------------------------------


def _runnable(command: Sequence[str]) -> list[str]:
    """Return the command as it can be started, or say why it cannot."""
    if not command:
        raise ConfigError("nothing to run: write `tacho run -- python train.py`")
    runnable = list(command)
    if runnable[0] == "-m" or (runnable[0].endswith(".py") and not os.access(runnable[0], os.X_OK)):
        runnable.insert(0, sys.executable)
    program = shutil.which(runnable[0])
    if program is None:
        raise ConfigError(
            f"{runnable[0]!r} is no program that can be started; check the path, or write `python {runnable[0]}`"
        )
    if os.path.basename(program).startswith("python"):
        blind = _blinding_flag(runnable[1:])
        if blind is not None:
            raise ConfigError(
                f"python -{blind} looks neither at PYTHONPATH nor for sitecustomize, "
                "by which a script is reached; leave that flag out"
            )
    return runnable


def _blinding_flag(arguments: Sequence[str]) -> str | None:
    """Return the option of Python that keeps us out, if it is among its own, which stand before the script."""
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif argument.startswith("--"):
            is_value = argument == "--check-hash-based-pycs"
        elif not argument.startswith("-") or argument == "-":
            return None
        else:
            for place, letter in enumerate(argument[1:], start=1):
                if letter in "EIS":
                    return letter
                if letter in "cm":
                    return None
                if letter in "WX":  # their value is the rest, or comes next
                    is_value = place == len(argument) - 1
                    break
    return None


def _name_of(command: Sequence[str]) -> str:
    """Return a name for the run: that of the script or module among the arguments, else of the program."""
    found = os.path.basename(command[0])
    for place, argument in enumerate(command[1:], start=1):
        if argument in {"-m", "--module"} and place + 1 < len(command) and "." not in command[place + 1][:1]:
            module = command[place + 1]
            if module not in {"torch.distributed.run", "accelerate.commands.launch"}:
                found = module.rpartition(".")[2]
                break
        elif argument.endswith(".py"):
            found = Path(argument).stem
            break
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in found).strip(".-")
    return name[:80] or "run"


def _check_folder(log_dir: str) -> None:
    """Refuse a folder that could not be written to, before the program has run for a day."""
    place = log_dir
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        raise LogDirError(f"runs cannot be recorded in {log_dir!r}: {place!r} is no folder that can be written to")


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    letters = tempfile.mkdtemp(prefix="tacho-")
    try:
        yield letters
    finally:
        shutil.rmtree(letters, ignore_errors=True)


def _environment(order: Order, settings: Mapping[str, Any]) -> dict[str, str]:
    bootstrap = str(Path(__file__).parent / "bootstrap")
    environment = {**os.environ, **order.to_environment()}
    theirs = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = bootstrap + os.pathsep + theirs if theirs else bootstrap
    for setting, value in settings.items():
        environment[f"TACHO_{setting.upper()}"] = str(value)
    return environment


def _run(command: Sequence[str], environment: Mapping[str, str], output: Output | None) -> tuple[int, int]:
    """Run the program to its end; return its process id and its exit code. Signals that come to us are passed on."""
    program: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if program is None:
            early.append(number)
        elif number != signal.SIGINT or not _is_in_front():  # Ctrl-C reaches the program by itself
            program.send_signal(number)

    def resize(number: int, frame: FrameType | None) -> None:
        if output is not None:
            output.resize()
        pass_on(number, frame)  # it heard of it already, when its terminal still had the old size

    with contextlib.ExitStack() as stack:
        for name in _PASSED_ON:
            _handle(stack, name, pass_on)
        _handle(stack, "SIGWINCH", resize)
        ends = stack.enter_context(tee(output)) if output is not None else (None, None)
        try:
            program = subprocess.Popen(command, env=environment, stdout=ends[0], stderr=ends[1])  # noqa: S603
        except OSError as error:
            raise ConfigError(f"{command[0]!r} cannot be started: {error.strerror}") from error
        if output is not None:
            output.close_ends()
        for number in early:
            program.send_signal(number)
        returncode = program.wait()
        if output is not None:
            output.wait(_CAPTURE_TIMEOUT_S)
        return program.pid, returncode


def _handle(stack: contextlib.ExitStack, name: str, handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle a signal until the stack is left; one that is ignored stays so."""
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
        stack.callback(signal.signal, number, signal.signal(number, handler))


def _is_in_front() -> bool:
    """Tell whether a terminal sends its keys to us and the program alike."""
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


# How it ended --------------------------------------------------------------------------------------------------------


def _end(returncode: int) -> dict[str, Any]:
    """Return what an exit code says of the end of a run."""
    if returncode == 0:
        return {"status": "finished", "reason": "exit", "exit_code": 0}
    if returncode > 0:
        return {"status": "failed", "reason": f"exit code {returncode}", "exit_code": returncode}
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return {"status": "failed", "reason": f"killed by {name}", "signal": name}


def _record_end(
    order: Order,
    settings: Mapping[str, Any],
    returncode: int,
    error: Mapping[str, Any] | None,
    output: Output | None,
    why: str | None,
) -> str | None:
    """Record a program in which no training was seen: how it ended, and what it printed last."""
    quiet = {"console": False, "hooks": False, "diagnose": False, "system_interval_s": 0.0}
    run = init(order.name or order.default_name, resume=order.resume, tags=order.tags, **{**settings, **quiet})
    run.event("instrumented", framework="none", method="launch", reason=why or "no training was seen")
    end = _end(returncode)
    if error is not None and returncode:
        run._add_record("error", dict(error))
        end["reason"] = error["error_type"]
    for event, fields in _logs(output):
        run._add_record(event, fields)
    run.finish(end["status"], reason=end["reason"])
    if run.folder is not None:
        append_after_exit(run.folder, [("end", end)])
    return run.path


def _logs(output: Output | None) -> list[tuple[str, dict[str, Any]]]:
    return [("log", fields) for fields in output.tails()] if output is not None else []


def _close(folder: RunFolder, end: Mapping[str, Any], output: Output | None) -> None:
    """Add to a run what its own process could not know: what it printed last, and its exit code."""
    found = overview(folder)
    end = dict(end)
    if found.state in {RunState.FINISHED, RunState.FAILED}:
        if found.state is RunState.FAILED:
            end["status"] = "failed"
        elif found.reason != "exit":
            end["status"], end["reason"] = "finished", found.reason  # by the program itself, before whatever came later
        if found.reason and (end["status"] == "finished" or found.state is RunState.FAILED):
            end["reason"] = found.reason
    with contextlib.suppress(OSError):  # a full disk, or the folder was deleted: what the program recorded is there
        append_after_exit(folder, [*_logs(output), ("end", end)])
