"""`tacho.track` and `tacho.watch` in plain PyTorch loops."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import tachograph as tacho  # noqa: E402
from tachograph.cli._show import render, summary  # noqa: E402
from tachograph.exceptions import ConfigError  # noqa: E402
from tachograph.integrations._common.loop_observer import active_observer, set_active_observer  # noqa: E402
from tachograph.reader import overview  # noqa: E402
from tests.conftest import lines_of  # noqa: E402

pytestmark = pytest.mark.xdist_group("torch")

QUIET: dict[str, Any] = {"console": False, "system_interval_s": 0, "git": False}
BACKWARD = torch.autograd.backward
CLIP = nn.utils.clip_grad_norm_
SCALE = torch.amp.GradScaler.scale
NUM_BATCHES = 6


@pytest.fixture(autouse=True)
def torch_is_unpatched():
    """Check after each test that torch is unpatched, and remove the observer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    set_active_observer(None)
    assert torch.autograd.backward is BACKWARD
    assert nn.utils.clip_grad_norm_ is CLIP is nn.utils.clip_grad.clip_grad_norm_
    assert torch.amp.GradScaler.scale is SCALE


@pytest.fixture
def run(logs: Path):
    with tacho.init("greyjacket", log_dir=str(logs), **QUIET) as run:
        yield run


