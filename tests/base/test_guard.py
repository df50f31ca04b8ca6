"""The guard: faults are suppressed and counted, or raised in strict mode."""

from __future__ import annotations

import logging

import pytest

import tachograph
from tachograph._base.guard import Guard, warn


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_fault_is_suppressed_counted_and_logged_once(caplog):
    guard = Guard()
    with caplog.at_level(logging.WARNING, logger="tachograph"):
        for _ in range(3):
            with guard("writing"):
                raise OSError("full")
    assert (guard.num_faults, guard.faults) == (3, [("writing", "OSError: full")] * 3)
    assert caplog.text.count("while writing: OSError: full") == 1


def test_strict_guard_raises_the_fault():
    guard = Guard()
    guard.strict = True
    with pytest.raises(OSError, match="full"), guard("writing"):
        raise OSError("full")
    assert guard.num_faults == 1


def test_guard_lets_exits_and_interrupts_propagate():
    guard = Guard()
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error), guard("writing"):
            raise error
    assert guard.num_faults == 0


def test_callback_gets_the_fault_and_may_raise():
    guard, reported = Guard(), []

    def on_fault(place, fault):
        reported.append((place, str(fault)))
        raise RuntimeError("broken callback")

    with guard("writing", on_fault):
        raise OSError("full")
    assert reported == [("writing", "full")]
    assert guard.num_faults == 1


def test_exception_without_text_is_counted():
    guard = Guard()
    with guard("writing"):
        raise Unprintable
    assert (guard.num_faults, guard.faults) == (1, [])


def test_number_of_kept_faults_is_bounded():
    guard = Guard()
    for _ in range(500):
        guard.report("writing", OSError("x" * 10_000))
    assert guard.num_faults == 500
    assert len(guard.faults) == 100
    assert max(len(text) for _, text in guard.faults) <= 1_000


def test_text_of_others_cannot_control_the_terminal(caplog, capsys, logs):
    hostile = "\x1b[2J\x1b]52;c;ZXZpbA==\x07 \u202e\u200b\x9b31m %d"
    guard = Guard()
    with guard(f"reading {hostile}"):
        raise OSError(hostile)
    warn(f"cannot read {hostile}")
    warn("cannot read %s", hostile)
    with tachograph.init("x", log_dir=str(logs), git=False) as run:
        run.print_line(hostile)
    lines = (caplog.text + capsys.readouterr().out).splitlines()
    assert sum("x1b[2J" in line for line in lines) == 4
    assert all(line.isprintable() for line in lines)
