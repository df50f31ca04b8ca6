"""`tachograph.tensorboard.SummaryWriter`, next to the one of torch."""

from __future__ import annotations

import inspect
import logging
import math
import threading

import numpy as np
import pytest

import tachograph
from tachograph.tensorboard import GlobalSummaryWriter, SummaryWriter
from tests.conftest import lines_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def log_dir(monkeypatch, logs, tmp_path):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    monkeypatch.setenv("TACHO_GIT", "false")
    monkeypatch.chdir(tmp_path)


def events(folder, name):
    return [record for record in lines_of(folder) if record["event"] == "event" and record["name"] == name]


def points(history, name):
    series = history.series(name)
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def torch_scalars(folder):
    """Read the scalars that torch wrote, with TensorBoard's own loader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loaded = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, pytest.approx(event.value, rel=1e-6, nan_ok=True)) for event in loaded.Scalars(tag)]
        for tag in loaded.Tags()["scalars"]
    }


def write_everything(writer):
    """Write what training scripts write."""
    for step in range(5):
        writer.add_scalar("train/loss", 1.0 / (step + 1), step)
        writer.add_scalar("train/lr", torch.tensor(0.1 * step), global_step=step)
        writer.add_scalar("numpy", np.float32(0.5), np.int64(step))
        writer.add_scalar("one element", torch.tensor([step + 0.25], requires_grad=True), step)
        writer.add_scalar("epoch/accuracy", 0.1 * step, 100 * step, walltime=1_700_000_000.0 + step)
    writer.add_scalars("losses", {"a": 1.5, "b": torch.tensor(2.5)}, 3)
    writer.add_scalar("odd", math.nan, 1)
    writer.add_text("note", "**bold**", 2)
    writer.add_histogram("weights", torch.arange(100.0), 4)
    writer.flush()


def test_same_calls_give_the_same_scalars_as_tensorboard(logs, tmp_path):
    from torch.utils.tensorboard import SummaryWriter as TorchWriter

    with TorchWriter(str(tmp_path / "theirs")) as writer:
        write_everything(writer)
    with SummaryWriter("runs/ours") as writer:
        write_everything(writer)
    theirs = torch_scalars(tmp_path / "theirs")
    for name in ("a", "b"):  # torch writes each of them into a folder of its own
        theirs[f"losses/{name}"] = torch_scalars(tmp_path / "theirs" / f"losses_{name}")["losses"]
    history = tachograph.read(logs / "ours")
    assert len(theirs) == 8
    for name, wanted in theirs.items():
        assert points(history, name) == wanted, name
    assert not (tmp_path / "runs").exists()


def test_every_method_of_torch_exists_with_its_arguments():
    from torch.utils.tensorboard import SummaryWriter as TorchWriter

    for name, theirs in inspect.getmembers(TorchWriter, inspect.isfunction):
        if name.startswith("_") and name != "__init__":
            continue
        ours = inspect.signature(getattr(SummaryWriter, name)).parameters
        takes_any = {"_arguments", "_options"} <= set(ours)
        their_names = list(inspect.signature(theirs).parameters)
        assert takes_any or list(ours)[: len(their_names)] == their_names, name


def test_arguments_of_tensorboardx_are_accepted(logs):
    """By name and by position: its methods differ from those of torch."""
    with SummaryWriter(logdir="runs/x", comment="", write_to_disk=True, comet_config={"disabled": True}) as writer:
        assert (writer.logdir, writer.log_dir) == ("runs/x", "runs/x")
        writer.add_scalar("a", 1.0, 0, None, "shown as", "described")
        writer.add_scalar("a", 2.0, 1, display_name="shown as", summary_description="described")
        writer.add_scalars("group", {"b": 3.0}, 1, walltime=4.0)
        writer.add_hparams({"lr": 0.1}, {"best": 1.0}, name="trial", global_step=1)
        writer.add_image_with_boxes("p", None, None, labels=["cat"])
        writer.add_openvino_graph("net.xml")
        writer.export_scalars_to_json("scalars.json")
        with writer.use_metadata(global_step=10) as same:
            same.add_scalar("a", 3.0, 2)
    values = {name: [step[name] for step in lines_of(logs / "x") if name in step] for name in ("a", "group/b")}
    assert values == {"a": [1.0, 2.0, 3.0], "group/b": [3.0]}
    with SummaryWriter("runs/silent", "", None, 10, 120, "", False) as writer:
        writer.add_scalar("a", 1.0, 0)
        writer.add_text("t", "text")
        writer.add_image("p", None)
        writer.flush()
    assert [path.name for path in logs.iterdir()] == ["x"]


def test_global_writer_is_shared_and_counts_steps(logs):
    writer = GlobalSummaryWriter.getSummaryWriter()
    try:
        for value in (3.0, 2.0, 1.0):
            GlobalSummaryWriter.getSummaryWriter().add_scalar("loss", value)
        writer.add_text("loss", "a text")
        writer.add_image("picture", np.zeros((3, 2, 2)))
        writer.file_writer.flush()
        (folder,) = logs.iterdir()
        writer.close()
    finally:
        GlobalSummaryWriter._shared_writer = None
    history = tachograph.read(folder)
    assert points(history, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert [(record["global_step"], record["text"]) for record in history.latest("event", "text")] == [(0, "a text")]
    assert [record["global_step"] for record in history.records("media")] == [0]
    with GlobalSummaryWriter(logdir="runs/x").smw as writer:
        writer.add_scalar("a", 1.0)
    assert (logs / "x").is_dir()


def test_tags_without_steps_are_counted_separately(logs):
    with SummaryWriter("runs/x") as writer:
        for value in range(3):
            writer.add_scalar("a", value)
            if value:
                writer.add_scalar("b", value)
    history = tachograph.read(logs / "x")
    assert (points(history, "a"), points(history, "b")) == ([(0, 0), (1, 1), (2, 2)], [(0, 1), (1, 2)])


def test_steps_of_a_tag_may_restart(logs):
    with SummaryWriter("runs/x") as writer:
        for step in (0, 10, 20):
            writer.add_scalar("train", 1.0, step)
        for step in (0, 1):
            writer.add_scalar("epoch", 2.0, step)
    history = tachograph.read(logs / "x")
    assert (points(history, "train"), points(history, "epoch")) == ([(0, 1), (10, 1), (20, 1)], [(0, 2), (1, 2)])


@pytest.mark.parametrize(
    ("folders", "name", "tags"),
    [
        (["runs/x", "runs/x/val"], "x", {"loss", "val/loss"}),
        (["runs/x/train", "runs/x/val"], "x", {"train/loss", "val/loss"}),
        (["runs/x", "runs/y"], "x", {"loss", "y/loss"}),
        (["runs/x", "elsewhere/deep/z"], "x", {"loss", "z/loss"}),
        (["my runs/ odd: name! "], "odd-name", {"loss"}),
        (["/"], "run", {"loss"}),
    ],
)
def test_open_writers_share_a_run(logs, folders, name, tags):
    writers = [SummaryWriter(folder) for folder in folders]
    for writer in writers:
        writer.add_scalar("loss", 1.0, 0)
    for writer in writers[:-1]:
        writer.close()
    assert tachograph.current_run().name == name
    writers[-1].add_scalar("loss", 0.5, 1)
    writers[-1].close()
    assert [path.name for path in logs.iterdir()] == [name]
    history = tachograph.read(logs / name)
    assert (str(history.state), {tag for tag in history.metrics if tag.endswith("loss")}) == ("finished", tags)


def test_writers_one_after_another_have_runs_of_their_own(logs):
    for name in ("a", "b"):
        with SummaryWriter(f"runs/{name}") as writer:
            writer.add_scalar("loss", 1.0, 0)
    assert sorted(path.name for path in logs.iterdir()) == ["a", "b"]
    assert all(tachograph.read(logs / name).metrics["loss"].count == 1 for name in ("a", "b"))


def test_default_name_has_the_time_and_the_comment(logs):
    with SummaryWriter(comment="_lr=0.1") as writer:
        assert writer.get_logdir() == writer.log_dir
        assert writer.log_dir.startswith("runs/")
    assert next(logs.iterdir()).name.endswith("_lr=0.1")


def test_writer_joins_the_current_run(logs):
    with tachograph.init("mine") as run:
        with SummaryWriter("runs/x") as writer:
            writer.add_scalar("loss", 1.0, 7)
        assert run.status == "running"
    assert points(tachograph.read(logs / "mine"), "loss") == [(7, 1.0)]


def test_writer_used_after_close_continues_its_run(logs):
    writer = SummaryWriter("runs/x")
    writer.add_scalar("loss", 1.0, 0)
    writer.close()
    writer.close()
    writer.add_scalar("loss", 0.5, 1)
    writer.close()
    history = tachograph.read(logs / "x")
    assert (len(history.attempts), points(history, "loss")) == (2, [(0, 1.0), (1, 0.5)])


def test_purge_step_continues_the_run(logs):
    for first, options in ((0, {}), (3, {"purge_step": 3})):
        with SummaryWriter("runs/x", **options) as writer:
            for step in range(first, first + 5):
                writer.add_scalar("loss", first + 0.5, step)
    history = tachograph.read(logs / "x")
    assert [path.name for path in logs.iterdir()] == ["x"]
    assert [attempt.first_step for attempt in history.attempts] == [0, 3]


def test_hyperparameters_are_config_and_results_are_summary(logs):
    with SummaryWriter("runs/x") as writer:
        writer.add_hparams(
            {"lr": 0.1, "api_key": "sk-1234567890abcdef1234567890abcdef"}, {"accuracy": torch.tensor(0.9)}
        )
        writer.add_hparams({"batch": 4}, {"loss": 0.25})
    history = tachograph.read(logs / "x")
    assert history.config == {"lr": 0.1, "api_key": "[masked]", "batch": 4}
    assert history.summary == {"accuracy": pytest.approx(0.9), "loss": 0.25}
    assert "sk-1234567890" not in (logs / "x" / "metrics.jsonl").read_text()


def test_text_and_histograms_are_events(logs):
    with SummaryWriter("runs/x") as writer:
        writer.add_text("note", "# Title", 3)
        writer.add_histogram("weights", torch.tensor([0.0, 1.0, 1.0, math.nan, math.inf]).bfloat16(), 5, max_bins=2)
        writer.add_histogram("nothing", [], 6)
        writer.add_histogram_raw("raw", 0.0, 4.0, 3, 5.0, 9.0, [2.0, 4.0], [1, 2], 7)
    (text,), (weights, nothing, raw) = events(logs / "x", "text"), events(logs / "x", "histogram")
    assert (text["tag"], text["text"], text["global_step"]) == ("note", "# Title", 3)
    assert (weights["counts"], weights["edges"], weights["num_not_finite"]) == ([1, 2], [0.0, 0.5, 1.0], 2)
    assert sum(nothing["counts"]) == 0
    assert (raw["counts"], raw["edges"], raw["global_step"]) == ([1, 2], [0.0, 2.0, 4.0], 7)


def test_graphs_are_counted_and_named_once(logs, caplog):
    with caplog.at_level(logging.WARNING, "tachograph"), SummaryWriter("runs/x") as writer:
        for step in range(3):
            writer.add_image("picture", None, step)
        writer.add_graph(torch.nn.Linear(1, 1))
        writer.file_writer.add_summary(object())
        assert list(writer.all_writers) == ["runs/x"]
    warnings = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert warnings == ["add_image", "add_graph", "add_summary"]
    (counted,) = events(logs / "x", "not_recorded")
    assert [counted[name] for name in ("add_image", "add_graph", "add_summary")] == [3, 1, 1]


def test_pictures_clips_and_sounds_are_recorded(logs):
    pytest.importorskip("PIL")
    with SummaryWriter("runs/x") as writer:
        writer.add_image("picture", np.zeros((3, 4, 6)), 5)
        writer.add_image("grey", torch.ones(4, 6), 5, dataformats="hw")
        writer.add_images("batch", torch.zeros(2, 3, 4, 6, dtype=torch.uint8), 6)
        writer.add_image_with_boxes(
            "boxes", np.zeros((4, 6, 3)), np.array([[1, 1, 3, 2]]), 6, dataformats="HWC", labels=["cat"]
        )
        writer.add_video("clip", torch.rand(1, 3, 3, 8, 8), 7, fps=2)
        writer.add_audio("sound", torch.zeros(1, 80), 7, sample_rate=8000)
        vertices = torch.arange(24.0).reshape(2, 4, 3)
        writer.add_mesh("mesh", vertices, torch.full((2, 4, 3), 9, dtype=torch.uint8), global_step=7)
        writer.add_pr_curve("curve", np.array([0, 1, 1]), np.array([0.1, 0.9, 0.4]), 8)
    media = {record["name"]: record for record in lines_of(logs / "x") if record["event"] == "media"}
    assert {name: (record["kind"], record["global_step"], len(record["items"])) for name, record in media.items()} == {
        "picture": ("image", 5, 1), "grey": ("image", 5, 1), "batch": ("image", 6, 2), "boxes": ("image", 6, 1),
        "clip": ("video", 7, 1), "sound": ("audio", 7, 1), "mesh": ("points", 7, 2), "curve": ("pr_curve", 8, 1),
    }  # fmt: skip
    assert not [item for record in media.values() for item in record["items"] if "problem" in item]
    sizes = {
        (media[name]["items"][0]["width"], media[name]["items"][0]["height"]) for name in ("picture", "grey", "batch")
    }
    assert sizes == {(6, 4)}
    assert media["boxes"]["items"][0]["boxes"] == [{"x": 1, "y": 1, "width": 2, "height": 1, "label": "cat"}]
    assert [item["bounds"][0] for item in media["mesh"]["items"]] == [[0, 1, 2], [12, 13, 14]]
    assert media["mesh"]["items"][0]["columns"][3:] == ["red", "green", "blue"]
    assert events(logs / "x", "not_recorded") == []


def test_meshes_of_a_wrong_shape_are_counted(logs):
    with SummaryWriter("runs/x") as writer:
        writer.add_mesh("flat", torch.zeros(4, 3))
        writer.add_mesh("few", torch.zeros(2, 4, 3), colors=torch.zeros(1, 4, 3))
        writer.add_mesh("none", None)
    (counted,) = events(logs / "x", "not_recorded")
    assert counted["add_mesh"] == 3


def test_figure_is_closed(logs, monkeypatch):
    closed = []
    pyplot = type("Pyplot", (), {"close": staticmethod(closed.append)})
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", pyplot)
    with SummaryWriter("runs/x") as writer:
        writer.add_figure("a", "one figure", 0)
        writer.add_figure("b", ["two", "figures"], 0)
        writer.add_figure("c", "kept open", 0, close=False)
    assert closed == ["one figure", "two", "figures"]


def test_exception_fails_the_run(logs):
    with pytest.raises(RuntimeError), SummaryWriter("runs/x") as writer:
        writer.add_scalar("loss", 1.0, 0)
        raise RuntimeError("out of memory")
    history = tachograph.read(logs / "x")
    assert (str(history.state), history.latest("error")[0]["error_type"]) == ("failed", "RuntimeError")


@pytest.mark.parametrize("value", [object(), torch.zeros(3), None, "text", 10**400])
def test_wrong_values_do_not_raise(logs, value):
    with SummaryWriter("runs/x") as writer:
        writer.add_scalar("loss", value, 0)
        writer.add_scalar("loss", 1.0, "three")
        writer.add_scalar("loss", 2.0, 5)
    assert points(tachograph.read(logs / "x"), "loss")[-1] == (5, 2.0)


def test_threads_share_a_run(logs):
    def write(name):
        with SummaryWriter(f"runs/x/{name}") as writer:
            barrier.wait()
            for step in range(200):
                writer.add_scalar("loss", float(step), step)
            barrier.wait()

    with SummaryWriter("runs/x"):
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=write, args=(f"worker{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    history = tachograph.read(logs / "x")
    assert [history.metrics[f"worker{number}/loss"].count for number in range(4)] == [200] * 4


def test_program_that_never_closes_its_writer_is_finished(logs, script):
    source = """
        import sys
        from tachograph.tensorboard import SummaryWriter
        writer = SummaryWriter("runs/x")
        for step in range(100):
            writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_image("picture", None, 0)
        print(sorted(name for name in ("torch", "tensorboard", "numpy") if name in sys.modules))
        """
    out = script(source, env={"TACHO_CONSOLE": "false"}).ok()
    assert out == "[]\n"
    history = tachograph.read(logs / "x")
    assert (str(history.state), history.metrics["loss"].count) == ("finished", 100)
    assert events(logs / "x", "not_recorded")[0]["add_image"] == 1
