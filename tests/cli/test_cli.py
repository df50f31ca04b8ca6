"""Tests of the `tacho` command, run as a child process."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys

import pytest

import tachograph
from tests.conftest import HANG_S, lines_of, wait_for, wait_for_lines
from tests.preloaded import preloaded


def tacho(*arguments, check=True, columns=160, env=(), **options):
    done = preloaded("commands").run(
        [sys.executable, "-m", "tachograph", *map(str, arguments)],
        text=True, timeout=HANG_S, env={**os.environ, "COLUMNS": str(columns), **dict(env)}, **options,
    )  # fmt: skip
    if check:
        assert done.returncode == 0, done.stderr
        return done.stdout
    return done


@pytest.fixture
def runs(logs, monkeypatch):
    monkeypatch.setattr("tachograph.recorder._writer._LAST_CATCH_UP_S", HANG_S)
    with tachograph.init("good", log_dir=str(logs), config={"max_steps": 20, "batch_size": 2}, tags=["demo"]) as run:
        run.control("lr_scale", 1.0, min=0.1, max=10.0)
        for step in range(20):
            run.log(train_loss=1.0 / (step + 1), step=step)
        run.log_checkpoint("model.pt", step=19, is_best=True)
    with pytest.raises(RuntimeError), tachograph.init("bad", log_dir=str(logs)) as run:
        run.log(train_loss=math.nan, step=0)
        raise RuntimeError("[bold]boom[/bold] \x1b[31mred")
    return logs


def test_ls_lists_and_filters_runs(runs):
    out = tacho("ls", "--log-dir", runs)
    assert "good" in out
    assert "finished" in out
    assert "failed" in out
    found = json.loads(tacho("ls", "--log-dir", runs, "--json"))
    assert {run["name"]: run["state"] for run in found} == {"good": "finished", "bad": "failed"}
    assert [run["name"] for run in json.loads(tacho("ls", "--log-dir", runs, "--json", "--state", "failed"))] == ["bad"]
    good = next(run for run in found if run["name"] == "good")
    assert (good["step"], good["max_steps"], good["train_loss"]) == (19, 20, 0.05)


def test_ls_shows_the_result_of_each_run(runs):
    for name, metric, values in (("hf", "eval_loss", (2.0, 2.5)), ("keras", "val_accuracy", (0.0, 0.0))):
        with tachograph.init(name, log_dir=str(runs), console=False) as run:
            for step, value in enumerate(values):
                run.log({"train_loss": 9.0, metric: value}, step=step)
    listed = tacho("ls", "--log-dir", runs, "hf")
    assert "best eval_loss" in listed and " 2 " in listed
    rows = [line.split() for line in tacho("ls", "--log-dir", runs, "name in (hf, keras)").splitlines()]
    assert "result" in rows[0] and {("eval_loss", "2"), ("val_accuracy", "0")} <= {
        pair for row in rows for pair in itertools.pairwise(row)
    }
    found = {row["name"]: row for row in json.loads(tacho("ls", "--log-dir", runs, "--json"))}
    assert (found["hf"]["result"], found["hf"]["result_metric"]) == (2.0, "eval_loss")
    assert (found["good"]["result"], found["good"]["result_metric"]) == (0.05, "train_loss")


@pytest.mark.parametrize("name", ["train_loss", "loss", "training_loss", "Train Loss", "train/loss_step"])
def test_loss_is_shown_under_its_usual_names(logs, name):
    with tachograph.init("x", log_dir=str(logs), console=False) as run:
        for step in range(3):
            run.log({name: 0.125 + step}, step=step)
    assert json.loads(tacho("ls", "--log-dir", logs, "--json"))[0]["train_loss"] == 2.125
    assert f"\n{name}  " in tacho("show", "x", "--log-dir", logs)


def test_ls_without_runs_suggests_the_demo(logs):
    assert "tacho demo" in tacho("ls", "--log-dir", logs)
    assert json.loads(tacho("ls", "--log-dir", logs, "--json")) == []


def test_ls_reads_log_dir_from_environment(runs):
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "ls"], capture_output=True, text=True, check=True,
        env={**os.environ, "TACHO_LOG_DIR": str(runs)},
    )  # fmt: skip
    assert "good" in done.stdout


def test_show_prints_text_and_json(runs):
    out = tacho("show", "good", "--log-dir", runs)
    for expected in ("finished", "20 of 20 steps, 100%", "train_loss", "model.pt", "best", "█"):
        assert expected in out, out
    found = json.loads(tacho("show", runs / "good", "--json"))
    assert found["state"] == "finished"
    assert found["metrics"]["train_loss"]["count"] == 20
    assert found["controls"]["lr_scale"]["max"] == 10.0
    assert found["csv_is_current"] is True


def test_show_escapes_untrusted_text(runs):
    out = tacho("show", "bad", "--log-dir", runs)
    assert "RuntimeError: [bold]boom[/bold]" in out
    assert "\x1b" not in out
    assert "×" in out or "NaN" in out
    json.loads(tacho("show", "bad", "--log-dir", runs, "--json"), parse_constant=pytest.fail)


def test_show_rebuilds_csv(runs):
    path = runs / "good" / "metrics.csv"
    good = path.read_bytes()
    path.write_bytes(b"broken")
    assert "--rebuild-csv" in tacho("show", "good", "--log-dir", runs)
    tacho("show", "good", "--log-dir", runs, "--rebuild-csv")
    assert path.read_bytes() == good
    assert "--rebuild-csv" not in tacho("show", "good", "--log-dir", runs)


@pytest.mark.parametrize("command", ["show", "tail", "control"])
def test_unknown_run_suggests_a_name(runs, command):
    done = tacho(command, "goood", "--log-dir", runs, check=False)
    assert done.returncode == 1
    assert "did you mean 'good'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_tail_prints_last_records(runs):
    out = tacho("tail", "good", "--log-dir", runs, "-n", 3, "-e", "step")
    assert len(out.strip().splitlines()) == 3
    assert "train_loss=0.05" in out
    lines = tacho("tail", "bad", "--log-dir", runs, "--json").splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert records == lines_of(runs / "bad")
    assert tacho("tail", "good", "--log-dir", runs, "-n", 0) == ""


def test_tail_of_an_unknown_kind_fails(runs):
    done = tacho("tail", "good", "--log-dir", runs, "-e", "chekpoint", check=False)
    assert done.returncode == 2
    assert "checkpoint" in done.stderr


def test_run_of_a_missing_program_exits_like_a_shell(logs):
    done = tacho("run", "--log-dir", logs, "--", "no-such-program", check=False)
    assert done.returncode == 127
    assert "no-such-program" in done.stderr


def test_show_and_ls_are_readable_at_40_columns(logs):
    with tachograph.init("quite-a-long-run-name", log_dir=str(logs), console=False, system_interval_s=0) as run:
        for step in range(100):
            run.log({"train_loss": 1 / (step + 1), "loss": 1 / (step + 1), "eval_samples_per_second": 5.0}, step=step)
    shown = tacho("show", "quite-a-long-run-name", "--log-dir", logs, columns=40)
    listed = tacho("ls", "--log-dir", logs, columns=40)
    assert max(map(len, [*shown.splitlines(), *listed.splitlines()])) <= 40
    rows = [line.split() for line in shown.splitlines()]
    assert ["train_loss", "0.01", "0.01"] in [row[:3] for row in rows]
    assert len([row for row in rows if row[:1] == ["train_loss"] and set(row[-1]) <= set("▁▂▃▄▅▆▇█")]) == 1
    assert not [row for row in rows if row[:1] == ["loss"]]  # the same metric under another name
    assert "0.01" in listed
    assert "…" not in shown + listed


def test_run_names_are_completed(runs):
    words = {"COMP_WORDS": f"tacho show --log-dir {runs} go", "COMP_CWORD": "4", "_TACHO_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'tacho'; from tachograph.cli import main; main()"],
        capture_output=True,
        text=True,
        env={**os.environ, **words},
        timeout=HANG_S,
        check=False,
    )
    assert done.stdout.split() == ["plain,good"]


def test_tail_survives_closed_pipe(runs):
    command = f"{sys.executable} -m tachograph tail {runs / 'good'} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr


TRAIN = """
    import sys, time, tachograph
    run = tachograph.init(
        "live", log_dir=sys.argv[1], config={"max_steps": 10**9}, control_interval_s=0.1, control_gap_s=3600, git=False
    )
    scale = run.control("lr_scale", 1.0, min=0.1, max=10.0)
    for step in range(10**9):
        run.log(train_loss=1.0 / (step + 1), lr=scale.value, step=step)
        if run.should_checkpoint:
            run.log_checkpoint("requested.pt", step=step)
        if run.should_stop:
            break
        time.sleep(0.01)
    run.finish()
