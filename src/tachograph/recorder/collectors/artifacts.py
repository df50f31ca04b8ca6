"""Stores the artifacts of a run in a thread of its own, and records which artifacts the run made and used.

`log_artifact` opens the files and returns. The thread hashes and copies them, one artifact after the other, and adds
the record when a version exists. `close`, at the end of the run, waits for the thread for half of `exit_timeout_s`: the
rest of the time belongs to the records. Artifacts that are not stored by then are named in the journal and on standard
error. The thread continues as long as the process lives; the version states the run that it belongs to by itself.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tachograph._base.guard import guard, reraise_from_signal_handler, warn
from tachograph._base.reentrant import ReentrantEvent
from tachograph._base.settings import Mode, Settings, resolve_mode
from tachograph._base.threads import TelemetryThread
from tachograph.exceptions import ArtifactError, ConfigError
from tachograph.journal import RunFolder
from tachograph.journal.artifacts import (
    ArtifactStore,
    ArtifactVersion,
    PendingFile,
    check_alias,
    check_artifact_name,
    collect_sources,
)
from tachograph.reader import ParentRun
from tachograph.recorder._backend import Backend, Collector
from tachograph.records import ARTIFACT, ARTIFACT_USED

if TYPE_CHECKING:
    from tachograph.remote import ServerArtifacts

__all__ = ["PendingArtifact", "log_artifact", "record_use", "use_artifact"]

_MAX_WAITING = 100
DEFAULT_PROJECT = "default"
"""The project of a server with the runs that name none."""


class _RecordingRun(Protocol):
    """The parts of a `Run` that are used here."""

    name: str
    id: str
    backend: Backend | None
    folder: RunFolder | None
    collectors: list[Collector]

    @property
    def status(self) -> str: ...

    @property
    def settings(self) -> Settings: ...

    def add_record(self, event: str, fields: dict[str, Any]) -> None: ...

    def add_parent(self, parent: ParentRun) -> None: ...

    def report_error(self, kind: str, field: str, reason: str) -> None: ...


class PendingArtifact:
    """An artifact that is being stored. Returned by `Run.log_artifact`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._end = ReentrantEvent()
        self._version: ArtifactVersion | None = None
        self._error: ArtifactError | None = None

    def __repr__(self) -> str:
        state = "is being stored" if not self.is_done else str(self._error or self._version)
        return f"PendingArtifact({self.name!r}: {state})"

    @property
    def is_done(self) -> bool:
        """Whether the artifact is stored, or cannot be stored."""
        return self._end.is_set()

    def wait(self, timeout_s: float | None = None) -> ArtifactVersion:
        """Wait until the artifact is stored, and return its version.

        For a run that records nothing, the version is an empty text.

        Raises:
            ArtifactError: if it could not be stored, or the timeout came first.
        """
        if not self._end.wait(timeout_s):
            raise ArtifactError(f"artifact {self.name!r} was not stored within {timeout_s:g} s; wait longer")
        if self._error is not None:
            raise self._error
        assert self._version is not None  # noqa: S101 - set before the end
        return self._version

    def resolve(self, result: ArtifactVersion | ArtifactError) -> None:
        """Set what `wait` returns or raises."""
        if isinstance(result, ArtifactError):
            self._error = result
        else:
            self._version = result
        self._end.set()


class _StoreJob(NamedTuple):
    pending: PendingArtifact
    sources: Sequence[PendingFile]
    fields: dict[str, Any]
    step: int | None


class _ArtifactRecorder:
    """The thread of a run."""

    def __init__(self, run: _RecordingRun) -> None:
        self._run = run
        self.log_dir = _log_dir(run)
        self._jobs: queue.SimpleQueue[_StoreJob] = queue.SimpleQueue()
        self._pending: dict[int, PendingArtifact] = {}
        self._parent_ids: set[str] = set()
        self._thread: TelemetryThread | None = None

    def add(self, job: _StoreJob) -> None:
        """Queue an artifact."""
        if len(self._pending) >= _MAX_WAITING:
            raise ArtifactError(f"{_MAX_WAITING} artifacts are waiting to be stored; log fewer, or call wait()")
        self._pending[id(job.pending)] = job.pending
        self._jobs.put(job)
        if self._thread is None or not self._thread.is_alive():  # a signal handler may raise before it has started
            self._thread = TelemetryThread(self._store_all, name="tachograph-artifacts")
            self._thread.start()

    def _store_all(self) -> None:
        while True:
            job = self._jobs.get()
            self._store(job)
            self._pending.pop(id(job.pending), None)
            del job  # it may hold files open

    def _store(self, job: _StoreJob) -> None:
        try:
            version = ArtifactStore(self.log_dir).add(job.pending.name, job.sources, **job.fields)
        except ArtifactError as error:
            self._fail(job.pending, error)
            return
        except Exception as error:  # noqa: BLE001 - a waiting caller must learn of it
            guard.report("storing an artifact", error)
            self._fail(job.pending, ArtifactError(f"artifact {job.pending.name!r}: {error!r}"))
            return
        if self._run.status == "running":
            fields = {**_fields_of(version), "type": job.fields["type"], "metadata": version.metadata}
            fields["aliases"] = list(dict.fromkeys(["latest", *job.fields["aliases"]]))
            if job.step is not None:
                fields["global_step"] = job.step
            self._run.add_record("event", {"name": ARTIFACT, **{key: each for key, each in fields.items() if each}})
        job.pending.resolve(version)

    def _fail(self, pending: PendingArtifact, error: ArtifactError) -> None:
        self._run.report_error("artifact_not_stored", pending.name, str(error))
        warn("artifact %r is not stored: %s", pending.name, error)
        pending.resolve(error)

    def add_parent(self, version: ArtifactVersion) -> None:
        """Record that the run descends from the one that made an artifact."""
        if version.run_id is not None and version.run_id not in self._parent_ids:
            self._parent_ids.add(version.run_id)
            self._run.add_parent(ParentRun(run_id=version.run_id, run_name=version.run_name, how="artifact"))

    def wait(self, name: str) -> None:
        """Wait for the artifacts of a name that were logged before."""
        for pending in list(self._pending.values()):
            if pending.name == name:
                pending._end.wait()

    def collect(self) -> None:
        """Do nothing: the thread adds the records."""

    def close(self) -> None:
        """Wait for the thread, and say what is not stored."""
        deadline_s = time.monotonic() + self._run.settings.exit_timeout_s / 2
        for pending in list(self._pending.values()):
            pending._end.wait(max(0.0, deadline_s - time.monotonic()))
        names = [pending.name for pending in list(self._pending.values()) if not pending.is_done]
        for name in names:
            reason = f"was not stored within {self._run.settings.exit_timeout_s / 2:g} s, half of exit_timeout_s"
            self._run.report_error("artifact_not_stored", name, f"{reason}, when the run ended")
            warn("artifact %r %s; call wait(), or raise exit_timeout_s", name, reason)

    def forget(self) -> None:
        """In a forked child: the thread belongs to the parent."""
        self._jobs = queue.SimpleQueue()
        self._thread = None
        for pending in self._pending.values():
            pending.resolve(ArtifactError(f"artifact {pending.name!r} is stored by the parent of this process"))
        self._pending = {}


