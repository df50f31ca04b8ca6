"""The host program is unaffected, whatever fails inside usage telemetry."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import socket
import textwrap
import threading
import time
import types

import pytest

from tachograph.usage import TelemetryManager, UsageConfig, _sender, send_errors, set_choice
from tachograph.usage._inspection import apply_choice
from tests.conftest import HANG_S, wait_for
from tests.receiver import Reply
from tests.usage.conftest import spooled

HEAD = """
import sys
from tachograph.usage import TelemetryManager, UsageConfig, send_errors
"""


@pytest.fixture
def raising_handler():
    """A log handler that raises on every message."""

    class RaisingHandler(logging.Handler):
        def emit(self, record):
            raise RuntimeError("no warnings allowed")

    handler = RaisingHandler()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.mark.expects_faults
def test_failing_log_handler_does_not_reach_program(configure, raising_handler, usage_dir):
    manager = configure(choice="local")

    @send_errors
    def train():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train()
    manager.send_event("no-such-event")
    manager.shutdown(HANG_S)
    assert [event["event"] for event in spooled(usage_dir)] == ["error"]


@pytest.mark.parametrize("mode", ["off", "local"])
def test_failure_during_interpreter_shutdown_is_unchanged(script, mode):
    out = script(
        HEAD
        + textwrap.dedent(
            """
            TelemetryManager.configure(UsageConfig(app="greyjacket"), choice=sys.argv[1])
            class Resource:
                @send_errors
                def close(self):
                    raise ValueError("mine")
                def __del__(self):
                    try:
                        self.close()
                    except Exception as error:
                        sys.__stdout__.write(f"{type(error).__name__}: {error}")
                        sys.__stdout__.flush()
            resource = Resource()
            """
        ),
        mode,
    ).ok()
    assert out == "ValueError: mine"


def test_first_event_at_exit_is_recorded(script, usage_dir):
    script(
        HEAD
        + textwrap.dedent(
            """
            import atexit
            from tachograph.usage import _manager
            _manager._EXIT_TIMEOUT_S = 240.0  # for the disk of a busy machine
            manager = TelemetryManager.configure(UsageConfig(app="greyjacket"))
            atexit.register(lambda: manager.send_event("train-end", {"step": 7}))
            """
        )
    ).ok()
    assert [event["event"] for event in spooled(usage_dir)] == ["train-end"]


def test_hanging_disk_delays_exit_once_for_all_apps(script):
    out = script(
        HEAD
        + textwrap.dedent(
            """
            import atexit, os, threading, time
            write = os.write
            hanging = []
            def hang(file, data):
                if threading.current_thread().name == "tachograph-usage":
                    hanging.append(file)
                    time.sleep(3600)
                return write(file, data)
            os.write = hang
            began = []
            atexit.register(lambda: print(time.monotonic() - began[0], flush=True))
            for number in range(60):
                TelemetryManager.configure(UsageConfig(app=f"app{number}")).send_event("train-start")
            while len(hanging) < 60:
                time.sleep(0.01)
            atexit.register(lambda: began.append(time.monotonic()))
            """
        )
    ).ok()
    assert float(out) < 30  # less than a second; sixty times that if each app had its own deadline


def test_copy_of_manager_is_the_manager(configure):
    manager = configure(choice="local", config_map={"lora_rank": lambda config: config["r"]})
    assert copy.deepcopy(manager) is manager
    data = pickle.dumps(manager)
    assert pickle.loads(data) is manager
    TelemetryManager.reset()
    elsewhere = pickle.loads(data)
    elsewhere.send_event("train-start")
    assert (elsewhere.enabled, elsewhere.config.app) == (False, "greyjacket")


def test_abandoned_async_generator_is_closed(configure, usage_dir):
    manager = configure(choice="local")
    ends, complaints = [], []

    @send_errors
    async def items():
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0.01)
            ends.append("closed")

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        left = items()
        assert await left.__anext__() == 1
        kept.append(left)

    kept = []
    asyncio.run(main())
    assert (ends, complaints) == (["closed"], [])
    manager.shutdown(HANG_S)
    assert spooled(usage_dir) == []


def test_generator_based_coroutine_can_be_awaited(configure):
    configure(choice="local")

    @send_errors
    @types.coroutine
    def old():
        yield from asyncio.sleep(0).__await__()
        return 3

    async def main():
        return await old()

    assert asyncio.run(main()) == 3


def test_nothing_is_sent_after_off_despite_slow_connection(configure, receiver, monkeypatch):
    """Resolving the endpoint's name is slow; meanwhile the user opts out."""
    resolve, asked, opted_out = socket.getaddrinfo, [], threading.Event()

    def slowly(*arguments, **named):
        asked.append(arguments)
        opted_out.wait(HANG_S)
        return resolve(*arguments, **named)

    apply_choice("on", "greyjacket")
    manager = configure(choice=None, endpoint=receiver.address.replace("127.0.0.1", "localhost"))
    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    manager.send_event("train-start", {"max_steps": 3})
    wait_for(lambda: asked)
    assert apply_choice("off", "greyjacket") == 1
    opted_out.set()
    manager.shutdown(HANG_S)
    assert receiver.requests == []


def test_no_connection_is_opened_after_consent_is_withdrawn(configure, receiver, monkeypatch):
    """The stored choice alone is enough; the file need not be renamed."""
    monkeypatch.setattr(_sender, "_FIRST_RETRY_S", 0.1)
    receiver.reply(Reply(429, delay_s=HANG_S))
    set_choice("on", "greyjacket")
    configure(choice=None).send_event("train-start", {"max_steps": 3})
    receiver.wait(1)
    set_choice("off", "greyjacket")
    connected = []
    monkeypatch.setattr(receiver, "process_request", lambda request, _address: connected.append(request.close()))
    receiver.released.set()
    time.sleep(1.0)  # ten times the wait before the next try
    assert (len(receiver.requests), connected) == (1, [])


@pytest.mark.expects_faults
def test_send_error_rejects_non_exception(configure, caplog):
    configure(choice="local").send_error("boom")
    assert "ConfigError: send_error expects an exception, not str" in caplog.text


def test_unconfigured_app_is_reported_once(caplog):
    for _ in range(2):
        manager = TelemetryManager.get_instance("greyjacket")
        manager.send_event("train-start")
        assert not manager.enabled
    assert caplog.text.count("usage telemetry of greyjacket is not configured") == 1
    TelemetryManager.configure(UsageConfig(app="greyjacket"))
    assert TelemetryManager.get_instance("greyjacket").enabled
