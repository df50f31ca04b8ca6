"""`tacho run` does not change how a program runs, and records how it ended. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG_S
from tests.integrations.zero_code.conftest import program_stderr

RECORDS = """
import os, signal, sys, time
import tachograph as tacho

run = tacho.init("mine", console=False)
for step in range(3):
    run.log(train_loss=1.0 / (step + 1), step=step)
"""

BOOTSTRAP = Path(__file__).parents[3] / "src" / "tachograph" / "integrations" / "zero_code" / "bootstrap"


# Nothing changes for the script --------------------------------------------------------------------------------------


def test_script_environment_is_unchanged(tacho, python):
    """Path, arguments, folder, environment, signals and streams are the same; its own sitecustomize has run."""
    tacho.write("other/sitecustomize.py", "import sys; sys.theirs = 'Theirs.'")
    tacho.write(
        "look.py",
        """
        import os, signal, sys
        print(sys.path, sys.argv, os.getcwd(), __name__, __file__, getattr(sys, "theirs", None))
        print(sorted(name for name in os.environ if not name.startswith("TACHO") and name != "PYTHONPATH"))
        print([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)])
        print(sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.line_buffering, sys.flags)
        print("to the error stream", file=sys.stderr)
        """,
    )
    for paths in (":other", "other:", ""):
        without = tacho.bare(python, "look.py", "--one", "-m", "two words", env={"PYTHONPATH": paths})
        done = tacho.run(python, "look.py", "--one", "-m", "two words", env={"PYTHONPATH": paths})
        assert (done.returncode, done.stdout) == (without.returncode, without.stdout), paths
        assert program_stderr(done.stderr) == without.stderr
        assert (b"Theirs." in done.stdout) == ("other" in paths)


def test_failing_sitecustomize_fails_the_same_way(tacho, python):
    tacho.write("other/sitecustomize.py", "raise ValueError('theirs')")
    env = {"PYTHONPATH": "other"}
    without = tacho.bare(python, "-c", "print(1)", env=env)
    done = tacho.run(python, "-c", "print(1)", env=env)
    assert done.stdout == without.stdout
    assert program_stderr(done.stderr) == without.stderr * 2, "once more, because the launcher is a Python process, too"


def test_script_without_torch_imports_nothing_heavy(tacho, python):
    tacho.write("names.py", "import sys; print(*sys.modules)")
    without = set(tacho.bare(python, "names.py").stdout.split())
    ours = set(tacho.run(python, "names.py").stdout.split()) - without
    assert {name for name in ours if name.startswith(b"tachograph")} == {
        b"tachograph",
        b"tachograph._base.version",
        b"tachograph._base",
        b"tachograph._base.guard",
        b"tachograph._base.patching",
        b"tachograph._base.printable",
        b"tachograph.integrations",
        b"tachograph.integrations.zero_code._output_reader",
        b"tachograph.integrations.zero_code._printed_values",
        b"tachograph.integrations.zero_code",
        b"tachograph.integrations.zero_code._calls",
        b"tachograph.integrations.zero_code._child",
        b"tachograph.integrations.zero_code._configs",
        b"tachograph._base.import_watch",
        b"tachograph.integrations.zero_code._imports",
        b"tachograph.integrations.zero_code._launch_spec",
        b"tachograph.integrations.zero_code._script_values",
        b"tachograph.integrations.zero_code._trackers",
    }
    roots = {name.partition(b".")[0].decode() for name in ours} - {"tachograph", "sitecustomize"}
    assert roots <= set(sys.stdlib_module_names)
    assert len(ours) < 66


def test_startup_overhead_is_small(tmp_path, python):
    """Compare the processor time of the cheapest of several starts, with and without the import watch."""

    def used_s():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    (tmp_path / "empty.py").write_text("")
    launched = {"PYTHONPATH": str(BOOTSTRAP), "TACHO_LAUNCH": json.dumps({"reports": str(tmp_path)})}
    least_s = {}
    for _ in range(5):
        for way, env in (("without", {}), ("with", launched)):
            before_s = used_s()
            subprocess.run([python, "empty.py"], cwd=tmp_path, env={**os.environ, **env}, check=True)
            least_s[way] = min(least_s.get(way, 99.0), used_s() - before_s)
    more_s = least_s["with"] - least_s["without"]
    print(
        f"an empty script takes {least_s['without'] * 1000:.0f} ms, plus {more_s * 1000:.0f} ms with the import watch"
    )
    assert more_s < 5 * least_s["without"]


def test_find_spec_does_not_trigger_import_hook(tacho, python):
    """Libraries check this way whether torch is installed; the hook waits for the import."""
    tacho.write("json5_like.py", "value = 1")
    tacho.write(
        "look.py",
        """
        import importlib.util, sys
        from tachograph.integrations.zero_code._imports import ImportWatch
        called = []
        ImportWatch({"json5_like": called.append, "not_there": called.append, "broken": called.append}).install()
        spec = importlib.util.find_spec("json5_like")
        assert spec.origin.endswith("json5_like.py") and spec.loader.get_code("json5_like"), spec
        assert importlib.util.find_spec("not_there") is None and not called
        import json5_like
        assert called == [json5_like] and type(json5_like.__loader__).__name__ == "SourceFileLoader"
        assert json5_like.__spec__.loader is json5_like.__loader__
        importlib.reload(json5_like)
        assert len(called) == 1
        open("broken.py", "w").write("raise ValueError")
        importlib.invalidate_caches()
        try:
            import broken
        except ValueError:
            open("broken.py", "w").write("value = 22")
            importlib.invalidate_caches()
        import broken
        assert len(called) == 2 and broken.value == 22
        """,
    )
    assert tacho.bare(python, "look.py").returncode == 0, tacho.bare(python, "look.py").stderr


# Commands ------------------------------------------------------------------------------------------------------------


def test_accepted_forms_of_the_command(tacho, python):
    tacho.write("pkg/__init__.py", "")
    tacho.write("pkg/train.py", "import sys; print(__name__, sys.argv[1:])")
    tacho.write("train.py", "import sys; print('script', sys.argv[1:])")
    for command, printed, name in (
        ((python, "-m", "pkg.train", "-x"), b"__main__ ['-x']\n", "train"),
        (("-m", "pkg.train"), b"__main__ []\n", "train-2"),
        (("train.py", "--lr", "1"), b"script ['--lr', '1']\n", "train-3"),
        ((python, "-c", "print(7)"), b"7\n", os.path.basename(python)),
        (("sh", "-c", "echo hello; exit 3"), b"hello\n", "sh"),
    ):
        done = tacho.run(*command)
        assert done.stdout == printed
        assert done.returncode == (3 if command[0] == "sh" else 0)
        (event,) = tacho.records(name, "event")
        assert event["method"] == "launch"
        assert tacho.records(name, "end")[-1]["exit_code"] == done.returncode


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (["missing-program"], [], "is not an executable program"),
        (["missing.py"], [], "missing.py"),
        (["python", "-I", "x.py"], [], "python -I ignores PYTHONPATH or sitecustomize"),
        (["python", "-uE", "x.py"], [], "python -E"),
        (["python", "-X", "dev", "-S", "x.py"], [], "python -S"),
        (["python", "x.py"], ["--set", "log_evry=3"], "log_every"),
        (["python", "x.py"], ["--set", "log_every"], "expected NAME=VALUE"),
        (["python", "x.py"], ["--set", "log_every=none"], "log_every"),
        (["python", "x.py"], ["--name", "a/b"], "a/b"),
        (["python", "x.py"], ["--log-dir", "x.py/logs"], "is not a writable folder"),
        ([], [], "COMMAND"),
    ],
)
def test_invalid_command_is_rejected_before_it_runs(tacho, command, options, message):
    tacho.write("x.py", "open('ran', 'w')")
    done = tacho.run(*command, options=tuple(options))
    text = done.stderr.decode()
    assert done.returncode not in (0, None)
    assert message in " ".join(text.replace("│", " ").split()), text
    assert "Traceback" not in text
    assert not (tacho.folder / "ran").exists()
    assert not tacho.runs() or command == ["missing.py"]


def test_similar_python_flags_are_accepted(tacho, python):
    """Values of Python's options and options of the script are not flags of Python."""
    tacho.write("x.py", "print('ran')")
    for flags in (["-Wignore::ImportWarning"], ["-W", "ignore::EncodingWarning"], ["-X", "utf8"], ["-u"]):
        assert tacho.run(python, *flags, "x.py", "-I", "-S").stdout == b"ran\n"


