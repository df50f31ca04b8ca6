"""Traces of torch's profiler on request: stored, answered, and never in conflict with other profilers."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile
from torch.profiler import schedule as torch_schedule

import tachograph as tacho
from tachograph.exceptions import ControlError
from tachograph.integrations._common import tracer as _trace
from tachograph.integrations._common.trace_session import TraceSession, find_obstacle
from tachograph.integrations._common.tracer import StepTracer
from tachograph.journal import RunFolder, write_requests
from tachograph.reader import list_traces, open_trace, request_control
from tests.conftest import HANG_S, wait_for

pytestmark = pytest.mark.xdist_group("torch")

SETTINGS = {
    "control_interval_s": 0.02,
    "flush_interval_s": 0.02,
    "system_interval_s": 0,
    "git": False,
    "console": False,
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Loop:
    """A training loop that a test advances step by step."""

    def __init__(self, logs: Path) -> None:
        self.run = tacho.init("x", log_dir=logs, **SETTINGS)
        self.folder = RunFolder(logs / "x")
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.tracer = StepTracer(self.run)

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()
            self.tracer.step()

    def request(self, steps: Any) -> str:
        """Write a request to the control file, and wait until the trainer has seen it."""
        request = write_requests(self.folder, {"profile_steps": steps}, source="cli")["profile_steps"]
        wait_for(lambda: self.answers(request))
        return request

    def answers(self, request: str) -> list[dict[str, Any]]:
        found = tacho.read(self.folder.path).latest("event", "control_ack")
        return [record for record in found if record["id"] == request]

    def answer(self, request: str) -> dict[str, Any]:
        """Return the final answer to a request."""
        answers = wait_for(lambda: [each for each in self.answers(request) if each["status"] != "pending"])
        return answers[-1]

    def rejected(self, request: str) -> str:
        answer = self.answer(request)
        assert answer["status"] == "rejected", answer
        return str(answer["reason"])


@pytest.fixture
def loop(logs: Path) -> Iterator[Loop]:
    loop = Loop(logs)
    yield loop
    loop.run.finish()
    assert not torch.autograd._profiler_enabled()
    assert torch.autograd.profiler._prepare_profiler is torch._C._autograd._prepare_profiler
    assert [path.name for path in loop.folder.traces.glob(".*")] == []


def is_entry_point_restored() -> bool:
    return not hasattr(torch.autograd.profiler._run_on_profiler_start, "__wrapped__")


def test_trace_is_stored_in_a_format_perfetto_opens(loop):
    loop.step(3)
    request = loop.request(2)
    loop.step()  # the trace starts here
    assert torch.autograd._profiler_enabled()
    loop.step()
    assert torch.autograd._profiler_enabled()
    loop.step()  # and ends here
    assert not torch.autograd._profiler_enabled()
    answer = loop.answer(request)
    assert [each["status"] for each in loop.answers(request)] == ["pending", "applied"]
    assert (answer["value"], answer["path"]) == (2, "traces/step-000004-2.json.gz")
    (trace,) = list_traces(loop.folder)
    assert (trace.name, trace.first_step, trace.num_steps) == ("step-000004-2.json.gz", 4, 2)
    (event,) = tacho.read(loop.folder.path).latest("event", "trace")
    assert event["size_bytes"] == trace.size_bytes > 0
    assert (event["path"], event["first_step"], event["num_steps"]) == (answer["path"], 4, 2)
    assert event["duration_s"] > 0

    content = json.loads(gzip.decompress((loop.folder.traces / trace.name).read_bytes()))
    events = content["traceEvents"]
    assert all({"ph", "name"} <= event.keys() for event in events)
    complete = [event for event in events if event["ph"] == "X"]
    assert all(isinstance(event["ts"], float | int) and event["dur"] >= 0 and "tid" in event for event in complete)
    names = [event["name"] for event in complete]
    assert names.count("aten::linear") == 2
    assert sorted(name for name in names if name.startswith("ProfilerStep#")) == ["ProfilerStep#4", "ProfilerStep#5"]
    assert any("Optimizer.step" in name for name in names)


def test_second_trace_of_a_step_keeps_the_first(loop):
    for name in ("step-000008-1.json.gz", "step-000008-1-2.json.gz"):
        request = loop.request(1)
        loop.tracer.step(7)
        loop.tracer.step(8)
        assert loop.answer(request)["path"] == f"traces/{name}"


def test_the_newest_request_wins(loop):
    first, second = loop.request(5), loop.request(1)
    assert loop.answer(first)["status"] == "superseded"
    loop.step(2)
    assert loop.answer(second)["value"] == 1


@pytest.mark.parametrize("steps", [0, -1, 1001, 2.5, True, "5", None])
def test_invalid_number_of_steps_is_rejected(loop, steps):
    assert "an integer from 1 to 1000" in loop.rejected(loop.request(steps))
    with pytest.raises(ControlError, match="an integer from 1 to 1000"):
        request_control(tacho.read(loop.folder.path), {"profile_steps": steps}, source="cli")
    loop.step(2)
    assert list_traces(loop.folder) == []


def test_trace_without_a_tracer_is_rejected(logs):
    with tacho.init("x", log_dir=logs, **SETTINGS) as run:
        folder = RunFolder(logs / "x")
        write_requests(folder, {"profile_steps": 1}, source="cli")
        wait_for(lambda: tacho.read(folder.path).latest("event", "control_ack"))
        run.flush()
    (answer,) = tacho.read(folder.path).latest("event", "control_ack")
    assert answer["status"] == "rejected"
    assert "the steps of this run cannot be profiled" in answer["reason"]


def test_trace_without_torch_is_rejected(script, logs):
    script(
        """
        import sys, time, tachograph as tacho
        from tachograph.integrations._common.tracer import StepTracer
        from tachograph.journal import RunFolder, write_requests
        often = {"control_interval_s": 0.02, "flush_interval_s": 0.02}
        run = tacho.init("x", log_dir=sys.argv[1], git=False, console=False, **often)
        tracer = StepTracer(run)
        write_requests(run.folder, {"profile_steps": 1}, source="cli")
        deadline_s = time.monotonic() + 120
        while run.control_panel.profile is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        tracer.step()
        run.finish()
        assert "torch" not in sys.modules
        """,
        logs,
    ).ok()
    assert "torch is not in use" in tacho.read(logs / "x").latest("event", "control_ack")[-1]["reason"]


# Other profilers ---------------------------------------------------------------------------------------------------


def work() -> None:
    for _ in range(10):
        torch.ones(4, 4) @ torch.ones(4, 4)


def is_whole(profiler: Any, path: Path) -> bool:
    """Return whether a user's profiler has all its events; a disturbed one would crash the process here."""
    profiler.export_chrome_trace(str(path))
    return sum(event["name"] == "aten::mm" for event in json.loads(path.read_text())["traceEvents"]) == 10


