"""Commands that find and look after many runs."""

from __future__ import annotations

import json
import re

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from tachograph.cli._main import main
from tests.store import END, START, files_opened, step, write

CONFIGS = [
    {"lr": 1e-3, "seed": 1},
    {"lr": 1e-3, "seed": 2},
    {"lr": 1e-4, "seed": 1},
]


@pytest.fixture
def runs(logs, monkeypatch):
    monkeypatch.setenv("TACHO_LOG_DIR", str(logs))
    for number, config in enumerate(CONFIGS):
        start = {**START, "run_id": f"id{number}", "time": 1_000.0 + number, "config": config, "tags": ["base"]}
        steps = [step(i, val_loss=1.0 + number - i / 10, **{"loss/kl": 0.5}) for i in range(5)]
        write(logs / f"run-{number}", [start, *steps, {**END, "status": "failed" if number == 2 else "finished"}])
    return logs


def tacho(*arguments, code=0, columns=100):
    result = CliRunner().invoke(main, list(arguments), env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.output


def listed(*arguments):
    return [run["name"] for run in json.loads(tacho("ls", *arguments, "--json"))]


def test_ls_selects_sorts_and_limits(runs):
    assert listed() == ["run-2", "run-1", "run-0"]
    assert listed("config.lr=1e-3") == ["run-1", "run-0"]
    assert listed("config.lr=1e-3", "config.seed=2") == ["run-1"]
    assert listed("state:failed or val_loss.min<0.7") == ["run-2", "run-0"]
    assert listed("--sort", "val_loss.min") == ["run-0", "run-1", "run-2"]
    assert listed("--sort", "-val_loss.min", "--limit", "2") == ["run-2", "run-1"]
    assert listed("--state", "failed") == ["run-2"]
    assert listed("`loss/kl`.max=0.5", "--limit", "1") == ["run-2"]


def test_ls_shows_chosen_columns_and_marks_the_best(runs):
    out = tacho("ls", "--columns", "config.lr,val_loss.min,`loss/kl`.last,started")
    assert re.search(r"run-0\s+0\.001\s+0\.6\s+0\.5\s", out)
    found = json.loads(tacho("ls", "run-1", "--columns", "config.lr,val_loss.at_min", "--json"))
    assert found == [{"name": "run-1", "config.lr": 1e-3, "val_loss.at_min": 4}]


def test_columns_may_be_patterns_and_sorting_shows_its_field(runs):
    assert re.search(r"run +config\.lr +config\.seed\b", tacho("ls", "--columns", "config.*"))
    rows = json.loads(tacho("ls", "--columns", "config.s*,val_loss.m?n", "--json", "config.lr=1e-3"))
    assert rows[0] == {"name": "run-1", "config.seed": 2, "val_loss.min": 1.6}
    assert "no run has a field that matches" in tacho("ls", "--columns", "confg.*", code=2)
    for width in (60, 100, 160):
        out = tacho("ls", "--sort", "-val_loss.min", columns=width)
        assert re.search(r"run-2 .* 2\.6\b", out) and "val_loss.min" in out
    assert re.search(r"config\.lr +config\.seed", tacho("ls", "--columns", "config.lr", "--sort", "config.seed"))


def test_display_name_finds_the_run(runs):
    tacho("rename", "run-1", "New name")
    assert "run-1" in tacho("show", "New name")
    assert "run-1" in tacho("doctor", "New name", "--json")
    tacho("rename", "run-0", "run-2")
    assert json.loads(tacho("show", "run-2", "--json"))["name"] == "run-2"  # the name of a folder comes first
    tacho("rename", "run-0", "New name")
    assert "2 runs are called 'New name'" in tacho("show", "New name", code=1)
    assert "no run 'Newer name'" in tacho("show", "Newer name", code=1)


def test_trash_without_a_command_lists(runs):
    assert "The trash is empty." in tacho("trash")
    tacho("rm", "run-1")
    assert "run-1" in tacho("trash") and "run-1" in tacho("trash", "--log-dir", str(runs))


def test_view_is_saved_and_shown(runs):
    options = ("--columns", "config.lr,val_loss.min", "--sort", "-val_loss.min")
    out = tacho("ls", "config.lr=1e-3", *options, "--save-view", "Good runs")
    assert "tacho ls --view good-runs" in out
    assert listed("--view", "good-runs") == ["run-1", "run-0"]
    assert json.loads(tacho("ls", "--view", "good-runs", "--json"))[0].keys() == {"name", "config.lr", "val_loss.min"}
    assert listed("--view", "good-runs", "config.seed=1") == ["run-0"]
    assert listed("--view", "good-runs", "--sort", "val_loss.min") == ["run-0", "run-1"]
    tacho("ls", "--view", "good-runs", "--state", "finished", "--save-view", "Finished")
    assert listed("--view", "finished") == ["run-1", "run-0"]
    assert "did you mean 'good-runs'" in tacho("ls", "--view", "good-run", code=1)


def test_view_with_unknown_fields_still_opens(runs):
    path = runs / ".tachograph" / "views" / "old.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"columns": ["val_los.min", "config.lr"], "shape": 1, "pinned_runs": ["run-0"]}')
    out = CliRunner().invoke(main, ["ls", "--view", "old"], env={"COLUMNS": "100"})
    assert out.exit_code == 0
    assert re.search(r"run-0\s+–\s+0\.001", out.output)
    assert out.output.index("run-0") < out.output.index("run-2")
    assert "'shape' is unknown" in out.output
    assert "did you mean val_loss.min" in out.output


def test_ls_prints_csv(runs):
    tacho("note", "run-0", "=1+1")
    assert tacho("ls", "--csv", "--columns", "config.lr,note", "config.lr=1e-3") == (
        "name,config.lr,note\nrun-1,0.001,\nrun-0,0.001,'=1+1\n"
    )
    assert tacho("ls", "--csv").splitlines()[0].startswith("name,state,")
    assert "cannot be combined" in CliRunner().invoke(main, ["ls", "--csv", "--json"]).output


def test_ls_groups_by_everything_but_the_seed(runs):
    groups = json.loads(tacho("ls", "--group", "config", "--columns", "val_loss.min", "--json"))
    assert [(group["key"], group["runs"]) for group in groups] == [
        ({"config.lr": 1e-3}, ["run-1", "run-0"]),
        ({"config.lr": 1e-4}, ["run-2"]),
    ]
    spread = groups[0]["columns"]["val_loss.min"]
    assert spread["num_values"] == 2
    assert spread["mean"] == pytest.approx(1.1)
    assert spread["spread"] == pytest.approx(0.7071, abs=1e-3)
    assert (spread["best"], spread["best_run"]) == (0.6, "run-0")
    out = tacho("ls", "--group", "config", "--columns", "val_loss.min")
    assert re.search(r"config\.lr +runs +val_loss\.min *\n0\.001 +2 +1\.1 ± 0\.7071, best 0\.6 \(run-0\)", out)
    assert tacho("ls", "--group", "config") == out  # the result of the runs
    narrow = tacho("ls", "--group", "config", "--columns", "val_loss.min", columns=40)
    assert "config.lr=0.001" in narrow and "1.1 ± 0.7071, best 0.6" in narrow
    assert "at most 3" in tacho("ls", "--group", "name,state,host,steps", code=1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("steps >",), "expected a value after >"),
        (("config.lrr>1",), "did you mean config.lr"),
        (("lr>1",), "did you mean config.lr"),
        (("--columns", "val_los.min"), "did you mean val_loss.min"),
        (("--sort", "val_los.min"), "did you mean val_loss.min"),
    ],
)
def test_ls_error_says_where_and_what_to_do(runs, arguments, expected):
    assert expected in " ".join(re.sub(r"[│╭╮╰╯─]", " ", tacho("ls", *arguments, code=1)).split())


