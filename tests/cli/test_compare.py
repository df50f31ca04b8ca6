"""`tacho compare` on recorded runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.comparison import MARKER
from tests.comparison.journals import write_run


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for number in range(3):
        write_run(folder, f"old-{number}", seed=number)
        write_run(folder, f"new-{number}", seed=10 + number, factor=1.05, start={"config": {"lr": 2e-3}})
    write_run(folder, "evil [red]\x1b", seed=30)
    return folder


def run_compare(logs, *arguments, code=0):
    result = CliRunner().invoke(main, ["compare", "--log-dir", str(logs), *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result.output


def test_two_runs(logs):
    output = run_compare(logs, "new-0", "old-0")
    assert output.startswith("new-0 judged against old-0: one run each\n")
    assert "slower" in output
    assert "config" in output
    assert "0.002" in output
    assert output.rstrip().splitlines()[-1].startswith("Slower by ")


def test_a_run_with_itself_is_identical(logs):
    found = json.loads(run_compare(logs, "old-0", "old-0", "--json"))
    metrics = {metric["name"]: metric for metric in found["metrics"]}
    assert metrics["train_loss"]["verdict"] == "identical"
    assert metrics["step_time"]["effect"] == 0
    assert not any(metric["verdict"] in {"slower", "worse", "more"} for metric in found["metrics"])


def test_every_form_judges_the_runs_named_first(logs):
    for arguments in (
        ("new-0", "old-0"),
        ("new-0", "--against", "old-0"),
        ("new-0", "old-0", "--group", "config.lr"),
    ):
        found = json.loads(run_compare(logs, *arguments, "--json"))
        assert (found["direction"], found["metrics"][0]["verdict"]) == ("new-0 judged against old-0", "slower")
    found = json.loads(run_compare(logs, "old-0", "new-0", "--json"))
    assert (found["direction"], found["metrics"][0]["verdict"]) == ("old-0 judged against new-0", "faster")
    assert found["warnings"] == ["'old-0' is judged because it is named first, but started before 'new-0'"]


def test_fail_on(logs):
    for pair, words, code in [
        (("new-0", "old-0"), "worse", 1),
        (("new-0", "old-0"), "more,slower", 1),
        (("new-0", "old-0"), "more", 0),
        (("new-0", "old-0"), "worse-loss", 0),
        (("old-0", "new-0"), "worse", 0),
        (("old-0", "new-0"), "different", 1),
        (("old-0", "old-1"), "different", 0),
        (("old-0", "old-1"), "unknown", 3),
        (("old-0", "nosuch"), "worse", 2),
        (("old-0", "old-1", "--group", "host"), "worse", 2),
        (("new-0", "old-0"), "nosuch", 2),
    ]:
        run_compare(logs, *pair, "--fail-on", words, "--json", code=code)


def test_one_cause_is_printed_once(logs, tmp_path):
    for name, start in {"a": {}, "b": {"world_size": 2, "config": {"dataset": "x"}}}.items():
        write_run(tmp_path, name, start=start, step={"val_loss": 2.0})
    write_run(tmp_path, "failed", status="failed", start={"config": {"dataset": "x"}})
    output = " ".join(run_compare(tmp_path, "b", "a").split())
    for cause in ("world sizes", "config.dataset", "no readings of other ranks"):
        assert output.count(cause) == 1, cause
    assert run_compare(tmp_path, "failed", "a").count("'failed' failed") == 1
    assert run_compare(logs, "old-1", "old-0").count("--seed-spread") <= 1


def test_spread_between_seeds_can_be_stated(tmp_path):
    for number, level in enumerate((1.0, 1.02)):
        write_run(tmp_path, f"run-{number}", seed=number, level=level)
    for arguments, verdict in (
        ((), "unknown"),
        (("--seed-spread", "0.3"), "worse"),
        (("--seed-spread", "3"), "unknown"),
    ):
        metrics = json.loads(run_compare(tmp_path, "run-1", "run-0", *arguments, "--json"))["metrics"]
        assert [each["verdict"] for each in metrics if each["name"] == "train_loss"] == [verdict]


def test_groups_of_repeats(logs):
    arguments = ("new-0", "new-1", "new-2", "--against", "old-0", "old-1", "old-2")
    found = json.loads(run_compare(logs, *arguments, "--json"))
    speed = found["metrics"][0]
    assert (speed["verdict"], speed["runs_a"], speed["runs_b"]) == ("slower", 3, 3)
    assert speed["low"] > 0.03
    assert found["a"]["runs"] == ["old-0", "old-1", "old-2"]
    grouped = json.loads(run_compare(logs, *arguments[:3], "old-0", "old-1", "--group", "config.lr", "--json"))
    assert (grouped["a"]["runs"], len(grouped["b"]["runs"])) == (["old-0", "old-1"], 3)


def test_the_first_of_several_runs_is_judged_against_each_other(logs):
    found = json.loads(run_compare(logs, "old-0", "old-1", "old-2", "--json"))
    assert [report["direction"] for report in found["comparisons"]] == [
        "old-0 judged against old-1",
        "old-0 judged against old-2",
    ]
    # Repeats are one group, if there are others.
    found = json.loads(run_compare(logs, "old-0", "old-1", "new-0", "--json"))
    assert found["direction"] == "old-0 and 1 more judged against new-0"
    assert found["metrics"][0]["verdict"] == "faster"
    output = run_compare(logs, "old-0", "old-1", "old-2")
    assert output.count("old-0 judged against") == 2


def test_markdown_is_one_comment(logs):
    output = run_compare(logs, "new-0", "old-0", "--markdown")
    assert output.startswith(f"{MARKER}\n\nnew-0 judged against old-0")
    assert "🔴 slower" in output
    assert output.count("<details>") == output.count("</details>") == 1


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []
        self.links = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in {"src", "href"}]


def test_page_needs_nothing_else(logs, tmp_path):
    target = tmp_path / "report.html"
    for _ in range(2):  # the second time replaces the first
        run_compare(logs, "old-0", "new-0", "--html", str(target))
    page = _Page()
    page.feed(target.read_text())
    assert page.tags.count("html") == 1
    assert page.tags.count("svg") == 2
    assert not page.links
    assert "script" not in page.tags
    labels = re.findall(r'text-anchor="middle">([^<]*)<', target.read_text())
    assert len(labels) >= 4 and all(float(label.rstrip("kM")) % 10 == 0 for label in labels), labels


def test_names_cannot_drive_the_terminal(logs, tmp_path):
    output = run_compare(logs, "old-0", "evil [red]\x1b", "--html", str(tmp_path / "page.html"))
    assert "\x1b" not in output
    assert "evil [red]" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("old-0",), "name at least two runs"),
        (("old-0", "nosuch"), "nosuch"),
        (("--against", "old-0"), "before --against"),
        (("old-0", "--against"), "requires an argument"),
        (("old-0", "new-0", "--group", "config.nosuch"), "config.nosuch"),
        (("old-0", "old-1", "--group", "host"), "nothing to compare"),
    ],
)
def test_errors_name_the_remedy(logs, arguments, expected):
    result = CliRunner().invoke(main, ["compare", "--log-dir", str(logs), *arguments])
    assert result.exit_code in {1, 2}
    assert expected in " ".join(result.output.split())


def test_noise_is_learned_from_runs_with_the_same_tag(tmp_path):
    start = {"perf_tag": "nightly"}
    for number in range(7):
        write_run(tmp_path, f"night-{number}", seed=number, start=start)
    write_run(tmp_path, "other", seed=20)
    write_run(tmp_path, "new", seed=30, factor=1.02, start=start)
    speed = json.loads(run_compare(tmp_path, "new", "night-6", "--json"))["metrics"][0]
    assert (speed["verdict"], speed["noise_source"]) == ("slower", "6 earlier runs")


def test_different_models_are_judged_by_their_loss(tmp_path):
    for width, level in ((64, 1.0), (128, 0.9)):
        for seed in range(3):
            config = {"lr": 1e-3, "width": width, "seed": seed}
            write_run(tmp_path, f"w{width}-s{seed}", seed=width + seed, level=level, start={"config": config})
    names = [f"w{width}-s{seed}" for width in (128, 64) for seed in range(3)]
    for arguments in (names, [*names, "--group"], ["--where", "steps>0", "--group"]):
        report = json.loads(run_compare(tmp_path, *arguments, "--json"))
        verdicts = {metric["name"]: metric["verdict"] for metric in report["metrics"]}
        assert {len(report["a"]["runs"]), len(report["b"]["runs"])} == {3}
        assert verdicts["train_loss"] in {"better", "worse"}
        assert verdicts["step_time"] == "not_comparable"
    output = run_compare(tmp_path, "w128-s0", "w64-s0")
    assert "different config.width" in output
    assert "--anyway" in output
    output = run_compare(tmp_path, "w128-s0", "w64-s0", "--anyway")
    assert "not comparable" not in output
    assert "speed and memory: judged in spite of different config.width" in " ".join(output.split())
