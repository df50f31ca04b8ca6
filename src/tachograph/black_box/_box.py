"""`BlackBox`: the last steps of a run, and the investigation of a fault.

An investigation begins when a rule opens an alert, on the writer thread, which only sets a flag. The training thread
sees it between two steps, where it measures the layers. For a NaN it also arms hooks for one forward pass, and
collects them at the next boundary. The writer thread then judges the evidence and writes the dump. A loop that does not
come to a boundary within `_MAX_WAIT_S` gets a dump without layers.

On the CPU the observer notices a gradient that is not finite before the optimizer uses it. The evidence is captured at
once and kept for the alert, which follows within a second.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tachograph._base.guard import faults, guard, guarded
from tachograph.black_box._activations import ActivationProbe
from tachograph.black_box._batch_check import reread_batches, reread_risen_batch
from tachograph.black_box._dump_parts import evidence_of, evidence_parts
from tachograph.black_box._dump_writer import DumpContext, DumpWriter
from tachograph.black_box._early_evidence import EarlyEvidence, has_finite_weights, has_usual_weights
from tachograph.black_box._error_verdicts import judge_error
from tachograph.black_box._format import Verdict
from tachograph.black_box._investigation import RISE_REASONS, Investigation
from tachograph.black_box._layers import find_model, find_optimizers, layer_table
from tachograph.black_box._ring import LoggedSteps, StepRing, describe_ring, plain_indices, steps_around
from tachograph.black_box._torch_observer import TorchObserver
from tachograph.black_box._verdicts import judge
from tachograph.records import Encodable

__all__ = ["ALERT_REASONS", "BlackBox"]

ALERT_REASONS = frozenset({"divergence", "exploding_gradients", "hang", "loss_spike", "not_finite"})
"""The rules whose alerts cause a dump."""

_MAX_WAIT_S = 10.0
_MAX_WAITING = 4
"""Alerts that wait for an investigation to end."""

_MAX_OPEN_ALERTS = 50
_REQUEST = "request"

_observers: list[TorchObserver] = []
"""The observer of this process: the hooks of torch exist once."""


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
        self._investigation: Investigation | None = None
        self._waiting: deque[Investigation] = deque(maxlen=_MAX_WAITING)
        self._early = EarlyEvidence(self.ring, self.logged, wall_s)
        self.signal_name = ""
        """A signal that may end the process, until its dump is written; set by a signal handler."""
        self._first_step = last_step()
        """The last step of the attempts before this one."""
        self.flush: Callable[[], object] = lambda: None
        """Makes the writer thread handle everything that was logged."""
        self.divert_training: Callable[[], None] = lambda: None
        """Makes the next `log` call `at_log`."""
        self.open_alerts: Callable[[], list[dict[str, Any]]] = list
        """Returns the open alerts of the run."""
        parts = evidence_parts(self._steps_part, self._open_alerts_part, self._progress_part)
        for name, part in parts.items():
            writer.add_part(name, part)

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
            if observer is not None and self._investigation is not None:
                self.wants_boundary = True  # the writer thread has begun one in the meantime
        elif investigation.stage == "requested":
            self._examine(investigation, observer)
        elif investigation.stage == "armed" and investigation.probe is not None and investigation.probe.num_passes:
            investigation.evidence.activations = investigation.probe.collect()
            self._end_examination(investigation)

    def _examine(self, investigation: Investigation, observer: TorchObserver) -> None:
        is_nan, evidence = investigation.is_about_nan, investigation.evidence
        if is_nan:
            early = self._early.pop()
            if early is not None:
                evidence = investigation.evidence = early
                evidence.step = investigation.step if evidence.step is None else evidence.step
        else:
            self._early.clear()
        optimizers = observer.optimizers or find_optimizers()
        parameters = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        model = find_model(parameters) if parameters else None
        layers = layer_table(optimizers, model)
        evidence.layers = evidence.layers or layers
        # Weights that are not finite or huge already may come from the batch of a step before.
        if is_nan and (not evidence.batch or ("is_clean" in evidence.batch and not has_usual_weights(evidence.layers))):
            reread_batches(investigation, observer.loader)
        if investigation.reason in RISE_REASONS:
            reread_risen_batch(investigation, observer.loader)
        if is_nan and model is not None and has_finite_weights(layers):
            investigation.probe = ActivationProbe(model)
            if not investigation.probe.problem:
                investigation.stage = "armed"
                return
            evidence.activations = investigation.probe.collect()
        self._end_examination(investigation)

    def _end_examination(self, investigation: Investigation) -> None:
        self.wants_boundary = False
        investigation.stage = "done"  # last: then the writer thread may begin another one

    def on_bad_gradient(self) -> None:
        """Capture the evidence: the weights are still as they were in the forward pass."""
        if self._observer is not None:
            self._early.capture(self._observer)

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
        else:
            investigation = Investigation(reason, alert, step)
            investigation.rows = self._rows()
            if self._investigation is None:
                self._begin(investigation)
            else:
                self._waiting.append(investigation)

    def _begin(self, investigation: Investigation) -> None:
        investigation.started_at = time.monotonic()
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
        while (investigation := self._investigation) is not None:
            self._conclude(investigation)
        self.forget()

    def _conclude(self, investigation: Investigation) -> None:
        """Write the dump of an investigation now. Called by the training thread."""
        if investigation.stage == "requested":
            self.at_boundary()
        self._report(investigation)

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
        if self._observer is not None:
            with guard("examining a fault"):
                self.flush()  # the last steps may open an alert
        while (investigation := self._investigation) is not None and not investigation.is_about_nan:
            self._conclude(investigation)  # a loss that rises raises nothing
        if self._observer is not None:
            with guard("examining a fault"):
                if investigation is None and self._early.is_current:
                    investigation = Investigation("exception", None, self._last_step())
                    investigation.rows = self._rows()
                if investigation is not None:
                    if investigation.stage == "requested":
                        self._examine(investigation, self._observer)
                    investigation.add_history()
        investigation = investigation or Investigation("exception", None, self._last_step())
        self._investigation = None
        self._waiting.clear()
        self.wants_boundary = False
        if investigation.probe is not None:
            investigation.probe.remove()
        verdict = None
        with guard("judging an exception"):
            batch = self.ring.last_batch
            verdict = judge_error(error, plain_indices(batch.indices) if batch is not None else None)
        verdict = verdict or judge("exception", investigation.evidence)
        self.writer.write(
            "exception",
            step=self._last_step(),
            alert=investigation.alert,
            error=error,
            verdict=verdict,
            details=investigation.details,
        )

    def request(self, reason: str) -> str | None:
        """Write a dump because the training thread asks for one; return its path."""
        investigation = Investigation(reason, None, self._last_step())
        if self._observer is not None and self.writer.may_write(reason):
            with guard("measuring the layers"):
                investigation.evidence.layers = layer_table(self._observer.optimizers or find_optimizers())
        return self.writer.write(reason, step=self._last_step(), details=investigation.details)

    def request_from_outside(self, on_written: Callable[[str | None], object]) -> str:
        """Begin a dump that someone else asks for; return the limit that forbids it, or an empty string.

        Called by the writer thread. The training thread measures the layers first, if it comes to the end of a step.
        """
        problem = self.writer.limit_reached(_REQUEST)
        if problem:
            return problem
        investigation = Investigation(_REQUEST, None, self._last_step())
        investigation.on_written = on_written
        if self._observer is None:
            investigation.stage = "done"  # `collect` writes it when the last steps have been handled
        if self._investigation is None:
            self._begin(investigation)
        elif len(self._waiting) < _MAX_WAITING:
            self._waiting.append(investigation)
        else:
            return "other dumps are being written"
        return ""

    # Signals -------------------------------------------------------------------------------------------------------

    def on_signal(self, name: str) -> None:
        """Remember a signal that may end the process. Called in a signal handler, which may do no more than that."""
        if self.writer.rank == 0:
            self.signal_name = name

    def write_signal_dump(self) -> None:
        """Write the dump of a signal, if there was one. Called by the writer thread when the last steps are written."""
        name, self.signal_name = self.signal_name, ""
        if name:
            step = self._last_step()
            # Another thread that writes a dump may be the one that the signal has interrupted.
            self.writer.write("signal", step=step, verdict=self._judge_signal(name, step), wait_s=0)

    def _judge_signal(self, name: str, step: int | None) -> Verdict:
        progress = {} if step is None else self._progress(step)
        num_lost, last = progress.get("steps_since_checkpoint"), progress.get("last_checkpoint_step")
        text = f"{name} was sent to the process"
        if step is not None:
            text += f" after step {step:,}"
            text += (
                f". No checkpoint was recorded since it started: {num_lost:,} steps are lost without one"
                if last is None
                else f". The last checkpoint is of step {last:,}: {num_lost:,} steps are lost without another one"
            )
        return Verdict(kind="signal", text=f"{text}.", confidence="certain", details={"signal": name, **progress})

    # The dump ------------------------------------------------------------------------------------------------------

    def _report(self, investigation: Investigation) -> None:
        try:
            investigation.claims.pop()  # atomic, and without a lock that a signal handler could wait for
        except faults(IndexError):
            if self._investigation is investigation:
                self._investigation = None
            return
        self._investigation = None
        self.wants_boundary = False
        is_late = investigation.stage == "requested"
        if investigation.probe is not None and investigation.stage == "armed":
            investigation.evidence.activations = {"problem": "the loop made no forward pass"}
            investigation.probe.remove()
        with guard("judging a fault"):
            investigation.add_history()
        verdict = judge(investigation.reason, investigation.evidence) if investigation.alert is not None else None
        path = self.writer.write(
            investigation.reason,
            step=investigation.step,
            alert=investigation.alert,
            verdict=verdict,
            details={**investigation.details, "is_late": is_late},
        )
        investigation.on_written(path)
        while self._waiting and self._investigation is None:
            waiting = self._waiting.popleft()
            alert_id = str((waiting.alert or {}).get("id"))
            if self.writer.may_write(waiting.reason, alert_id):
                self._begin(waiting)
            else:
                waiting.on_written(None)

    # Parts ---------------------------------------------------------------------------------------------------------

    def _rows(self) -> list[dict[str, Any]]:
        entries = self._early.entries if self._early.is_current else self.ring.entries
        return describe_ring(entries, self.logged.rows(), self._wall_s)

    def _steps_part(self, context: DumpContext) -> dict[str, Any] | None:
        evidence = evidence_of(context)
        step = context.step if evidence is None or evidence.step is None else evidence.step
        steps = steps_around(context.details.get("rows") or self._rows(), step)
        return {"steps": steps} if steps else None

    def _open_alerts_part(self, _context: DumpContext) -> dict[str, Any] | None:
        alerts = self.open_alerts()[:_MAX_OPEN_ALERTS]
        return {"alerts": alerts} if alerts else None

    def _progress_part(self, context: DumpContext) -> dict[str, Any] | None:
        return None if context.step is None else self._progress(context.step)

    def _progress(self, step: int) -> dict[str, Any]:
        last = self.last_checkpoint_step
        first = last if last is not None else self._first_step or 0
        return {"step": step, "last_checkpoint_step": last, "steps_since_checkpoint": max(step - first, 0)}
