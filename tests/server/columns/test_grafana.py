"""The dashboard for Grafana: its SQL on both engines, with Grafana's macros and formats expanded here."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

import tachograph as tacho
from tachograph.exceptions import ColumnStoreError, ConfigError
from tachograph.journal import RunFolder
from tachograph.server.columns import ColumnStore, grafana_board
from tachograph.spans import set_training_config
from tests.cli.test_cli import tacho as tacho_command
from tests.server.columns.conftest import ENGINES, address, fill
from tests.store import START, append, lines, step, write

ALL = {"project": "*", "run": ["*"], "metric": "train_loss"}
ODD_PROJECT, ODD_RUN, ODD_METRIC = "p\\' OR 1 = 1 -- ", "id'\\,{}*\"", "lo'ss\\"
_VARIABLE = re.compile(r"\$\{(\w+):(\w+)\}")
_TIME_FILTER = re.compile(r"\$__timeFilter\(([^()]*)\)")


class Range(NamedTuple):
    begin: int
    end: int


def percent_encode(value: str | list[str]) -> str:
    return quote(value if isinstance(value, str) else "{" + ",".join(value) + "}", safe="-_.~")


def single_quote(value: str | list[str]) -> str:
    """As Grafana does it: backslashes stay as they are."""
    return ",".join("'" + each.replace("'", "\\'") + "'" for each in ([value] if isinstance(value, str) else value))


FORMATS = {"percentencode": percent_encode, "singlequote": single_quote}


def expand(sql: str, values: dict[str, Any], times: Range, interval_ms: int = 1_000) -> str:
    """Expand what Grafana expands, in its order: variables first, then macros, also those in values."""
    sql = _VARIABLE.sub(lambda found: FORMATS[found[2]](values[found[1]]), sql)
    begin, end = (f"toDateTime({at})" for at in times)
    sql = _TIME_FILTER.sub(lambda found: f"{found[1]} >= {begin} AND {found[1]} <= {end}", sql)
    for macro, value in (("fromTime", begin), ("toTime", end), ("interval_ms", str(interval_ms))):
        sql = sql.replace(f"$__{macro}", value)
    assert "$" not in sql
    return sql


class Board:
    """The dashboard over the runs in a store."""

    def __init__(self, store: ColumnStore, now: float) -> None:
        self._store = store
        self.times = Range(int(now) - 3_600, int(now) + 3_600)
        self.board = grafana_board(store.address.database)

    def ask(self, sql: str, values: dict[str, Any], times: Range | None = None, **options: int) -> list[dict[str, Any]]:
        expanded = expand(sql, {**ALL, **values}, times or self.times, **options)
        answer = self._store.schema.client.execute(f"{expanded}\nFORMAT JSONEachRow").decode()
        return [json.loads(line) for line in answer.splitlines()]

    def panel(self, title: str, times: Range | None = None, **values: Any) -> list[dict[str, Any]]:
        (sql,) = (each["targets"][0]["rawSql"] for each in self.board["panels"] if each["title"] == title)
        return self.ask(sql, values, times)

    def variable(self, name: str, **values: Any) -> list[list[str]]:
        (sql,) = (each["query"] for each in self.board["templating"]["list"] if each["name"] == name)
        return [list(row.values()) for row in self.ask(sql, values)]


TITLES = [panel["title"] for panel in grafana_board()["panels"]]


def record_run(logs: Path) -> RunFolder:
    """Record a run as a training script does, then add what needs a GPU, a fault and a second process."""
    with tacho.init("recorded", log_dir=str(logs), project="speech", console=False) as run:
        set_training_config(
            flops_per_sample=1e6, peak_tflops_per_gpu=1.0, global_batch_size=8, log_every_n_train_iterations=10
        )
        with tacho.training_loop(train_iterations_start=0):
            for at in range(30):
                with tacho.training_iteration():
                    run.log(train_loss=1.0 / (at + 1), step=at)
        run.log_validation({"loss": 0.5}, step=29)
    folder = RunFolder(logs / "recorded")
    now = time.time()
    alert = {"event": "alert", "time": now, "global_step": 20, "id": "spike-1", "rule": "loss_spike"}
    append(
        folder,
        [
            {"event": "system", "time": now, "gpu/0/util_pct": 90, "gpu/1/util_pct": 30},
            {**alert, "status": "opened", "severity": "warning", "title": 'the "loss" rose'},
            {**alert, "time": now + 1, "status": "resolved", "severity": "critical", "global_step": 25},
        ],
    )
    records = [json.loads(line) for line in folder.journal.read_bytes().splitlines()]
    slower = [
        {**each, "window_iteration_sec_mean": 3 * each["window_iteration_sec_mean"]}
        for each in records
        if each.get("name") == "training_metrics_update"
    ]
    folder.rank_journal(1).parent.mkdir(exist_ok=True)
    folder.rank_journal(1).write_bytes(lines([records[0], *slower]))
    return folder


def write_odd_run(logs: Path) -> None:
    start = {"event": "start", "time": time.time(), "run_name": "odd", "run_id": ODD_RUN, "project": ODD_PROJECT}
    steps = [{**step(at, **{ODD_METRIC: float(at), "train_loss": 7.0}), "time": time.time()} for at in range(5)]
    no_time = {"event": "step", "global_step": 9, "train_loss": 8.0}
    write(logs / "odd", [start, *steps, {**steps[-1], "train_loss": "NaN"}, no_time])


@pytest.fixture(scope="module", params=ENGINES)
def board(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """The dashboard over two runs, on each engine. Every row was inserted twice."""
    server = request.getfixturevalue("old_server" if request.param == "18.16" else "new_server")
    logs = tmp_path_factory.mktemp("grafana") / "logs"
    record_run(logs)
    write_odd_run(logs)
    with ColumnStore(address(server)) as store:
        store.schema.migrate()
        for _ in range(2):
            store.inserter(str(logs)).insert_all()
            store.schema.client.execute(f"DROP TABLE {store.schema.table('cursors')}")
            store.schema.create_tables()
        store.inserter(str(logs)).insert_all()
        yield Board(store, time.time())


@pytest.mark.parametrize("title", TITLES)
def test_panels_have_rows_for_recorded_runs(board, title):
    assert board.panel(title)


@pytest.mark.parametrize("title", [title for title in TITLES if title not in {"Running now", "${metric} by step"}])
def test_panels_follow_the_time_picker(board, title):
    assert board.panel(title, Range(board.times.end + 86_400, board.times.end + 90_000)) == []


def test_panels_show_what_was_recorded(board):
    (running,) = board.panel("Running now")
    assert int(running["running"]) == 1
    assert [(row["run"], row["state"]) for row in board.panel("Runs")] == [("odd", "running"), ("recorded", "finished")]
    by_step = [row for row in board.panel("${metric} by step") if row["run"] == "recorded"]
    assert [int(row["step"]) for row in by_step] == list(range(30))
    assert by_step[3]["value"] == 0.25
    by_time = board.panel("${metric} by time")
    assert by_time[-1]["value"] in {1 / 30, 7.0}
    assert {row["series"] for row in by_time} == {"recorded", "odd"}
    assert {row["series"] for row in board.panel("Throughput")} == {"recorded window/samples_per_sec"}
    assert {row["value"] for row in board.panel("GPU use")} == {60.0}
    (goodput,) = board.panel("Goodput")
    assert 0 < goodput["goodput"] <= 1
    (alert,) = board.panel("Alerts")
    shown = {name: alert[name] for name in ("run", "severity", "status", "rule", "title")}
    assert shown == {
        "run": "recorded",
        "severity": "critical",
        "status": "resolved",
        "rule": "loss_spike",
        "title": 'the "loss" rose',
    }
    slowest, other = board.panel("Stragglers by rank")
    assert (slowest["rank"], other["rank"]) == (1, 0)
    assert slowest["iteration_s"] == pytest.approx(3 * other["iteration_s"])
    assert {row["run"] for row in board.panel("Ingest lag")} == {"recorded", "odd"}


def test_long_runs_are_thinned_out_by_step(store, tmp_path):
    folder = write(tmp_path / "logs" / "r", [START, *(step(at, a=float(at)) for at in range(5_000))])
    fill(store, folder)
    found = Board(store, 2_000.0).panel("${metric} by step", metric="a")
    assert 1_000 < len(found) < 2_000
    assert [int(row["step"]) for row in found[:3]] == [0, 4, 8]
    assert [row["value"] for row in found[:3]] == [3.0, 7.0, 11.0]


def test_variables_select_runs(board):
    assert board.variable("project") == [[ODD_PROJECT], ["speech"]]
    ((recorded, label),) = board.variable("run", project="speech")
    assert label == "recorded"
    assert len(board.variable("run")) == 2
    metrics = [row[0] for row in board.variable("metric", run=[recorded])]
    assert metrics[:3] == ["train_loss", "val_loss", "window/latest_loss"]
    assert ODD_METRIC not in metrics
    assert {row["run"] for row in board.panel("Runs", run=[recorded])} == {"recorded"}
    both = [value for value, _ in board.variable("run")]
    assert {row["run"] for row in board.panel("Runs", run=both)} == {"recorded", "odd"}


def test_names_with_quotes_and_backslashes_are_found(board):
    odd = {"project": ODD_PROJECT, "run": [ODD_RUN.encode().hex().upper()], "metric": ODD_METRIC}
    assert board.variable("run", project=ODD_PROJECT) == [[*odd["run"], "odd"]]
    assert [row["run"] for row in board.panel("Runs", **odd)] == ["odd"]
    assert [row["value"] for row in board.panel("${metric} by step", **odd)] == [0, 1, 2, 3, 4]
    assert {row["series"] for row in board.panel("${metric} by time", **odd)} == {"odd"}


HOSTILE = ["' OR 1 = 1 -- ", "\\' OR 1 = 1 -- ", "\\\\' OR 1 = 1 -- ", "') OR ('' = '", "\\", "'", "$__fromTime", "%27"]


@pytest.mark.parametrize("value", HOSTILE)
def test_values_cannot_break_out_of_the_sql(board, value):
    for name in ("project", "run", "metric"):
        selected = {name: [value] if name == "run" else value}
        for title in ("${metric} by time", "${metric} by step"):
            assert board.panel(title, **selected) == []
        if name != "metric":
            assert board.panel("Alerts", **selected) == []
            assert board.variable("metric", **selected) == []


def test_single_quote_format_is_not_safe(board):
    """The reason for `percentencode`. If this fails, Grafana's own format would do."""
    assert board.ask("SELECT ${metric:singlequote} AS value", {"metric": "it's"}) == [{"value": "it's"}]
    (injected,) = board.ask("SELECT ${metric:singlequote} AS value", {"metric": "\\' AS value, 5 AS other -- "})
    assert injected == {"value": "\\", "other": 5}
    with pytest.raises(ColumnStoreError):
        board.ask("SELECT ${metric:singlequote} AS value", {"metric": "\\"})


