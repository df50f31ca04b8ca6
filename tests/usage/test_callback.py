"""The callback, with a real `Trainer` and with direct calls where the clock matters."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tachograph._base.guard import guard
from tachograph.usage import TelemetryManager, UsageConfig, _metrics
from tachograph.usage._schemas import SCHEMAS
from tests.usage.test_runtime_metrics import MIB, Accelerator, Clock, Metal

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tachograph.usage.callback import TIME_SINCE_LAST, TelemetryCallback  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("transformers"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Manager:
    """A stand-in for `TelemetryManager` that stores events and accepts only fields of the schemas."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.last_words: list[Any] = []

    def add_exit_callback(self, last_word: Any) -> None:
        self.last_words.append(last_word)

    def remove_exit_callback(self, last_word: Any) -> None:
        self.last_words.remove(last_word)

    def send_event(self, name: str, properties: dict[str, Any]) -> None:
        fields = SCHEMAS[name].fields
        assert set(properties) <= set(fields), f"{name} has no {set(properties) - set(fields)}"
        for group in ("metrics", "metric_steps"):
            assert set(properties.get(group, ())) <= set(fields[group].fields if group in fields else ())
        self.events.append((name, properties))

    @property
    def names(self) -> list[str]:
        return [name for name, _properties in self.events]

    def sent(self, name: str) -> list[dict[str, Any]]:
        return [properties for sent, properties in self.events if sent == name]

    @property
    def reported(self) -> list[int]:
        return [properties["step"] for properties in self.sent("train-progress")]


class Sequences(torch.utils.data.Dataset):
    def __init__(self, num_samples: int) -> None:
        first = torch.randint(0, 32, (num_samples, 1), generator=torch.Generator().manual_seed(0))
        self.tokens = (first + torch.arange(8)) % 32

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter([Sequences(4)[index % 4] for index in range(1_000)])


