"""`tacho logs`: print the console output of a run and follow it."""

from __future__ import annotations

import signal
import threading
import time

import rich_click as click

from tachograph.cli._format import format_time, json_text
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._terminal import echo
from tachograph.journal import RunFolder, RunState, find_run, partial_output
from tachograph.reader import OutputFollower, OutputLine, overview, read_output

__all__ = ["logs"]

_POLL_S = 0.2
_MAX_WAIT_S = 10.0
"""The last lines are recorded after the run has ended, unless the launcher was killed."""
_STYLES = {"stderr": "red", "notice": "yellow"}


@click.command()
@run_argument
@log_dir_option
@json_option
@click.option(
    "-n", "--lines", default=200, show_default=True, type=click.IntRange(0), help="Number of past lines to print."
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the run ends.")
@click.option("-t", "--time", "with_time", is_flag=True, help="Print the time of each line.")
def logs(run: str, log_dir: str, as_json: bool, lines: int, follow: bool, with_time: bool) -> None:
    """Print the recorded output of a program that ran under `tacho run`, with secrets masked."""
    if follow and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to tidy up
    folder = find_run(run, log_dir)
    follower = OutputFollower(folder, lines)
    num_printed = _print(follower.poll(), as_json=as_json, with_time=with_time)
    deadline_s: float | None = None
    while follow:
        # Check the state before polling: lines written in between are then read before the loop ends.
        has_ended = overview(folder).state not in {RunState.RUNNING, RunState.STALE}
        is_recorded = partial_output(folder).exists()
        num_printed += _print(follower.poll(), as_json=as_json, with_time=with_time)
        if not has_ended:
            deadline_s = None
        elif deadline_s is None:
            deadline_s = time.monotonic() + _MAX_WAIT_S
        if deadline_s is not None and (not is_recorded or time.monotonic() > deadline_s):
            break
        time.sleep(_POLL_S)
    num_printed += _print(read_output(folder, limit=0).partial, as_json=as_json, with_time=with_time)
    if not num_printed and lines and not as_json:
        _print_hint(folder)


def _print(lines: list[OutputLine], *, as_json: bool, with_time: bool) -> int:
    for line in lines:
        if as_json:
            echo(json_text(line._asdict()))
            continue
        if with_time:
            echo(f"{format_time(line.time, '%H:%M:%S'):8} ", nl=False)
        echo(line.text, fg=_STYLES.get(line.stream))
    return len(lines)


def _print_hint(folder: RunFolder) -> None:
    echo(
        f"No output was recorded in {folder.name!r}. Start the program with `tacho run -- COMMAND` to record it.",
        err=True,
    )