"""


def test_follow_and_control_a_running_run(logs, script):
    training = script(TRAIN, logs)
    wait_for_lines(logs / "live", 21)
    following = subprocess.Popen(
        [sys.executable, "-m", "tachograph", "tail", "live", "--log-dir", str(logs), "-f", "--json", "-n", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    first = following.stdout.readline()
    assert "running" in tacho("ls", "--log-dir", logs)
    assert "left" in tacho("show", "live", "--log-dir", logs)
    failed = tacho("show", "live", "--log-dir", logs, "--rebuild-csv", check=False)
    assert (failed.returncode, "is being recorded" in failed.stderr) == (1, True)
    assert "requested" in tacho("control", "live", "--log-dir", logs, "--checkpoint-now")
    assert "applied; current value: 20" in tacho(
        "control", "live", "--log-dir", logs, "--log-every", 20, "--wait", HANG_S
    )
    default = ("control", "live", "--log-dir", logs, "--log-every", "default", "--wait", 2)
    wait_for(lambda: "takes effect" in tacho(*default))
    assert "expected a number" in tacho("control", "live", "--log-dir", logs, "--log-every", "few", check=False).stderr
    assert "clamped; current value: 10" in tacho(
        "control", "live", "--log-dir", logs, "--set", "lr_scale=99", "--wait", HANG_S
    )
    again = ("control", "live", "--log-dir", logs, "--set", "lr_scale=2", "--wait", 2)
    wait_for(lambda: "received by the trainer" in tacho(*again))
    unknown = tacho("control", "live", "--log-dir", logs, "--set", "lr_scle=1", check=False)
    assert (unknown.returncode, "did you mean 'lr_scale'?" in unknown.stderr) == (1, True)
    rejected = tacho("control", "live", "--log-dir", logs, "--set", "log_every=7.5", "--wait", HANG_S, check=False)
    assert (rejected.returncode, "rejected" in rejected.stdout) == (1, True)
    listed = json.loads(tacho("control", "live", "--log-dir", logs, "--json"))
    assert listed["lr_scale"]["value"] == 10.0
    assert listed["lr_scale"]["last_answer"] == "pending"
    assert "lr_scale" in tacho("control", "live", "--log-dir", logs)
    tacho("control", "live", "--log-dir", logs, "--stop")
    assert training.wait()[0] == 0
    with following:
        # `communicate` would lose what is buffered.
        followed = [json.loads(line) for line in (first, *following.stdout)]
    assert followed[-1]["event"] == "end"
    assert {"control_change", "checkpoint", "step"} <= {record["event"] for record in followed}


def test_control_of_ended_run_fails(runs):
    done = tacho("control", "good", "--log-dir", runs, "--log-every", 50, check=False)
    assert done.returncode == 1
    assert "has finished and no longer accepts requests" in done.stderr


@pytest.mark.parametrize("value", ["lr_scale", "=1", "lr_scale=fast", "lr_scale=1e400", "lr_scale=nan"])
def test_control_rejects_invalid_values(runs, value):
    done = tacho("control", "good", "--log-dir", runs, "--set", value, check=False)
    assert done.returncode == 1
    assert "--set" in done.stderr


def test_follow_ends_when_run_is_killed(logs, script):
    training = script(TRAIN, logs)
    wait_for_lines(logs / "live", 6)
    following = subprocess.Popen(
        [sys.executable, "-m", "tachograph", "tail", str(logs / "live"), "-f"], stdout=subprocess.PIPE, text=True
    )
    assert following.stdout.readline()
    training.process.send_signal(signal.SIGKILL)
    training.process.wait()
    following.communicate(timeout=HANG_S)
    assert following.returncode == 0
    assert "crashed" in tacho("ls", "--log-dir", logs)


def test_ctrl_c_ends_following_at_any_moment(logs, script):
    # The signal comes while a destructor runs, where Python drops the exception of its usual handler.
    script(TRAIN, logs)
    wait_for_lines(logs / "live")
    source = """
        import os, signal, sys
        from tachograph.cli import main
        from tachograph.cli import _tail
        class Interrupted:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
        _tail._has_ended = lambda folder: bool(Interrupted() and False)
        sys.argv = ["tacho", "tail", sys.argv[1], "-f"]
        main()
        """
    code, _out, err = script(source, logs / "live").wait()
    assert (code, err) == (-signal.SIGINT, "")


def test_ctrl_c_ends_the_demo_as_interrupted(logs):
    command = [sys.executable, "-m", "tachograph", "demo", "--log-dir", str(logs), "--steps", "10000000"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for_lines(logs / "demo", 21)
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=HANG_S)
    assert (demo.returncode, err) == (130, "")
    assert [run["state"] for run in json.loads(tacho("ls", "--log-dir", logs, "--json"))] == ["interrupted"]
    assert "interrupted" in tacho("show", "demo", "--log-dir", logs)


@pytest.mark.slow
@pytest.mark.parametrize("is_background", [False, True])
def test_demo_with_a_dashboard_ends_its_training(logs, is_background):
    """A shell makes the jobs that a script starts in the background ignore Ctrl-C."""
    command = [sys.executable, "-m", "tachograph", "demo", "--ui", "--port", "0", "--log-dir", str(logs)]
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if is_background else []
    demo = subprocess.Popen([*in_background, *command, "--steps", "10000000"], stdout=subprocess.DEVNULL)
    wait_for_lines(logs / "demo-low-lr", 21)
    demo.terminate()
    demo.wait(HANG_S)
    (run,) = json.loads(tacho("ls", "--log-dir", logs, "--json"))
    assert run["state"] == ("failed" if is_background else "interrupted")


def test_ctrl_c_while_starting_prints_no_traceback(script):
    source = """
        import os, signal, sys
        class Interrupt:
            def find_spec(self, name, *_):
                if name == "rich_click":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupt())
        sys.argv = ["tacho", "ls"]
        from tachograph.cli import main
        main()
        """
    assert script(source).wait() == (130, "", "")


@pytest.mark.slow
def test_demo_trains_and_records_a_model(logs):
    out = tacho("demo", "--log-dir", logs, "--steps", 600, "--name", "spirals")
    assert "finished" in out
    history = tachograph.read(logs / "spirals")
    losses = history.series("train_loss").values
    assert losses[-50:].mean() < 0.25 * losses[:50].mean()
    assert history.metrics["val_accuracy"].last > 0.9
    assert history.counts["checkpoint"] >= 2
    rows = {row["name"]: row for row in json.loads(tacho("ls", "--log-dir", logs, "--json"))}
    assert rows.keys() == {"spirals", "spirals-low-lr", "spirals-high-lr"}
    assert all(row["state"] == "finished" for row in rows.values())
    findings = {name: {alert.rule for alert in tachograph.read(logs / name).alerts} for name in rows}
    assert findings == {"spirals": set(), "spirals-low-lr": set(), "spirals-high-lr": {"divergence"}}
    for name, rules in findings.items():
        diagnosis = json.loads(tacho("doctor", name, "--log-dir", logs, "--json"))
        assert {alert["rule"] for alert in diagnosis["alerts"]} == rules
    tacho(
        "demo", "--live", "--log-dir", logs, "--steps", 150, "--name", "paced"
    )  # has earlier runs to be compared with
    paced = tachograph.read(logs / "paced")
    assert (paced.alerts, paced.perf_tag) == ([], "demo-numpy-paced")
    assert "learning rate is too low" in tacho("note", "spirals-low-lr", "--log-dir", logs)


@pytest.mark.slow
def test_version_and_help_list_commands():
    assert tachograph.__version__ in tacho("--version")
    for command in ("ls", "show", "tail", "control", "demo"):
        assert command in tacho("--help")
        assert "--log-dir" in tacho(command, "--help")


def test_journal_that_gzip_compressed_is_named_with_the_remedy(runs):
    journal = runs / "good" / "metrics.jsonl"
    (runs / "good" / "metrics.jsonl.gz").write_bytes(gzip.compress(journal.read_bytes()))
    journal.unlink()
    for command in ("tail", "show", "doctor"):
        done = tacho(command, "good", "--log-dir", runs, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
        assert "metrics.jsonl.gz" in done.stderr
        assert "gunzip" in done.stderr


def test_last_records_of_a_file_with_a_hole(runs):
    """After a crash of the machine, a file may end in a long block of zeros."""
    with (runs / "good" / "metrics.jsonl").open("r+b") as file:
        file.truncate(512 << 20)
    memory_bytes = 300 << 20

    def limit_memory():
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))

    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "tail", "good", "--log-dir", runs, "-n", "3"],
        capture_output=True, text=True, check=False, preexec_fn=limit_memory, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "end" in done.stdout