def log_artifact(
    run: _RecordingRun,
    name: str,
    files: Any = None,
    *,
    sources: Sequence[PendingFile] | None = None,
    type: str = "file",  # noqa: A002 - as users call it
    metadata: Mapping[str, Any] | None = None,
    aliases: Iterable[str] = (),
    description: str | None = None,
    step: int | None = None,
) -> PendingArtifact:
    """Start to store an artifact of files, or of sources that were collected already; see `Run.log_artifact`."""
    pending = PendingArtifact(str(name))
    if run.backend is None or run.folder is None:
        pending.resolve(ArtifactVersion(name=str(name), version="", digest=""))
        return pending
    try:
        if run.status != "running":
            raise ArtifactError(f"run {run.name!r} has {run.status}: log artifacts before it ends")
        aliases = [aliases] if isinstance(aliases, str) else list(aliases)
        sources = collect_sources(files) if sources is None else sources
        fields = {
            "type": str(type),
            "description": description,
            "metadata": None if metadata is None else dict(metadata),
            "aliases": [check_alias(alias) for alias in aliases],
            "run_id": run.id,
            "run_name": run.name,
        }
        check_artifact_name(name)
        _recorder(run).add(_StoreJob(pending, sources, fields, step))
    except Exception as error:  # noqa: BLE001 - training continues whatever was passed
        reraise_from_signal_handler(error)
        problem = error if isinstance(error, ArtifactError) else ArtifactError(f"artifact {name!r}: {error!r}")
        run.report_error("artifact_not_stored", str(name), str(problem))
        warn("artifact %r is not stored: %s", name, problem)
        pending.resolve(problem)
    return pending


def use_artifact(run: _RecordingRun, reference: str, *, from_server: bool = False) -> ArtifactVersion:
    """Return a version of an artifact, and record that the run uses it; see `Run.use_artifact`.

    Raises:
        ArtifactError: if there is none.
    """
    recorder = next((each for each in run.collectors if isinstance(each, _ArtifactRecorder)), None)
    if recorder is not None:
        recorder.wait(str(reference).partition(":")[0])
    store = ArtifactStore(_log_dir(run))
    server = _server_artifacts(run) if from_server or not store.has(reference) else None
    if from_server and server is None:
        raise ArtifactError(f"artifact {reference!r}: the run is not sent to a server; pass server= to init")
    version = store.find(reference) if server is None else server.find(reference)
    record_use(run, version)
    return version


def _server_artifacts(run: _RecordingRun) -> ServerArtifacts | None:
    """Return the artifacts of the run's project on the server that the run is sent to; None if it is not sent."""
    settings = run.settings
    if resolve_mode(settings) is not Mode.CLOUD or not settings.server:
        return None
    from tachograph.remote import ServerArtifacts, parse_server

    address = parse_server(settings.server, allow_plain_http=settings.allow_plain_http)
    try:
        return ServerArtifacts(address, settings.project or DEFAULT_PROJECT)
    except ConfigError as error:
        raise ArtifactError(str(error)) from None


def record_use(run: _RecordingRun, version: ArtifactVersion) -> None:
    """Record that a run uses an artifact."""
    if run.backend is not None and run.status == "running":
        with guard("recording the use of an artifact"):
            address = getattr(version, "server", "")  # of a version that is on a server, and is numbered there
            server = {"server": address} if address else {}
            run.add_record("event", {"name": ARTIFACT_USED, **_fields_of(version), "type": version.type, **server})
            _recorder(run).add_parent(version)


def _recorder(run: _RecordingRun) -> _ArtifactRecorder:
    while True:
        for collector in run.collectors:  # the first one, also if a signal handler has added one meanwhile
            if isinstance(collector, _ArtifactRecorder):
                return collector
        run.collectors.append(_ArtifactRecorder(run))


def _log_dir(run: _RecordingRun) -> str:
    return os.path.abspath(run.settings.log_dir) if run.folder is None else str(run.folder.path.parent)


def _fields_of(version: ArtifactVersion) -> dict[str, Any]:
    return {
        "artifact": version.name,
        "version": version.version,
        "digest": version.digest,
        "num_files": version.num_files,
        "size_bytes": version.size_bytes,
    }
