"""`tacho run`: the program runs as it would without, and how it ended is recorded. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integrations.zero_code.conftest import said_by_program

RECORDS = """
import os, signal, sys, time
import tachograph as tacho

run = tacho.init("mine", console=False)
for step in range(3):
    run.log(train_loss=1.0 / (step + 1), step=step)
"""

BOOTSTRAP = Path(__file__).parents[3] / "src" / "tachograph" / "integrations" / "zero_code" / "bootstrap"


# As without ----------------------------------------------------------------------------------------------------------


def test_what_a_script_sees_is_as_without(tacho, python):
    """Its path, arguments, folder, environment, signals and streams; its own sitecustomize has run."""
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
        assert said_by_program(done.stderr) == without.stderr
        assert (b"Theirs." in done.stdout) == ("other" in paths)


def test_a_sitecustomize_that_fails_fails_as_without(tacho, python):
    tacho.write("other/sitecustomize.py", "raise ValueError('theirs')")
    env = {"PYTHONPATH": "other"}
    without = tacho.bare(python, "-c", "print(1)", env=env)
    done = tacho.run(python, "-c", "print(1)", env=env)
    assert done.stdout == without.stdout
    assert said_by_program(done.stderr) == without.stderr * 2, "the launcher is a Python, too"


def test_nothing_heavy_is_imported_for_a_script_without_torch(tacho, python):
    tacho.write("names.py", "import sys; print(*sys.modules)")
    without = set(tacho.bare(python, "names.py").stdout.split())
    ours = set(tacho.run(python, "names.py").stdout.split()) - without
    assert {name for name in ours if name.startswith(b"tachograph")} == {
        b"tachograph",
        b"tachograph._version",
        b"tachograph._base",
        b"tachograph._base.guard",
        b"tachograph.integrations",
        b"tachograph.integrations.zero_code",
        b"tachograph.integrations.zero_code._child",
        b"tachograph.integrations.zero_code._imports",
        b"tachograph.integrations.zero_code._launch_spec",
    }
    roots = {name.partition(b".")[0].decode() for name in ours} - {"tachograph", "sitecustomize"}
    assert roots <= set(sys.stdlib_module_names)
    assert len(ours) < 60


def test_starting_up_costs_little(tmp_path, python):
    """The least of several starts, with and without the watch on imports."""
    (tmp_path / "empty.py").write_text("")
    launched = {"PYTHONPATH": str(BOOTSTRAP), "TACHO_LAUNCH": json.dumps({"letters": str(tmp_path)})}
    least_s = {}
    for _ in range(5):
        for way, env in (("without", {}), ("with", launched)):
            start_s = time.perf_counter()
            subprocess.run([python, "empty.py"], cwd=tmp_path, env={**os.environ, **env}, check=True)
            least_s[way] = min(least_s.get(way, 99.0), time.perf_counter() - start_s)
    more_s = least_s["with"] - least_s["without"]
    print(f"an empty script takes {least_s['without'] * 1000:.0f} ms, and {more_s * 1000:.0f} ms more when watched")
    assert more_s < 0.15


def test_looking_for_a_module_is_not_importing_it(tacho, python):
    """Libraries ask so whether torch is installed; the hook waits for the import."""
    tacho.write("json5_like.py", "value = 1")
    tacho.write(
        "look.py",
        """
        import importlib.util, sys
        from tachograph.integrations.zero_code._imports import ImportWatch
        told = []
        ImportWatch({"json5_like": told.append, "not_there": told.append, "broken": told.append}).install()
        spec = importlib.util.find_spec("json5_like")
        assert spec.origin.endswith("json5_like.py") and spec.loader.get_code("json5_like"), spec
        assert importlib.util.find_spec("not_there") is None and not told
        import json5_like
        assert told == [json5_like] and type(json5_like.__loader__).__name__ == "SourceFileLoader"
        assert json5_like.__spec__.loader is json5_like.__loader__
        importlib.reload(json5_like)
        assert len(told) == 1
        open("broken.py", "w").write("raise ValueError")
        importlib.invalidate_caches()
        try:
            import broken
        except ValueError:
            open("broken.py", "w").write("value = 22")
            importlib.invalidate_caches()
        import broken
        assert len(told) == 2 and broken.value == 22
        """,
    )
    assert tacho.bare(python, "look.py").returncode == 0, tacho.bare(python, "look.py").stderr


# Ways to start -------------------------------------------------------------------------------------------------------


def test_ways_to_write_the_command(tacho, python):
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
    ("command", "options", "said"),
    [
        (["missing-program"], [], "is no program that can be started"),
        (["missing.py"], [], "missing.py"),
        (["python", "-I", "x.py"], [], "python -I looks neither at PYTHONPATH"),
        (["python", "-uE", "x.py"], [], "python -E"),
        (["python", "-X", "dev", "-S", "x.py"], [], "python -S"),
        (["python", "x.py"], ["--set", "log_evry=3"], "log_every"),
        (["python", "x.py"], ["--set", "log_every"], "NAME=VALUE"),
        (["python", "x.py"], ["--set", "log_every=none"], "log_every"),
        (["python", "x.py"], ["--name", "a/b"], "a/b"),
        (["python", "x.py"], ["--log-dir", "x.py/logs"], "no folder that can be written to"),
        ([], [], "COMMAND"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(tacho, command, options, said):
    tacho.write("x.py", "open('ran', 'w')")
    done = tacho.run(*command, options=tuple(options))
    text = done.stderr.decode()
    assert done.returncode not in (0, None)
    assert said in " ".join(text.replace("│", " ").split()), text
    assert "Traceback" not in text
    assert not (tacho.folder / "ran").exists()
    assert not tacho.runs() or command == ["missing.py"]


def test_flags_of_python_that_only_look_like_it(tacho, python):
    """The value of an option is not an option, and neither are those of the script."""
    tacho.write("x.py", "print('ran')")
    for flags in (["-Wignore::ImportWarning"], ["-W", "ignore::EncodingWarning"], ["-X", "utf8"], ["-u"]):
        assert tacho.run(python, *flags, "x.py", "-I", "-S").stdout == b"ran\n"


def test_a_script_that_is_not_there(tacho, python):
    without = tacho.bare(python, "missing.py")
    done = tacho.run(python, "missing.py")
    assert done.returncode == without.returncode == 2
    assert said_by_program(done.stderr) == without.stderr
    (log,) = tacho.records("missing", "log")
    assert "No such file" in log["text"]
    assert tacho.records("missing", "end")[-1]["status"] == "failed"


# How it ends ---------------------------------------------------------------------------------------------------------

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
def test_the_end_is_the_same_and_recorded(tacho, python, way, has_run):
    last, code, status, error = ENDS[way]
    body = RECORDS if has_run else "import os, signal, sys, time\nclass run: flush = staticmethod(lambda: None)\n"
    tacho.write("mine.py", f"{body}\nprint('last words')\n{last}\n")
    done = tacho.run(python, "mine.py")
    without = tacho.bare(python, "mine.py", env={"TACHO_LOG_DIR": "elsewhere"})
    assert done.returncode == without.returncode == code
    assert done.stdout == without.stdout
    theirs = said_by_program(done.stderr)
    if way == "breaks":
        assert b"Segmentation fault" not in theirs  # nobody asked for a report
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


def test_an_error_before_anything_is_imported(tacho, python):
    tacho.write("train.py", "import not_installed_anywhere")
    done = tacho.run(python, "train.py")
    assert done.returncode == 1
    (error,) = tacho.records("train", "error")
    assert error["error_type"] == "ModuleNotFoundError"
    assert error["fatal"] is True
    assert "not_installed_anywhere" in error["traceback"]
    assert tacho.records("train", "end")[-1]["reason"] == "ModuleNotFoundError"


def test_the_fault_of_a_helper_is_not_that_of_the_program(tacho, python):
    tacho.write("train.py", "import subprocess, sys; subprocess.run([sys.executable, '-c', '1 / 0'])")
    assert tacho.run(python, "train.py").returncode == 0
    assert not tacho.records("train", "error")
    assert tacho.records("train", "end")[-1]["status"] == "finished"


def test_a_terminated_launcher_terminates_the_program(tacho, python):
    tacho.write(
        "mine.py",
        RECORDS
        + """
