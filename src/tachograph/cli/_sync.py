"""`tacho sync`: send unsent records to sinks and to the team server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import rich_click as click

from tachograph._base.settings import resolve_settings
from tachograph.cli._format import json_text, plural, safe, size
from tachograph.cli._options import complete_run, json_option, log_dir_option, resolve_run
from tachograph.cli._send import Transfer, find_runs_to_send, read_transfers, send_runs, watch_runs
from tachograph.cli._terminal import echo
from tachograph.journal import RunFolder, RunState, current_state, find_run, find_run_folders, list_runs
from tachograph.sinks import SinkDriver, SinkLag, build_sinks, lock_export, read_lags

__all__ = ["sync"]

_LOCK_POLL_S = 0.2


class _Delivery(NamedTuple):
    """The result of sending a run to one of its sinks."""

    run: str
    sink: str
    num_delivered: int
    num_missing: int
    reason: str


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN|DIR]...", shell_complete=complete_run, callback=resolve_run)
@log_dir_option
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="NAME",
    help='Only send to this sink: a name, or \'{"wandb": {"project": "x"}}\'. Also exports runs that never used the '
    "sink, from their first record. Can be repeated.",
)
@click.option(
    "--server",
    metavar="URL",
    help="Only send to this server, also runs that were not recorded for a server. Default: the server of each run.",
)
@click.option("--watch", is_flag=True, help="Keep sending new records to the server, until you press Ctrl-C.")
@click.option("--status", is_flag=True, help="Print how much of each run the server still lacks, and send nothing.")
@click.option("--dry-run", is_flag=True, help="Print how much would be sent, and send nothing.")
@click.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Give up on a sink or the server after this many seconds per run.",
)
@json_option
def sync(
    runs: tuple[str, ...],
    log_dir: str,
    sinks: tuple[str, ...],
    server: str | None,
    watch: bool,
    status: bool,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send unsent records to sinks and to the team server.

    Records stay unsent if a sink or the server was unreachable, if the run ended before everything was sent, or if it
    was recorded with `mode="offline"`. Name runs or folders with runs; the default is every run in the log folder.
    Without --sink and --server, each run goes to the sinks and the server that it was recorded for. The options of
    a sink come from --sink or from the environment variable TACHO_SINKS.

    Exits with 0 if everything was received, and with 1 otherwise.
    """
    if sinks and (server or watch or status):
        raise click.UsageError("--sink is about sinks, and --server, --watch and --status are about the server")
    if watch:
        watch_runs(lambda: find_runs_to_send(_find_folders(runs, log_dir), server), _print_transfer)
    folders = _find_folders(runs, log_dir)
    runs_to_send = find_runs_to_send(folders, server) if not sinks else []
    if status or (dry_run and server):
        transfers = read_transfers(runs_to_send)
        _print_status(transfers, as_json=as_json)
        return
    transfers = read_transfers(runs_to_send) if dry_run else send_runs(runs_to_send, timeout_s, _printer(as_json))
    deliveries = [] if server else _deliver_to_sinks(folders, sinks, timeout_s, dry_run=dry_run, as_json=as_json)
    if as_json:
        results = [*(transfer._asdict() for transfer in deliveries), *(transfer._asdict() for transfer in transfers)]
        echo(json_text(results))
    elif dry_run:
        _print_status([transfer for transfer in transfers if not transfer.is_complete], as_json=False)
    if not as_json and not deliveries and not transfers:
        echo("nothing to deliver")
    has_failed = any(delivery.reason for delivery in deliveries) or not all(
        transfer.is_complete for transfer in transfers
    )
    if not dry_run and has_failed:
        raise SystemExit(1)


def _find_folders(runs: tuple[str, ...], log_dir: str) -> list[tuple[str, RunFolder]]:
    """Return the named runs, and the runs in named folders, with their names; the default is the log folder."""
    if not runs:
        return [(folder.name, folder) for folder in list_runs(log_dir)]
    folders_by_path: dict[str, tuple[str, RunFolder]] = {}
    for text in runs:
        is_folder = os.path.isdir(text) and not RunFolder(text).exists()
        folders = [(name, RunFolder(path)) for name, path, _ in find_run_folders(text)] if is_folder else []
        for name, folder in folders or [((run_folder := find_run(text, log_dir)).name, run_folder)]:
            folders_by_path.setdefault(os.path.realpath(folder.path), (name, folder))
    return list(folders_by_path.values())


def _deliver_to_sinks(
    folders: list[tuple[str, RunFolder]], sinks: tuple[str, ...], timeout_s: float, *, dry_run: bool, as_json: bool
) -> list[_Delivery]:
    options = _options(sinks)
    deliveries: list[_Delivery] = []
    for _, folder in folders:
        lags = {lag.sink: lag for lag in read_lags(folder)}
        selected_sinks = options if sinks else {name: options.get(name, {}) for name in lags}
        for name, values in selected_sinks.items():
            lag = lags.get(name, SinkLag(name, 0, ""))
            delivery = _skip_sink(folder, lag, lag.error) if dry_run else _deliver(folder, lag, values, timeout_s)
            deliveries.append(delivery)
            if not as_json:
                _print(delivery, dry_run=dry_run)
    return deliveries


