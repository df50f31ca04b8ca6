"""Run tests with the lowest versions of the dependencies that `pyproject.toml` allows: `make test-lowest`.

Each lower bound `name>=X` becomes `name==X` in a virtual environment of its own, `.venv-lowest`, which is kept until a
bound changes. What these packages require in turn is installed in its newest version, as for a user who has had them
for a while. Extras are too large to install; their lower bounds must exist in the package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).parent.parent
VENV = ROOT / ".venv-lowest"
# The newest Python for which the lowest versions have wheels.
PYTHONS = ("python3.10", "python3.11")
TOOLS = ("httpx", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
TESTS = ("tests/cli", "tests/recorder/test_run.py", "tests/server/test_api.py", "tests/test_settings.py")


class LowestError(Exception):
    """A lower bound is missing or does not work; the message says which."""


def lowest(requirement: str) -> str:
    """Return ``name==X`` for ``name>=X``."""
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)(?:,<[\w.]+)?", requirement.replace(" ", ""))
    if found is None:
        raise LowestError(f"{requirement!r} has no lower bound: expected name>=version")
    return f"{found[1]}=={found[2]}"


def find_python() -> str:
    """Return the oldest supported Python on this machine."""
    for name in (os.environ.get("LOWEST_PYTHON"), *PYTHONS, sys.executable):
        path = shutil.which(name) if name else None
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    raise LowestError(f"no Python found: install {' or '.join(PYTHONS)}, or set LOWEST_PYTHON")


def check_extras(python: Path, extras: dict[str, list[str]]) -> None:
    """Raise if the lower bound of an extra is not a version that the index has."""
    for requirement in sorted(
        {item for name, items in extras.items() if name not in {"dev", "bench"} for item in items}
    ):
        name, version = lowest(requirement).split("==")
        command = [python, "-m", "pip", "index", "versions", name]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        versions = re.search(r"Available versions: (.*)", listed.stdout)
        if versions is None:
            raise LowestError(f"the index does not list {name}: {listed.stderr.strip()[-300:]}")
        # An index leaves out trailing zeros or adds them.
        known = {re.sub(r"(\.0)+$", "", each) for each in versions[1].split(", ")}
        if re.sub(r"(\.0)+$", "", version) not in known:
            raise LowestError(f"{requirement}: the index has no version {version}")
        print(f"{requirement}: exists")


def prepare(project: dict[str, Any]) -> Path:
    """Create the environment unless there is one with these versions; return its Python."""
    dev = {re.split(r"[<>=!~\[]", item)[0]: item for item in project["optional-dependencies"]["dev"]}
    wanted = [*map(lowest, project["dependencies"]), *(dev[name] for name in TOOLS)]
    stamp, python = VENV / "stamp", VENV / "bin" / "python"
    text = "\n".join([*wanted, *sorted(map(str, project["optional-dependencies"].items()))])
    if stamp.exists() and stamp.read_text() == text:
        return python
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([find_python(), "-m", "venv", VENV], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", *wanted]
    if subprocess.run(pip, check=False).returncode != 0:
        raise LowestError("the lowest versions cannot be installed together; see above")
    check_extras(python, project["optional-dependencies"])
    # The sources instead of an installed package: nothing has to be built.
    (packages,) = VENV.glob("lib/python*/site-packages")
    (packages / "tachograph.pth").write_text(f"{ROOT / 'src'}\n")
    stamp.write_text(text)
    return python


def main() -> int:
    """Prepare the environment and run the tests in it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=TESTS, help="the tests to run")
    tests = parser.parse_args().tests
    try:
        python = prepare(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])
    except LowestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadgroup",
        "-p",
        "tachograph.testing.pytest_plugin",
        *tests,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONDONTWRITEBYTECODE"] = ""  # the tests start many processes, which would all compile the modules
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
