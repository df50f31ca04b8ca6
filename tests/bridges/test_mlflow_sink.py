"""The MLflow sink with real stores, read back with MLflow's own client."""

from __future__ import annotations

import io
import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import tachograph
from tachograph.cli._main import main
from tachograph.exceptions import ConfigError
from tachograph.reader import read
from tachograph.sinks import SINKS, build_sinks
from tests.conftest import HANG_S, wait_for
from tests.mlflow_database import copy_empty_database

pytestmark = [
    pytest.mark.xdist_group("mlflow"),  # which is slow to import
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),  # MLflow's own
]


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client of a new database. Artifacts go to the working directory."""
    from mlflow import MlflowClient

    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    copy_empty_database(tmp_path / "mlflow.db")
    return MlflowClient()


@pytest.fixture
def file_client(tmp_path, monkeypatch):
    """A client of a folder."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return MlflowClient()


def start(logs, **options):
    return tachograph.init(
        "x", log_dir=str(logs), sinks=["mlflow"], git=False, system_interval_s=0, exit_timeout_s=HANG_S, **options
    )


def only_run(client, experiment="tachograph"):
    found = client.get_experiment_by_name(experiment)
    (run,) = client.search_runs([found.experiment_id])
    return run


def points(client, run, name):
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]


def check_everything(client, logs):
    config = {"lr": 0.5, "model": {"depth": 2}, "api_key": "opaque", "layers": [1, 2], "long": "x" * 7_000}
    with start(logs, config=config, tags=["a", "b"], facts={"notes": "a note"}) as run:
        for step in range(300):
            values = {"train_loss": math.nan if step == 3 else 1 / (step + 1), "up": math.inf if step == 4 else 1.0}
            run.log({**values, **{f"group/{n}": float(n) for n in range(8)}}, step=step)
        run.log({"acc@1 (%)": 0.5, "/absolute": 1.0, "n" * 300: 2.0}, step=300)
        run.update_config({"lr": 0.25, "more": True})
        run.log_checkpoint("out/last.pt", step=300, is_best=True)
        run.log_completions([{"prompt": "p", "reward": 0.5, "odd": [1]}], step=300)
        run.log_summary({"accuracy": 0.75, "verdict": "good"})
    assert read(logs / "x").latest("telemetry_error") == []
    stored = only_run(client)
    assert (stored.info.run_name, stored.info.status) == ("x", "FINISHED")
    assert stored.info.end_time >= stored.info.start_time > 0
    params, tags = stored.data.params, stored.data.tags
    assert (params["lr"], params["model/depth"], params["layers"], params["more"]) == ("0.5", "2", "[1, 2]", "True")
    assert (params["api_key"], len(params["long"])) == ("[masked]", 6_000)
    assert tags["tachograph.config.lr"] == "0.25"  # MLflow's parameters cannot change
    assert (tags["tachograph.run_id"], tags["tachograph.tags"]) == (run.id, "a, b")
    assert (tags["mlflow.note.content"], tags["tachograph.summary.verdict"]) == ("a note", "good")
    losses = points(client, stored, "train_loss")
    assert [step for step, _ in losses] == list(range(300))
    assert math.isnan(losses[3][1])
    assert losses[2] == (2, 1 / 3)
    assert points(client, stored, "up")[4][1] > 1e300
    assert [step for step, _ in points(client, stored, "group/7")] == list(range(300))
    assert points(client, stored, "summary/accuracy") == [(300, 0.75)]
    assert points(client, stored, "acc_x40_1 _x28__x25__x29_") == [(300, 0.5)]
    assert points(client, stored, "_x2f_absolute") == [(300, 1.0)]
    assert [name for name in stored.data.metrics if name.startswith("nnn") and len(name) == 250]
    first = next(record for record in read(logs / "x").records("step"))
    assert client.get_metric_history(stored.info.run_id, "train_loss")[0].timestamp == round(first["time"] * 1_000)
    check_artifacts(stored)