def stop(number, frame):
    print("stopped by", number, flush=True)
    sys.exit(4)

signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
""",
    )
    process = tacho.start(python, "mine.py")
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (4, b"stopped by 15\n")
    assert tacho.records("mine", "end")[-1]["exit_code"] == 4


def test_a_killed_launcher_leaves_the_program_alone(tacho, python):
    """With `--no-output` nothing of ours is between it and the world."""
    tacho.write("mine.py", "import time; print('ready', flush=True); time.sleep(1); print('still here')")
    process = tacho.start(python, "mine.py", options=("--no-output",))
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    out, err = process.communicate(timeout=20)  # until the program, too, has closed its output
    assert process.returncode == -signal.SIGKILL
    assert out == b"still here\n"
    assert b"Error" not in err


def test_what_cannot_be_recorded_does_not_change_the_exit_code(tacho, python):
    """The folder was there when the program began, and a file is in its place when it ends."""
    source = "open('logs', 'w').close(); print('ran'); raise SystemExit(6)"
    done = tacho.run(python, "-c", source)
    assert (done.returncode, done.stdout) == (6, b"ran\n")
    assert b"nothing is recorded" in done.stderr
    assert b"Traceback" not in done.stderr


def test_another_python_that_has_no_tachograph(tacho):
    system = "/usr/bin/python3"
    probe = [system, "-c", "import tachograph"]
    if not os.path.exists(system) or subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        pytest.skip("there is no other Python here")
    done = tacho.run(system, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"No module named 'tachograph'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_telemetry_switched_off(tacho, python):
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


def test_the_folder_of_logs_does_not_move_with_the_script(tacho, python):
    tacho.write("mine.py", "import os; os.makedirs('away'); os.chdir('away')\n" + RECORDS)
    done = tacho.run(python, "mine.py", options=("--set", "log_every=2"))
    assert done.returncode == 0
    assert tacho.runs() == ["mine"]
    assert b"recorded in logs/mine" in done.stderr
    assert tacho.records("mine", "start")[0]["log_every"] == 2


def test_the_run_is_shown_like_any_other(tacho, python):
    tacho.write("mine.py", RECORDS + "print('what was printed')\nsys.exit(3)\n")
    tacho.run(python, "mine.py")
    listed = tacho.bare(python, "-m", "tachograph", "ls").stdout.decode()
    assert "mine" in listed and "failed" in listed
    shown = tacho.bare(python, "-m", "tachograph", "show", "mine").stdout.decode()
    assert "failed" in shown and "exit code 3" in shown


# Other processes -----------------------------------------------------------------------------------------------------


def test_helpers_and_workers_make_no_runs(tacho, python):
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
    assert said_by_program(done.stderr) == without.stderr
    assert tacho.runs() == ["train"]
    assert len(tacho.records("train", "end")) == 2, "the run's own, and what the launcher knows"


def test_a_process_that_is_left_behind_is_not_waited_for(tacho, python):
    source = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(8)'])"
    start_s = time.monotonic()
    assert tacho.run(python, "-c", source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    assert time.monotonic() - start_s < 7


def test_a_wrong_option_is_called_one(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "run", "--nmae", "x", "--", "python", "-c", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "No such option" in done.stderr and "--nmae" in done.stderr
