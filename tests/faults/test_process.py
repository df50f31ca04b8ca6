"""Forks, spawned processes, signals, exceptions and interpreter exit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

import tachograph
from tachograph.journal import RunState
from tachograph.reader import read
from tachograph.sinks._process import SinkProcess
from tests.conftest import HANG_S, lines_of, wait_for, wait_for_lines

WORKERS = """
    import multiprocessing, os, sys, tachograph

    def work(number):
        tachograph.log(from_worker=float(number))
        return os.getpid()

    if __name__ == "__main__":
        run = tachograph.init("x", log_dir=sys.argv[1])
        context = multiprocessing.get_context(sys.argv[2])
        for step in range(20):
            run.log(a=float(step), step=step)
        with context.Pool(3) as pool:
            pids = set(pool.map(work, range(12)))
            for step in range(20, 40):
                run.log(a=float(step), step=step)
        assert os.getpid() not in pids
        run.finish()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_do_not_disturb_the_run(logs, script, method):
    code, _out, err = script(WORKERS, logs, method, env={"PYTHONWARNINGS": "ignore"}).wait()
    assert code == 0, err
    history = read(logs / "x")
    assert history.series("a").steps.tolist() == list(range(40))
    assert "from_worker" not in history.metrics
    assert history.state is RunState.FINISHED
    assert len(history.attempts) == 1
    assert err.count("records are dropped") >= 1  # each worker warns once


def test_forked_child_can_have_its_own_run(logs, script):
    script(
        """
        import os, sys, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1])
        run.log(who=1.0, step=0)
        pid = os.fork()
        if pid == 0:
            run.log(who=2.0, step=1)  # the parent's run: not recorded
            own = tachograph.init("x", log_dir=sys.argv[1])
            own.log(who=3.0, step=0)
            tachograph.log(who=4.0, step=1)
            sys.exit(0)  # its exit handlers must not end the run of the parent
        assert os.waitpid(pid, 0)[1] == 0
        run.log(who=1.5, step=1)
        run.finish()
        """,
        logs,
        env={"PYTHONWARNINGS": "ignore"},
    ).ok()
    assert read(logs / "x").series("who").values.tolist() == [1.0, 1.5]
    assert read(logs / "x-2").series("who").values.tolist() == [3.0, 4.0]


def test_fork_during_heavy_logging_loses_nothing(logs, script):
    script(
        """
        import os, sys, threading, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], flush_interval_s=0.01, buffer_size=20_000)
        def log():
            for step in range(20_000):
                run.log(a=float(step), step=step)
        thread = threading.Thread(target=log)
        thread.start()
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        thread.join()
        run.finish()
        """,
        logs,
        env={"PYTHONWARNINGS": "ignore"},
    ).ok()
    assert read(logs / "x").series("a").steps.tolist() == list(range(20_000))


def test_exit_without_finish_is_recorded(logs, script):
    script("import sys, tachograph; tachograph.init('x', log_dir=sys.argv[1]).log(a=1.0)", logs).ok()
    end = lines_of(logs / "x")[-1]
    assert (end["event"], end["status"], end["reason"]) == ("end", "finished", "exit")


def test_unhandled_exception_is_recorded_and_printed(logs, script):
    code, _out, err = script(
        """
        import sys, tachograph
        sys.excepthook = lambda *arguments: print("the old hook:", arguments[1], file=sys.stderr)
        run = tachograph.init("x", log_dir=sys.argv[1])
        run.log(a=1.0)
        raise RuntimeError("out of luck")
        """,
        logs,
    ).wait()
    assert code == 1
    assert err.strip() == "the old hook: out of luck"
    error, end = [record for record in lines_of(logs / "x") if record["event"] in {"error", "end"}]
    assert (error["error_type"], error["error_message"]) == ("RuntimeError", "out of luck")
    assert 'raise RuntimeError("out of luck")' in error["traceback"]
    assert end["status"] == "failed"
    assert read(logs / "x").state is RunState.FAILED


def test_exception_in_a_thread_is_recorded_as_not_fatal(logs, script):
    _code, _out, err = script(
        """
        import sys, threading, tachograph
        with tachograph.init("x", log_dir=sys.argv[1]) as run:
            thread = threading.Thread(target=lambda: 1 / 0, name="prefetch")
            thread.start(); thread.join()
            run.log(a=1.0)
        """,
        logs,
    ).wait()
    assert "ZeroDivisionError" in err
    records = lines_of(logs / "x")
    error = next(record for record in records if record["event"] == "error")
    assert (error["error_type"], error["where"], error["fatal"]) == ("ZeroDivisionError", "thread prefetch", False)
    assert records[-1]["status"] == "finished"


