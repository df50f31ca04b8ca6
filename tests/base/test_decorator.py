"""A context manager around every call, for all kinds of functions."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest

from tachograph._base.decorator import wrap_calls


@pytest.fixture
def wrapped():
    """Return a function that wraps another, and the log of entries and exits."""
    log = []

    def make_context(args):
        @contextmanager
        def context():
            log.append(("enter", args))
            try:
                yield
            finally:
                log.append(("exit", args))

        return context()

    return lambda function: wrap_calls(function, make_context), log


def test_function_is_wrapped_and_keeps_its_name(wrapped):
    wrap, log = wrapped

    def add(a, b):
        log.append("body")
        return a + b

    assert wrap(add)(1, b=2) == 3
    assert wrap(add).__name__ == "add"
    assert log == [("enter", (1,)), "body", ("exit", (1,))]


def test_context_of_a_coroutine_ends_when_it_is_done(wrapped):
    wrap, log = wrapped

    async def work():
        await asyncio.sleep(0)
        log.append("body")
        return 7

    assert asyncio.run(wrap(work)()) == 7
    assert log == [("enter", ()), "body", ("exit", ())]


def test_context_of_a_generator_ends_when_it_is_done(wrapped):
    wrap, log = wrapped

    def count():
        sent = yield 1
        log.append(sent)
        return 3

    items = wrap(count)()
    assert log == []
    assert next(items) == 1
    with pytest.raises(StopIteration) as stopped:
        items.send("sent")
    assert stopped.value.value == 3
    assert log == [("enter", ()), "sent", ("exit", ())]


def test_async_generator_handles_send_throw_and_close(wrapped):
    wrap, log = wrapped

    async def count():
        try:
            while True:
                try:
                    log.append((yield len(log)))
                except ValueError:
                    log.append("thrown")
        finally:
            log.append("closed")

    async def use():
        items = wrap(count)()
        await items.__anext__()
        await items.asend("sent")
        await items.athrow(ValueError())
        await items.aclose()

    asyncio.run(use())
    assert log == [("enter", ()), "sent", "thrown", "closed", ("exit", ())]
