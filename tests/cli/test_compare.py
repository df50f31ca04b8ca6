"""`tacho compare` on recorded runs."""

from __future__ import annotations

import json
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
    output = run_compare(logs, "old-0", "new-0")
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


def test_groups_of_repeats(logs):
    arguments = ("new-0", "new-1", "new-2", "--against", "old-0", "old-1", "old-2")
    found = json.loads(run_compare(logs, *arguments, "--json"))
    speed = found["metrics"][0]
    assert (speed["verdict"], speed["runs_a"], speed["runs_b"]) == ("slower", 3, 3)
    assert speed["low"] > 0.03
    assert found["a"]["runs"] == ["old-0", "old-1", "old-2"]
    grouped = json.loads(run_compare(logs, "old-0", *arguments[:3], "old-1", "--group", "config.lr", "--json"))
    assert (grouped["a"]["runs"], len(grouped["b"]["runs"])) == (["old-0", "old-1"], 3)


def test_several_runs_are_judged_against_the_first(logs):
    found = json.loads(run_compare(logs, "old-0", "old-1", "new-0", "--json"))
    assert [report["metrics"][0]["verdict"] for report in found["comparisons"]] == ["unknown", "slower"]
    output = run_compare(logs, "old-0", "old-1", "new-0")
    assert output.count("compared with old-0") == 2


def test_markdown_is_one_comment(logs):
    output = run_compare(logs, "old-0", "new-0", "--markdown")
    assert output.startswith(MARKER)
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
    speed = json.loads(run_compare(tmp_path, "night-6", "new", "--json"))["metrics"][0]
    assert (speed["verdict"], speed["noise_source"]) == ("slower", "6 earlier runs")