def all_sql(board: dict[str, Any]) -> list[str]:
    panels = [target["rawSql"] for panel in board["panels"] for target in panel["targets"]]
    return [*panels, *(each["query"] for each in board["templating"]["list"] if each["type"] == "query")]


def test_sql_uses_only_the_safe_format():
    for sql in all_sql(grafana_board()):
        found = re.findall(r"'?\$\{[^}]*\}'?", sql)
        assert all(re.fullmatch(r"'\$\{(project|run|metric):percentencode\}'", each) for each in found), sql
        assert not re.search(r"\$(?!\{|__)", sql)
        assert "@" not in sql
    assert any("percentencode" in sql for sql in all_sql(grafana_board()))


def test_command_prints_what_the_importer_needs():
    board = json.loads(tacho_command("grafana", "--database", "other", "--title", "Our 'runs'"))
    assert board["title"] == "Our 'runs'"
    assert 0 < len(board["uid"]) <= 40
    assert board["uid"] == grafana_board("other")["uid"] != grafana_board()["uid"]
    assert isinstance(board["schemaVersion"], int)
    assert "id" not in board  # of a dashboard in another Grafana
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert list(variables) == ["datasource", "project", "run", "metric"]
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "grafana-clickhouse-datasource"
    assert [name for name, each in variables.items() if each.get("multi")] == ["run"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == len(TITLES) == len(set(TITLES))
    source = {"type": "grafana-clickhouse-datasource", "uid": "${datasource}"}
    for panel in panels:
        assert panel["datasource"] == source
        assert {target["refId"] for target in panel["targets"]} == {"A"}
        assert all(target["datasource"] == source for target in panel["targets"])
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        assert place["h"] > 0
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert is_beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all("other." in sql and "tacho." not in sql for sql in all_sql(board))


def test_invalid_database_is_rejected():
    with pytest.raises(ConfigError, match="'a; DROP' is no name of a database"):
        grafana_board("a; DROP")
