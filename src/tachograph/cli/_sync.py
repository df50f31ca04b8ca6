"""`tacho sync`: deliver to sinks what they have not received."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import rich_click as click

from tachograph.cli._format import json_text, plural, safe
from tachograph.cli._options import complete_run, json_option, log_dir_option, resolve_run
from tachograph.journal import RunFolder, RunState, current_state, find_run, list_runs
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
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run, callback=resolve_run)
@log_dir_option
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="NAME",
    help='A sink: a name, or \'{"wandb": {"project": "x"}}\'; repeatable. Default: every sink that lacks records.',
)
@click.option("--dry-run", is_flag=True, help="Only print what is missing.")
@click.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds to wait for each sink of a run.",
)
@json_option
def sync(
    runs: tuple[str, ...], log_dir: str, sinks: tuple[str, ...], dry_run: bool, timeout_s: float, as_json: bool
) -> None:
    """Deliver to sinks what they have not received, because they were down or the run ended before they were done.

    Without RUN, all runs that have ended. With `--sink`, also runs that never had this sink: they are exported from
    their beginning. Options come from `--sink` or TACHO_SINKS.
    """
    options = _options(sinks)
    folders = [find_run(run, log_dir) for run in runs] or list(list_runs(log_dir))
    deliveries: list[_Delivery] = []
    for folder in folders:
        lags = {lag.sink: lag for lag in read_lags(folder)}
        chosen = options if sinks else {name: options.get(name, {}) for name in lags}
        for name, values in chosen.items():
            lag = lags.get(name, SinkLag(name, 0, ""))
            delivery = _missing(folder, lag, lag.error) if dry_run else _deliver(folder, lag, values, timeout_s)
            deliveries.append(delivery)
            if not as_json:
                _print(delivery, dry_run=dry_run)
    if as_json:
        click.echo(json_text([delivery._asdict() for delivery in deliveries]))
    elif not deliveries:
        click.echo("nothing to deliver")
    if not dry_run and any(delivery.reason for delivery in deliveries):
        raise SystemExit(1)


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
