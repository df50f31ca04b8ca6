"""The report about a GPU that is out of memory: its accounting, its advice, and the observer that makes it."""

from __future__ import annotations

import json

import pytest

from tachograph.black_box._memory_report import (
    KnownStorage,
    account_memory,
    allocation_sites,
    batch_growth,
    memory_verdict,
)
from tachograph.reader import read

MIB = 1 << 20
GIB = 1 << 30


def segment(address, *blocks, device=0, **more):
    """Return a segment of blocks, each a state and a size in MiB."""
    entries, at = [], address
    for state, size_mib in blocks:
        entries.append({"address": at, "size": int(size_mib * MIB), "state": state, "frames": []})
        at += entries[-1]["size"]
    return {"device": device, "address": address, "total_size": at - address, "blocks": entries, **more}


def example(**request):
    segments = [
        segment(0, ("active_allocated", 100), ("active_allocated", 100), ("inactive", 300), ("active_allocated", 200)),
        segment(GIB, ("active_allocated", 500), ("active_pending_free", 24), ("inactive", 2000)),
        segment(8 * GIB, ("active_allocated", 4096), device=1),
    ]
    storages = [
        KnownStorage(0, "parameters", "[100] float32"),
        KnownStorage(100 * MIB + 512, "gradients", "[100] float32"),  # a view into its block
        KnownStorage(500 * MIB, "optimizer"),
        KnownStorage(500 * MIB, "tensors"),  # the same storage as a variable
    ]
    return account_memory(segments, storages, device=0, **request)


def test_accounting_adds_up_to_reserved_memory():
    report = example(requested_bytes=GIB, total_bytes=4 * GIB, free_bytes=100 * MIB)
    in_mib = {name: size / MIB for name, size in report["uses_bytes"].items() if size}
    assert in_mib == {
        "parameters": 100,
        "gradients": 100,
        "optimizer": 200,
        "activations": 500,
        "pending": 24,
        "cached": 2000,
        "fragmented": 300,
    }
    assert sum(report["uses_bytes"].values()) == report["reserved_bytes"] and report["accounted_share"] == 1.0
    assert report["outside_bytes"] == 4 * GIB - 100 * MIB - report["reserved_bytes"]
    assert [item["tensor"] for item in report["largest"]] == ["", "[100] float32", "[100] float32"]
    assert report["largest_unknown"] == [{"size_bytes": 500 * MIB, "num": 1}]


def test_blocks_without_addresses_are_found():
    segments = [segment(0, ("active_allocated", 1), ("active_allocated", 2))]
    for block in segments[0]["blocks"]:
        del block["address"]  # as in earlier versions of PyTorch
    report = account_memory(segments, [KnownStorage(MIB, "parameters")], device=0)
    assert report["uses_bytes"]["parameters"] == 2 * MIB


def test_millions_of_blocks_are_counted_as_a_whole(monkeypatch):
    monkeypatch.setattr("tachograph.black_box._memory_report._MAX_BLOCKS", 2)
    segments = [segment(at * GIB, *[("active_allocated", 1)] * 2, active_size=2 * MIB) for at in range(3)]
    report = account_memory(segments, [KnownStorage(0, "parameters")], device=0)
    assert report["uses_bytes"]["parameters"] == MIB and report["uses_bytes"]["activations"] == 5 * MIB


def test_fragmentation_is_named_only_if_it_would_help():
    report = example(requested_bytes=200 * MIB, total_bytes=4 * GIB, free_bytes=100 * MIB)
    assert "expandable" not in memory_verdict(report).text  # no free block is too small
    report = account_memory([segment(0, *[("active_allocated", 9), ("inactive", 9)] * 90)], [], device=0)
    report |= {"requested_bytes": 500 * MIB}
    report["uses_bytes"] |= {"fragmented": report["uses_bytes"].pop("cached"), "cached": 0}
    verdict = memory_verdict(report, allocator_variable="PYTORCH_ALLOC_CONF")
    assert verdict.kind == "gpu_fragmented"
    assert (
        "Free blocks that are too small hold 0.8 GiB: set PYTORCH_ALLOC_CONF=expandable_segments:True" in verdict.text
    )
    assert memory_verdict({**report, "is_expandable": True}).kind == "gpu_out_of_memory"
    assert memory_verdict({**report, "requested_bytes": GIB}).kind == "gpu_out_of_memory"  # together too small, too