def test_running_user_profiler_is_not_disturbed(loop, tmp_path):
    request = loop.request(1)
    with torch_profile(activities=[ProfilerActivity.CPU]) as theirs:
        work()
        loop.tracer.step()
        assert "another profiler is running" in loop.rejected(request)
    assert is_whole(theirs, tmp_path / "theirs.json")


def scheduled(num_waits: int, num_warm: int) -> torch_profile:
    return torch_profile(
        activities=[ProfilerActivity.CPU], schedule=torch_schedule(wait=num_waits, warmup=num_warm, active=1, repeat=1)
    )


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # emitted by some versions of torch
def test_user_profiler_in_warm_up_is_not_disturbed(loop, tmp_path):
    request = loop.request(1)
    theirs = scheduled(0, 1)
    theirs.start()
    loop.tracer.step()
    assert "another profiler is warming up" in loop.rejected(request)
    theirs.step()
    work()
    theirs.stop()
    assert is_whole(theirs, tmp_path / "theirs.json")
    request = loop.request(1)
    loop.step(2)  # their profiler still exists, but is done
    assert loop.answer(request)["status"] == "applied"


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_trace_yields_to_a_scheduled_user_profiler(loop, tmp_path):
    request = loop.request(100)
    theirs = scheduled(2, 1)
    theirs.start()
    loop.step()
    assert torch.autograd._profiler_enabled()
    for _ in range(3):
        theirs.step()
        loop.tracer.step()
    work()
    theirs.stop()
    assert "another profiler was started meanwhile" in loop.rejected(request)
    assert is_whole(theirs, tmp_path / "theirs.json")