def check_artifacts(stored):
    import mlflow

    assert stored.data.tags["tachograph.best_checkpoint"] == "out/last.pt"
    (file,) = mlflow.MlflowClient().list_artifacts(stored.info.run_id, "checkpoints")
    checkpoint = mlflow.artifacts.load_dict(f"{stored.info.artifact_uri}/{file.path}")
    assert (checkpoint["checkpoint_path"], checkpoint["global_step"]) == ("out/last.pt", 300)
    table = mlflow.MlflowClient().load_table(stored.info.experiment_id, "completions.json", [stored.info.run_id])
    assert table.to_dict("records") == [{"step": 300, "prompt": "p", "reward": 0.5, "odd": "[1]"}]


def test_mlflow_database_receives_everything(client, logs):
    check_everything(client, logs)


def test_mlflow_folder_receives_everything(file_client, logs):
    check_everything(file_client, logs)


def artifacts_of(run):
    """Return the content of each artifact by its path."""
    import mlflow

    folder = Path(mlflow.artifacts.download_artifacts(run.info.artifact_uri))
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def log_media(logs, sink):
    pixels = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    rows = [{"prompt": f"p{n}", "score": n / 2, "note": "x" * 200} for n in range(1_000)]  # too large for the journal
    with tachograph.init(
        "x", log_dir=str(logs), sinks=[sink], git=False, system_interval_s=0, exit_timeout_s=HANG_S
    ) as run:
        pictures = [tachograph.Image(pixels), tachograph.Image(pixels[:8, :8])]
        run.log({"val/sample@1": pictures, "broken": tachograph.Image(np.zeros(3))}, step=5)
        run.log({"note": tachograph.Markdown("**bold**"), "page": tachograph.Html("<b>hi</b>")}, step=6)
        run.log({"said": tachograph.Text("naïve"), "voice": tachograph.Audio(np.zeros(80), rate=8000)}, step=6)
        run.log({"scan": tachograph.Points(np.zeros((2, 3)))}, step=6)
        run.log({"eval": tachograph.Table(rows=[{"a": math.nan, "picture": tachograph.Image(pixels)}])}, step=7)
        run.log({"eval": tachograph.Table(rows=rows)}, step=8)
        run.log_completions([{"prompt": "p"}], step=9)
    return run


def test_mlflow_receives_media_if_asked(client, logs):
    run = log_media(logs, {"mlflow": {"media": True}})
    assert read(run).latest("telemetry_error", "sink_rejected") == []
    stored = only_run(client)
    files = artifacts_of(stored)
    pictures = sorted(path for path in files if path.startswith("images/"))
    labels = {path.split("+timestamp+")[0] for path in pictures}
    assert labels == {"images/val~sample_x40_1~0+step+5", "images/val~sample_x40_1~1+step+5"}
    assert len(pictures) == 4
    sizes = {path: Image.open(io.BytesIO(files[path])) for path in pictures}
    assert [(each.format, each.size) for each in sizes.values()] == [
        ("WEBP", (256, 192)), ("PNG", (400, 300)), ("WEBP", (8, 8)), ("PNG", (8, 8)),
    ]  # fmt: skip
    assert files["media/note/6.md"] == b"**bold**"
    assert files["media/page/6.html"] == b"<b>hi</b>"
    assert files["media/said/6.txt"] == "naïve".encode()
    assert files["media/voice/6.wav"].startswith(b"RIFF")
    assert np.load(io.BytesIO(files["media/scan/6.npy"])).shape == (2, 3)
    ids = stored.info.experiment_id, [stored.info.run_id]
    assert len(client.load_table(ids[0], "media/eval/8.json", ids[1])) == 1_000
    table = json.loads(files["media/eval/7.json"])
    assert table["columns"] == ["a", "picture"]
    ((number, picture),) = table["data"]
    assert (number, picture["type"]) == ("NaN", "image")
    assert Image.open(io.BytesIO(files[picture["filepath"]])).size == (400, 300)
    assert Image.open(io.BytesIO(files[picture["compressed_filepath"]])).size == (256, 192)
    tags = stored.data.tags
    assert tags["mlflow.loggedImages"] == "True"
    paths = [table["path"] for table in json.loads(tags["mlflow.loggedArtifacts"])]
    assert sorted(paths) == ["completions.json", "media/eval/7.json", "media/eval/8.json"]

    (logs / "x" / ".tacho" / "sink-mlflow.json").unlink()  # as if no delivery had been noted
    command = ["sync", "x", "--sink", json.dumps({"mlflow": {"media": True}}), "--log-dir", str(logs)]
    wait_for(lambda: CliRunner().invoke(main, command).exit_code == 0, "the second delivery")
    assert artifacts_of(only_run(client)).keys() == files.keys()


