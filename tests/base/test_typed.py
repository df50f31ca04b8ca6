"""Tests of decoding into typed values."""

from __future__ import annotations

import os
import threading

import msgspec
import pytest

from tachograph._base import typed
from tachograph._base.typed import convert, decode_json, decode_msgpack
from tests.conftest import HANG_S


class Inner(msgspec.Struct):
    count: int


class Outer(msgspec.Struct):
    name: str
    inner: Inner | None = None


def test_values_are_decoded_into_the_type():
    wanted = Outer("a", Inner(2))
    assert decode_json('{"name": "a", "inner": {"count": 2}}', Outer) == wanted
    assert decode_msgpack(msgspec.msgpack.encode(wanted), Outer) == wanted
    assert convert({"name": "a", "inner": {"count": 2}}, Outer) == wanted
    assert convert([{"count": "2"}], list[Inner], strict=False) == [Inner(2)]


@pytest.mark.parametrize("call", [lambda: decode_json(b"{}", Outer), lambda: convert({"name": 1}, Outer)])
def test_wrong_value_is_rejected(call):
    with pytest.raises(msgspec.ValidationError):
        call()


@pytest.mark.parametrize("function", ["decode_json", "decode_msgpack", "convert"])
def test_threads_may_use_a_new_type_at_once(script, function):
    # With msgspec alone, this program dies of a segmentation fault within a few rounds.
    source = """
        import sys, threading
        import msgspec
        from tachograph._base import typed

        values = {"inner": {f"field_{place}": 1.0 for place in range(30)}}
        data = {
            "decode_json": msgspec.json.encode(values), "decode_msgpack": msgspec.msgpack.encode(values),
            "convert": values,
        }[sys.argv[1]]
        fields = [(f"field_{place}", float | None, None) for place in range(30)]
        sys.setswitchinterval(1e-6)

        def decode(kind):
            barrier.wait()
            seen.append(getattr(typed, sys.argv[1])(data, kind))

        for _ in range(40):
            inner = msgspec.defstruct("Inner", fields)
            outer = msgspec.defstruct("Outer", [("inner", inner)])
            barrier, seen = threading.Barrier(4), []
            threads = [threading.Thread(target=decode, args=(outer,)) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert [value.inner.field_29 for value in seen] == [1.0] * 4
        print("done")
        """
    assert script(source, function).wait() == (0, "done\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_does_not_wait_for_another_thread():
    kind = msgspec.defstruct("Fresh", [("value", int)])

    held, release = threading.Event(), threading.Event()

    def hold():
        with typed._locks[0]:
            held.set()
            release.wait(HANG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        os._exit(decode_json(b'{"value": 7}', kind).value)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_signal_handler_may_wait_for_a_thread_that_decodes(script):
    """At every line of the first use of a class."""
    script(
        """
        import signal, sys, threading
        import msgspec
        from tachograph._base import typed

        num_lines = 0

        def decode_new_class():
            kind = msgspec.defstruct("Other", [("value", int)])
            assert typed.decode_json(b'{"value": 2}', kind).value == 2

        def handle(number, frame):
            decode_new_class()
            thread = threading.Thread(target=decode_new_class)
            thread.start()
            thread.join()

        def trace(frame, event, argument):
            global num_lines
            if event == "line" and frame.f_code.co_filename == typed.__file__:
                num_lines += 1
                if num_lines == line_number:
                    signal.raise_signal(signal.SIGUSR1)
            return trace

        signal.signal(signal.SIGUSR1, handle)
        for line_number in range(30):
            kind, num_lines = msgspec.defstruct("Kind", [("value", int)]), 0
            sys.settrace(trace)
            assert typed.decode_json(b'{"value": 1}', kind).value == 1
            sys.settrace(None)
        """,
        preload="tachograph",
    ).ok()
