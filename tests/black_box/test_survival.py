"""Dumps while something else fails: training continues, and a dump is complete or absent."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import tachograph
from tests.black_box.test_faults import WIDTH, Data, make_model, train

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


@pytest.mark.long
def test_compiled_model(logs):
    """Hooks would break its graph, so the batch alone is evidence."""
    num_compilations = 0

    def count_compilations(graph, inputs):
        nonlocal num_compilations
        num_compilations += 1
        return graph.forward

    model = torch.compile(make_model(), backend=count_compilations)
    dump = train(logs, data=Data(bad_index=41), model=model)
    assert (dump.verdict.kind, dump.verdict.details["indices"]) == ("bad_input", [41])
    assert num_compilations == 1


def test_exception_in_the_step_of_a_nan(logs):
    def loss_of(model, batch, step):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        if step == 60:
            raise RuntimeError("the loader of the next batch failed")
        return loss * float("nan") if step == 59 else loss

    with pytest.raises(RuntimeError, match="next batch failed"):
        train(logs, loss_of=loss_of)
    run = tachograph.read(str(logs / "x"))
    assert run.state == "failed"
    assert {"exception", "not_finite"} >= {dump.reason for dump in run.dumps}
    assert "exception" in {dump.reason for dump in run.dumps}
    assert math.isnan(run.series("train_loss").values[59])


@pytest.mark.long
def test_ten_thousand_parameter_tensors(logs):
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(10_000)])
            self.head = nn.Linear(WIDTH, 1)

        def forward(self, inputs):
            return self.head(inputs) * torch.cat(list(self.scales)).mean()

    model = Many()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    with tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0) as run:
        for step in range(12):
            loss = model(torch.randn(4, WIDTH)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if step == 8:
                model.scales[7_123].grad.fill_(float("nan"))
            optimizer.step()
            run.log(train_loss=loss.item(), step=step)
        run.flush()
    (dump,) = tachograph.read(str(logs / "x")).dumps
    assert "scales.7123" in dump.verdict.text
    sizes = [path.stat().st_size for path in Path(dump.path).rglob("*") if path.is_file()]
    assert sum(sizes) < 4 << 20


_TRAIN_WITHOUT_MEMORY = """
    import resource, sys, tachograph
    with tachograph.init("x", log_dir=sys.argv[1], console=False, system_interval_s=0) as run:
        for step in range(50):
            run.log(train_loss=1.0 / (step + 1), step=step)
        assert run.flush()
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), resource.RLIM_INFINITY))
        blocks = []
        while True:
            blocks.append(bytearray(1 << 16))
"""


def test_host_has_no_memory_left_for_the_dump(script, logs):
    """The process can get no more memory than the blocks that the exception releases."""
    code, _, err = script(_TRAIN_WITHOUT_MEMORY, logs, preload="").wait()
    assert code == 1, err
    assert "MemoryError" in err.splitlines()[-1]
    run = tachograph.read(str(logs / "x"))
    assert run.state == "failed"
    assert len(run.series("train_loss").values) == 50
    for dump in run.dumps:  # complete or absent
        assert json.loads((Path(dump.path) / "dump.json").read_text())


_SHARDED = """
    import os, sys, time
    import torch, torch.distributed as dist, tachograph
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer) if isinstance(layer, nn.Linear) else None
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tachograph.init("x", log_dir=sys.argv[1], console=False, system_interval_s=0) as run:
        tachograph.watch(model, optimizer)
        for step in range(80):
            inputs = torch.randn(4, 8)
            if step == 60 and rank == 1:
                inputs[2, 3] = float("nan")
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(train_loss=loss.item(), step=step)
            time.sleep(0.01)
        run.flush()
    dist.destroy_process_group()
    print("trained", flush=True)
"""


@pytest.mark.long
def test_sharded_model_on_two_ranks(script, ranks, logs):
    """Values of a sharded model are on several ranks, and a dump must not wait for the others."""
    programs = [script(_SHARDED, logs, env=environment) for environment in ranks]
    assert [each.ok() for each in programs] == ["trained\n"] * 2
    run = tachograph.read(str(logs / "x"))
    assert run.state == "finished"
    (dump,) = run.dumps
    assert (dump.reason, dump.verdict.confidence) == ("not_finite", "possible")
    assert "NaN" in dump.verdict.text