def test_trace_yields_to_a_new_user_profiler(loop, tmp_path):
    request = loop.request(5)
    loop.step(2)
    with torch_profile(activities=[ProfilerActivity.CPU]) as theirs:
        work()
        loop.tracer.step()
        loop.tracer.step()
    assert "another profiler was started meanwhile" in loop.rejected(request)
    assert is_entry_point_restored()
    assert is_whole(theirs, tmp_path / "theirs.json")
    assert list_traces(loop.folder) == []


def test_trace_yields_to_a_profiler_in_another_thread(loop, tmp_path):
    request = loop.request(1000)
    loop.step(2)
    found: list[bool] = []

    def other() -> None:
        with torch_profile(activities=[ProfilerActivity.CPU]) as theirs:
            work()
        found.append(is_whole(theirs, tmp_path / "theirs.json"))

    thread = threading.Thread(target=other)
    thread.start()
    while thread.is_alive():
        loop.step()
        time.sleep(0.001)
    assert found == [True]
    assert "another profiler was started meanwhile" in loop.rejected(request)


def test_profiler_ended_by_other_code_is_rejected(loop):
    request = loop.request(1)
    loop.step()
    torch.autograd._disable_profiler()
    loop.step()
    assert "ended by other code in the process" in loop.rejected(request)


def test_watched_loop_is_traced_from_the_command_line(script, logs):
    trainer = script(
        """
        import sys, time, torch, tachograph as tacho
        torch.set_num_threads(1)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        often = {"control_interval_s": 0.02, "flush_interval_s": 0.02}
        with tacho.init("x", log_dir=sys.argv[1], git=False, console=False, **often) as run:
            tacho.watch(model, optimizer)
            while not run.should_stop:
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                time.sleep(0.005)
        """,
        logs,
        preload="torch",
    )
    wait_for((logs / "x" / "metrics.jsonl").exists)
    command = [sys.executable, "-m", "tachograph", "control", "x", "--log-dir", str(logs), "--wait", "240"]
    wait_for(lambda: "instrumented" in (logs / "x" / "metrics.jsonl").read_text())
    accepted = subprocess.run([*command, "--profile-steps", "3"], capture_output=True, text=True, check=False)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert "profile_steps=3 applied: traces/step-" in accepted.stdout
    rejected_request = subprocess.run([*command, "--profile-steps", "0"], capture_output=True, text=True, check=False)
    assert (rejected_request.returncode, "from 1 to 1000" in rejected_request.stderr) == (1, True)
    subprocess.run([*command, "--stop"], capture_output=True, check=True)
    trainer.ok()
    (trace,) = list_traces(RunFolder(logs / "x"))
    content = json.loads(gzip.decompress((logs / "x" / "traces" / trace.name).read_bytes()))
    assert sum(event["name"] == "aten::linear" for event in content["traceEvents"]) == 3


# The end -----------------------------------------------------------------------------------------------------------


def test_end_of_run_ends_the_trace(loop):
    request = loop.request(10)
    loop.step(4)
    loop.run.finish()
    assert not torch.autograd._profiler_enabled()
    assert loop.rejected(request) == "the run ended after 3 of 10 steps"
    loop.step(20)
    assert is_entry_point_restored()
    assert list_traces(loop.folder) == []


def test_pending_request_is_answered_at_the_end(loop):
    request = loop.request(10)
    loop.tracer.close()
    loop.tracer.close()
    assert loop.rejected(request) == "the run ended before the next step"


def test_finish_waits_for_a_trace_being_stored(loop, monkeypatch):
    monkeypatch.setattr("tachograph.integrations._common.tracer._EXIT_TIMEOUT_S", HANG_S)
    request = loop.request(30)
    loop.step(31)
    loop.run.finish()
    assert loop.answer(request)["status"] == "applied"
    assert tacho.read(loop.folder.path).latest("event", "trace")


