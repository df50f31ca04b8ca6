"""Threads that use TLS when the process exits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

import certifi
import pytest

from tests.conftest import HANG_S


def exit_codes(source: str, *arguments: str, num_programs: int) -> list[int]:
    """Run a program several times at once, and return how each one ended."""
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    environment = {**os.environ, "SSL_CERT_FILE": certifi.where()}  # with many certificates, which take time to load
    programs = [subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) for _ in range(num_programs)]
    return [(program.communicate(timeout=HANG_S), program.returncode)[1] for program in programs]


LOADING = """
    import sys, threading, time
    from tachograph._base import http, tls

    def load():
        try:
            while True:
                http._tls_context.cache_clear()
                http._tls_context()
        except OSError:
            pass

    if sys.argv[1] == "guarded":
        tls.leave_tls_at_exit()
    for _ in range(4):
        threading.Thread(target=load, daemon=True).start()
    time.sleep(0.5)
"""


@pytest.mark.slow
def test_exit_does_not_crash_threads_that_load_certificates():
    assert exit_codes(LOADING, "guarded", num_programs=6) == [0] * 6


def test_exit_ends_a_handshake_that_is_never_answered():
    source = """
        import sys, threading, time
        from tachograph._base import http, tls

        tls.leave_tls_at_exit()
        post = lambda: http.post(lambda: sys.argv[1], b"", {}, timeout_s=600.0)
        thread = threading.Thread(target=post, daemon=True)
        thread.start()
        while not any(tls._sockets.values()):
            time.sleep(0.01)
        tls._stop_tls()
        assert not tls._sockets
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert exit_codes(source, f"https://127.0.0.1:{listener.getsockname()[1]}", num_programs=1) == [0]


def test_no_section_is_entered_while_the_process_exits(monkeypatch):
    from tachograph._base import tls

    monkeypatch.setattr(tls, "_flags", {"exiting"})
    with pytest.raises(OSError, match="exiting"), tls.tls_section():
        raise AssertionError("entered")
    assert tls._sockets == {}


def test_plain_http_loads_no_certificates():
    source = """
        from tachograph._base import http

        try:
            http.post(lambda: "http://127.0.0.1:9", b"", {}, timeout_s=5.0)
        except http.DeliveryError:
            pass
        assert http._tls_context.cache_info().currsize == 0
    """
    assert exit_codes(source, num_programs=1) == [0]
