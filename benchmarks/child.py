"""Run each measurement in its own process and folder, with all network access of the peers turned off."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

__all__ = [
    "NOT_INSTALLED",
    "ChildError",
    "run_as_child",
    "measure_in_child",
    "child_environment",
    "last_line",
    "run",
    "temporary_folder",
]

_ROOT = Path(__file__).resolve().parents[1]
_RESULT_FILE = "result.json"
_TIMEOUT_S = 90
NOT_INSTALLED = "not installed: pip install 'tachograph[bench]'"


class ChildError(Exception):
    """A measurement failed; the message says why."""


def child_environment(folder: str) -> dict[str, str]:
    """Return an environment that keeps the peers inside a folder and off the network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TACHO_", "WANDB_", "TRACKIO_"))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
        "HOME": folder,
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_DIR": folder,
        "WANDB_CACHE_DIR": folder,
        "WANDB_CONFIG_DIR": folder,
        "WANDB_DATA_DIR": folder,
        "TRACKIO_DIR": str(Path(folder, "trackio")),
        "HF_HOME": folder,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }


def run(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in a folder.

    Raises:
        ChildError: if it does not end in time.
    """
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=child_environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"timed out after {_TIMEOUT_S} s") from None


def measure_in_child(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this package and return its result.

    Raises:
        ChildError: if the measurement failed.
    """
    with temporary_folder() as folder:
        done = run(folder, "-m", f"benchmarks.{module}", *arguments)
        path = Path(folder, _RESULT_FILE)
        if not path.exists():
            raise ChildError(f"exit code {done.returncode}: {last_line(done.stderr)}")
        result: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    if "error" in result:
        raise ChildError(result["error"])
    return result


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder that is removed even if a helper process of a peer still writes into it."""
    return tempfile.TemporaryDirectory(prefix="tachograph-bench-", ignore_cleanup_errors=True)


def last_line(text: str) -> str:
    """Return the last line of a traceback: the exception."""
    return (text.strip() or "no message").splitlines()[-1]


def run_as_child(measure: Callable[..., dict[str, Any]]) -> None:
    """In the child: run the measurement with the command-line arguments and write its result or error to a file."""
    folder = Path.cwd()
    try:
        result = measure(folder, *sys.argv[1:])
    except ModuleNotFoundError:
        result = {"error": NOT_INSTALLED}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    (folder / _RESULT_FILE).write_bytes(msgspec.json.encode(result))
