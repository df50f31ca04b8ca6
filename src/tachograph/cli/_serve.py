"""The command `tacho serve`: a team's server."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import rich_click as click

from tachograph._base.importing import without_collection
from tachograph.cli._format import safe
from tachograph.cli._terminal import SafeFormatter, echo
from tachograph.exceptions import ServeError
from tachograph.server.team import KeyRing, keys_path

__all__ = ["serve"]

_SCOPES = ("read", "control", "admin")


@click.command()
@click.option(
    "--data",
    "data_dir",
    required=True,
    envvar="TACHO_DATA",
    type=click.Path(file_okay=False),
    help="Folder for the runs and the access keys of the team; created if it does not exist.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8501,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 picks a free port.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Additional host name to accept, such as the public name of the server. Can be repeated.",
)
@click.option("--tls-cert", metavar="FILE", help="Certificate, if clients connect without a proxy.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of a proxy whose X-Forwarded headers are trusted, such as 127.0.0.1. Can be repeated.",
)
@click.option(
    "--auth-header",
    metavar="NAME",
    help="Header in which the proxy passes the name of an authenticated user. Needs --trusted-proxy.",
)
@click.option(
    "--auth-scope",
    "auth_scopes",
    multiple=True,
    type=click.Choice(_SCOPES),
    help="Rights of users that the proxy authenticated. Can be repeated.  [default: read]",
)
@click.option(
    "--durability",
    default="write",
    show_default=True,
    type=click.Choice(("write", "fsync")),
    help="When to acknowledge received records: after writing them to the file, or after flushing the file to disk.",
)
@click.option(
    "--store",
    envvar="TACHO_STORE",
    metavar="clickhouse://…",
    help="Also keep the metrics of all runs in this ClickHouse database. The password is TACHO_CLICKHOUSE_PASSWORD.",
)
@click.option(
    "--group-access",
    is_flag=True,
    help="Let the group of the data folder read the runs in it. By default only the user of the server can.",
)
@click.option(
    "--workers",
    "num_workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="How many processes receive runs and serve the dashboard. Use one per CPU core for a large team.",
)
@click.option("--check", "only_check", is_flag=True, help="Check the folder and the keys, and exit.")
def serve(
    data_dir: str,
    host: str,
    port: int,
    allow_hosts: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
    trusted_proxies: tuple[str, ...],
    auth_header: str | None,
    auth_scopes: tuple[str, ...],
    durability: str,
    store: str | None,
    group_access: bool,
    num_workers: int,
    only_check: bool,
) -> None:
    """Run the server of a team: receive runs from other machines, and serve the dashboard.

    Machines send their runs with a key that has the scope `write`; people log in with a key that has `read`. Create
    keys with `tacho keys create`.
    """
    with without_collection():
        from tachograph.server.team import ProxyTrust, TlsFiles, check_readiness, serve_team

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together: pass both")
    proxy = ProxyTrust(trusted_proxies, auth_header, frozenset(auth_scopes or ("read",)))  # type: ignore[arg-type]
    if only_check:
        if not os.path.isdir(data_dir):
            raise ServeError(f"--data {data_dir!r} is not a folder")
        report = check_readiness(Path(data_dir).absolute(), KeyRing(keys_path(data_dir)))
        for problem in report.problems:
            echo(safe(problem, 1_000), err=True)
        echo(f"{report.status}: {(report.free_bytes or 0) >> 30} GiB free in {safe(data_dir)}")
        raise SystemExit(0 if not report.problems else 1)
    _log_to_stderr()

    def on_ready(url: str) -> None:
        echo(f"Serving {safe(data_dir)!r} at {url}  (press Ctrl-C to stop)")
        if not KeyRing(keys_path(data_dir)).list():
            echo("There are no access keys yet. Create one with:", err=True)
            echo(f"  tacho keys create --data {safe(data_dir)} --name admin --scope admin", err=True)

    serve_team(
        data_dir,
        host=host,
        port=port,
        allow_hosts=allow_hosts,
        proxy=proxy,
        tls=TlsFiles(tls_cert, tls_key) if tls_cert and tls_key else None,
        is_durable=durability == "fsync",
        store=store,
        for_group=group_access,
        num_workers=num_workers,
        set_up_worker=_log_to_stderr,
        on_ready=on_ready,
    )


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
