"""`tacho run`."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING

import rich_click as click

from tachograph._base.settings import resolve_settings
from tachograph.cli._options import log_dir_option
from tachograph.cli._terminal import echo, safe_lines
from tachograph.exceptions import ProgramNotFoundError
from tachograph.journal import RunFolder, page_of_run, read_destination

if TYPE_CHECKING:
    from tachograph.integrations.zero_code import LaunchResult

__all__ = ["run"]


class _NotFound(click.ClickException):
    """Ends with the exit code of a shell that does not find a program."""

    exit_code = 127


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@log_dir_option
@click.option("--name", help="Name of the run. Default: the name of the script.")
@click.option("--resume", is_flag=True, help="Continue the run of that name, if it exists.")
@click.option("--tag", "tags", multiple=True, help="Tag of the run. Can be repeated.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of the run, such as log_every=10. Can be repeated.",
)
@click.option(
    "--as",
    "stand_ins",
    multiple=True,
    type=click.Choice(["wandb"]),
    help="Replace this tracker: `import wandb` in the program then imports `tachograph.wandb`.",
)
@click.option("--no-output", is_flag=True, help="Do not record the output of the program.")
def run(
    command: tuple[str, ...],
    log_dir: str,
    name: str | None,
    resume: bool,
    tags: tuple[str, ...],
    settings: tuple[str, ...],
    stand_ins: tuple[str, ...],
    no_output: bool,
) -> None:
    """Record an unmodified program: `tacho run -- python train.py`.

    Recognises PyTorch loops and the trainers of Hugging Face and Lightning, also under `torchrun` and
    `accelerate launch`. Also records metrics that the program logs to W&B, TensorBoard, MLflow, trackio or SwanLab,
    and its parsed arguments. Exits with the exit code of the program.
    """
    from tachograph._init import resolve_destination
    from tachograph.integrations.zero_code import launch

    if command[0].startswith("-") and command[0] != "-m":
        raise click.NoSuchOption(command[0])
    values: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r}: expected NAME=VALUE, such as log_every=10", param_hint="--set")
        values[key.strip()] = value.strip()
    resolve_destination(resolve_settings(values))  # raises here, not inside the program
    try:
        result = launch(
            command,
            name=name,
            resume=resume,
            tags=tags,
            settings={**values, "log_dir": log_dir},
            captures=not no_output,
            stand_ins=stand_ins,
            line_of_run=_line_of_run if sys.stderr is not None else None,
        )
    except ProgramNotFoundError as error:
        raise _NotFound(str(error)) from error
    _print_outcome(result)
    if result.returncode < 0:
        _die_by_signal(-result.returncode)
    raise SystemExit(result.returncode)


def _line_of_run(path: str) -> str:
    """Return where to watch a run that has started."""
    page = page_of_run(path)
    log_dir = shlex.quote(os.path.relpath(os.path.dirname(path)))
    where = f"at: {page}" if page else f"with: tacho ui --log-dir {log_dir}"
    return safe_lines(f"[telemetry] recording {os.path.basename(path)}; watch it {where}")


def _print_outcome(result: LaunchResult) -> None:
    """Print where the run is recorded. Standard error may be closed."""
    if result.run is None:
        line = f"nothing was recorded: {result.reason or 'telemetry is off'}"
    elif result.has_training:
        page = page_of_run(result.run)
        line = f"recorded in {os.path.relpath(result.run)}" + (f", see {page}" if page else "")
    else:
        reason = f" ({result.reason})" if result.reason else ""
        line = (
            f"no training was detected{reason}; recorded only the output and the end in {os.path.relpath(result.run)}"
        )
    lines = [line]
    destination = read_destination(RunFolder(result.run)) if result.run is not None else None
    if result.run is not None and destination is not None and destination.mode == "offline":
        lines.append(f"Send it with: {destination.sync_command(os.path.relpath(result.run))}")
    with contextlib.suppress(OSError):
        for line in lines:
            echo(f"[telemetry] {line}", err=True)


def _die_by_signal(number: int) -> None:
    """End this process by the signal that ended the program, so that a shell or a scheduler sees the same."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped its own core
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)  # SIGKILL cannot be set, and needs no reset
    with contextlib.suppress(OSError):
        os.kill(os.getpid(), number)
    raise SystemExit(128 + number)
