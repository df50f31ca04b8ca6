"""The callback, with a real Hugging Face `Trainer` and a model of a few thousand parameters."""

from __future__ import annotations

import json
import math
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import tachograph as tacho
from tachograph.catalog import Catalog
from tachograph.exceptions import LogDirError, TachographError
from tachograph.reader import parents_of, read, request_control
from tests.conftest import lines_of, wait_for

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tachograph.integrations.transformers import TachographCallback  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("transformers"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Sequences(torch.utils.data.Dataset):
    def __init__(self, num_samples: int = 96) -> None:
        first = torch.randint(0, 32, (num_samples, 1), generator=torch.Generator().manual_seed(0))
        self.tokens = (first + torch.arange(8)) % 32

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def trainer_in(folder: Path, *callbacks: Any, model: Any = None, **arguments: Any) -> Any:
    chosen = {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        **arguments,
    }
    return transformers.Trainer(
        model if model is not None else tiny_model(),
        transformers.TrainingArguments(output_dir=str(folder / "out"), **chosen),
        train_dataset=Sequences(),
        eval_dataset=Sequences(8),
        callbacks=list(callbacks),
    )


def callback_into(logs: Path, name: str | None = "hf", **settings: Any) -> TachographCallback:
    quiet = {"console": False, "system_interval_s": 0, "git": False, **settings}
    return TachographCallback(name, log_dir=str(logs), **quiet)


def named(records: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get("name") == name]


def test_training_records_steps_spans_and_checkpoints(tmp_path, logs):
    callback = callback_into(logs)
    trainer = trainer_in(
        tmp_path,
        callback,
        gradient_accumulation_steps=3,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
    )
    trainer.train()
    callback.finish()
    history = read("hf", logs)
    assert history.state == "finished"
    steps, losses, *_ = history.series("train_loss")
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert list(steps) == [2, 4, 6, 8] == [entry["step"] for entry in logged]
    assert list(losses) == [entry["loss"] for entry in logged] == list(history.series("loss").values)
    assert list(history.series("lr").values) == [entry["learning_rate"] for entry in logged]
    assert list(history.series("grad_norm").values) == [entry["grad_norm"] for entry in logged]
    assert (history.series("samples_per_sec").values > 0).all()
    evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert list(history.series("eval_loss").values) == list(history.series("val_loss").values) == evaluated
    # Three batches form one optimizer step.
    update = named(lines_of(logs / "hf"), "training_metrics_update")[-1]
    assert (update["current_iteration"], update["num_iterations"], update["avg_batch_size"]) == (7, 8, 12)
    assert all(update[f"avg_{phase}_time_sec"] > 0 for phase in ("forward", "backward"))
    spans = [(span.name, span.parent_id is not None) for span in history.spans()]
    assert spans.count(("training_loop", True)) == spans.count(("trainer_initialization", True)) == 1
    assert spans.count(("validation_loop", True)) == 2
    assert spans.count(("checkpoint_save_sync", True)) == 2
    assert {span.status for span in history.spans()} == {"ok"}
    saved = history.latest("event", "save_checkpoint_success")
    assert [record["current_iteration"] for record in saved] == [4, 8]
    assert len(history.latest("event", "training_summary")) == 1
    assert [record["epoch"] for record in history.latest("epoch")] == [1]
    assert history.num_lost_records == 0 and not history.latest("telemetry_error")


def test_training_restores_accelerator_and_can_be_repeated(tmp_path, logs):
    callback = callback_into(logs)
    trainer = trainer_in(tmp_path, callback, max_steps=2)
    for _ in range(2):
        trainer.train()
        assert "backward" not in vars(trainer.accelerator)
    callback.finish()
    for name in ("hf", "hf-2"):
        update = named(lines_of(logs / name), "training_metrics_update")[-1]
        assert all(update[f"avg_{phase}_time_sec"] > 0 for phase in ("forward", "backward"))


def test_config_is_recorded(tmp_path, logs):
    callback = callback_into(logs)
    trainer_in(tmp_path, callback, learning_rate=3e-4, max_steps=2, hub_token="hf_abcdefghijklmnopqrstuvwxyz").train()
    callback.finish()
    start = lines_of(logs / "hf")[0]
    known = {name: start[name] for name in ("batch_size", "learning_rate", "max_steps", "scheduler", "trainer")}
    assert known == {
        "batch_size": 4,
        "learning_rate": 3e-4,
        "max_steps": 2,
        "scheduler": "linear",
        "trainer": "Trainer",
    }
    assert start["total_params"] == start["trainable_params"] == sum(p.numel() for p in tiny_model().parameters())
    assert start["config"]["training_arguments"]["per_device_train_batch_size"] == 4
    assert start["config"]["model"]["hidden_size"] == 16
    assert "abcdefghij" not in json.dumps(start)


def test_lora_config_is_recorded(tmp_path, logs):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        tiny_model(), peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    )
    callback = callback_into(logs)
    trainer_in(tmp_path, callback, model=model, max_steps=2).train()
    callback.finish()
    start = lines_of(logs / "hf")[0]
    lora = {name: start[f"lora_{name}"] for name in ("type", "rank", "alpha", "dropout", "target_modules")}
    assert lora == {"type": "lora", "rank": 4, "alpha": 8, "dropout": 0.1, "target_modules": ["q_proj", "v_proj"]}
    assert 0 < start["trainable_params"] < start["total_params"]
    assert start["config"]["peft"]["default"]["r"] == 4


