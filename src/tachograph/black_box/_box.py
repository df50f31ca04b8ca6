"""`BlackBox`: the last steps of a run, and the investigation of a fault.

An investigation begins when a rule opens an alert, on the writer thread, which only sets a flag. The training thread
sees it between two steps, where it measures the layers. For a NaN it also arms hooks for one forward pass, and
collects them at the next boundary. The writer thread then judges the evidence and writes the dump. A loop that does not
come to a boundary within `_MAX_WAIT_S` gets a dump without layers.

On the CPU the observer notices a gradient that is not finite before the optimizer uses it. The evidence is captured at
once and kept for the alert, which follows within a second.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from tachograph._base.guard import guard, guarded
from tachograph.black_box._activations import ActivationProbe, check_batch
from tachograph.black_box._dump_writer import DumpContext, DumpWriter
from tachograph.black_box._frames import describe_error, describe_stacks
from tachograph.black_box._layers import find_model, find_optimizers, layer_table
from tachograph.black_box._ring import LoggedSteps, RingEntry, StepRing, describe_ring, plain_indices, steps_around
from tachograph.black_box._torch_observer import TorchObserver
from tachograph.black_box._verdicts import Evidence, judge
from tachograph.records import Encodable

__all__ = ["ALERT_REASONS", "BlackBox"]

ALERT_REASONS = frozenset({"divergence", "exploding_gradients", "hang", "loss_spike", "not_finite"})
"""The rules whose alerts cause a dump."""

_NAN_REASONS = frozenset({"exception", "not_finite"})
_MAX_WAIT_S = 10.0
_MAX_READ_SAMPLES = 512
_MAX_READ_BATCHES = 16
_MAX_READ_S = 5.0
_MAX_EARLY = 3
"""How often gradients that are not finite are examined in a run; a loop may skip such steps on purpose."""

_LOSS_NAMES = ("train_loss", "loss", "train/loss")
_NUM_LOSSES = 32

_observers: list[TorchObserver] = []
"""The observer of this process: the hooks of torch exist once."""


class _Investigation:
    """An alert, and the evidence about it so far."""

    def __init__(self, reason: str, alert: Mapping[str, Any] | None, step: int | None) -> None:
        self.reason = reason
        self.alert = alert
        self.step = step
        self.evidence = Evidence(step=step)
        self.rows: list[dict[str, Any]] = []
        """The last steps, as of the alert: a fast loop goes on."""
        self.probe: ActivationProbe | None = None
        self.started_at = time.monotonic()
        self.stage: Literal["requested", "armed", "done"] = "requested"


class BlackBox:
    """The black box of one run. A collector of the run: `collect` is called about every second."""

    def __init__(
        self, writer: DumpWriter, wall_s: Callable[[float], float], last_step: Callable[[], int | None]
    ) -> None:
        self.writer = writer
        self.ring = StepRing()
        self.logged = LoggedSteps()
        self.wants_boundary = False
        self.last_checkpoint_step: int | None = None
        self._wall_s = wall_s
        self._last_step = last_step
        self._observer: TorchObserver | None = None
        self._investigation: _Investigation | None = None
        self._early: Evidence | None = None
        self._early_entries: list[RingEntry] = []
        """The ring when the early evidence was captured."""
        self._num_early = 0
        self._lock = threading.Lock()
        self.flush: Callable[[], object] = lambda: None
        """Makes the writer thread handle everything that was logged."""
        self.divert_training: Callable[[], None] = lambda: None
        """Makes the next `log` call `at_log`."""
        writer.add_part("alert", _alert_part)
        writer.add_part("steps", self._steps_part)
        writer.add_part("layers", _layers_part)
        writer.add_part("activations", _activations_part)
        writer.add_part("batch", _batch_part)
        writer.add_part("exception", lambda context: None if context.error is None else describe_error(context.error))
        writer.add_part("stacks", lambda context: describe_stacks() if context.reason == "hang" else None)
        writer.add_part("progress", self._progress_part)

    # The training thread -------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Observe the loops of torch, if torch is imported. Called by the training thread, more than once."""
        torch = sys.modules.get("torch")
        if self._observer is not None or torch is None or not hasattr(torch, "compiler"):
            return
        if "torch.optim.optimizer" not in sys.modules or not hasattr(torch, "optim"):
            return
        with guard("observing torch"):
            while _observers:
                _observers.pop().close()
            self._observer = TorchObserver(self)
            _observers.append(self._observer)

    def at_log(self) -> None:
        """Handle that the loop logs: it is between two steps. Called on the slow path of `log`."""
        if self._observer is None:
            self.attach()
        if self.wants_boundary:
            self.at_boundary()

    @guarded("examining a fault")
    def at_boundary(self) -> None:
        """Continue the investigation: the training thread is between two steps."""
        investigation, observer = self._investigation, self._observer
        if investigation is None or observer is None:
            self.wants_boundary = False
        elif investigation.stage == "requested":
            self._examine(investigation, observer)
        elif investigation.stage == "armed" and investigation.probe is not None and investigation.probe.num_passes:
            investigation.evidence.activations = investigation.probe.collect()
            self._end_examination(investigation)

    def _examine(self, investigation: _Investigation, observer: TorchObserver) -> None:
        early, self._early = self._early, None
        evidence = investigation.evidence
        is_nan = investigation.reason in _NAN_REASONS
        if early is not None and is_nan:
            evidence = investigation.evidence = early
            evidence.step = investigation.step if evidence.step is None else evidence.step
        optimizers = observer.optimizers or find_optimizers()
        parameters = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        model = find_model(parameters) if parameters else None
        layers = layer_table(optimizers, model)
        evidence.layers = evidence.layers or layers
        if is_nan and not evidence.batch:
            self._check_batch_again(investigation, observer)
        weights_are_finite = all(math.isfinite(row["weight"]["absmax"]) for row in layers if row.get("weight"))
        if is_nan and model is not None and weights_are_finite:
            investigation.probe = ActivationProbe(model)
            if not investigation.probe.problem:
                investigation.stage = "armed"
                return
            evidence.activations = investigation.probe.collect()
        self._end_examination(investigation)

    def _end_examination(self, investigation: _Investigation) -> None:
        investigation.stage = "done"
        self.wants_boundary = False

    def on_bad_gradient(self) -> None:
        """Capture the evidence: the weights are still as they were in the forward pass."""
        if self._early is not None or self._num_early >= _MAX_EARLY or self._observer is None:
            return
        self._num_early += 1
        with guard("examining a fault"):
            evidence = Evidence(is_at_fault=True)
            evidence.layers = layer_table(self._observer.optimizers)
            batch = self._observer.current_batch()
            evidence.batch = check_batch(_as_sequence(batch)) or {"is_clean": True} if batch else {}
            last = self.ring.last_batch
            evidence.indices = plain_indices(last.indices) if last is not None else None
            self._early_entries = self.ring.entries
            self._early = evidence

    def _check_batch_again(self, investigation: _Investigation, observer: TorchObserver) -> None:
        """Read samples again: those of the first step whose loss was no number, and of the steps before it without one.

        Random states are restored.
        """
        loader, rows = observer.loader, investigation.rows
        first_bad = next((index for index, row in enumerate(rows) if not math.isfinite(_loss_of(row) or 0.0)), None)
        if loader is None or first_bad is None or not hasattr(loader.dataset, "__getitem__"):
            return
        last_good = next((index for index in range(first_bad - 1, -1, -1) if _loss_of(rows[index]) is not None), 0)
        first = max(last_good, first_bad + 1 - _MAX_READ_BATCHES)
        deadline_s = time.monotonic() + _MAX_READ_S
        for row in rows[first : first_bad + 1]:
            indices = row["batches"][0].get("indices") if row.get("batches") else None
            if not indices or len(indices) > _MAX_READ_SAMPLES:
                continue
            findings = _check_samples(loader, indices, deadline_s)
            if findings is None:
                return
            evidence = investigation.evidence
            evidence.indices, evidence.batch = indices, findings or {"is_clean": True}
            if findings:
                # Its place is exact; its step is not, if only some steps have values.
                evidence.step, evidence.position = None, _position_of(row)
                return

    # The writer thread ---------------------------------------------------------------------------------------------

    def on_records(self, records: list[Encodable]) -> None:
        """Keep the step records that are written."""
        self.logged.add(records)

    def on_alert(self, alert: Mapping[str, Any]) -> None:
        """Begin to investigate an alert that was opened."""
        reason = str(alert.get("rule"))
        if reason not in ALERT_REASONS or not self.writer.may_write(reason, str(alert.get("id"))):
            return
        step = alert.get("global_step")
        if reason == "hang" or self._observer is None:
            self.writer.write(reason, step=step, alert=alert)
        elif self._investigation is None:
            investigation = _Investigation(reason, alert, step)
            investigation.rows = self._rows()
            self._investigation = investigation
            self.wants_boundary = True
            self.divert_training()

    def collect(self) -> None:
        """Write the dump of an investigation that is complete, or takes too long."""
        investigation = self._investigation
        if investigation is None:
            return
        is_late = time.monotonic() - investigation.started_at > _MAX_WAIT_S
        if investigation.stage == "done" or is_late:
            self._report(investigation)
        else:
            self.divert_training()

    def close(self) -> None:
        """Write the dump of an open investigation: the run ends, and the thread that ends it is the training thread."""
        if self._observer is not None:
            with guard("examining a fault"):
                self.flush()
            investigation = self._investigation
            if investigation is not None:
                if investigation.stage == "requested":
                    self.at_boundary()
                self._report(investigation)
            self.forget()

    def forget(self) -> None:
        """Stop observing."""
        observer, self._observer = self._observer, None
        if observer is not None and observer in _observers:
            _observers.remove(observer)
            observer.close()

    def on_error(self, error: BaseException) -> None:
        """Write the dump of an exception that ends the run."""
        if not isinstance(error, Exception):
            return  # Ctrl-C and `sys.exit` are no faults
        investigation = self._investigation or _Investigation("exception", None, self._last_step())
        if self._observer is not None and (self._early is not None or self._investigation is not None):
            with guard("examining a fault"):
                investigation.rows = investigation.rows or self._rows()
                if investigation.stage == "requested":
                    self._examine(investigation, self._observer)
                self._fill(investigation)
        self._investigation = None
        self.wants_boundary = False
        if investigation.probe is not None:
            investigation.probe.remove()
        verdict = judge("exception", investigation.evidence)
        self.writer.write(
            "exception", step=self._last_step(), error=error, verdict=verdict, details=_details(investigation)
        )

    def request(self, reason: str) -> str | None:
        """Write a dump because the training thread asks for one; return its path."""
        investigation = _Investigation(reason, None, self._last_step())
        if self._observer is not None and self.writer.may_write(reason):
            with guard("measuring the layers"):
                investigation.evidence.layers = layer_table(self._observer.optimizers or find_optimizers())
        return self.writer.write(reason, step=self._last_step(), details=_details(investigation))

    def _report(self, investigation: _Investigation) -> None:
        with self._lock:
            if self._investigation is not investigation:
                return
            self._investigation = None
        self.wants_boundary = False
        if investigation.probe is not None and investigation.stage == "armed":
            investigation.evidence.activations = {"problem": "the loop made no forward pass"}
            investigation.probe.remove()
        with guard("judging a fault"):
            self._fill(investigation)
        self.writer.write(
            investigation.reason,
            step=investigation.step,
            alert=investigation.alert,
            verdict=judge(investigation.reason, investigation.evidence),
            details=_details(investigation),
        )

    def _fill(self, investigation: _Investigation) -> None:
        """Add losses, learning rate and the place in the data to the evidence."""
        evidence, rows = investigation.evidence, investigation.rows
        first_bad = next((index for index, row in enumerate(rows) if not math.isfinite(_loss_of(row) or 0.0)), None)
        before = rows if first_bad is None else rows[: first_bad + 1]
        evidence.losses = [loss for row in before if (loss := _loss_of(row)) is not None][-_NUM_LOSSES:]
        evidence.lrs = [(row.get("global_step"), float(row["lr"])) for row in before if "lr" in row]
        has_faulty_batch = evidence.batch and "is_clean" not in evidence.batch
        if first_bad is not None and investigation.reason in _NAN_REASONS and not has_faulty_batch:
            evidence.step = rows[first_bad].get("global_step", evidence.step)
        at_fault = next((row for row in rows if row.get("global_step") == evidence.step), None)
        if at_fault is not None and at_fault.get("batches"):
            batch = at_fault["batches"][-1]
            evidence.position = _position_of(at_fault)
            if evidence.indices is None:
                evidence.indices = batch.get("indices")

    # Parts ---------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[dict[str, Any]]:
        entries = self._early_entries if self._early is not None else self.ring.entries
        return describe_ring(entries, self.logged.rows(), self._wall_s)

    def _steps_part(self, context: DumpContext) -> dict[str, Any] | None:
        evidence = _evidence_of(context)
        step = context.step if evidence is None or evidence.step is None else evidence.step
        steps = steps_around(context.details.get("rows") or self._rows(), step)
        return {"steps": steps} if steps else None

    def _progress_part(self, context: DumpContext) -> dict[str, Any] | None:
        if context.step is None:
            return None
        progress: dict[str, Any] = {"step": context.step, "last_checkpoint_step": self.last_checkpoint_step}
        first = 0 if self.last_checkpoint_step is None else self.last_checkpoint_step
        return progress | {"steps_since_checkpoint": context.step - first}


