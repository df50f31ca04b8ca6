"""The calls of `torch.distributed` that a rank counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.records import RankWindow
from tests.conftest import HANG_S, Script, wait_for, whole_lines

PROGRAM = """
    import json, sys, time
    import torch
    import torch.distributed as dist
    import tachograph as tacho

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    original = dist.all_reduce
    limits = {"least_s": 6.0, "first_step_s": 600, "times_longest": 1.5}
    run = tacho.init("job", log_dir=sys.argv[1], console=False, flush_interval_s=0.05, ranks="collectives",
                     rules={"rank_hang": limits})
    assert dist.all_reduce is not original
    pair = dist.new_group([0, 1], group_desc="pair")
    ones = torch.ones(250)

    def double(tensor):
        dist.all_reduce(tensor)
        return tensor * 2

    compiled = torch.compile(double, backend="eager", fullgraph=True)  # fails if the wrapper breaks the graph
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    with tacho.training_loop(train_iterations_start=0):
        for step in range(30):
            with tacho.training_iteration():
                with tacho.forward():
                    time.sleep(0.01)
                if not (len(sys.argv) > 2 and rank == 1 and step == 10):  # a call that one rank skips
                    dist.all_reduce(ones)
                if len(sys.argv) == 2:
                    dist.all_reduce(ones, group=pair)
                if step == 29:
                    dist.barrier()
    run.finish()
    assert dist.all_reduce is original
"""

DDP_PROGRAM = """
    import sys, time
    import torch
    import torch.distributed as dist
    import tachograph as tacho
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run = tacho.init("job", log_dir=sys.argv[1], console=False, flush_interval_s=0.05, ranks="collectives")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model = DistributedDataParallel(layers)
    if sys.argv[2]:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        model.register_comm_hook(None, getattr(default_hooks, sys.argv[2]))

    def compute_slowly(grad):
        time.sleep(0.06 if rank == 1 else 0.02)

    with tacho.training_loop(train_iterations_start=0):
        for step in range(40):
            with tacho.training_iteration():
                with tacho.forward():
                    hidden = model(torch.ones(2, 4))
                hidden.register_hook(compute_slowly)  # of the backward pass, before its gradients
                with tacho.backward():
                    hidden.sum().backward()
    grads = [float(parameter.grad.sum()) for parameter in model.parameters()]
    run.finish()
    model(torch.ones(2, 4)).sum().backward()  # the hook stays, and does nothing more
    print(grads)
"""


@pytest.mark.parametrize("hook", ["", "fp16_compress_hook"])
def test_waiting_inside_the_backward_pass_of_ddp_is_measured(
    script: Callable[..., Script], ranks: list[dict[str, str]], logs: Path, hook: str
) -> None:
    programs = [script(DDP_PROGRAM, logs, hook, env=environment, preload="torch") for environment in ranks]
    grads = {program.ok() for program in programs}
    assert len(grads) == 1  # the hook averages them as DDP does
    windows = []
    for path in (logs / "job" / "metrics.jsonl", logs / "job" / "ranks" / "00001.jsonl"):
        records = [record for record in whole_lines(path) if record["event"] == "rank"]
        assert [record["seq"] > 0 for record in records] == [True, True, True]
        windows += [window for record in records[1:2] if (window := RankWindow.from_record(record)) is not None]
    fast, slow = windows
    assert fast.wait is not None and slow.wait is not None
    # Rank 1 computes 40 ms longer, in its backward pass; rank 0 waits for it.
    assert slow.own.median_s - fast.own.median_s > 0.02
    assert fast.wait.median_s - slow.wait.median_s > 0.02


def test_calls_are_counted_and_functions_restored(
    script: Callable[..., Script], ranks: list[dict[str, str]], logs: Path
) -> None:
    programs = [script(PROGRAM, logs, env=environment, preload="torch") for environment in ranks]
    for program in programs:
        program.ok()
    for path in (logs / "job" / "metrics.jsonl", logs / "job" / "ranks" / "00001.jsonl"):
        (event,) = [record for record in whole_lines(path) if record.get("name") == "collectives"]
        calls = {(row["function"], row["group"]): row for row in event["collectives"]}
        assert calls["all_reduce", "world"]["calls"] == 30
        assert calls["all_reduce", "world"]["bytes"] == 30 * 1000
        assert calls["all_reduce", "world"]["wait_s"] > 0
        assert calls["all_reduce", "pair"]["calls"] == 30
        assert calls["barrier", "world"]["calls"] == 1


def test_rank_that_skipped_a_call_disagrees(
    script: Callable[..., Script], ranks: list[dict[str, str]], logs: Path
) -> None:
    programs = [script(PROGRAM, logs, "skip", env=environment, preload="torch") for environment in ranks]
    journal = logs / "job" / "metrics.jsonl"

    def alert() -> dict[str, Any] | None:
        # A busy machine may also stop the job before that, for longer than the limit; then it continues.
        alerts = [record for record in whole_lines(journal) if record.get("rule") == "rank_hang"]
        is_last = bool(alerts) and alerts[-1]["status"] == "opened" and alerts[-1]["evidence"]["step"] == 29
        return alerts[-1] if is_last else None

    title = wait_for(alert, "the alert")["title"]
    assert title.startswith("Ranks disagree: rank "), title
    assert "all_reduce #30" in title and "barrier #30" in title, title
    for program in programs:
        program.process.kill()
        program.process.wait(HANG_S)
