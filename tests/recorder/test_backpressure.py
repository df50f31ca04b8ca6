"""Backpressure: the buffer is bounded in records, bytes and time, and no caller waits for a disk."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from tachograph.recorder._backpressure import MAX_AGE_S, MAX_BYTES, Backpressure
from tachograph.recorder._buffer_items import LargeItem, PendingRecord, size_bytes
from tachograph.testing import FakeClock
from tests.conftest import HANG_S, wait_for

NUM_ITEMS = 2_000


@pytest.fixture(autouse=True)
def _patient_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not take a machine that is busy for a writer that hangs."""
    monkeypatch.setattr("tachograph.recorder._backpressure._HUNG_S", HANG_S)


class Subject:
    """A buffer with a backlog, and a writer that works only when the test says so."""

    def __init__(self, num_items: int = NUM_ITEMS, buffer_size: int = 16_384) -> None:
        self.clock = FakeClock()
        self.buffer: deque[object] = deque()
        self.woken = threading.Event()
        self.pressure = Backpressure(self.buffer, buffer_size, self.clock.steady_s, self.woken.set)
        for step in range(num_items):
            self.buffer.append((self.clock.steady_s(), step, {"a": 1.0}))

    def add(self, *, num_bytes: int = 0) -> list[bool]:
        """Add a step in a thread; the list gets the result once the call has returned."""
        done: list[bool] = []
        item = (self.clock.steady_s(), 0, {"a": 1.0})
        threading.Thread(target=lambda: done.append(self.pressure.add(item, num_bytes=num_bytes)), daemon=True).start()
        return done

    def is_held(self, done: list[bool]) -> bool:
        """Return whether the call waits although the writer keeps finishing work."""
        assert self.woken.wait(HANG_S)
        for _ in range(50):
            self.pressure.note_progress()
            if threading.Event().wait(0.005) or done:
                return False
        return True


def test_caller_waits_while_the_oldest_item_is_too_old():
    subject = Subject()
    assert subject.pressure.add((subject.clock.steady_s(), 0, {}))  # young items hold nothing up
    subject.clock.advance(MAX_AGE_S + 0.1)
    assert subject.pressure.is_late
    done = subject.add()
    assert subject.is_held(done)
    # The writer takes a chunk: what it has not written yet is as old as before.
    subject.pressure.start_chunk(subject.buffer[0])
    num_old = len(subject.buffer)
    subject.buffer.extend((subject.clock.steady_s(), step, {"a": 1.0}) for step in range(NUM_ITEMS))
    for _ in range(num_old):  # at no time is it nearly empty, which would release the caller
        subject.buffer.popleft()
    assert not done
    assert subject.is_held(done)
    subject.pressure.finish_chunk(0, 0)
    assert subject.is_held(done)
    subject.pressure.note_written()
    assert wait_for(lambda: done) == [True]


def test_age_is_known_for_every_kind_of_item():
    subject = Subject(num_items=0)
    assert subject.pressure.age_s == 0
    start_s = subject.clock.steady_s()
    subject.clock.advance(2)
    for item in ((start_s, 0, {}), PendingRecord(start_s, "event", {}), LargeItem((start_s, 0, {}), 10_000)):
        subject.buffer.appendleft(item)
        assert subject.pressure.age_s == pytest.approx(2)


def test_small_backlog_never_waits_because_of_its_age():
    subject = Subject(num_items=100)
    subject.clock.advance(60)
    assert subject.pressure.add((subject.clock.steady_s(), 0, {}))
    assert not subject.woken.is_set()


def test_age_is_ignored_while_the_disk_is_slow():
    subject = Subject()
    subject.clock.advance(MAX_AGE_S + 0.1)
    with subject.pressure.in_files():
        done = subject.add()
        assert wait_for(lambda: done) == [True]
    assert len(subject.buffer) > NUM_ITEMS


def test_full_buffer_drops_when_the_disk_hangs():
    subject = Subject(num_items=5_000, buffer_size=5_000)
    with subject.pressure.in_files():
        done = subject.add()
        assert wait_for(lambda: done) == [False]
        assert subject.pressure.add(PendingRecord(0.0, "event", {})), "other records have a reserve"
        assert subject.pressure.add(PendingRecord(0.0, "end", {}), force=True)


def test_bytes_of_large_items_are_bounded():
    subject = Subject(num_items=0)
    num_bytes = MAX_BYTES // 8
    with subject.pressure.in_files():
        results = []
        for _ in range(10):
            done = subject.add(num_bytes=num_bytes)
            results += wait_for(done.copy)
    assert results == [True] * 8 + [False] * 2
    assert subject.pressure.held_bytes == MAX_BYTES
    for _ in range(8):
        item = subject.buffer.popleft()
        assert isinstance(item, LargeItem)
        assert type(subject.pressure.take(item)) is tuple
    assert subject.pressure.held_bytes == 0


def test_slow_pace_lowers_the_backlog_that_is_accepted():
    subject = Subject()
    assert not subject.pressure.is_late
    subject.pressure.start_chunk(subject.buffer[0])
    threading.Event().wait(0.2)
    subject.pressure.finish_chunk(100, 0)  # at least 2 ms per item, so 4 s for all
    assert subject.pressure.is_late
    assert subject.pressure.age_s < MAX_AGE_S


def test_size_counts_nested_values_and_texts():
    assert size_bytes({"a": 1.0}) < 500
    assert 10_000 < size_bytes({"rows": [{"text": "x" * 10_000}]}) < 11_000
    assert size_bytes([1.0] * 1_000) > 30_000
