"""`tacho.watch(model, optimizer, histograms=…)`: what is counted, at which steps, and what is left alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tachograph as tacho  # noqa: E402
from tachograph.exceptions import ConfigError  # noqa: E402
from tachograph.integrations._common import tensor_histograms  # noqa: E402
from tachograph.integrations._common.loop_observer import set_active_observer  # noqa: E402
from tests.conftest import lines_of  # noqa: E402

pytestmark = pytest.mark.xdist_group("torch")

NUM_BINS = 129
ZERO_BIN = 64


@pytest.fixture(autouse=True)
def no_observer():
    torch.manual_seed(0)
    yield
    set_active_observer(None)


@pytest.fixture
def run(logs: Path):
    with tacho.init("greyjacket", log_dir=str(logs), console=False, system_interval_s=0, git=False) as run:
        yield run


def bin_of(value: float) -> int:
    """Return the bin of a value, from its definition."""
    if value == 0 or abs(value) < 2.0**-40:
        return ZERO_BIN
    power = min(math.frexp(abs(value))[1] - 1, 23)
    return ZERO_BIN + (power + 41 if value > 0 else -(power + 41))


def expected_counts(values: Any) -> list[int]:
    counts = [0] * NUM_BINS
    for value in values.detach().double().reshape(-1).tolist():
        if math.isfinite(value):
            counts[bin_of(value)] += 1
    return counts


def histograms_of(run: tacho.Run) -> list[dict[str, Any]]:
    run.finish()
    lines = lines_of(run.folder.path)
    assert not [line for line in lines if line["event"] == "telemetry_error"]
    return [line for line in lines if line["event"] == "histograms"]


def test_gradients_and_weights_are_counted_in_powers_of_two(run):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with tacho.watch(model, optimizer, histograms="both", every=2):
        for step in range(5):
            optimizer.zero_grad()
            for _ in range(2):  # accumulated
                model(torch.randn(3, 4)).square().mean().backward()
            if step == 0:
                model[0].weight.grad[0] = torch.tensor([0.0, float("nan"), -float("inf"), 1e30])
            expected.append({name: expected_counts(value.grad) for name, value in model.named_parameters()})
            weights = {name: expected_counts(value) for name, value in model.named_parameters()}
            expected[-1] |= {f"weights {name}": counts for name, counts in weights.items()}
            optimizer.step()
            if step == 0:
                nn.init.ones_(model[0].weight)
                nn.init.ones_(model[0].bias)
                nn.init.ones_(model[1].weight)
                nn.init.ones_(model[1].bias)
    records = histograms_of(run)
    assert [record["global_step"] for record in records] == [0, 2, 4]
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    for record in records:
        counts = expected[record["global_step"]]
        assert set(record["values"]) == {f"{kind}/{name}" for kind in ("gradients", "weights") for name in names}
        for name in names:
            assert record["values"][f"gradients/{name}"]["counts"] == counts[name]
            assert record["values"][f"weights/{name}"]["counts"] == counts[f"weights {name}"]
    first = records[0]["values"]["gradients/0.weight"]
    assert (first["exp2"], first["n"], first["nonfinite"]) == ([-40, 24], 30, 2)
    assert first["counts"][-1] == 1  # beyond the last bin
    history = tacho.read(run)
    assert [each.step for each in history.histograms("gradients/1.bias")] == [0, 2, 4]
    assert len(history.histograms("gradients/1.bias")[0].edges) == NUM_BINS + 1


def test_scaled_gradients_are_counted_unscaled(run):
    """Also those of an optimizer that unscales them inside of its step."""
    for is_fused in (False, True):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), fused=is_fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        with tacho.watch(model, optimizer, histograms="gradients", every=1):
            loss = model(torch.ones(2, 4)).square().mean()
            expected = [expected_counts(grad) for grad in torch.autograd.grad(loss, list(model.parameters()))]
            loss = model(torch.ones(2, 4)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            scaler.scale(model(torch.full((2, 4), float("inf"))).sum()).backward()
            if not is_fused:  # such a step is called, and does nothing by itself
                scaler.step(optimizer)
        run.flush()
        values = [line["values"] for line in lines_of(run.folder.path) if line["event"] == "histograms"][-1]
        assert [each["counts"] for each in values.values()] == expected, is_fused
    assert len(histograms_of(run)) == 2


def test_steps_with_closures_and_compiled_models_are_counted(run):
    model = nn.Linear(4, 1)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = compiled(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    with tacho.watch(compiled, optimizer, histograms="gradients", every=1):
        optimizer.step(closure)
    (record,) = histograms_of(run)
    assert record["values"]["gradients/weight"]["counts"] == expected_counts(model.weight.grad)


def test_large_and_many_tensors_are_bounded(run, monkeypatch):
    monkeypatch.setattr(tensor_histograms, "_MAX_VALUES", 100)
    monkeypatch.setattr(tensor_histograms, "_MAX_TENSORS", 3)
    model = nn.ModuleDict({"large": nn.Linear(30, 20), "conv": nn.Conv2d(8, 8, 3), "rest": nn.ModuleList()})
    model["rest"].extend(nn.Linear(2, 2) for _ in range(4))
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with tacho.watch(model, optimizer, histograms="weights", every=1):
        optimizer.step()
    values = next(line["values"] for line in lines_of_flushed(run) if line["event"] == "histograms")
    assert list(values) == ["weights/large.weight", "weights/large.bias", "weights/conv.weight", *REST]
    assert values["weights/large.weight"]["n"] == 100 and values["weights/large.weight"]["sampled"]
    assert values["weights/conv.weight"]["n"] <= 100 and values["weights/conv.weight"]["sampled"]
    assert values["weights/large.bias"]["n"] == 20 and "sampled" not in values["weights/large.bias"]
    assert [values[name]["n"] for name in REST] == [8, 6, 6, 12]
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


REST = ["weights/conv.*", *(f"weights/rest.{number}.*" for number in range(2)), "weights/*"]


def lines_of_flushed(run: tacho.Run) -> list[dict[str, Any]]:
    run.flush()
    return lines_of(run.folder.path)


def test_training_is_unchanged_with_histograms(logs):
    states = []
    for is_watched in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
        optimizer = torch.optim.AdamW(model.parameters())
        with tacho.init("x", log_dir=str(logs), console=False, git=False):
            options = {"histograms": "both", "every": 1} if is_watched else {}
            with tacho.watch(model, optimizer, **options):
                for _ in range(4):
                    optimizer.zero_grad()
                    model(torch.randn(3, 4).double()).square().mean().backward()
                    optimizer.step()
        states.append([*model.state_dict().values(), torch.get_rng_state()])
    assert all(map(torch.equal, *states))


def test_counting_is_the_same_on_all_devices():
    """The ways that a GPU uses, on the processor."""
    values = torch.cat((torch.randn(1000).exp2() * torch.randn(1000), torch.tensor([0.0, float("nan"), float("inf")])))
    keys = tensor_histograms._keys(torch, values)
    counts = tensor_histograms._count_keys(torch, keys)

    class OnDevice:
        """Keys of another device than the processor."""

        device = torch.device("meta")
        dtype = keys.dtype

        @staticmethod
        def to(dtype: Any) -> Any:
            return keys.to(dtype)

    assert counts.sum() == 1003
    assert torch.equal(tensor_histograms._count_keys(torch, OnDevice()), counts.float())


def test_shards_are_named_as_such(run, tmp_path):
    """A process sees its shard of a distributed tensor, and the record says so."""
    from torch.distributed.fsdp import fully_shard

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = fully_shard(nn.Linear(4, 4), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with tacho.watch(model, optimizer, histograms="both", every=1):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    (record,) = histograms_of(run)
    assert record["values"]["gradients/weight"]["n"] == 16
    assert all(values["shard"] for values in record["values"].values())
    assert tacho.read(run).histograms("weights/bias")[0].is_shard


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_compiled_step_is_reported(run):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    with tacho.watch(model, optimizer, histograms="gradients", every=1):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            step()
    run.finish()
    problems = [line for line in lines_of(run.folder.path) if line["event"] == "telemetry_error"]
    assert [problem["kind"] for problem in problems] == ["histograms_not_recorded"]


def test_invalid_arguments_raise(run):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for options, message in (
        ({"histograms": "gradient"}, "histograms='gradient': expected one of 'gradients', 'weights', 'both'"),
        ({"histograms": True}, "histograms=True: expected one of"),
        ({"histograms": "both", "every": 0}, "every=0: expected an integer of at least 1"),
        ({"histograms": "both", "every": 1.5}, "every=1.5: expected"),
    ):
        with pytest.raises(ConfigError, match=message):
            tacho.watch(model, optimizer, **options)
    with pytest.raises(ConfigError, match="pass the model"):
        tacho.watch(None, optimizer, histograms="weights")


def test_nothing_is_counted_without_media(logs):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacho.init("x", log_dir=str(logs), console=False, git=False, media=False) as run:
        with tacho.watch(model, optimizer, histograms="both", every=1):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    assert histograms_of(run) == []