def test_weights_are_bit_identical(tmp_path, logs):
    def weights(*callbacks: Any) -> bytes:
        trainer = trainer_in(tmp_path, *callbacks, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3)
        trainer.train()
        numbers = b"".join(weight.detach().numpy().tobytes() for weight in trainer.model.parameters())
        return numbers + torch.get_rng_state().numpy().tobytes()

    bare = weights()
    callback = callback_into(logs)
    assert weights(callback) == bare
    callback.finish()


def test_resumed_training_continues_its_run(tmp_path, logs):
    saving = {"save_strategy": "steps", "save_steps": 4, "logging_steps": 1}
    first = callback_into(logs, "resumed")
    trainer_in(tmp_path, first, max_steps=6, **saving).train()
    first.finish()
    # Neither the name nor the log folder is given again: the checkpoint contains both.
    second = TachographCallback(console=False, system_interval_s=0, git=False)
    trainer = trainer_in(tmp_path, second, max_steps=10, **saving)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    second.finish()
    history = read("resumed", logs)
    losses = history.series("train_loss")
    assert [list(losses.steps[losses.attempts == attempt]) for attempt in (0, 1)] == [[*range(1, 7)], [*range(5, 11)]]
    assert list(history.series("train_loss", overlap="latest").steps) == list(range(1, 11))
    assert [span.name for span in history.spans()].count("checkpoint_load") == 1
    assert [path.name for path in logs.iterdir()] == ["resumed"]
    assert parents_of(history) == []  # the same run


def test_other_run_of_same_name_is_not_resumed(tmp_path, logs):
    saving = {"save_strategy": "steps", "save_steps": 2}
    first = callback_into(logs)
    trainer_in(tmp_path, first, max_steps=2, **saving).train()
    first.finish()
    (logs / "hf").rename(logs / "older")
    with tacho.init("hf", log_dir=str(logs), console=False):
        pass
    second = callback_into(logs)
    trainer_in(tmp_path, second, max_steps=4, **saving).train(resume_from_checkpoint=True)
    second.finish()
    assert sorted(path.name for path in logs.iterdir()) == ["hf", "hf-2", "older"]
    assert len(read("hf", logs).attempts) == 1
    assert [(each.run_name, each.global_step, each.how) for each in parents_of(read("hf-2", logs))] == [
        ("hf", 2, "resume")
    ]