def test_missing_script_fails_as_without_tacho(tacho, python):
    without = tacho.bare(python, "missing.py")
    done = tacho.run(python, "missing.py")
    assert done.returncode == without.returncode == 2
    assert program_stderr(done.stderr) == without.stderr
    (log,) = tacho.records("missing", "log")
    assert "No such file" in log["text"]
    assert tacho.records("missing", "end")[-1]["status"] == "failed"


# Exits ---------------------------------------------------------------------------------------------------------------

ENDS = {
    "returns": ("", 0, "finished", None),
    "exits": ("sys.exit(7)", 7, "failed", None),
    "leaves": ("sys.stdout.flush(); run.flush(); os._exit(5)", 5, "failed", None),
    "raises": ("raise KeyError('lost')", 1, "failed", "KeyError"),
    "is interrupted": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", -2, "failed", "KeyboardInterrupt"),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)", -15, "failed", None),
    "is killed": ("run.flush(); os.kill(os.getpid(), signal.SIGKILL)", -9, "failed", None),
    "breaks": ("run.flush(); import faulthandler; faulthandler._sigsegv()", -11, "failed", None),
}


@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("has_run", [True, False], ids=["recorded", "unrecorded"])
def test_exit_is_unchanged_and_recorded(tacho, python, way, has_run):
    last, code, status, error = ENDS[way]
    body = RECORDS if has_run else "import os, signal, sys, time\nclass run: flush = staticmethod(lambda: None)\n"
    tacho.write("mine.py", f"{body}\nprint('last words')\n{last}\n")
    done = tacho.run(python, "mine.py")
    without = tacho.bare(python, "mine.py", env={"TACHO_LOG_DIR": "elsewhere"})
    assert done.returncode == without.returncode == code
    assert done.stdout == without.stdout
    theirs = program_stderr(done.stderr)
    if way == "breaks":
        assert b"Segmentation fault" not in theirs  # faulthandler must stay off
    else:
        assert theirs == without.stderr
    assert tacho.runs() == ["mine"]
    end = tacho.records("mine", "end")[-1]
    assert end["status"] == status
    assert end.get("exit_code") == (code if code >= 0 else None)
    assert end.get("signal") == (signal.Signals(-code).name if code < 0 else None)
    errors = tacho.records("mine", "error")
    assert [record["error_type"].rpartition(".")[2] for record in errors] == ([error] if error else [])
    if has_run:
        assert [step["train_loss"] for step in tacho.records("mine", "step")] == [1.0, 1 / 2, 1 / 3]
    if way not in ("is killed", "breaks", "is terminated") or has_run is False:
        (log,) = [log for log in tacho.records("mine", "log") if log["stream"] == "stdout"] or [{"text": "last words"}]
        assert log["text"] == "last words"


