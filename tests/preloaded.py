"""Processes that start with packages already imported: forks of one process that imported them.

Importing torch, transformers and Lightning takes seconds of processor time, far more than most programs of the tests
need for their work. `Preloaded` imports such packages once, in a process that does nothing else. `Preloaded.popen` is
`subprocess.Popen` for Python programs, except that a fork of that process runs the program. It is a process like any
other: it has its own arguments, environment, streams and working directory, imports everything else itself, can be
killed, and ends as the interpreter ends. Tests of importing start a new interpreter instead.

Run as a script, this file is the process that imports and forks.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_COMMANDS = Path(__file__).parents[1] / "src" / "tachograph" / "cli"
MODULES = {
    "tachograph": (
        "tachograph",
        "tachograph._init",
        "tachograph.recorder._start",
        "tachograph.sinks",
        "tachograph.diagnostics",
        "tachograph.spans",
    ),
    "command": ("tachograph.cli._main", "tachograph.cli._run", "tachograph._init", "tachograph.integrations.zero_code"),
    "commands": (
        *(f"tachograph.cli.{path.stem}" for path in sorted(_COMMANDS.glob("_[a-z]*.py"))),
        "rich_click.rich_help_rendering",
    ),
    "dashboard": ("tachograph.cli._main", "tachograph.server"),
    "torch": ("torch._dynamo", "torch.utils.tensorboard"),  # the first optimizer imports `torch._dynamo`
    "frameworks": (  # the workers of pytest are forks of this one
        *("transformers.trainer", "datasets", "peft", "trl", "lightning.pytorch", "keras", "torch.utils.tensorboard"),
        *("playwright.sync_api", "schemathesis", "hypothesis"),
    ),
}
_FOLDER_VARIABLE = "PRELOADED_SOCKETS"
_NUMBER = struct.Struct("=i")
_MAX_REQUEST_BYTES = 200_000


@functools.cache
def preloaded(name: str) -> Preloaded:
    """Return the process that has imported these of `MODULES`; the first call in a run of pytest starts it."""
    return Preloaded(name)


class Preloaded:
    """A process that has imported some of `MODULES` and starts programs that use them; all workers share it."""

    def __init__(self, name: str) -> None:
        address = _sockets_folder() / name
        self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _locked(address):
            try:
                self._requests.connect(str(address))
            except (FileNotFoundError, ConnectionRefusedError):
                _start_process(name, address)
                self._requests.connect(str(address))
        atexit.register(self._requests.close)

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Run a program as ``[python, "program.py", …]``, with ``-m`` or with ``-c``; takes the options of `Popen`."""
        return _ForkedPopen(self._requests, command, **options)

    def run(self, command: list[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a program to its end and return its output."""
        with self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
            out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def share_preloaded() -> None:
    """Let the workers that this process starts share their preloaded processes."""
    os.environ[_FOLDER_VARIABLE] = str(_sockets_folder())


@functools.cache
def _sockets_folder() -> Path:
    if inherited := os.environ.get(_FOLDER_VARIABLE):
        return Path(inherited)
    folder = tempfile.mkdtemp(prefix="preloaded-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextlib.contextmanager
def _locked(address: Path) -> Iterator[None]:
    """Keep other processes from connecting, so that none does while the preloaded process decides to end."""
    with open(f"{address}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_process(name: str, address: Path) -> None:
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-u", __file__, str(listener.fileno()), name],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"},
        )
    process.returncode = 0  # it ends when no worker needs it; a `Popen` would warn that it is still running


class _ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A `Popen` whose process is started and awaited by the preloaded process, which reports to a pipe."""

    def __init__(self, requests: socket.socket, command: list[str], **options: Any) -> None:
        self._requests = requests
        super().__init__(command, **options)

    def _execute_child(self, args: list[str], *values: Any) -> None:  # Popen starts its process with this method
        cwd, env, pipes = values[4], values[5], values[9:15]
        assert not (values[1] or values[3] or values[8] or values[20]), "an option that only a new interpreter can have"
        given = [pipes[0], pipes[3], pipes[5]]
        streams = [place if stream == -1 else stream for place, stream in enumerate(given)]
        request = {
            "arguments": [str(argument) for argument in args[1:]],
            "cwd": os.path.abspath(cwd or "."),
            "environment": dict(os.environ if env is None else env),
        }
        self._reports, theirs = os.pipe()
        socket.send_fds(self._requests, [json.dumps(request).encode()], [*streams, theirs])
        os.close(theirs)
        self._close_pipe_fds(*pipes)
        self.pid = self._read_report()
        self._child_created = True

    def _read_report(self) -> int:
        report = os.read(self._reports, _NUMBER.size)
        assert report, "the preloaded process failed; its error is on stderr"
        return int(_NUMBER.unpack(report)[0])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        os.set_blocking(self._reports, not wait_flags & os.WNOHANG)
        try:
            return self.pid, self._read_report()
        except BlockingIOError:
            return 0, 0

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _handle_exitstatus(self, sts: int, *more: Any) -> None:
        os.close(self._reports)
        super()._handle_exitstatus(sts, *more)


def _serve(listener: socket.socket) -> dict[str, Any]:
    """Fork for each request and return it in the new process. Exit when no process is connected any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no one has to wait for the forks
    address = Path(listener.getsockname())
    connections = [listener.accept()[0]]
    while True:
        ready, _, _ = select.select([listener, *connections], [], [])
        if listener in ready:
            connections.append(listener.accept()[0])
        for connection in [connection for connection in ready if connection is not listener]:
            try:
                message, descriptors, *_ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 4)
            except ConnectionResetError:  # the worker has ended, with an answer unread
                message, descriptors = b"", []
            if message and os.fork() == 0:
                return _become_program(message, descriptors, [listener, *connections])
            for descriptor in descriptors:
                os.close(descriptor)
            if not message:
                connection.close()
                connections.remove(connection)
        if not connections:
            with contextlib.suppress(FileNotFoundError), _locked(address):  # missing after the run of pytest
                if select.select([listener], [], [], 0)[0]:
                    continue
                address.unlink()
            os._exit(0)


def _become_program(message: bytes, descriptors: list[int], sockets: list[socket.socket]) -> dict[str, Any]:
    """Fork once more, return the request in the new process, and report its end in this one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in sockets:
        each.close()
    *streams, reports = descriptors
    pid = os.fork()
    if pid != 0:  # This process waits for the program.
        for descriptor in (0, 1, 2, *streams):
            os.close(descriptor)
        os.write(reports, _NUMBER.pack(pid))
        os.write(reports, _NUMBER.pack(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(reports)
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, place)
        os.close(descriptor)
    return json.loads(message)  # type: ignore[no-any-return]


def _run(arguments: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Do what ``python ARGUMENTS`` does."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-u":
        del arguments[0]
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        _execute(arguments[1], "<string>", {})
        return
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, cwd)
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    path = arguments[0]
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    with open(path, "rb") as file:
        _execute(file.read(), path, {"__file__": path})


def _execute(source: str | bytes, path: str, names: dict[str, str]) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(names, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec"), main.__dict__)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    for _name in MODULES[sys.argv[2]]:
        with contextlib.suppress(ModuleNotFoundError):  # not installed: tests that need it are skipped
            importlib.import_module(_name)
    gc.collect()
    gc.freeze()  # collecting in a fork would copy the pages of these objects
    _run(**_serve(socket.socket(fileno=int(sys.argv[1]))))
