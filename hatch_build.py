"""Builds the dashboard from ``ui/`` into the package while a wheel, an sdist or an editable install is made.

Nothing is done when the stamp beside the built files says that they were made from these very sources, or when there
are no sources and the built files are there. ``python hatch_build.py`` does the same by hand.
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
NOT_SOURCES = {"node_modules", "coverage", "dist", ".DS_Store"}
REMEDY = "install Node.js 20.19 or newer with npm (https://nodejs.org), then run the command again"


class DashboardError(Exception):
    """The sentence for the user: why there is no dashboard, and what to do."""

    def __init__(self, reason: str, remedy: str = REMEDY) -> None:
        super().__init__(f"The dashboard was not built because {reason}: {remedy}.")


class DashboardBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it collects the files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the dashboard; only an editable install goes on without it."""
        try:
            build_dashboard(Path(self.root))
        except DashboardError as error:
            if version != "editable":
                self.app.abort(str(error))
            self.app.display_warning(f"Warning: {error}")


def build_dashboard(root: Path) -> None:
    """Bring the built files up to date with the sources.

    Raises:
        DashboardError: There is no npm, or it failed, or there is nothing to build from.
    """
    ui, static = root / "ui", root / STATIC
    built = (static / "index.html").is_file()
    if not ui.is_dir():
        if built:
            return
        raise DashboardError("there is neither a ui folder nor what was built from it", "get all of the sources again")
    stamp, wanted = static / ".stamp", hash_of_sources(ui)
    if built and stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == wanted:
        return
    if not packages_installed(ui):
        modules = ui / "node_modules"
        # npm empties the folder in any order: what says that it is whole has to go first.
        (modules / ".package-lock.json").unlink(missing_ok=True)
        # The packages for tests are only left out where nobody asked for them before.
        dev = "--include=dev" if (modules / "vitest").is_dir() else "--omit=dev"
        npm(ui, "ci", dev, "--ignore-scripts", "--no-audit", "--no-fund")
    stamp.unlink(missing_ok=True)
    npm(ui, "run", "build")
    stamp.write_text(f"{wanted}\n", encoding="utf-8")


def hash_of_sources(ui: Path) -> str:
    """One hash of the names and contents of all files that are neither installed nor built."""
    names = (path.relative_to(ui) for path in ui.rglob("*") if path.is_file())
    total = hashlib.sha256()
    for name in sorted(name.as_posix() for name in names if not NOT_SOURCES.intersection(name.parts)):
        content = hashlib.sha256((ui / name).read_bytes()).hexdigest()
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


def packages_installed(ui: Path) -> bool:
    """Whether npm finished installing what the lock asks for; more than that may be there as well."""
    try:
        wanted = json.loads((ui / "package-lock.json").read_bytes())["packages"]
        present = json.loads((ui / "node_modules" / ".package-lock.json").read_bytes())["packages"]
    except (OSError, ValueError, KeyError):
        return False
    # What is optional differs by platform, and comes and goes with the package that has it.
    left_out = ("dev", "optional", "devOptional")
    needed = {name: entry for name, entry in wanted.items() if name and not any(map(entry.get, left_out))}
    return all(present.get(name, {}).get("integrity") == entry.get("integrity") for name, entry in needed.items())


def npm(ui: Path, *arguments: str) -> None:
    """Run npm in the folder of the sources; it writes to the terminal itself."""
    program = shutil.which("npm")
    if program is None:
        raise DashboardError("npm was not found")
    if subprocess.run([program, *arguments], cwd=ui, check=False).returncode != 0:  # noqa: S603 - the words are ours
        raise DashboardError(f"`npm {' '.join(arguments)}` failed")


if __name__ == "__main__":
    try:
        build_dashboard(Path(__file__).parent)
    except DashboardError as error:
        sys.exit(str(error))