def test_error_before_any_import_is_recorded(tacho, python):
    tacho.write("train.py", "import not_installed_anywhere")
    done = tacho.run(python, "train.py")
    assert done.returncode == 1
    (error,) = tacho.records("train", "error")
    assert error["error_type"] == "ModuleNotFoundError"
    assert error["fatal"] is True
    assert "not_installed_anywhere" in error["traceback"]
    assert tacho.records("train", "end")[-1]["reason"] == "ModuleNotFoundError"
    assert tacho.records("train", "start")[0]["command"] == ["train.py"]  # as if it had started the run itself


def test_error_in_subprocess_does_not_fail_the_run(tacho, python):
    tacho.write("train.py", "import subprocess, sys; subprocess.run([sys.executable, '-c', '1 / 0'])")
    assert tacho.run(python, "train.py").returncode == 0
    assert not tacho.records("train", "error")
    assert tacho.records("train", "end")[-1]["status"] == "finished"


def test_sigterm_is_forwarded_to_the_program(tacho, python):
    tacho.write(
        "mine.py",
        RECORDS
        + """
def stop(number, frame):
    print("stopped by", number, flush=True)
    sys.exit(4)

signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(3600)
""",
    )
    process = tacho.start(python, "mine.py")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (4, b"stopped by 15\n")
    assert tacho.records("mine", "end")[-1]["exit_code"] == 4