def _options(sinks: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the selected sinks, or else the sinks in the environment, with their options."""
    options_by_sink = {name: dict(values) for name, values in resolve_settings({}).sinks.items()}
    if not sinks:
        return options_by_sink
    items = [text if text.lstrip().startswith("{") else json_text(text) for text in sinks]
    selected_sinks = resolve_settings({"sinks": f"[{','.join(items)}]"}).sinks
    return {name: dict(values) or options_by_sink.get(name, {}) for name, values in selected_sinks.items()}


def _skip_sink(folder: RunFolder, lag: SinkLag, reason: str) -> _Delivery:
    return _Delivery(folder.name, lag.sink, 0, lag.num_records, reason)


def _deliver(folder: RunFolder, lag: SinkLag, options: Mapping[str, Any], timeout_s: float) -> _Delivery:
    if lag.sink == "notify":
        return _skip_sink(folder, lag, "messages of a run that has ended are not sent later")
    if current_state(folder) is RunState.RUNNING:
        return _skip_sink(folder, lag, "the run is being recorded and delivers its records itself")
    deadline_s = time.monotonic() + timeout_s
    while (lock := lock_export(folder, lag.sink)) is None:  # such as the process that remains after the run
        if time.monotonic() >= deadline_s:
            return _skip_sink(folder, lag, f"another process is delivering, and was not done in {timeout_s:g} s")
        time.sleep(_LOCK_POLL_S)
    try:
        return _drive(folder, lag.sink, options, max(0.0, deadline_s - time.monotonic()))
    finally:
        if lock >= 0:
            os.close(lock)


def _drive(folder: RunFolder, name: str, options: Mapping[str, Any], timeout_s: float) -> _Delivery:
    """Export the records after the cursor, in this process."""
    failures: list[tuple[str, str]] = []
    (sink,) = build_sinks({name: options})
    driver = SinkDriver(folder, sink, lambda kind, _field, reason: failures.append((kind, reason)))
    num_missing = _num_missing(folder, name)  # after the driver has stored the first position of a sink that is new
    driver.start()
    is_done = driver.close(timeout_s)
    num_left = _num_missing(folder, name)
    reason = "; ".join(text for kind, text in failures if kind == "sink_rejected")
    if not is_done:
        reason = failures[-1][1].removesuffix("; will be retried") if failures else f"not done in {timeout_s:g} s"
    return _Delivery(folder.name, name, num_missing - num_left, num_left, reason)


def _num_missing(folder: RunFolder, sink: str) -> int:
    return next((lag.num_records for lag in read_lags(folder) if lag.sink == sink), 0)


def _print(delivery: _Delivery, *, dry_run: bool) -> None:
    run, sink = safe(delivery.run), safe(delivery.sink)
    if dry_run:
        why = f" ({safe(delivery.reason)})" if delivery.reason else ""
        echo(f"{run}: {sink} lacks {plural(delivery.num_missing, 'record')}{why}")
    elif delivery.reason:
        rest = f", {plural(delivery.num_missing, 'record')} left" if delivery.num_missing else ""
        echo(f"{run}: {sink} failed{rest}: {safe(delivery.reason, 300)}", err=True)
    else:
        echo(f"{run}: {sink} received {plural(delivery.num_delivered, 'record')}")


def _printer(as_json: bool) -> Callable[[Transfer], None]:
    return (lambda transfer: None) if as_json else _print_transfer


def _print_transfer(transfer: Transfer) -> None:
    run, server = safe(transfer.run), safe(transfer.server or "a server")
    if not transfer.is_complete:
        rest = f", {size(transfer.num_left_bytes)} left" if transfer.num_left_bytes else ""
        echo(f"{run}: sending to {server} failed{rest}: {safe(transfer.error, 300)}", err=True)
    elif transfer.num_sent_bytes:
        echo(f"{run}: sent {size(transfer.num_sent_bytes)} to {server} as {safe(transfer.copy)}")
    else:
        echo(f"{run}: {server} has everything, as {safe(transfer.copy)}")


def _print_status(transfers: list[Transfer], *, as_json: bool) -> None:
    if as_json:
        echo(json_text([transfer._asdict() for transfer in transfers]))
        return
    if not transfers:
        echo("no run is marked to be sent to a server")
    for transfer in transfers:
        state = "complete" if transfer.is_complete else f"{size(transfer.num_left_bytes)} left"
        error = f" ({safe(transfer.error, 300)})" if transfer.error else ""
        echo(f"{safe(transfer.run)}: {state} at {safe(transfer.server or 'an unknown server')}{error}")
