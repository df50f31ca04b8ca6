"""The exit of a process: soon, with the same exit code, and without cost if telemetry is off."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, Script
from tests.receiver import Reply
from tests.usage.conftest import PostHogReceiver, spooled

Start = Callable[..., Script]

LONGEST_S = 5.0
"""Limit for the delay of the exit compared to a process without usage telemetry. A process that waits for a request is
later by ten seconds or more."""

ENDING = """
import sys, time
from tachograph.usage import TelemetryManager, UsageConfig
choice, *addresses = sys.argv[1:]
for number, address in enumerate(addresses):
    config = UsageConfig(app=f"greyjacket-{number}", endpoint=address, api_key="phc_x")
    manager = TelemetryManager.configure(config, choice=choice)
    for _ in range(3):
        manager.send_event("train-start", {"num_epochs": 1})
time.sleep(LINGER_S)
manager.send_event("train-end")
print(time.monotonic(), flush=True)
"""


PATIENT = """
from tachograph.usage import _manager, _sender
_manager._EXIT_TIMEOUT_S, _sender._TIMEOUT_S = 240.0, 0.8
"""
"""Wait at the exit for the disk of a busy machine, and for a request as long as usual."""


class Timed:
    """Measures the time between the last statement of a program and its exit."""

    def __init__(self, folder: Path, *arguments: str, linger_s: float = 0.0, before: str = "") -> None:
        source = before + ENDING.replace("LINGER_S", str(linger_s))
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ended_s = 0.0
        self._watch = threading.Thread(target=self._wait)
        self._watch.start()

    def _wait(self) -> None:
        self.process.wait()
        self.ended_s = time.monotonic()

    def latency_s(self) -> float:
        self._watch.join(HANG_S)
        out, err = self.process.communicate(timeout=HANG_S)
        assert (self.process.returncode, err) == (0, "")
        return self.ended_s - float(out)


@pytest.fixture
def silent_port() -> Iterator[str]:
    """An address that accepts connections but never reads from them."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen(16)
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("linger_s", [0.0, 0.8], ids=["at once", "under way"])
def test_no_endpoint_delays_exit(
    make_receiver: Callable[[], PostHogReceiver], refusing: str, silent_port: str, tmp_path: Path, linger_s: float
) -> None:
    """Runs three programs at a time, and repeats those that did not get far enough on a busy machine."""
    replies = {
        "healthy": Reply(), "silent": Reply(is_silent=True), "slow": Reply(delay_s=60.0), "500": Reply(500),
        "drips": Reply(drip_s=0.2), "429": Reply(429, headers={"Retry-After": "30"}),
    }  # fmt: skip
    receivers = {name: make_receiver() for name in replies}
    for name, reply in replies.items():
        receivers[name].reply(reply)
    silent = receivers["silent"].address
    addresses = {name: [receiver.address] for name, receiver in receivers.items()}
    addresses |= {"refused": [refusing], "unread": [silent_port], "three apps": [silent, silent_port, refusing]}
    if linger_s:  # the others are done by then and cause no delay
        addresses = {name: addresses[name] for name in ("healthy", "silent", "drips", "three apps")}
    best_s = dict.fromkeys(["off", *addresses], float("inf"))

    def is_done(name: str) -> bool:
        if best_s[name] > best_s["off"] + LONGEST_S or best_s["off"] == float("inf"):
            return False
        if name == "healthy":  # a later program sends the events that an earlier one could not
            return {event["event"] for event in receivers[name].events()} == {"train-start", "train-end"}
        return name not in receivers or bool(receivers[name].requests)

    for _ in range(5):
        due = [name for name in addresses if not is_done(name)]
        for few in (due[start : start + 3] for start in range(0, len(due), 3)):
            timed = {name: Timed(tmp_path, "on", *addresses[name], linger_s=linger_s) for name in few}
            timed["off"] = Timed(tmp_path, "off", refusing, linger_s=linger_s)
            for name, program in timed.items():
                best_s[name] = min(best_s[name], program.latency_s())
    late = {name: time_s - best_s["off"] for name, time_s in best_s.items()}
    print("later than without, in seconds:", {name: round(time_s, 3) for name, time_s in late.items()})
    assert {name: time_s for name, time_s in late.items() if time_s > LONGEST_S} == {}
    assert [name for name in addresses if not is_done(name)] == [], "never tried, or not sent"


@pytest.mark.parametrize("linger_s", [0.0, 0.8], ids=["at once", "under way"])
def test_unsent_events_are_stored_at_exit(
    receiver: PostHogReceiver, usage_dir: Path, tmp_path: Path, linger_s: float
) -> None:
    receiver.reply(Reply(is_silent=True))
    Timed(tmp_path, "on", receiver.address, linger_s=linger_s, before=PATIENT).latency_s()
    assert [event["event"] for event in spooled(usage_dir)] == ["train-start"] * 3 + ["train-end"]


ENDS = {
    "the end": "pass",
    "sys.exit": "sys.exit(3)",
    "a message": "sys.exit('a reason')",
    "an error": "raise ValueError('of the program')",
    "an error that is reported": "send_errors(lambda: 1 / 0)()",
    "os._exit": "wait_until_stored(); os._exit(5)",
    "SIGKILL": "wait_until_stored(); os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "wait_until_stored(); os.kill(os.getpid(), signal.SIGTERM)",
}


