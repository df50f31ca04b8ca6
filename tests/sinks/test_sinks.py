"""The driver with sinks that fail or hang, and the built-in sinks with their real packages, offline."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

import tachograph
from tachograph.importers import import_runs
from tachograph.journal import RunFolder, RunState
from tachograph.reader import read
from tachograph.sinks import BackgroundSink, SinkDriver
from tachograph.sinks._driver import backoff_s
from tests.conftest import HANG_S, lines_of, wait_for


def scalars(folder):
    """Return the scalars that TensorBoard's own loader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_receives_every_number(logs):
    for first in (0, 10):  # the second attempt continues after the first
        with tachograph.init(
            "x", log_dir=str(logs), tensorboard=True, resume=True, git=False, system_interval_s=0.1
        ) as run:
            wait_for(lambda: list(read(logs / "x").records("system")))
            for step in range(first, first + 10):
                run.log(train_loss=math.nan if step == 3 else float(step), phase="warm-up", step=step)
            run.log_validation({"loss": 0.5}, step=first + 9)
    found = scalars(logs / "x" / "tensorboard")
    assert [step for step, _ in found["train_loss"]] == list(range(20))
    assert math.isnan(found["train_loss"][3][1])
    assert found["val_loss"] == [(9, 0.5), (19, 0.5)]
    assert "system/host_mem_used_pct" in found
    assert "phase" not in found


