"""On a GPU: recording adds no synchronisation, and phases are timed by the device, not by the launches."""

from __future__ import annotations

import collections
import contextlib
import json
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import tachograph as tacho
from tests.conftest import lines_of

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU available"),
    pytest.mark.xdist_group("cuda"),
]

SYNCS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class Loop:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batches = [torch.randn(1024, 2048, device="cuda") for _ in range(20)]

    def train(self, batches: Any) -> None:
        for batch in batches:
            loss = self.model(batch).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()


def calls_of(action: Any) -> collections.Counter[str]:
    """Count the calls of the CUDA runtime in all threads, from a trace of torch's profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        action()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return collections.Counter(event["name"] for event in events if event.get("cat") == "cuda_runtime")


def synchronising(calls: collections.Counter[str]) -> dict[str, int]:
    return {name: calls[name] for name in SYNCS}


@contextlib.contextmanager
def waiting_forbidden():
    """Let torch raise an error if it would wait for the device, in any thread."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_watching_adds_no_synchronisation(logs):
    loop = Loop()
    loop.train(loop.batches)
    bare = calls_of(lambda: loop.train(loop.batches))
    with tacho.init("gpu", log_dir=str(logs), console=False) as run, tacho.watch(loop.model, loop.optimizer):
        loop.train(tacho.track(loop.batches))
        recorded = calls_of(lambda: (loop.train(tacho.track(loop.batches)), run.flush()))
        with waiting_forbidden():
            loop.train(tacho.track(loop.batches))
            run.flush()
        # Ending the profile waits for the device, once in each trace.
        assert synchronising(recorded) == synchronising(bare), (bare, recorded)
        # Losses and norms reach the host together, not one by one.
        assert recorded["cudaMemcpyAsync"] < bare["cudaMemcpyAsync"] + len(loop.batches)
    history = tacho.read(run)
    assert len(history.series("train_loss").values) == 60
    assert len(history.series("grad_norm").values) == 60
    assert history.num_lost_records == 0 and not history.latest("telemetry_error")


def test_phases_are_timed_by_the_device(logs):
    loop = Loop()
    loop.train(loop.batches)
    torch.cuda.synchronize()
    with tacho.init("gpu", log_dir=str(logs), console=False) as run, tacho.watch(loop.model, loop.optimizer):
        for _ in range(20):
            loop.train(tacho.track(loop.batches))
        torch.cuda.synchronize()
    update = tacho.read(run).latest("event", "training_metrics_update")[-1]
    # The backward pass of linear layers does twice the work of the forward pass, but both launch equally fast.
    ratio = update["avg_backward_time_sec"] / update["avg_forward_time_sec"]
    assert 1.4 < ratio < 2.6, update


def test_logged_tensor_keeps_its_value_at_that_time(logs):
    with tacho.init("gpu", log_dir=str(logs), console=False) as run:
        value = torch.zeros((), device="cuda")
        for step in range(500):
            value += 1
            run.log({"value": value, "half": value.half() if step < 10 else 0.0}, step=step)
    series = tacho.read(run).series("value")
    assert series.values.tolist() == [float(step + 1) for step in range(500)]


def test_tensors_of_every_kind_keep_their_value(logs):
    big = 2**53 + 1
    with tacho.init("gpu", log_dir=str(logs), console=False) as run:
        with torch.inference_mode():
            run.log({"inference": torch.full((1,), 0.25, device="cuda")}, step=0)
        weight = torch.nn.Parameter(torch.tensor(0.5, device="cuda"))
        run.log({"grad": weight * 2, "double": torch.tensor(0.1, dtype=torch.float64, device="cuda")}, step=1)
        run.log({"count": torch.tensor(big, device="cuda"), "flag": torch.tensor(True, device="cuda")}, step=2)
        run.log({"nan": torch.tensor(float("nan"), device="cuda")}, step=3)
        with torch.cuda.stream(torch.cuda.Stream()):
            run.log({"side": torch.tensor(3.0, device="cuda")}, step=4)
    steps = {record["global_step"]: record for record in lines_of(logs / "gpu") if record["event"] == "step"}
    assert steps[0]["inference"] == 0.25 and steps[4]["side"] == 3.0
    assert (steps[1]["grad"], steps[1]["double"]) == (1.0, 0.1)
    assert (steps[2]["count"], steps[2]["flag"]) == (big, True)
    assert steps[3]["nan"] == "NaN" and steps[3]["nan_inf_detected"] is True


def test_threads_log_tensors_side_by_side(logs):
    with tacho.init("gpu", log_dir=str(logs), console=False) as run:

        def log(name: str, first: int) -> None:
            for step in range(600):
                run.log({name: torch.tensor(float(first + step), device="cuda")}, step=step)

        threads = [threading.Thread(target=log, args=(f"t{number}", 1000 * number)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    history = tacho.read(run)
    for number in range(3):
        values = history.series(f"t{number}").values.tolist()
        assert values == [float(1000 * number + step) for step in range(600)]


def test_graphs_can_be_captured_while_values_are_read(logs):
    matrix = torch.randn(256, 256, device="cuda")
    matrix @ matrix  # cuBLAS cannot start while a graph is captured
    with tacho.init("gpu", log_dir=str(logs), console=False, flush_interval_s=0.01) as run:
        for number in range(40):
            for step in range(50):
                run.log({"value": matrix.sum()}, step=50 * number + step)
            run.backend.wake()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = matrix
                for _ in range(200):
                    result = result @ matrix
            graph.replay()
        torch.cuda.synchronize()
    assert len(tacho.read(run).series("value").values) == 2000


def test_watching_does_not_change_the_weights(logs):
    def weights(is_watched: bool) -> bytes:
        loop = Loop()
        if not is_watched:
            loop.train(loop.batches)
        else:
            with tacho.init("gpu", log_dir=str(logs), console=False), tacho.watch(loop.model, loop.optimizer):
                loop.train(tacho.track(loop.batches))
        return b"".join(weight.detach().cpu().numpy().tobytes() for weight in loop.model.parameters())

    assert weights(True) == weights(False)


def test_histograms_are_counted_without_synchronisation(logs):
    loop = Loop()
    with tacho.init("gpu", log_dir=str(logs), console=False) as run:
        with tacho.watch(loop.model, loop.optimizer, histograms="both", every=5):
            loop.train(loop.batches)
            run.flush()
            with waiting_forbidden():
                loop.train(loop.batches)
                run.flush()
    history = tacho.read(run)
    assert [each.step for each in history.histograms("gradients/0.weight")] == list(range(0, 40, 5))
    assert {each.num_values for each in history.histograms("weights/0.weight")} == {1 << 20}  # a sample
    assert {each.num_values for each in history.histograms("weights/0.bias")} == {2048}
    assert history.num_lost_records == 0 and not history.latest("telemetry_error")


def test_histograms_count_like_the_processor(logs):
    from tachograph.integrations._common.tensor_histograms import _count_keys, _keys

    values = torch.randn(100_000).exp2() * torch.randn(100_000)
    expected = torch.bincount(_keys(torch, values), minlength=512)
    for dtype in (torch.float32, torch.float64):
        keys = _keys(torch, values.to("cuda", dtype))
        assert torch.equal(_count_keys(torch, keys).cpu().long(), expected)
    try:
        torch.use_deterministic_algorithms(True)
        assert torch.equal(_count_keys(torch, keys).cpu().long(), expected)
    finally:
        torch.use_deterministic_algorithms(False)
