"""`tacho run`."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import rich_click as click

from tachograph.cli._options import log_dir_option
from tachograph.settings import resolve_settings

if TYPE_CHECKING:
    from tachograph.integrations.zero_code import Launch

__all__ = ["run"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@log_dir_option
@click.option("--name", help="Name of the run; that of the script if not given.")
@click.option("--resume", is_flag=True, help="Continue the run of that name, if there is one.")
@click.option("--tag", "tags", multiple=True, help="A word to find the run by; may be given several times.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting, such as log_every=10.")
@click.option("--no-output", is_flag=True, help="Do not pass the output through, and do not keep its last lines.")
def run(
    command: tuple[str, ...],
    log_dir: str,
    name: str | None,
    resume: bool,
    tags: tuple[str, ...],
    settings: tuple[str, ...],
    no_output: bool,
) -> None:
    """Run a program and record its training, without a change to it: `tacho run -- python train.py`.

    PyTorch loops, Hugging Face and Lightning trainers are recognised, also under `torchrun` and `accelerate launch`.
    The exit code is that of the program.
    """
    from tachograph.integrations.zero_code import launch

    if command[0].startswith("-") and command[0] != "-m":
        raise click.NoSuchOption(command[0])
    chosen: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r}: NAME=VALUE is expected, such as log_every=10", param_hint="--set")
        chosen[key.strip()] = value.strip()
    resolve_settings(chosen)  # raises here what would otherwise be a fault inside the program
    ended = launch(
        command,
        name=name,
        resume=resume,
        tags=tags,
        settings={**chosen, "log_dir": log_dir},
        captures=not no_output,
    )
    _tell(ended)
    if ended.returncode < 0:
        _die_by(-ended.returncode)
    raise SystemExit(ended.returncode)


def _tell(ended: Launch) -> None:
    """Say where the run is; nobody may be there to read it."""
    if ended.run is None:
        line = f"nothing is recorded: {ended.why or 'telemetry is off'}"
    elif ended.saw_training:
        line = f"recorded in {os.path.relpath(ended.run)}"
    else:
        reason = f"no training was seen ({ended.why})" if ended.why else "no training was seen"
        line = f"recorded in {os.path.relpath(ended.run)}; {reason}, only how it ended and its last output is recorded"
    with contextlib.suppress(OSError):
        click.echo(f"[telemetry] {line}", err=True)


def _die_by(number: int) -> None:
    """End as the program did, so that a shell or a scheduler sees the same."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own core
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)  # not for SIGKILL, which has no other way
    with contextlib.suppress(OSError):
        os.kill(os.getpid(), number)
    raise SystemExit(128 + number)
