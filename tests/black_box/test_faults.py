"""Planted faults: each is named by the verdict of its dump."""

from __future__ import annotations

import gc
import itertools
import math
import os
import signal
import threading
import time

import pytest

import tachograph
from tachograph.black_box._batch_check import check_batch
from tachograph.black_box._error_verdicts import judge_error
from tachograph.black_box._ring import DeliveredBatch, StepRing, describe_ring
from tachograph.black_box._torch_observer import TorchObserver
from tachograph.black_box._verdicts import Evidence, judge
from tests.conftest import HANG_S
from tests.tables import each

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

WIDTH = 8


class Data(torch.utils.data.Dataset):
    """Regression data; some samples may be spoiled."""

    def __init__(self, num_samples=64, bad_index=None):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(num_samples, WIDTH, generator=generator)
        self.targets = self.inputs.sum(1, keepdim=True)
        if bad_index is not None:
            self.inputs[bad_index, 3] = math.nan

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def make_model(activation=None):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), activation or nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
    )


def train(logs, *, data=None, model=None, lr=1e-3, loss_of=None, before_step=None, skips_nan=False, rules=None, **more):
    """Train until there is a dump; return it."""
    data, model = data or Data(), model or make_model()
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    optimizer = more.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=lr)
    deadline_s = time.monotonic() + HANG_S
    step = 0
    options = {"log_dir": str(logs), "console": False, "system_interval_s": 0, "flush_interval_s": 0.05, "rules": rules}
    with tachograph.init("x", **options) as run:
        while time.monotonic() < deadline_s and not (step > 300 and list((logs / "x").glob("dumps/*/dump.json"))):
            for batch in loader:
                optimizer.zero_grad()
                loss = loss_of(model, batch, step) if loss_of else nn.functional.mse_loss(model(batch[0]), batch[1])
                loss.backward()
                if before_step is not None:
                    before_step(model, step)
                if not skips_nan or math.isfinite(loss.item()):
                    optimizer.step()
                run.log(train_loss=loss.item(), lr=lr, step=step)
                step += 1
                if step > 300:
                    time.sleep(0.005)
    return tachograph.read(run).dumps[0]


def test_bad_sample_is_named_with_its_index(logs):
    dump = train(logs, data=Data(bad_index=41))
    assert dump.reason == "not_finite"
    assert (dump.verdict.kind, dump.verdict.confidence) == ("bad_input", "certain")
    assert dump.verdict.details["indices"] == [41]
    assert "(index 41 of the dataset)" in dump.verdict.text
    assert 41 in dump["batch"]["indices"]
    cause = {"text": dump.verdict.text, "confidence": "certain", "kind": "bad_input", "dump": "1-not_finite"}
    # On a busy machine there may be alerts about the speed, too.
    for alerts in (tachograph.read(str(logs / "x")).alerts, tachograph.diagnose(str(logs / "x")).alerts):
        assert [alert.cause for alert in alerts if alert.rule == "not_finite"] == [cause]


@pytest.mark.parametrize("value", [1e6, 1e30])
def test_sample_unlike_all_others_is_named(logs, value):
    data = Data()
    data.targets[17] = value
    dump = train(logs, data=data)
    assert (dump.verdict.kind, dump.verdict.details["indices"]) == ("outlying_sample", [17])
    assert f"has values up to {value:.3g} in `1`; half of the samples stay below" in dump.verdict.text


def test_samples_of_different_sizes_are_ordinary():
    batch = [torch.tensor([[1e-3], [5.0], [0.1], [-2.0]]), torch.tensor([[0.0], [0.0], [0.0], [1e9]])]
    assert check_batch(batch) == {}
    batch[0][2] = -5e5
    assert check_batch(batch)["outlying_rows"] == [2]
    assert check_batch([tensor[1:] for tensor in batch]) == {}, "too few samples to tell"


def test_loss_that_is_suddenly_scaled(logs):
    def loss_of(model, batch, step):
        return nn.functional.mse_loss(model(batch[0]), batch[1]) * (1e10 if step >= 50 else 1.0)

    dump = train(logs, loss_of=loss_of)
    assert dump.verdict.kind == "changed_loss"
    assert "in one step at step 50" in dump.verdict.text
    assert "look at how the loss is computed and scaled" in dump.verdict.text


def test_activations_that_large_updates_saturated(logs):
    model = make_model()
    dump = train(logs, model=model, optimizer=torch.optim.Adam(model.parameters(), lr=5.0), lr=5.0)
    assert (dump.reason, dump.verdict.kind, dump.verdict.confidence) == ("divergence", "dead_layers", "possible")
    assert "check the learning rate (5)" in dump.verdict.text


