"""Every measurement runs in a process of its own, in a folder of its own, with everything that could call home off."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["NOT_INSTALLED", "ChildError", "answer", "ask", "child_environment", "last_line", "run", "temporary_folder"]

_ROOT = Path(__file__).resolve().parents[1]
_ANSWER = "answer.json"
_TIMEOUT_S = 90
NOT_INSTALLED = "not installed: pip install 'tachograph[bench]'"


class ChildError(Exception):
    """A measurement that could not be made, and why."""


def child_environment(folder: str) -> dict[str, str]:
    """Return an environment in which the peers stay inside a folder and off the network."""
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
        ChildError: if it does not end.
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
        raise ChildError(f"did not end within {_TIMEOUT_S} s") from None


def ask(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this package and return what it measured.

    Raises:
        ChildError: if it could not.
    """
    with temporary_folder() as folder:
        done = run(folder, "-m", f"benchmarks.{module}", *arguments)
        path = Path(folder, _ANSWER)
        if not path.exists():
            raise ChildError(f"ended with {done.returncode}: {last_line(done.stderr)}")
        result: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    if "error" in result:
        raise ChildError(result["error"])
    return result


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes away, even if a peer's helper process is still writing into it."""
    return tempfile.TemporaryDirectory(prefix="tachograph-bench-", ignore_cleanup_errors=True)


def last_line(text: str) -> str:
    """Return the line of a traceback that says what happened."""
    return (text.strip() or "no message").splitlines()[-1]


def answer(measure: Callable[..., dict[str, Any]]) -> None:
    """In the child: measure what the command line names and leave the result, or the fault, for the parent."""
    folder = Path.cwd()
    try:
        result = measure(folder, *sys.argv[1:])
    except ModuleNotFoundError:
        result = {"error": NOT_INSTALLED}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    (folder / _ANSWER).write_bytes(msgspec.json.encode(result))
