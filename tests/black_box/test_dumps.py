"""Dumps: complete or absent, within limits, and never a fault of the run."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal

import pytest

import tachograph
from tachograph.black_box import DumpWriter, Verdict
from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tests.conftest import lines_of, wait_for, wait_for_lines


@pytest.fixture
def writer(tmp_path):
    """A writer with a folder, whose records are in the list `records`."""
    records = []
    writer = DumpWriter(lambda: RunFolder(tmp_path), lambda event, fields: records.append((event, fields)))
    writer.records = records
    return writer


@pytest.mark.slow
def test_request_writes_dump_and_record(logs):
    with tachograph.init("x", log_dir=str(logs), console=False, system_interval_s=0) as run:
        run.log(train_loss=1.0, step=7)
        run.flush()
        run.dump_writer.add_part("numbers", lambda context: {"nan": math.nan, "step": context.step})
        run.dump_writer.add_part("large", lambda context: {"text": "x" * 100_000})
        run.dump_writer.add_part("silent", lambda context: None)
        path = run.dump("Look, here!")
        assert run.dump("look here") is None  # within a minute of the last one
    dump = tachograph.read(path.partition("/dumps/")[0]).dumps[0]
    assert (dump.name, dump.reason, dump.step, str(dump.path)) == ("1-look_here", "look_here", 7, path)
    assert {"numbers", "large"} <= set(dump.parts)
    assert "silent" not in dump.parts
    assert math.isnan(dump["numbers"]["nan"])
    assert dump["large"] == {"text": "x" * 100_000}
    assert dump["unknown"] is None
    record = next(record for record in lines_of(logs / "x") if record["event"] == "dump")
    large = next(file for file in record["files"] if file["name"] == "large.json")
    data = (dump.path / "large.json").read_bytes()
    assert (large["size_bytes"], large["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert (record["dump"], record["global_step"]) == ("1-look_here", 7)


def test_limits(tmp_path, writer):
    alert = {"id": "a-1", "rule": "not_finite"}
    assert writer.write("not_finite", alert=alert, verdict=Verdict(kind="k", text="t")) is not None
    assert writer.write("other", alert=alert) is None  # one per alert
    assert writer.write("not_finite", alert={"id": "a-2"}) is None  # within a minute
    names = [writer.write(f"reason_{number}") for number in range(9)]
    assert [name is not None for name in names] == [True] * 7 + [False] * 2
    resumed = DumpWriter(lambda: RunFolder(tmp_path), lambda *_: None)
    assert resumed.write("again") is None  # counted on disk
    small = DumpWriter(lambda: RunFolder(tmp_path), lambda *_: None, max_dumps=20, max_bytes=50_000)
    small.add_part("large", lambda context: {"text": "x" * 60_000})
    assert small.write("again") is not None
    document = json.loads((tmp_path / "dumps" / "9-again" / "dump.json").read_text())
    assert document["files"] == []
    assert "more than the run may still dump" in document["problems"][0]


@pytest.mark.expects_faults
def test_failing_part_costs_only_itself(tmp_path, writer):
    def fail(context):
        raise ZeroDivisionError("secret")

    writer.add_part("broken", fail)
    writer.add_part("intact", lambda context: {"a": 1})
    assert writer.write("request") is not None
    document = json.loads((tmp_path / "dumps" / "1-request" / "dump.json").read_text())
    assert document["problems"] == ["broken: ZeroDivisionError"]
    assert document["parts"] == {"intact": {"a": 1}}


def test_failing_disk_is_reported(tmp_path, writer):
    (tmp_path / "dumps").write_text("in the way")
    assert writer.write("request") is None
    assert writer.records[0][0] == "telemetry_error"
    assert writer.records[0][1]["kind"] == "dump_not_written"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_worker_writes_none(tmp_path, writer):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if writer.write("request") is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert not (tmp_path / "dumps").exists()


def test_killed_process_leaves_no_part_of_a_dump(script, logs):
    process = script(
        f"""
        import sys, time, tachograph
        run = tachograph.init("x", log_dir={str(logs)!r}, console=False)
        run.dump_writer.add_part("slow", lambda context: context.add_file("half", b"1") or time.sleep(1000))
        run.dump()
        """,
        preload="tachograph",
    )
    wait_for(lambda: list((logs / "x").glob("dumps/.*.tmp/half")), "half a dump")
    os.kill(process.process.pid, signal.SIGKILL)
    process.process.wait()
    assert tachograph.read(str(logs / "x")).dumps == []
    assert not any(record["event"] == "dump" for record in wait_for_lines(logs / "x"))


def test_setting():
    for value, word in {False: "off", "0": "off", "off": "off", True: "on", "Memory": "memory"}.items():
        with tachograph.init("x", mode="disabled", black_box=value) as run:
            assert run.settings.black_box == word
            assert run.dump() is None
    with pytest.raises(ConfigError, match="black_box: expected one of on, off, memory"):
        tachograph.init("x", black_box="everything")
