"""`tacho tail`: print the last records of a run and follow new ones."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from typing import Any

import rich_click as click
from rich.console import Console
from rich.text import Text

from tachograph.cli._format import format_time, json_text, new_console, number, plural, safe
from tachograph.cli._options import json_option, log_dir_option, run_argument
from tachograph.cli._terminal import echo
from tachograph.journal import JournalFollower, RunFolder, RunState, find_run
from tachograph.reader import overview
from tachograph.records import KINDS

__all__ = ["tail"]

_POLL_S = 0.2
_STYLES = {
    "start": "bold cyan",
    "end": "bold cyan",
    "error": "bold red",
    "telemetry_error": "yellow",
    "control_change": "magenta",
    "checkpoint": "green",
    "validation": "blue",
    "system": "dim",
}
_HIDDEN_FIELDS = {
    "event",
    "time",
    "global_step",
    "nan_inf_detected",
    "traceback",
    "config",
    "process",
    "command",
    "span_id",
    "parent_id",
}
_EVENT_FIELDS = {
    "one_logger_initialization": {"name", "session_tag", "world_size"},
    "training_metrics_update": {
        "name",
        "num_iterations",
        "avg_iteration_time_sec",
        "window_iterations",
        "window_iteration_sec_p50",
        "window_iteration_sec_p95",
        "window_samples_per_sec",
        "window_mfu",
        "latest_loss",
    },
    "save_checkpoint_success": {"name", "checkpoint_directory", "checkpoint_size", "productive_train_iterations"},
}
"""Fields printed for events that have too many for one line; `--json` prints all of them."""

_WINDOW_FIELDS = {
    "window/iterations",
    "window/sec",
    "window/iteration_sec_p50",
    "window/iteration_sec_p95",
    "window/samples_per_sec",
    "window/mfu",
}
_LONG_TEXT_FIELDS = {"reason", "error_message", "where"}


@click.command()
@run_argument
@log_dir_option
@json_option
@click.option(
    "-n", "--lines", default=20, show_default=True, type=click.IntRange(0), help="Number of past records to print."
)
@click.option("-f", "--follow", is_flag=True, help="Print new records until the run ends.")
@click.option(
    "-e",
    "--event",
    "events",
    multiple=True,
    type=click.Choice(list(KINDS)),
    metavar="KIND",
    help="Only records of this kind, such as alert. Can be repeated.",
)
def tail(run: str, log_dir: str, as_json: bool, lines: int, follow: bool, events: tuple[str, ...]) -> None:
    """Print the last records of a run, and follow new ones."""
    if follow and threading.current_thread() is threading.main_thread():
        # Nothing to tidy up, so let Ctrl-C end the process: Python drops a KeyboardInterrupt raised in a destructor.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder = find_run(run, log_dir)
    console = new_console(highlight=False)
    follower, last = _read_last(folder, lines, events)
    for record in last:
        _print_record(console, record, as_json=as_json)
    while follow:
        # Check the state before polling: records written in between are then read before the loop ends.
        has_ended = _has_ended(folder)
        for record in follower.poll():
            if not events or record["event"] in events:
                _print_record(console, record, as_json=as_json)
        if has_ended:
            break
        time.sleep(_POLL_S)
    if follower.num_bad_lines and not as_json:
        console.print(Text(f"skipped {plural(follower.num_bad_lines, 'unreadable line')}", style="yellow"))


def _read_last(folder: RunFolder, lines: int, events: tuple[str, ...]) -> tuple[JournalFollower, deque[dict[str, Any]]]:
    """Read ever larger blocks from the end of the journal until they contain enough matching records."""
    num_bytes = 64 << 10
    while True:
        # With -e the wanted records may be far back, so each round reads eight times as much.
        follower = JournalFollower.from_end(folder.journal, num_bytes)
        reaches_start = follower.offset == 0
        records_to_print: deque[dict[str, Any]] = deque(maxlen=lines)
        while records := follower.poll_block():
            records_to_print.extend(record for record in records if not events or record["event"] in events)
        if reaches_start or len(records_to_print) == lines:
            return follower, records_to_print
        num_bytes *= 8


def _has_ended(folder: RunFolder) -> bool:
    return overview(folder).state not in {RunState.RUNNING, RunState.STALE}


def _print_record(console: Console, record: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo(json_text(record))
        return
    event = record["event"]
    clock = f"{format_time(record.get('time'), '%H:%M:%S'):8}"
    line = Text.assemble((clock, "dim"), " ", (f"{safe(event, 16):<16}", _STYLES.get(event, "")))
    step = record.get("global_step")
    line.append(f"{number(step) if step is not None else '':>9}  ", style="bold")
    fields = _EVENT_FIELDS.get(str(record.get("name")), record) if event == "event" else record
    if "window/sec" in record:
        fields = _WINDOW_FIELDS
    for name, value in record.items():
        if name in fields and name not in _HIDDEN_FIELDS and not isinstance(value, (dict, list)):
            text = safe(value, 300) if name in _LONG_TEXT_FIELDS else number(value)
            line.append(f"{safe(name, 60)}", style="dim").append(f"={text} ")
    if record.get("nan_inf_detected"):
        line.append("NaN/Inf", style="bold red")
    console.print(line, soft_wrap=True)