def test_batch_is_read_again_if_the_fault_was_seen_late(logs, monkeypatch):
    """As on a GPU, where gradients are not probed."""
    monkeypatch.setattr("tachograph.black_box._box.BlackBox.on_bad_gradient", lambda self: None)
    dump = train(logs, data=Data(bad_index=41))
    assert dump.verdict.kind == "bad_input"
    assert dump.verdict.details["indices"] == [41]


def cross_entropy(model, batch, _step):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_ignored_labels(logs):
    data = Data()
    data.targets = torch.randint(0, WIDTH, (64,))
    data.targets[8:12] = -100
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    loader_order = torch.utils.data.DataLoader.__init__

    def in_order(self, dataset, **options):
        loader_order(self, dataset, **{**options, "shuffle": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data.DataLoader, "__init__", in_order)
        dump = train(logs, data=data, model=model, loss_of=cross_entropy)
    assert dump.verdict.kind == "ignored_labels"
    assert dump["batch"]["indices"] == [8, 9, 10, 11]


def test_loss_that_is_no_number_although_all_else_is_finite(logs):
    def loss_of(model, batch, step):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        return loss + torch.log(loss * 0) - torch.log(loss * 0) if step == 20 else loss

    dump = train(logs, loss_of=loss_of)
    assert dump.verdict.kind == "loss"
    assert dump["layers"]["is_at_fault"]
    assert all(math.isfinite(row["weight"]["absmax"]) for row in dump["layers"]["layers"])


def test_update_of_one_parameter(logs):
    model = make_model()
    optimizer = torch.optim.SGD(
        [{"params": list(model.parameters())[:-2]}, {"params": list(model[4].parameters()), "lr": 1e-3}], lr=1e-3
    )

    def before_step(_model, step):
        if step == 20:
            optimizer.param_groups[1]["lr"] = math.inf
            model[4].bias.grad.zero_()

    dump = train(logs, model=model, optimizer=optimizer, before_step=before_step)
    assert (dump.verdict.kind, dump.verdict.details["parameters"][0]) == ("bad_update", "4.weight")


class Overflow(nn.Module):
    def forward(self, inputs):
        return inputs * 3e38 * 10


def test_overflow_names_the_module(logs):
    dump = train(logs, model=make_model(Overflow()), skips_nan=True)
    assert (dump.verdict.kind, dump.verdict.details.get("module")) == ("activation_overflow", "1"), dump.verdict
    assert "overflow in float32" in dump.verdict.text
    assert [call["module"] for call in dump["activations"]["calls"]] == ["0", "1", "2", "3", "4"]


def test_models_that_are_garbage_are_not_examined(logs):
    """As in a notebook: the cell is run again, and the optimizer has not stepped yet."""
    gc.disable()
    try:
        old_model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(9)))
        old_optimizer = torch.optim.SGD(old_model.parameters())
        old_optimizer.owner = [old_optimizer, old_model]  # so only the garbage collector removes them
        del old_model, old_optimizer
        dump = train(logs, model=make_model(Overflow()), skips_nan=True)
    finally:
        gc.enable()
    assert dump.verdict is not None
    assert (dump.verdict.kind, dump.verdict.details.get("module")) == ("activation_overflow", "1")


def test_exploding_layer(logs):
    def before_step(model, step):
        if step > 200:
            model[2].weight.grad *= 1e4

    def loss_of(model, batch, step):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        return loss * 50 if step > 200 else loss

    dump = train(logs, lr=1e-6, before_step=before_step, loss_of=loss_of)
    assert dump.reason in {"loss_spike", "divergence", "exploding_gradients"}
    assert (dump.verdict.kind, dump.verdict.details["module"]) == ("exploding_layer", "2")


def test_learning_rate(logs):
    dump = train(
        logs, lr=2.0, model=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    )
    assert dump.verdict.kind == "learning_rate"
    assert "2" in dump.verdict.text


def test_learning_rate_that_rose_at_once():
    lrs = [*((step, 1e-3) for step in range(40)), (40, 3.0)]
    for reason in ("loss_spike", "not_finite"):
        verdict = judge(reason, Evidence(step=42, lrs=lrs))
        assert verdict.kind == "learning_rate"
        assert verdict.text.startswith("The learning rate rose from 0.001 to 3 at step 40")
    warm_up = [(step, 1e-5 * step) for step in range(40)]
    assert judge("loss_spike", Evidence(step=42, lrs=warm_up)) is None