def test_ls_lists_several_and_nested_folders(runs, tmp_path):
    write(tmp_path / "more" / "deep" / "x", [START, END])
    found = listed("--log-dir", str(runs), "--log-dir", str(tmp_path / "more"))
    assert sorted(found) == ["deep/x", "run-0", "run-1", "run-2"]


def test_nested_run_is_shown_by_its_listed_name(runs):
    write(runs / "deep" / "x", [START, step(0, loss=1.0), END])
    assert "deep/x" in listed()
    assert "finished" in tacho("show", "deep/x")


@pytest.mark.parametrize("arguments", [(), ("--columns", "config.lr,val_loss.min,state,started,tags,duration")])
def test_ls_fits_into_40_columns(runs, arguments):
    tacho("rename", "run-1", "a fairly long name for people to read")
    out = tacho("ls", *arguments, columns=40)
    assert max(map(len, out.splitlines())) <= 40
    assert "run-0" in out
    assert "…" not in out
    assert "0.001" in out or not arguments


def test_tags_are_added_removed_and_printed(runs):
    assert "run-0: base, paper" in tacho("tag", "run-0", "run-1", "+paper")
    assert listed("tag:paper") == ["run-1", "run-0"]
    assert "run-1: no tags" in tacho("tag", "run-1", "-paper", "-base")
    assert "base, paper" in tacho("tag", "run-0")
    tacho("tag", "--where", "config.lr=1e-3", "+sweep")
    assert listed("tag:sweep") == ["run-1", "run-0"]
    assert "[base, paper, sweep]" in tacho("ls")


