"""The example configs of the documentation train: the first YAML block of each page on a plugin, and of `train.md`."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import yaml

from tachograph.reader import read
from tachograph.train import load
from tests.gym_server import running_gym, verify
from tests.train.conftest import BASE, conversations, write_rows

DOCS = Path(__file__).parents[2] / "docs"
NEEDS_GPU = ("liger",)
"""Pages whose example needs a GPU; `tests/plugins/test_liger.py` trains it with Triton's interpreter."""
PAGES = [page for page in sorted((DOCS / "plugins").glob("*.md")) if page.stem not in NEEDS_GPU]


def examples_of(page):
    return re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def write_files_of(page):
    """Write the other files that a page shows: those whose name ends the line before a block."""
    shown = re.findall(r"`([\w./-]+)`[^`\n]*:\n\n```\w+\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for name, text in shown:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def train(text, **changes):
    values = {**yaml.safe_load(text), **changes, "telemetry": BASE["telemetry"]}
    Path("example.yaml").write_text(text)
    Path("quiet.yaml").write_text(yaml.safe_dump(values))
    load("example.yaml").close()  # as it is written
    job = load("quiet.yaml")
    result = job.run()
    run = read(result.run_dir)
    assert run.state == "finished"
    assert result.num_steps > 0
    return job, run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_plugin_example_trains(workspace, page):
    examples = examples_of(page)
    if not examples:
        pytest.skip(f"{page.name} has no example")
    write_files_of(page)
    with contextlib.ExitStack() as stack:
        changes = {}
        if page.stem == "nemo_gym":
            row = {"responses_create_params": {"input": "2 + 2?"}, "answer": "4"}
            write_rows("arithmetic.jsonl", [row] * 4)
            changes["nemo_gym_head_port"] = stack.enter_context(running_gym({"reasoning_gym": verify})).head.port
        job, run = train(examples[0], **changes)
    assert job.session.plugins, "the example names no plugin"
    for plugin in job.session.plugins:
        active = run.series(f"plugin/{plugin.plugin_name()}/active")
        assert len(active.values) and max(active.values) == 1.0


def test_first_example_of_the_page_trains(workspace):
    _, run = train(examples_of(DOCS / "train.md")[0])
    assert "eval_loss" in run.metrics or "val_loss" in run.metrics


@pytest.mark.filterwarnings("ignore")
def test_other_examples_of_the_page_train(workspace):
    """The others change the first one: the page gives the keys that differ."""
    first, *others = examples_of(DOCS / "train.md")
    write_rows("pairs.jsonl", [{"prompt": f"add {n}", "chosen": f"is {n}", "rejected": "no"} for n in range(8)])
    write_rows("prompts.jsonl", [{"prompt": row["messages"][:1]} for row in conversations(8)])
    Path("rewards.py").write_text(
        "def brevity(completions, **kwargs):\n    return [-float(len(text[0]['content'])) for text in completions]\n"
    )
    assert others
    for example in others:
        changes = {**yaml.safe_load(first), **yaml.safe_load(example)}
        changes = {key: value for key, value in changes.items() if key != "val_set_size"}
        train(yaml.safe_dump({**changes, "output_dir": "./other"}), max_steps=1)
