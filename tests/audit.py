"""Look up known vulnerabilities of the dependencies: `make audit`.

Two things are audited with `pip-audit`, which asks the package index: the lowest versions that `pyproject.toml` allows,
because a user may have them, and the versions in `.venv`. The program is installed in a virtual environment of its own,
`.venv-audit`. Exits with 1 if there is a vulnerability, and with 2 if the audit cannot run, such as without a network.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.lowest import ROOT, lowest, tomllib

VENV = ROOT / ".venv-audit"
MAX_REASON_CHARS = 300


class AuditError(Exception):
    """The audit cannot run; the message says why."""


def prepare() -> Path:
    """Return `pip-audit`; install it if necessary."""
    program = VENV / "bin" / "pip-audit"
    if not program.exists():
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "pip-audit>=2.7"]
        installed = subprocess.run(pip, capture_output=True, text=True, check=False)
        if installed.returncode != 0:
            raise AuditError(f"pip-audit cannot be installed: {installed.stderr.strip()[-MAX_REASON_CHARS:]}")
    return program


def audit(program: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return the packages with known vulnerabilities."""
    command = [program, "--format", "json", "--progress-spinner", "off", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise AuditError(f"pip-audit gave no result: {lines[-1][:MAX_REASON_CHARS]}") from None
    skipped = [package for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):  # such as with a mirror, which has the packages but not the vulnerabilities
        raise AuditError(f"nothing could be looked up: {skipped[0]['skip_reason'] if skipped else 'no packages'}")
    for package in skipped:
        print(f"not looked up: {package['skip_reason']}")
    return [package for package in packages if package.get("vulns")]


def lowest_versions() -> list[str]:
    """Return ``name==X`` for each lower bound, also of the extras that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: items for name, items in project["optional-dependencies"].items() if name not in {"dev", "bench"}}
    return sorted({lowest(item) for items in (project["dependencies"], *extras.values()) for item in items})


def main() -> int:
    """Audit, and print the result; return the exit code."""
    try:
        program = prepare()
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(lowest_versions()))
            file.flush()
            problems = {"lowest": audit(program, "--requirement", file.name, "--no-deps", "--disable-pip")}
        (packages,) = (ROOT / ".venv").glob("lib/python*/site-packages")
        problems[".venv"] = audit(program, "--path", str(packages))
    except AuditError as error:
        print(f"error: the audit cannot run here: {error}", file=sys.stderr)
        return 2
    for source, packages_with_problems in problems.items():
        for package in packages_with_problems:
            for problem in package["vulns"]:
                fixed = ", ".join(problem["fix_versions"]) or "no version"
                print(f"{source}: {package['name']} {package['version']}: {problem['id']}, fixed in {fixed}")
    print("no known vulnerabilities" if not any(problems.values()) else "see above")
    return int(any(problems.values()))


if __name__ == "__main__":
    sys.exit(main())
