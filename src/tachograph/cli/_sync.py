"""`tacho sync`: deliver to sinks what they have not received."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import rich_click as click

from tachograph.cli._format import json_text, plural, safe
from tachograph.cli._options import json_option, log_dir_option
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder, RunState, current_state, find_run, list_runs
from tachograph.settings import resolve_settings
from tachograph.sinks import SinkDriver, build_sinks, lock_export, read_lags

__all__ = ["sync"]


class _Delivery(NamedTuple):
    """What happened with one sink of one run."""

    run: str
    sink: str
    num_delivered: int
    num_missing: int
    reason: str


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
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
        chosen = options if sinks else {lag.sink: options.get(lag.sink, {}) for lag in read_lags(folder)}
        for name, values in chosen.items():
            delivery = _deliver(folder, name, values, timeout_s=0.0 if dry_run else timeout_s, dry_run=dry_run)
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


def _deliver(folder: RunFolder, name: str, options: Mapping[str, Any], *, timeout_s: float, dry_run: bool) -> _Delivery:
    before = {lag.sink: lag for lag in read_lags(folder)}
    missing = before[name].num_records if name in before else 0
    if dry_run:
        return _Delivery(folder.name, name, 0, missing, before[name].error if name in before else "")
    if name == "notify":
        return _Delivery(folder.name, name, 0, missing, "messages of a run that has ended are not sent later")
    if current_state(folder) is RunState.RUNNING:
        return _Delivery(folder.name, name, 0, missing, "the run is being recorded and delivers its records itself")
    lock = lock_export(folder, name)
    if lock is None:
        return _Delivery(folder.name, name, 0, missing, "another process is delivering")
    try:
        return _drive(folder, name, options, timeout_s)
    finally:
        if lock >= 0:
            os.close(lock)


def _drive(folder: RunFolder, name: str, options: Mapping[str, Any], timeout_s: float) -> _Delivery:
    """Export the records after the cursor, in this process."""
    failures: list[str] = []
    try:
        (sink,) = build_sinks({name: options})
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    driver = SinkDriver(folder, sink, lambda _kind, _field, reason: failures.append(reason))
    missing = {lag.sink: lag.num_records for lag in read_lags(folder)}.get(name, 0)
    driver.start()
    is_done = driver.close(timeout_s)
    left = {lag.sink: lag.num_records for lag in read_lags(folder)}.get(name, 0)
    reason = (
        ""
        if is_done
        else failures[-1].removesuffix("; will be retried")
        if failures
        else f"not done in {timeout_s:g} s"
    )
    return _Delivery(folder.name, name, missing - left, left, reason)


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
