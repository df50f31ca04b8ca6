"""Fixtures and helpers for all tests. A telemetry fault fails the test that caused it."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from tachograph._base.guard import guard
from tachograph.journal import RunFolder, RunState, current_state
from tachograph.recorder._process import live_runs
from tests.preloaded import preloaded, share_preloaded
from tests.selection import is_heavy

# A shell starts background jobs without SIGINT, and `nohup` without SIGHUP; programs that tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Several tests run at once, so the threads of a matrix product would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each takes processes per run. The tests of them turn them on; fixtures of modules need this before any test.
_NO_PROCESSES = {"TACHO_CODE": "0", "TACHO_GIT": "0"}
os.environ.update(_NO_PROCESSES)
# A client of HTTP loads all certificates that it trusts, even for a server on this machine: once per test, and in
# each program. One is enough, because no test connects to another machine.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "certificate.pem")

for _name, _num_examples in {"normal": 20, "long": 100}.items():
    hypothesis.settings.register_profile(
        _name, max_examples=_num_examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("normal")

HANG_S = 240.0
"""When a test gives up on a process or a condition. Only a failing test waits that long, so it may be generous."""

_GROUPS = ("browser", "server/columns", "plugins", "train")
"""Folders whose tests run in one process each: they share a browser, servers, or the import of large packages."""


_PROGRAMS = {"dashboard", "ranks", "script", "tacho"}
"""Fixtures that start processes."""


@functools.cache
def _folder(path: Path) -> str:
    return path.parent.relative_to(Path(__file__).parent).as_posix()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out slow tests, programs, browsers and frameworks")


def pytest_configure(config: pytest.Config) -> None:
    share_preloaded()
    starts_workers = config.getoption("tx", None) and not hasattr(config, "workerinput")
    is_compiled = any(Path(__file__).parent.glob("__pycache__/test_*-pytest-*.pyc"))
    if starts_workers and not is_compiled and not config.getoption("fast"):
        # A fresh checkout: each worker would compile all modules, which takes three times as long as collecting tests.
        command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
        preloaded("frameworks").run(command, timeout=HANG_S, stdin=subprocess.DEVNULL)
    if _is_long(config):
        hypothesis.settings.load_profile("long")


def _is_long(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == "long")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("fast"):
        return None
    path = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    return True if is_heavy(path) else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        group = next((group for group in _GROUPS if f"{_folder(item.path)}/".startswith(f"{group}/")), None)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
        if _is_long(config) and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.long)  # with more examples
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    items[:] = slow + others  # in this order, or one worker would end long after the others
    if config.getoption("fast"):
        programs = [item for item in others if _PROGRAMS & set(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=slow + programs)
        items[:] = [item for item in others if not _PROGRAMS & set(getattr(item, "fixturenames", ()))]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at all tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fail_on_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the guard re-raise faults, and fail a test that suppressed one or left a run open."""
    guard.reset()
    guard.strict = "expects_faults" not in request.keywords
    yield
    guard.strict = False
    faults, _ = list(guard.faults), guard.reset()
    left = [run.name for run in live_runs()]
    for run in live_runs():
        run.finish(timeout_s=1)
    assert not left, f"the test left runs open: {left}"
    if "expects_faults" not in request.keywords:
        assert not faults, f"telemetry suppressed faults: {faults}"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remove settings and rank variables of the machine that runs the tests, and keep out of the user's state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "config"))
    for name in list(os.environ):
        if name.startswith(("TACHO_", "SLURM_", "OMPI_", "PMI_")) or name in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("TACHO_EXIT_TIMEOUT_S", "60")
    for name, value in _NO_PROCESSES.items():
        monkeypatch.setenv(name, value)
    # On a slow machine, the short steps of a test would be sampled.
    monkeypatch.setenv("TACHO_MAX_OVERHEAD", "1")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach: root can write anywhere, so some tests switch to another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class Script:
    """A Python program in a child process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def wait(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, out, err

    def ok(self) -> str:
        code, out, err = self.wait()
        assert code == 0, f"exit code {code}\n{out}\n{err}"
        return out


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Script]]:
    """Start a program, ``script("import tachograph …", argument, …)``, and kill it at the end of the test.

    ``preload="torch"`` saves the time to import it; see `tests.preloaded`. The recorder is imported, except in tests of
    frameworks and if a program looks at `sys.modules`, or has options or variables that matter to the interpreter;
    ``preload=""`` starts a new interpreter.
    """
    started: list[subprocess.Popen[str]] = []
    is_preloaded = _folder(request.path).partition("/")[0] != "integrations"

    def start(
        source: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        preload: str | None = None,
        **options: Any,
    ) -> Script:
        needs_interpreter = (
            "sys.modules" in source
            or any(name.startswith("PYTHON") for name in env or {})
            or options.keys() & {"preexec_fn", "pass_fds", "start_new_session"}
        )
        if preload is None and is_preloaded and not needs_interpreter:
            preload = "tachograph"
        path = tmp_path / f"script_{len(started)}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        options.setdefault("stdin", subprocess.PIPE)
        popen = preloaded(preload).popen if preload else subprocess.Popen
        process = popen(
            [sys.executable, "-u", str(path), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            **options,
        )
        started.append(process)
        return Script(process)

    yield start
    for process in started:
        if process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()  # it may hold the pipes open
            process.kill()
        process.communicate()


@pytest.fixture
def ranks() -> Iterator[list[dict[str, str]]]:
    """The environments of two ranks, as torchrun sets them; like its agent, this process has their store."""
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    yield [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    del store


def lines_of(run_folder: Path) -> list[dict[str, Any]]:
    """Parse every line of a journal with a strict JSON reader that is not ours.

    Only a run that is being recorded may have an incomplete last line, which is ignored.
    """

    def reject(text: str) -> None:
        raise AssertionError(f"not valid JSON: {text}")

    journal = run_folder / "metrics.jsonl"
    data = journal.read_bytes()
    if data and not data.endswith(b"\n"):
        is_running = current_state(RunFolder(run_folder)) is RunState.RUNNING
        data = data[: data.rfind(b"\n") + 1] if is_running else journal.read_bytes()
    text = data.decode()
    assert text == "" or text.endswith("\n")
    assert len(text.splitlines()) == text.count("\n")
    return [json.loads(line, parse_constant=reject) for line in text.splitlines()]


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Parse the complete lines of a file to which another thread or process may be writing; it may not exist yet."""
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def wait_for_lines(run_folder: Path, count: int = 1) -> list[dict[str, Any]]:
    """Wait until a running process has written this many whole lines; the line after them may be incomplete."""

    def enough_lines() -> list[dict[str, Any]]:
        lines = whole_lines(run_folder / "metrics.jsonl")
        return lines if len(lines) >= count else []

    return wait_for(enough_lines, f"{count} lines in {run_folder.name}")


_reserved_sockets: list[socket.socket] = []


def reserve_port() -> int:
    """Return a port on which a server can be started later, and again: no other process gets it meanwhile.

    A socket that is bound but does not listen holds it, until this process ends. Connections are refused.
    """
    held = socket.socket()
    _reserved_sockets.append(held)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set it, too
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the content of all files in a folder; some may be replaced or deleted at any time."""
    contents: dict[Path, bytes] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            contents[path] = path.read_bytes()
    return contents


def pause_checks(run: Any) -> None:
    """Let the writer of a run not look at its files, until ``run.backend._due_at["check"]`` is set to 0."""
    due_at = run.backend._due_at

    def is_paused() -> bool:  # a check that was running has set the time of the next one
        due_at["check"] = math.inf
        run.flush()
        return bool(due_at["check"] == math.inf)

    wait_for(is_paused, "the end of a check")


def remove_folder(folder: Path) -> None:
    """Delete a folder into which another thread or process may be writing."""
    wait_for(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists(), f"the end of {folder}")


def wait_for(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Poll a condition until it is true and return its value."""
    deadline_s = time.monotonic() + HANG_S
    while time.monotonic() < deadline_s:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"{what} did not become true within {HANG_S:g} s")