def test_program_survives_a_killed_launcher(tacho, python):
    """With `--no-output` the program keeps its own streams."""
    source = """
        import os, time
        print("ready", flush=True)
        while not os.path.exists("killed"):
            time.sleep(0.05)
        print("still here")
    """
    tacho.write("mine.py", source)
    process = tacho.start(python, "mine.py", options=("--no-output",))
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait()
    tacho.write("killed", "")
    out, err = process.communicate(timeout=HANG_S)  # until the program, too, has closed its output
    assert process.returncode == -signal.SIGKILL
    assert out == b"still here\n"
    assert b"Error" not in err


def test_recording_failure_keeps_the_exit_code(tacho, python):
    """A file replaces the log folder while the program runs."""
    source = "open('logs', 'w').close(); print('ran'); raise SystemExit(6)"
    done = tacho.run(python, "-c", source)
    assert (done.returncode, done.stdout) == (6, b"ran\n")
    assert b"nothing was recorded" in done.stderr
    assert b"Traceback" not in done.stderr


def test_python_without_tachograph_still_runs(tacho):
    system = "/usr/bin/python3"
    probe = [system, "-c", "import tachograph"]
    if not os.path.exists(system) or subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        pytest.skip("no other Python is installed")
    done = tacho.run(system, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"No module named 'tachograph'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_disabled_telemetry_records_nothing(tacho, python):
    done = tacho.run(python, "-c", "print('ran')", options=("--set", "enabled=false"))
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert tacho.runs() == []
    assert b"telemetry is off" in done.stderr


# Names and settings --------------------------------------------------------------------------------------------------


def test_name_tags_and_resume(tacho, python):
    for options in (
        ("--name", "first", "--tag", "a", "--tag", "b"),
        ("--name", "first"),
        ("--name", "first", "--resume"),
    ):
        assert tacho.run(python, "-c", "pass", options=options).returncode == 0
    assert tacho.runs() == ["first", "first-2"]
    starts = tacho.records("first", "start")
    assert [start["resumed"] for start in starts] == [False, True]
    assert starts[0]["tags"] == ["a", "b"]


def test_log_dir_is_independent_of_chdir(tacho, python):
    tacho.write("mine.py", "import os; os.makedirs('away'); os.chdir('away')\n" + RECORDS)
    done = tacho.run(python, "mine.py", options=("--set", "log_every=2"))
    assert done.returncode == 0
    assert tacho.runs() == ["mine"]
    assert b"recorded in logs/mine" in done.stderr
    assert tacho.records("mine", "start")[0]["log_every"] == 2


def test_ls_and_show_include_launched_runs(tacho, python):
    tacho.write("mine.py", RECORDS + "print('what was printed')\nsys.exit(3)\n")
    tacho.run(python, "mine.py")
    listed = tacho.bare(python, "-m", "tachograph", "ls").stdout.decode()
    assert "mine" in listed and "failed" in listed
    shown = tacho.bare(python, "-m", "tachograph", "show", "mine").stdout.decode()
    assert "failed" in shown and "exit code 3" in shown


# Other processes -----------------------------------------------------------------------------------------------------


def test_helper_processes_create_no_runs(tacho, python):
    tacho.write(
        "train.py",
        """
        import multiprocessing, subprocess, sys

        def work(number):
            return number * 2

        if __name__ == "__main__":
            for way in ("spawn", "fork"):
                with multiprocessing.get_context(way).Pool(1) as pool:
                    print(pool.map(work, [1, 2]))
            print(subprocess.run([sys.executable, "-c", "print('helper')"], capture_output=True, text=True).stdout)
        """,
    )
    without = tacho.bare(python, "train.py")
    done = tacho.run(python, "train.py")
    assert done.stdout == without.stdout == b"[2, 4]\n[2, 4]\nhelper\n\n"
    assert program_stderr(done.stderr) == without.stderr
    assert tacho.runs() == ["train"]
    assert len(tacho.records("train", "end")) == 2, "one by the run itself, one by the launcher"


def test_background_process_does_not_block_exit(tacho, python):
    source = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        open("pid", "w").write(str(child.pid))
    """
    tacho.write("mine.py", source)
    try:
        assert tacho.run(python, "mine.py", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    finally:
        os.kill(int((tacho.folder / "pid").read_text()), signal.SIGKILL)


def test_unknown_option_is_reported(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "run", "--nmae", "x", "--", "python", "-c", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "No such option" in done.stderr and "--nmae" in done.stderr
