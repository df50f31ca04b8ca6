"""Full disks, deleted folders, read-only folders and truncated journals."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import time

import pandas as pd
import pytest

import tachograph
from tachograph.journal import Appender, RunState
from tachograph.reader import read
from tests.conftest import HANG_S, lines_of, pause_checks, wait_for


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def check_files(run):
    """Wait until the writer has checked its files, which it otherwise does about once a second."""
    run.backend._due_at["check"] = 0.0
    assert run.flush()  # may end a tick that began before
    assert run.flush()


def test_full_disk_delays_records_without_loss(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_800_000)
    with tachograph.init("x", log_dir=str(small_disk), flush_interval_s=0.05, git=False) as run:
        for step in range(1500):
            run.log(a=float(step), b=step * 0.123456789, step=step)
            if step % 10 == 0:
                time.sleep(0.001)
        run.flush()
        assert shutil.disk_usage(small_disk).free < 5000, "the disk should be full"
        assert read(small_disk / "x").series("a").steps[-1] < 1499
        run.log(a=0.0, step=1500)  # returns, although the disk is full
        ballast.unlink()
        assert wait_for(lambda: run.flush(1))
    history = read(small_disk / "x")
    assert history.series("a").steps.tolist() == list(range(1501))
    assert history.num_lost_records == 0
    assert history.num_bad_lines == 0
    assert history.state is RunState.FINISHED
    kinds = [record["kind"] for record in history.latest("telemetry_error")]
    assert "write_failed" in kinds
    assert "write_recovered" in kinds
    assert len(pd.read_csv(small_disk / "x" / "metrics.csv", low_memory=False)) == sum(history.counts.values())


def test_disk_that_stays_full_counts_losses_and_ends_in_time(small_disk, capsys):
    (small_disk / "ballast").write_bytes(b"x" * 1_950_000)
    run = tachograph.init("x", log_dir=str(small_disk), flush_interval_s=0.05, git=False, exit_timeout_s=1.0)
    run.backend.files._appender._max_pending_bytes = 20_000
    for step in range(5000):
        run.log(a=float(step), step=step)
        if step % 100 == 0:
            time.sleep(0.002)
    wait_for(lambda: not run.backend.buffer and run.backend.losses.num_records, "the first losses")
    began_s = time.monotonic()
    assert run.finish() is False
    assert time.monotonic() - began_s < HANG_S / 2
    assert run.backend.losses.num_records > 0
    assert "could not be written" in capsys.readouterr().err
    history = read(small_disk / "x")
    steps = history.series("a").steps
    assert steps.tolist() == list(range(len(steps)))
    assert len(steps) + run.backend.losses.num_records + run.backend.files._appender.pending.count(b"\n") >= 5000


SLOW_DISK = """
    import os, sys, threading, time, tachograph

    write, num_writes, gate = os.write, 0, threading.Event()
    gate.set()
    def slow(descriptor, data):
        global num_writes
        if bytes(data[:9]) == b'{"event":':
            num_writes += 1
            time.sleep(float(sys.argv[2]))
            gate.wait()
        return write(descriptor, data)
    os.write = slow