def test_overflow_in_code_between_modules():
    calls = [
        {"module": "first", "dtype": "float16", "input": 1.0, "output": 900.0},
        {"module": "second", "dtype": "float16", "input": math.inf, "output": math.nan},
    ]
    verdict = judge("not_finite", Evidence(step=42, activations={"calls": calls, "inputs": [1.0]}))
    assert verdict.kind == "activation_overflow" and verdict.details["module"] == "second"
    assert "overflow in the code that computes this input (the largest number of float16 is 65,504)" in verdict.text


def test_earlier_batches_are_read_again_if_few_losses_are_recorded(logs, monkeypatch):
    """As on a GPU with short steps: most steps have no loss, and hundreds follow until the writer thread sees it."""
    monkeypatch.setattr("tachograph.black_box._torch_observer.TorchObserver._add_optimizer", lambda *_: None)
    data, model = Data(num_samples=4096, bad_index=325), make_model()
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    deadline_s = time.monotonic() + HANG_S
    options = {"log_dir": str(logs), "console": False, "system_interval_s": 0, "flush_interval_s": 1}
    with tachograph.init("x", **options) as run:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        for step in itertools.count():
            optimizer.zero_grad()
            for inputs, targets in itertools.islice(batches, 2):  # gradients are accumulated
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
            optimizer.step()
            if step < 30 or step % 50 == 0:
                run.log({"train_loss": loss.item()}, step=step)
            if step == 400:
                run.flush()
            if step > 400 and (list((logs / "x").glob("dumps/*/dump.json")) or time.monotonic() > deadline_s):
                break
    dump = tachograph.read(str(logs / "x")).dumps[0]
    assert dump.verdict.kind == "bad_input"
    assert "sample 1 of the batch (index 325 of the dataset)" in dump.verdict.text
    assert dump["batch"]["indices"] == [324, 325, 326, 327]
    assert dump["batch"]["position"] == "number 81 of pass 1 over the data"


def test_ring_keeps_fewer_steps_of_large_batches():
    ring = StepRing()
    for number in range(2000):
        num_samples = 4 if number < 1500 else 512 if number < 1990 else 600
        ring.add_batch(DeliveredBatch(1, number, [], list(range(number, number + num_samples)), None))
        ring.add_step(float(number), None)
        if number == 1499:
            assert 1024 <= len(ring.entries) < 1024 + 16
    assert 128 <= len(ring.entries) < 128 + 32  # of batches with 600 samples, only the ends are kept
    last = describe_ring(ring.entries, [], lambda at_s: at_s)[-1]["batches"][0]
    assert {name: last[name] for name in ("num_samples", "first_index", "last_index")} == {
        "num_samples": 600,
        "first_index": 1999,
        "last_index": 2598,
    }


def test_steps_without_a_batch_have_none():
    ring = StepRing()
    ring.add_step(0.0, None)  # as of a second optimizer
    ring.add_batch(DeliveredBatch(1, 0, [], [1, 2], None))
    ring.add_step(1.0, None)
    assert [len(entry.batches) for entry in ring.entries] == [0, 1]


def test_batches_without_steps_stay_bounded():
    ring = StepRing()
    for number in range(1000):
        ring.add_batch(DeliveredBatch(1, number, [], [number], None))
        assert len(ring.events) <= 64
        assert ring.last_batch is not None
        assert ring.last_batch.position == number
    assert not ring.entries
    ring.add_step(1.0, None)
    entry = ring.entries[0]
    assert (entry.num_batches, [batch.position for batch in entry.batches]) == (1000, [0, 1, 2, 3])


def test_a_batch_of_another_pass_replaces_the_earlier_ones():
    ring = StepRing()
    for source, position in [(1, 0), (1, 1), (2, 0), (1, 2)]:
        ring.add_batch(DeliveredBatch(source, position, [], None, None))
    ring.add_step(1.0, None)
    for _ in range(30):
        ring.add_batch(DeliveredBatch(3, 0, [], None, None))
        ring.add_step(2.0, None)
    entries = ring.entries
    assert [batch.position for batch in entries[0].batches] == [2]
    assert [entry.data_pass for entry in entries] == [1] + [2] * 30


