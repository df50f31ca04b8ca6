"""Processes that the kernel killed because memory was full: proof, memory of the processes, and the dump."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import tachograph
from tachograph.black_box import MemoryGroup, _killed, _memory_group, child_memory_fields, explain_kill, find_kill
from tachograph.cli._main import main
from tachograph.integrations.zero_code import launch
from tachograph.journal import RunFolder
from tachograph.reader import read
from tests.conftest import HANG_S, wait_for

GIB = 1 << 30


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A control group of version 2 with 58.1 of 60 GB in use."""
    folder = tmp_path / "cgroup" / "job"
    folder.mkdir(parents=True)
    (tmp_path / "membership").write_text("1:name=systemd:/\n0::/job\n")
    (folder / "memory.events").write_text("low 0\nmax 31\noom 0\noom_kill 2\noom_group_kill 0\n")
    (folder / "memory.current").write_text(f"{int(59.1 * GIB)}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    (folder / "memory.max").write_text("max\n")
    (folder.parent / "memory.max").write_text(f"{60 * GIB}\n")
    monkeypatch.setattr(_memory_group, "_MOUNT", folder.parent)
    monkeypatch.setattr(_memory_group, "_PROC_CGROUP", tmp_path / "membership")
    monkeypatch.setattr(_killed, "_KERNEL_LOG", tmp_path / "no log")
    return folder


def count_kill(group):
    path = group / "memory.events"
    path.write_text(path.read_text().replace("oom_kill 2", "oom_kill 3"))


def samples(*points):
    """Return system records five seconds apart from memory in MB of the process and of four workers."""
    return [
        {
            "event": "system",
            "time": 1000.0 + 5 * index,
            "cpu_mem_rss_mb": own_mb,
            "child/pt_data_worker/num": 4,
            "child/pt_data_worker/rss_mb": workers_mb,
            **more,
        }
        for index, (own_mb, workers_mb, more) in enumerate(points)
    ]


def test_group_of_version_2_is_read(group):
    fields = MemoryGroup.of_this_process().fields()
    assert fields == {"cgroup_mem_used_gb": 58.1, "cgroup_mem_limit_gb": 60.0, "cgroup_oom_kills": 2}


def test_group_of_version_1_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "cgroup" / "memory"  # in a container, the path of the host is not visible
    folder.mkdir(parents=True)
    (tmp_path / "membership").write_text("5:cpu,cpuacct:/\n4:memory:/docker/1234\n0::/\n")
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (folder / "memory.usage_in_bytes").write_text(f"{3 * GIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {GIB}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
    monkeypatch.setattr(_memory_group, "_MOUNT", folder.parent)
    monkeypatch.setattr(_memory_group, "_PROC_CGROUP", tmp_path / "membership")
    group = MemoryGroup.of_this_process()
    assert group.fields() == {"cgroup_mem_used_gb": 2.0, "cgroup_oom_kills": 1}
    assert MemoryGroup.reopen(str(folder), group.inode) is not None
    assert MemoryGroup.reopen(str(folder), group.inode + 1) is None  # another group at the same path
    (tmp_path / "membership").write_text("5:cpu,cpuacct:/\n")
    assert MemoryGroup.of_this_process() is None


def test_children_are_grouped_by_name():
    code = "open('/proc/self/comm', 'w').write('of_this_test'); data = bytearray(120 << 20); print(flush=True); input()"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout.readline() == b"\n"
        fields = child_memory_fields(os.getpid())
        assert fields["child/of_this_test/num"] == 2
        assert 240 <= fields["child/of_this_test/rss_mb"] < 1_000
    finally:
        for child in children:
            child.communicate(b"\n")
    assert "child/of_this_test/num" not in child_memory_fields(os.getpid())


def test_verdict_names_the_processes_that_filled_memory():
    group = {"cgroup_mem_used_gb": 58.1, "cgroup_mem_limit_gb": 60.0}
    curve = samples((18_900.0, 10_000.0, {}), (18_944.0, 40_140.8, group))
    verdict = explain_kill(curve, is_proven=True)
    assert verdict.text == (
        "The kernel killed it because memory was full: 58.1 of 60.0 GB; DataLoader workers 4 × 9.8 GB, "
        "training process 18.5 GB. DataLoader workers grew by 29.4 GB in the last 5 s"
    )
    assert verdict.confidence == "certain"
    without_proof = explain_kill(curve, is_proven=False)
    assert without_proof.text.startswith("Probably killed because memory was full: 58.1 of 60.0 GB")
    assert without_proof.confidence == "possible"


def test_without_proof_or_full_memory_nothing_is_said():
    half_full = {"cgroup_mem_used_gb": 30.0, "cgroup_mem_limit_gb": 60.0, "host_mem_used_pct": 50.0}
    assert explain_kill(samples((1.0, 1.0, half_full)), is_proven=False) is None
    assert explain_kill([], is_proven=False) is None
    host = {"host_mem_used_pct": 98.0, "host_mem_available_gb": 1.2}
    verdict = explain_kill(samples((1.0, 500.0, host)), is_proven=False)
    assert "98 % of the memory of the machine, 1.2 GB free" in verdict.text
    odd = {"event": "system", "time": 1.0, "child/x/rss_mb": "much", "child/x/num": 0, "cgroup_mem_used_gb": True}
    assert explain_kill([odd], is_proven=True).text == "The kernel killed it because memory was full"


SCRIPT = """
    import os, pathlib, sys, time
    from tachograph.black_box import _memory_group
    _memory_group._MOUNT, _memory_group._PROC_CGROUP = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    import tachograph
    from tachograph.reader import read
    run = tachograph.init("x", log_dir="logs", system_interval_s=0.05, git=False, code=False)
    run.log(train_loss=1.0, step=3)
    while run.flush() and not list(read("logs/x").records("system")):
        time.sleep(0.05)
    if len(sys.argv) > 3:  # as the kernel does
        events = pathlib.Path(sys.argv[3])
        events.write_text(events.read_text().replace("oom_kill 2", "oom_kill 3"))
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("is_proven", [True, False])
def test_launcher_explains_a_kill(group, tmp_path, monkeypatch, is_proven):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    if not is_proven:
        (group / "memory.current").write_text(f"{5 * GIB}\n")
        monkeypatch.setattr(_killed, "_NEARLY_FULL_SHARE", 1.1)  # whatever this machine does now
    events = [str(group / "memory.events")] if is_proven else []
    command = [sys.executable, "train.py", str(group.parent), str(tmp_path / "membership"), *events]
    result = launch(command, settings={"log_dir": str(tmp_path / "logs")})
    assert result.returncode == -signal.SIGKILL
    history = read(tmp_path / "logs" / "x")
    reason = history.attempts[-1].end["reason"]
    if not is_proven:
        assert reason == "killed by signal 9 (SIGKILL)" and history.dumps == []
        return
    assert reason.startswith("killed by signal 9 (SIGKILL): The kernel killed it because memory was full: 58.1 of 60.0")
    (dump,) = history.dumps
    assert (dump.reason, dump.step, dump.verdict.confidence) == ("killed", 3, "certain")
    assert dump["memory_curve"]["samples"][-1]["cgroup_mem_used_gb"] == 58.1
    assert [record["dump"] for record in history.records("dump")] == ["1-killed"]
    for subcommand in ("show", "doctor"):
        output = CliRunner().invoke(main, [subcommand, str(tmp_path / "logs" / "x")], terminal_width=300).output
        assert "because memory was full" in " ".join(output.split()), output


_FILLS_MEMORY = """
    import time, tachograph
    from tachograph.reader import read
    run = tachograph.init("x", log_dir="logs", system_interval_s=0.05, git=False, code=False)
    run.log(train_loss=1.0, step=3)
    while run.flush() and not list(read("logs/x").records("system")):
        time.sleep(0.05)
    blocks = []
    while True:
        blocks.append(b"x" * (4 << 20))
        time.sleep(0.01)
"""


@pytest.fixture
def real_group(tmp_path):
    """A control group of this machine in which a program may use 300 MiB."""
    for parent, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        path = Path(parent, f"tachograph-{os.getpid()}")
        try:
            if not Path(parent, "cgroup.procs").exists():
                continue
            path.mkdir()
        except OSError:
            continue
        try:
            (path / limit).write_text(str(300 << 20))
        except OSError:
            path.rmdir()
            continue
        yield path
        wait_for(lambda path=path: not (path / "cgroup.procs").read_text())
        path.rmdir()
        return
    pytest.skip("this user may not create control groups with a limit of memory")


def test_real_kill_is_explained(real_group, tmp_path):
    """The kernel kills the program, which is larger than its launcher."""
    (tmp_path / "train.py").write_text(textwrap.dedent(_FILLS_MEMORY))
    enter = f'echo $$ > {real_group}/cgroup.procs && exec "$@"'
    command = ["sh", "-c", enter, "sh", sys.executable, "-m", "tachograph", "run", "--log-dir", "logs", "train.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert result.returncode == -signal.SIGKILL, result
    (dump,) = read(tmp_path / "logs" / "x").dumps
    assert (dump.reason, dump.verdict.confidence) == ("killed", "certain")
    assert re.search(r"The kernel killed it because memory was full: 0\.\d of 0\.3 GB", dump.verdict.text)


def test_next_reader_finds_the_kill(group, tmp_path, script):
    """Without a launcher, the counter of the group is the proof, as long as the group exists."""
    done = script(SCRIPT, str(group.parent), str(tmp_path / "membership"), cwd=tmp_path)
    wait_for(lambda: done.process.poll() is not None)
    folder = RunFolder(tmp_path / "logs" / "x")
    assert find_kill(folder) is None  # no kill was counted
    count_kill(group)
    assert find_kill(folder).confidence == "certain"
    assert "because memory was full" in read(folder.path).failure.message
    for subcommand in ("show", "doctor"):
        output = CliRunner().invoke(main, [subcommand, str(folder.path)], terminal_width=300).output
        assert "because memory was full" in " ".join(output.split()), output
    start = next(read(folder.path).records("start"))
    moved = {**start, "process": {**start["process"], "host": "elsewhere"}}
    assert find_kill(folder, moved) is None
    assert find_kill(folder, moved, is_sigkill=True).confidence == "possible"


def test_kernel_log_proves_a_kill(tmp_path, monkeypatch, logs):
    with tachograph.init("x", log_dir=str(logs), system_interval_s=0, git=False, code=False):
        pass
    log = tmp_path / "kmsg"
    monkeypatch.setattr(_killed, "_KERNEL_LOG", log)
    monkeypatch.setattr(_killed, "_INITIAL_PID_NAMESPACE", os.readlink("/proc/self/ns/pid"))
    now_us = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
    for pid, at_us, is_proven in (
        (os.getpid(), now_us, True),
        (os.getpid() + 1, now_us, False),
        (os.getpid(), 2, False),
    ):
        log.write_text(f"3,1,{at_us},-;Memory cgroup out of memory: Killed process {pid} (python) total-vm:1kB\n")
        verdict = find_kill(RunFolder(logs / "x"))
        assert (verdict is not None) == is_proven, (pid, at_us)