def parts(**options: Any) -> tuple[nn.Module, Any, DataLoader[Any]]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    loader = DataLoader(TensorDataset(torch.randn(4 * NUM_BATCHES, 4)), batch_size=4, **options)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def train_step(model: nn.Module, optimizer: Any, batch: Any) -> float:
    loss = model(batch[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def recorded(run: tacho.Run) -> list[dict[str, Any]]:
    run.finish()
    return lines_of(run.folder.path)


def steps(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record["event"] == "step" and "window/iterations" not in record]


def named(records: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get("name") == name]


def num_iterations(records: list[dict[str, Any]]) -> int:
    return sum(update["interval"] for update in named(records, "training_metrics_update"))


# Together ------------------------------------------------------------------------------------------------------------


def test_two_lines_record_a_loop(run):
    model, optimizer, loader = parts()
    losses = []
    with tacho.watch(model, optimizer):
        for _ in range(2):
            for batch in tacho.track(loader):
                losses.append(train_step(model, optimizer, batch))
    records = recorded(run)
    assert [step["train_loss"] for step in steps(records)] == losses
    assert [step["global_step"] for step in steps(records)] == list(range(2 * NUM_BATCHES))
    assert {step["lr"] for step in steps(records)} == {0.1}
    assert [record["epoch"] for record in records if record["event"] == "epoch"] == [1, 2]
    assert num_iterations(records) == 2 * NUM_BATCHES
    (instrumented,) = named(records, "instrumented")
    assert instrumented["method"] == "watch"
    assert (instrumented["model_class"], instrumented["total_params"]) == ("Sequential", 49)
    update = named(records, "training_metrics_update")[-1]
    assert all(update[f"window_share_{phase}"] > 0 for phase in ("data", "forward", "backward", "optimizer"))


def test_parameters_of_a_watched_model_are_counted(logs):
    model, optimizer, loader = parts()
    model[0].bias.requires_grad_(False)
    with tacho.init("x", log_dir=str(logs), console=False, git=False), tacho.watch(model, optimizer):
        train_step(model, optimizer, next(iter(loader)))
    history = tacho.read(logs / "x")
    counts = {"total_params": 49, "trainable_params": 49 - model[0].bias.numel()}
    assert {name: history.facts.get(name) for name in counts} == counts
    assert {name: summary(history)["facts"].get(name) for name in counts} == counts
    shown = io.StringIO()
    Console(file=shown, width=120).print(render(history))
    for name, count in counts.items():
        assert re.search(rf"{name} +{count}\b", shown.getvalue())


def test_weights_and_random_state_are_unchanged(run):
    """Also if the iterator of the loader is created early."""
    states = []
    for is_watched in (False, True):
        torch.manual_seed(1)
        model, optimizer, loader = parts(shuffle=True, num_workers=1)
        watch = tacho.watch(model, optimizer, grad_norm_every=2) if is_watched else None
        batches = iter(tacho.track(loader) if is_watched else loader)
        torch.randn(3)
        for batch in batches:
            train_step(model, optimizer, batch)
        if watch is not None:
            watch.close()
        states.append([*(parameter.tolist() for parameter in model.parameters()), torch.get_rng_state().tolist()])
    assert states[0] == states[1]
    norms = [step["grad_norm"] for step in steps(recorded(run)) if "grad_norm" in step]
    assert len(norms) == NUM_BATCHES / 2


def test_last_step_without_a_loader_ends_with_its_optimizer(run):
    model, optimizer, _ = parts()
    with tacho.watch(model, optimizer):
        for _ in range(5):
            train_step(model, optimizer, [torch.randn(4, 4)])
        begin_s = time.perf_counter()
        while time.perf_counter() - begin_s < 1.0:  # such as evaluating the model or saving it
            torch.randn(100, 100).sum()
    found = steps(recorded(run))
    assert len(found) == 5
    total_s = sum(step.get("sec_per_step", 0.0) for step in found)
    assert found[-1]["sec_per_step"] <= found[-1]["time"] - found[-2]["time"] - 0.9
    assert total_s <= found[-1]["time"] - found[0]["time"] - 0.9


def test_run_is_started_if_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TACHO_CONSOLE", "false")
    model, optimizer, loader = parts()
    with tacho.watch(model, optimizer):
        for batch in loader:
            train_step(model, optimizer, batch)
    run = tacho.current_run()
    assert len(steps(recorded(run))) == NUM_BATCHES


def test_track_before_watch(run):
    model, optimizer, loader = parts()
    tracked = tacho.track(loader)
    with tacho.watch(model, optimizer, logs=False):
        for batch in tracked:
            train_step(model, optimizer, batch)
    records = recorded(run)
    assert num_iterations(records) == NUM_BATCHES
    assert steps(records) == []
    assert named(records, "instrumented")[0]["method"] == "watch"


def test_metrics_that_the_loop_logs_are_left_to_it(run):
    model, optimizer, loader = parts()
    with tacho.watch(model, optimizer):
        for number, batch in enumerate(tacho.track(loader)):
            train_step(model, optimizer, batch)
            tacho.log({"train_loss": 7.0}, step=number)
    rows = [row for row in steps(recorded(run)) if row["global_step"] >= NUM_BATCHES // 2]
    assert [row["train_loss"] for row in rows if "train_loss" in row] == [7.0] * (NUM_BATCHES // 2)
    assert {row["global_step"] for row in rows if "lr" in row} == {row["global_step"] for row in rows}


def test_last_step_is_that_of_the_last_call(run):
    is_newest = []
    for step in range(100):
        run.log({"train_loss": 1.0}, step=step)
        is_newest.append(run.last_step == step)
    assert sum(is_newest) > 50  # not while the writer thread builds the record
    run.flush()
    assert run.last_step == 99


# track ---------------------------------------------------------------------------------------------------------------


def test_tracked_loader_behaves_like_the_loader(run):
    _, _, loader = parts()
    tracked = tacho.track(loader)
    assert len(tracked) == NUM_BATCHES
    assert tracked.batch_size == 4
    assert tracked.dataset is loader.dataset
    assert [batch[0].tolist() for batch in tracked] == [batch[0].tolist() for batch in loader]
    assert copy.copy(tracked).batch_size == 4
    assert len(pickle.loads(pickle.dumps(tacho.track([1, 2])))) == 2
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = tracked.no_such_thing
    endless = tacho.track(itertools.count())
    assert bool(endless)
    with pytest.raises(TypeError):
        len(endless)
    assert not tacho.track([])


def test_track_alone_counts_batches_as_iterations(run):
    _, _, loader = parts()
    for _ in tacho.track(loader):
        pass
    for number, _ in enumerate(tacho.track(loader)):
        if number == 2:
            break
    active_observer().close()
    records = recorded(run)
    assert num_iterations(records) == NUM_BATCHES + 3
    assert named(records, "instrumented")[0]["method"] == "track"
    assert len([record for record in records if record["event"] == "epoch"]) == 1
    assert named(records, "training_metrics_update")[-1]["window_share_data"] > 0


def test_track_alone_respects_manual_iterations(run):
    _, _, loader = parts()
    with tacho.training_loop(train_iterations_start=0):
        for _ in tacho.track(loader):
            with tacho.training_iteration():
                pass
    active_observer().close()
    assert num_iterations(recorded(run)) == NUM_BATCHES


def test_batches_without_gradients_are_a_validation(run):
    model, optimizer, loader = parts()
    with tacho.watch(model, optimizer):
        with torch.no_grad():  # not a validation: training has not begun
            list(tacho.track(loader))
        for batch in tacho.track(loader):
            train_step(model, optimizer, batch)
        with torch.inference_mode():
            for number, _ in enumerate(tacho.track(loader)):
                if number == 1:
                    break
        for batch in tacho.track(loader):
            train_step(model, optimizer, batch)
    records = recorded(run)
    spans = [record for record in named(records, "validation_loop") if record["event"] == "span_stop"]
    assert len(spans) == 1
    (update,) = named(records, "validation_metrics_update")
    assert round(update["total_iteration_time_sec"] / update["avg_iteration_time_sec"]) == 2
    assert num_iterations(records) == 2 * NUM_BATCHES


def test_loader_exceptions_propagate(run):
    def broken() -> Any:
        yield torch.randn(2, 4)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        for _ in tacho.track(broken()):
            pass
    with pytest.raises(KeyError):
        for batch in tacho.track([1, 2, 3]):
            raise KeyError(batch)
    assert list(tacho.track([1, 2])) == [1, 2]
    active_observer().close()


def test_nested_tracked_loaders_count_once(run):
    _, _, loader = parts()
    inner = tacho.track(loader)
    assert len(list(tacho.track(batch for batch in inner))) == NUM_BATCHES
    active_observer().close()
    assert num_iterations(recorded(run)) == NUM_BATCHES


# watch ---------------------------------------------------------------------------------------------------------------


def test_close_restores_everything(run):
    model, optimizer, loader = parts()
    watch = tacho.watch(model, optimizer)
    assert torch.autograd.backward is not BACKWARD
    assert pickle.loads(pickle.dumps(torch.autograd.backward)) is torch.autograd.backward
    assert pickle.loads(pickle.dumps(nn.utils.clip_grad_norm_)) is nn.utils.clip_grad_norm_
    copy.deepcopy(optimizer)
    for batch in loader:
        train_step(model, optimizer, batch)
    watch.close()
    watch.close()
    assert active_observer() is None
    assert torch.autograd.backward is BACKWARD
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    train_step(model, optimizer, batch)
    assert len(steps(recorded(run))) == NUM_BATCHES


def test_close_keeps_wrappers_of_other_libraries(run, monkeypatch):
    model, optimizer, _ = parts()
    watch = tacho.watch(model, optimizer)
    ours = torch.autograd.backward

    def theirs(*arguments: Any, **named: Any) -> None:
        ours(*arguments, **named)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    watch.close()
    assert torch.autograd.backward is theirs
    train_step(model, optimizer, [torch.randn(2, 4)])
    monkeypatch.undo()
    torch.autograd.backward = BACKWARD


def test_exception_in_the_loop_closes_the_watch(run):
    model, optimizer, loader = parts()
    with pytest.raises(KeyError), tacho.watch(model, optimizer):
        for batch in tacho.track(loader):
            train_step(model, optimizer, batch)
            raise KeyError
    assert len(steps(recorded(run))) == 1


def test_two_watches_share_one_loop(run):
    """As for the two models of a GAN. Closing the first does not end the other."""
    model, optimizer, loader = parts()
    other, second, _ = parts()
    watches = [tacho.watch(model, optimizer), tacho.watch(other, second)]
    for batch in tacho.track(loader):
        train_step(model, optimizer, batch)
        train_step(other, second, batch)
    watches[0].close()
    losses = [train_step(other, second, batch) for batch in tacho.track(loader)]
    watches[1].close()
    records = recorded(run)
    assert num_iterations(records) == 2 * NUM_BATCHES
    assert [step["loss/1"] for step in steps(records)][NUM_BATCHES:] == losses
    assert not any("train_loss" in step for step in steps(records))
    assert named(records, "instrumented")[0]["total_params"] == 98


def test_several_optimizers_in_one_watch(run):
    model, first, loader = parts()
    second = torch.optim.Adam(model.parameters(), lr=0.01)
    with tacho.watch(None, [first, second]):
        for batch in loader:
            train_step(model, first, batch)
            train_step(model, second, batch)
    assert len(steps(recorded(run))) == NUM_BATCHES


def test_optimizers_have_names(run):
    """Each optimizer has its own loss and learning rate, also in iterations in which another one does not step."""
    model, first, loader = parts()
    second = torch.optim.Adam(model.parameters(), lr=0.5)
    losses: dict[str, list[float]] = {"critic": [], "actor": []}
    with tacho.watch(None, {"critic": first, "actor": second}):
        for number, batch in enumerate(tacho.track(loader)):
            losses["critic"].append(train_step(model, first, batch))
            if number:
                losses["actor"].append(train_step(model, second, batch))
    records = steps(recorded(run))
    for name, own in losses.items():
        assert [step[f"loss/{name}"] for step in records if f"loss/{name}" in step] == own
    assert "loss/actor" not in records[0] and "train_loss" not in records[0]
    assert records[1]["lr/actor"] == 0.5 and "lr" not in records[1]
    assert overview(run.folder).train_loss == losses["actor"][-1]
    with pytest.raises(ConfigError, match="expected names as keys"):
        tacho.watch(None, {1: first})


class Gan:
    def __init__(self):
        self.model, self.optimizerG, self.loader = parts()
        self.opt = {"disc": torch.optim.Adam(self.model.parameters(), lr=0.01)}

    def train(self):
        for batch in tacho.track(self.loader):
            self.losses = [train_step(self.model, optim, batch) for optim in (self.opt["disc"], self.optimizerG)]


def test_optimizers_are_named_after_variables(run):
    gan = Gan()
    with tacho.watch(None, [gan.optimizerG, gan.opt["disc"]]):
        gan.train()
    last = steps(recorded(run))[-1]
    assert [last["loss/discriminator"], last["loss/generator"]] == gan.losses
    assert last["lr/discriminator"] == 0.01 and "loss/0" not in last and "train_loss" not in last
    assert overview(run.folder).train_loss == last["loss/generator"]


def test_variables_without_a_main_loss_name_no_optimizers(run):
    """`encoder` and `decoder` would not say which loss is the one of the run."""
    model, encoder_optim, loader = parts()
    decoder_optim = torch.optim.Adam(model.parameters(), lr=0.5)
    with tacho.watch(None, [encoder_optim, decoder_optim]):
        for batch in tacho.track(loader):
            losses = [train_step(model, optim, batch) for optim in (encoder_optim, decoder_optim)]
    last = steps(recorded(run))[-1]
    assert [last["loss/0"], last["loss/1"]] == losses


def test_watch_records_into_the_given_run(run, logs):
    model, optimizer, loader = parts()
    second = tacho.init("second", log_dir=str(logs), **QUIET)
    with tacho.watch(model, optimizer, run=run):
        for batch in tacho.track(loader, run=run):
            train_step(model, optimizer, batch)
        with pytest.raises(ConfigError, match="is recorded into 'greyjacket'"):
            tacho.watch(model, optimizer, run=second)
    assert steps(recorded(second)) == []
    assert len(steps(recorded(run))) == NUM_BATCHES


def test_consecutive_runs_count_steps_from_zero(logs):
    """As in a hyperparameter search, where the watches are never closed."""
    for name in ("first", "second"):
        model, optimizer, loader = parts()
        with tacho.init(name, log_dir=str(logs), **QUIET) as run:
            watch = tacho.watch(model, optimizer)
            for batch in tacho.track(loader):
                train_step(model, optimizer, batch)
        assert [step["global_step"] for step in steps(lines_of(run.folder.path))] == list(range(NUM_BATCHES))
        train_step(model, optimizer, batch)  # after its end
    watch.close()
    from tachograph.integrations.torch import _watches

    for left in list(_watches):
        left.close()


def test_resumed_run_continues_the_step_count(logs):
    """From the count of the optimizer, if a loaded checkpoint provides one, else from the journal."""
    model, _, loader = parts()
    adam = torch.optim.Adam(model.parameters())
    for optimizer, batches in ((adam, 4), (adam, 6), (torch.optim.SGD(model.parameters(), lr=0.1), 2)):
        run = tacho.init("greyjacket", log_dir=str(logs), resume=True, **QUIET)
        with tacho.watch(model, optimizer):
            for batch in itertools.islice(loader, batches):
                train_step(model, optimizer, batch)
        run.finish()
    assert [step["global_step"] for step in steps(lines_of(run.folder.path))] == list(range(12))


def test_scaled_losses_and_skipped_steps(run):
    model, optimizer, loader = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    with tacho.watch(model, optimizer, grad_norm_every=1):
        for number, batch in enumerate(tacho.track(loader)):
            optimizer.zero_grad()
            loss = model(batch[0]).square().mean()
            scaler.scale(loss).backward()
            if number == 1:
                model[0].weight.grad[0, 0] = float("nan")
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    records = recorded(run)
    assert [step["train_loss"] for step in steps(records)] == losses
    assert [event["global_step"] for event in named(records, "optimizer_step_skipped")] == [1]
    assert all(step["grad_norm"] < 100 for step in steps(records) if "grad_norm" in step)


def test_distributed_norm_is_not_read(run):
    """Reading it would be a collective operation."""

    class Spread(torch.Tensor):
        def item(self) -> float:
            raise AssertionError("this would hang")

    model, optimizer, loader = parts()
    with tacho.watch(model, optimizer):
        for batch in loader:
            train_step(model, optimizer, batch)
            active_observer().gradients_clipped(torch.ones(()).as_subclass(Spread))
    assert all("grad_norm" not in step for step in steps(recorded(run)))


def test_other_threads_are_ignored(run):
    model, optimizer, loader = parts()
    other, second, _ = parts()

    def elsewhere() -> None:
        for batch in loader:
            train_step(other, second, batch)

    with tacho.watch(model, [optimizer, second]):
        for batch in tacho.track(loader):
            train_step(model, optimizer, batch)
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
    assert len(steps(recorded(run))) == NUM_BATCHES


def test_memory_is_bounded_without_optimizer_steps(run):
    """Gradients computed for another purpose, and batches that are not used for training."""
    model, optimizer, _ = parts()
    with tacho.watch(model, optimizer):
        batch = torch.randn(2, 4)
        for _ in tacho.track(range(5000)):
            model(batch).sum().backward()
        now = active_observer().state.current
        assert max(len(now.marks), len(now.waits), len(now.losses)) <= 4096
        train_step(model, optimizer, [batch])
    (step,) = steps(recorded(run))
    assert "train_loss" not in step, "an incomplete loss is not recorded"


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((None, "adam"), {}, "optimizer=str"),
        ((None, None), {}, "optimizer=NoneType"),
        ((None, []), {}, "optimizer="),
        (("model", "x"), {}, "optimizer=str"),
        ((None, nn.Linear(1, 1)), {}, "optimizer=Linear"),
        ((None, "optimizer"), {"run": "greyjacket"}, "optimizer=str"),
    ],
)
def test_invalid_optimizer_is_rejected(arguments, named, message):
    with pytest.raises(ConfigError, match=message):
        tacho.watch(*arguments, **named)


def test_invalid_arguments_are_rejected():
    model, optimizer, loader = parts()
    with pytest.raises(ConfigError, match="model=SGD"):
        tacho.watch(optimizer, optimizer)
    with pytest.raises(ConfigError, match="grad_norm_every=-1: expected an integer of at least 0"):
        tacho.watch(model, optimizer, grad_norm_every=-1)
    with pytest.raises(ConfigError, match="expected a Run, as returned by"):
        tacho.watch(model, optimizer, run="greyjacket")
    with pytest.raises(ConfigError, match="expected a Run, as returned by"):
        tacho.track(loader, run="greyjacket")
    with pytest.raises(ConfigError, match="expected an iterable, such as a DataLoader"):
        tacho.track(5)
    assert active_observer() is None


# Overhead ------------------------------------------------------------------------------------------------------------


def train_tiny(run: Any, num_steps: int) -> None:
    model, optimizer, _ = parts()
    batch = [torch.randn(4, 4)]
    with tacho.watch(model, optimizer, run=run):
        for number, item in enumerate(tacho.track([batch] * num_steps, run=run)):
            train_step(model, optimizer, item)
            run.log({"mine": number}, step=number)


def test_costly_observation_is_sampled_and_reported(logs, monkeypatch):
    monkeypatch.setattr("tachograph.integrations._common.governor._MIN_WINDOW_S", 0.0)
    monkeypatch.setattr("tachograph.integrations._common.governor._MIN_SAVING", 1e9)
    with tacho.init("tiny", log_dir=str(logs), max_overhead=1e-6, **QUIET) as run:
        train_tiny(run, 700)
    history = tacho.read(run)
    losses = history.series("train_loss")
    assert list(losses.steps[:16]) == list(range(16)) and len(losses.steps) < 500
    assert list(history.series("mine").values) == list(range(700))  # what the script logs is never dropped
    assert sum(history.series("window/iterations").values) == 700
    changes = history.latest("event", "sampling_changed")
    assert len(changes) > 0
    assert all(change["overhead"] > change["max_overhead"] == 1e-6 for change in changes)
    every = changes[-1]["values_every"]
    assert history.sampling is not None and history.sampling.startswith(f"loss and phases of one in {every} steps")
    assert history.num_lost_records == 0


def test_without_a_limit_every_loss_is_recorded(logs):
    with tacho.init("tiny", log_dir=str(logs), max_overhead=1, **QUIET) as run:
        train_tiny(run, 300)
    history = tacho.read(run)
    assert len(history.series("train_loss").values) == 300
    assert history.sampling is None and not history.latest("event", "sampling_changed")


def test_phases_of_sampled_iterations_stand_for_all(logs):
    with tacho.init("tiny", log_dir=str(logs), **QUIET) as run:
        train_tiny(run, 400)
    history = tacho.read(run)
    phases_s = [history.phases[name] for name in ("data", "forward", "backward", "optimizer")]
    assert min(phases_s) > 0 and sum(phases_s) <= sum(history.series("window/sec").values)


def rest_soon(monkeypatch) -> None:
    """Make the governor sample one of four iterations from the start, and never change its mind."""
    from tachograph.integrations._common.governor import OverheadGovernor

    original = OverheadGovernor.__init__

    def init(self: Any) -> None:
        original(self)
        self.every, self._step_s, self._is_starting = 4, 1e-4, False
        self._end_window = lambda _now_s: None

    monkeypatch.setattr(OverheadGovernor, "__init__", init)


def records_of(logs: Path) -> list[dict[str, Any]]:
    return lines_of(logs / "greyjacket")


def test_iterations_are_counted_while_skipping(run, logs, monkeypatch):
    rest_soon(monkeypatch)
    model, optimizer, loader = parts()
    losses = {}
    with tacho.watch(model, optimizer):
        for epoch in range(5):
            for number, batch in enumerate(tacho.track(loader)):
                losses[NUM_BATCHES * epoch + number] = train_step(model, optimizer, batch)
        with torch.no_grad():
            for batch in tacho.track(loader):
                model(batch[0])
        for batch in tacho.track(loader):
            losses[len(losses)] = train_step(model, optimizer, batch)
    run.finish()
    history = tacho.read(run)
    recorded = history.series("train_loss")
    assert 4 <= len(recorded.steps) <= 15
    assert all(losses[int(step)] == value for step, value in zip(recorded.steps, recorded.values, strict=True))
    assert sum(history.series("window/iterations").values) == 6 * NUM_BATCHES
    epochs = [record for record in records_of(logs) if record["event"] == "epoch"]
    assert [epoch["global_step"] for epoch in epochs] == [NUM_BATCHES * (epoch + 1) - 1 for epoch in range(6)]
    assert len([record for record in records_of(logs) if record.get("name") == "validation_loop"]) >= 1


def test_accumulated_losses_are_complete_after_a_rest(run, monkeypatch):
    rest_soon(monkeypatch)
    model, optimizer, _ = parts()
    sums: list[float] = []
    with tacho.watch(model, optimizer):
        batches = iter(tacho.track([[torch.randn(4, 4)] for _ in range(60)]))
        for _ in range(20):
            total = 0.0
            for _ in range(3):
                loss = model(next(batches)[0]).square().mean()
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            sums.append(total)
    run.finish()
    recorded = tacho.read(run).series("train_loss")
    assert 4 <= len(recorded.steps) <= 10
    for step, value in zip(recorded.steps, recorded.values, strict=True):
        assert value == pytest.approx(sums[int(step)], rel=1e-6)


def test_two_optimizers_are_counted_while_skipping(run, monkeypatch):
    rest_soon(monkeypatch)
    model, first, _ = parts()
    second = torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.1)
    with tacho.watch(model, [first, second]):
        for batch in tacho.track([[torch.randn(4, 4)]] * 40):
            train_step(model, first, batch)
            second.step()
    run.finish()
    history = tacho.read(run)
    assert sum(history.series("window/iterations").values) == 40
    assert 5 <= len(history.series("train_loss").steps) <= 20


def test_rest_ends_if_another_optimizer_takes_over(run, monkeypatch):
    rest_soon(monkeypatch)
    monkeypatch.setattr("tachograph.integrations._common.loop_observer._MAX_SKIP_S", 0.0)
    model, first, _ = parts()
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacho.watch(model, [first, second]):
        for number in range(60):
            train_step(model, first if number < 20 else second, [torch.randn(4, 4)])
    run.finish()
    steps = tacho.read(run).series("train_loss").steps.tolist()
    assert max(steps) > 40


def test_loop_without_a_loader_is_counted_while_skipping(run, monkeypatch):
    rest_soon(monkeypatch)
    model, optimizer, _ = parts()
    losses = []
    with tacho.watch(model, optimizer):
        for _ in range(40):
            losses.append(train_step(model, optimizer, [torch.randn(4, 4)]))
    run.finish()
    history = tacho.read(run)
    recorded = history.series("train_loss")
    assert sum(history.series("window/iterations").values) == 40
    assert 5 <= len(recorded.steps) <= 20
    assert all(losses[int(step)] == value for step, value in zip(recorded.steps, recorded.values, strict=True))


def test_skipped_steps_are_recorded_while_skipping(run, logs, monkeypatch):
    rest_soon(monkeypatch)
    model, optimizer, _ = parts()
    scaler = torch.amp.GradScaler("cpu")
    with tacho.watch(model, optimizer):
        for number, batch in enumerate(tacho.track([[torch.randn(4, 4)]] * 30)):
            loss = model(batch[0]).square().mean() * (float("inf") if number == 21 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    run.finish()
    skipped = [record for record in records_of(logs) if record.get("name") == "optimizer_step_skipped"]
    assert [record["global_step"] for record in skipped] == [21]
    assert sum(tacho.read(run).series("window/iterations").values) == 30


def test_checkpoints_are_recorded_while_skipping(run, logs, monkeypatch, tmp_path):
    from tachograph.integrations._common.torch_patches import TorchPatches

    rest_soon(monkeypatch)
    model, optimizer, _ = parts()
    with tacho.watch(model, optimizer):
        patches = TorchPatches(active_observer())
        patches.saving(torch, "save", 1, "f")
        for number, batch in enumerate(tacho.track([[torch.randn(4, 4)]] * 30)):
            train_step(model, optimizer, batch)
            if number % 10 == 9:
                torch.save(model.state_dict(), tmp_path / f"{number}.pt")
        patches.undo()
    run.finish()
    saves = [record for record in records_of(logs) if record.get("name") == "checkpoint_save_sync"]
    steps = {record["attributes"]["current_iteration"] for record in saves if record["event"] in ("span", "span_stop")}
    assert steps == {9, 19, 29}
    assert sum(tacho.read(run).series("window/iterations").values) == 30
