"""The sink `swanlab` with the real package: its offline files read back, and a server of ours for the cloud."""

from __future__ import annotations

import io
import json
import math
import os
import signal

import numpy as np
import PIL.Image
import pytest
import yaml

import tachograph
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.reader import read
from tachograph.sinks import SinkDriver, build_sinks, read_lags
from tests.bridges.swanlab_server import SwanLabServer
from tests.cli.test_cli import tacho
from tests.conftest import HANG_S, wait_for

MODES = "cloud, online, local, offline, disabled"


@pytest.fixture(autouse=True)
def swanlab_home(tmp_path, monkeypatch):
    """Hide the settings and the login of the machine from SwanLab."""
    for name in [name for name in os.environ if name.startswith("SWANLAB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "swanlab-root"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server(monkeypatch):
    """The server, and a proxy that would receive every request to any other host."""
    found, proxy = SwanLabServer(), SwanLabServer()
    found.elsewhere = proxy.requests
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield found
    for one in (found, proxy):
        one.close()


def swanlab_files(folder):
    return sorted(folder.rglob("*.swanlab"))


def messages(path):
    """Yield the messages of a file, read with SwanLab's own reader."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    if not path.stat().st_size:
        return  # SwanLab has not written the header yet
    reader = DataStoreReader()
    reader.open(path)
    for data in reader:
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        yield kind, getattr(record, kind)
    reader.close()


def scalars(path):
    """Return the points of each metric."""
    found: dict[str, list[tuple[int, float]]] = {}
    for kind, message in messages(path):
        if kind == "scalar":
            found.setdefault(message.key, []).append((message.step, message.value.number))
    return found


def media(path):
    """Return the content of the files of each media metric."""
    found: dict[str, list[str]] = {}
    folders = {4: "text", 6: "echarts"}
    for kind, message in messages(path):
        if kind == "media":
            for item in message.value.items:
                file = path.parent / "media" / folders[message.type] / item.filename
                found.setdefault(message.key, []).append(file.read_text())
    return found


def start(logs, name="x", **options):
    swanlab = {"project": "proj", "mode": "offline", **options.pop("swanlab", {})}
    options = {"git": False, "system_interval_s": 0, "exit_timeout_s": HANG_S, **options}
    return tachograph.init(name, log_dir=str(logs), sinks=[{"swanlab": swanlab}], **options)


def test_swanlab_receives_everything_that_it_can_show(logs):
    config = {"lr": 0.5, "model": {"depth": 2}, "api_key": "opaque"}
    with start(logs, config=config, tags=["t", "u"], facts={"notes": "a note"}) as run:
        run.log(train_loss=1.0, step=5, phase="warm-up")
        run.log(train_loss=math.nan, step=6)
        run.log_validation({"loss": 0.25}, step=6)
        run.update_config({"lr": 0.25, "more": 1})
        run.event("text", step=6, tag="note", text="**bold**")
        run.event("histogram", step=6, tag="weights", counts=[1, 2], edges=[0.0, 1.0, 3.0])
        run.event("histogram", step=6, tag="broken", counts=[1, 2], edges=[0.0])
        run.log_summary({"accuracy": 0.75, "by": {"split": 0.5}, "note": "text"})
        alert = {"id": "a", "rule": "user", "status": "opened", "severity": "critical", "title": "T", "message": "M"}
        run.add_record("alert", alert)
    (path,) = swanlab_files(logs / "x")
    kinds = dict(messages(path))
    first, finish = kinds["start"], kinds["finish"]
    assert (first.project, first.name, first.description) == ("proj", "x", "a note")
    assert (list(first.tags), first.id) == (["t", "u"], run.id)
    assert finish.state == 1  # finished
    points = scalars(path)
    assert (points["train_loss"][0], points["val_loss"]) == ((5, 1.0), [(6, 0.25)])
    assert math.isnan(points["train_loss"][1][1])
    assert (points["summary/accuracy"], points["summary/by/split"]) == ([(6, 0.75)], [(6, 0.5)])
    assert "phase" not in points
    found = media(path)
    assert (found["note"], found["alerts"][-1], "broken" in found) == (["**bold**"], "T\nM", False)
    chart = json.loads(found["weights"][0])
    assert (chart["series"][0]["data"], chart["xAxis"][0]["data"]) == ([1, 2], ["0 … 1", "1 … 3"])
    stored = yaml.safe_load((path.parent / "files" / "config.yaml").read_text())
    values = {name: item["value"] for name, item in stored.items()}
    assert values == {"lr": 0.25, "model": {"depth": 2}, "api_key": "[masked]", "more": 1}
    assert read(logs / "x").latest("telemetry_error") == []


def test_steps_that_go_back_reach_swanlab(logs):
    steps = [*range(10), *range(4, 12)]
    with start(logs) as run:
        for number, step in enumerate(steps):
            run.log(train_loss=float(number), step=step)
    points = scalars(swanlab_files(logs / "x")[0])
    assert [value for _, value in points["train_loss"]] == [float(number) for number in range(len(steps))]
    places = [step for step, _ in points["train_loss"]]
    assert places == sorted(set(places))
    assert places[:10] == list(range(10))
    assert [(place, float(step)) for place, step in zip(places, steps, strict=True)] == points["global_step"]


def test_samples_become_a_table_of_the_latest_rows(logs):
    with start(logs, swanlab={"max_rows": 3}) as run:
        run.log_completions([{"prompt": "a", "reward": 0.5}, {"prompt": "b", "odd": [1]}], step=1)
        run.log_completions([{"prompt": "c"}, {"prompt": "d", "chosen": "e"}], step=2)
    tables = [json.loads(text) for text in media(swanlab_files(logs / "x")[0])["completions"]]
    assert [[row["prompt"] for row in table["rowData"]] for table in tables] == [["a", "b"], ["b", "c", "d"]]
    assert [column["field"] for column in tables[1]["colDefs"]] == ["step", "prompt", "odd", "chosen"]
    assert tables[1]["rowData"][2]["chosen"] == "e"


def test_media_reach_swanlab_if_asked(logs):
    for name, is_sent in (("sent", True), ("kept", False)):
        with start(logs, name, swanlab={"media": is_sent}) as run:
            greys = [np.full((8, 8, 3), value, np.uint8) for value in (0, 200)]
            pictures = [tachograph.Image(grey, caption=f"c{grey.max()}") for grey in greys]
            table = tachograph.Table(columns=["prompt", "score"], data=[["a", 0.5], ["b", math.nan]])
            animation = io.BytesIO()
            first, second = map(PIL.Image.fromarray, greys)
            first.save(animation, "webp", save_all=True, append_images=[second], duration=250)
            clip = tachograph.Video(animation.getvalue())
            values = {"samples": pictures, "one": pictures[1], "table": table, "clip": clip}
            run.log({**values, "note": tachograph.Text("hello"), "page": tachograph.Html("<b>x</b>")}, step=3)
            run.log({"weights": tachograph.Histogram(np.arange(10.0))}, step=3)
        (path,) = swanlab_files(logs / name)
        items = {
            message.key: (message.step, message.value.items) for kind, message in messages(path) if kind == "media"
        }
        if not is_sent:
            assert items == {}
            continue
        assert items.keys() == {"samples", "one", "table", "clip", "note", "weights"}
        assert {step for step, _ in items.values()} == {3}
        assert [item.caption for item in items["samples"][1]] == ["c0", "c200"]
        folder = path.parent / "media"
        (one,) = items["one"][1]
        with PIL.Image.open(next(folder.rglob(one.filename))) as picture:
            assert (picture.size, picture.convert("RGB").getpixel((0, 0))) == ((8, 8), (200, 200, 200))
        with PIL.Image.open(next(folder.rglob(items["clip"][1][0].filename))) as animation:
            assert (animation.format, animation.n_frames) == ("GIF", 2)
        (note,) = items["note"][1]
        assert next(folder.rglob(note.filename)).read_text() == "hello"
        rows = json.loads(next(folder.rglob(items["table"][1][0].filename)).read_text())["rowData"]
        assert [row["prompt"] for row in rows] == ["a", "b"]
        assert read(logs / name).latest("telemetry_error") == []


def test_resumed_run_sends_earlier_samples_and_config_again(logs):
    with start(logs, config={"lr": 0.5}) as run:
        run.log_completions([{"prompt": "a"}], step=1)
        run.update_config({"late": 1})
    with start(logs, config={"lr": 0.25}, resume=True) as run:
        run.log_completions([{"prompt": "b"}], step=2)
    _, second = swanlab_files(logs / "x")
    (table,) = (json.loads(text) for text in media(second)["completions"])
    assert [row["prompt"] for row in table["rowData"]] == ["a", "b"]
    stored = yaml.safe_load((second.parent / "files" / "config.yaml").read_text())
    assert {name: item["value"] for name, item in stored.items()} == {"lr": 0.25, "late": 1}


def test_samples_can_be_kept_from_swanlab(logs):
    with start(logs, swanlab={"completions": False}) as run:
        run.log_completions([{"prompt": "a"}], step=1)
    assert media(swanlab_files(logs / "x")[0]) == {}
    assert len(read(logs / "x").completions()) == 1


def test_durations_have_the_names_of_swanlab(logs):
    class Trainer:
        @tachograph.profile_function(config=tachograph.ProfilingConfig(min_duration_ms=0))
        def step(self):
            pass

    with start(logs) as run:
        run.log(a=1.0, step=3)
        Trainer().step()
    points = scalars(swanlab_files(logs / "x")[0])
    assert [name for name in points if name.startswith("profiling/")] == ["profiling/Time taken: Trainer.step"]
    assert points["profiling/Time taken: Trainer.step"][0][1] > 0


@pytest.mark.parametrize(
    ("error", "state"), [(ValueError("a"), 2), (KeyboardInterrupt(), 3)], ids=["crashed", "aborted"]
)
def test_exit_state_reaches_swanlab(logs, error, state):
    with pytest.raises(type(error)), start(logs) as run:
        run.log(a=1.0, step=1)
        raise error
    finish = dict(messages(swanlab_files(logs / "x")[0]))["finish"]
    assert (finish.state, finish.error) == (state, type(error).__name__)


def test_killed_run_and_its_resume_are_one_experiment(logs, script):
    process = script(
        """
        import sys, time, tachograph
        sinks = [{"swanlab": {"project": "proj", "mode": "offline"}}]
        run = tachograph.init("x", log_dir=sys.argv[1], sinks=sinks, git=False, system_interval_s=0)
        for step in range(5):
            run.log(train_loss=float(step), step=step)
        run.flush()
        print("logged", flush=True)
        time.sleep(900)
        """,
        logs,
    )
    while process.process.stdout.readline() != "logged\n":
        assert process.process.poll() is None
    os.kill(process.process.pid, signal.SIGKILL)
    wait_for(lambda: [f for f in swanlab_files(logs / "x") if "finish" in dict(messages(f))])
    with start(logs, resume=True) as run:
        for step in range(3, 8):
            run.log(train_loss=float(10 * step), step=step)
    first, second = swanlab_files(logs / "x")
    assert (dict(messages(first))["finish"].state, dict(messages(second))["finish"].state) == (2, 1)
    assert {dict(messages(file))["start"].id for file in (first, second)} == {run.id}
    assert scalars(first)["train_loss"] == [(step, float(step)) for step in range(5)]
    # Steps 3 and 4 would be ignored if they were sent again; so they follow after the others.
    assert [value for _, value in scalars(second)["train_loss"]] == [30.0, 40.0, 50.0, 60.0, 70.0]
    assert min(step for step, _ in scalars(second)["train_loss"]) > 4


def test_two_runs_of_a_process_are_two_experiments(logs):
    with start(logs) as outer, start(logs, "y") as inner:
        outer.log(a=1.0, step=1)
        inner.log(a=2.0, step=1)
    for name, value in (("x", 1.0), ("y", 2.0)):
        assert scalars(swanlab_files(logs / name)[0])["a"] == [(1, value)]


def test_disabled_mode_writes_nothing(logs):
    with start(logs, swanlab={"mode": "disabled"}) as run:
        run.log(a=1.0, step=1)
    assert swanlab_files(logs / "x") == []
    assert read_lags(RunFolder(logs / "x")) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "clod"}, f"mode must be one of {MODES}, got 'clod'; did you mean 'cloud'?"),
        ({"mode": "offline", "project": " "}, "project must be a non-empty string, got ' '"),
        (
            {"mode": "offline", "project": "a/b"},
            "project must be at most 100 letters, digits or any of _-+., got 'a/b'",
        ),
        ({"mode": "offline", "max_rows": 0}, "max_rows must be an integer of at least 1, got 0"),
        ({"mode": "offline", "api_key": 7}, "api_key must be a non-empty string"),
        (
            {"mode": "cloud"},
            "mode 'cloud' needs an API key for https://api.swanlab.cn. Set SWANLAB_API_KEY, run `swanlab login`, or "
            "set swanlab_api_key in the config",
        ),
        ({}, "mode 'cloud' needs an API key"),
        ({"mode": "local"}, "mode 'local' needs SwanLab's dashboard, which is not installed: pip install 'swanlab["),
    ],
)
def test_wrong_options_of_swanlab_name_the_remedy(options, message):
    with pytest.raises(ConfigError) as raised:
        build_sinks({"swanlab": options})
    assert str(raised.value).startswith(f"sink 'swanlab': {message}")


def test_invalid_environment_of_swanlab_is_named(monkeypatch):
    monkeypatch.setenv("SWANLAB_MODE", "bogus-value")
    with pytest.raises(ConfigError) as raised:
        build_sinks({"swanlab": {}})
    assert str(raised.value) == "sink 'swanlab': SwanLab rejects its settings: mode"


def test_sync_exports_a_run_and_prints_only_its_report(logs, monkeypatch):
    with tachograph.init("x", log_dir=str(logs), git=False, system_interval_s=0) as run:
        run.log(train_loss=1.0, step=1)
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    (report,) = json.loads(tacho("sync", "x", "--sink", "swanlab", "--json", "--log-dir", logs))
    assert (report["sink"], report["num_missing"]) == ("swanlab", 0)
    assert scalars(swanlab_files(logs / "x")[0])["train_loss"] == [(1, 1.0)]


def test_unreachable_server_delays_nothing_and_leaves_no_folders(logs, server):
    server.close()
    options = {"mode": "cloud", "api_host": server.url, "api_key": "key-1234567890"}
    with start(logs, swanlab=options, exit_timeout_s=1.0) as run:
        run.log(train_loss=1.0, step=1)
    wait_for(lambda: [lag.num_records >= 3 for lag in read_lags(RunFolder(logs / "x"))] == [True], "the journal")
    assert list((logs / "x").glob("swanlab/*")) == []
    assert server.elsewhere == []


# A private server ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cloud", "online"])
def test_run_reaches_the_private_server_and_no_other(logs, server, mode):
    hosts = {"api_host": server.url, "web_host": "http://pages.invalid"}
    options = {"mode": mode, "workspace": "team", "experiment_name": "first try", "api_key": "key-1234567890", **hosts}
    with start(logs, swanlab=options, config={"lr": 0.5}) as run:
        for step in range(20):
            run.log(train_loss=float(step), step=step)
        run.log_completions([{"prompt": "p"}], step=19)
    points = {(metric["index"], metric["data"]) for metric in server.metrics if metric["key"] == "train_loss"}
    assert points == {(step, float(step)) for step in range(20)}
    assert server.projects == {"team/proj"}
    assert server.experiments[run.id]["name"] == "first try"
    assert server.experiments[run.id]["state"] == "FINISHED"
    keys = {headers.get("authorization") for _, path, _, headers in server.requests if path.endswith("/login/api_key")}
    assert keys == {"key-1234567890"}
    assert any(method == "PUT" and path.startswith("/media/echarts/") for method, path, _, _ in server.requests)
    assert server.elsewhere == []
    assert "key-1234567890" not in (logs / "x" / "metrics.jsonl").read_text()
    assert read_lags(RunFolder(logs / "x")) == []


def test_address_of_pages_alone_means_a_private_server(logs, server):
    with start(logs, swanlab={"mode": "cloud", "web_host": server.url, "api_key": "key-1234567890"}) as run:
        run.log(train_loss=1.0, step=1)
    assert server.experiments[run.id]["state"] == "FINISHED"
    assert server.elsewhere == []


def test_hosts_and_key_can_come_from_the_environment(logs, server, monkeypatch):
    monkeypatch.setenv("SWANLAB_API_HOST", server.url)
    monkeypatch.setenv("SWANLAB_API_KEY", "key-1234567890")
    with start(logs, swanlab={"mode": "cloud"}) as run:
        run.log(train_loss=1.0, step=1)
    assert server.experiments[run.id]["state"] == "FINISHED"
    assert server.elsewhere == []


def test_resumed_run_continues_its_experiment_on_the_server(logs, server):
    options = {"mode": "cloud", "api_host": server.url, "api_key": "key-1234567890"}
    for steps in (range(5), range(3, 8)):
        with start(logs, swanlab=options, resume=True) as run:
            for step in steps:
                run.log(train_loss=float(step), step=step)
    assert list(server.experiments) == [run.id]
    found = [metric for metric in server.metrics if metric["key"] == "train_loss"]
    assert [metric["data"] for metric in found] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    assert len({metric["index"] for metric in found}) == 10


def test_server_that_is_down_leaves_a_lag_and_gets_the_rest_once(logs, server, monkeypatch):
    with tachograph.init("x", log_dir=str(logs), git=False, system_interval_s=0) as run:
        for step in range(20):
            run.log(train_loss=float(step), step=step)
    folder, failures = RunFolder(logs / "x"), []
    monkeypatch.setattr("tachograph.bridges.swanlab.sink._CONFIRM_TIMEOUT_S", 0.5)
    options = {"project": "proj", "mode": "cloud", "api_host": server.url, "api_key": "key-1234567890"}
    server.fails = True
    (sink,) = build_sinks({"swanlab": options})
    driver = SinkDriver(folder, sink, lambda *failure: failures.append(failure))
    driver.start()
    wait_for(lambda: failures)
    (lag,) = read_lags(folder)
    assert (lag.sink, "have not reached" in lag.error) == ("swanlab", True)
    server.fails = False
    wait_for(lambda: not read_lags(folder))
    assert driver.close(HANG_S)
    data = [metric["data"] for metric in server.metrics if metric["key"] == "train_loss"]
    assert data == [float(step) for step in range(20)]
    assert server.experiments[run.id]["state"] == "FINISHED"
