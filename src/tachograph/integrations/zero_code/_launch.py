"""Starts a program so that it is recorded, forwards its output and signals, and records how it ended.

The launcher is the parent of the program and must be invisible: same output, same signals, same exit code. It cannot
know in advance whether the program trains. There are three outcomes:

- A process of the program started a run. The run has recorded its own end if it could; the launcher appends an `end`
  record with the exit code or signal, which a killed process cannot write itself, and the last lines of output.
- Only ranks other than 0 were here. Rank 0 records the run on another machine, so nothing is recorded.
- No training was detected. The launcher records a run of its own with the error, the last output and the end.

Signals sent to the launcher are forwarded, except Ctrl-C at a terminal, which the terminal sends to the program, too.
Telemetry errors after the program has ended never change the exit code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tachograph._base.guard import guard
from tachograph._base.threads import TelemetryThread
from tachograph._init import init
from tachograph.black_box import find_kill, write_kill_dump
from tachograph.exceptions import ConfigError, LogDirError, ProgramNotFoundError, TachographError
from tachograph.integrations.zero_code._launch_spec import ChildReport, LaunchSpec, read_child_reports
from tachograph.integrations.zero_code._output import ProgramOutput, tee_output
from tachograph.journal import RunFolder, RunState
from tachograph.reader import overview
from tachograph.recorder import append_after_exit
from tachograph.records import check_run_name, mask_text

__all__ = ["LaunchResult", "check_command", "launch"]

_UNSUCCESSFUL = frozenset({RunState.FAILED, RunState.INTERRUPTED})
_FORWARDED_SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_CAPTURE_TIMEOUT_S = 1.0
_FIND_INTERVAL_S = 0.3


class LaunchResult(NamedTuple):
    """The outcome of a launched program."""

    returncode: int
    """Its exit code, or minus the number of the signal that ended it."""
    run: str | None
    """The folder of its run, or None if nothing was recorded."""
    has_training: bool
    """Whether training was detected."""
    reason: str | None = None
    """Why it was not recorded in full, if known."""
    signals: tuple[int, ...] = ()
    """The signals that the launcher received meanwhile and forwarded, such as Ctrl-C."""


def launch(
    command: Sequence[str],
    *,
    name: str | None = None,
    resume: bool = False,
    tags: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    captures: bool = True,
    stand_ins: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    line_of_run: Callable[[str], str] | None = None,
) -> LaunchResult:
    """Run a program and record it.

    Args:
        command: the program and its arguments. A path that ends in ``.py``, or ``-m module``, is run with this Python.
        name: the name of the run; the name of the script if not given.
        resume: continue the run of that name, if it exists.
        tags: tags of the run.
        settings: settings of the run, for all processes of the program.
        stand_ins: trackers that the program gets from Tachograph instead of the installed package: "wandb".
        captures: whether to record its output. If so, the output passes through this process.
        variables: further environment variables of the program.
        line_of_run: called in a thread with the folder of the run, as soon as the program has started one. Its
            result is printed to standard error.

    Raises:
        ProgramNotFoundError: if there is no such program.
        ConfigError: if the program cannot be instrumented.
        RunNameError: if the name is not a valid folder name.
        LogDirError: if the log folder is not writable.
    """
    settings = dict(settings or {})
    settings["log_dir"] = os.path.abspath(settings.get("log_dir") or os.environ.get("TACHO_LOG_DIR") or "logs")
    if name is not None:
        check_run_name(name)
    command = check_command(command)
    _check_writable(settings["log_dir"])
    with _reports_folder() as reports, contextlib.ExitStack() as stack:
        pids: list[int] = []
        output = ProgramOutput(lambda: _find_run_folder(reports, pids)) if captures else None
        if output is not None:
            stack.callback(output.finish_recording, None)  # unless it is finished with a run
        spec = LaunchSpec(reports, name, _derive_name(command), resume, tuple(tags), tuple(stand_ins), captures)
        environment = {**_build_environment(spec, settings), **(variables or {})}

        def print_line(folder: str) -> None:
            line = line_of_run(folder) if line_of_run is not None else ""
            if output is None or not output.print_line(line):
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

        on_run = None if line_of_run is None else print_line
        with _call_with_run(on_run, lambda: _find_run_folder(reports, pids)):
            returncode, signals = _run(command, environment, output, pids)
        pid = pids[0]
        kinds = ("run", "rank", "error", "fault", "values")
        runs, ranks, errors, faults, values = (read_child_reports(reports, kind) for kind in kinds)
        if not ranks or runs:
            stack.pop_all()
    run_fields = _select_report(runs, pid)
    if run_fields is not None:
        folder = RunFolder(run_fields["folder"])
        if output is not None:
            output.finish_recording(folder)
        _append_end(folder, _end_fields(returncode), output)
        return LaunchResult(returncode, str(folder.path), has_training=True, signals=signals)
    if ranks:
        elsewhere = "rank 0 of the job records on another machine"
        return LaunchResult(returncode, None, has_training=True, reason=elsewhere, signals=signals)
    fault = _select_report(faults, pid)
    reason = f"{fault['python']}: {fault['fault']}" if fault is not None else None
    try:
        fatal, script_values = _select_report(errors, pid), _select_report(values, pid) or {}
        run = _record_without_training(command, spec, settings, returncode, fatal, script_values, output, reason)
    except (TachographError, OSError) as error:  # the program has run: its exit code must be preserved
        return LaunchResult(returncode, None, has_training=False, reason=str(error), signals=signals)
    return LaunchResult(returncode, run, has_training=bool(script_values.get("rows")), reason=reason, signals=signals)


def _find_run_folder(reports: str, pids: Sequence[int]) -> str | None:
    """Return the folder of the run that the program, or else one of its processes, started last."""
    try:
        report = _select_report(read_child_reports(reports, "run"), pids[0]) if pids else None
    except OSError:  # the program has ended
        return None
    return str(report["folder"]) if report is not None else None


@contextlib.contextmanager
def _call_with_run(on_run: Callable[[str], None] | None, find_run: Callable[[], str | None]) -> Iterator[None]:
    """Call a function in a thread when there is a run, unless the context ends before."""
    is_over = threading.Event()

    def wait() -> None:
        while on_run is not None and not is_over.wait(_FIND_INTERVAL_S):
            folder = find_run()
            if folder is not None:
                with guard("reporting the run"), contextlib.suppress(OSError):
                    on_run(folder)
                return

    if on_run is not None:
        TelemetryThread(wait, name="tacho-run").start()
    try:
        yield
    finally:
        is_over.set()


def _select_report(reports: Sequence[ChildReport], pid: int) -> dict[str, Any] | None:
    """Return the report of the program itself, else the last one of a process that it started."""
    program_reports = [report.fields for report in reports if report.pid == pid]
    return program_reports[-1] if program_reports else reports[-1].fields if reports else None


# The program ---------------------------------------------------------------------------------------------------------


def check_command(command: Sequence[str]) -> list[str]:
    """Return the command to start.

    Raises:
        ProgramNotFoundError: if there is no such program.
        ConfigError: if the program cannot be instrumented.
    """
    if not command:
        raise ConfigError("nothing to run: write `tacho run -- python train.py`")
    full_command = list(command)
    if full_command[0] == "-m" or (full_command[0].endswith(".py") and not os.access(full_command[0], os.X_OK)):
        full_command.insert(0, sys.executable)
    program = shutil.which(full_command[0])
    if program is None:
        raise ProgramNotFoundError(
            f"{full_command[0]!r} is not an executable program; check the path, or write `python {full_command[0]}`"
        )
    if os.path.basename(program).startswith("python"):
        flag = _find_isolating_flag(full_command[1:])
        if flag is not None:
            raise ConfigError(
                f"python -{flag} ignores PYTHONPATH or sitecustomize, which `tacho run` needs to reach the script; "
                "remove that flag"
            )
    return full_command


def _find_isolating_flag(arguments: Sequence[str]) -> str | None:
    """Return the option of Python itself, before the script, that would keep `sitecustomize` from loading."""
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif argument.startswith("--"):
            is_value = argument == "--check-hash-based-pycs"
        elif not argument.startswith("-") or argument == "-":
            return None
        else:
            for index, flag in enumerate(argument[1:], start=1):
                if flag in "EIS":
                    return flag
                if flag in "cm":
                    return None
                if flag in "WX":  # their value is the rest of this argument, or the next one
                    is_value = index == len(argument) - 1
                    break
    return None


def _derive_name(command: Sequence[str]) -> str:
    """Return a name for the run: the script or module among the arguments, else the program."""
    source = os.path.basename(command[0])
    for index, argument in enumerate(command[1:], start=1):
        if argument in {"-m", "--module"} and index + 1 < len(command) and "." not in command[index + 1][:1]:
            module = command[index + 1]
            if module not in {"torch.distributed.run", "accelerate.commands.launch"}:
                source = module.rpartition(".")[2]
                break
        elif argument.endswith(".py"):
            source = Path(argument).stem
            break
    name = "".join(char if char.isalnum() or char in "._-" else "-" for char in source).strip(".-")
    return name[:80] or "run"


def _check_writable(log_dir: str) -> None:
    """Raise if the log folder cannot be written: now, and not after the program has run for a day."""
    parent = log_dir
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise LogDirError(f"cannot record runs in {log_dir!r}: {parent!r} is not a writable folder")


@contextlib.contextmanager
def _reports_folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="tacho-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _build_environment(spec: LaunchSpec, settings: Mapping[str, Any]) -> dict[str, str]:
    bootstrap = str(Path(__file__).parent / "bootstrap")
    environment = {**os.environ, **spec.to_environment()}
    original = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = bootstrap + os.pathsep + original if original else bootstrap
    for setting, value in settings.items():
        environment[f"TACHO_{setting.upper()}"] = str(value)
    return environment


def _run(
    command: Sequence[str], environment: Mapping[str, str], output: ProgramOutput | None, pids: list[int]
) -> tuple[int, tuple[int, ...]]:
    """Run the program to its end; add its process id to `pids` and return its exit code and the signals forwarded."""
    program: subprocess.Popen[bytes] | None = None
    pending_signals: list[int] = []  # received before the program has started
    received_signals: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received_signals.append(number)
        if program is None:
            pending_signals.append(number)
        elif number != signal.SIGINT or not _is_foreground():  # the terminal sends Ctrl-C to the program, too
            program.send_signal(number)

    def resize(number: int, frame: FrameType | None) -> None:
        if output is not None:
            output.resize()
        forward(number, frame)  # again: the first time, its terminal still had the old size

    with contextlib.ExitStack() as stack:
        for name in _FORWARDED_SIGNALS:
            _handle(stack, name, forward)
        _handle(stack, "SIGWINCH", resize)
        ends = stack.enter_context(tee_output(output)) if output is not None else (None, None)
        try:
            program = subprocess.Popen(command, env=environment, stdout=ends[0], stderr=ends[1])  # noqa: S603
        except OSError as error:
            raise ConfigError(f"cannot start {command[0]!r}: {error.strerror}") from error
        pids.append(program.pid)
        if output is not None:
            output.close_ends()
        for number in pending_signals:
            program.send_signal(number)
        returncode = program.wait()
        if output is not None:
            output.wait(_CAPTURE_TIMEOUT_S)
        return returncode, tuple(received_signals)


def _handle(stack: contextlib.ExitStack, name: str, handler: Callable[[int, FrameType | None], None]) -> None:
    """Handle a signal until the stack is closed. A signal that is ignored stays ignored."""
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
        stack.callback(signal.signal, number, signal.signal(number, handler))


def _is_foreground() -> bool:
    """Return whether we are in the foreground of a terminal, which then signals us and the program alike."""
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


# The end of the program ----------------------------------------------------------------------------------------------


def _end_fields(returncode: int) -> dict[str, Any]:
    """Return the fields of an `end` record for an exit code."""
    if returncode == 0:
        return {"status": "finished", "reason": "exit", "exit_code": 0}
    if returncode > 0:
        # A shell reports a signal that ended its program as 128 and its number.
        cause = f" (signal {returncode - 128}, {_signal_name(returncode - 128)})" if 128 < returncode < 160 else ""
        return {"status": "failed", "reason": f"exit code {returncode}{cause}", "exit_code": returncode}
    name = _signal_name(-returncode)
    return {"status": "failed", "reason": f"killed by signal {-returncode} ({name})", "signal": name}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def _program_arguments(command: Sequence[str]) -> Iterator[None]:
    """Let a run that is started here have the command of the program, as if the program had started it."""
    arguments = sys.argv
    is_python_script = os.path.basename(command[0]).startswith("python") and not "".join(command[1:2]).startswith("-")
    sys.argv = list(command[1:] if is_python_script else command)
    try:
        yield
    finally:
        sys.argv = arguments


def _record_without_training(
    command: Sequence[str],
    spec: LaunchSpec,
    settings: Mapping[str, Any],
    returncode: int,
    error: Mapping[str, Any] | None,
    script_values: Mapping[str, Any],
    output: ProgramOutput | None,
    reason: str | None,
) -> str | None:
    """Record the end and the last output of a program in which no training was detected; return the run's folder.

    Values that it passed to other tools are recorded, too: its config, and the few rows that may come before training.
    """
    quiet = {"console": False, "hooks": False, "diagnose": False, "system_interval_s": 0.0}
    config = script_values.get("config") or None
    options = {**settings, **quiet}
    with _program_arguments(command):
        run = init(spec.name or spec.default_name, config=config, resume=spec.resume, tags=spec.tags, **options)
    run.event("instrumented", framework="none", method="launch", reason=reason or "no training was detected")
    for metric, line in script_values.get("printed", {}).items():
        run.event("read_from_output", metric=metric, line=mask_text(line.strip())[:200])
    for step, row in script_values.get("rows", ()):
        run.log(row, step)
    end = _end_fields(returncode)
    if error is not None and returncode:
        run.add_record("error", dict(error))
        end["reason"] = error["error_type"]
    for event, fields in _log_records(output):
        run.add_record(event, fields)
    run.finish(end["status"], reason=end["reason"])
    if run.folder is not None:
        if output is not None:
            output.finish_recording(run.folder)
        append_after_exit(run.folder, [("end", end)])
    return run.path


def _log_records(output: ProgramOutput | None) -> list[tuple[str, dict[str, Any]]]:
    return [("log", fields) for fields in output.tails()] if output is not None else []


def _append_end(folder: RunFolder, end: Mapping[str, Any], output: ProgramOutput | None) -> None:
    """Append to a run the last output and the exit code, which its own process could not record."""
    run_overview = overview(folder)
    end = dict(end)
    if run_overview.state in {RunState.FINISHED, *_UNSUCCESSFUL}:
        if run_overview.state in _UNSUCCESSFUL:
            end["status"] = "failed"
        elif run_overview.reason != "exit":
            end["status"], end["reason"] = (
                "finished",
                run_overview.reason,
            )  # the program ended its run before its own end
        if run_overview.reason and (end["status"] == "finished" or run_overview.state in _UNSUCCESSFUL):
            end["reason"] = run_overview.reason
    dumps = _explain_kill(folder, end, run_overview.step) if end["status"] == "failed" else []
    with contextlib.suppress(OSError):  # a full disk or a deleted folder: the program's own records are unaffected
        append_after_exit(folder, [*_log_records(output), *dumps, ("end", end)])


def _explain_kill(folder: RunFolder, end: dict[str, Any], step: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Add to the reason of the end that memory was full, if there is evidence; return records of a dump about it."""
    with guard("looking for the reason of a kill"):
        is_sigkill = end.get("signal") == "SIGKILL" or end.get("exit_code") == 128 + signal.SIGKILL
        verdict = find_kill(folder, is_sigkill=is_sigkill)
        if verdict is not None:
            end["reason"] = f"{end['reason']}: {verdict.text}"
            return write_kill_dump(folder, verdict, step)
    return []