def _position_of(row: Mapping[str, Any]) -> str:
    return f"number {row['batches'][-1]['position']:,} of pass {row['data_pass']} over the data"


def _check_samples(loader: Any, indices: list[int], deadline_s: float) -> dict[str, Any] | None:
    """Return the faults of a batch whose samples are read again; None if that takes too long or fails."""
    with _restored_random_state(), contextlib.suppress(Exception):  # code of the user
        samples = []
        for index in indices:
            samples.append(loader.dataset[index])
            if time.monotonic() > deadline_s:
                return None
        return check_batch(loader.collate_fn(samples))
    return None


def _details(investigation: _Investigation) -> dict[str, Any]:
    return {"evidence": investigation.evidence, "rows": investigation.rows}


def _evidence_of(context: DumpContext) -> Evidence | None:
    evidence = context.details.get("evidence")
    return evidence if isinstance(evidence, Evidence) else None


def _alert_part(context: DumpContext) -> dict[str, Any] | None:
    alert = context.alert
    if alert is None:
        return None
    fields = ("id", "rule", "severity", "title", "message", "global_step")
    return {name: alert[name] for name in fields if alert.get(name) is not None}


def _layers_part(context: DumpContext) -> dict[str, Any] | None:
    evidence = _evidence_of(context)
    if evidence is None or not evidence.layers:
        return None
    return {"is_at_fault": evidence.is_at_fault, "layers": evidence.layers}


def _activations_part(context: DumpContext) -> dict[str, Any] | None:
    evidence = _evidence_of(context)
    return evidence.activations if evidence is not None and evidence.activations else None


def _batch_part(context: DumpContext) -> dict[str, Any] | None:
    evidence = _evidence_of(context)
    if evidence is None or not (evidence.batch or evidence.indices):
        return None
    indices = {} if evidence.indices is None else {"indices": evidence.indices[:_MAX_READ_SAMPLES]}
    return {**evidence.batch, "step": evidence.step, **indices}


def _loss_of(row: Mapping[str, Any]) -> float | None:
    for name in _LOSS_NAMES:
        value = row.get(name)
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _as_sequence(tensors: dict[str, Any]) -> Any:
    """Return the tensors of a batch as a list if the batch was one, so that its second item counts as labels."""
    if tensors and all(name.isdigit() for name in tensors):
        return list(tensors.values())
    return tensors


@contextlib.contextmanager
def _restored_random_state() -> Iterator[None]:
    """Restore the random generators after code of a dataset has run."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