def trainer_in(folder: Path, *callbacks: Any, data: Any = None, **arguments: Any) -> Any:
    """Return a trainer with six steps per epoch."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    chosen = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "logging_steps": 5,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        **arguments,
    }
    return transformers.Trainer(
        transformers.LlamaForCausalLM(config),
        transformers.TrainingArguments(output_dir=str(folder / "out"), **chosen),
        train_dataset=data if data is not None else Sequences(24),
        eval_dataset=Sequences(8),
        callbacks=list(callbacks),
    )


# With a real trainer -------------------------------------------------------------------------------------------------


def test_training_with_evaluation_reports_all_events(tmp_path):
    manager = Manager()
    trainer = trainer_in(tmp_path, TelemetryCallback(manager), eval_strategy="steps", eval_steps=4)
    assert manager.events == []
    output = trainer.train()
    assert manager.names == ["train-start", "train-progress", "train-end"]
    assert manager.sent("train-start") == [
        {
            "start_step": 0,
            "max_steps": 12,
            "num_epochs": 2,
            "resumed": False,
            "batch_size": 4,
            "gradient_accumulation": 1,
            "world_size": 1,
        }
    ]
    [progress] = manager.sent("train-progress")
    assert (progress["step"], progress["start_step"], progress["epoch"]) == (1, 0, 0)
    assert progress["progress"] == pytest.approx(1 / 6)
    assert progress["steps_per_second"] == pytest.approx(1 / progress["elapsed_s"])
    assert progress["since_last_report_s"] == progress["elapsed_s"] > 0
    assert MIB < progress["cpu_memory"] <= progress["peak_cpu_memory"]
    assert not {"metrics", "metric_steps"} & set(progress)  # nothing was logged yet
    [end] = manager.sent("train-end")
    history = trainer.state.log_history
    last, evaluated = ([entry for entry in history if name in entry][-1] for name in ("loss", "eval_loss"))
    # The evaluation at step 12 and the summary follow and do not replace it.
    trained = {name: last[name] for name in ("loss", "learning_rate", "grad_norm")}
    assert end["metrics"] == {**trained, "eval_loss": evaluated["eval_loss"]}
    assert end["metric_steps"] == {**dict.fromkeys(trained, 10), "eval_loss": 12}
    assert end["train_loss"] == output.training_loss != end["metrics"]["loss"]
    assert (end["step"], end["start_step"], end["total_steps"], end["epochs_completed"]) == (12, 0, 12, 2)
    assert end["steps_per_second"] == pytest.approx(12 / end["total_s"], rel=0.05)
    assert 0 < end["average_epoch_s"] <= end["total_s"] / 2
    assert end["peak_cpu_memory"] >= progress["peak_cpu_memory"]


def test_resume_within_epoch_counts_from_start_step(tmp_path):
    trainer_in(tmp_path, max_steps=9, save_strategy="steps", save_steps=9).train()
    manager = Manager()
    again = trainer_in(tmp_path, TelemetryCallback(manager), num_train_epochs=3, gradient_accumulation_steps=1)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-9"))
    [start] = manager.sent("train-start")
    assert (start["start_step"], start["resumed"], start["max_steps"]) == (9, True, 18)
    [progress] = manager.sent("train-progress")
    assert (progress["step"], progress["start_step"], progress["epoch"]) == (10, 9, 1)
    assert progress["steps_per_second"] == pytest.approx(
        1 / progress["elapsed_s"]
    )  # this process made one step, not ten
    assert "metrics" not in progress  # metrics from before the checkpoint do not count
    [end] = manager.sent("train-end")
    assert (end["step"], end["start_step"], end["total_steps"], end["epochs_completed"]) == (18, 9, 9, 2)
    assert end["steps_per_second"] == pytest.approx(9 / end["total_s"], rel=0.05)
    assert end["metric_steps"]["loss"] == 15
    # This process made half of the second epoch and all of the third: only the third is timed.
    assert 0 < end["average_epoch_s"] < end["total_s"]


def test_resume_at_end_of_epoch_times_next_epoch(tmp_path):
    trainer_in(tmp_path, max_steps=6, save_strategy="steps", save_steps=6).train()
    manager = Manager()
    trainer_in(tmp_path, TelemetryCallback(manager)).train(resume_from_checkpoint=True)
    [end] = manager.sent("train-end")
    assert (end["start_step"], end["total_steps"], end["epochs_completed"]) == (6, 6, 1)
    assert end["average_epoch_s"] > 0


def test_unfinished_epoch_is_not_counted(tmp_path):
    manager = Manager()
    trainer_in(tmp_path, TelemetryCallback(manager), max_steps=4).train()
    [end] = manager.sent("train-end")
    assert (end["step"], end["epochs_completed"]) == (4, 0)  # zero is a value
    assert "average_epoch_s" not in end


def test_epochs_cut_short_are_not_counted(tmp_path):
    class Cutter(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_epoch_stop = state.epoch % 1 > 0.3

    manager = Manager()
    trainer_in(tmp_path, Cutter(), TelemetryCallback(manager), num_train_epochs=3).train()
    [end] = manager.sent("train-end")
    assert (end["total_steps"], end["epochs_completed"]) == (6, 0)


def test_endless_dataset_reports_no_number_of_epochs(tmp_path):
    manager = Manager()
    trainer_in(tmp_path, TelemetryCallback(manager), data=Stream(), max_steps=2, gradient_accumulation_steps=3).train()
    [start] = manager.sent("train-start")
    assert (start["max_steps"], start["gradient_accumulation"]) == (2, 3)
    assert "num_epochs" not in start


def test_second_training_starts_from_zero(tmp_path):
    manager = Manager()
    trainer = trainer_in(tmp_path, TelemetryCallback(manager), max_steps=2, logging_steps=1)
    trainer.train()
    trainer.evaluate()  # records nothing after training
    trainer.args.logging_steps = 50
    trainer.train()
    assert manager.names == ["train-start", "train-progress", "train-end"] * 2
    first, second = manager.sent("train-end")
    assert first["metric_steps"]["loss"] == 2
    assert "metrics" not in second  # nothing was logged in this training
    assert first["total_steps"] == second["total_steps"] == 2


def test_evaluation_alone_records_nothing(tmp_path):
    manager = Manager()
    trainer = trainer_in(tmp_path, TelemetryCallback(manager))
    trainer.evaluate()
    trainer.predict(Sequences(4))
    assert manager.events == []


def test_weights_are_equal_with_and_without_callback(tmp_path):
    def weights(*callbacks: Any) -> bytes:
        trainer = trainer_in(tmp_path, *callbacks, max_steps=4, eval_strategy="steps", eval_steps=2)
        trainer.train()
        numbers = b"".join(weight.detach().numpy().tobytes() for weight in trainer.model.parameters())
        return numbers + torch.get_rng_state().numpy().tobytes()

    assert weights() == weights(TelemetryCallback(Manager()))


@pytest.mark.expects_faults
def test_failing_manager_does_not_affect_training(tmp_path):
    class Failing(Manager):
        def send_event(self, name: str, properties: dict[str, Any]) -> None:
            super().send_event(name, properties)
            raise OSError("no space")

    manager = Failing()
    assert trainer_in(tmp_path, TelemetryCallback(manager), max_steps=4).train().global_step == 4
    assert manager.names == ["train-start", "train-progress", "train-end"]  # each once: failures are not retried
    assert guard.num_faults == 3


def test_default_manager_is_that_of_the_app(tmp_path, monkeypatch):
    monkeypatch.setenv("TACHO_USAGE_DIR", str(tmp_path / "usage"))
    trainer = trainer_in(tmp_path, TelemetryCallback(), max_steps=2, logging_steps=1)
    TelemetryManager.configure(UsageConfig(app="greyjacket"), choice="local")  # in time: before training starts
    try:
        trainer.train()
    finally:
        TelemetryManager.reset()
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "usage").rglob("*.jsonl"))
    events = [json.loads(line) for line in text.splitlines()]
    recorded = {event["event"]: event["properties"] for event in events}
    assert list(recorded) == ["train-start", "train-progress", "train-end"]
    assert (
        recorded["train-start"]["max_steps"],
        recorded["train-progress"]["step"],
        recorded["train-end"]["step"],
    ) == (2, 1, 2)
    assert recorded["train-end"]["metric_steps"]["loss"] == 2
    assert 0 < recorded["train-end"]["peak_cpu_memory"] < 1_000  # recorded as rounded GiB


# Direct calls ---------------------------------------------------------------------------------------------------------


class Training:
    """Calls the hooks like a trainer, at times chosen by the test."""

    def __init__(self, folder: Path, clock: Clock, manager: Manager | None = None, **state: Any) -> None:
        self.manager = manager if manager is not None else Manager()
        self.callback = TelemetryCallback(self.manager)
        self.args = transformers.TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
        self.state = transformers.TrainerState(**{"max_steps": 10_000, "num_train_epochs": 10, **state})
        self.control = transformers.TrainerControl()
        self.clock, self.start_s = clock, clock.now_s

    def call(self, hook: str, **given: Any) -> None:
        getattr(self.callback, hook)(self.args, self.state, self.control, **given)

    def begin(self) -> Training:
        self.call("on_train_begin")
        return self

    def step(self, step: int, at_s: float | None = None, *, should_log: bool = False) -> None:
        if at_s is not None:
            self.clock.now_s = self.start_s + at_s
        self.state.global_step, self.control.should_log = step, should_log
        self.call("on_step_end")

    def log(self, **logs: Any) -> None:
        self.call("on_log", logs={name.replace("__", "/"): value for name, value in logs.items()})

    def end(self) -> dict[str, Any]:
        self.call("on_train_end")
        return self.manager.sent("train-end")[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_metrics, "perf_counter", clock)
    return clock


@pytest.fixture
def training(tmp_path: Path, clock: Clock) -> Training:
    return Training(tmp_path, clock).begin()


@pytest.fixture
def device(training: Training, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """A GPU used by training."""
    device = Accelerator(0, 0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=device))
    return device


def every(seconds: float, *steps: range) -> list[tuple[int, float]]:
    return [(step, step * seconds) for part in steps for step in part]


@pytest.mark.parametrize(
    ("start_step", "steps", "reported"),
    [
        pytest.param(0, every(0.01, range(1, 350)), [1, 101, 201, 301], id="fast: the first, then every hundred"),
        pytest.param(
            0, every(0.7, range(1, 350)), [1, 100, 200, 300], id="slow: the first, then multiples of a hundred"
        ),
        pytest.param(0, every(100, range(1, 100)), [1], id="a minute alone is no reason"),
        pytest.param(0, [(1, 0), (99, 59), (100, 60)], [1, 100], id="a minute at a multiple"),
        pytest.param(0, [(1, 0), (99, 59), (100, 59.9)], [1], id="less than a minute at a multiple"),
        pytest.param(0, [(1, 0), (100, 60), (101, 61), (200, 119)], [1, 100, 200], id="a hundred since the last"),
        pytest.param(0, [(1, 0), (41, 41), (42, 42)], [1], id="42 right after 41"),
        pytest.param(0, [(100, 100)], [100], id="a hundred since the beginning"),
        pytest.param(1_000, every(0.01, range(1_001, 1_300)), [1_001, 1_101, 1_201], id="resumed: its first step"),
        pytest.param(1_050, [(1_051, 1), (1_100, 30), (1_151, 61)], [1_051, 1_151], id="resumed between multiples"),
        pytest.param(999, [(1_000, 1), (1_001, 2), (1_100, 3)], [1_000, 1_100], id="resumed before a multiple"),
    ],
)
def test_progress_is_reported_at_expected_steps(tmp_path, clock, start_step, steps, reported):
    training = Training(tmp_path, clock, global_step=start_step).begin()
    for step, at_s in steps:
        training.step(step, at_s)
    assert training.manager.reported == reported
    assert (TelemetryCallback.report_interval_steps, TIME_SINCE_LAST) == (100, 60)


def test_report_interval_is_a_class_attribute(training):
    training.callback.report_interval_steps = 10
    for step in range(1, 25):
        training.step(step, step)
    assert training.manager.reported == [1, 11, 21]


def test_speed_is_measured_since_last_report(training):
    training.step(1, 2)
    training.step(100, 101)
    training.step(200, 601)
    recorded = [
        (one["step"], one["steps_per_second"], one["elapsed_s"], one["since_last_report_s"])
        for one in training.manager.sent("train-progress")
    ]
    assert recorded == [(1, 0.5, 2, 2), (100, 1.0, 101, 99), (200, 0.2, 601, 500)]
    end = training.end()
    assert (end["total_s"], end["total_steps"], end["steps_per_second"]) == (601, 3, pytest.approx(3 / 601))


def test_speed_is_missing_without_elapsed_time(training):
    training.step(1, 0)
    [progress] = training.manager.sent("train-progress")
    assert "steps_per_second" not in progress
    assert progress["elapsed_s"] == progress["since_last_report_s"] == 0


def test_resumed_training_counts_from_start_step(tmp_path, clock):
    training = Training(tmp_path, clock, global_step=1_000, epoch=2.5).begin()
    training.step(1_001, 10)
    [progress] = training.manager.sent("train-progress")
    assert (progress["start_step"], progress["steps_per_second"]) == (1_000, 0.1)
    assert (progress["epoch"], progress["progress"]) == (2, 2.5)


def test_missing_epoch_is_not_reported(tmp_path, clock):
    training = Training(tmp_path, clock, epoch=None).begin()
    training.call("on_epoch_begin")
    training.step(1, 1)
    training.call("on_epoch_end")
    [progress] = training.manager.sent("train-progress")
    assert not {"epoch", "progress"} & set(progress)
    assert training.end()["epochs_completed"] == 0


def test_epochs_are_timed(training):
    for epoch, took_s in ((0, 10), (1, 30)):
        training.state.epoch = float(epoch)
        training.call("on_epoch_begin")
        training.clock.now_s += took_s
        training.state.epoch = epoch + 1 - 1e-12  # rounding error of a sum of fractions
        training.call("on_epoch_end")
    end = training.end()
    assert (end["epochs_completed"], end["average_epoch_s"], end["total_s"]) == (2, 20, 40)


def test_epoch_resumed_midway_is_not_timed(tmp_path, clock):
    training = Training(tmp_path, clock, global_step=150, epoch=1.5).begin()
    for until, took_s in ((2.0, 10), (3.0, 20)):
        training.call("on_epoch_begin")
        training.clock.now_s += took_s
        training.state.epoch = until
        training.call("on_epoch_end")
    end = training.end()
    assert (end["epochs_completed"], end["average_epoch_s"]) == (2, 20)


def test_training_without_remaining_steps_is_reported(tmp_path, clock):
    training = Training(tmp_path, clock, global_step=500, max_steps=500, num_train_epochs=0).begin()
    assert "num_epochs" not in training.manager.sent("train-start")[0]
    end = training.end()
    assert (end["total_steps"], end["total_s"], end["step"], end["start_step"]) == (0, 0, 500, 500)
    assert not {"steps_per_second", "train_loss", "metrics", "metric_steps", "peak_gpu_memory"} & set(end)


def test_batch_size_is_the_one_found_automatically(tmp_path, clock):
    training = Training(tmp_path, clock, train_batch_size=2)
    training.args.per_device_train_batch_size = 64
    training.begin()
    training.args.auto_find_batch_size = True
    training.begin()
    assert [start["batch_size"] for start in training.manager.sent("train-start")] == [64, 2]


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, "unfinished"), (KeyboardInterrupt, "interrupted"), (ValueError, "failed")]
)
def test_unfinished_training_is_recorded_at_exit(training, monkeypatch, error, outcome):
    if error is not None:
        monkeypatch.setattr(sys, "last_type", error, raising=False)
    training.step(7, 1)
    [last_word] = training.manager.last_words
    last_word()
    assert training.manager.last_words == []
    [end] = training.manager.sent("train-end")
    assert (end["outcome"], end["step"], end["total_steps"]) == (outcome, 7, 1)


def test_unfinished_training_is_recorded_when_next_starts(training):
    training.step(7, 1)
    training.begin()
    training.step(8, 2)
    training.end()
    outcomes = [(end["outcome"], end["step"]) for end in training.manager.sent("train-end")]
    assert outcomes == [("unfinished", 7), ("finished", 8)]
    assert training.manager.last_words == []


def test_uncaught_error_ends_training_as_failed(script, tmp_path):
    process = script(
        """
        import torch, transformers
        from tachograph.usage import TelemetryCallback, TelemetryManager, UsageConfig, _manager
        _manager._EXIT_TIMEOUT_S = 240.0  # for the disk of a busy machine
        TelemetryManager.configure(UsageConfig(app="greyjacket"))
        class Fail(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 3:
                    raise ValueError("boom")
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes))
        data = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 16
        args = transformers.TrainingArguments("out", use_cpu=True, report_to=[], per_device_train_batch_size=2)
        transformers.Trainer(model, args, train_dataset=data, callbacks=[TelemetryCallback(), Fail()]).train()
        """,
        cwd=tmp_path,
        env={"TACHO_USAGE_DIR": str(tmp_path / "usage"), "CI": ""},
        preload="frameworks",
    )
    code, _, err = process.wait()
    assert (code, "boom" in err) == (1, True)
    lines = [line for path in (tmp_path / "usage").rglob("*.jsonl") for line in path.read_text().splitlines()]
    last = json.loads(lines[-1])
    assert (last["event"], last["properties"]["outcome"], last["properties"]["step"]) == ("train-end", "failed", 3)


# Logged metrics -------------------------------------------------------------------------------------------------


def test_metrics_are_reported_with_their_steps(training):
    training.state.global_step = 40
    training.log(loss=2.5, ppl=12.2, learning_rate=1e-4, grad_norm=0.7, tokens__total=4_096, tokens__trainable=1_024)
    training.state.global_step = 50
    training.log(loss=2.25, tokens__train_per_sec_per_gpu=812.5, other=1.0)
    training.log(eval_loss=9.0, eval_runtime=1.0)
    training.step(100, 100)
    training.log(train_loss=3.0, train_runtime=100.0)
    metrics = {
        "loss": 2.25,
        "ppl": 12.2,
        "learning_rate": 1e-4,
        "grad_norm": 0.7,
        "tokens_total": 4_096,
        "tokens_trainable": 1_024,
        "tokens_per_second_per_gpu": 812.5,
        "eval_loss": 9.0,
    }
    steps = {**dict.fromkeys(metrics, 40), "loss": 50, "tokens_per_second_per_gpu": 50, "eval_loss": 50}
    [progress] = training.manager.sent("train-progress")
    end = training.end()
    assert (progress["metrics"], progress["metric_steps"]) == (metrics, steps)
    assert (end["metrics"], end["metric_steps"]) == (metrics, steps)
    assert "train_loss" not in progress
    assert end["train_loss"] == 3.0
    assert SCHEMAS["train-end"].fields["metrics"].fields.keys() == metrics.keys()


def test_sent_properties_do_not_change_afterwards(training):
    training.log(loss=2.0)
    training.step(1, 1)
    training.log(loss=1.0)
    [progress] = training.manager.sent("train-progress")
    assert progress["metrics"] == {"loss": 2.0}


def test_zeros_are_reported_and_none_is_omitted(training):
    training.log(loss=0.0, learning_rate=0, grad_norm=math.nan, ppl=math.inf)
    training.log(train_loss=0.0)
    training.call("on_log", logs=None)
    training.call("on_log")
    end = training.end()
    assert (end["metrics"]["loss"], end["metrics"]["learning_rate"], end["metrics"]["ppl"]) == (0.0, 0, math.inf)
    assert math.isnan(end["metrics"]["grad_norm"])
    assert end["train_loss"] == 0.0
    assert end["metric_steps"] == dict.fromkeys(end["metrics"], 0)


def test_only_plain_numbers_are_accepted(training):
    numpy = pytest.importorskip("numpy")
    device_tensor = torch.zeros((), device="meta")  # reading it raises, like reading one on a GPU would wait
    training.log(loss=device_tensor, ppl="12.1", learning_rate=None, grad_norm=True, train_loss=[1.0])
    training.log(tokens__total=numpy.int64(7), tokens__train_per_sec_per_gpu=numpy.float32(0.5))
    end = training.end()
    assert end["metrics"] == {"tokens_total": 7, "tokens_per_second_per_gpu": 0.5}
    assert {type(value) for value in end["metrics"].values()} == {int, float}
    assert "train_loss" not in end


# Memory --------------------------------------------------------------------------------------------------------------


def test_device_memory_is_reported(training, device):
    device.use(8 * MIB, 0)
    device.use(3 * MIB, MIB)
    training.step(1, 1)
    [progress] = training.manager.sent("train-progress")
    assert (progress["gpu_memory"], progress["peak_gpu_memory"]) == ([3 * MIB, MIB], [8 * MIB, MIB])
    assert progress["peak_gpu_memory_source"] == "allocator_high_water_mark"
    device.use(9 * MIB, 0)
    end = training.end()
    assert end["peak_gpu_memory"] == [9 * MIB, MIB]  # sampled once more at the end
    assert end["peak_gpu_memory_source"] == "allocator_high_water_mark"
    assert end["peak_cpu_memory"] >= progress["cpu_memory"] > MIB


def test_devices_are_sampled_when_logging_and_evaluating(training, device):
    training.step(1, 1)
    looked = []
    for step in range(2, 30):
        before = device.num_reads
        training.step(step, step * 2, should_log=step % 10 == 0)
        looked += [step] * (device.num_reads > before)
    assert looked == [10, 20]
    # A peak that the training code resets before the next report is still known.
    device.use(7 * MIB, 0)
    training.call("on_prediction_step")
    device.in_use = device.peaks = [0, 0]
    assert training.end()["peak_gpu_memory"] == [7 * MIB, 0]


def test_devices_with_peak_counter_are_sampled_rarely(training, device):
    training.step(1, 0)
    looked = []
    for step in range(2, 60):
        before = device.num_reads
        training.step(step, step / 2, should_log=True)
        training.call("on_prediction_step")
        looked += [step / 2] * (device.num_reads > before)
    assert looked == [10, 20]


def test_devices_without_peak_counter_are_always_sampled(training, monkeypatch):
    device = Metal(MIB)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(mps=device))
    training.step(1, 0)
    device.in_use = 2 * MIB
    training.step(2, 0.1, should_log=True)
    device.in_use = MIB
    training.step(3, 0.2)
    progress, end = training.manager.sent("train-progress")[0], training.end()
    assert (progress["peak_gpu_memory"], progress["peak_gpu_memory_source"]) == ([MIB], "sampled")
    assert end["peak_gpu_memory"] == [2 * MIB]


def test_process_memory_is_sampled_only_for_reports(training, monkeypatch):
    real, reads = psutil.Process.memory_info, []

    def counted(process: psutil.Process) -> Any:
        reads.append(training.state.global_step)
        return real(process)

    monkeypatch.setattr(psutil.Process, "memory_info", counted)
    for step in range(1, 103):
        training.step(step, step / 100, should_log=True)
        training.call("on_prediction_step")
    assert sorted(set(reads)) == [1, 100, 101]


# Off -----------------------------------------------------------------------------------------------------------------

HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_step_end",
    "on_log",
    "on_prediction_step",
    "on_epoch_end",
    "on_train_end",
)


def test_nothing_is_sampled_when_telemetry_is_off():
    callback = TelemetryCallback(Manager(enabled=False))
    for hook in HOOKS:
        getattr(callback, hook)(None, None, None)  # using one of these would raise


def test_hooks_match_those_of_the_trainer():
    ours = {name for name in vars(TelemetryCallback) if name.startswith("on_")}
    assert ours == set(HOOKS) <= set(dir(transformers.TrainerCallback))
