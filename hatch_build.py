"""Build hook: builds the dashboard from ``ui/`` into the package, for a wheel, an sdist or an editable install.

A wheel also gets the documentation, which the dashboard shows as its help.

The build is skipped if the stamp next to the built files matches the hash of the sources, or if there are built files
but no sources, as in an sdist. Run ``python hatch_build.py`` to build by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STATIC = Path("src", "tachograph", "server", "static")
HELP = Path("tachograph", "server", "help")
NOT_SOURCES = {"node_modules", "coverage", "dist", ".DS_Store"}
REMEDY = "install Node.js 20.19 or newer with npm (https://nodejs.org), then run the command again"


class DashboardError(Exception):
    """The dashboard could not be built. The message states the reason and the remedy."""

    def __init__(self, reason: str, remedy: str = REMEDY) -> None:
        super().__init__(f"The dashboard was not built because {reason}: {remedy}.")


class DashboardBuildHook(BuildHookInterface[Any]):
    """The hook that hatchling calls before it collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the dashboard. A failure aborts the build, except for an editable install, which only warns."""
        try:
            build_dashboard(Path(self.root))
        except DashboardError as error:
            if version != "editable":
                self.app.abort(str(error))
            self.app.display_warning(f"Warning: {error}")
        if self.target_name == "wheel" and version != "editable":  # in a checkout, the dashboard reads `docs`
            docs = Path(self.root, "docs")
            pages = {path: path.relative_to(docs) for path in docs.rglob("*.md")}
            pages[Path(self.root, "README.md")] = Path("README.md")
            for path, name in pages.items():
                build_data["force_include"][str(path)] = str(HELP / name)


def build_dashboard(root: Path) -> None:
    """Build the dashboard unless the built files are up to date.

    Raises:
        DashboardError: npm is missing or failed, or there are no sources.
    """
    ui, static = root / "ui", root / STATIC
    built = (static / "index.html").is_file()
    if not ui.is_dir():
        if built:
            return
        raise DashboardError("there is neither a ui folder nor a built dashboard", "download the sources again")
    stamp, expected = static / ".stamp", hash_of_sources(ui)
    if built and stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == expected:
        return
    if not packages_installed(ui):
        modules = ui / "node_modules"
        # npm deletes files in any order: remove the marker of a complete installation first.
        (modules / ".package-lock.json").unlink(missing_ok=True)
        # Keep the development packages if they were installed before.
        dev = "--include=dev" if (modules / "vitest").is_dir() else "--omit=dev"
        npm(ui, "ci", dev, "--ignore-scripts", "--no-audit", "--no-fund")
    stamp.unlink(missing_ok=True)
    npm(ui, "run", "build")
    stamp.write_text(f"{expected}\n", encoding="utf-8")


def hash_of_sources(ui: Path) -> str:
    """Return a hash of the names and contents of all source files."""
    names = (path.relative_to(ui) for path in ui.rglob("*") if path.is_file())
    total = hashlib.sha256()
    for name in sorted(name.as_posix() for name in names if not NOT_SOURCES.intersection(name.parts)):
        content = hashlib.sha256((ui / name).read_bytes()).hexdigest()
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


def packages_installed(ui: Path) -> bool:
    """Return whether all packages that the build needs are installed as locked. There may be more."""
    try:
        expected = json.loads((ui / "package-lock.json").read_bytes())["packages"]
        present = json.loads((ui / "node_modules" / ".package-lock.json").read_bytes())["packages"]
    except (OSError, ValueError, KeyError):
        return False
    # Optional packages differ by platform, and are installed together with the package that needs them.
    skipped = ("dev", "optional", "devOptional")
    needed = {name: entry for name, entry in expected.items() if name and not any(map(entry.get, skipped))}
    return all(present.get(name, {}).get("integrity") == entry.get("integrity") for name, entry in needed.items())


def npm(ui: Path, *arguments: str) -> None:
    """Run npm in the source folder. Its output goes to the terminal."""
    program = shutil.which("npm")
    if program is None:
        raise DashboardError("npm was not found")
    if subprocess.run([program, *arguments], cwd=ui, check=False).returncode != 0:  # noqa: S603 - fixed arguments
        raise DashboardError(f"`npm {' '.join(arguments)}` failed")


if __name__ == "__main__":
    try:
        build_dashboard(Path(__file__).parent)
    except DashboardError as error:
        sys.exit(str(error))