def test_forked_child_collects_nothing(script, logs):
    script(
        """
        import os, resource, sys, time, torch, tachograph as tacho
        from tachograph.integrations._common import tracer as tracer_module
        from tachograph.integrations._common.tracer import StepTracer
        from tachograph.journal import write_requests
        tracer_module._EXIT_TIMEOUT_S = 240.0
        torch.set_num_threads(1)
        often = {"control_interval_s": 0.02, "flush_interval_s": 0.02}
        run = tacho.init("x", log_dir=sys.argv[1], git=False, console=False, **often)
        tracer = StepTracer(run)
        write_requests(run.folder, {"profile_steps": 2}, source="cli")
        while run.control_panel.profile is None:
            time.sleep(0.01)
        tracer.step()
        assert torch.autograd._profiler_enabled()
        a = torch.ones(4, 4)
        pid = os.fork()
        if pid == 0:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(50_000):
                a @ a
                tracer.step()
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        a @ a
        tracer.step()
        tracer.step()
        run.finish()
        """,
        logs,
        preload="torch",
    ).ok()
    assert len(list_traces(RunFolder(logs / "x"))) == 1
    assert tacho.read(logs / "x").latest("event", "control_ack")[-1]["status"] == "applied"


# Bounds and faults -------------------------------------------------------------------------------------------------


def test_at_most_twenty_traces_are_kept(loop):
    loop.folder.traces.mkdir()
    for number in range(20):
        (loop.folder.traces / f"step-{number:06d}-1.json.gz").write_bytes(b"x")
    request = loop.request(1)
    loop.step(2)
    assert "already has 20 traces" in loop.rejected(request)


def test_long_trace_is_ended_and_kept(loop, monkeypatch):
    monkeypatch.setattr("tachograph.integrations._common.trace_session._MAX_DURATION_S", 0.0)
    request = loop.request(100)
    loop.step(2)
    answer = loop.answer(request)
    assert (answer["status"], answer["value"], answer["reason"]) == ("applied", 1, "ended after 0 s")


def test_nearly_full_disk_rejects_a_trace(loop, monkeypatch):
    monkeypatch.setattr(_trace, "_MIN_FREE_BYTES", shutil.disk_usage(loop.folder.path).total + 1)
    request = loop.request(1)
    loop.step(2)
    assert "disk space is free where the run is recorded" in loop.rejected(request)


def test_storage_failure_rejects_the_request(loop):
    loop.folder.traces.write_text("in the way")
    request = loop.request(1)
    loop.step(2)
    assert "could not be stored" in loop.rejected(request)
    loop.folder.traces.unlink()
    request = loop.request(1)
    loop.step(2)
    assert loop.answer(request)["status"] == "applied"


def test_leftovers_of_a_killed_process_are_removed(loop):
    loop.folder.traces.mkdir()
    (loop.folder.traces / ".step-000001-1.json.gz.plain.tmp").write_bytes(b"half")
    request = loop.request(1)
    loop.step(2)
    loop.answer(request)
    assert not list(loop.folder.traces.glob(".*"))


def test_a_disabled_run_is_not_traced():
    run = tacho.init("x", enabled=False)
    tracer = StepTracer(run)
    tracer.step()
    tracer.close()
    run.finish()
    assert run.folder is None and run.collectors == []


def test_step_without_a_request_costs_almost_nothing(loop):
    def cost_s(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(20):
            start_s = time.thread_time()
            for _ in range(1_000):
                call()
            times.append((time.thread_time() - start_s) / 1_000)
        return min(times)

    assert cost_s(loop.tracer.step) < 20 * cost_s(lambda: None)  # about 3 times


def test_trace_names_cannot_leave_the_folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.traces.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (folder.traces / "step-000001-1.json.gz").symlink_to(tmp_path / "secret")
    (folder.traces / "step-000002-1.json.gz").mkdir()
    (folder.traces / "step-000003-1.json.gz").write_bytes(b"trace")
    assert [trace.name for trace in list_traces(folder)] == ["step-000003-1.json.gz"]
    for name in ("step-000001-1.json.gz", "step-000002-1.json.gz", "../secret", "step-000004-1.json.gz", ""):
        assert open_trace(folder, name) is None
    with open_trace(folder, "step-000003-1.json.gz") as file:  # type: ignore[union-attr]
        assert file.read() == b"trace"
    elsewhere = RunFolder(tmp_path / "other")
    elsewhere.path.mkdir()
    elsewhere.traces.symlink_to(folder.traces)
    assert list_traces(elsewhere) == []
    assert open_trace(elsewhere, "step-000003-1.json.gz") is None


def test_no_obstacle_without_another_profiler():
    assert find_obstacle(torch) is None
    assert TraceSession(torch).fault == ""