def test_model_of_another_run_is_its_parent(tmp_path, logs):
    first = callback_into(logs, "pretrained")
    trainer_in(tmp_path, first, max_steps=2, save_strategy="steps", save_steps=2).train()
    first.finish()
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint-2")
    second = callback_into(logs, "tuned")
    trainer_in(tmp_path, second, model=model, max_steps=2).train()
    second.finish()
    (parent,) = parents_of(read("tuned", logs))
    assert (parent.run_name, parent.run_id, parent.how) == ("pretrained", first.run.id, "finetune")
    assert parents_of(read("pretrained", logs)) == []


def test_checkpoint_without_run_file_can_be_resumed(tmp_path, logs):
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer_in(tmp_path, max_steps=2, **saving).train()
    callback = callback_into(logs)
    trainer_in(tmp_path, callback, max_steps=4, **saving).train(resume_from_checkpoint=True)
    callback.finish()
    assert [attempt.last_step for attempt in read("hf", logs).attempts] == [4]


class SendsRequest(transformers.TrainerCallback):
    """Sends a control request at a step, and waits for its acknowledgement."""

    def __init__(self, run: str, logs: Path, at_step: int, **values: Any) -> None:
        self.run, self.logs, self.at_step, self.values = run, logs, at_step, values

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.at_step:
            history = read(self.run, self.logs)
            ids = set(request_control(history, self.values, source="test").values())

            def is_acknowledged() -> bool:
                history.refresh()
                return ids <= {record["id"] for record in history.latest("event", "control_ack")}

            wait_for(is_acknowledged, what="the answer")


def test_control_requests_are_applied(tmp_path, logs):
    settings = {"control_interval_s": 0.05, "flush_interval_s": 0.05, "control_gap_s": 0}
    callback = callback_into(logs, **settings)
    trainer = trainer_in(
        tmp_path,
        callback,
        SendsRequest("hf", logs, 3, checkpoint_now=True),
        SendsRequest("hf", logs, 5, log_every=10),
        SendsRequest("hf", logs, 31, stop=True),
        max_steps=100,
    )
    trainer.train()
    callback.finish()
    assert trainer.state.global_step == 32
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-4"]
    assert list(read("hf", logs).series("train_loss").steps) == [2, 4, 6, 10, 20, 30]