def test_tensorboard_receives_text_histograms_and_hyperparameters(logs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata
    from tensorboard.util import tensor_util

    config = {"lr": 0.5, "model": {"depth": 2}, "api_key": "opaque", "layers": [1, 2]}
    with tachograph.init(
        "x", log_dir=str(logs), tensorboard=True, config=config, git=False, system_interval_s=0
    ) as run:
        run.event("text", step=3, tag="note", text="**bold**")
        run.event("histogram", step=4, tag="weights", counts=[1, 2], edges=[0.0, 1.0, 3.0])
        run.event("histogram", step=5, tag="broken", counts=[1, 2], edges=[0.0])
        run.update_config({"lr": 0.25})
        run.log_summary({"accuracy": 0.75, "loss": {"min": 0.5}, "note": "text"})
    events = EventAccumulator(str(logs / "x" / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    assert "broken" not in events.Tags()["tensors"]
    (note,), (weights,) = events.Tensors("note"), events.Tensors("weights")
    assert (note.step, tensor_util.make_ndarray(note.tensor_proto).tolist()) == (3, b"**bold**")
    assert tensor_util.make_ndarray(weights.tensor_proto).tolist() == [[0.0, 1.0, 1.0], [1.0, 3.0, 2.0]]
    found = scalars(logs / "x" / "tensorboard")
    assert (found["summary/accuracy"], found["summary/loss/min"]) == ([(5, 0.75)], [(5, 0.5)])
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert (hparams["lr"].number_value, hparams["model/depth"].number_value) == (0.5, 2.0)
    assert hparams["api_key"].string_value == "[masked]"
    end = metadata.parse_session_end_info_plugin_data(
        events.SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content
    )
    assert end.status == 1  # success


MEDIA = """
    import sys, numpy as np, tachograph as tacho
    sink, media = sys.argv[2], sys.argv[3] == "yes"
    options = {"media": True} if media else {}
    if sink == "wandb":
        options["mode"] = "offline"
    with tacho.init("x", log_dir=sys.argv[1], sinks=[{sink: options}], git=False, exit_timeout_s=60) as run:
        pixels = np.random.default_rng(0).integers(0, 255, (300, 300, 3), dtype=np.uint8)
        pictures = [tacho.Image(pixels[:8, :8], caption="a fox"), tacho.Image(pixels, caption="a wolf")]
        run.log({"train_loss": 1.0, "samples": pictures, "voice": tacho.Audio(np.zeros(80), rate=8000)}, step=3)
        run.log({"note": tacho.Markdown("**bold**"), "broken": tacho.Image(np.zeros(3))}, step=4)
        run.log({"reward": tacho.Histogram([1.0, 2.0], bins=2), "page": tacho.Html("<b>hi</b>")}, step=4)
        scan, colors = np.arange(8.0).reshape(2, 4), np.full((2, 3), 9, np.uint8)
        run.log({"scan": tacho.Points(scan, colors=colors), "value": tacho.Points(scan)}, step=4)
        clouds = [tacho.Points(scan, labels=["a"], caption="first"), tacho.Points(np.c_[scan[:, :3], colors])]
        run.log({"clouds": clouds}, step=4)
        run.log({"eval": tacho.Table(rows=[{"prompt": "a", "score": 0.5}])}, step=5)
        rows = [{"n": number, "picture": pictures[0] if number < 2 else None} for number in range(1_500)]
        run.log({"many": tacho.Table(rows=rows)}, step=6)
"""


def test_tensorboard_receives_media_if_asked(logs, script):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for choice in ("no", "yes"):
        script(MEDIA, logs / choice, "tensorboard", choice).ok()
    events = {
        choice: EventAccumulator(str(logs / choice / "x" / "tensorboard"), size_guidance={"tensors": 0}).Reload()
        for choice in ("no", "yes")
    }
    tags = events["no"].Tags()
    assert not tags["images"] and not tags["audio"] and not {"note", "reward"} & {*tags["tensors"]}
    (fox,), (wolf,) = (events["yes"].Images(f"samples/{index}") for index in (0, 1))
    assert (fox.step, fox.width, wolf.width) == (3, 8, 300)
    assert fox.encoded_image_string.startswith(b"\x89PNG") and wolf.encoded_image_string.startswith(b"\x89PNG")
    (voice,) = events["yes"].Audio("voice")
    assert (voice.sample_rate, voice.encoded_audio_string[:4]) == (8000, b"RIFF")
    (note,), (reward,) = events["yes"].Tensors("note"), events["yes"].Tensors("reward")
    assert (note.step, note.tensor_proto.string_val[0], reward.step) == (4, b"**bold**", 4)
    assert "broken" not in events["yes"].Tags()["images"]


def test_wandb_receives_media_if_asked(logs, script):
    for choice in ("no", "yes"):
        script(MEDIA, logs / choice, "wandb", choice).ok()
        (path,) = (logs / choice / "x").rglob("*.wandb")
        wait_for(lambda path=path: any(line.WhichOneof("record_type") == "exit" for line in wandb_records(path)))
        (report,) = import_runs("wandb", [path], logs / "imported", name=choice)
        media = {line["name"]: line for line in lines_of(logs / "imported" / choice) if line["event"] == "media"}
        if choice == "no":
            assert media == {} and not report.left_out
    assert {name: line["kind"] for name, line in media.items()} == {
        "samples": "image",
        "voice": "audio",
        "page": "html",
        "scan": "points",
        "value": "points",
        "clouds": "points",
    }
    columns = {name: [len(item["columns"]) for item in media[name]["items"]] for name in ("scan", "value", "clouds")}
    assert columns == {"scan": [6], "value": [3], "clouds": [4, 6]}
    assert media["clouds"]["items"][0]["caption"] == "first"
    assert media["scan"]["items"][0]["bounds"] == [[0, 1, 2], [4, 5, 6]]
    assert [item.get("caption") for item in media["samples"]["items"]] == ["a fox", "a wolf"]
    assert not [item for line in media.values() for item in line["items"] if "problem" in item]
    assert report.left_out["table-file"] == 2
    (table,) = (path.parent / "files" / "media" / "table").glob("many_*.json")  # of more than 1,000 rows: in a file
    assert [row[0] for row in json.loads(table.read_bytes())["data"]] == list(range(1_500))
    artifacts = [record.artifact for record in wandb_records(path) if record.WhichOneof("record_type") == "artifact"]
    (artifact,) = [artifact for artifact in artifacts if artifact.name.endswith("many")]
    assert sorted(entry.path.rpartition(".")[2] for entry in artifact.manifest.contents) == ["json", "png"]
    (histogram,) = read(logs / "imported" / "yes").latest("event", "histogram")
    assert (histogram["tag"], histogram["counts"]) == ("reward", [1, 1])


def wandb_records(path):
    """Read an offline file of W&B: a LevelDB log of messages, which are decoded with the package itself."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:  # too little room for a header: padding
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + 7 + length > len(data):  # W&B is writing it
            return
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def test_wandb_receives_everything_that_it_can_show(logs, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    facts = {"notes": "a note"}
    with tachograph.init(
        "x", log_dir=str(logs), wandb=True, config={"lr": 0.5}, tags=["t"], facts=facts, git=False, system_interval_s=0,
        exit_timeout_s=HANG_S,
    ) as run:  # fmt: skip
        run.log(train_loss=1.0, step=5)
        run.log(train_loss=0.5, step=3)  # steps that go back survive
        run.update_config({"lr": 0.25, "more": 1})
        run.log_completions([{"prompt": "p", "reward": 0.5, "odd": [1]}], step=5)
        run.event("histogram", step=6, tag="weights", counts=[1, 2], edges=[0.0, 1.0, 3.0])
        run.event("histogram", step=6, tag="broken", counts=[1, 2], edges=[0.0])
        run.log_summary({"accuracy": 0.75})
        alert = {"id": "a", "rule": "user", "status": "opened", "severity": "critical", "title": "T", "message": "M"}
        run.add_record("alert", alert)
    (path,) = (logs / "x").rglob("*.wandb")
    wait_for(lambda: any(record.WhichOneof("record_type") == "exit" for record in wandb_records(path)))
    by_kind: dict[str, list[Any]] = {}
    for record in wandb_records(path):
        kind = record.WhichOneof("record_type")
        by_kind.setdefault(kind, []).append(getattr(record, kind))
    assert (by_kind["run"][0].notes, list(by_kind["run"][0].tags)) == ("a note", ["t"])
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
        for history in by_kind["history"]
    ]
    losses = [(row["global_step"], row["train_loss"]) for row in rows if "train_loss" in row]
    assert losses == [(5, 1.0), (3, 0.5)]
    assert any(row.get("completions/_type") == "table-file" and row["completions/nrows"] == 1 for row in rows)
    assert [row["weights/values"] for row in rows if row.get("weights/_type") == "histogram"] == [[1, 2]]
    changes = {item.key: json.loads(item.value_json) for config in by_kind["config"] for item in config.update}
    assert (changes["lr"], changes["more"]) == (0.25, 1)
    results = {item.key: item.value_json for summary in by_kind["summary"] for item in summary.update}
    assert results["accuracy"] == "0.75"
    assert [(alert.title, alert.text, alert.level) for alert in by_kind["alert"]] == [("T", "M", "ERROR")]
    assert by_kind["exit"][0].exit_code == 0
    assert read(logs / "x").latest("telemetry_error") == []


def test_wandb_receives_run_offline(logs, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    config = {"lr": 0.125, "api_key": "opaque"}
    with tachograph.init("x", log_dir=str(logs), wandb=True, config=config, git=False, exit_timeout_s=60) as run:
        for step in range(50):
            run.log(train_loss=1.0 / (step + 1), step=step)
    files = list((logs / "x").rglob("*.wandb"))
    assert len(files) == 1
    assert run.id in files[0].name
    # W&B writes the file in a process of its own, which may not have finished.
    assert wait_for(lambda: files[0].read_bytes().count(b"train_loss") >= 50)
    assert b"opaque" not in files[0].read_bytes()
    assert read(logs / "x").latest("telemetry_error") == []


def test_missing_package_fails_at_setup_with_remedy(logs, script):
    code, _out, err = script(
        """
        import sys
        import tachograph
        sys.modules["tensorboard"] = None  # as if it were not installed
        tachograph.init("x", log_dir=sys.argv[1], tensorboard=True)
        """,
        logs,
    ).wait()
    assert code == 1
    assert "pip install 'tachograph[tensorboard]'" in err.strip().splitlines()[-1]
    assert not logs.exists()


class Flaky:
    """A sink that fails a few times and then works, slowly if asked to."""

    name = "flaky"

    def __init__(self, num_failures=0, slow_s=0.0):
        self.left = num_failures
        self.slow_s = slow_s
        self.records: list[dict[str, Any]] = []

    def open(self, folder, start):
        self.run_name = start["run_name"]

    def write(self, records):
        if self.left > 0:
            self.left -= 1
            raise ConnectionError("down, token=hf_" + "x" * 30)
        time.sleep(self.slow_s)
        self.records += records

    def close(self):
        pass


def test_failing_sink_is_retried_and_reported_once(logs):
    sink = Flaky(num_failures=2)
    with tachograph.init("x", log_dir=str(logs), git=False, flush_interval_s=0.05) as run:
        run.add_follower(SinkDriver(run.folder, sink, run.report_error))
        for step in range(100):
            run.log(a=float(step), step=step)
        wait_for(lambda: sink.records)
    assert [record["a"] for record in sink.records if record["event"] == "step"] == [float(step) for step in range(100)]
    assert sink.records[-1]["event"] == "end"
    errors = read(logs / "x").latest("telemetry_error")
    assert [record["kind"] for record in errors] == ["sink_failed"]
    assert "hf_x" not in errors[0]["reason"]


def test_failure_at_the_end_of_a_run_is_recorded(logs):
    class FailsAtEnd(Flaky):
        def write(self, records):
            if any(record["event"] == "end" for record in records):
                raise ConnectionError("down")

    with tachograph.init("x", log_dir=str(logs), git=False, exit_timeout_s=HANG_S) as run:
        run.add_follower(SinkDriver(run.folder, FailsAtEnd(), run.report_follower_error))
    history = read(logs / "x")
    errors = history.latest("telemetry_error")
    assert [(record["field"], record["reason"]) for record in errors] == [
        ("flaky", "ConnectionError: down; will be retried")
    ]
    assert history.state is RunState.FINISHED
    with tachograph.init("x", log_dir=str(logs), git=False, resume=True) as run:
        assert run.name == "x"


def test_hanging_sink_does_not_delay_exit(logs, capsys):
    run = tachograph.init("x", log_dir=str(logs), git=False, exit_timeout_s=1.0)
    run.add_follower(SinkDriver(run.folder, Flaky(slow_s=HANG_S), run.report_error))
    run.log(a=1.0)
    start_s = time.monotonic()
    run.finish()
    assert time.monotonic() - start_s < HANG_S / 2
    assert run.finish(timeout_s=HANG_S) is True  # the journal is complete
    assert "flaky did not receive all records of 'x'; the journal has them" in capsys.readouterr().out


def test_each_sink_has_its_own_cursor(logs):
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.log(a=1.0)
    folder = RunFolder(logs / "x")

    def follow():
        sink = Flaky()
        driver = SinkDriver(folder, sink, lambda *_: None)
        driver.start()
        assert driver.close(HANG_S)
        return sink.records

    assert [record["event"] for record in follow()][-1] == "end"
    assert follow() == []
    (folder.private / "sink-flaky.json").unlink()
    assert len(follow()) > 0


@pytest.mark.parametrize("name", ["swanlab", "tensorboard", "wandb"])
def test_sinks_are_imported_only_if_configured(logs, script, name):
    script(
        f"""
        import sys, tachograph
        with tachograph.init("x", log_dir=sys.argv[1]) as run:
            run.log(a=1.0)
        assert {name!r} not in sys.modules
        """,
        logs,
    ).ok()


def test_restored_journal_is_not_exported_twice(logs):
    import shutil

    sink = Flaky()
    with tachograph.init("x", log_dir=str(logs), git=False, flush_interval_s=0.05) as run:
        run.add_follower(SinkDriver(run.folder, sink, run.report_error))
        for step in range(50):
            run.log(a=float(step), step=step)
        wait_for(lambda: sum(record["event"] == "step" for record in sink.records) == 50)
        wait_for(lambda: shutil.rmtree(logs, ignore_errors=True) or not logs.exists())
        wait_for((logs / "x" / "metrics.jsonl").exists)
        for step in range(50, 80):
            run.log(a=float(step), step=step)
    assert [record["a"] for record in sink.records if record["event"] == "step"] == [float(step) for step in range(80)]


def test_sink_is_reopened_after_failure(logs):
    class Counting(Flaky):
        num_opened = 0

        def open(self, folder, start):
            self.num_opened += 1

    sink = Counting(num_failures=1)
    with tachograph.init("x", log_dir=str(logs), git=False, flush_interval_s=0.05) as run:
        run.add_follower(SinkDriver(run.folder, sink, run.report_error))
        run.log(a=1.0)
        wait_for(lambda: sink.records)
    assert sink.num_opened == 2


def test_backoff_is_bounded():
    assert [backoff_s(1.0, failures, 60.0) for failures in (0, 1, 5, 6, 100_000)] == [1.0, 2.0, 32.0, 60.0, 60.0]


def test_sink_that_is_back_after_an_hour_gets_everything(logs):
    """On a clock that only the pauses of the driver advance."""
    now_s = 0.0
    attempts_s: list[float] = []

    class Down(Flaky):
        def write(self, records):
            attempts_s.append(now_s)
            if now_s < 3600:
                raise ConnectionError("down")
            self.records += records

    sink = Down()
    with tachograph.init("x", log_dir=str(logs), git=False, flush_interval_s=0.05) as run:
        driver = SinkDriver(run.folder, sink, run.report_error)
        wait = driver._stopping.wait

        def advance(pause_s: float) -> bool:
            nonlocal now_s
            now_s += pause_s
            return wait(0.001)

        driver._stopping.wait = advance
        run.add_follower(driver)
        for step in range(100):
            run.log(a=float(step), step=step)
        wait_for(lambda: sink.records, what="the export after an hour")
    assert [record["a"] for record in sink.records if record["event"] == "step"] == [float(step) for step in range(100)]
    failed_s = [at_s for at_s in attempts_s if at_s < 3600]
    assert 60 <= len(failed_s) <= 75, "after a few quick attempts, one a minute"
    assert min(at_s for at_s in attempts_s if at_s >= 3600) < 3660
    assert len(read(logs / "x").latest("telemetry_error")) == 1


def test_notify_is_driven_as_a_background_sink():
    from tachograph.sinks.notify import NotifySink, resolve_notify

    sink = NotifySink(resolve_notify(), [], report=lambda *_: None, print_line=print, start_s=0.0)
    assert isinstance(sink, BackgroundSink)


def test_cursor_of_new_sink_starts_at_the_end_if_asked(logs):
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.log(a=1.0)
    sink = Flaky()
    driver = SinkDriver(RunFolder(logs / "x"), sink, lambda *_: None, from_start=False)
    driver.start()
    assert driver.close(HANG_S)
    assert sink.records == []


class Background(Flaky):
    """A sink with delivery threads, which records how the driver calls it."""

    name = "background"
    poll_interval_s = 0.05

    def __init__(self, cursor=None):
        super().__init__()
        self.calls = []
        self.cursor = cursor

    def open(self, folder, start):
        self.calls.append("open")

    def write(self, records):
        super().write(records)
        self.calls.append("write")

    def close(self):
        self.calls.append("close")

    def load_cursor(self, folder):
        self.calls.append("load_cursor")
        return self.cursor

    def start(self):
        self.calls.append("start")

    def save_cursor(self, journal_bytes):
        self.calls.append("save_cursor")
        self.cursor = journal_bytes

    def poll(self):
        if self.calls[-1] != "poll":
            self.calls.append("poll")

    def move(self, folder): ...

    def flush(self, deadline_s):
        wait_for(lambda: "close" in self.calls)
        self.calls.append("flush")


def test_background_sink_stores_its_own_cursor(logs):
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.log(a=1.0)
    folder = RunFolder(logs / "x")
    first = Background()
    driver = SinkDriver(folder, first, lambda *_: None)
    driver.start()
    assert driver.close(HANG_S)
    assert first.calls == ["load_cursor", "start", "open", "write", "save_cursor", "poll", "close", "flush"]
    assert first.cursor == folder.journal.stat().st_size
    assert not (folder.private / "sink-background.json").exists()
    second = Background(first.cursor)
    driver = SinkDriver(folder, second, lambda *_: None)
    driver.start()
    assert driver.close(HANG_S)
    assert second.records == []


@pytest.mark.expects_faults
def test_error_in_flush_does_not_reach_the_program(logs):
    class Failing(Background):
        def flush(self, deadline_s):
            raise ConnectionError("down")

    sink = Failing()
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.add_follower(SinkDriver(run.folder, sink, run.report_error))
    assert wait_for(lambda: sink.records and sink.records[-1]["event"] == "end")