def test_ctrl_c_is_recorded(logs, script):
    training = script(
        """
        import sys, time, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1])
        for step in range(10**9):
            run.log(a=1.0, step=step)
            time.sleep(0.01)
        """,
        logs,
    )
    wait_for_lines(logs / "x", 6)
    training.process.send_signal(signal.SIGINT)
    code, _out, err = training.wait()
    assert code in {1, -signal.SIGINT, 130}
    assert "KeyboardInterrupt" in err
    assert lines_of(logs / "x")[-1]["reason"] == "KeyboardInterrupt"


LOOP = """
    import signal, sys, tachograph
    if sys.argv[2] == "handler":
        def handler(number, frame):
            print("the old handler", flush=True)
            raise SystemExit(7)
        signal.signal(signal.SIGTERM, handler)
    elif sys.argv[2] == "goes_on":
        asked = []
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    elif sys.argv[2] == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run = tachograph.init("x", log_dir=sys.argv[1], flush_interval_s=1.0)
    for step in range(200 if sys.argv[2] in ("goes_on", "ignore") else 10**9):
        run.log(a=1.0, step=step)
        sys.stdout.write(f"step {step}\\n")  # in one piece: the signal may end the process at any time
    sys.stdin.read()
    run.finish()
"""


@pytest.mark.parametrize(
    ("how", "code", "last"),
    [
        ("default", -signal.SIGTERM, {"status": "failed", "reason": "SIGTERM"}),
        ("handler", 7, {"status": "finished", "reason": "exit"}),
        ("goes_on", 0, {"status": "finished"}),
        ("ignore", 0, {"status": "finished"}),
    ],
)
def test_sigterm_is_recorded_and_old_handler_called(logs, script, how, code, last):
    training = script(LOOP, logs, how)
    wait_for(lambda: training.process.stdout.readline() == "step 100\n")
    training.process.send_signal(signal.SIGTERM)
    got, out, err = training.wait()
    assert got == code, err
    records = lines_of(logs / "x")
    assert {key: records[-1].get(key) for key in last} == last
    if how == "handler":
        assert "the old handler" in out
    if how == "default":
        # Everything logged before the signal is recorded, although no flush was due.
        last_step = max(int(line.split()[1]) for line in out.splitlines() if line.startswith("step "))
        assert [record for record in records if record["event"] == "step"][-1]["global_step"] >= last_step
    if how != "ignore":
        assert any(record.get("name") == "signal" for record in records)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_fatal_signal_loses_nothing(logs, script, name):
    training = script(
        """
        import sys, time, tachograph
        run = tachograph.init("x", log_dir=sys.argv[1], flush_interval_s=1.0, git=False, console=False)
        for step in range(500):
            run.log(a=1.0, step=step)
        print("logged", flush=True)
        while True:
            time.sleep(0.01)
        """,
        logs,
    )
    assert training.process.stdout.readline()
    training.process.send_signal(getattr(signal, name))
    code, _out, err = training.wait()
    assert code == -getattr(signal, name), err
    records = lines_of(logs / "x")
    assert [record["global_step"] for record in records if record["event"] == "step"] == list(range(500))
    assert (records[-1]["status"], records[-1]["reason"]) == ("failed", name)
    assert any(record.get("signal") == name for record in records)


