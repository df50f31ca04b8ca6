"""Parents of runs, and where checkpoints come from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import tachograph
from tachograph.cli._main import main
from tachograph.exceptions import ConfigError
from tachograph.reader import parents_of
from tests.conftest import lines_of

QUIET = {"console": False, "git": False, "system_interval_s": 0}


def tacho(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def train(logs: Path, name: str, checkpoint: Path, *, step: int = 10, **options: Any) -> str:
    """Record a run that saves one checkpoint; return its id."""
    with tachograph.init(name, log_dir=str(logs), **QUIET, **options) as run:
        run.log({"train_loss": 1.0}, step=step)
        checkpoint.write_bytes(os.urandom(100 + step))
        run.log_checkpoint(checkpoint, step=step)
    return run.id


def found(path: object, logs: Path) -> dict[str, Any]:
    result = msgspec.json.decode(tacho("origin", path, "--log-dir", logs, "--json"))
    assert isinstance(result, dict)
    return result


def test_origin_follows_a_checkpoint_through_two_forks(logs: Path, tmp_path: Path):
    a, b, c = (tmp_path / f"{name}.pt" for name in "abc")
    first = train(logs, "first", a, step=10)
    second = train(logs, "second", b, step=20, parent=a)
    third = train(logs, "third", c, step=30, parent="second")
    answer = found(c, logs)
    assert [(origin["run"], origin["global_step"], origin["certainty"]) for origin in answer["origins"]] == [
        ("third", 30, "certain")
    ]
    assert [(each["run"], each["run_id"], each["global_step"], each["depth"]) for each in answer["ancestors"]] == [
        ("second", second, None, 0),
        ("first", first, 10, 1),
    ]
    text = tacho("origin", c, "--log-dir", logs)
    assert "third at step 30" in text and "← first at step 10 (init)" in text
    assert found("third", logs)["ancestors"] == answer["ancestors"]
    assert "first at step 10 (init)" in tacho("show", "second", "--log-dir", logs)
    listed = msgspec.json.decode(tacho("ls", "parent:first", "--log-dir", logs, "--json"))
    assert [run["name"] for run in listed] == ["second"]
    listed = msgspec.json.decode(tacho("ls", "has(children)", "--columns", "children", "--log-dir", logs, "--json"))
    assert {run["name"]: run["children"] for run in listed} == {"first": ["second"], "second": ["third"]}
    # A parent that was deleted keeps its name, its id and the step.
    shutil.rmtree(logs / "first")
    assert found(c, logs)["ancestors"][1] == {
        "run": "first",
        "run_id": first,
        "global_step": 10,
        "how": "init",
        "checkpoint_path": str(a),
        "is_here": False,
        "depth": 1,
    }
    assert third


def test_origin_says_how_sure_it_is(logs: Path, tmp_path: Path):
    a = tmp_path / "a.pt"
    train(logs, "x", a)
    moved = tmp_path / "elsewhere" / "a.pt"
    moved.parent.mkdir()
    shutil.copy2(a, moved)
    renamed = tmp_path / "b.pt"
    shutil.copy2(a, renamed)

    def certainty(path: Path) -> tuple[str, str]:
        origin = found(path, logs)["origins"][0]
        return origin["certainty"], origin["reason"]

    assert certainty(a) == ("certain", "path, size and time agree")
    assert certainty(moved) == ("likely", "name, size and time agree, but it was saved at another path")
    assert certainty(renamed) == ("possible", "size and time agree, but it was saved at another path")
    os.utime(a, (1, 1))
    assert certainty(a) == ("likely", "the run saved it at this path, but it was modified later")
    a.write_bytes(b"new")
    assert certainty(a) == ("possible", "the run saved a file at this path, but of another size")
    a.unlink()
    assert certainty(a) == ("likely", "the run saved it at this path; it is no longer there")
    unknown = tmp_path / "unknown.pt"
    unknown.write_bytes(b"x")
    assert "no run in" in tacho("origin", unknown, "--log-dir", logs, code=1)
    # The same path saved by two runs: the file decides.
    train(logs, "y", a, step=50)
    assert [origin["run"] for origin in found(a, logs)["origins"]] == ["y", "x"]


def test_old_name_of_origin_works_and_warns(logs: Path, tmp_path: Path):
    path = tmp_path / "a.pt"
    train(logs, "x", path)
    arguments = [str(path), "--log-dir", str(logs), "--json"]
    expected = CliRunner().invoke(main, ["origin", *arguments])
    result = CliRunner().invoke(main, ["whence", *arguments])
    assert (result.exit_code, result.stdout) == (0, expected.stdout)
    assert result.stderr == "`tacho whence` is deprecated and will be removed: use `tacho origin`\n"
    assert expected.stderr == ""
    shell = ShellComplete(main, {}, "tacho", "_TACHO_COMPLETE")
    assert not shell.get_completions([], "when")
    assert [item.value for item in shell.get_completions([], "orig")] == ["origin"]
    assert "whence" not in CliRunner().invoke(main, ["--help"]).output


def test_a_stamp_survives_moving(logs: Path, tmp_path: Path):
    a = tmp_path / "a.pt"
    run_id = train(logs, "x", a, checkpoint_stamp=True)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("a.pt", "a.pt.tacho.json"):
        shutil.copy(tmp_path / name, other / name)  # a new time
    origin = found(other / "a.pt", logs)["origins"][0]
    assert (origin["run"], origin["run_id"], origin["global_step"]) == ("x", run_id, 10)
    assert origin["certainty"] == "certain"
    (other / "a.pt").write_bytes(b"retrained")
    assert found(other / "a.pt", logs)["origins"][0]["certainty"] == "likely"
    with tachograph.init("fork", log_dir=str(tmp_path / "elsewhere"), parent=other / "a.pt", **QUIET) as fork:
        pass
    assert [parent.run_name for parent in parents_of(tachograph.read(fork))] == ["x"]


def test_parents_are_checked_and_recorded_once(logs: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="parent='nosuch': no run of that name"):
        tachograph.init("x", log_dir=str(logs), parent="nosuch", **QUIET)
    with pytest.raises(ConfigError, match="expected the name of a run"):
        tachograph.init("x", log_dir=str(logs), parent=3, **QUIET)  # type: ignore[arg-type]
    assert not logs.exists()
    a = tmp_path / "a.pt"
    train(logs, "x", a)
    with tachograph.init("x", log_dir=str(logs), resume=True, parent=a, **QUIET) as run:
        run.log_parent(a)  # the run itself
        run.log_parent(tmp_path / "gone.pt")
    assert parents_of(tachograph.read(run)) == []
    assert [line["kind"] for line in lines_of(logs / "x") if line["event"] == "telemetry_error"] == ["parent_not_found"]
    with tachograph.init("y", log_dir=str(logs), **QUIET) as run:
        run.log_parent(a, how="distill")
        run.log_parent(a, how="distill")
    assert [(each.run_name, each.global_step, each.how) for each in parents_of(tachograph.read(run))] == [
        ("x", 10, "distill")
    ]


def test_best_checkpoint_by_a_metric(logs: Path, tmp_path: Path):
    with tachograph.init("x", log_dir=str(logs), **QUIET) as run:
        for step, loss in enumerate([0.9, 0.4, 0.6], start=1):
            run.log({"train_loss": loss, "speed": step}, step=10 * step)
            run.log_validation({"loss": loss}, step=10 * step)
            run.log_checkpoint(tmp_path / f"{step}.pt", step=10 * step, metrics={"score": -step})
    show = ("show", "x", "--log-dir", logs, "--best-checkpoint")
    assert tacho(*show, "val_loss").splitlines() == ["val_loss 0.4 at step 20, best of 3", str(tmp_path / "2.pt")]
    best = msgspec.json.decode(tacho(*show, "speed:max", "--json"))
    assert best == {"path": str(tmp_path / "3.pt"), "global_step": 30, "value": 3.0, "run": "x", "metric": "speed"}
    assert tacho(*show, "score:max").splitlines()[1] == str(tmp_path / "1.pt")
    assert "write speed:min or speed:max" in tacho(*show, "speed", code=1)
    assert "no checkpoint with a value of 'nosuch'" in tacho(*show, "nosuch:min", code=1)


def test_best_checkpoint_of_a_run_and_its_ancestors(logs: Path, tmp_path: Path):
    def record(name: str, losses: dict[int, float], parent: Path | str | None = None, how: str = "resume") -> None:
        with tachograph.init(name, log_dir=str(logs), **QUIET) as run:
            if parent is not None:
                run.log_parent(parent, how=how)
            for step, loss in losses.items():
                path = tmp_path / f"{name}-{step}.pt"
                path.write_bytes(os.urandom(100))
                run.log_validation({"loss": loss}, step=step)
                run.log_checkpoint(path, step=step)

    record("teacher", {10: 0.0})
    record("first", {10: 0.5, 20: 0.7, 30: 0.1})
    record("second", {30: 0.6, 40: 0.8}, parent=tmp_path / "first-20.pt")
    record("third", {50: 0.9}, parent="second")
    with tachograph.init("third", log_dir=str(logs), resume=True, **QUIET) as run:
        run.log_parent("teacher", how="distill")
    show = ("show", "third", "--log-dir", logs, "--best-checkpoint", "val_loss")
    assert tacho(*show).splitlines()[1] == str(tmp_path / "third-50.pt")
    # Step 30 of the first run is better, but the chain left that run at step 20. A teacher has other weights.
    assert tacho(*show, "--with-parents").splitlines() == [
        "val_loss 0.5 at step 10 of first, best of 5",
        str(tmp_path / "first-10.pt"),
    ]
    best = msgspec.json.decode(tacho(*show, "--with-parents", "--json"))
    assert (best["run"], best["global_step"]) == ("first", 10)
    shutil.rmtree(logs / "first")
    lines = tacho(*show, "--with-parents").splitlines()
    assert lines[0].startswith("first is not in") and lines[-1] == str(tmp_path / "second-30.pt")
    assert "needs --best-checkpoint" in tacho("show", "third", "--log-dir", logs, "--with-parents", code=2)