def test_note_rename_and_group_are_shown(runs):
    assert "No note" in tacho("note", "run-0")
    tacho("note", "run-0", "needs a **longer** warm-up\x1b[31m")
    tacho("note", "run-0", "lr too high", "--at-step", "3")
    assert tacho("note", "run-0").splitlines() == ["needs a **longer** warm-up\\x1b[31m", "step 3: lr too high"]
    tacho("rename", "run-0", "baseline")
    tacho("group", "run-0", "run-1", "sweep 1")
    assert "baseline" in tacho("ls")
    assert listed("baseline") == ["run-0"]
    assert listed("warm-up") == ["run-0"]
    assert listed('group="sweep 1"') == ["run-1", "run-0"]
    tacho("note", "run-0", "--clear")
    tacho("rename", "run-0", "--clear")
    tacho("group", "run-0", "")
    assert listed("baseline or warm-up or group:sweep") == ["run-1"]


def test_archived_runs_are_hidden_and_found_again(runs):
    tacho("archive", "run-0", "run-2")
    assert listed() == ["run-1"]
    assert listed("--archived") == ["run-2", "run-0"]
    assert listed("--all") == ["run-2", "run-1", "run-0"]
    assert "--archived" in tacho("ls", "run-0")
    tacho("unarchive", "--where", "archived=true")
    assert listed() == ["run-2", "run-1", "run-0"]


def test_removed_runs_are_restored_or_deleted(runs):
    tacho("rm", "run-0")
    tacho("rm", "--where", "state:failed", "--yes")
    assert listed() == ["run-1"]
    assert {run["name"] for run in json.loads(tacho("trash", "list", "--json"))} == {"run-0", "run-2"}
    assert "run-2" in tacho("trash", "list", columns=40)
    assert "restored" in tacho("trash", "restore", "run-0")
    assert listed() == ["run-1", "run-0"]
    assert "deleted 0 runs" in tacho("trash", "empty", "--older-than", "30d", "--yes")
    assert "deleted 1 run" in tacho("trash", "empty", "--yes")
    assert "The trash is empty" in tacho("trash", "list")


def test_removing_by_expression_asks_first(runs):
    result = CliRunner().invoke(main, ["rm", "--where", "run"], input="n\n")
    assert result.exit_code == 1
    assert "Move 3 runs to the trash (run-2, run-1, run-0)?" in result.output
    assert len(listed()) == 3


def test_failures_of_some_runs_are_reported(runs):
    write(runs / "stale", [START, step(0, loss=1.0)])
    out = tacho("rm", "stale", "run-0", code=1)
    assert "--force" in out
    assert "run-0: moved" in out
    assert listed() == ["run-2", "run-1", "stale"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("tag", "run-9", "+x"), 1, "did you mean"),
        (("tag", "+x"), 2, "--where"),
        (("archive", "run-0", "--where", "x"), 2, "--where"),
        (("rename", "run-0"), 2, "--clear"),
        (("tag", "--where", "state:running", "+x"), 1, "matches"),
        (("tag", "--where", "config.lrr=1", "+x"), 1, "config.lr"),
        (("trash", "restore", "run-0"), 1, "tacho trash list"),
        (("trash", "empty", "--older-than", "soon"), 2, "30d"),
    ],
)
def test_mistakes_are_explained(runs, arguments, code, expected):
    out = CliRunner().invoke(main, list(arguments), env={"COLUMNS": "100"})
    assert out.exit_code == code
    assert expected in " ".join(re.sub(r"[│╭╮╰╯─]", " ", out.output).split())