def test_verdict_names_the_largest_holders():
    text = memory_verdict(example(requested_bytes=3 * GIB, total_bytes=4 * GIB, free_bytes=100 * MIB)).text
    assert text.startswith("GPU 0 is out of memory: 3.0 GiB were requested, 100.0 MiB of 4.0 GiB are free. In use: ")
    assert "lost to fragmentation 2.2 GiB, outside of PyTorch (context, libraries, other processes) 0.8 GiB" in text
    assert "gradients" not in text  # too little to matter
    limited = memory_verdict(example(requested_bytes=3 * GIB, total_bytes=4 * GIB, free_bytes=100 * GIB)).text
    assert "3.0 GiB were requested, and this process may use 4.0 GiB. In use" in limited


def test_kept_tensors_and_graphs_are_named():
    segments = [segment(0, *[("active_allocated", 8)] * 100)]
    storages = [KnownStorage(8 * MIB * index, "tensors", "[2048, 1024] float32") for index in range(60)]
    report = account_memory(segments, storages, device=0, requested_bytes=GIB)
    verdict = memory_verdict(report)
    assert verdict.kind == "gpu_tensors_kept"
    assert "60 tensors [2048, 1024] float32 in Python variables hold 0.5 GiB" in verdict.text
    report = account_memory(segments, storages[:8], device=0, requested_bytes=GIB)  # variables of a forward pass
    assert memory_verdict(report).kind == "gpu_out_of_memory"
    verdict = memory_verdict({**report, "num_graph_scalars": 1200})
    assert verdict.kind == "gpu_graphs_kept" and "1,200 scalars in Python variables, such as losses" in verdict.text


def test_the_cause_that_holds_most_is_the_verdict():
    segments = [segment(0, *[("active_allocated", 8)] * 60, *[("inactive", 2), ("active_allocated", 1)] * 60)]
    storages = [KnownStorage(8 * MIB * index, "tensors", "[2048, 1024] float32") for index in range(60)]
    report = account_memory(segments, storages, device=0, requested_bytes=4 * MIB)
    assert report["uses_bytes"]["fragmented"] == 120 * MIB
    verdict = memory_verdict(report)
    assert verdict.kind == "gpu_tensors_kept"
    assert verdict.text.index("60 tensors") < verdict.text.index("Free blocks that are too small hold")
    # Tensors that the graphs of losses keep are no separate cause.
    verdict = memory_verdict({**report, "num_graph_scalars": 1200})
    assert verdict.kind == "gpu_graphs_kept" and "60 tensors" not in verdict.text


def test_logits_are_recognised_by_their_exact_size():
    num_tokens, vocabulary = 8 * 1024, 32_000
    size = num_tokens * vocabulary * 4
    segments = [segment(0, ("active_allocated", size / MIB), ("active_allocated", 77))]
    report = account_memory(segments, [], device=0, requested_bytes=size)
    text = memory_verdict(report, logits_shape=(num_tokens, vocabulary)).text
    assert "2.0 GiB have the size of the logits (8,192 tokens × 32,000): the plugin cut_cross_entropy" in text
    assert "logits" not in memory_verdict(report, logits_shape=(num_tokens, vocabulary + 999)).text
    assert "logits" not in memory_verdict(report).text


