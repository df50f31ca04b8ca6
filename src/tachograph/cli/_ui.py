"""The command `tacho ui`: serves the dashboard."""

from __future__ import annotations

import os
import webbrowser

import rich_click as click

from tachograph.cli._format import safe
from tachograph.cli._options import log_dir_option

__all__ = ["run_dashboard", "ui"]


@click.command()
@log_dir_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. An address that other machines can reach requires a token.",
)
@click.option(
    "--port",
    default=8501,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 picks a free port.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard in a browser.")
@click.option(
    "--token",
    envvar="TACHO_TOKEN",
    help="Token that clients must send. Generated if other machines can reach the server and none is given.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Additional host name to accept, such as that of a proxy. Can be repeated.",
)
def ui(log_dir: str, host: str, port: int, open_browser: bool, token: str | None, allow_hosts: tuple[str, ...]) -> None:
    """Serve the dashboard for the runs in the log folder until interrupted."""
    run_dashboard(log_dir, host=host, port=port, open_browser=open_browser, token=token, allow_hosts=allow_hosts)


def run_dashboard(
    log_dir: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    open_browser: bool = False,
    token: str | None = None,
    allow_hosts: tuple[str, ...] = (),
) -> None:
    """Serve the dashboard and print its URL."""
    from tachograph.server import serve

    def on_ready(url: str) -> None:
        click.echo(f"Dashboard for {safe(os.fspath(log_dir))!r}: {url}  (press Ctrl-C to stop)")
        if open_browser:
            webbrowser.open(url)

    serve(log_dir, host=host, port=port, token=token or None, allow_hosts=allow_hosts, on_ready=on_ready)