@pytest.mark.parametrize("when", ["before", "after", "chained", "c_code", "c_code_later", "ended"])
def test_handlers_of_others_keep_their_signals(logs, script, when):
    """A handler of a library or a scheduler decides, whenever it is installed; the process continues."""
    out = script(
        """
        import faulthandler, os, signal, sys, time, tachograph
        when, number, calls = sys.argv[2], signal.SIGUSR1, []
        def handler(number, frame):
            calls.append(number)
            if when == "chained" and callable(previous):
                previous(number, frame)
        if when == "before":
            signal.signal(number, handler)
        if when == "c_code":
            faulthandler.register(number)
        run = tachograph.init("x", log_dir=sys.argv[1], git=False, console=False)
        run.log(a=1.0, step=0)
        if when == "before":
            assert signal.getsignal(number) is handler
        elif when == "c_code_later":
            faulthandler.register(number)
        elif when in ("after", "chained", "ended"):
            assert signal.getsignal(number) in (None, signal.SIG_DFL)  # as libraries ask
            previous = signal.getsignal(number)
            signal.signal(number, handler)
        if when == "ended":
            run.finish()
            assert signal.getsignal(number) is handler
        os.kill(os.getpid(), number)
        for _ in range(10):
            time.sleep(0.01)
        assert calls == ([] if when.startswith("c_code") else [number])
        run.log(a=2.0, step=1)
        run.finish()
        if when.startswith("c_code"):
            os.kill(os.getpid(), number)
        print("alive")
        """,
        logs,
        when,
    ).ok()
    assert "alive" in out
    history = read(logs / "x")
    assert history.state is RunState.FINISHED
    assert history.counts["step"] == (1 if when == "ended" else 2)


def test_hooks_are_removed_at_the_end(logs):
    before = sys.excepthook, signal.getsignal(signal.SIGTERM)
    with tachograph.init("x", log_dir=str(logs)):
        assert sys.excepthook is not before[0]
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert (sys.excepthook, signal.getsignal(signal.SIGTERM)) == before


def test_hooks_can_be_disabled(logs):
    before = sys.excepthook, signal.getsignal(signal.SIGTERM)
    with tachograph.init("x", log_dir=str(logs), hooks=False):
        assert (sys.excepthook, signal.getsignal(signal.SIGTERM)) == before


def test_run_can_start_in_a_thread(logs, script):
    script(
        """
        import sys, threading, tachograph
        def work():
            with tachograph.init("x", log_dir=sys.argv[1]) as run:
                run.log(a=1.0)
        thread = threading.Thread(target=work)
        thread.start(); thread.join()
        """,
        logs,
    ).ok()
    assert read(logs / "x").state is RunState.FINISHED


STALL = """
    import os, signal, sys, threading, time, tachograph

    stalled, release = threading.Event(), threading.Event()
    write = os.write
    def hang(descriptor, data):
        if stalled.is_set() and threading.current_thread().name == "tachograph-writer":
            release.wait()
        return write(descriptor, data)
    os.write = hang  # a disk that hangs, such as a lost network mount
"""


def test_exit_is_bounded_when_the_disk_hangs(logs, script):
    training = script(
        STALL
        + """
    run = tachograph.init("x", log_dir=sys.argv[1], exit_timeout_s=1.0)
    run.flush()
    stalled.set()
    for step in range(30_000):
        run.log(a=1.0, step=step)
    print(time.time(), flush=True)
    """,
        logs,
    )
    code, out, err = training.wait()
    printed = next(line for line in out.splitlines() if not line.startswith("[telemetry]"))
    left = time.time() - float(printed)
    assert code == 0, err
    assert left < HANG_S / 2, f"the process took {left:.1f} s to end"
    assert "could not be written" in err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signal_waits_for_a_slow_disk(logs, script, name):
    training = script(
        STALL
        + """
    run = tachograph.init("x", log_dir=sys.argv[1], exit_timeout_s=120, system_interval_s=0)
    run.flush()
    stalled.set()
    run.log(a=1.0, step=0)
    threading.Timer(3.5, release.set).start()
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    """,
        logs,
        name,
    )
    code, _out, err = training.wait()
    assert code == -getattr(signal, name), err
    records = lines_of(logs / "x")
    assert [record["a"] for record in records if record["event"] == "step"] == [1.0]
    assert (records[-1]["status"], records[-1]["reason"]) == ("failed", name)