def test_ring_read_by_another_thread_has_each_step_once():
    ring, num_steps = StepRing(), 20_000
    states = {"cpu": torch.get_rng_state()}

    def train():
        for number in range(num_steps):
            ring.add_batch(DeliveredBatch(1, number, [], [number], None))
            ring.add_step(float(number), states if number % 16 == 0 else None)

    thread = threading.Thread(target=train)
    thread.start()
    num_reads = 0
    while thread.is_alive() or not num_reads:
        entries = ring.entries
        numbers = [entry.number for entry in entries]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert all(entry.batches[0].position == entry.number - 1 for entry in entries)
        assert all((entry.generators is not None) == (entry.number % 16 == 1) for entry in entries)
        num_reads += 1
    thread.join()
    assert ring.entries[-1].number == num_steps


@each("dtype,position", [(dtype, position) for dtype in (torch.float32, torch.float64) for position in (0, -1)])
def test_gradient_is_read_before_the_step(dtype, position):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    listener = CountingListener()
    observer = TorchObserver(listener)
    try:
        for bad_value, num_expected in [(None, 0), (math.inf, 1), (math.nan, 2), (None, 2)]:
            model(torch.ones(2, 4, dtype=dtype)).sum().backward()
            if bad_value is not None:
                gradient = list(model.parameters())[position].grad
                gradient.view(-1)[0] = bad_value
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(0.1)
            assert listener.num_bad_gradients == num_expected
    finally:
        observer.close()


def test_gradient_whose_memory_was_freed_is_not_read():
    """Sharding frees the memory of a tensor that it keeps; to read it would end the process."""

    class FreeingOptimizer(torch.optim.SGD):
        def step(self, closure=None):
            pass

    model = nn.Linear(4, 1)
    optimizer = FreeingOptimizer(model.parameters(), lr=0.1)
    listener = CountingListener()
    observer = TorchObserver(listener)
    try:
        for _ in range(3):  # the first step adds the optimizer
            model(torch.ones(2, 4)).sum().backward()
            for parameter in model.parameters():
                parameter.grad.untyped_storage().resize_(0)
            optimizer.step()
            optimizer.zero_grad()
        assert listener.ring.num_steps == 3
        assert listener.num_bad_gradients == 0
    finally:
        observer.close()


class CountingListener:
    wants_boundary = False

    def __init__(self):
        self.ring = StepRing()
        self.num_bad_gradients = 0

    def at_boundary(self):
        pass

    def on_bad_gradient(self):
        self.num_bad_gradients += 1


def test_ring_has_batches_indices_and_generators(logs):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    for num_workers in (0, 2):
        loader = torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True, num_workers=num_workers)
        delivered = []
        with tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0) as run:
            for inputs, targets in loader:
                delivered.append(inputs)
                nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
                run.log(train_loss=1.0, step=len(delivered))
            run.flush()
            run.dump()
        steps = tachograph.read(run).dumps[0]["steps"]["steps"]
        assert [step["global_step"] for step in steps] == list(range(1, 17))
        data = Data()
        for step, inputs in zip(steps, delivered, strict=True):
            batch = step["batches"][0]
            assert torch.equal(data.inputs[batch["indices"]], inputs)  # of the batch delivered, not of a later one
            assert batch["tensors"][0] == {"name": "0", "shape": [4, WIDTH], "dtype": "float32"}
        assert [step["batches"][0]["position"] for step in steps] == list(range(16))
        assert "cpu" in steps[0]["generators"]
        assert not any("generators" in step for step in steps[1:])


def test_exception_lists_shapes_and_no_values(logs):
    with (
        pytest.raises(RuntimeError),
        tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0) as run,
    ):
        secret, images = "hunter2", torch.ones(3, 5)
        run.log(train_loss=1.0, step=3)
        images @ torch.ones(4, 2), secret
    dump = tachograph.read(run).dumps[0]
    assert dump.reason == "exception"
    frame = dump["exception"]["chain"][0]["frames"][-1]
    assert {
        "name": "images",
        "shape": [3, 5],
        "dtype": "float32",
        "device": "cpu",
        "requires_grad": False,
        "is_finite": True,
    } in frame["tensors"]
    assert "hunter2" not in "".join(path.read_text() for path in dump.path.iterdir())