def test_mlflow_receives_no_media_by_default(client, logs):
    log_media(logs, "mlflow")
    assert list(artifacts_of(only_run(client))) == ["completions.json"]


def test_tag_that_names_tables_stays_in_its_limit(client, logs):
    with tachograph.init(
        "x", log_dir=str(logs), sinks=[{"mlflow": {"media": True}}], git=False, exit_timeout_s=HANG_S
    ) as run:
        for step in range(250):
            run.log({"a table": tachograph.Table(rows=[{"a": step}])}, step=step)
    stored = only_run(client)
    paths = [table["path"] for table in json.loads(stored.data.tags["mlflow.loggedArtifacts"])]
    assert paths[-1] == "media/a table/249.json"
    assert 100 < len(paths) < 250
    assert len(artifacts_of(stored)) == 250


def is_failed(client):
    experiment = client.get_experiment_by_name("tachograph")
    runs = client.search_runs([experiment.experiment_id]) if experiment else []
    return [run.info.status for run in runs] == ["FAILED"]


def test_attempts_and_repeated_deliveries_are_one_mlflow_run(client, logs, script):
    program = script(
        """
        import sys, time, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], sinks=["mlflow"], git=False, system_interval_s=0)
        for step in range(50):
            run.log(train_loss=1.0 / (step + 1), step=step)
        run.log_completions([{"prompt": "p"}], step=49)
        run.flush()
        print("flushed", flush=True)
        time.sleep(1_000)
        """,
        logs,
    )
    assert any(line.startswith("flushed") for line in program.process.stdout)
    program.process.send_signal(signal.SIGKILL)
    wait_for(lambda: is_failed(client), "the end of the first attempt")
    with start(logs, resume=True) as run:
        assert run.id == only_run(client).data.tags["tachograph.run_id"]
        run.add_record("system", {"cpu_pct": 5.0})  # has no step, so it belongs to the latest one
        for step in range(40, 60):  # steps that go back, as after a checkpoint
            run.log(train_loss=2.0, step=step)
        run.log_completions([{"prompt": "q"}], step=2)
    before = only_run(client)
    assert before.info.status == "FINISHED"
    expected = points(client, before, "train_loss")
    assert len(expected) == 70
    (logs / "x" / ".tacho" / "sink-mlflow.json").unlink()  # as if no delivery had been noted
    # The process of the sink may still be ending.
    command = ["sync", "x", "--sink", "mlflow", "--log-dir", str(logs)]
    wait_for(lambda: CliRunner().invoke(main, command).exit_code == 0, "the second delivery")
    after = only_run(client)
    assert (after.info.run_id, after.info.status) == (before.info.run_id, "FINISHED")
    assert sorted(points(client, after, "train_loss")) == sorted(expected)
    assert points(client, after, "system/cpu_pct") == [(49, 5.0)]
    import mlflow

    table = mlflow.artifacts.load_dict(f"{after.info.artifact_uri}/completions.json")
    assert table == {"columns": ["step", "prompt"], "data": [[49, "p"], [2, "q"]]}


@pytest.mark.parametrize(
    ("reason", "status"), [("ValueError", "FAILED"), ("KeyboardInterrupt", "KILLED"), ("SIGTERM", "KILLED")]
)
def test_mlflow_shows_how_the_run_ended(client, logs, reason, status):
    with tachograph.init("x", log_dir=str(logs), git=False, system_interval_s=0) as run:
        run.log(a=1.0, step=1)
        run.finish("failed", reason=reason)
    sink = json.dumps({"mlflow": {"experiment": "ours", "artifacts": False}})
    result = CliRunner().invoke(main, ["sync", "x", "--sink", sink, "--log-dir", str(logs)])
    assert result.exit_code == 0, result.output
    assert only_run(client, "ours").info.status == status


