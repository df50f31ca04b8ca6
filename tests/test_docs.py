"""The documentation is true: its snippets run, its generated pages are current, its links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            found.append((f"{page.name}-{number}", code))
    return found


@pytest.mark.parametrize(("name", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_snippets_run(tmp_path, name, code):
    """Each in a process of its own, in a folder that has a run named greyjacket unless the snippet makes it."""
    # Nothing is sent by a test, whatever the environment says.
    environment = {**os.environ, "TACHO_USAGE_DIR": str(tmp_path / "usage"), "DO_NOT_TRACK": "1"}
    makes_it = re.search(r'(init|application)\("greyjacket"', code)
    prepare = "import tachograph\nwith tachograph.init('greyjacket') as run: run.log(train_loss=1.0, step=0)\n"
    if not makes_it:
        subprocess.run([sys.executable, "-c", prepare], cwd=tmp_path, check=True, capture_output=True)
    if code.startswith("def test_"):
        (tmp_path / "test_snippet.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_snippet.py"]
    else:
        command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_shows_what_is_printed(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    printed = re.findall(r"```\n(\[telemetry\].*?)```", text, re.DOTALL)[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(printed)


def test_generated_pages_are_current():
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    for path, text in generate["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run `make docs`"


def test_every_page_of_a_rule_has_its_rule():
    from tachograph.diagnostics import RULES

    assert {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")} == set(RULES)


def test_links_lead_somewhere():
    for page in [*PAGES, *ROOT.glob("*/README.md"), *ROOT.glob("src/**/README.md")]:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_verb_of_the_makefile_that_the_docs_name_is_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for verb in re.findall(r"`make (\w+)`|\$ make (\w+)", page.read_text(encoding="utf-8")):
            assert re.search(rf"^{verb[0] or verb[1]}:", makefile, re.MULTILINE), verb
