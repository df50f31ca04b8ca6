"""`tacho sync`: send unsent records to sinks and to the team server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import rich_click as click

from tachograph.cli._format import json_text, plural, safe, size
from tachograph.cli._options import complete_run, json_option, log_dir_option, resolve_run
from tachograph.cli._send import Sending, find_destined, send_runs, sending_status, watch_runs
from tachograph.journal import RunFolder, RunState, current_state, find_run, find_run_folders, list_runs
from tachograph.settings import resolve_settings
from tachograph.sinks import SinkDriver, SinkLag, build_sinks, lock_export, read_lags

__all__ = ["sync"]


class _Delivery(NamedTuple):
    """What happened with one sink of one run."""

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
        watch_runs(lambda: find_destined(_find_folders(runs, log_dir), server), _print_sending)
    folders = _find_folders(runs, log_dir)
    destined = find_destined(folders, server) if not sinks else []
    if status or (dry_run and server):
        sendings = sending_status(destined)
        _print_status(sendings, as_json=as_json)
        return
    sendings = sending_status(destined) if dry_run else send_runs(destined, timeout_s, _printer(as_json))
    deliveries = [] if server else _deliver_to_sinks(folders, sinks, timeout_s, dry_run=dry_run, as_json=as_json)
    if as_json:
        found = [*(item._asdict() for item in deliveries), *(item._asdict() for item in sendings)]
        click.echo(json_text(found))
    elif dry_run:
        _print_status([item for item in sendings if not item.is_complete], as_json=False)
    if not as_json and not deliveries and not sendings:
        click.echo("nothing to deliver")
    has_failed = any(delivery.reason for delivery in deliveries) or not all(item.is_complete for item in sendings)
    if not dry_run and has_failed:
        raise SystemExit(1)


def _find_folders(runs: tuple[str, ...], log_dir: str) -> list[tuple[str, RunFolder]]:
    """Return the runs with their names: those given, those in folders given, or all in the log folder."""
    if not runs:
        return [(folder.name, folder) for folder in list_runs(log_dir)]
    found: dict[str, tuple[str, RunFolder]] = {}
    for text in runs:
        is_folder = os.path.isdir(text) and not RunFolder(text).exists()
        below = [(name, RunFolder(path)) for name, path, _ in find_run_folders(text)] if is_folder else []
        for name, folder in below or [((given := find_run(text, log_dir)).name, given)]:
            found.setdefault(os.path.realpath(folder.path), (name, folder))
    return list(found.values())


def _deliver_to_sinks(
    folders: list[tuple[str, RunFolder]], sinks: tuple[str, ...], timeout_s: float, *, dry_run: bool, as_json: bool
) -> list[_Delivery]:
    options = _options(sinks)
    deliveries: list[_Delivery] = []
    for _, folder in folders:
        lags = {lag.sink: lag for lag in read_lags(folder)}
        chosen = options if sinks else {name: options.get(name, {}) for name in lags}
        for name, values in chosen.items():
            lag = lags.get(name, SinkLag(name, 0, ""))
            delivery = _missing(folder, lag, lag.error) if dry_run else _deliver(folder, lag, values, timeout_s)
            deliveries.append(delivery)
            if not as_json:
                _print(delivery, dry_run=dry_run)
    return deliveries


def _options(sinks: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the chosen sinks with their options; those in the environment if none is chosen."""
    known = {name: dict(values) for name, values in resolve_settings({}).sinks.items()}
    if not sinks:
        return known
    items = [text if text.lstrip().startswith("{") else json_text(text) for text in sinks]
    chosen = resolve_settings({"sinks": f"[{','.join(items)}]"}).sinks
    return {name: dict(values) or known.get(name, {}) for name, values in chosen.items()}


def _missing(folder: RunFolder, lag: SinkLag, reason: str) -> _Delivery:
    return _Delivery(folder.name, lag.sink, 0, lag.num_records, reason)


def _deliver(folder: RunFolder, lag: SinkLag, options: Mapping[str, Any], timeout_s: float) -> _Delivery:
    if lag.sink == "notify":
        return _missing(folder, lag, "messages of a run that has ended are not sent later")
    if current_state(folder) is RunState.RUNNING:
        return _missing(folder, lag, "the run is being recorded and delivers its records itself")
    lock = lock_export(folder, lag.sink)
    if lock is None:
        return _missing(folder, lag, "another process is delivering")
    try:
        return _drive(folder, lag.sink, options, timeout_s)
    finally:
        if lock >= 0:
            os.close(lock)


def _drive(folder: RunFolder, name: str, options: Mapping[str, Any], timeout_s: float) -> _Delivery:
    """Export the records after the cursor, in this process."""
    failures: list[tuple[str, str]] = []
    (sink,) = build_sinks({name: options})
    driver = SinkDriver(folder, sink, lambda kind, _field, reason: failures.append((kind, reason)))
    missing = _num_missing(folder, name)  # after the driver has stored the first position of a sink that is new
    driver.start()
    is_done = driver.close(timeout_s)
    left = _num_missing(folder, name)
    reason = "; ".join(text for kind, text in failures if kind == "sink_rejected")
    if not is_done:
        reason = failures[-1][1].removesuffix("; will be retried") if failures else f"not done in {timeout_s:g} s"
    return _Delivery(folder.name, name, missing - left, left, reason)


def _num_missing(folder: RunFolder, sink: str) -> int:
    return next((lag.num_records for lag in read_lags(folder) if lag.sink == sink), 0)


def _print(delivery: _Delivery, *, dry_run: bool) -> None:
    run, sink = safe(delivery.run), safe(delivery.sink)
    if dry_run:
        why = f" ({safe(delivery.reason)})" if delivery.reason else ""
        click.echo(f"{run}: {sink} lacks {plural(delivery.num_missing, 'record')}{why}")
    elif delivery.reason:
        left = f", {plural(delivery.num_missing, 'record')} left" if delivery.num_missing else ""
        click.echo(f"{run}: {sink} failed{left}: {safe(delivery.reason, 300)}", err=True)
    else:
        click.echo(f"{run}: {sink} received {plural(delivery.num_delivered, 'record')}")


def _printer(as_json: bool) -> Callable[[Sending], None]:
    return (lambda sending: None) if as_json else _print_sending


def _print_sending(sending: Sending) -> None:
    run, server = safe(sending.run), safe(sending.server or "a server")
    if not sending.is_complete:
        left = f", {size(sending.num_left_bytes)} left" if sending.num_left_bytes else ""
        click.echo(f"{run}: sending to {server} failed{left}: {safe(sending.error, 300)}", err=True)
    elif sending.num_sent_bytes:
        click.echo(f"{run}: sent {size(sending.num_sent_bytes)} to {server} as {safe(sending.copy)}")
    else:
        click.echo(f"{run}: {server} has everything, as {safe(sending.copy)}")


def _print_status(sendings: list[Sending], *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text([item._asdict() for item in sendings]))
        return
    if not sendings:
        click.echo("no run is marked to be sent to a server")
    for item in sendings:
        what = "complete" if item.is_complete else f"{size(item.num_left_bytes)} left"
        error = f" ({safe(item.error, 300)})" if item.error else ""
        click.echo(f"{safe(item.run)}: {what} at {safe(item.server or 'an unknown server')}{error}")