class Tokens(torch.utils.data.Dataset):
    """Token numbers and labels, of which those of sample 41 are too large."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((3,), 60 if index == 41 else 5), torch.tensor(9 if index == 41 else 1)


class Embedder(nn.Module):
    def __init__(self, num_rows):
        super().__init__()
        self.embedding = nn.Embedding(num_rows, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


class RaisingData(Data):
    def __getitem__(self, index):
        if index == 41:
            raise ValueError("corrupt file")
        return super().__getitem__(index)


def normed():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))


@pytest.mark.parametrize(
    ("data", "model", "options", "kind", "indices", "text"),
    [
        (
            Tokens(),
            Embedder(50),
            {"batch_size": 4},
            "index_out_of_range",
            [41],
            "50 rows was given the index 60 of sample",
        ),
        (Tokens(), Embedder(64), {"batch_size": 4}, "label_out_of_range", [41], "4 classes, but the label of sample"),
        (Data(9), normed(), {"batch_size": 4}, "batch_of_one", None, "drop_last=True"),
        (RaisingData(), make_model(), {"batch_size": 4}, "bad_sample", [41], "for the sample with index 41"),
        (
            RaisingData(),
            make_model(),
            {"batch_size": 4, "num_workers": 2, "shuffle": False},
            "bad_sample",
            [40, 41, 42, 43],
            "indices 40, 41, 42, 43",
        ),
    ],
)
def test_cause_of_an_exception_names_the_sample(logs, data, model, options, kind, indices, text):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.manual_seed(1)
    loss_of = nn.functional.cross_entropy if isinstance(data, Tokens) else nn.functional.mse_loss
    with (
        pytest.raises((IndexError, ValueError)),
        tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0) as run,
    ):
        for step, (inputs, targets) in enumerate(torch.utils.data.DataLoader(data, **{"shuffle": True, **options})):
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
            run.log(train_loss=loss.item(), step=step)
    history = tachograph.read(run)
    verdict = history.dumps[0].verdict
    assert (verdict.kind, verdict.confidence, verdict.details.get("indices")) == (kind, "certain", indices)
    assert text in verdict.text
    assert history.failure.cause == verdict.text


class ShuffledData:
    """Reads a sample under another number than the requested one."""

    def __getitem__(self, index):
        index = (index + 1) % 64
        raise ValueError(f"corrupt file {index}")


@pytest.mark.parametrize(("data", "indices"), [(RaisingData(), [41]), (ShuffledData(), [40, 41, 42])])
def test_sample_is_named_without_the_variable_of_a_comprehension(data, indices):
    # As in Python 3.12, where `fetch` of PyTorch has no variable with the number.
    source = "def fetch(data, possibly_batched_index):\n    return list(map(data.__getitem__, possibly_batched_index))"
    names = {}
    exec(compile(source, "torch/utils/data/_utils/fetch.py", "exec"), names)
    with pytest.raises(ValueError, match="corrupt") as raised:
        names["fetch"](data, [40, 41, 42])
    verdict = judge_error(raised.value)
    assert (verdict.kind, verdict.details) == ("bad_sample", {"indices": indices})


class KilledData(Data):
    def __getitem__(self, index):
        if index == 41:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_worker_that_was_killed_is_the_cause(logs):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with (
        pytest.raises((RuntimeError, OSError)),  # of torch's signal handler, or of the queue of the worker
        tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0) as run,
    ):
        for inputs, targets in torch.utils.data.DataLoader(KilledData(), batch_size=4, num_workers=2):
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    history = tachograph.read(run)
    assert run.status == "failed"
    assert "A worker process of the DataLoader ended without an exception: SIGKILL" in history.failure.cause


def test_derivative_that_is_not_finite_while_the_loss_is(logs):
    def loss_of(model, batch, step):
        difference = model(batch[0]) - batch[1]
        return (difference * (step != 20)).square().sum(1).sqrt().mean()

    dump = train(logs, loss_of=loss_of)
    assert dump.verdict.kind == "loss_derivative"
    assert "at step 20 although the loss (0), weights and inputs are finite" in dump.verdict.text


def test_overflow_in_the_first_step(logs):
    dump = train(logs, loss_of=lambda model, batch, step: (model(batch[0]) * 1e38 * 1e38).mean())
    assert dump.verdict.kind == "loss"
    assert "at step 0" in dump.verdict.text


def test_nothing_is_observed_when_off(logs):
    from torch.optim.optimizer import _global_optimizer_post_hooks

    num_hooks = len(_global_optimizer_post_hooks)
    with tachograph.init("x", log_dir=str(logs), console=False, black_box=False):
        assert len(_global_optimizer_post_hooks) == num_hooks
    with tachograph.init("y", log_dir=str(logs), console=False):
        assert len(_global_optimizer_post_hooks) == num_hooks + 1
    assert len(_global_optimizer_post_hooks) == num_hooks
