"""TRL: samples of what a trainer generates, compares or learns from, as the trainer has them.

`TachographCallback` of `tachograph.integrations.transformers` uses it by itself. A method of one trainer is wrapped,
not of its class, and put back at the end; between samples that costs one comparison. Training stays as it is, bit by
bit: no random number is drawn, no model is called, nothing is kept that was not detached.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tachograph._base.guard import guard
from tachograph.integrations.trl._samples import READERS, Ear, Reader
from tachograph.recorder import Completions, Run

__all__ = ["CompletionCapture", "capture_completions"]

_LOOKS = 4
"""How often samples are taken between two records, beside the first step of all."""
_LONGEST_REASON = 500


def capture_completions(trainer: Any, run: Run, *, every: int = 100, max_buffer: int = 128) -> CompletionCapture | None:
    """Record samples from a TRL trainer until `close` is called.

    A trainer of TRL that is not known, or works differently from how it is known, is told of once, in the event
    `completions_unavailable`.

    Args:
        trainer: the trainer.
        run: where to record.
        every: steps between two records.
        max_buffer: samples in a record, at most.

    Returns:
        None if the trainer is not of TRL, or this process records no completions, as ranks other than the first.

    Raises:
        ConfigError: if a number is below 1.
    """
    completions = Completions(run, every=every, max_buffer=max_buffer)
    is_of_trl = any(kind.__module__.partition(".")[0] == "trl" for kind in type(trainer).__mro__)
    if not is_of_trl or not completions.is_recording:
        return None
    capture = CompletionCapture(trainer, completions)
    capture.attach()
    return capture


class CompletionCapture:
    """Looks over the shoulder of one TRL trainer."""

    def __init__(self, trainer: Any, completions: Completions) -> None:
        self._trainer = trainer
        self._completions = completions
        self._stride = max(1, completions.every // _LOOKS)
        self._most = max(1, completions.max_buffer // (_LOOKS + 1))
        self._reader: Reader | None = None
        self._detach: Callable[[], None] | None = None
        self._step: int | None = None
        self._num_taken = 0

    def attach(self) -> None:
        """Begin to take samples."""
        names = [kind.__name__ for kind in type(self._trainer).__mro__]
        self._reader = next((READERS[name] for name in names if name in READERS), None)
        if self._reader is None:
            self._give_up(f"no samples are known to be had from a {names[0]}")
        elif not callable(getattr(self._trainer, self._reader.method, None)):
            self._give_up(f"this {names[0]} has no {self._reader.method}()")
        else:
            wrapped = self._wrapped(getattr(self._trainer, self._reader.method), self._reader)
            self._detach = _replace(self._trainer, self._reader.method, wrapped)

    def on_step_end(self, step: int) -> None:
        """Record what was taken, if it is time."""
        self._completions.maybe_flush(step)

    def on_log(self, step: int) -> None:
        """Record what was taken, if it is time."""
        self._completions.maybe_flush(step)

    def close(self) -> None:
        """Put the trainer back as it was, and record what is left."""
        self._stop()
        self._completions.flush()

    def _wrapped(self, method: Callable[..., Any], reader: Reader) -> Callable[..., Any]:
        @functools.wraps(method)
        def listening(*arguments: Any, **named: Any) -> Any:
            most = self._room()
            if not most:
                return method(*arguments, **named)
            heard: list[Any] = []
            with contextlib.ExitStack() as stack:
                self._listen(reader, arguments, heard, stack)
                result = method(*arguments, **named)
            self._take(reader, arguments, named, heard, most)
            return result

        return listening

    def _room(self) -> int:
        """Return how many samples may be taken of what is being computed now; nearly always none."""
        with guard("capturing completions"):
            if self._detach is None or not self._trainer.model.training:
                return 0
            step, last = self._trainer.state.global_step + 1, self._step
            if step != last:
                if last is not None and step > last and step // self._stride == last // self._stride:
                    return 0
                self._step, self._num_taken = step, 0
            return max(0, self._most - self._num_taken)
        return 0

    def _listen(
        self, reader: Reader, arguments: tuple[Any, ...], heard: list[Any], stack: contextlib.ExitStack
    ) -> None:
        with guard("capturing completions"):
            try:
                for ear in reader.ears(self._trainer, arguments):
                    stack.enter_context(_listening(ear, heard))
            except Exception as error:  # noqa: BLE001 - a trainer may be anything that was made of one of TRL's
                self._give_up(f"{type(error).__name__}: {error}")

    def _take(
        self, reader: Reader, arguments: tuple[Any, ...], named: dict[str, Any], heard: list[Any], most: int
    ) -> None:
        if self._detach is None:
            return
        with guard("capturing completions"):
            try:
                batch = arguments[1] if len(arguments) > 1 else named.get("inputs")
                rows = reader.read(self._trainer, batch, heard, most)
            except Exception as error:  # noqa: BLE001 - as above
                self._give_up(f"{type(error).__name__}: {error}")
                return
            self._num_taken += len(rows)
            for row in rows:
                self._completions.add(self._step or 0, **row)

    def _give_up(self, reason: str) -> None:
        self._stop()
        kind = type(self._trainer).__name__
        self._completions.run.event("completions_unavailable", trainer=kind, reason=reason[:_LONGEST_REASON])

    def _stop(self) -> None:
        detach, self._detach = self._detach, None
        if detach is not None:
            with guard("putting a trainer back as it was"):
                detach()


def _replace(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Give an object an attribute of its own; return how to undo it."""
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)

    def undo() -> None:
        if vars(owner).get(name) is not value:  # somebody else has put something around ours: that stays
            return
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

    return undo


@contextlib.contextmanager
def _listening(ear: Ear, heard: list[Any]) -> Iterator[None]:
    """Hear the calls of a method while the block runs."""
    method = getattr(ear.owner, ear.name)
    is_open = True

    @functools.wraps(method)
    def audible(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        if is_open:
            with guard("capturing completions"):
                heard.append(ear.keep(arguments, named, result))
        return result

    undo = _replace(ear.owner, ear.name, audible)
    try:
        yield
    finally:
        is_open = False
        undo()
