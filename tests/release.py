"""Build a release and try it as a user would: `make release-check`.

The sdist is built from the working tree, the wheel from the unpacked sdist without npm, and the wheel is installed into
an empty virtual environment. `test_build.py` uses the same helpers for the build itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = "tachograph/server/static/index.html"
# Files that a build may pick up by accident.
JUNK = re.compile(
    r"(^|/)(node_modules|__pycache__|\.\w+_cache|\.hypothesis|\.venv[^/]*|\.git|logs|coverage|dist)/|\.py[cod]$|\.DS_Store$"
)


class ReleaseError(Exception):
    """The release does not work; the message says why."""


def run_hatchling(root: Path, target: str, path: str) -> subprocess.CompletedProcess[str]:
    """Build a target with the real backend, with only the programs that `path` contains."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target]
    env = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def names_in(archive: Path) -> set[str]:
    """Return the files of a wheel or an sdist, without the top folder of the sdist."""
    if archive.suffix == ".whl":
        return set(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as opened:
        return {name.split("/", 1)[1] for name in opened.getnames()}


def junk_in(names: set[str]) -> list[str]:
    """Return the files that do not belong into a release."""
    return sorted(name for name in names if JUNK.search(name))


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ReleaseError(problem)


def _build(root: Path, target: str, path: str) -> Path:
    done = run_hatchling(root, target, path)
    _require(done.returncode == 0, f"cannot build the {target}:\n{done.stdout}{done.stderr}")
    return root / done.stderr.splitlines()[-1]


def _copy_sources(folder: Path) -> Path:
    """Copy what git tracks, and the built dashboard: a release has nothing else to offer."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    static = Path("src", "tachograph", "server", "static")
    _require((ROOT / static / "index.html").is_file(), "the dashboard is not built: run `make ui`")
    shutil.copytree(ROOT / static, folder / static)
    return folder


def check_archives(sdist: Path, wheel: Path) -> None:
    """Raise `ReleaseError` unless both archives contain the dashboard and nothing unexpected."""
    in_sdist, in_wheel = names_in(sdist), names_in(wheel)
    _require(PAGE in in_wheel, f"{wheel.name} does not contain the dashboard")
    _require(f"src/{PAGE}" in in_sdist, f"{sdist.name} does not contain the dashboard")
    _require("ui/package-lock.json" in in_sdist, f"{sdist.name} does not contain the sources of the dashboard")
    foreign = sorted(name for name in in_wheel if not re.match(r"tachograph(-[\w.]+\.dist-info)?/", name))
    _require(not foreign, f"{wheel.name} contains files outside the package: {foreign[:10]}")
    junk = junk_in(in_sdist | in_wheel)
    _require(not junk, f"the archives contain junk: {junk[:10]}")


def _call(command: list[str | Path], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=600)
    shown = " ".join(map(str, command))
    _require(done.returncode == 0, f"`{shown}` failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _check_dashboard(tacho: Path, folder: Path, env: dict[str, str]) -> None:
    command = [tacho, "ui", "--log-dir", folder / "logs", "--port", "0"]
    server = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        _require(address, "`tacho ui` printed no address")
        with urllib.request.urlopen(address[0], timeout=30) as response:
            page = response.read().decode()
        script = re.search(r'src="\./(assets/[^"]+\.js)"', page)
        _require(script, f"`tacho ui` does not serve the built dashboard but:\n{page[:500]}")
        with urllib.request.urlopen(f"{address[0].rstrip('/')}/{script[1]}", timeout=30) as response:
            _require(len(response.read()) > 10_000, "the script of the dashboard is empty")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def check_release(folder: Path) -> None:
    """Build, inspect, install and run a release inside a temporary folder.

    Raises:
        ReleaseError: if any of it fails.
    """
    no_programs = folder / "no_programs"
    no_programs.mkdir()
    print("Building the sdist …", flush=True)
    sdist = _build(_copy_sources(folder / "sources"), "sdist", str(no_programs))
    print("Building the wheel from the sdist, without npm …", flush=True)
    with tarfile.open(sdist) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel = _build(unpacked, "wheel", str(no_programs))
    check_archives(sdist, wheel)

    print(f"Installing {wheel.name} into an empty virtual environment …", flush=True)
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TACHO_", "VIRTUAL_ENV"))
    }
    env |= {"PATH": str(programs), "COLUMNS": "120"}
    _require(shutil.which("npm", path=env["PATH"]) is None, "npm is on the path of the empty environment")
    _call([programs / "python", "-m", "pip", "install", "--quiet", wheel], folder, env)

    print("Running the installed command …", flush=True)
    tacho = programs / "tacho"
    version = re.match(r"tachograph-([\w.]+?)-py3", wheel.name)
    _require(
        version and version[1] in _call([tacho, "--version"], folder, env), "`tacho --version` differs from the wheel"
    )
    shown = _call([tacho, "demo", "--log-dir", folder / "logs", "--steps", "300"], folder, env)
    _require("finished" in shown and "productive training" in shown, f"`tacho demo` printed:\n{shown}")
    runs = json.loads(_call([tacho, "ls", "--log-dir", folder / "logs", "--json"], folder, env))
    _require(
        {run["name"]: (run["state"], run["step"]) for run in runs}
        == dict.fromkeys(("demo", "demo-low-lr", "demo-high-lr"), ("finished", 299)),
        f"`tacho ls`: {runs}",
    )
    _check_dashboard(tacho, folder, env)
    print(f"{sdist.name} and {wheel.name} work.")


def main() -> int:
    """Check a release; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="tachograph-release-") as folder:
        try:
            check_release(Path(folder))
        except ReleaseError as error:
            print(f"release-check failed: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
