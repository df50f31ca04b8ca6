"""Tests of the documentation: snippets run, generated pages are current, links resolve, nothing is missing."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.conftest import HANG_S
from tests.preloaded import preloaded

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tachograph"
TOP_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES = [*TOP_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]


FRAMEWORKS = re.compile(r"\b(accelerate|keras|lightning|torch|transformers|trl)\b")


def snippets() -> list[Any]:
    found = []
    for page in PAGES:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            marks = [pytest.mark.xdist_group("frameworks")] if FRAMEWORKS.search(code) else []
            found.append(pytest.param(code, id=f"{page.name}-{number}", marks=marks))
    return found


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log folder with a run named greyjacket, to copy."""
    folder = tmp_path_factory.mktemp("recorded")
    code = "import tachograph\nwith tachograph.init('greyjacket') as run: run.log(train_loss=1.0, step=0)\n"
    places = {name: str(tmp_path_factory.mktemp("home")) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    environment = {**os.environ, **places}
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, env=environment)
    return folder


@pytest.mark.parametrize("code", snippets())
def test_snippets_run(tmp_path, recorded_run, code):
    """Run each snippet in its own process, in a folder with a run named greyjacket unless the snippet creates it."""
    # No test sends usage telemetry, whatever the environment says.
    environment = {**os.environ, "TACHO_USAGE_DIR": str(tmp_path / "usage"), "DO_NOT_TRACK": "1"}
    creates_run = re.search(r'(init|application)\("greyjacket"', code)
    if not creates_run:
        shutil.copytree(recorded_run, tmp_path, dirs_exist_ok=True)
    options = {"cwd": tmp_path, "env": environment, "text": True}
    if code.startswith("def test_"):
        (tmp_path / "test_snippet.py").write_text(code)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_snippet.py"]
        done = subprocess.run(command, capture_output=True, check=False, **options)
    elif FRAMEWORKS.search(code):
        (tmp_path / "snippet.py").write_text(f"import warnings; warnings.simplefilter('error')\n{code}")
        done = preloaded("frameworks").run([sys.executable, "snippet.py"], timeout=HANG_S, **options)
    else:
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_shows_the_printed_lines(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    printed = re.findall(r"```\n(\[telemetry\].*?)```", text, re.DOTALL)[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(printed)


def test_quickstart_and_comparison_work(tmp_path, monkeypatch):
    """Follow both pages from an empty folder, without what installs, serves or trains for long."""
    from tachograph.cli._main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    quickstart, comparing = ((ROOT / "docs" / name).read_text("utf-8") for name in ("quickstart.md", "comparing.md"))
    Path("train.py").write_text(re.findall(r"```python\n(.*?)```", quickstart, re.DOTALL)[0])
    blocks = re.findall(r"```console\n(.*?)```", quickstart + comparing, re.DOTALL)
    commands = [command for block in blocks for command in re.findall(r"^\$ (.+)$", block, re.MULTILINE)]
    skipped = [one for one in commands if re.match(r"pip |tacho (ui|demo)\b|.*--steps 20000", one)]
    assert len(skipped) == 4
    for command in commands:
        if command in skipped:
            continue
        words = shlex.split(command.partition(" > ")[0])
        if words[0] == "tacho":
            done = CliRunner().invoke(main, words[1:])
            assert done.exit_code == 0, f"{command}: {done.output}"
        else:
            subprocess.run(command, shell=True, check=True, capture_output=True)
    best = CliRunner().invoke(main, shlex.split("ls --view small-lr")).output.splitlines()
    assert [line.split()[0] for line in best] == ["run", "lr-0.1", "lr-0.01", "lr-0.001"]


def test_generated_pages_are_current():
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    for path, text in generate["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run `make docs`"


def test_rule_pages_match_the_rules():
    from tachograph.diagnostics import RULES

    assert {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")} == set(RULES)


def links_of(page: Path) -> set[Path]:
    found = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found if not link.startswith("http")}


def test_links_resolve():
    for page in [*PAGES, *ROOT.glob("*/README.md"), *ROOT.glob("src/**/README.md")]:
        missing = {link for link in links_of(page) if not link.exists()}
        assert not missing, f"{page.name}: {missing}"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_anchors_resolve():
    for page in PAGES:
        for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve() if link else page
            assert anchor in anchors_of(target), f"{page.name}: {link}#{anchor}"


def test_every_page_is_linked():
    linked = set().union(*(links_of(page) - {page} for page in PAGES))
    pages = {page.resolve() for page in PAGES} - {ROOT / "README.md"}
    assert sorted(pages - linked) == []


def glossary() -> list[tuple[str, str]]:
    """Return each term with its definition."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return re.findall(r"^- \*\*(.+?)\*\*: (.+)$", text, re.MULTILINE)


def test_glossary_is_sorted_and_links_each_term():
    terms = [term for term, _ in glossary()]
    assert terms == sorted(set(terms))
    assert [term for term, text in glossary() if not re.search(r"\[.+\]\(\w+\.md\)$", text)] == []


def test_glossary_terms_are_used():
    """Each term occurs in the code, or in two places of the documentation besides the glossary."""
    code = "\n".join(path.read_text(encoding="utf-8").lower() for path in PACKAGE.rglob("*.py"))
    pages = [page for page in PAGES if page.name != "glossary.md"]
    docs = "\n".join(page.read_text(encoding="utf-8").lower() for page in pages)
    for term, _ in glossary():
        word = re.escape(term)
        assert re.search(rf"(\b|_){word}", code) or len(re.findall(rf"\b{word}", docs)) >= 2, term


def test_glossary_terms_required():
    required = """alert attempt completion consent control cursor follower goodput heartbeat importer integration
        iteration journal kind masking phase profile rank record redaction request rule run segment session signal
        sink span step trace window""".split()
    assert {*required, "lost record", "telemetry fault"} <= {term for term, _ in glossary()}


def test_contributing_lists_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)
    folders = {path.parent.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("__init__.py")}
    packages = folders - {"src/tachograph"}
    assert len(listed) == len(set(listed))
    assert packages | {"src/tachograph/_init", "ui", "tests", "benchmarks", "docs"} == set(listed)


def test_contributing_names_existing_files():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text[text.index("## Where do I") : text.index("## Write code")]
    known = {path.name for folder in (PACKAGE, ROOT / "ui" / "src", ROOT / "tests") for path in folder.rglob("*")}
    named = re.findall(r"`([\w/.]+\.(?:py|ts|svelte))`", section)
    assert len(named) > 8
    assert [name for name in named if Path(name).name not in known] == []


def test_changelog_has_a_section_for_the_version():
    from tachograph import __version__

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = [heading for heading in re.findall(r"^## (.+)$", text, re.MULTILINE) if heading != "Unreleased"]
    assert headings[0] == __version__


def test_make_targets_in_the_docs_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for verb in re.findall(r"`make ([\w-]+)`|\$ make ([\w-]+)", page.read_text(encoding="utf-8")):
            assert re.search(rf"^{verb[0] or verb[1]}:", makefile, re.MULTILINE), verb