def test_du_divides_space_by_part_project_and_tag(runs):
    tacho("tag", "run-0", "+big")
    (runs / "run-0" / "metrics.csv").write_bytes(b"x" * 300_000)
    found = json.loads(tacho("du", "--json"))
    by_name = {run["name"]: run for run in found["runs"]}
    assert by_name["run-0"]["csv"] >= 300_000
    assert found["total"] == sum(run["total"] for run in found["runs"])
    assert found["tags"]["big"] == by_name["run-0"]["total"]
    assert set(found["months"]) == {"1970-01"}
    out = tacho("du", columns=40)
    assert max(map(len, out.splitlines())) <= 40
    assert re.search(r"run-0\s+3\d\d\.\d kB\s+csv", out)


def test_run_can_be_named_by_its_path(runs):
    tacho("tag", f"{runs}/run-1/", "+here")
    assert listed("tag:here") == ["run-1"]


@pytest.mark.parametrize(
    "command",
    [
        *("show", "tail", "export", "doctor", "control", "sync", "origin"),
        *("tag", "note", "rename", "group", "archive", "unarchive", "rm"),
    ],
)
def test_every_command_completes_run_names(runs, command):
    write(runs / "sweep" / "run-3", [START, END])
    shell = ShellComplete(main, {}, "tacho", "_TACHO_COMPLETE")

    def completed(*arguments):
        return [item.value for item in shell.get_completions([command, *arguments[:-1]], arguments[-1])]

    with files_opened(runs) as opened:
        assert completed("r") == ["run-0", "run-1", "run-2"]
        assert completed("sw") == ["sweep/run-3"]
        assert [item.type for item in shell.get_completions([command], "./no")] == ["file"]
    assert not [path for path in opened if path.endswith(".jsonl")]
    if command in {"export", "tag", "rm"}:
        assert completed("run-0", "run") == ["run-1", "run-2"]


def test_views_and_removed_runs_are_completed(runs):
    tacho("ls", "--save-view", "Mine")
    tacho("rm", "run-1")
    shell = ShellComplete(main, {}, "tacho", "_TACHO_COMPLETE")
    assert [item.value for item in shell.get_completions(["ls", "--view"], "m")] == ["mine"]
    assert [item.value for item in shell.get_completions(["trash", "restore"], "")] == ["run-1"]


def test_log_folder_in_the_environment_is_one_path(runs, tmp_path, monkeypatch):
    write(tmp_path / "a:b" / "x", [START, END])
    monkeypatch.setenv("TACHO_LOG_DIR", str(tmp_path / "a:b"))
    assert listed() == ["x"]


def test_commands_find_runs_of_several_folders(runs, tmp_path):
    write(tmp_path / "july" / "run-0", [{**START, "run_id": "july"}, step(1, loss=7.5), END])
    folders = ("--log-dir", str(runs), "--log-dir", str(tmp_path / "july"))
    assert "july:run-0" in listed(*folders) and "run-1" in listed(*folders)
    assert json.loads(tacho("show", "july:run-0", "--json", *folders))["metrics"]["loss"]["last"] == 7.5
    assert json.loads(tacho("show", *folders, "run-1", "--json"))["name"] == "run-1"
    tacho("note", "july:run-0", "seen", *folders)
    assert (tmp_path / "july" / "run-0" / "annotations").exists() and not (runs / "run-0" / "annotations").exists()
    assert "seed" in tacho("diff", f"{runs.name}:run-0", "run-1", *folders)
    assert tacho("export", "july:run-0", "--to", "csv", *folders).count("\n") == 2
    assert "'july:run-0'" in tacho("show", "run-0", *folders, code=1)
    assert "no run 'july:run-9'" in tacho("show", "july:run-9", *folders, code=1)
    assert "name a RUN" in tacho("sync", *folders, code=2)
    # With one folder there are no labels, and some commands work in one folder only.
    output = tacho("show", "july:run-0", "--log-dir", str(tmp_path / "july"), code=1)
    assert "did you mean 'run-0'?" in re.sub(r"[\s│]+", " ", output)  # a long path makes it wrap
    assert "works in one log folder" in tacho("tag", "july:run-0", "+x", *folders, code=2)
