"""`tacho grafana`: print a dashboard for Grafana."""

from __future__ import annotations

import rich_click as click

from tachograph.cli._format import json_text
from tachograph.cli._terminal import echo

__all__ = ["grafana"]


@click.command()
@click.option("--database", default="tacho", show_default=True, help="Database with the tables of `tacho store`.")
@click.option("--title", default="Tachograph", show_default=True, help="Title of the dashboard.")
def grafana(database: str, title: str) -> None:
    """Print a Grafana dashboard, as JSON, for the ClickHouse tables of `tacho store`.

    Import the output in Grafana, which needs the data source plugin grafana-clickhouse-datasource.
    """
    from tachograph.server.columns import grafana_board

    echo(json_text(grafana_board(database, title)))
