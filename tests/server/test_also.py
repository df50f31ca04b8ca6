"""`tacho ui --also`: runs of another tool in the dashboard, while that tool writes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import httpx
import psutil
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tests.conftest import HANG_S, wait_for, wait_for_lines


class Writer:
    """Writes one scalar with the real package."""

    def __init__(self, folder):
        self._writer = EventFileWriter(str(folder))

    def add(self, begin, end):
        for step in range(begin, end):
            summary = Summary(value=[Summary.Value(tag="loss", simple_value=step / 4)])
            self._writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
        self._writer.flush()


def values(running, run):
    url = f"http://127.0.0.1:{running.port}/api/v1/runs/{run}/series"
    response = httpx.get(url, params={"name": "loss", "points": 10_000}, timeout=HANG_S)
    if response.status_code != 200:
        return []
    (series,) = response.json()["series"]
    return [value for line in series["lines"] for value in line["y"]]


def names(running):
    runs = httpx.get(f"http://127.0.0.1:{running.port}/api/v1/runs", timeout=HANG_S).json()["runs"]
    return sorted(run["name"] for run in runs)


def watcher_of(running):
    (child,) = psutil.Process(running.process.pid).children()
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_runs_of_another_tool_appear_and_grow(logs, tmp_path, dashboard, number):
    board = tmp_path / "board"
    board.mkdir()  # nothing has been logged yet
    running = dashboard("--also", f"tensorboard:{board}")
    assert names(running) == []
    first = Writer(board / "first")
    first.add(0, 10)
    wait_for(lambda: values(running, "first") == [step / 4 for step in range(10)], "the first points")
    first.add(10, 500)
    second = Writer(board / "second")
    second.add(0, 3)
    wait_for(lambda: values(running, "first") == [step / 4 for step in range(500)], "the new points")
    wait_for(lambda: values(running, "second") == [0, 0.25, 0.5], "the second run")
    assert names(running) == ["first", "second"]
    steps = [record["global_step"] for record in wait_for_lines(logs / "first") if record["event"] == "step"]
    assert steps == list(range(500))
    watcher = watcher_of(running)
    code, _, err = running.end(number)
    assert (code, err) == (130 if number == signal.SIGINT else -number, "")
    wait_for(lambda: not watcher.is_running() or watcher.status() == psutil.STATUS_ZOMBIE, "the end of the watcher")


def test_run_that_cannot_be_imported_is_reported_once(logs, tmp_path, dashboard):
    source = tmp_path / "a.jsonl"
    source.write_text('{"step": 0, "loss": 1}\n{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n')
    running = dashboard("--also", f"jsonl:{source}")
    wait_for(lambda: len(values(running, "a")) == 3, "the run")
    (tmp_path / "new").write_text('{"step": 7, "loss": 1}\n')
    (tmp_path / "new").rename(source)
    line = running.process.stderr.readline()
    assert "has changed since it was imported" in line
    assert running.end()[2] == ""


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ("tensorbord:.", "unknown importer 'tensorbord'; did you mean 'tensorboard'?"),
        ("tensorboard", "'tensorboard' is not FORMAT:PATH, such as tensorboard:lightning_logs"),
        ("tensorboard:no/such/folder", "'no/such/folder' does not exist"),
        ("tensorboard:a.csv", "is not a tensorboard log but a csv log"),
    ],
)
def test_wrong_log_to_follow_is_an_error_at_startup(logs, tmp_path, also, message):
    (tmp_path / "a.csv").write_text("step,loss\n")
    command = [sys.executable, "-m", "tachograph", "ui", "--log-dir", str(logs), "--port", "0", "--also", also]
    env = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_S, env=env, cwd=tmp_path)
    assert done.returncode in {1, 2}
    assert message in done.stderr
    assert "Traceback" not in done.stderr