"""


def test_slow_disk_gets_few_large_writes(logs, script):
    out = script(
        SLOW_DISK
        + """
    run = tachograph.init("x", log_dir=sys.argv[1], csv=False, system_interval_s=0, git=False)
    for step in range(16_000):
        run.log(a=1.0, step=step)
    run.finish(timeout_s=120)
    print("writes", num_writes)
    """,
        logs,
        0.3,
    ).ok()
    assert int(out.split("writes")[1]) < 30  # 16,000 records are 63 chunks
    history = read(logs / "x")
    assert history.series("a").steps.tolist() == list(range(16_000))
    assert history.num_lost_records == 0


def test_every_loss_is_recorded_when_writing_works_again(logs, script):
    """The disk hangs until the buffer overflows; steps in the journal and recorded losses add up."""
    script(
        SLOW_DISK
        + """
    run = tachograph.init("x", log_dir=sys.argv[1], csv=False, system_interval_s=0, git=False, buffer_size=5_000)
    run.flush(60)
    gate.clear()
    for step in range(20_000):
        run.log(a=1.0, step=step)
    for number in range(3_000):
        run.event("tick", number=number)
    gate.set()
    run.finish(timeout_s=120)
    """,
        logs,
        0,
    ).ok()
    history = read(logs / "x")
    num_kept = history.counts["step"] + history.counts["event"]
    assert num_kept < 10_000
    assert num_kept + history.num_lost_records == 23_000


def test_losses_on_a_full_disk_are_counted_once(small_disk):
    """A record of losses that cannot be written must not count as a loss itself, tick after tick."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_950_000)
    run = tachograph.init("x", log_dir=str(small_disk), flush_interval_s=0.05, git=False, system_interval_s=0)
    run.backend.files._appender._max_pending_bytes = 20_000
    for step in range(3_000):
        run.log(a=float(step), step=step)
        if step % 100 == 0:
            run.flush(30)
    run.flush(30)
    num_lost = run.backend.losses.num_records
    assert num_lost > 0
    ticks = run.backend._due_at["check"]
    wait_for(lambda: run.backend._due_at["check"] > ticks + 1)
    assert run.backend.losses.num_records == num_lost
    ballast.unlink()
    wait_for(lambda: run.flush(1))
    assert run.finish(timeout_s=60)
    history = read(small_disk / "x")
    assert history.counts["step"] + history.num_lost_records == 3_000


def test_deleted_folder_is_restored_without_loss(logs):
    with tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05) as run:
        for step in range(100):
            run.log(a=float(step), step=step)
        run.flush()
        wait_for(lambda: shutil.rmtree(logs, ignore_errors=True) or not logs.exists())
        for step in range(100, 200):
            run.log(a=float(step), step=step)
        wait_for((logs / "x" / "metrics.jsonl").exists)
        for step in range(200, 300):
            run.log(a=float(step), step=step)
    history = read(logs / "x")
    assert history.series("a").steps.tolist() == list(range(300))
    assert {record["kind"] for record in history.latest("telemetry_error")} == {"journal_moved"}
    assert history.state is RunState.FINISHED
    assert len(pd.read_csv(logs / "x" / "metrics.csv")) == len(lines_of(logs / "x"))


def test_folder_that_cannot_be_recreated_is_harmless(logs):
    def replace_by_file():
        shutil.rmtree(logs, ignore_errors=True)
        with contextlib.suppress(OSError):  # the writer has just created the folder again
            return logs.write_text("a file in its place")

    with tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05) as run:
        run.log(a=1.0, step=0)
        run.flush()
        wait_for(replace_by_file)
        run.backend._due_at["check"] = 0.0
        run.flush(1)
        run.log(a=2.0, step=1)
    assert logs.read_text() == "a file in its place"


def test_read_only_log_dir_raises_at_init(open_folder, script):
    folder = open_folder / "logs"
    folder.mkdir()
    folder.chmod(0o555)
    code, _out, err = script(
        """
        import os, sys
        import tachograph, tachograph.recorder
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        tachograph.init("x", log_dir=sys.argv[1])
        """,
        folder,
    ).wait()
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert "LogDirError" in last
    assert str(folder) in last
    assert "Permission denied" in last
    assert "pass log_dir=" in last
    assert os.listdir(folder) == []