def test_stalled_writer_drops_and_counts_records(logs, script):
    """The buffer stays bounded, no step waits, and lost records are counted and shown."""
    out = script(
        STALL
        + """
    import resource
    run = tachograph.init("x", log_dir=sys.argv[1], buffer_size=5000)
    for step in range(100):
        run.log(a=1.0, step=step)
    run.flush()
    stalled.set()
    for step in range(100, 20_000):
        run.log(a=1.0, step=step)  # waits a moment for the writer, and not at all once it is known to be stuck
        if step % 100 == 0:
            time.sleep(0.001)
    print("steps", step + 1, "waiting", len(run.backend.buffer))
    release.set()
    stalled.clear()
    run.finish()
    """,
        logs,
    ).ok()
    words = out.split()
    num_steps = int(words[words.index("steps") + 1])
    assert int(words[words.index("waiting") + 1]) <= 5000 + 10
    history = read(logs / "x")
    assert history.num_lost_records == num_steps - history.counts["step"]
    assert history.num_lost_records > 1000
    shown = subprocess.run(
        [sys.executable, "-m", "tachograph", "show", str(logs / "x")],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert f"{history.num_lost_records} records lost" in shown.stdout
    assert "the buffer was full" in shown.stdout


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        ("sys.exit(3)", "failed", "exit code 3"),
        ("sys.exit()", "finished", "exit"),
        ("sys.exit(0)", "finished", "exit"),
        ("sys.excepthook = sys.__excepthook__; raise RuntimeError('x')", "failed", "RuntimeError"),
        ("import rich.traceback; rich.traceback.install(); raise RuntimeError('x')", "failed", "RuntimeError"),
        ("run.finish(); sys.excepthook = sys.__excepthook__\n"
         "again = tachograph.init('x', log_dir=sys.argv[1], resume=True)\n"
         "again.log(a=2.0); raise RuntimeError('x')", "failed", "RuntimeError"),
    ],
)  # fmt: skip
def test_end_record_has_the_exit_status_and_reason(logs, script, ending, status, reason):
    source = f"import sys, tachograph\nrun = tachograph.init('x', log_dir=sys.argv[1])\nrun.log(a=1.0)\n{ending}\n"
    script(source, logs).wait()
    end = lines_of(logs / "x")[-1]
    assert (end["status"], end["reason"]) == (status, reason)


def test_sys_exit_is_restored(logs):
    before = sys.exit
    with tachograph.init("x", log_dir=str(logs)), pytest.raises(SystemExit):
        assert sys.exit is not before
        sys.exit(0)
    assert sys.exit is before


def test_sigterm_during_finish_loses_nothing(logs, script):
    training = script(
        """
        import os, signal, sys, threading, time, tachograph
        write, writing = os.write, threading.Event()
        def slow(descriptor, data):
            if len(data) > 1000:
                writing.set()
                time.sleep(0.3)  # a slow disk
            return write(descriptor, data)
        def terminate():
            writing.wait()
            os.kill(os.getpid(), signal.SIGTERM)
        run = tachograph.init("x", log_dir=sys.argv[1], csv=False, system_interval_s=0)
        for step in range(50):
            run.log(a=float(step), step=step)
        os.write = slow
        threading.Thread(target=terminate).start()
        run.finish()
        """,
        logs,
    )
    assert training.wait()[0] == -signal.SIGTERM
    assert lines_of(logs / "x")[-1]["event"] == "end"
    assert read(logs / "x").counts["step"] == 50


@pytest.mark.parametrize("stdout", ["closed pipe", "closed", "ascii"])
def test_unprintable_console_line_is_harmless(logs, script, stdout):
    source = {
        "closed pipe": "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1)",
        "closed": "import sys; sys.stdout.close()",
        "ascii": "",
    }[stdout]
    code, _out, err = script(
        f"{source}\nimport sys, tachograph\nwith tachograph.init('größe', log_dir=sys.argv[1]) as run: run.log(a=1.0)\n"
        "import os; os._exit(0)",
        logs,
        env={"PYTHONIOENCODING": "ascii"} if stdout == "ascii" else {},
    ).wait()
    assert code == 0, err
    assert read(logs / "größe").state is RunState.FINISHED


def test_forked_child_samples_its_own_process(logs, script):
    script(
        """
        import os, sys, time, tachograph, threading
        from tachograph.recorder import Run
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        pid = os.fork()
        if pid == 0:
            with tachograph.init("x", log_dir=sys.argv[1], system_interval_s=0.1) as run:
                while b'"system"' not in run.folder.journal.read_bytes():
                    time.sleep(0.05)
            os._exit(0)
        os.waitpid(pid, 0)
        os._exit(0)
        """,
        logs,
        env={"PYTHONWARNINGS": "ignore"},
    ).ok()
    system = next(read(logs / "x").records("system"))
    assert system["num_threads"] < 10
    assert system["cpu_mem_rss_mb"] > 5


