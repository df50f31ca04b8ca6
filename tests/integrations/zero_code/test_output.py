"""Output of a program passes through `tacho run` unchanged, and the last lines are recorded."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from typing import Any

import pytest

from tests.conftest import HANG_S, wait_for
from tests.integrations.zero_code.conftest import TACHO, Tacho


def on_a_terminal(tacho: Tacho, *command: str, size: tuple[int, int] = (40, 123)) -> tuple[int, bytes]:
    """Run a command with a terminal for its standard streams, as a shell does."""
    pid, terminal = pty.fork()
    if not pid:
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            os.chdir(tacho.folder)
            os.execvp(command[0], list(command))
        finally:
            os._exit(99)
    shown = b""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65536):
            shown += data
            if b"resize me" in data:
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 77, 0, 0))
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def test_terminal_output_is_unchanged(tacho, python):
    """The program sees a terminal of the same size, and its output is the same to the last byte."""
    tacho.write(
        "show.py",
        """
        import os, sys
        print(*(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)), os.get_terminal_size())
        for percent in range(0, 101, 50):
            print(f"\\r{percent} %", end="", file=sys.stderr, flush=True)
        print("\\x1b[1mbold\\x1b[0m\\ttab")
        for number in range(20):
            print("out", number)
            print("err", number, file=sys.stderr)
        """,
    )
    without = on_a_terminal(tacho, python, "show.py")
    code, shown = on_a_terminal(tacho, *TACHO, "--", python, "show.py")
    last = shown.rindex(b"[telemetry]")
    assert (code, shown[:last]) == without
    assert b"True True True os.terminal_size(columns=123, lines=40)" in shown
    (log,) = tacho.records("show", "log")
    assert log["stream"] == "output", "with two streams, lines of one could overtake those of the other"
    assert log["text"].splitlines()[1] == "100 %bold\ttab"


def test_terminal_resize_reaches_the_program(tacho, python):
    tacho.write(
        "show.py",
        """
        import os, signal, time
        signal.signal(signal.SIGWINCH, lambda *_: print(os.get_terminal_size().columns, flush=True))
        print("resize me", flush=True)
        while os.get_terminal_size().columns != 77:
            time.sleep(0.05)
        time.sleep(0.5)
        """,
    )
    _, shown = on_a_terminal(tacho, *TACHO, "--", python, "show.py")
    assert b"77" in shown


def test_ctrl_c_reaches_the_program_once(tacho, python):
    """Ctrl-C reaches the program once."""
    tacho.write(
        "wait.py",
        """
        import signal, sys, time
        count = []
        signal.signal(signal.SIGINT, lambda *_: count.append(1))
        print("ready", flush=True)
        while not count:
            time.sleep(0.01)
        time.sleep(0.5)
        sys.exit(10 + len(count))
        """,
    )
    pid, terminal = pty.fork()
    if not pid:
        try:
            os.chdir(tacho.folder)
            os.execvp(TACHO[0], [*TACHO, "--", python, "wait.py"])
        finally:
            os._exit(99)
    shown, is_interrupted = b"", False
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65536):
            shown += data
            if b"ready" in shown and not is_interrupted:
                is_interrupted = True
                os.write(terminal, b"\x03")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11, shown


def test_arbitrary_bytes_pass_through_unchanged(tacho, python):
    """Ten megabytes, binary, unicode, no newline at the end; to a pipe and to a file."""
    tacho.write(
        "noise.py",
        """
        import sys
        out = sys.stdout.buffer
        out.write(bytes(range(256)) * 40_000)
        out.write("\\nüñí → 完\\x00 \\rone\\rtwo\\nlast".encode())
        """,
    )
    without = tacho.bare(python, "noise.py").stdout
    assert len(without) > 10_000_000
    assert tacho.run(python, "noise.py").stdout == without
    with open(tacho.folder / "file", "wb") as file:
        assert tacho.run(python, "noise.py", stdout=file).returncode == 0
    assert (tacho.folder / "file").read_bytes() == without
    for name in ("noise", "noise-2"):
        (log,) = tacho.records(name, "log")
        assert log["num_bytes"] == len(without)
        assert log["text"].endswith("\ntwo\nlast")
        assert len(log["text"]) <= 17_000


def test_streams_to_one_file_keep_their_order(tacho, python):
    source = "import os\nfor number in range(300): os.write(1 + number % 2, b'%d\\n' % number)\nos._exit(1)"
    with open(tacho.folder / "file", "wb") as file:
        assert tacho.run(python, "-c", source, stdout=file, stderr=subprocess.STDOUT).returncode == 1
    lines = (tacho.folder / "file").read_text().splitlines()
    assert lines[:-1] == [str(number) for number in range(300)]
    shown = tacho.bare(python, "-m", "tachograph", "show", tacho.runs()[0]).stdout
    assert b"last lines of output" in shown and b"  299" in shown


def test_secrets_are_masked_in_the_record_only(tacho, python):
    secret = "sk-" + "a1B2c3D4e5F6g7H8i9J0" * 2
    done = tacho.run(python, "-c", f"print('OPENAI_API_KEY={secret}')")
    assert secret.encode() in done.stdout
    journal = (tacho.folder / "logs" / tacho.runs()[0] / "metrics.jsonl").read_text()
    assert "OPENAI_API_KEY" in journal
    assert f"={secret}" not in str(tacho.records(tacho.runs()[0], "log"))


def test_closed_reader_breaks_the_program_pipe(tacho, python):
    """As in ``tacho run … | head -1``: the program gets the same error as without `tacho run`."""
    source = "import sys\nwhile True: print('x' * 1000)"
    for start in ([python], [*TACHO, "--", python]):
        process = subprocess.Popen(
            [*start, "-c", source], cwd=tacho.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        process.stdout.readline()
        process.stdout.close()
        with process.stderr:
            assert b"BrokenPipeError" in process.stderr.read()
        assert process.wait(HANG_S) == 1
    assert tacho.records(tacho.runs()[0], "error")[0]["error_type"] == "BrokenPipeError"


def test_slow_reader_gets_all_output(tacho, python):
    """The program ends long before its last output is read, as in ``| less``."""
    source = "print('x' * 60_000)\n" * 2
    process = tacho.start(python, "-c", source)
    time.sleep(3.0)
    out, _ = process.communicate(timeout=HANG_S)
    assert len(out) == 120_002
    assert process.returncode == 0


def test_closed_standard_stream_keeps_exit_code(tacho, python):
    for closed in ("1>&-", "2>&-", "0<&-"):
        line = f"exec {' '.join(TACHO)} -- {python} -c 'import sys; sys.exit(9)' {closed}"
        assert subprocess.run(["sh", "-c", line], cwd=tacho.folder, capture_output=True, check=False).returncode == 9


def test_no_output_option_captures_nothing(tacho, python):
    done = tacho.run(python, "-c", "print('printed')", options=("--no-output",))
    assert done.stdout == b"printed\n"
    assert not tacho.records(tacho.runs()[0], "log")


@pytest.mark.parametrize("streams", [1, 2])
def test_non_blocking_stream_loses_nothing(tacho, python, streams):
    """Nothing is lost if our parent made the pipe non-blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    more: dict[str, Any] = {"stderr": writer} if streams == 2 else {"stderr": subprocess.DEVNULL}
    process = tacho.start(python, "-c", "print('x' * 1_000_000)", stdout=writer, **more)
    os.close(writer)
    time.sleep(0.5)
    data = b""
    while block := os.read(reader, 65536):
        data += block
    os.close(reader)
    assert process.wait(HANG_S) == 0
    assert data.startswith(b"x" * 1_000_000 + b"\n")


@pytest.mark.parametrize("options", [(), ("--no-output",)])
def test_address_is_printed_at_start(tacho, python, options):
    """Also into files and pipes, and once. A line that the program has begun stays whole."""
    source = """
        import sys, tachograph
        print("before", end=" ", file=sys.stderr, flush=True)
        run = tachograph.init(name="train", log_dir="logs", console=False)
        while sys.stdin.readline():
            print("after", file=sys.stderr, flush=True)
        """
    tacho.write("train.py", source)
    process = tacho.start(python, "train.py", options=options, stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    wait_for(lambda: "train" in tacho.runs())
    begin, err = time.monotonic(), b""
    while b"watch it" not in err and time.monotonic() < begin + HANG_S:
        process.stdin.write(b"\n")
        process.stdin.flush()
        time.sleep(0.02)
        err += process.stderr.readline()
    _, rest = process.communicate(timeout=HANG_S)
    err += rest
    assert process.returncode == 0
    (address,) = (line for line in err.decode().splitlines() if "watch it" in line)
    assert address.endswith("[telemetry] recording train; watch it with: tacho ui --log-dir logs")
    if not options:
        assert err.decode().replace(f"{address}\n", "").startswith("before after\nafter\n")