def test_exit_code_and_output_are_unchanged(receiver: PostHogReceiver, script: Start, usage_dir: Path) -> None:
    receiver.reply(Reply(is_silent=True))
    source = """
    import logging, os, pathlib, signal, sys, time
    from tachograph.usage import TelemetryManager, UsageConfig, send_errors
    logging.disable()
    def wait_until_stored():
        files = pathlib.Path(os.environ["TACHO_USAGE_DIR"])
        while manager.enabled and not any(b"train-start" in file.read_bytes() for file in files.rglob("*.jsonl")):
            time.sleep(0.01)
    config = UsageConfig(app="greyjacket", endpoint=sys.argv[1], api_key="phc_x")
    manager = TelemetryManager.configure(config, choice=os.environ["CHOICE"])
    manager.send_event("train-start")
    """
    programs = {}
    for name, last in ENDS.items():
        for choice in ("off", "on"):
            folder = str(usage_dir / name.replace(" ", "_") / choice)
            env = {"TACHO_USAGE_DIR": folder, "CHOICE": choice}
            programs[name, choice] = script(PATIENT + textwrap.dedent(source) + last, receiver.address, env=env)
    ends = {key: program.wait() for key, program in programs.items()}
    codes = {name: ends[name, "on"][0] for name in ENDS}
    assert codes == {name: ends[name, "off"][0] for name in ENDS}
    assert (codes["the end"], codes["sys.exit"], codes["an error"], codes["os._exit"]) == (0, 3, 1, 5)
    assert (codes["SIGKILL"], codes["SIGTERM"]) == (-signal.SIGKILL, -signal.SIGTERM)
    for name in ENDS:
        # The scripts' names differ by a number; the rest of the output is equal.
        outputs = [re.sub(r"script_\d+", "script", ends[name, choice][2]) for choice in ("off", "on")]
        assert outputs[0] == outputs[1], name
        # Even a killed process has stored its events.
        events = [event["event"] for event in spooled(usage_dir / name.replace(" ", "_") / "on")]
        assert events == ["train-start", *(["error"] if name == "an error that is reported" else [])], name
        assert not (usage_dir / name.replace(" ", "_") / "off").exists()


def test_interrupted_program_exits_with_sigint(receiver: PostHogReceiver, script: Start) -> None:
    """Otherwise a shell continues with its next command. Python loses the state if a module is compiled at exit."""
    source = """
    import sys
    from tachograph.usage import TelemetryManager, UsageConfig
    config = UsageConfig(app="greyjacket", endpoint=sys.argv[1], api_key="phc_x")
    TelemetryManager.configure(config, choice=sys.argv[2]).send_event("train-start")
    raise KeyboardInterrupt
    """
    codes = [script(source, receiver.address, choice).wait()[0] for choice in ("off", "local", "on")]
    assert codes == [-signal.SIGINT] * 3


# Cost when telemetry is off -------------------------------------------------------------------------------------------

UNWANTED = {
    "ssl", "http.client", "urllib.request", "uuid", "psutil", "msgspec", "json", "platform", "torch", "transformers",
    "posthog", "email",
}  # fmt: skip

OFF = """
import sys, threading
bare = set(sys.modules)
from tachograph.usage import TelemetryManager, UsageConfig, send_errors

@send_errors
def train(is_bad):
    if is_bad:
        raise ValueError("of the program")
    return 7

config = UsageConfig(app="greyjacket", endpoint="https://127.0.0.1:9", api_key="phc_x", consent="opt-out")
manager = TelemetryManager.configure(config)
assert not manager.enabled
manager.send_event("train-start", {"max_steps": 5})
manager.send_config({"a": 1})
manager.send_model(object())
manager.send_adapter(object())
manager.send_system_info()
manager.send_error(ValueError())
assert train(False) == 7
try:
    train(True)
except ValueError:
    pass
assert threading.active_count() == 1
import atexit
added, num_handlers = set(sys.modules) - bare, atexit._ncallbacks()
import json
print(json.dumps([sorted(added), num_handlers]))
"""


def modules(source: str, env: dict[str, str], script: Start) -> Any:
    return json.loads(script(source, env=env).ok())


def test_opted_out_process_imports_and_starts_nothing(script: Start, usage_dir: Path) -> None:
    for env in ({"DO_NOT_TRACK": "1"}, {"GREYJACKET_DO_NOT_TRACK": "yes"}, {"CI": "true"}):
        added, num_handlers = modules(OFF, env, script)
        assert "tachograph.usage._manager" in added
        read = {"json"} if "CI" in env else set()  # reads the stored choice
        assert UNWANTED & set(added) <= read, env
        late = {"_sender", "_spool", "_event", "_redact", "_properties", "_system", "callback"}
        assert {f"tachograph.usage.{name}" for name in late} & set(added) == set(), env
        assert len(added) < 80, sorted(added)
        bare = script("import atexit; print(atexit._ncallbacks())").ok()
        assert num_handlers <= int(bare) + 1
    assert not usage_dir.exists()


def test_opted_in_process_imports_no_third_party_client(script: Start, receiver: PostHogReceiver) -> None:
    source = OFF.replace("assert not manager.enabled", "assert manager.enabled").replace(
        "threading.active_count() == 1", "1"
    )
    added, _ = modules(source.replace("configure(config)", "configure(config, choice='on')"), {}, script)
    assert {"tachograph.usage._sender", "json"} <= set(added)
    assert {"posthog", "requests", "httpx", "urllib3", "torch", "transformers", "numpy"} & set(added) == set()