@pytest.mark.parametrize("when", ["in the middle", "at the end"])
def test_folder_replacing_the_journal_gets_another_name(logs, when):
    run = tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05)
    for step in range(100):
        run.log(a=1.0, step=step)
    run.flush()
    journal = logs / "x" / "metrics.jsonl"
    pause_checks(run)
    journal.unlink()
    (journal / "inside").mkdir(parents=True)
    (journal / "inside" / "file").write_text("not ours")
    run.backend._due_at["check"] = 0.0
    if when == "in the middle":
        wait_for(journal.is_file)
    for step in range(100, 200):
        run.log(a=1.0, step=step)
    assert run.finish(timeout_s=60) is True
    history = read(logs / "x")
    assert history.series("a").steps.tolist() == list(range(200))
    assert history.state is RunState.FINISHED
    assert "journal_moved" in [record["kind"] for record in history.latest("telemetry_error")]
    assert (logs / "x" / "metrics.jsonl.replaced-1" / "inside" / "file").read_text() == "not ours"


def test_checkpoint_in_a_deleted_folder_is_recorded(logs, script, tmp_path):
    script(
        """
        import os, shutil, sys, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], git=False)
        os.makedirs(sys.argv[2])
        os.chdir(sys.argv[2])
        shutil.rmtree(sys.argv[2])
        run.log_checkpoint("model.pt", step=3)
        run.finish()
        """,
        logs,
        tmp_path / "work",
    ).ok()
    (record,) = read(logs / "x").latest("checkpoint")
    assert (record["checkpoint_path"], record["size_bytes"], record["global_step"]) == ("model.pt", None, 3)


def test_file_replacing_the_journal_is_continued(logs):
    with tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05) as run:
        run.log(a=1.0, step=0)
        run.flush()
        os.replace(logs / "x" / "metrics.jsonl", logs / "x" / "rotated.jsonl")
        (logs / "x" / "metrics.jsonl").write_text("")
        check_files(run)
        run.log(a=2.0, step=1)
    assert [record["a"] for record in lines_of(logs / "x") if record["event"] == "step"] == [2.0]
    assert len(pd.read_csv(logs / "x" / "metrics.csv")) == len(lines_of(logs / "x"))


def test_folder_taken_by_another_process_gets_a_new_name(logs, script):
    with tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05, control_interval_s=0.1) as run:
        for step in range(50):
            run.log(who=1.0, step=step)
        run.flush()
        pause_checks(run)  # let the other process claim the folder before our check
        wait_for(lambda: shutil.rmtree(logs, ignore_errors=True) or not logs.exists())
        other = script(
            """
            import sys, tachograph
            with tachograph.init("x", log_dir=sys.argv[1]) as run:
                run.log(who=2.0, step=0)
                print("ready", flush=True)
                sys.stdin.readline()
                run.log(who=2.0, step=1)
            """,
            logs,
        )
        wait_for(lambda: "ready" in other.process.stdout.readline())
        run.backend._due_at["check"] = 0.0
        wait_for(lambda: run.name == "x-2")
        for step in range(50, 100):
            run.log(who=1.0, step=step)
        wait_for((logs / "x-2" / "control.json").exists)
        assert run.log_every == 1
        other.process.communicate("\n", timeout=HANG_S)
    assert read(logs / "x").series("who").values.tolist() == [2.0, 2.0]
    history = read(logs / "x-2")
    assert history.series("who").steps.tolist() == list(range(100))
    assert len(pd.read_csv(logs / "x-2" / "metrics.csv")) == sum(history.counts.values())


def test_truncated_journal_is_reported_and_mirrored(logs):
    with tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05) as run:
        for step in range(100):
            run.log(a=1.0, step=step)
        run.flush()
        os.truncate(logs / "x" / "metrics.jsonl", 0)
        check_files(run)
        for step in range(100, 150):
            run.log(a=1.0, step=step)
    history = read(logs / "x")
    assert history.series("a").steps.tolist() == list(range(100, 150))
    assert "journal_cut" in [record["kind"] for record in history.latest("telemetry_error")]
    assert len(pd.read_csv(logs / "x" / "metrics.csv")) == sum(history.counts.values())


