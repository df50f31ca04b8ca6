"""Another user of this machine: programs that run as `nobody`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

__all__ = ["connect_as_nobody", "nobody"]

_SWITCH_USER = """
import encodings.idna, os, socket, sys, threading  # nobody may not be able to import anything later

def become_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""
_FORWARD = """
def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass

listener = socket.create_server(("127.0.0.1", 0))
become_nobody()
print(listener.getsockname()[1], flush=True)
while True:
    near = listener.accept()[0]
    far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for ends in ((near, far), (far, near)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
"""


@contextlib.contextmanager
def nobody(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that switches to the user `nobody` with `become_nobody()`."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    command = [sys.executable, "-c", _SWITCH_USER + program, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def connect_as_nobody(port: int) -> Iterator[int]:
    """Yield a port whose connections reach the given port as connections of another user."""
    with nobody(_FORWARD, str(port)) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
