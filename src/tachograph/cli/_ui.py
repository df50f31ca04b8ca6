"""The command `tacho ui`: serves the dashboard."""

from __future__ import annotations

import contextlib
import os
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import rich_click as click

from tachograph._base.importing import without_collection
from tachograph.cli._options import log_dirs_option
from tachograph.cli._terminal import echo, safe

if TYPE_CHECKING:
    from tachograph.importers import WatchedLog

__all__ = ["run_dashboard", "ui"]

_MAX_TOKEN_CHARS = 4096


@click.command()
@log_dirs_option
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
    "--token-file",
    type=click.File(),
    metavar="FILE",
    help="File with the token that every client must send; - reads the standard input. You can also set the "
    "environment variable TACHO_TOKEN. By default, only processes of your user have access, without a token.",
)
@click.option("--token", hidden=True)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Additional host name to accept, such as the name of a proxy. Can be repeated.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="FORMAT:PATH",
    help="Also show the runs in a log of another tool, such as tensorboard:lightning_logs, and follow them as they "
    "grow. They are imported into the (first) log folder, as tacho import does. Can be repeated.",
)
def ui(
    log_dirs: tuple[str, ...],
    host: str,
    port: int,
    open_browser: bool,
    token_file: TextIO | None,
    token: str | None,
    allow_hosts: tuple[str, ...],
    also: tuple[str, ...],
) -> None:
    """Serve the dashboard for the runs in the log folder until interrupted."""
    if token is not None:
        raise click.UsageError(
            "--token would show the token to every user of this machine, for example in `ps`; "
            "set TACHO_TOKEN, or use --token-file FILE (- reads the standard input)"
        )
    token = os.environ.get("TACHO_TOKEN") or None
    if token_file is not None:
        token = token_file.read(_MAX_TOKEN_CHARS).strip()
        if not token:
            raise click.UsageError(f"--token-file {token_file.name}: the file is empty")
    logs: list[WatchedLog] = []
    if also:
        from tachograph.importers import WatchedLog

        logs = [WatchedLog.parse(text) for text in also]
    run_dashboard(
        log_dirs, host=host, port=port, open_browser=open_browser, token=token, allow_hosts=allow_hosts, also=logs
    )


def run_dashboard(
    log_dirs: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    open_browser: bool = False,
    token: str | None = None,
    allow_hosts: tuple[str, ...] = (),
    also: Sequence[WatchedLog] = (),
) -> None:
    """Serve the dashboard and print its URL."""
    with without_collection():
        from tachograph.server import serve, write_login_page

    with contextlib.ExitStack() as cleanup:

        def on_ready(url: str) -> None:
            if also:
                from tachograph.importers import LogWatcher

                watcher = LogWatcher(list(also), log_dirs[0], lambda problem: echo(safe(problem, 1_000), err=True))
                cleanup.callback(watcher.close)
            folders = ", ".join(repr(safe(log_dir)) for log_dir in log_dirs)
            echo(f"Dashboard for {folders}: {url}  (press Ctrl-C to stop)")
            if not open_browser:
                return
            if "#" in url:  # other users can read command lines, so the browser must not get the token in its own
                page = write_login_page(url)
                cleanup.callback(page.unlink, missing_ok=True)
                url = page.as_uri()
            webbrowser.open(url)

        serve(log_dirs, host=host, port=port, token=token, allow_hosts=allow_hosts, on_ready=on_ready)