WRAPPERS = {
    "exit": """
        import sys
        def wrap():
            inner = sys.exit
            def outer(code=None): inner(code)
            sys.exit = outer
        def end(): sys.exit(4)
    """,
    "excepthook": """
        import sys
        def wrap():
            inner = sys.excepthook
            def outer(*arguments): inner(*arguments)
            sys.excepthook = outer
        def end(): raise RuntimeError("x")
    """,
    "sigterm": """
        import os, signal, time
        def wrap():
            inner = signal.getsignal(signal.SIGTERM)
            def outer(*arguments): inner(*arguments)
            signal.signal(signal.SIGTERM, outer)
        def end(): os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
    """,
}


@pytest.mark.parametrize("order", ["after", "nested"])
@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [("exit", 4, "exit code 4"), ("excepthook", 1, "RuntimeError"), ("sigterm", -15, "SIGTERM")],
)
def test_hooks_work_when_wrapped_by_others(logs, script, kind, code, reason, order):
    import textwrap

    source = (
        textwrap.dedent(WRAPPERS[kind])
        + "import sys, tachograph\n"
        + "a = tachograph.init('a', log_dir=sys.argv[1])\nwrap()\n"
        + ("a.finish()\n" if order == "after" else "")
        + "b = tachograph.init('b', log_dir=sys.argv[1])\nb.log(x=1.0)\nend()\n"
    )
    got, _out, err = script(source, logs).wait()
    assert "RecursionError" not in err
    assert got == code, err
    assert lines_of(logs / "b")[-1]["reason"] == reason
    assert lines_of(logs / "a")[-1].get("reason") == (reason if order == "nested" else None)


def test_hooks_reinstalled_by_others_are_harmless(logs):
    before = sys.excepthook
    first = tachograph.init("a", log_dir=str(logs))
    saved = sys.excepthook
    first.finish()
    sys.excepthook = saved
    second = tachograph.init("b", log_dir=str(logs))
    assert sys.excepthook is not saved
    assert second.finish() is True
    assert sys.excepthook is saved
    sys.excepthook = before


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("ending", "status"), [("pass", "finished"), ("raise RuntimeError('x')", "failed"), ("sys.exit(4)", "failed")]
)
def test_worker_with_its_own_run_loses_nothing(logs, script, method, ending, status):
    script(
        f"""
        import multiprocessing, sys, tachograph
        def work(folder):
            run = tachograph.init("x", log_dir=folder, console=False)
            for step in range(100):
                run.log(a=float(step), step=step)
            {ending}
        if __name__ == "__main__":
            worker = multiprocessing.get_context({method!r}).Process(target=work, args=(sys.argv[1],))
            worker.start()
            worker.join()
        """,
        logs,
        env={"PYTHONWARNINGS": "ignore"},
    ).ok()
    history = read(logs / "x")
    assert history.counts["step"] == 100
    assert lines_of(logs / "x")[-1]["status"] == status


def test_error_before_the_run_is_not_recorded(logs, script):
    source = """
        import sys, tachograph
        sys.last_value = sys.last_exc = NameError("a cell that failed before")
        tachograph.init("x", log_dir=sys.argv[1]).log(a=1.0)
    """
    script(source, logs).ok()
    assert lines_of(logs / "x")[-1]["status"] == "finished"


@pytest.mark.parametrize(
    "options",
    [{"sinks": ["tensorboard"]}, {"mode": "cloud", "server": "http://127.0.0.1:9"}],
    ids=["sink", "sender"],
)
def test_removed_folder_is_not_created_again(logs, monkeypatch, options):
    """A process that is still exporting when the run ends does not write to a folder that is gone."""
    monkeypatch.setenv("TACHO_API_KEY", f"tk_{'a' * 8}_{'b' * 43}")
    assert SinkProcess.__init__.__kwdefaults__["give_up_s"] > 5.0
    monkeypatch.setitem(SinkProcess.__init__.__kwdefaults__, "give_up_s", 5.0)
    children = psutil.Process().children
    others = set(children(recursive=True))
    run = tachograph.init("x", log_dir=str(logs), git=False, console=False, exit_timeout_s=3.0, **options)
    late = set(children(recursive=True)) - others
    assert late
    for process in late:
        process.suspend()
    for step in range(1_000):
        run.log(a=1.0, step=step)
    assert run.flush(HANG_S)
    run.finish()
    assert run.finish(timeout_s=HANG_S)  # only waits for the journal
    shutil.rmtree(logs)
    for process in late:
        process.resume()
    _, running = psutil.wait_procs(late, timeout=HANG_S)
    assert not running and not logs.exists()