def test_batch_is_compared_with_earlier_ones():
    earlier = [{"input_ids": (4, 6144)}, {"input_ids": (4, 512)}, {"input_ids": (4, 6000)}]
    text = batch_growth({"input_ids": (4, 8192)}, earlier)
    assert text == "'input_ids' of this step has 4 × 8,192 values; the largest of 3 before had 4 × 6,144"
    assert batch_growth({"input_ids": (4, 6144)}, earlier) == ""
    assert batch_growth({"input_ids": (4, 8192)}, earlier[:2]) == ""  # too few to compare
    assert batch_growth({"pixels": (4, 8192)}, earlier) == ""


def test_sites_are_the_innermost_lines_outside_torch():
    frames = [
        {"filename": "/x/torch/nn/functional.py", "line": 9, "name": "linear"},
        {"filename": "/home/me/model.py", "line": 31, "name": "forward"},
    ]
    segments = [segment(0, ("active_allocated", 3), ("active_allocated", 2), ("inactive", 9))]
    for block in segments[0]["blocks"]:
        block["frames"] = frames
    (site,) = allocation_sites(segments, 0)
    assert site == {"frames": ["/home/me/model.py:31 in forward"], "num": 2, "size_bytes": 5 * MIB}


TRAIN = """
    import sys, types
    import torch
    import tachograph
    from tachograph.black_box import _memory_observer
    from tachograph.black_box._memory_observer import MemoryReporter, known_storages

    # A CPU behaves like a GPU whose allocator has one segment per storage.
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(4, 512)).sum()
    loss.backward()
    optimizer.step()
    kept = torch.zeros(1000, 100)
    del loss

    def storages(objects, device):
        return known_storages(objects, device, "cpu")

    def snapshot():
        sizes = {}
        for owner in _memory_observer._objects():
            if isinstance(owner, torch.Tensor):
                sizes[owner.untyped_storage().data_ptr()] = owner.untyped_storage().nbytes()
        for parameter in model.parameters():
            for tensor in (parameter, parameter.grad, *optimizer.state[parameter].values()):
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return [
            {"address": address, "total_size": size, "blocks": [{"size": size, "state": "active_allocated"}]}
            for address, size in sizes.items()
        ]

    _memory_observer._MAX_SCAN_S = 240.0  # on a busy machine
    torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: 0
    torch.cuda.memory_snapshot = snapshot
    _memory_observer.known_storages = storages
    observers = []
    torch._C._cuda_attach_out_of_memory_observer = observers.append
    run = tachograph.init("x", log_dir=sys.argv[1], system_interval_s=0, git=False, code=False)
    run.log(train_loss=1.0, step=7)
    run.flush()
    run.collect()
    (observer,) = observers
    observer(0, 1 << 30, 4 << 30, 1 << 20)
    observer(0, 1 << 30, 4 << 30, 1 << 20)  # too soon
    run.finish()
    observer(0, 1 << 30, 4 << 30, 1 << 20)  # after the end
    print("done")
"""


def test_observer_writes_a_dump_with_categories(logs, script):
    assert script(TRAIN, logs, preload="torch").ok().endswith("done\n")
    history = read(logs / "x")
    (dump,) = history.dumps
    assert (dump.reason, dump.step, dump.rank) == ("out_of_memory", 7, 0)
    assert dump.verdict.text.startswith("GPU 0 is out of memory: 1.0 GiB were requested")
    uses = dump["memory"]["uses_bytes"]
    weights = 4 * (512 * 512 + 512 + 2 * 512 + 512 * 8 + 8)
    assert uses["parameters"] == uses["gradients"] == weights, json.dumps(uses)
    assert uses["optimizer"] == pytest.approx(2 * weights, rel=0.01)  # two moments, and a step count each
    assert uses["buffers"] == 2 * 4 * 512 + 8
    assert uses["tensors"] >= 400_000
    assert dump["memory"]["accounted_share"] == 1.0
    assert [record["reason"] for record in history.records("dump")] == ["out_of_memory"]
