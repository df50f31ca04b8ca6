"""The output of a program is recorded while it prints: in whole lines, masked, bounded, and safe from `kill -9`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tachograph.integrations.zero_code._output_recorder import OutputRecorder
from tachograph.journal import OUTPUT_MAX_BYTES, OutputWriter, RunFolder, output_line
from tachograph.reader import OutputFollower, output_text, read_output
from tests.conftest import HANG_S, wait_for

KEY = "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *["MIIEowIBAAKCAQEA" * 4] * 5, "-----END RSA PRIVATE KEY-----"])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "run"
    path.mkdir()
    (path / "metrics.jsonl").touch()
    return RunFolder(path)


def texts_of(folder: RunFolder) -> list[str]:
    return [line.text for line in OutputFollower(folder, 10**9).poll()]


def tacho_logs(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tachograph", "logs", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S)


@pytest.mark.parametrize("victim", ["program", "launcher"])
def test_output_survives_a_kill(tacho, python, victim):
    tacho.write(
        "train.py",
        """
        import os, sys, time
        import tachograph
        print("before the run", flush=True)
        run = tachograph.init("train", console=False)
        print("to stderr", file=sys.stderr, flush=True)
        open("pid", "w").write(str(os.getpid()))
        print("\\r 10 %\\r 20 %", end="", file=sys.stderr, flush=True)
        time.sleep(1000)
        """,
    )
    process = tacho.start(python, "train.py")
    folder = RunFolder(tacho.folder / "logs" / "train")
    wait_for(lambda: [line.text for line in read_output(folder).partial] == [" 20 %"], "the progress bar")
    lines = read_output(folder).lines
    assert {(line.stream, line.text) for line in lines} == {("stdout", "before the run"), ("stderr", "to stderr")}
    assert all(line.time is not None and abs(line.time - time.time()) < HANG_S for line in lines)
    pid = int((tacho.folder / "pid").read_text())
    os.kill(pid if victim == "program" else process.pid, signal.SIGKILL)
    process.communicate(timeout=HANG_S)
    shown = tacho_logs(tacho.folder, "train")
    assert shown.stdout.splitlines() == [*(line.text for line in lines), " 20 %"], shown.stderr
    if victim == "launcher":
        os.kill(pid, signal.SIGKILL)


def test_logs_follow_a_run_until_it_ends(tacho, python):
    tacho.write(
        "train.py",
        """
        import time
        from pathlib import Path
        import tachograph
        run = tachograph.init("train", console=False)
        print("first", flush=True)
        while not Path("go").exists():
            time.sleep(0.02)
        print("last")
        """,
    )
    process = tacho.start(python, "train.py")
    folder = RunFolder(tacho.folder / "logs" / "train")
    wait_for(lambda: read_output(folder).lines, "the first line")
    command = [sys.executable, "-m", "tachograph", "logs", "train", "-f"]
    follower = subprocess.Popen(command, cwd=tacho.folder, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None and follower.stdout.readline() == "first\n"
    (tacho.folder / "go").touch()
    process.communicate(timeout=HANG_S)
    assert follower.communicate(timeout=HANG_S)[0] == "last\n"

    again = tacho.run(python, "-c", "print('again')", options=("--name", "train", "--resume"))
    assert again.returncode == 0
    assert [(line.number, line.text) for line in read_output(folder).lines] == [(0, "first"), (1, "last"), (2, "again")]
    assert tacho_logs(tacho.folder, "train", "-n", "1").stdout == "again\n"
    assert '"stream":"stdout"' in tacho_logs(tacho.folder, "train", "--json").stdout.replace(" ", "")

    tacho.run(python, "-c", "print('secret')", options=("--name", "silent", "--no-output"))
    silent = tacho_logs(tacho.folder, "silent")
    assert (silent.stdout, silent.returncode) == ("", 0)
    assert "tacho run" in silent.stderr


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_secrets_in_pieces_are_masked(folder, size):
    """A secret may arrive in several pieces, and on several lines."""
    secret = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    text = f"start\nkey {secret} \x1b[31mred\x1b[0m\r\n{KEY}\nHF_TOKEN: {secret}\n 5 %\r{secret}\r10 %\nend {secret}"
    recorder = OutputRecorder(lambda: str(folder.path))
    data = text.encode()
    for start in range(0, len(data), size):
        recorder.add("stdout", data[start : start + size])
        if size == 7 and start % 70 == 0:
            time.sleep(0.06)  # its own chunk
    recorder.close(folder)
    shown = ["start", "key [masked] red", "[masked]", "HF_TOKEN: [masked]", "10 %", "end [masked]"]
    assert texts_of(folder) == shown
    on_disk = b"".join(path.read_bytes() for path in folder.output.iterdir())
    assert secret.encode() not in on_disk and b"MIIE" not in on_disk


def test_flood_is_bounded_and_counted(folder):
    """What is dropped is counted, and no half of a line is recorded."""
    recorder = OutputRecorder(lambda: str(folder.path))
    line = b"x" * 99 + b"\n"
    for _ in range(300):
        recorder.add("stdout", line * 650)
    recorder.add("stdout", b"last line\n" + b"y" * 100_000)
    recorder.close(folder)
    lines = OutputFollower(folder, 10**9).poll()
    texts = texts_of(folder)
    notices = [line.text for line in lines if line.stream == "notice"]
    assert notices and "were not recorded" in notices[0]
    assert set(texts) - {"x" * 99, "last line", *notices} == {texts[-1]}
    assert texts[-1].startswith("y" * 4_000 + "… [cut, ")
    num_dropped = sum(int(text.split(" ", 1)[0].replace(",", "")) for text in notices)
    assert 300 * 650 - 2 * len(notices) <= num_dropped + texts.count("x" * 99) <= 300 * 650


def test_first_and_newest_lines_are_kept(folder):
    writer = OutputWriter(folder)
    numbers = iter(range(400_000))
    for _ in range(4_000):
        writer.append(output_line(1.0, "stdout", f"line {next(numbers)} {'x' * 30}") for _ in range(100))
    writer.close()
    assert sum(path.stat().st_size for path in folder.output.iterdir()) <= OUTPUT_MAX_BYTES
    part = read_output(folder, limit=2)
    (first, end), (start, last) = part.ranges
    assert first == 0 and 0 < end < start < last == 400_000
    assert [line.text.split()[1] for line in part.lines] == ["399998", "399999"]
    lines = read_output(folder, end - 1, 3).lines
    assert [(line.number, line.text.split()[1]) for line in lines] == [
        (number, str(number)) for number in (end - 1, start, start + 1)
    ]
    found = read_output(folder, limit=0, search="LINE 399999")
    assert (found.num_matches, found.matches) == (1, [399_999])
    assert f"[{start - end:,} lines were not kept]" in "".join(output_text(folder))

    with next(folder.output.glob(f"{start:012d}.log")).open("ab") as file:
        file.write(b"torn")
    resumed = OutputWriter(folder)
    resumed.append([output_line(2.0, "stderr", "resumed")])
    resumed.close()
    line = read_output(folder, limit=1).lines[0]
    assert (line.number, line.stream, line.text) == (400_000, "stderr", "resumed")


def test_full_disk_is_survived_and_counted(folder, script):
    """The limit for the size of files has the same effect as a full disk."""
    source = """
        import resource, sys, time
        from tachograph.integrations.zero_code._output_recorder import OutputRecorder
        from tachograph.journal import RunFolder
        folder = RunFolder(sys.argv[1])
        recorder = OutputRecorder(lambda: sys.argv[1])
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        recorder.add("stdout", b"lost\\n")
        while not recorder._num_unwritten:
            time.sleep(0.01)
        recorder.add("stdout", b"lost\\n")
        while recorder._num_unwritten < 2:
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        recorder.add("stdout", b"written\\n")
        recorder.close(folder)
        """
    script(source, folder.path).ok()
    assert texts_of(folder) == ["2 lines or more could not be written", "written"]
