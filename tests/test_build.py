"""Tests of the build: the dashboard is built when needed, a failure is reported, and nothing else is packaged."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.release import ROOT, ReleaseError, check_archives, junk_in, names_in, run_hatchling

FILES = ("pyproject.toml", "hatch_build.py", ".gitignore", "README.md", "CHANGELOG.md", "LICENSE")
REMEDY = "install Node.js 20.19 or newer with npm (https://nodejs.org), then run the command again."
# Replaces npm, which would use the network: logs its arguments and creates the files that npm creates.
NPM = """#!/bin/sh
echo "$*" >> "{log}"
case "$1" in
ci) mkdir -p node_modules && cp package-lock.json node_modules/.package-lock.json ;;
run) mkdir -p ../src/tachograph/server/static && cp index.html ../src/tachograph/server/static/ ;;
esac
exit {code}
"""


def load_hook(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", root / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Sources:
    """A copy of the sources in which the real backend builds, with only the programs on `path`."""

    def __init__(self, folder: Path, path: str) -> None:
        self.root = folder
        self.path = path
        self.ui = folder / "ui"
        self.static = folder / "src" / "tachograph" / "server" / "static"

    def stamp(self) -> None:
        """Create the files of a finished build."""
        self.static.mkdir(parents=True)
        (self.static / "index.html").write_text("<!doctype html>")
        (self.static / ".stamp").write_text(load_hook(self.root).hash_of_sources(self.ui))

    def build(self, target: str) -> subprocess.CompletedProcess[str]:
        return run_hatchling(self.root, target, self.path)

    def build_archive(self, target: str) -> Path:
        done = self.build(target)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.root / done.stderr.splitlines()[-1]

    def add_npm(self, code: int = 0) -> Path:
        """Put the npm replacement on the path; return its log file."""
        log, program = self.root / "npm.log", self.root / "bin" / "npm"
        program.parent.mkdir(exist_ok=True)
        program.write_text(NPM.format(log=log, code=code))
        program.chmod(0o755)
        self.path = os.pathsep.join([str(program.parent), "/usr/bin", "/bin"])
        return log


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    root, no_programs = tmp_path / "sources", tmp_path / "no_programs"
    root.mkdir()
    no_programs.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, root)
    left_out = shutil.ignore_patterns("__pycache__", "node_modules", "static")
    shutil.copytree(ROOT / "ui", root / "ui", ignore=left_out)
    shutil.copytree(ROOT / "src", root / "src", ignore=left_out)
    return Sources(root, str(no_programs))


@pytest.mark.slow
def test_archives_contain_dashboard_and_no_npm_packages(sources: Sources):
    sources.stamp()
    package = sources.ui / "node_modules" / "svelte" / "index.js"
    package.parent.mkdir(parents=True)
    package.write_text("export {};")
    page = sources.root / "docs" / "rules" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("# A page")
    (sources.root / "docs" / "picture.png").touch()
    in_wheel, in_sdist = names_in(sources.build_archive("wheel")), names_in(sources.build_archive("sdist"))
    assert "tachograph/server/static/index.html" in in_wheel
    in_help = {name for name in in_wheel if name.startswith("tachograph/server/help/")}
    assert in_help == {"tachograph/server/help/README.md", "tachograph/server/help/rules/page.md"}
    assert {"src/tachograph/server/static/index.html", "src/tachograph/server/static/.stamp"} <= in_sdist
    assert {"hatch_build.py", "ui/index.html", "ui/package.json", "ui/package-lock.json", "ui/.npmrc"} <= in_sdist
    assert [name for name in in_wheel if name.endswith(".stamp") or "ui/" in name] == []
    assert [name for name in in_wheel | in_sdist if "node_modules" in name] == []
    assert junk_in(in_wheel | in_sdist) == []


@pytest.mark.slow
def test_release_check_rejects_broken_archives(sources: Sources, tmp_path: Path):
    sources.stamp()
    sdist, wheel = sources.build_archive("sdist"), sources.build_archive("wheel")
    check_archives(sdist, wheel)
    for name, problem in [("tests/test_x.py", "outside the package"), ("tachograph/__pycache__/x.pyc", "contain junk")]:
        broken = tmp_path / wheel.name
        shutil.copy(wheel, broken)
        with zipfile.ZipFile(broken, "a") as archive:
            archive.writestr(name, "")
        with pytest.raises(ReleaseError, match=problem):
            check_archives(sdist, broken)
    with zipfile.ZipFile(tmp_path / wheel.name, "w") as archive:
        archive.writestr("tachograph/__init__.py", "")
    with pytest.raises(ReleaseError, match="does not contain the dashboard"):
        check_archives(sdist, tmp_path / wheel.name)


@pytest.mark.parametrize("has_ui", [True, False])
@pytest.mark.slow
def test_wheel_builds_from_sdist_without_npm(sources: Sources, tmp_path: Path, has_ui: bool):
    sources.stamp()
    with tarfile.open(sources.build_archive("sdist")) as opened:
        opened.extractall(tmp_path / "from_sdist")
    (unpacked,) = (tmp_path / "from_sdist").iterdir()
    if not has_ui:
        shutil.rmtree(unpacked / "ui")
    assert "tachograph/server/static/index.html" in names_in(Sources(unpacked, sources.path).build_archive("wheel"))


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_release_build_fails_without_npm(sources: Sources, target: str):
    done = sources.build(target)
    assert done.returncode == 1
    assert done.stderr == f"The dashboard was not built because npm was not found: {REMEDY}\n"
    assert list((sources.root / "dist").iterdir()) == []


def test_editable_install_without_npm_warns(sources: Sources):
    done = sources.build("wheel:editable")
    assert done.returncode == 0
    warning, made = done.stderr.splitlines()
    assert warning == f"Warning: The dashboard was not built because npm was not found: {REMEDY}"
    assert (sources.root / made).is_file()


def test_wheel_fails_without_ui_sources_or_built_dashboard(sources: Sources):
    shutil.rmtree(sources.ui)
    done = sources.build("wheel")
    assert done.returncode == 1
    assert done.stderr.startswith("The dashboard was not built because there is neither")


def test_npm_failure_is_reported_and_leaves_no_stamp(sources: Sources):
    sources.add_npm(code=1)
    done = sources.build("wheel")
    assert done.returncode == 1
    assert re.fullmatch(r"The dashboard was not built because `npm ci [^`]*` failed: .*", done.stderr.strip())
    assert not (sources.static / ".stamp").exists()


def test_stamp_changes_with_the_sources(sources: Sources):
    hash_of_sources = load_hook(sources.root).hash_of_sources
    seen = [hash_of_sources(sources.ui)]
    (sources.ui / "src" / "more.ts").write_text("export {};")
    seen.append(hash_of_sources(sources.ui))
    (sources.ui / "src" / "more.ts").rename(sources.ui / "src" / "other.ts")
    seen.append(hash_of_sources(sources.ui))
    (sources.ui / "src" / "other.ts").write_text("export { };")
    seen.append(hash_of_sources(sources.ui))
    assert len(set(seen)) == 4
    (sources.ui / "node_modules").mkdir()
    (sources.ui / "node_modules" / "installed.js").write_text("export {};")
    assert hash_of_sources(sources.ui) == seen[-1]


@pytest.mark.slow
def test_rebuild_and_reinstall_only_after_a_change(sources: Sources):
    log = sources.add_npm()
    install = "ci --omit=dev --ignore-scripts --no-audit --no-fund"
    sources.build_archive("wheel")
    sources.build_archive("wheel")
    assert log.read_text().splitlines() == [install, "run build"]
    (sources.ui / "src" / "more.ts").write_text("export {};")
    sources.build_archive("wheel:editable")
    assert log.read_text().splitlines() == [install, "run build", "run build"]
    (sources.ui / "node_modules" / ".package-lock.json").unlink()  # as after an interrupted npm
    (sources.ui / "src" / "more.ts").unlink()
    sources.build_archive("wheel")
    assert log.read_text().splitlines()[3:] == [install, "run build"]


@pytest.mark.slow
def test_developer_packages_are_kept(sources: Sources):
    log = sources.add_npm()
    lock = sources.ui / "package-lock.json"
    (sources.ui / "node_modules" / "vitest").mkdir(parents=True)
    shutil.copy(lock, sources.ui / "node_modules" / ".package-lock.json")
    sources.build_archive("wheel")
    assert log.read_text().splitlines() == ["run build"]
    changed = json.loads(lock.read_text())
    changed["packages"]["node_modules/svelte"]["integrity"] = "sha512-another"
    lock.write_text(json.dumps(changed))
    sources.build_archive("wheel")
    install = "ci --include=dev --ignore-scripts --no-audit --no-fund"
    assert log.read_text().splitlines()[1:] == [install, "run build"]


@pytest.mark.slow
def test_real_npm_build_follows_the_page_rules(sources: Sources):
    installed = ROOT / "ui" / "node_modules"
    if shutil.which("npm") is None or not load_hook(ROOT).packages_installed(ROOT / "ui"):
        pytest.skip("needs the npm packages: run `make ui-check`")
    (sources.ui / "node_modules").symlink_to(installed)
    sources.path = os.environ["PATH"]
    names = {name for name in names_in(sources.build_archive("wheel")) if "/static/" in name}
    assert sorted(Path(name).suffix for name in names if "/assets/" in name) == [".css", ".js"]
    page = (sources.static / "index.html").read_text()
    assert re.findall(r"<script\b(?![^>]*\ssrc=)|<style\b|\sstyle=|\son\w+=", page) == []
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {f"tachograph/server/static/{address.removeprefix('./')}" for address in addresses} <= names


def test_npm_packages_are_pinned_without_hosts():
    package = json.loads((ROOT / "ui" / "package.json").read_text())
    lock = json.loads((ROOT / "ui" / "package-lock.json").read_text())
    pins = {**package["dependencies"], **package["devDependencies"]}
    assert [name for name, version in pins.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    assert {name: lock["packages"][f"node_modules/{name}"]["version"] for name in pins} == pins
    assert [name for name, entry in lock["packages"].items() if "resolved" in entry] == []
