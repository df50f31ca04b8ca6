"""`tacho sync`, with the real TensorBoard sink."""

from __future__ import annotations

import json
import threading

import pytest

import tachograph
from tests.cli.test_cli import tacho
from tests.remote.test_sync import LOCK
from tests.sinks.test_sinks import scalars
from tests.store import hears

pytest.importorskip("tensorboard")

OPTIONS = {"git": False, "system_interval_s": 0, "console": False}


def record(logs, name, **options):
    with tachograph.init(name, log_dir=str(logs), **OPTIONS, **options) as run:
        for step in range(10):
            run.log(loss=float(step), step=step)


def test_run_without_the_sink_is_exported_from_its_beginning(logs):
    record(logs, "x")
    assert "x: tensorboard received 12 records" in tacho("sync", "x", "--log-dir", logs, "--sink", "tensorboard")
    assert scalars(logs / "x" / "tensorboard")["loss"] == [(step, float(step)) for step in range(10)]
    assert "received 0 records" in tacho("sync", "x", "--log-dir", logs, "--sink", "tensorboard")
    assert len(scalars(logs / "x" / "tensorboard")["loss"]) == 10


def test_sink_that_was_down_receives_the_rest_once(logs, tmp_path):
    place = tmp_path / "events"
    place.write_text("in the way")  # so that no folder can be made there
    sink = {"tensorboard": {"log_dir": str(place)}}
    record(logs, "x", sinks=[sink])
    (missing,) = json.loads(tacho("sync", "--log-dir", logs, "--dry-run", "--json"))
    num_records = missing["num_missing"]  # the failure of the sink is among them
    assert (missing["sink"], num_records > 10) == ("tensorboard", True)
    assert f"x: tensorboard lacks {num_records} records" in tacho("sync", "--log-dir", logs, "--dry-run")
    failed = tacho("sync", "--log-dir", logs, "--sink", json.dumps(sink), check=False)
    assert (failed.returncode, f"{num_records} records left" in failed.stderr) == (1, True), failed.stderr
    place.unlink()
    found = json.loads(tacho("sync", "--log-dir", logs, "--json", env={"TACHO_SINKS": json.dumps([sink])}))
    assert found == [{"run": "x", "sink": "tensorboard", "num_delivered": num_records, "num_missing": 0, "reason": ""}]
    assert len(scalars(place / "x")["loss"]) == 10
    assert "nothing to deliver" in tacho("sync", "--log-dir", logs)


def test_running_run_is_left_to_its_own_process(logs):
    with tachograph.init("x", log_dir=str(logs), **OPTIONS) as run:
        run.log(loss=1.0, step=0)
        run.flush()
        done = tacho("sync", "x", "--log-dir", logs, "--sink", "tensorboard", check=False)
    assert (done.returncode, "being recorded" in done.stderr) == (1, True)
    assert not (logs / "x" / "tensorboard").exists()


def test_sync_waits_for_a_process_that_delivers(logs, script):
    record(logs, "x")
    other_process = script(LOCK, logs / "x", "tensorboard", preload="tachograph")
    hears(other_process, "locked")
    words = ("sync", "x", "--log-dir", logs, "--sink", "tensorboard")
    done = tacho(*words, "--timeout", "0", check=False)
    assert "another process is delivering, and was not done in 0 s" in done.stderr
    threading.Timer(1.0, other_process.process.kill).start()
    assert "x: tensorboard received 12 records" in tacho(*words)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("tensorbord", "did you mean 'tensorboard'?"),
        ('{"tensorboard": {"dir": "x"}}', "has no option 'dir'"),
        ('{"tensorboard": ', "invalid JSON"),
        ("notify", "not sent later"),
    ],
)
def test_wrong_sink_is_named(logs, sink, message):
    record(logs, "x")
    done = tacho("sync", "x", "--log-dir", logs, "--sink", sink, check=False)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_unknown_run_is_named(logs):
    record(logs, "x")
    done = tacho("sync", "y", "--log-dir", logs, check=False)
    assert (done.returncode, "'y'" in done.stderr) == (1, True)