def test_parameter_that_mlflow_refuses_costs_nothing_else(client, logs):
    with start(logs, config={"lr": 0.5}) as run:
        run.log(train_loss=1.0, step=1)
        wait_for(lambda: client.get_experiment_by_name("tachograph"), "the experiment")
        experiment = client.get_experiment_by_name("tachograph").experiment_id
        runs = wait_for(lambda: client.search_runs([experiment], "metrics.train_loss = 1"), "the run")
        client.log_param(runs[0].info.run_id, "new", "by another program")
        run.update_config({"new": 1, **{f"other{n}": n for n in range(20)}})
        run.log(train_loss=2.0, step=2)
    stored = only_run(client)
    assert stored.data.params["new"] == "by another program"
    assert [stored.data.params[f"other{n}"] for n in range(20)] == [str(n) for n in range(20)]
    assert points(client, stored, "train_loss") == [(1, 1.0), (2, 2.0)]
    (error,) = read(logs / "x").latest("telemetry_error")
    assert (error["kind"], error["field"]) == ("sink_rejected", "mlflow")
    assert "rejected 1 params for good: new: " in error["reason"]


def test_unreachable_mlflow_gets_everything_later(client, logs, script):
    """A server that cannot be reached costs neither the run nor a record."""
    script(
        """
        import sys, time, tachograph
        from tachograph.sinks import read_lags
        sinks = [{"mlflow": {"tracking_uri": "http://127.0.0.1:9"}}]
        run = tachograph.init("x", log_dir=sys.argv[1], sinks=sinks, git=False, system_interval_s=0, exit_timeout_s=1)
        for step in range(20):
            run.log(train_loss=1.0, step=step)
        run.flush()
        while not any("127.0.0.1" in lag.error for lag in read_lags(run.folder)):
            time.sleep(0.1)
        while '"event":"telemetry_error"' not in run.folder.journal.read_text():
            time.sleep(0.1)
        run.finish()
        while '"event":"end"' not in run.folder.journal.read_text():  # on a busy machine, later than in a second
            time.sleep(0.1)
        import os, signal
        os.kill(run._followers[0]._process.pid, signal.SIGKILL)  # it would try for two more minutes
        """,
        logs,
    ).ok()
    assert [record["field"] for record in read(logs / "x").latest("telemetry_error")] == ["mlflow"]
    wait_for(lambda: CliRunner().invoke(main, ["sync", "x", "--sink", "mlflow", "--log-dir", str(logs)]).exit_code == 0)
    assert [step for step, _ in points(client, only_run(client), "train_loss")] == list(range(20))
    assert only_run(client).info.status == "FINISHED"


def test_mlflow_is_not_asked_to_send_usage_data(client, script):
    script(
        """
        from tachograph.sinks import build_sinks
        build_sinks({"mlflow": {}})
        from mlflow.telemetry.utils import is_telemetry_disabled
        assert is_telemetry_disabled()
        """,
        env={"CI": "", "PYTEST_CURRENT_TEST": ""},
    ).ok()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experiment": ""}, "sink 'mlflow': experiment must be a non-empty string, got ''"),
        ({"artifacts": "no"}, "sink 'mlflow': artifacts must be true or false, got 'no'"),
        ({"media": "yes"}, "sink 'mlflow': media must be true or false, got 'yes'"),
        ({"media": True, "artifacts": False}, "media: true needs artifacts: true"),
        ({"tracking_uri": "gopher://x"}, "sink 'mlflow' cannot be created"),
        ({"tracking_uri": "mlruns"}, "sqlite:///mlflow.db"),
        ({"trackinguri": "x"}, "did you mean 'tracking_uri'?"),
    ],
)
def test_wrong_mlflow_options_fail_at_setup(monkeypatch, options, message):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    assert "mlflow" in SINKS.built_in
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        build_sinks({"mlflow": options})
