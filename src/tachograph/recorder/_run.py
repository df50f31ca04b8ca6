"""`Run`: the object that a training loop logs to.

How `log` stays cheap: it copies the caller's dict and appends one tuple to a deque; the writer thread does the rest.
The deque is reached through `_buffer`. Whenever a call needs more care (the run has ended, a control change is waiting,
arrays have to be copied), `_buffer` is replaced by an object that always reports itself full. `log` then takes the slow
path without testing any of those conditions itself: the one length check that it makes anyway covers them all. The
writer thread, a signal handler or a forked child can divert the training thread this way with a single assignment.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from gc import is_tracked
from time import perf_counter
from types import FrameType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from tachograph._base.clock import Clock, SystemClock
from tachograph._base.guard import faults, guard, reraise_from_signal_handler, suppress, warn
from tachograph._base.importing import import_on_first_use
from tachograph._base.paths import absolute_path
from tachograph._base.printable import safe_lines
from tachograph._base.settings import Mode, Settings, resolve_mode
from tachograph.black_box import BlackBox, DumpWriter, reason_word
from tachograph.journal import Destination, RunFolder, remove_destination, write_destination
from tachograph.reader import ParentRun
from tachograph.recorder._after_exit import append_after_exit
from tachograph.recorder._backend import Backend, Collector, Follower, RunLayer
from tachograph.recorder._buffer_items import BACKPRESSURE_SIZE, LARGE_STEP_BYTES, ObservedStep, StepLookup, size_bytes
from tachograph.recorder._control import Control, ControlPanel, Number
from tachograph.recorder._errors import error_fields
from tachograph.recorder._media_values import take_media
from tachograph.recorder.collectors.completion_rows import completion_fields
from tachograph.recorder.collectors.system import SystemSampler
from tachograph.records import (
    CONFIG_CHANGED,
    PARENT,
    SUMMARY,
    LazyValue,
    ValueProblem,
    bounded_items,
    freeze,
    is_array,
    to_plain,
)

if TYPE_CHECKING:
    from tachograph.journal.artifacts import ArtifactVersion
    from tachograph.media import MediaRecorder
    from tachograph.recorder.collectors.artifacts import PendingArtifact
    from tachograph.recorder.collectors.samples import SampleWatcher

__all__ = ["DisabledRun", "RankRun", "Run"]

_NUM_CAREFUL_CALLS = 64
"""Calls at the start of a run that look for arrays and large values; a loop that logs some usually does so early."""

_MAX_NESTED_CALLS = 8
"""Calls of `finish` on one thread, each in a signal handler that interrupted the one before."""

_MAX_REPORTED_MISUSES = 20
_NUM_NEWEST_ITEMS = 8
_CAREFUL_AFTER_LARGE = 1024
"""Calls after a large step that look for large values."""

_MEDIA_SHARE = 0.6
"""The share of the time limit of `finish` in which media is stored; the rest is for the records."""

_SAMPLING_KEYS = frozenset(
    {
        *("config", "config_file", "config_file_list", "process", "training_folder"),  # AI Toolkit
        *("sample_at_first", "sample_every_n_epochs", "sample_every_n_steps", "sample_prompts"),  # sd-scripts
    }
)
"""A config without any of these names no folder of samples; see `collectors/sample_folders.py`."""

_ARTIFACTS = "tachograph.recorder.collectors.artifacts"

_NUMBERS = frozenset({float, int, bool, type(None)})


class _SlowPath:
    """Replaces the buffer and always reports itself full, so that `log` takes the slow path."""

    def __len__(self) -> int:
        return sys.maxsize

    def append(self, _item: object) -> None:
        """Never called: `log` appends nothing to a full buffer."""


_SLOW_PATH = _SlowPath()


class _End(NamedTuple):
    """How a run ends, as the first call of `finish` says."""

    status: Literal["finished", "failed"]
    reason: str | None
    deadline_s: float


class Run:
    """A run that is being recorded. Created by `tachograph.init`; ends with `finish`, or as a context manager.

    Attributes:
        name: the name of the run and of its folder.
        id: the id of the run, the same for all attempts of a resumed run.
        status: `running`, `finished` or `failed`.
        folder: the paths of the run's files, or None if the run is not recorded.
        resumed: whether earlier attempts are in the same journal.
        facts: the fields of the `start` record.
        span_recorder: records spans into the run, once there are any.
        backend: receives the run's records: the writer, or None if the run is not recorded.
        clock: the clock of the run.
        control_panel: the controls of the run, and the requests for them.
        collectors: objects that gather data alongside the loop; polled about every second and when the run ends.
        dump_writer: writes dumps of the run, or None if it has no black box.
        black_box: the last steps of the run and the investigation of faults, or None.
    """

    __slots__ = (
        "__weakref__",
        "_accepts_late_errors",
        "_buffer",
        "_closed_collectors",
        "_end",
        "_followers",
        "_has_ended",
        "_has_warned",
        "_is_forked",
        "_late_errors_lock",
        "_media",
        "_num_careful_calls",
        "_on_finish",
        "_reported_misuses",
        "_sample_watcher",
        "_sampler",
        "_settings",
        "backend",
        "black_box",
        "clock",
        "collectors",
        "control_panel",
        "dump_writer",
        "facts",
        "folder",
        "id",
        "name",
        "resumed",
        "span_recorder",
        "status",
    )

    def __init__(
        self,
        name: str,
        *,
        settings: Settings,
        backend: Backend | None,
        run_id: str = "",
        folder: RunFolder | None = None,
        resumed: bool = False,
        clock: Clock | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.id = run_id
        self.status: Literal["running", "finished", "failed"] = "running"
        self._reported_misuses: set[str] = set()
        self.folder = folder
        self.resumed = resumed
        self.facts = facts or {}
        self.clock = clock or SystemClock()
        self.backend = backend
        self.span_recorder: RunLayer | None = None
        self.collectors: list[Collector] = []
        self.dump_writer: DumpWriter | None = None
        self.black_box: BlackBox | None = None
        self._settings = settings
        self._buffer: Any = _SLOW_PATH
        self._num_careful_calls = _NUM_CAREFUL_CALLS
        self._is_forked = False
        self._has_warned = False
        self._followers: list[Follower] = []
        self._accepts_late_errors = True
        self._late_errors_lock = threading.Lock()
        self._sampler: SystemSampler | None = None
        self._on_finish: Any = None
        self._end: dict[str, _End] = {}
        self._closed_collectors: dict[int, object] = {}
        self._media: dict[str, MediaRecorder] = {}
        self._sample_watcher: dict[str, SampleWatcher] = {}
        self._has_ended = False
        self.control_panel = ControlPanel(
            gap_s=settings.control_gap_s,
            steady_s=self.clock.steady_s,
            add_record=self.add_record,
            divert_training=self._use_slow_path,
        )
        self.control_panel.add_log_every(settings.log_every)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.status if self.enabled else 'disabled'}, {self.path!r})"

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self.backend is not None

    @property
    def path(self) -> str | None:
        """The path of the run's folder, or None if the run is not recorded."""
        return None if self.folder is None else str(self.folder.path)

    @property
    def log_every(self) -> int:
        """The current number of steps per step record."""
        return self.control_panel.log_every

    @property
    def settings(self) -> Settings:
        """The settings that the run was started with."""
        return self._settings

    # Logging steps -------------------------------------------------------------------------------------------------

    def log(
        self, metrics: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, step: Any = None, **more_metrics: Any
    ) -> None:
        """Record metrics of a training step. Costs well under a microsecond, never waits and never raises.

        Args:
            metrics: names and values: numbers, bools, strings, numpy scalars, 0-d tensors, nested dicts of these; and
                media such as `tachograph.Image`, lists of it, PIL images and figures, which a thread of its own stores.
            step: the global step. Without it, calls are counted from 0; once a step was given, a call without one
                belongs to that step.
            more_metrics: metrics as keyword arguments.

        Example:
            >>> run.log({"train_loss": loss, "lr": lr}, step=step)
            >>> run.log(train_loss=loss, step=step)
        """
        # The hot path. `more_metrics |= metrics` is a copy, so a dict that the caller reuses cannot change under us.
        # A dict that the garbage collector does not track holds only numbers and strings: nothing that can change, and
        # no tensor that would keep a graph alive. (Where that is unknown, as on PyPy, the slow path is taken.)
        try:
            more_metrics |= metrics
            buffer = self._buffer
            # 4096 is BACKPRESSURE_SIZE: a constant is faster to load than a name.
            if len(buffer) > 4096 or is_tracked(more_metrics) or (step is not None and type(step) is not int):
                self._log_slow(more_metrics, step)
            else:
                buffer.append((perf_counter(), step, more_metrics))
        except Exception as fault:  # noqa: BLE001 - training continues whatever was passed
            reraise_from_signal_handler(fault)
            self._reject_metrics(fault, metrics)

    def _log_slow(self, metrics: dict[str, Any], step: Any) -> None:
        """Log with every check that the fast path leaves out."""
        backend = self.backend
        if backend is None:
            return
        if self.status != "running" or self._is_forked:
            self._warn_not_recording()
            return
        self._work_between_steps()
        has_array = False
        media: dict[str, Any] = {}
        if _NUMBERS.issuperset(map(type, metrics.values())):
            num_bytes = 64 * len(metrics)
        else:
            media = take_media(metrics)
            if media and metrics.keys() <= {"global_step"}:
                self._add_media(media, metrics.get("global_step") if step is None else step)
                return
            has_array = any(map(is_array, metrics.values()))
            metrics = freeze(metrics)
            num_bytes = size_bytes(metrics)
        if has_array:
            self._num_careful_calls = sys.maxsize  # every call of this run is checked
        elif num_bytes > LARGE_STEP_BYTES:
            self._num_careful_calls = max(self._num_careful_calls, _CAREFUL_AFTER_LARGE)
        elif self._num_careful_calls:
            self._num_careful_calls -= 1
        if step is not None and type(step) not in {int, ObservedStep}:
            step = freeze({"global_step": step}).get("global_step", step)
        if not backend.put((self.clock.steady_s(), step, metrics), num_bytes=num_bytes):
            backend.losses.add("the buffer was full")
        if media:
            self._add_media(media, step)
        self._choose_path()

    def _add_media(self, media: dict[str, Any], step: Any) -> None:
        """Copy media and leave the rest to the media thread, which the first call starts."""
        backend = self.backend
        if backend is None or not self._settings.media or self._settings.media_keep == "off":
            return
        recorder = self._media.get("recorder")
        if recorder is None:
            import_on_first_use("tachograph.media")
            from tachograph.media import MediaRecorder

            recorder = self._media.setdefault("recorder", MediaRecorder(self))  # atomic: two threads may come here
            if self.status != "running":
                return
        if step is not None and type(step) is not int:
            step = freeze({"global_step": step}).get("global_step", step)
        lookup = StepLookup(self.clock.steady_s(), step)
        if not backend.put(lookup):
            backend.losses.add("the buffer was full", len(media))
            return
        recorder.add(media, LazyValue(lambda: lookup.step))

    def media_pending(self) -> int:
        """Return how many records of media are not stored yet. Called by the writer thread."""
        return sum(recorder.num_pending for recorder in list(self._media.values()))

    def count_loss(self, reason: str) -> None:
        """Count a record that was lost. For the layers above."""
        if self.backend is not None:
            self.backend.losses.add(reason)

    def _work_between_steps(self) -> None:
        """Do the work that waits for a moment between two steps of the training thread."""
        if self.control_panel.has_ready:
            self.control_panel.apply()
        if self.black_box is not None:
            self.black_box.at_log()

    def _choose_path(self) -> None:
        """Open the fast path unless something requires the slow one for every call."""
        backend = self.backend
        is_fast = (
            self.status == "running"
            and not self._is_forked
            and not self._num_careful_calls
            and not (backend is not None and (backend.saw_array or backend.is_late))
            and not self.control_panel.has_ready
            and self._settings.buffer_size >= BACKPRESSURE_SIZE
            and type(self.clock) is SystemClock
        )
        self._buffer = backend.buffer if backend is not None and is_fast else _SLOW_PATH

    def _use_slow_path(self) -> None:
        """Make the next `log` take the slow path. Called by the writer thread."""
        self._buffer = _SLOW_PATH

    def _expect_large_steps(self) -> None:
        """Make the next calls of `log` count the bytes of their steps. Called by the writer thread."""
        self._num_careful_calls = max(self._num_careful_calls, _CAREFUL_AFTER_LARGE)
        self._buffer = _SLOW_PATH

    def _reject_metrics(self, fault: Exception, metrics: object) -> None:
        backend = self.backend
        if isinstance(fault, (TypeError, ValueError)) and not isinstance(metrics, Mapping):
            if backend is not None:
                problem = f"log() expects a dict of metrics, got {type(metrics).__name__}"
                backend.losses.add(problem)
                if problem not in self._reported_misuses and len(self._reported_misuses) < _MAX_REPORTED_MISUSES:
                    self._reported_misuses.add(problem)
                    warn("%s: nothing was recorded; write run.log({'train_loss': loss}, step=step)", problem)
            return
        guard.report("logging a step", fault)
        if backend is not None:
            backend.losses.add("a fault inside telemetry")
        if guard.strict:
            raise fault

    def _warn_not_recording(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        reason = "belongs to the parent of this forked process" if self._is_forked else f"has {self.status}"
        warn("run %r %s: further records are dropped; call tachograph.init() to start a new run", self.name, reason)

    # Logging other records -----------------------------------------------------------------------------------------

    def log_epoch(self, epoch: int, metrics: Mapping[str, Any] | None = None, *, step: int | None = None) -> None:
        """Record the end of an epoch, with its metrics."""
        with guard("logging an epoch"):
            self._add_metrics("epoch", {"epoch": epoch}, metrics, step)

    def log_validation(
        self, metrics: Mapping[str, Any], *, step: int | None = None, epoch: int | None = None, prefix: str = "val_"
    ) -> None:
        """Record results on held-out data; ``{"loss": …}`` becomes ``val_loss``."""
        with guard("logging a validation"):
            self._add_metrics("validation", {"epoch": epoch}, _add_prefix(metrics, prefix), step)

    def log_test(
        self, metrics: Mapping[str, Any], *, step: int | None = None, epoch: int | None = None, prefix: str = "test_"
    ) -> None:
        """Record results on test data; ``{"loss": …}`` becomes ``test_loss``."""
        with guard("logging a test"):
            self._add_metrics("test", {"epoch": epoch}, _add_prefix(metrics, prefix), step)

    def log_checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        is_best: bool = False,
        metrics: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> None:
        """Record that a checkpoint was saved, with its size if it is a file.

        Args:
            path: the file or folder.
            step: the step after which it was saved.
            is_best: whether it is the best one so far.
            metrics: metrics of the checkpoint, such as ``{"val/loss": 0.3}``.
            metadata: any other fields, such as ``ema=True, format="safetensors"``. If the record has a field of that
                name already, an underscore is appended: ``time`` becomes ``time_``.
        """
        with guard("logging a checkpoint"):
            full_path = absolute_path(path)  # the size is read later, when the loop may have changed its folder
            fields = {
                "checkpoint_path": os.fspath(path),
                "is_best": is_best,
                "size_bytes": LazyValue(lambda: _file_size_bytes(full_path)),
                "modified": LazyValue(lambda: _modified_at(full_path)),
            }
            self._add_metrics("checkpoint", fields, metrics, step, metadata)
            if self.black_box is not None:
                self.black_box.last_checkpoint_step = self.last_step if step is None else step
            self.stamp_checkpoint(full_path, step)

    def stamp_checkpoint(self, path: str, step: int | None) -> None:
        """Write beside a checkpoint which run saved it, if the setting `checkpoint_stamp` is on."""
        if not self._settings.checkpoint_stamp or self.backend is None or self.folder is None:
            return
        from tachograph.reader import write_stamp

        try:
            write_stamp(path, self.id, self.name, step)
        except faults(OSError) as error:
            self.report_error("stamp_not_written", path, str(error))

    def log_parent(self, parent: str | os.PathLike[str], *, how: str = "init") -> None:
        """Record that the run started from another run or from its checkpoint.

        A path that no known run saved is recorded, too. A path that does not exist is not.

        Args:
            parent: the name of a run in the log folder, the path of its folder, or the path of a checkpoint.
            how: `resume`, `init`, `finetune`, `merge` or `distill`.
        """
        with guard("recording a parent"):
            if self.backend is None or self.folder is None:
                return
            from tachograph.reader import find_parent

            parent_run = find_parent(parent, str(self.folder.path.parent), how)
            if parent_run is None:
                self.report_error(
                    "parent_not_found", os.fspath(parent), "there is no run and no checkpoint of that name"
                )
            else:
                self.add_parent(parent_run)

    def add_parent(self, parent: ParentRun) -> None:
        """Record a parent that is known already, unless it is this run itself, which was resumed."""
        if self.backend is not None and (parent.run_id is None or parent.run_id != self.id):
            fields = {name: value for name, value in msgspec.structs.asdict(parent).items() if value is not None}
            self.add_record("event", {"name": PARENT, **fields})

    def log_artifact(
        self,
        name: str,
        files: Any,
        *,
        type: str = "file",  # noqa: A002
        metadata: Mapping[str, Any] | None = None,
        aliases: Iterable[str] = (),
        description: str | None = None,
        step: int | None = None,
    ) -> PendingArtifact:
        """Store files as a version of an artifact. Never raises; ``wait()`` of the result does.

        The files are opened now, and hashed and copied by a thread. They may be renamed or deleted at once; change
        their content only after ``wait()`` has returned, because a file that was changed is not stored. Equal files
        are the same version. The alias `latest` always points at the version that was logged last.

        Args:
            name: the name of the artifact, such as `model`.
            files: a file or a folder; a list of these; or a dict from paths in the artifact to files or bytes.
            type: a word for the kind of files, such as `model` or `dataset`.
            metadata: any values. Secrets are masked.
            aliases: names such as `best`, which then point at this version.
            description: a text.
            step: the step to which the artifact belongs.

        Example:
            >>> version = run.log_artifact("model", "out/model.pt", type="model", aliases=["best"]).wait()
        """
        import_on_first_use(_ARTIFACTS)
        from tachograph.recorder.collectors.artifacts import log_artifact

        return log_artifact(
            self, name, files, type=type, metadata=metadata, aliases=aliases, description=description, step=step
        )

    def use_artifact(self, reference: str, *, from_server: bool = False) -> ArtifactVersion:
        """Return a version of an artifact, and record that the run uses it.

        It is looked up in the log folder. If that has no such version or alias, and the run is sent to a server, it is
        looked up in the project on the server, which numbers versions itself; its files are downloaded when you ask
        for them.

        Args:
            reference: ``model:v2``, ``model:best``, or ``model`` for the latest version.
            from_server: do not look in the log folder, which may have older versions than the server.

        Raises:
            ArtifactError: if there is none, or the server cannot be reached or does not allow it.

        Example:
            >>> folder = run.use_artifact("model:best").download()
        """
        import_on_first_use(_ARTIFACTS)
        from tachograph.recorder.collectors.artifacts import use_artifact

        return use_artifact(self, reference, from_server=from_server)

    def event(self, name: str, /, *, step: int | None = None, **attributes: Any) -> None:
        """Record an event: ``run.event("curriculum_switch", stage=2)``."""
        with guard("logging an event"):
            self._add_metrics("event", {"name": name}, attributes, step)

    def update_config(self, values: Any) -> None:
        """Add values to the run's config, or change some: ``run.update_config({"lr": 1e-4})``. Secrets are masked."""
        with guard("updating the config"):
            self._add_values(CONFIG_CHANGED, "config", values)
            self._watch_samples(values)

    def _watch_samples(self, config: Any) -> None:
        """Record the samples that a trainer writes to a folder of its own, if the config names one."""
        keeps_media = self._settings.media and self._settings.media_keep != "off"
        if self.folder is None or not keeps_media or not isinstance(config, Mapping) or self.status != "running":
            return
        if not _SAMPLING_KEYS.isdisjoint(config):
            watcher = self._sample_watcher.get("watcher")
            if watcher is None:
                import_on_first_use("tachograph.recorder.collectors.samples")
                from tachograph.recorder.collectors.samples import SampleWatcher

                watcher = self._sample_watcher.setdefault("watcher", SampleWatcher(self))
                self.collectors.append(watcher)
                config = {**(self.facts.get("config") or {}), **config}
            watcher.add_config(config)

    def log_summary(self, values: Mapping[str, Any]) -> None:
        """Record results of the whole run, such as ``{"best_accuracy": 0.91}``; later values replace earlier ones."""
        with guard("logging a summary"):
            self._add_values(SUMMARY, "summary", values)

    def _add_values(self, name: str, field: str, values: Any) -> None:
        """Add an event with a dict that stays nested."""
        problems: list[ValueProblem] = []
        plain = to_plain(values, field, problems)
        if not isinstance(plain, dict):
            problems = [ValueProblem(field, f"expected a dict, got {type(values).__name__}")]
        elif plain:
            self.add_record("event", {"name": name, field: plain})
        for problem in problems:
            self.report_error("value_not_stored", problem.where, problem.reason)

    def log_completions(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        step: int | None = None,
        table: str = "completions",
        num_dropped: int = 0,
    ) -> None:
        """Record samples as rows of a table, such as ``[{"prompt": …, "completion": …, "reward": 0.5}]``.

        Strings are truncated at 8,000 characters, and a record holds about a megabyte: the newest rows are kept, and
        the record counts the others. `tachograph.Completions` collects rows and calls this at an interval. The setting
        `completions` turns both off.
        """
        with guard("logging completions"):
            if self.backend is not None and self._settings.completions:
                fields = completion_fields(rows, step, table, num_dropped)
                if fields["rows"] or num_dropped:
                    self.add_record("completions", fields)

    def log_file(
        self, path: str | os.PathLike[str], *, name: str | None = None, keep: bool = True, step: int | None = None
    ) -> None:
        """Record a file, such as a report: a copy of it, or where it is.

        Args:
            path: the file.
            name: the name to list it by; by default, the name of the file.
            keep: store a copy in the run's folder. Otherwise its path, size and hash are recorded, and a file of up to
                100 MB gets a second name in the run's folder (a hard link), if the file system allows it.
            step: the step that it belongs to, by default the latest one.

        Example:
            >>> run.log_file("out/report.pdf", name="report")
        """
        with guard("logging a file"):
            if self.backend is None:
                return
            if self.status != "running" or self._is_forked:
                self._warn_not_recording()
                return
            import_on_first_use("tachograph.media")
            from tachograph.media import File

            self._add_media({name or os.path.basename(os.fspath(path)): File(path, keep=keep)}, step)

    def log_error(self, error: BaseException, *, fatal: bool = False, where: str | None = None) -> None:
        """Record an exception of the training code with its traceback."""
        with guard("logging an error"):
            self.add_record("error", error_fields(error, fatal=fatal, where=where))

    def dump(self, reason: str = "request") -> str | None:
        """Capture evidence about the last steps in the folder `dumps` of the run; return its path, or None without one.

        There is none without a black box, within a minute of the last one for the same reason, and when the run has as
        many as it may have. See `docs/black_box.md`.

        Args:
            reason: a word or two that name the dump.
        """
        if self.black_box is None or self.status != "running" or self._is_forked:
            return None
        return self.black_box.request(reason_word(reason))

    @property
    def last_step(self) -> int | None:
        """The last step that was logged; None before the first one."""
        if self.backend is None:
            return None
        for _, step, _ in self._buffered_steps():
            if type(step) is int:
                return step
        return self.backend.last_step

    def names_logged_since(self, steady_s: float) -> set[str]:
        """Return names of metrics that were logged after a moment, as far as they still wait for the writer thread.

        For an integration that observes a loop, so that it records no value a second time. Called by the thread that
        trains.
        """
        names: set[str] = set()
        for logged_s, _, metrics in self._buffered_steps():
            if logged_s <= steady_s:
                break
            names.update(metrics)
        return names

    def _buffered_steps(self) -> Iterator[tuple[float, Any, dict[str, Any]]]:
        """Yield the newest steps that wait for the writer thread, newest first."""
        backend = self.backend
        if backend is not None:
            with suppress(IndexError):  # the writer has taken the rest
                for position in range(1, _NUM_NEWEST_ITEMS + 1):
                    item = backend.buffer[-position]
                    if type(item) is tuple:
                        yield item

    def report_error(self, kind: str, field: str, reason: str) -> None:
        """Record a fault of telemetry itself as a `telemetry_error`."""
        if self.status == "running":
            self.add_record("telemetry_error", {"kind": kind, "field": field, "reason": reason})

    def report_follower_error(self, kind: str, field: str, reason: str) -> None:
        """Record a failure of a follower as a `telemetry_error`, also one that happens while the run ends.

        By then the writer has closed the journal, and the record is appended after `end`. Called by the threads of the
        followers, because that waits for the disk.
        """
        if self.status == "running":
            self.report_error(kind, field, reason)
            return
        with guard("recording a failure at the end of a run"), self._late_errors_lock:
            if self.backend is None or self.folder is None or not self._accepts_late_errors:
                return
            self.backend.close(self._settings.exit_timeout_s)  # the writer is stopping: wait for it
            is_appended = False
            with suppress(OSError):
                fields = {"kind": kind, "field": field, "reason": reason}
                is_appended = append_after_exit(self.folder, [("telemetry_error", fields)])
            if not is_appended:
                self.print_line(f"{field}: {reason}")

    def _add_metrics(
        self,
        event: str,
        fields: dict[str, Any],
        metrics: Any,
        step: int | None,
        metadata: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Add a record with our fields and the user's, which get an underscore if their name is taken."""
        if self.backend is None:
            return
        if metrics is not None and not isinstance(metrics, Mapping):
            metrics = {"metrics": ValueProblem("metrics", f"expected a dict, got {type(metrics).__name__}")}
        all_fields = {name: value for name, value in {**fields, "global_step": step}.items() if value is not None}
        if metrics and not _NUMBERS.issuperset(map(type, metrics.values())):
            metrics = dict(bounded_items(metrics))
            media = take_media(metrics)
            if media and self.status == "running" and not self._is_forked:
                self._add_media(media, step)
        for name, value in itertools.chain(bounded_items(metrics or {}), metadata.items()):
            all_fields[f"{name}_" if name in all_fields else name] = value
        self.add_record(event, freeze(all_fields))

    def add_record(self, event: str, fields: dict[str, Any]) -> None:
        """Add a record of any kind other than a step. For the layers above; use the `log_…` methods and `event`."""
        if self.backend is None:
            return
        if self.status != "running" or self._is_forked:
            self._warn_not_recording()
            return
        self.backend.add_record(event, fields)

    def _add_system_sample(self, sample: dict[str, Any]) -> None:
        self._add_if_running("system", sample)

    def _add_if_running(self, event: str, sample: dict[str, Any]) -> None:
        """Add a record that may come after the end of the run, such as the last sample; it is dropped then."""
        if self.status == "running" and self.backend is not None and not self._is_forked:
            self.backend.add_record(event, sample)

    def print_line(self, line: str) -> None:
        """Print a line for the person who watches the run."""
        if not self._settings.console:
            return
        # A closed pipe or an ASCII-only terminal must not stop a training run.
        with suppress(OSError, ValueError, RuntimeError):  # the last one: a signal handler in a `print`
            encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
            text = safe_lines(line).encode(encoding, "backslashreplace").decode(encoding)
            print(f"[telemetry] {text}", flush=True)  # noqa: T201 - the run's own output

    # Control -------------------------------------------------------------------------------------------------------

    def control(
        self,
        name: str,
        value: Number,
        *,
        min: Number | None = None,  # noqa: A002
        max: Number | None = None,  # noqa: A002
    ) -> Control[Number]:
        """Register a value that a reader may change within bounds while the run is active.

        Raises:
            ControlError: if the name is taken or the value is outside its bounds.

        Example:
            >>> lr_scale = run.control("lr_scale", 1.0, min=0.1, max=10)
            >>> lr = base_lr * lr_scale.value
        """
        return self.control_panel.register(name, value, min, max)

    @property
    def should_stop(self) -> bool:
        """Whether a reader requested the run to stop; stays true.

        In a distributed job only rank 0 receives requests: broadcast the value to the other ranks before you act on it.
        """
        return self.control_panel.stop is not None and self.control_panel.accept_stop()

    @property
    def should_checkpoint(self) -> bool:
        """Whether a reader requested a checkpoint: true once for each request, on rank 0 alone."""
        return self.control_panel.checkpoint is not None and self.control_panel.accept_checkpoint()

    def reject_requests(self, reason: str) -> None:
        """Reject pending stop and checkpoint requests, on behalf of a loop that cannot handle them."""
        if self.control_panel.stop is not None or self.control_panel.checkpoint is not None:
            self.control_panel.reject_pending(reason)

    # Collectors and followers --------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Record the data that the collectors have gathered. Called by the writer thread."""
        for collector in list(self.collectors):
            collector.collect()

    def add_follower(self, follower: Follower) -> None:
        """Start a follower of the journal, which is stopped when the run ends, within the deadline."""
        self._followers.append(follower)
        follower.start()

    def has_follower(self, name: str) -> bool:
        """Return whether a follower of that name is active, such as a sink."""
        return any(follower.name == name for follower in self._followers)

    def remove_follower(self, follower: Follower) -> None:
        """Stop a follower of the journal, within the deadline."""
        if follower in self._followers:
            self._followers.remove(follower)
            follower.close(self._settings.exit_timeout_s)

    def _move(self, folder: RunFolder, reason: str) -> None:
        """Continue in another folder, because another process took the first one."""
        self.folder, self.name = folder, folder.name
        self._write_destination()
        for follower in self._followers:
            follower.move(folder)
        self.print_line(reason)

    @property
    def _destination(self) -> Destination | None:
        """Where the run is to be sent, if anywhere."""
        mode, server = resolve_mode(self._settings), self._settings.server or None
        if mode is not Mode.CLOUD and mode is not Mode.OFFLINE:
            return None
        return Destination(server=server, mode=mode.value, remote_control=self._settings.remote_control)

    def _write_destination(self) -> None:
        """Write into the run's folder whether and where the run is to be sent; the last attempt decides."""
        if self.folder is None:
            return
        destination = self._destination
        try:
            if destination is not None:
                write_destination(self.folder, destination)
            elif self.resumed and os.path.lexists(self.folder.destination):
                remove_destination(self.folder)
                self.print_line("this attempt has the mode 'local': the run is no longer marked to be sent")
        except faults(OSError) as error:
            self.report_error("destination_not_written", ".tacho/destination.json", str(error))

    # The end -------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything logged so far is in the file; return False if the timeout came first."""
        backend = self.backend
        if backend is None or self._is_forked or self.status != "running":
            return True
        deadline_s = time.monotonic() + (self._settings.exit_timeout_s if timeout_s is None else timeout_s)
        recorder = self._media.get("recorder")
        has_media = recorder is None or recorder.flush(_MEDIA_SHARE * (deadline_s - time.monotonic()))
        return backend.flush(deadline_s - time.monotonic()) and has_media

    def finish(
        self,
        status: Literal["finished", "failed"] = "finished",
        *,
        reason: str | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """End the run: write all pending records, within a deadline; return whether all of them were written.

        A second call only waits for the first one to finish writing. A signal handler may call it at any time, also
        while its own thread is in here: it then does what the interrupted call has not done yet.
        """
        # A signal handler may interrupt this at any instruction and get here again. It cannot wait for the call that it
        # interrupted, and the process may end with it. So each part may be repeated, and the nested call does them all.
        timeout_s = self._settings.exit_timeout_s if timeout_s is None else timeout_s
        if self._is_forked:
            return True
        if self._has_ended:
            return self.backend is None or self.backend.close(timeout_s)
        num_nested = _num_calls_below()
        if num_nested > _MAX_NESTED_CALLS:
            return False  # a signal every millisecond would fill the stack with calls that wait for the same thing
        deadline_s = time.monotonic() + timeout_s
        end = self._end.setdefault("end", _End(status, reason, deadline_s))  # atomic: the first call decides
        if num_nested:
            deadline_s = min(deadline_s, end.deadline_s)
        self._close_layers(timeout_s)
        if not num_nested:  # for the records, whatever the collectors took
            deadline_s = max(deadline_s, time.monotonic() + timeout_s / 2)
        self.status = end.status
        self._use_slow_path()
        is_complete = True
        if self.backend is not None:
            fields = {"status": end.status, "reason": end.reason}
            is_complete = self.backend.close(
                deadline_s - time.monotonic(), {name: value for name, value in fields.items() if value is not None}
            )
            if not num_nested:
                time_limit = f" within {timeout_s:g} s" if time.monotonic() >= deadline_s else ""
                self._print_losses(f"could not be written{time_limit}" if not is_complete else "")
        for follower in self._followers:
            follower.close(0)  # stop all of them first, so that one that hangs takes no time from the others
        late_followers = [
            follower.name for follower in self._followers if not follower.close(deadline_s - time.monotonic())
        ]
        for name in late_followers:
            self.print_line(f"{name} did not receive all records of {self.name!r}; the journal has them")
        self._accepts_late_errors = False  # the next attempt may write the journal from now on
        self._print_sync_command(is_late="server" in late_followers)
        if self._on_finish is not None:
            with guard("removing hooks"):
                self._on_finish(self)
        self._has_ended = True
        return is_complete

    def _close_layers(self, timeout_s: float) -> None:
        """Stop everything that adds records; let it add its last ones."""
        if self._sampler is not None:
            self._sampler.stop()
        if self.span_recorder is not None:
            with guard("closing spans"):
                self.span_recorder.close()
        for collector in list(self.collectors):
            claim = object()
            if self._closed_collectors.setdefault(id(collector), claim) is claim:
                with guard("collecting"):
                    collector.close()
        for recorder in self._media.values():
            with guard("storing media"):
                recorder.close(_MEDIA_SHARE * timeout_s)

    def _print_losses(self, problem: str) -> None:
        """Print which records the journal lacks to standard error, also without `console`: a loss is never silent."""
        parts = [f"the last records of {self.name!r} {problem}"] if problem else []
        if self.backend is not None:
            parts += [
                f"{num_records:,} records of {self.name!r} were lost: {reason}"
                for reason, num_records in self.backend.losses.by_reason.items()
            ]
        if parts:
            with suppress(OSError, ValueError, RuntimeError, AttributeError):  # closed, or None
                print(f"[telemetry] {'; '.join(parts)}", file=sys.stderr, flush=True)  # noqa: T201

    def _print_sync_command(self, *, is_late: bool) -> None:
        """Print how to send the run, if the server does not have all of it."""
        destination = self._destination
        if self.folder is not None and destination is not None and (destination.mode == "offline" or is_late):
            path = os.path.join(self._settings.log_dir, self.name)  # as the user spelled it
            unsent_part = "it" if destination.mode == "offline" else "the rest"
            self.print_line(f"Send {unsent_part} with: {destination.sync_command(path)}")

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.finish()
        else:
            try:
                self._fail(error)
            except BaseException as second_error:
                # Of a signal handler: torch raises in one when a DataLoader worker was killed, often a moment after the
                # loop has failed because of it.
                self._fail(second_error)
                raise

    def _fail(self, error: BaseException) -> None:
        """Record an exception that ends the run."""
        self.log_error(error, fatal=True)
        if self.black_box is not None and self.status == "running":
            with guard("capturing an exception"):
                self.black_box.on_error(error)
        self.finish("failed", reason=type(error).__name__)

    def _detach_from_parent(self) -> None:
        """In a forked child: stop recording, because the run belongs to the parent."""
        self._is_forked = True
        self._use_slow_path()
        self._sampler = None
        self._followers = []
        if self.span_recorder is not None:
            self.span_recorder.forget()
        for collector in list(self.collectors):
            collector.forget()
        for recorder in self._media.values():
            recorder.forget()
        if self.backend is not None:
            self.backend.abandon()


class DisabledRun(Run):
    """A run that accepts everything and records nothing, at the cost of an empty call.

    Every method that a loop calls is overridden. Those for the setup and the end of a run are not: they still check
    their arguments, and a run that has finished is no longer the current one.
    """

    __slots__ = ()

    enabled = False
    should_stop = False
    should_checkpoint = False

    @property
    def log_every(self) -> int:
        """The setting: nothing can change it."""
        return self._settings.log_every

    def log(self, metrics: Any = (), /, step: Any = None, **more_metrics: Any) -> None:
        """Do nothing."""

    def log_epoch(self, epoch: Any, metrics: Any = None, *, step: Any = None) -> None:
        """Do nothing."""

    def log_validation(self, metrics: Any, *, step: Any = None, epoch: Any = None, prefix: str = "val_") -> None:
        """Do nothing."""

    def log_test(self, metrics: Any, *, step: Any = None, epoch: Any = None, prefix: str = "test_") -> None:
        """Do nothing."""

    def log_checkpoint(
        self, path: Any, *, step: Any = None, is_best: bool = False, metrics: Any = None, **metadata: Any
    ) -> None:
        """Do nothing."""

    def stamp_checkpoint(self, path: str, step: Any) -> None:
        """Do nothing."""

    def log_parent(self, parent: Any, *, how: str = "init") -> None:
        """Do nothing."""

    def add_parent(self, parent: Any) -> None:
        """Do nothing."""

    def event(self, name: str, /, *, step: Any = None, **attributes: Any) -> None:
        """Do nothing."""

    def update_config(self, values: Any) -> None:
        """Do nothing."""

    def log_summary(self, values: Any) -> None:
        """Do nothing."""

    def log_completions(self, rows: Any, *, step: Any = None, table: str = "completions", num_dropped: int = 0) -> None:
        """Do nothing."""

    def log_file(self, path: Any, *, name: Any = None, keep: bool = True, step: Any = None) -> None:
        """Do nothing."""

    def log_error(self, error: Any, *, fatal: bool = False, where: str | None = None) -> None:
        """Do nothing."""

    def dump(self, reason: str = "request") -> str | None:
        """Return None: there is nothing to capture."""
        return None

    def report_error(self, kind: str, field: str, reason: str) -> None:
        """Do nothing."""

    def report_follower_error(self, kind: str, field: str, reason: str) -> None:
        """Do nothing."""

    def add_record(self, event: str, fields: Any) -> None:
        """Do nothing."""

    def reject_requests(self, reason: str) -> None:
        """Do nothing: there are no requests."""

    def collect(self) -> None:
        """Do nothing."""

    def add_follower(self, follower: Follower) -> None:
        """Do nothing: there is no journal to follow."""

    def flush(self, timeout_s: Any = None) -> bool:
        """Return True: nothing waits to be written."""
        return True


class RankRun(Run):
    """The run on a rank other than 0: spans, events and errors go into a journal of the rank's own.

    Metrics are dropped: they are equal on all ranks or already reduced, and rank 0 records them.
    """

    __slots__ = ()

    def log(self, metrics: Any = (), /, step: Any = None, **more_metrics: Any) -> None:
        """Do nothing, except to count media."""
        if is_tracked(metrics) or is_tracked(more_metrics):  # as in `Run.log`: it holds more than numbers and strings
            with guard("counting media"):
                values = {**metrics, **more_metrics} if isinstance(metrics, dict) else more_metrics
                self._add_media(take_media(values), step)

    def log_completions(self, rows: Any, **options: Any) -> None:
        """Do nothing."""

    def _add_media(self, media: dict[str, Any], step: Any) -> None:
        """Count the media, which differs from rank to rank, unlike metrics: rank 0 records it."""
        if media and self.backend is not None and self._settings.media:
            self.backend.losses.add("media is recorded on rank 0 alone", len(media))

    def _add_metrics(self, event: str, fields: dict[str, Any], *more: Any) -> None:
        if event == "event":
            super()._add_metrics(event, fields, *more)


def _num_calls_below() -> int:
    """Return how many calls of `finish` the present one has interrupted on this thread."""
    num_calls = -1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        num_calls += frame.f_code is _FINISH_CODE
        frame = frame.f_back
    return num_calls


_FINISH_CODE = Run.finish.__code__


def _file_size_bytes(path: str) -> int | None:
    """Return the size of a file; None for a folder, and for a checkpoint that was already replaced by a later one."""
    try:
        return os.path.getsize(path) if os.path.isfile(path) else None
    except faults(OSError):
        return None


def _modified_at(path: str) -> float | None:
    try:
        return os.path.getmtime(path)
    except faults(OSError):
        return None


def _add_prefix(metrics: Any, prefix: str) -> Any:
    """Give each name the prefix unless it has one; ``val/loss`` counts as having ``val_``."""
    if not isinstance(metrics, Mapping):
        return metrics
    prefixes = (prefix, f"{prefix.rstrip('_/')}/")
    return {
        name if str(name).startswith(prefixes) else f"{prefix}{name}": value for name, value in bounded_items(metrics)
    }