def test_report_to_tachograph(tmp_path, logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    monkeypatch.setenv("TACHO_CONSOLE", "0")
    trainer = trainer_in(tmp_path, max_steps=2, report_to=["tachograph"], run_name="from arguments")
    trainer.train()
    next(one for one in trainer.callback_handler.callbacks if isinstance(one, TachographCallback)).finish()
    assert read("from-arguments", logs).state == "finished"


def test_current_run_is_used_and_left_open(tmp_path, logs):
    with tacho.init("mine", log_dir=str(logs), console=False, system_interval_s=0) as run:
        callback = TachographCallback()
        trainer_in(tmp_path, callback, max_steps=4).train()
        assert callback.run is run
        callback.finish()
        assert run.status == "running"
    history = read("mine", logs)
    assert list(history.series("train_loss").steps) == [2, 4]
    assert history.latest("event", "instrumented")[0]["total_params"] > 0
    assert [span.name for span in history.spans()] == ["trainer_initialization", "training_loop"]


def test_spans_and_config_of_a_framework_are_added(tmp_path, logs):
    """As a framework adds them that creates the trainer itself, into a run of its own or of the user."""
    for name in ("own", "open"):
        run = tacho.init("open", log_dir=str(logs), console=False, system_interval_s=0) if name == "open" else None
        callback = callback_into(logs, "own") if run is None else TachographCallback()
        callback.extra_config = {"sequence_len": 64, "api_key": "hunter2-hunter2"}
        callback.extra_facts = {"framework_version": "7"}
        now_s = time.perf_counter()
        callback.add_span(tacho.timed_span("before"), now_s - 2, now_s - 1)
        trainer_in(tmp_path, callback, max_steps=2).train()
        callback.add_span(tacho.timed_span("after"), now_s, time.perf_counter())
        callback.finish()
        if run is not None:
            run.finish()
        records = lines_of(logs / name)
        (before,) = named(records, "before")
        assert before["duration_s"] == pytest.approx(1)
        assert len(named(records, "after")) == 1
        where = records[0] if run is None else named(records, "config_changed")[0]
        assert where["config"]["sequence_len"] == 64
        assert "hunter2" not in str(records)
        assert (records[0] if run is None else named(records, "instrumented")[0])["framework_version"] == "7"


def test_evaluate_and_predict_without_training(tmp_path, logs):
    callback = callback_into(logs)
    trainer = trainer_in(tmp_path, callback)
    metrics = trainer.evaluate()
    trainer.predict(Sequences(8))
    callback.finish()
    history = read("hf", logs)
    assert [span.name for span in history.spans()] == ["application", "validation_loop", "testing_loop"]
    assert list(history.series("val_loss").values) == [metrics["eval_loss"]]
    assert history.counts["test"] == 1 and "test_loss" in history.metrics


def test_each_trainer_gets_its_own_run(tmp_path, logs):
    first, second = callback_into(logs, "a"), callback_into(logs, "b")
    trainer_in(tmp_path, first, max_steps=2).train()
    trainer_in(tmp_path, second, max_steps=3).train()
    assert first.run is not None and first.run.status == "finished"
    second.finish()
    updates = [read(name, logs).latest("event", "training_metrics_update")[-1] for name in "ab"]
    assert [update["num_iterations"] for update in updates] == [2, 3]


def test_checkpoint_identifies_run_among_same_names(tmp_path, logs):
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    for folder in ("one", "two"):
        callback = callback_into(logs, "exp")
        trainer_in(tmp_path / folder, callback, **saving).train()
        callback.finish()
    callback = callback_into(logs, "exp")
    trainer_in(tmp_path / "two", callback, **{**saving, "max_steps": 4}).train(resume_from_checkpoint=True)
    callback.finish()
    assert [len(read(name, logs).attempts) for name in ("exp", "exp-2")] == [1, 2]
    content = json.loads((tmp_path / "two" / "out" / "checkpoint-4" / "tachograph.json").read_text())
    assert content["run_name"] == "exp-2"
    assert not Path(content["log_dir"]).is_absolute()


def test_invalid_run_file_is_ignored(tmp_path, logs):
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer_in(tmp_path, max_steps=2, **saving).train()
    (tmp_path / "out" / "checkpoint-2" / "tachograph.json").write_text('{"run_name": "team/exp", "run_id": 7}')
    callback = callback_into(logs)
    trainer_in(tmp_path, callback, max_steps=4, **saving).train(resume_from_checkpoint=True)
    callback.finish()
    assert read("hf", logs).state == "finished"


def test_evaluation_by_another_trainer_uses_same_run(tmp_path, logs):
    class Evaluates(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                trainer_in(tmp_path / "other", callback_into(logs, "other")).evaluate()

    callback = callback_into(logs)
    trainer_in(tmp_path, callback, Evaluates(), max_steps=6).train()
    callback.finish()
    assert [path.name for path in logs.iterdir()] == ["hf"]
    assert list(read("hf", logs).series("train_loss").steps) == [2, 4, 6]


def test_run_finished_by_user_stays_finished(tmp_path, logs):
    class Ends(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                callback.finish()

    callback = callback_into(logs)
    trainer_in(tmp_path, callback, Ends(), max_steps=6, eval_strategy="steps", eval_steps=2).train()
    assert read("hf", logs).counts["start"] == read("hf", logs).counts["end"] == 1


def test_training_again_starts_another_run(tmp_path, logs):
    callback = callback_into(logs)
    trainer = trainer_in(tmp_path, callback, max_steps=2)
    trainer.train()
    trainer.train()
    callback.finish()
    assert sorted(path.name for path in logs.iterdir()) == ["hf", "hf-2"]


def test_invalid_options_raise_at_construction():
    for wrong, what in (
        ({"log_evry": 3}, "unknown setting 'log_evry'.*log_every"),
        ({"completions_every": 0}, "completions_every: expected `int` >= 1, got 0"),
        ({"run": "mine"}, r"run='mine': .*\bRun\b"),
        ({"log_every": "often"}, "log_every: expected `int`, got 'often'"),
        ({"name": "a/b"}, "run name 'a/b' has a path separator"),
    ):
        with pytest.raises(TachographError, match=what):
            TachographCallback(**wrong)


def test_unwritable_folder_raises_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    trainer = trainer_in(tmp_path, callback_into(tmp_path / "file" / "logs"))
    with pytest.raises(LogDirError, match="cannot write the log folder"):
        trainer.train()
    assert trainer.state.global_step == 0


TRAIN = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import torch
    torch.set_num_threads(1)
    from pathlib import Path
    from tests.integrations.test_transformers import *
    folder = Path(sys.argv[2])
"""


@pytest.fixture
def start(script, tmp_path):
    """Return a function that starts a program with the names of this module."""

    def start(source: str, **options: Any) -> Any:
        source = textwrap.dedent(TRAIN) + textwrap.dedent(source)
        return script(source, Path(__file__).parents[2], tmp_path, preload="frameworks", **options)

    return start


def test_exception_in_training_fails_the_run(start, logs):
    code, _, err = start(
        """
        class Breaks(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 3:
                    raise RuntimeError("out of luck")

        trainer_in(folder, Breaks(), callback_into(folder / "logs")).train()
        """,
    ).wait()
    assert code == 1, err
    history = read("hf", logs)
    assert history.state == "failed"
    assert history.attempts[-1].end["reason"] == "RuntimeError"
    assert "out of luck" in history.latest("error")[-1]["traceback"]


def test_two_ranks_stop_at_the_same_step(start, ranks, tmp_path, logs):
    source = """
        import os
        callback = callback_into(folder / "logs", control_interval_s=0.05, flush_interval_s=0.05, control_gap_s=0)
        logs = folder / "logs"
        requests = [SendsRequest("hf", logs, 4, log_every=15), SendsRequest("hf", logs, 40, stop=True)]
        trainer = trainer_in(folder, callback, *(requests if os.environ["RANK"] == "0" else []), max_steps=200)
        trainer.train()
        (folder / f"stopped-{os.environ['RANK']}").write_text(str(trainer.state.global_step))
        """
    for program in [start(source, env=environment) for environment in ranks]:
        program.ok()
    # The ranks exchange requests every second step, the trainer's logging interval. They must also log at the same
    # steps, because logging is a collective.
    assert [(tmp_path / f"stopped-{rank}").read_text() for rank in (0, 1)] == ["42", "42"]
    history = read("hf", logs)
    assert [(view.rank, view.state, view.num_iterations) for view in history.ranks] == [
        (0, "finished", 42),
        (1, "finished", 42),
    ]
    assert list(history.series("train_loss").steps) == [2, 4, 6, 15, 30]
    assert history.attempts[0].start["world_size"] == 2
    light = [json.loads(line) for line in (logs / "hf" / "ranks" / "00001.jsonl").read_text().splitlines()]
    assert light[0]["rank"] == 1
    assert not any("train_loss" in record for record in light if record["event"] == "step")


def test_callbacks_of_other_loggers_are_timed(logs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tachograph.recorder.collectors.loggers._MIN_STEPS", 5)
    monkeypatch.setattr("tachograph.recorder.collectors.loggers._MIN_S", 0.0)
    log_s = 0.1

    class SwanLabCallback(transformers.TrainerCallback):
        """As another package may provide it."""

        def on_log(self, *_: Any, **__: Any) -> None:
            time.sleep(log_s)

    other, ours = SwanLabCallback(), TachographCallback("x", log_dir=str(logs), git=False)
    trainer_in(tmp_path, other, ours, max_steps=60, logging_steps=1, report_to=["tensorboard"]).train()
    ours.finish()
    assert "on_log" not in vars(other)
    (event,) = read(logs / "x").latest("event", "logger_costs")
    assert event["loggers"] == ["swanlab", "tensorboard"]
    assert event["callback_s/swanlab"] >= log_s * event["num_steps"] * 0.5
    assert 0 <= event["callback_s/tensorboard"] < event["wall_s"]
    assert "swanlab took" in capsys.readouterr().out


def test_loss_is_the_same_in_list_table_and_reader(tmp_path, logs):
    callback = callback_into(logs)
    trainer_in(tmp_path, callback, logging_steps=1, max_steps=3).train()
    callback.finish()
    journal = logs / "hf" / "metrics.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    last = [line for line in lines if b"training_summary" in line or line == lines[-1]]
    # Records of a long evaluation, or of other events, push the last step out of the part that lists read.
    filler = b'{"event":"event","time":1.0,"name":"note","text":"' + b"x" * 4_000 + b'"}\n'
    journal.write_bytes(b"".join([*(line for line in lines if line not in last), *[filler] * 8, *last]))
    expected = read("hf", log_dir=logs).series("train_loss").values[-1]
    (row,) = Catalog(str(logs)).rows()
    assert row.summary.overview.train_loss == expected
    (row,) = Catalog(str(logs)).select("", columns=["loss"])
    assert row.get("loss") == expected


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Samples(Sequences):
    """Samples of a classifier; remembers the order in which they were read."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
        self.labels = torch.arange(96) % 4
        self.order: list[int] = []

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.order.append(index)
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def train_classifier(tmp_path: Path, logs: Path, samples: Samples, **arguments: Any) -> tuple[Any, Any]:
    """Return the trainer and its run. The trainer hides losses that are not finite, as by default."""
    callback = callback_into(logs)
    trainer = trainer_in(tmp_path, callback, model=Classifier(), max_steps=20, logging_steps=8, **arguments)
    trainer.train_dataset = samples
    trainer.train()
    callback.finish()
    return trainer, read("hf", logs)


def trainer_losses(trainer: Any) -> dict[int, float]:
    """Return the losses that the trainer logged, by step."""
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def test_loss_that_the_trainer_hides_is_recorded(tmp_path, logs):
    ordinary, samples, bad_step = Samples(), Samples(), 6
    train_classifier(tmp_path, logs / "ordinary", ordinary)
    bad_index = ordinary.order[4 * (bad_step - 1) + 1]
    samples.inputs[bad_index, 2] = float("nan")
    trainer, history = train_classifier(tmp_path, logs, samples)
    assert trainer_losses(trainer)[16] == 0.0  # what the user of the trainer sees
    steps, losses, *_ = history.series("train_loss")
    assert list(steps) == list(range(bad_step, 21))
    assert all(map(math.isnan, losses))
    (alert,) = [alert for alert in history.alerts if alert.rule == "not_finite"]
    assert alert.title == f"train_loss is NaN at step {bad_step}"
    (dump,) = [dump for dump in history.dumps if dump.reason == "not_finite"]
    assert dump.verdict.kind == "bad_input"
    assert f"(index {bad_index} of the dataset)" in dump.verdict.text


def test_losses_after_one_that_is_hidden_are_the_ones_of_the_trainer(tmp_path, logs):
    """The only labels of a batch are ignored: its loss is NaN, and the weights stay finite."""
    samples = Samples()
    samples.labels[:] = -100
    samples.labels[::2] = 1
    trainer, history = train_classifier(tmp_path, logs, samples, per_device_train_batch_size=2)
    batches = [samples.order[start : start + 2] for start in range(0, 40, 2)]
    bad_steps = [step for step, batch in enumerate(batches, 1) if all(index % 2 for index in batch)]
    assert bad_steps
    assert len(bad_steps) < 16
    steps, losses, *_ = history.series("train_loss")
    assert [step for step, loss in zip(steps, losses, strict=True) if math.isnan(loss)] == bad_steps
    recorded_losses = dict(zip(steps.tolist(), losses.tolist(), strict=True))
    ordinary_losses = {step: loss for step, loss in trainer_losses(trainer).items() if step not in bad_steps}
    assert {step: recorded_losses[step] for step in ordinary_losses} == ordinary_losses
