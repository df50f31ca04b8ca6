"""Controls: values that a reader may change while the run is active, within bounds, between steps.

The writer thread polls `control.json` and validates the requests; the training thread applies them at its next `log`,
so a value never changes in the middle of a step. A control changes at most once per `gap_s`: a later request waits, and
the newest one wins. Every request is answered in the journal: an ``event`` named ``control_ack`` with the status
*pending*, *applied*, *clamped*, *unchanged*, *superseded* or *rejected*, and a ``control_change`` for each change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Generic, NamedTuple, TypeVar

from tachograph.exceptions import ControlError, did_you_mean
from tachograph.journal import (
    LOG_EVERY_MAX,
    LOG_EVERY_MIN,
    NOT_CONTROLS,
    PROFILE_STEPS_MAX,
    REQUESTS,
    ControlFile,
    ControlFileError,
    Request,
    is_number_of_steps,
)
from tachograph.records import is_frozen

__all__ = ["Control", "ControlPanel"]

Number = TypeVar("Number", int, float, bool)


class Control(Generic[Number]):
    """A value that a reader may change. It changes only inside a `log` call of the training thread.

    Example:
        >>> lr_scale = run.control("lr_scale", 1.0, min=0.1, max=10)
        >>> lr = base_lr * lr_scale.value
    """

    __slots__ = ("initial", "maximum", "minimum", "name", "value")

    def __init__(self, name: str, value: Number, minimum: Number | None, maximum: Number | None) -> None:
        self.name = name
        self.value: Number = value
        self.initial: Number = value
        self.minimum: Number | None = minimum
        self.maximum: Number | None = maximum

    def __repr__(self) -> str:
        return f"Control({self.name!r}, {self.value!r}, min={self.minimum!r}, max={self.maximum!r})"

    def __float__(self) -> float:
        return float(self.value)


class _Change(NamedTuple):
    request: Request
    value: Any
    clamped: bool


class ControlPanel:
    """The controls of a run and the requests for them."""

    def __init__(
        self,
        *,
        gap_s: float,
        steady_s: Callable[[], float],
        add_record: Callable[[str, dict[str, Any]], None],
        divert_training: Callable[[], None],
    ) -> None:
        self._gap_s = gap_s
        self._steady_s = steady_s
        self._add_record = add_record
        self._divert_training = divert_training
        self._controls: dict[str, Control[Any]] = {}
        self._delayed_changes: dict[str, _Change] = {}
        # Filled by the writer thread, emptied by the training thread; single dict operations are atomic.
        self._ready_changes: dict[str, _Change] = {}
        self._changed_at: dict[str, float] = {}
        self._reported_problems: set[str] = set()
        self.stop: Request | None = None
        self.checkpoint: Request | None = None
        self.profile: Request | None = None
        self.capture: Callable[[Callable[[str | None], object]], str] | None = None
        """Begins a dump, given what to call with its path; returns why there will be none. None without a black box."""
        self.num_tracers = 0
        """How many tracers can record `profile_steps`: they know where a step ends."""
        self._acknowledged_stops: set[str] = set()

    @property
    def has_ready(self) -> bool:
        """Whether a change waits for the training thread to apply it."""
        return bool(self._ready_changes)

    def register(self, name: str, value: Number, minimum: Number | None, maximum: Number | None) -> Control[Number]:
        """Add a control.

        Raises:
            ControlError: if the name is taken, or the value is not a number or outside its bounds.
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise ControlError(f"control name {name!r} is not an identifier such as 'lr_scale'")
        if name in self._controls or name in REQUESTS or name in NOT_CONTROLS:
            raise ControlError(f"control {name!r} is already registered; choose another name")
        for bound in (value, minimum, maximum):
            if bound is not None and (not isinstance(bound, (bool, int, float)) or not math.isfinite(bound)):
                raise ControlError(f"control {name!r}: {bound!r} is not a finite number")
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            raise ControlError(f"control {name!r}: {value!r} is not between min={minimum!r} and max={maximum!r}")
        control = self._controls[name] = Control(name, value, minimum, maximum)
        fields = {"name": "control_registered", "control": name, "value": value, "min": minimum, "max": maximum}
        self._add_record("event", {key: item for key, item in fields.items() if item is not None})
        return control

    def add_log_every(self, value: int) -> None:
        """Add the built-in control. Code may start below its minimum; a reader may only return to that."""
        self._controls["log_every"] = Control("log_every", value, LOG_EVERY_MIN, LOG_EVERY_MAX)

    @property
    def log_every(self) -> int:
        """Steps per step record."""
        return int(self._controls["log_every"].value)

    def poll(self, file: ControlFile) -> None:
        """Read new requests and release the changes that are due. Called by the writer thread."""
        try:
            requests = file.poll()
        except ControlFileError as fault:
            requests = []
            if str(fault) not in self._reported_problems:
                self._reported_problems.add(str(fault))
                self._add_record(
                    "telemetry_error",
                    {"kind": "control_file", "field": "control.json", "reason": f"control.json {fault}; ignored"},
                )
        for request in requests:
            self._handle(request)
        self._release()

    def apply(self) -> None:
        """Apply the released changes. Called by the training thread, between steps."""
        for name in list(self._ready_changes):
            change = self._ready_changes.pop(name, None)
            if change is None:
                continue
            control = self._controls[name]
            old, control.value = control.value, change.value
            self._changed_at[name] = self._steady_s()
            self._add_record(
                "control_change", {"name": name, "old": old, "new": change.value, "source": change.request.source}
            )
            self._acknowledge(change.request, "clamped" if change.clamped else "applied", value=change.value)

    def accept_stop(self) -> bool:
        """Return whether a `stop` is requested; the first call acknowledges it, because the loop now knows."""
        request = self.stop
        if request is None:
            return False
        if request.id not in self._acknowledged_stops:
            self._acknowledged_stops.add(request.id)
            self._acknowledge(request, "applied", value=True)
        return True

    def accept_checkpoint(self) -> bool:
        """Return True once for each `checkpoint_now`."""
        request, self.checkpoint = self.checkpoint, None
        if request is None:
            return False
        self._acknowledge(request, "applied", value=True)
        return True

    def accept_profile(self) -> Request | None:
        """Return a `profile_steps` request once; the caller answers it when the trace is stored."""
        request, self.profile = self.profile, None
        return request

    def reject_pending(self, reason: str) -> None:
        """Reject the requests that wait for the loop."""
        for request in (self.stop, self.checkpoint):
            if request is not None:
                self._reject(request, reason)
        self.stop = self.checkpoint = None

    def answer(self, request: Request, status: str, **details: Any) -> None:
        """Answer a request that was accepted."""
        if status == "rejected":
            self._reject(request, str(details.get("reason")))
        else:
            self._acknowledge(request, status, **details)

    def _handle(self, request: Request) -> None:
        if request.name in REQUESTS:
            self._handle_action(request)
            return
        control = self._controls.get(request.name)
        if control is None:
            names = [*self._controls, *REQUESTS]
            self._reject(request, f"unknown control {request.name!r}{did_you_mean(request.name, names)}")
            return
        value = _coerce(request.value, control.value)
        if value is None:
            self._reject(request, f"expected {type(control.value).__name__}, got {request.value!r:.80}")
            return
        requested_value = value
        # The value that the code started with is always allowed: `log_every` may start below its minimum.
        if control.minimum is not None and value != control.initial:
            value = max(value, control.minimum)
        if control.maximum is not None and value != control.initial:
            value = min(value, control.maximum)
        for queue in (self._delayed_changes, self._ready_changes):
            older = queue.pop(request.name, None)
            if older is not None:
                self._supersede(older.request)
        if control.value in (value, requested_value):
            self._acknowledge(
                request, "unchanged" if control.value == requested_value else "clamped", value=control.value
            )
            return
        self._delayed_changes[request.name] = _Change(request, value, clamped=value != requested_value)
        self._acknowledge(request, "pending", value=value, wait_s=round(self._wait_s(request.name), 1))

    def _handle_action(self, request: Request) -> None:
        if request.name == "profile_steps":
            self._handle_profile(request)
        elif not isinstance(request.value, bool):
            self._reject(request, f"expected true or false, got {request.value!r:.80}")
        elif request.name == "dump_now":
            self._handle_dump(request)
        else:
            older = self.stop if request.name == "stop" else self.checkpoint
            if older is not None and older.id not in self._acknowledged_stops:
                self._supersede(older)
            setattr(self, "stop" if request.name == "stop" else "checkpoint", request if request.value else None)
            self._acknowledge(request, "pending" if request.value else "applied", value=request.value)

    def _handle_profile(self, request: Request) -> None:
        if not is_number_of_steps(request.value):
            self._reject(request, f"expected an integer from 1 to {PROFILE_STEPS_MAX}, got {request.value!r:.80}")
        elif not self.num_tracers:
            hint = "use an integration, `tacho run` or `tachograph.watch`"
            self._reject(request, f"the steps of this run cannot be profiled; {hint}")
        else:
            older, self.profile = self.profile, request
            if older is not None:
                self._supersede(older)
            self._acknowledge(request, "pending", value=request.value)

    def _handle_dump(self, request: Request) -> None:
        def on_written(path: str | None) -> None:
            if path is None:
                self._reject(request, "the dump could not be written")
            else:
                self._acknowledge(request, "applied", value=True, path="/".join(PurePath(path).parts[-2:]))

        if not request.value:
            self._acknowledge(request, "applied", value=False)
        elif self.capture is None:
            self._reject(request, "the black box of this run is off (black_box)")
        else:
            self._acknowledge(request, "pending", value=True)
            problem = self.capture(on_written)
            if problem:
                self._reject(request, problem)

    def _release(self) -> None:
        for name in list(self._delayed_changes):
            if self._wait_s(name) <= 0:
                self._ready_changes[name] = self._delayed_changes.pop(name)
        if self._ready_changes:
            self._divert_training()

    def _wait_s(self, name: str) -> float:
        changed_at = self._changed_at.get(name)
        return 0.0 if changed_at is None else max(0.0, changed_at + self._gap_s - self._steady_s())

    def _supersede(self, request: Request) -> None:
        self._acknowledge(request, "superseded", reason="a newer request replaced it")

    def _reject(self, request: Request, reason: str) -> None:
        self._acknowledge(request, "rejected", reason=reason)
        key = f"{request.name}:{reason}"
        if key not in self._reported_problems and len(self._reported_problems) < 100:
            self._reported_problems.add(key)
            self._add_record("telemetry_error", {"kind": "control_rejected", "field": request.name, "reason": reason})

    def _acknowledge(self, request: Request, status: str, **details: Any) -> None:
        requested_value = request.value if is_frozen(request.value) else f"{request.value!r:.100}"
        fields = {"name": "control_ack", "control": request.name, "status": status, "requested": requested_value}
        self._add_record("event", {**fields, "id": request.id, "source": request.source, **details})


def _coerce(value: Any, like: Any) -> Any:
    """Return the value in the type of the control, or None if it has another type."""
    if isinstance(like, bool) or isinstance(value, bool):
        return value if isinstance(like, bool) and isinstance(value, bool) else None
    if not isinstance(value, (int, float)) or not -1e300 < value < 1e300:
        return None
    if isinstance(like, int):
        return int(value) if value == int(value) else None
    return float(value)
