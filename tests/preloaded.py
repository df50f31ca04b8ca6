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
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import types
from typing import Any

MODULES = {
    "tachograph": (
        "tachograph",
        "tachograph._init",
        "tachograph.recorder._start",
        "tachograph.sinks",
        "tachograph.diagnostics",
        "tachograph.spans",
    ),
    "command": ("tachograph.cli._main",),
    "dashboard": ("tachograph.cli._main", "tachograph.server"),
    "torch": ("torch._dynamo", "torch.utils.tensorboard"),  # the first optimizer imports `torch._dynamo`
    "transformers": ("transformers.trainer", "datasets", "peft", "trl"),
    "lightning": ("lightning.pytorch",),
    "frameworks": ("transformers.trainer", "datasets", "trl", "lightning.pytorch", "keras"),
}
_NUMBER = struct.Struct("=i")
_MAX_REQUEST_BYTES = 200_000


@functools.cache
def preloaded(name: str) -> Preloaded:
    """Return the process that has imported these of `MODULES`, started at the first call."""
    return Preloaded(*MODULES[name])


class Preloaded:
    """A process that has imported `modules`, and starts programs that use them."""

    def __init__(self, *modules: str) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", __file__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "KERAS_BACKEND": "torch", "HF_HUB_OFFLINE": "1"},
            )
        atexit.register(self.close)

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Run a program as ``[python, "program.py", …]``, with ``-m`` or with ``-c``; takes the options of `Popen`."""
        return _ForkedPopen(self._requests, command, **options)

    def run(self, command: list[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a program to its end and return its output."""
        with self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
            out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


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


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request and return it in the new process. Exit when the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no one has to wait for the forks
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
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
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()  # collecting in a fork would copy the pages of these objects
    _run(**_serve(socket.socket(fileno=int(sys.argv[1]))))