def test_resume_of_a_torn_journal_on_a_full_disk(small_disk):
    with tachograph.init("x", log_dir=str(small_disk), git=False, system_interval_s=0) as run:
        for step in range(100):
            run.log(a=1.0, step=step)
    path = small_disk / "x" / "metrics.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"event":"step","text":"' + b"x" * 9000)
    os.truncate(path, path.stat().st_size // 4096 * 4096)  # a torn line that fills its page
    (small_disk / "x" / "metrics.csv").unlink()
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, pytest.raises(OSError):
        while file.write(b"x" * 4096):
            pass
    with tachograph.init(
        "x", log_dir=str(small_disk), git=False, system_interval_s=0, resume=True, flush_interval_s=0.05, csv=False,
        control_interval_s=0.1,
    ) as run:  # fmt: skip
        run.log(a=2.0, step=100)
        assert run.flush() is False
        ballast.unlink()
        wait_for(lambda: run.flush(1))
        wait_for(lambda: run.backend.files._has_control_file)
    history = read(small_disk / "x")
    assert len(history.attempts) == 2
    assert history.num_bad_lines == 1
    assert history.series("a").values[-1] == 2.0


@pytest.mark.parametrize("how", ["deleted", "cut"])
def test_journal_damaged_right_before_the_end(logs, how):
    run = tachograph.init("x", log_dir=str(logs), flush_interval_s=0.05)
    for step in range(100):
        run.log(a=1.0, step=step)
    run.flush()
    check_files(run)
    if how == "deleted":
        wait_for(lambda: shutil.rmtree(logs, ignore_errors=True) or not logs.exists())
    else:
        path = logs / "x" / "metrics.jsonl"
        os.truncate(path, path.stat().st_size // 2)
    assert run.finish() is True
    history = read(logs / "x")
    assert history.state is RunState.FINISHED
    if how == "deleted":
        assert history.series("a").steps.tolist() == list(range(100))
    assert len(pd.read_csv(logs / "x" / "metrics.csv")) == sum(history.counts.values())


def test_losses_are_printed_without_console(logs, script):
    program = """
        import resource, shutil, sys, tachograph
        import tachograph.recorder._writer as writer
        writer._RETRY_SHARE = 0.01  # the disk does not recover
        run = tachograph.init("x", log_dir=sys.argv[1], console=False, git=False, csv=False, exit_timeout_s=60)
        run.flush()
        if sys.argv[2] == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        else:
            shutil.rmtree(f"{sys.argv[1]}/x")
            open(f"{sys.argv[1]}/x", "w").close()
        for step in range(1000):
            run.log({"loss": 1.0}, step=step)
        run.finish()
    """
    code, out, err = script(program, logs / "limit", "limit").wait()
    assert (code, out) == (0, "")
    num_steps = (logs / "limit" / "x" / "metrics.jsonl").read_text().count('"step"')
    assert num_steps < 1000 and "were lost: the disk could not be written" in err
    heartbeat = json.loads((logs / "limit" / "x" / ".tacho" / "heartbeat.json").read_bytes())
    assert heartbeat["num_dropped"] >= 1000 - num_steps
    code, out, err = script(program, logs / "file", "file").wait()
    assert (code, out) == (0, "") and err.count("could not be written") == 1


def test_journal_deleted_in_the_middle_of_a_line_is_restored_whole(tmp_path):
    path = tmp_path / "ranks" / "00001.jsonl"
    path.parent.mkdir()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for is_replaced in (False, True):
        appender = Appender(path, below=tmp_path)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard_limit))
            assert appender.append(b'{"a":1}\n{"b":2}\n{"c":3}\n') is not None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
        assert path.read_bytes().endswith(b'{"c"')
        path.unlink()
        if is_replaced:
            path.write_bytes(b'{"z":0}\n')
        appender.restore()
        assert appender.append(b'{"d":4}\n') is None
        appender.close()
        if is_replaced:
            # The first half of the record is in the deleted file.
            assert path.read_bytes() == b'{"z":0}\n{"d":4}\n'
            assert appender.num_dropped_lines == 1
        else:
            assert path.read_bytes() == b'{"a":1}\n{"b":2}\n{"c":3}\n{"d":4}\n'
        path.unlink()
