"""What a script logs with other trackers is recorded, and the trackers get exactly what they get without us."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tachograph import read
from tachograph.importers import read_log
from tests.integrations.zero_code.conftest import Tacho, program_stderr, without_leaks
from tests.mlflow_database import copy_empty_database

pytestmark = pytest.mark.xdist_group("injected-programs")

OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "SWANLAB_MODE": "offline",
    "TRACKIO_DIR": "trackio",
    "HF_HUB_OFFLINE": "1",
    "GIT_PYTHON_REFRESH": "quiet",
}

LOOP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(num_steps, after=lambda step, loss: None):
    for step in range(num_steps):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(step, loss)
"""


def run_both(tacho: Tacho, python: str, source: str, *arguments: str) -> Any:
    """Run a script with and without `tacho run`, each in its own folder; check that it prints the same."""
    source = textwrap.dedent(source)
    alone, watched = Tacho(tacho.folder / "alone"), Tacho(tacho.folder / "watched")
    for place in (alone, watched):
        place.write("train.py", source)
    without = alone.bare(python, "train.py", *arguments, env=OFFLINE, preload="torch")
    assert without.returncode == 0, without.stderr.decode()
    done = watched.run(python, "train.py", *arguments, env=OFFLINE)
    assert (done.returncode, done.stdout) == (0, without.stdout), done.stderr.decode()
    assert program_stderr(done.stderr) == without_leaks(without.stderr)
    return watched


def steps_of(tacho: Tacho, name: str) -> dict[str, list[tuple[int, Any]]]:
    """Return the values of each metric with their steps."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for record in tacho.records(name, "step"):
        for key, value in record.items():
            found.setdefault(key, []).append((record["global_step"], value))
    return found


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows = [record for record in read_log(path) if record["event"] == "step"]
    return [
        {key: value for key, value in row.items() if key not in {"time", "sec_per_step", "_runtime"}} for row in rows
    ]


def event_file_rows(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "events").glob("events.*")
    rows = [record for record in read_log(path) if record["event"] == "step"]
    return [{key: value for key, value in row.items() if key not in {"time", "sec_per_step"}} for row in rows]


def config_of(tacho: Tacho, name: str) -> dict[str, Any]:
    (start,) = tacho.records(name, "start")
    config = dict(start["config"])
    for record in tacho.records(name, "event"):
        if record["name"] == "config_changed":
            config |= record["config"]
    return config


def test_calls_are_recorded_and_unchanged(tacho, python):
    """With W&B and TensorBoard in one script."""
    watched = run_both(
        tacho,
        python,
        f"""
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float)
        parser.add_argument("--hub-token", default="hf_abcdefghijklmnopqrstuvwxyzABCDEFGH")
        arguments = parser.parse_args()
        import wandb
        {textwrap.indent(LOOP, " " * 8).strip()}
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("events")
        wandb.init(project="p", config={{**vars(arguments), "batch_size": 8}})
        wandb.log({{"eval": {{"loss": 3.0}}}})

        def log(step, loss):
            wandb.log({{"loss": loss, "ratio": step / 2, "weights": wandb.Histogram([1, 2, 3])}})
            writer.add_scalar("train/loss", loss, step)
            writer.add_scalars("rates", {{"a": 1.0, "b": step}}, step)

        train(20, log)
        writer.add_text("note", "all good", 2)
        writer.add_histogram("layer", model.weight, 19)
        writer.add_graph(model, torch.zeros(1, 4))
        writer.add_hparams({{"depth": 2}}, {{"score": 0.75}}, run_name="hparams")
        writer.close()
        wandb.config.warmup = 5
        wandb.summary["best"] = 0.5
        try:
            wandb.log("not a dict")
        except (TypeError, ValueError) as error:
            print(type(error).__name__, error)
        print(model.weight.sum().item())
        wandb.finish()
        """,
        "--lr",
        "0.5",
    )
    alone = tacho.folder / "alone"
    assert wandb_rows(watched.folder) == wandb_rows(alone) != []
    assert event_file_rows(watched.folder) == event_file_rows(alone) != []
    found = steps_of(watched, "train")
    assert found["eval/loss"] == [(0, 3.0)]
    assert found["ratio"] == [(step, step / 2) for step in range(20)]
    assert found["rates/b"] == [(step, step) for step in range(20)]
    assert "score" not in found, "add_hparams calls add_scalar, which is part of it"
    assert [step for step, _ in found["loss"]] == list(range(20))
    assert dict(found["loss"]) == dict(found["train/loss"]) == pytest.approx(dict(found["train_loss"]))
    config = config_of(watched, "train")
    assert config.pop("hub_token").startswith("[masked")
    assert config == {"lr": 0.5, "batch_size": 8, "warmup": 5, "depth": 2}
    events = watched.records("train", "event")
    assert [event["summary"] for event in events if event["name"] == "summary"] == [{"score": 0.75}, {"best": 0.5}]
    (note,) = [event for event in events if event["name"] == "text"]
    assert (note["tag"], note["text"]) == ("note", "all good")
    histograms = {event["tag"]: event for event in events if event["name"] == "histogram"}
    assert {tag: (sum(one["counts"]), one["global_step"]) for tag, one in histograms.items()} == {
        "weights": (3, 19),
        "layer": (4, 19),
    }
    (left_out,) = [event for event in events if event["name"] == "not_recorded"]
    assert left_out["tensorboard.add_graph"] == 1


def test_media_logged_after_training_keep_the_steps_of_the_script(tacho, python):
    """None hides another one: the step of the run is the same for all."""
    source = f"""
        {textwrap.indent(LOOP, " " * 8).strip()}
        import numpy as np
        import wandb
        from torch.utils.tensorboard import SummaryWriter
        wandb.init(project="p", name="facade")
        writer = SummaryWriter("events")
        train(10)
        writer.add_image("at_end", np.zeros((3, 4, 4)), 10)
        for i in range(5):
            writer.add_image("final", np.full((3, 4, 4), i / 5), i)
            writer.add_images("batch", np.full((2, 3, 4, 4), i / 5), i)
            writer.add_text("note", f"text {{i}}", i)
            wandb.log({{"table": wandb.Table(columns=["a"], data=[[i]])}}, step=i + 3)
        train(1)
        writer.add_image("final", np.zeros((3, 4, 4)), 5)
        writer.close()
        wandb.finish()
        """
    tacho.write("train.py", source)
    tacho.write("facade.py", source)
    assert tacho.run(python, "train.py", env=OFFLINE).returncode == 0
    assert tacho.run(python, "facade.py", env=OFFLINE, options=("--as", "wandb")).returncode == 0
    media = read(tacho.folder / "logs" / "train").media

    def places(name: str, tool: str) -> list[Any]:
        return [(item.step, item.index, item.prompt_id, item.meta[f"{tool}_step"]) for item in media.items(name)]

    assert places("final", "tensorboard") == [(9, i, str(i), i) for i in range(5)] + [(10, 0, "0", 5)]
    assert places("batch", "tensorboard") == [(9, i, str(i), i // 2) for i in range(10)]
    assert places("note", "tensorboard") == [(9, i, str(i), i) for i in range(5)]
    assert [item.fields["text"] for item in media.items("note")] == [f"text {i}" for i in range(5)]
    assert places("table", "wandb") == [(9, i, str(i), i + 3) for i in range(5)]
    assert [item.rows() for item in media.items("table")] == [[{"a": i}] for i in range(5)]
    assert [(item.step, item.meta) for item in media.items("at_end")] == [(10, {"prompt_id": 0})]
    media = read(tacho.folder / "logs" / "facade").media
    assert places("final", "tensorboard") == [(9, i, str(i), i) for i in range(5)] + [(10, 0, "0", 5)]


def test_media_of_trackers_is_recorded(tacho, python):
    """With pictures and files of their own as without us, and before, in and after an observed loop."""
    watched = run_both(
        tacho,
        python,
        f"""
        {textwrap.indent(LOOP, " " * 8).strip()}
        import numpy as np
        import wandb
        from PIL import Image
        from torch.utils.tensorboard import SummaryWriter
        wandb.init(project="p")
        writer = SummaryWriter("events")
        early = torch.zeros(3, 4, 4)
        writer.add_image("early", early, 0)
        early += 1

        def log(step, loss):
            pictures = [wandb.Image(np.full((4, 4, 3), 50 * step, np.uint8), caption=str(step)) for _ in range(2)]
            wandb.log({{"samples": pictures, "loss": loss}})

        train(2, log)
        mask = {{"p": {{"mask_data": np.ones((4, 4), np.uint8), "class_labels": {{1: "fox"}}}}}}
        masked = wandb.Image(Image.new("RGB", (4, 4)), masks=mask)
        table = wandb.Table(columns=["a", "picture"], data=[[1, masked], [2, None]])
        wandb.log({{"page": wandb.Html("<b>x</b>"), "table": table, "masked": masked}})
        scan = np.array([[0, 1, 2], [3, 4, 5.0]])
        wandb.log({{"scan": wandb.Object3D(scan), "lidar": wandb.Object3D({{"type": "lidar/beta", "points": scan}})}})
        open("m.pdb", "w").write("HEADER")
        wandb.log({{"molecule": wandb.Molecule("m.pdb")}})
        writer.add_mesh("mesh", torch.ones(1, 4, 3), global_step=2)
        writer.add_images("batch", np.zeros((2, 4, 4, 3), np.uint8), 1, dataformats="NHWC")
        writer.add_audio("sound", torch.zeros(1, 100), 1, sample_rate=8000)
        writer.close()
        wandb.finish()
        print("done")
        """,
    )
    assert len(wandb_rows(watched.folder)) == len(wandb_rows(tacho.folder / "alone")) != 0
    assert not watched.records("train", "telemetry_error")
    media: dict[str, list[Any]] = {}
    for record in watched.records("train", "media"):
        media.setdefault(record["name"], []).append((record["global_step"], record["kind"], record["items"]))
    assert set(media) == {"early", "samples", "page", "table", "masked", "batch", "sound", "scan", "lidar", "mesh"}
    assert [(step, [item["caption"] for item in items]) for step, _, items in media["samples"]] == [
        (0, ["0", "0"]),
        (1, ["1", "1"]),
    ]
    (_, _, (early,)) = media["early"][0]
    (folder,) = (path for path in (watched.folder / "logs").iterdir() if path.is_dir() and path.name == "train")
    from PIL import Image

    picture = Image.open(folder / "media" / early["sha256"][:2] / f"{early['sha256']}.{early['ext']}")
    assert picture.convert("RGB").getpixel((0, 0)) == (0, 0, 0)
    assert {name: (kind, len(items)) for name, ((_, kind, items), *_) in media.items()} == {
        "early": ("image", 1),
        "samples": ("image", 2),
        "page": ("html", 1),
        "table": ("table", 1),
        "masked": ("image", 1),
        "batch": ("image", 2),
        "sound": ("audio", 1),
        "scan": ("points", 1),
        "lidar": ("points", 1),
        "mesh": ("points", 1),
    }
    for name in ("scan", "lidar"):
        assert media[name][0][2][0]["bounds"] == [[0, 1, 2], [3, 4, 5]]
    assert media["mesh"][0][0] == 2 and media["mesh"][0][2][0]["num_points"] == 4
    assert media["masked"][0][2][0]["masks"]["p"]["labels"] == {"1": "fox"}
    assert [row["a"] for row in media["table"][0][2][0]["rows"]] == [1, 2]
    assert media["table"][0][2][0]["rows"][0]["picture"]["media"] == "image"
    (left_out,) = [event for event in watched.records("train", "event") if event["name"] == "not_recorded"]
    assert left_out["wandb.Molecule"] == 1


@pytest.mark.parametrize(
    ("tool", "source"),
    [
        (
            "wandb",
            "import wandb as tool; run = tool.init(project='p', config={'depth': 2}); log, end = run.log, run.finish",
        ),
        (
            "trackio",
            "import trackio as tool; tool.init(project='p', config={'depth': 2}); log, end = tool.log, tool.finish",
        ),
        (
            "swanlab",
            "import swanlab as tool; tool.init(project='p', config={'depth': 2}); log, end = tool.log, tool.finish",
        ),
        (
            "mlflow",
            "import mlflow as tool; tool.set_tracking_uri('sqlite:///store.db'); tool.start_run(); "
            "tool.log_params({'depth': 2}); log, end = tool.log_metrics, tool.end_run",
        ),
    ],
    ids=["wandb", "trackio", "swanlab", "mlflow"],
)
def test_program_that_only_logs_is_a_run(tacho, python, tool, source):
    pytest.importorskip(tool)
    if tool == "mlflow":
        copy_empty_database(tacho.folder / "store.db")
    tacho.write("train.py", f"{source}\nfor step in range(30):\n    log({{'score': step / 4}}, step=step)\nend()\n")
    done = tacho.run(python, "train.py", env=OFFLINE)
    assert done.returncode == 0, done.stderr.decode()
    assert tacho.runs() == ["train"]
    assert steps_of(tacho, "train")["score"] == [(step, step / 4) for step in range(30)]
    assert config_of(tacho, "train") == {"depth": 2}
    (how,) = [record for record in tacho.records("train", "event") if record["name"] == "instrumented"]
    assert (how["framework"], how["method"]) == (tool, "tracker")
    assert [record["status"] for record in tacho.records("train", "end")][-1] == "finished"


def test_steps_on_another_axis_are_kept_beside_ours(tacho, python):
    tacho.write(
        "train.py",
        f"""
        {textwrap.indent(LOOP, " " * 8).strip()}
        import wandb
        wandb.init(project="p")
        for epoch in range(100, 103):
            train(5)
            wandb.log({{"accuracy": epoch / 1000, "train_loss": float(epoch)}}, step=epoch)
        """,
    )
    assert tacho.run(python, "train.py", env=OFFLINE).returncode == 0
    found = steps_of(tacho, "train")
    assert found["accuracy"] == [(4, 0.1), (9, 0.101), (14, 0.102)]
    assert found["wandb_step"] == [(4, 100), (9, 101), (14, 102)]
    assert [value for _, value in found["train_loss"]][-2:] == [101.0, 102.0], "not logged twice under one name"
    assert len(found["lr"]) == 15


def test_trainer_calls_are_recorded_once(tacho, python):
    """The callback records what a trainer logs; what a callback of the script logs is recorded as well."""
    pytest.importorskip("transformers")
    tacho.write(
        "train.py",
        """
        import torch
        from torch.utils.tensorboard import SummaryWriter
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

        writer = SummaryWriter("mine")

        class Mine(TrainerCallback):
            def on_step_end(self, args, state, control, **more):
                writer.add_scalar("mine/value", state.global_step / 2, state.global_step)

        config = LlamaConfig(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                             num_attention_heads=1, num_key_value_heads=1)
        rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
        arguments = TrainingArguments("out", max_steps=3, logging_steps=1, report_to=["tensorboard"], use_cpu=True,
                                      save_strategy="no", per_device_train_batch_size=2, disable_tqdm=True)
        Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, callbacks=[Mine()]).train()
        """,
    )
    done = tacho.run(python, "train.py", env=OFFLINE)
    assert done.returncode == 0, done.stderr.decode()
    found = steps_of(tacho, "train")
    assert found["mine/value"] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert "train/loss" not in found and len(found["train_loss"]) == 3


def test_few_rows_without_training_are_recorded(tacho, python):
    tacho.write(
        "evaluate.py",
        """
        import argparse, torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--split", default="test")
        parser.parse_args()
        from torch.utils.tensorboard import SummaryWriter
        SummaryWriter("events").add_scalar("accuracy", 0.5, 7)
        """,
    )
    assert tacho.run(python, "evaluate.py", env=OFFLINE).returncode == 0
    assert steps_of(tacho, "evaluate")["accuracy"] == [(7, 0.5)]
    assert config_of(tacho, "evaluate") == {"split": "test"}


def test_calls_without_numbers_do_not_wait_forever(tacho, python):
    tacho.write(
        "notes.py",
        """
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("events")
        for number in range(30):
            writer.add_text("note", str(number), number)
        """,
    )
    assert tacho.run(python, "notes.py", env=OFFLINE).returncode == 0
    texts = [event["text"] for event in tacho.records("notes", "event") if event["name"] == "text"]
    assert texts == [str(number) for number in range(30)]


def test_run_of_the_script_is_left_alone(tacho, python):
    tacho.write(
        "train.py",
        """
        import tachograph as tacho, wandb
        wandb.init(project="p")
        with tacho.init("mine", console=False) as run:
            run.log({"loss": 1.0}, step=0)
            wandb.log({"loss": 1.0, "other": 2.0})
        """,
    )
    assert tacho.run(python, "train.py", env=OFFLINE).returncode == 0
    assert tacho.runs() == ["mine"]
    assert "other" not in steps_of(tacho, "mine")


def test_stand_in_replaces_the_package(tacho, python):
    tacho.write(
        "train.py",
        """
        import wandb
        from wandb.sdk.wandb_run import Run
        import wandb.plot
        assert wandb.__spec__.name == "tachograph.wandb", wandb.__spec__
        with wandb.init(project="p", name="greyjacket", config={"depth": 2}) as run:
            for step in range(3):
                wandb.log({"loss": 1 / (step + 1)})
        try:
            import wandb.nowhere
        except ModuleNotFoundError as error:
            print(error.name)
        """,
    )
    done = tacho.run(python, "train.py", options=("--as", "wandb"), env=OFFLINE)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"wandb.nowhere"), done.stderr.decode()
    assert tacho.runs() == ["greyjacket"]
    assert not (tacho.folder / "wandb").exists()
    assert [step for step, _ in steps_of(tacho, "greyjacket")["loss"]] == [0, 1, 2]


def test_writers_are_recorded_into_the_runs_of_the_stand_in(tacho, python):
    """With and without `sync_tensorboard`, each value once; the arguments of the script are part of the config."""
    tacho.write(
        "train.py",
        f"""
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--depth", type=int, default=3)
        parser.parse_args()
        {textwrap.indent(LOOP, " " * 8).strip()}
        import wandb
        for name, is_synced in (("synced", True), ("plain", False)):
            run = wandb.init(project="p", name=name, config={{"lr": 0.1}}, sync_tensorboard=is_synced)
            from torch.utils.tensorboard import SummaryWriter
            writer = SummaryWriter("events")

            def log(step, loss):
                writer.add_scalar("charts/value", step / 2, step)
                writer.add_scalars("rates", {{"a": step, "b": 1.0}}, step)

            train(5, log)
            writer.add_text("note", "all good", 4)
            writer.close()
            run.finish()
        """,
    )
    done = tacho.run(python, "train.py", options=("--as", "wandb"), env=OFFLINE)
    assert done.returncode == 0, done.stderr.decode()
    assert tacho.runs() == ["plain", "synced"]
    for name in ("plain", "synced"):
        recorded = steps_of(tacho, name)
        assert [value for _, value in recorded["charts/value"]] == [step / 2 for step in range(5)]
        assert [value for _, value in recorded["rates/a"]] == list(range(5))
        texts = [event["text"] for event in tacho.records(name, "event") if event["name"] == "text"]
        assert texts == ["all good"]
        assert config_of(tacho, name) == {"lr": 0.1, "depth": 3}


def test_loop_is_observed_beside_the_stand_in(tacho, python):
    """Losses, steps and pace are those of the loop, and a row of the script is at the iteration that logged it."""
    tacho.write(
        "train.py",
        f"""
        {textwrap.indent(LOOP, " " * 8).strip()}
        import wandb
        wandb.init(project="p", name="rare")
        for iteration in range(0, 9, 4):  # a row at the start, then after each four steps
            wandb.log({{"iter": iteration, "lr": 0.5}})
            train(4)
        wandb.log({{"late": 1.0}}, step=1000)
        wandb.finish()
        wandb.init(project="p", name="each")
        for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=8):
            loss = model(batch).square().mean()
            wandb.log({{"train_loss": loss.item(), "lr": 0.1}})
            loss.backward()
            optimizer.step()
        wandb.log({{"after": 1.0}})
        """,
    )
    done = tacho.run(python, "train.py", options=("--as", "wandb"), env=OFFLINE)
    assert done.returncode == 0, done.stderr.decode()
    found = steps_of(tacho, "rare")
    assert [step for step, _ in found["train_loss"]] == list(range(12))
    assert found["iter"] == [(0, 0), (3, 4), (7, 8)]
    assert (found["late"], found["wandb_step"]) == ([(11, 1.0)], [(11, 1000)])
    assert len(found["lr"]) == 3, "the script logs it itself"
    rows = tacho.records("rare", "step")
    assert not any("sec_per_step" in row for row in rows if "iter" in row)
    assert [row["global_step"] for row in rows if "sec_per_step" in row and "train_loss" in row] == list(range(1, 12))
    found = steps_of(tacho, "each")
    assert [step for step, _ in found["train_loss"]] == list(range(5)), "logged before the step of the optimizer"
    assert [step for step, _ in found["after"]] == [4]
    paced = [row["global_step"] for row in tacho.records("each", "step") if "sec_per_step" in row]
    assert paced == [1, 2, 3, 4], "logged for the script, which logs all values itself"


FRAMEWORKS = {
    "transformers": """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
        config = LlamaConfig(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                             num_attention_heads=1, num_key_value_heads=1)
        rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
        arguments = TrainingArguments("out", max_steps=4, logging_steps=1, report_to=["wandb"], use_cpu=True,
                                      eval_strategy="steps", eval_steps=2, save_strategy="no",
                                      per_device_train_batch_size=2, run_name="theirs")
        trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, eval_dataset=rows[:2])
        trainer.train()
        trainer.evaluate()
        """,
    "lightning": """
        import torch, lightning
        from lightning.pytorch.loggers import WandbLogger

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch, index):
                loss = self.layer(batch).square().mean()
                self.log("loss", loss)
                return loss

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        trainer = lightning.Trainer(max_epochs=1, logger=WandbLogger(project="p", name="theirs"), log_every_n_steps=2,
                                    enable_checkpointing=False, accelerator="cpu",
                                    callbacks=[lightning.pytorch.callbacks.LearningRateMonitor()])
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=2))
        print(sorted(trainer.logger.experiment.summary.keys()))
        """,
    "accelerate": """
        from accelerate import Accelerator
        accelerator = Accelerator(log_with="wandb", cpu=True)
        accelerator.init_trackers("p", config={"lr": 0.1}, init_kwargs={"wandb": {"name": "theirs"}})
        for step in range(3):
            accelerator.log({"loss": 1 / (step + 1)}, step=step)
        accelerator.end_training()
        """,
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_loggers_of_frameworks_accept_the_stand_in(tacho, python, framework):
    """They ask for the version of the package first. A folder named wandb is no obstacle.

    Rows have the steps of the trainer.
    """
    pytest.importorskip(framework)
    (tacho.folder / "wandb").mkdir()
    tacho.write("train.py", FRAMEWORKS[framework])
    done = tacho.run(python, "train.py", options=("--as", "wandb"), env=OFFLINE)
    assert done.returncode == 0, done.stderr.decode()
    assert tacho.runs() == ["theirs"]
    found = {name: [step for step, _ in values] for name, values in steps_of(tacho, "theirs").items()}
    if framework == "transformers":
        assert (found["train/loss"], found["eval/loss"]) == ([1, 2, 3, 4], [2, 4, 4])
    elif framework == "lightning":
        assert (found["loss"], found["lr-SGD"]) == ([1, 3, 5], [0, 1, 3, 5]), "once, as without the stand-in"
        assert b"'loss'" in done.stdout, "W&B's summary has it, too"
    else:
        assert found["loss"] == [0, 1, 2]
    assert not list((tacho.folder / "wandb").iterdir())
