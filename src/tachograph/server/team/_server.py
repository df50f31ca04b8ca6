"""A team's server: it receives runs, and serves the dashboard and the API over them.

Several processes may do so for one data folder (see `_workers` and `_server_group`). Each of them is what follows.

    /api/v1/ingest/…   IngestApp          keys only
    /metrics           here               a key with `read` for all projects
    /readyz            here               open; its details as /metrics
    everything else    the dashboard      keys, cookies or a proxy

A key may be limited to a project, which is a folder below the data folder. Such a key gets a dashboard of its own over
that folder alone, so nothing that a handler forgets can show it the runs of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import shutil
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tachograph._base.files import create_file, make_folder
from tachograph._base.threads import TelemetryThread
from tachograph._base.typed import decode_json
from tachograph._base.version import __version__
from tachograph.exceptions import ArtifactError, ServeError
from tachograph.journal import RunFolder
from tachograph.journal.artifacts import ArtifactStore, find_artifact_folders
from tachograph.server._access import AccessGate
from tachograph.server._app import create_dashboard
from tachograph.server._change_note import CHANGE_NOTE, ChangeNote
from tachograph.server._copy_status import read_copy_status
from tachograph.server._errors import ApiError
from tachograph.server._identity import Identity, identity_of
from tachograph.server._models import ErrorBody
from tachograph.server._protocol import LimitedProtocol
from tachograph.server._routes import ROUTES, ServerHooks
from tachograph.server._serve import bind_address
from tachograph.server.team._access import ProxyTrust, TeamAccess
from tachograph.server.team._audit_log import AuditLog
from tachograph.server.team._blobs import BlobStore
from tachograph.server.team._copies import RunCopies, project_folder
from tachograph.server.team._data_folder import close_to_others, private_umask
from tachograph.server.team._ingest import INGEST_PREFIX, IngestApp
from tachograph.server.team._keys import KeyFileError, KeyRing, keys_path
from tachograph.server.team._metrics import ServerMetrics, StoreReport
from tachograph.server.team._server_group import ServerGroup
from tachograph.server.team._workers import WorkerStart, can_share_ports, serve_with_workers

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from tachograph.server.columns import ColumnStore, StoreFeeder

__all__ = ["ReadinessReport", "TeamServer", "TlsFiles", "check_readiness", "create_team_server", "serve_team"]

_log = logging.getLogger("tachograph.server")
_MAX_PROJECT_APPS = 64
_MIN_FREE_BYTES = 256 << 20
_READY_INTERVAL_S = 1.0
_FIRST_COLLECTION_S = 300.0
_COLLECTION_INTERVAL_S = 3_600.0
_ARTIFACT_GRACE_S = 86_400.0
"""Contents of an artifact that is being sent stay for so long."""
_MAX_OPEN_FILES = 65_536
_MAX_NAME_CHARS = 512
_CHANGING_ROUTES = [
    (route, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", route.path), re.DOTALL)) for route in ROUTES if route.action
]
"""The routes that change something, with patterns of their addresses."""


class TlsFiles(msgspec.Struct, frozen=True):
    """The certificate of the server and its private key."""

    certificate: str
    key: str


class ReadinessReport(msgspec.Struct):
    """Whether the server can do its work; the answer of `/readyz` and of `tacho serve --check`."""

    status: str
    problems: list[str] = []
    free_bytes: int | None = None
    version: str = __version__
    store: StoreReport | None = None


class TeamServer:
    """The ASGI application of a team's server.

    Args:
        data_dir: the folder that holds the runs and the keys.
        hosts: accepted names of this server.
        proxy: the proxies in front of it.
        is_durable: flush each batch to the disk before it is acknowledged.
        static: the folder of the built user interface; defaults to the one in the package.
        store: the address of a database in ClickHouse that is kept up to date with the runs.

    Raises:
        ConfigError: if the address of the store is invalid.
        OSError: if the folder cannot be created or written.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        hosts: tuple[str, ...] = (),
        *,
        proxy: ProxyTrust | None = None,
        is_durable: bool = False,
        static: Path | None = None,
        store: str | None = None,
    ) -> None:
        self.copies = RunCopies(data_dir, is_durable=is_durable)
        self.metrics = ServerMetrics()
        self.keys = KeyRing(keys_path(self.copies.root))
        self.audit = AuditLog(self.copies.root, is_durable=is_durable)
        self.access = TeamAccess(self.keys, self.copies.root, hosts, proxy=proxy, metrics=self.metrics)
        self.server: uvicorn.Server | None = None
        """Live streams end when this server shuts down."""
        self._static = static
        self._feeder = _create_feeder(store, self.copies.root) if store else None
        self._group = ServerGroup(
            self.copies.root,
            self.metrics,
            close_copies=self.copies.close,
            close_idle_copies=self.copies.close_idle,
            count_open_copies=lambda: self.copies.num_open,
            report_store=self._report_store,
        )
        self.metrics.others = self._group.counts
        if self._feeder is not None:
            self._feeder.start(lambda: self._group.is_leader)
        self._readiness = ReadinessReport("starting")
        self._readiness_checked_s = -_READY_INTERVAL_S
        self._checking = asyncio.Lock()
        self.blobs = BlobStore(self.copies.root, is_durable=is_durable)
        self.ingest = IngestApp(self.copies, self.blobs, self.access, self.metrics)
        self._apps: OrderedDict[str, ASGIApp] = OrderedDict()
        self._gate = AccessGate(self._dashboard_of_identity, self.access)
        self._all_projects_app = self._create_dashboard(self.copies.root)
        self._is_closed = threading.Event()
        TelemetryThread(self._collect_blobs, name="tachograph-blobs").start()
        self.metrics.add_gauge("open_copies", "Copies of runs that are open to append.", self._group.count_open_copies)
        self.metrics.add_gauge("processes", "Processes that serve the data folder.", self._group.num_processes)
        self.metrics.add_gauge(
            "send_interval_seconds",
            "How long trainers gather records before they send them, by the load of this process.",
            lambda: self.ingest.pace.flush_interval_s,
        )
        self.metrics.add_gauge(
            "free_bytes", "Free space on the disk of the runs.", lambda: _free_bytes(self.copies.root)
        )
        self.metrics.add_gauge("start_time_seconds", "When the server started.", lambda: self.metrics.started)
        if self._feeder is not None:
            self.metrics.add_gauge(
                "store_lag_seconds",
                "How far the column store is behind the journals.",
                lambda: report.lag_s if (report := self._group.store_report()) is not None else math.nan,
            )
            self.metrics.add_gauge(
                "store_rows",
                "Rows inserted since the start.",
                lambda: report.num_rows if (report := self._group.store_report()) is not None else math.nan,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["path"].startswith(INGEST_PREFIX):
            await self.ingest(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._all_projects_app(scope, receive, send)
        elif scope["type"] == "http" and (note := _change_note(scope)) is not None:
            scope.setdefault("state", {})[CHANGE_NOTE] = note
            await self._gate(scope, receive, self._send_with_audit(scope, send, note))
        else:
            await self._gate(scope, receive, send)

    def _send_with_audit(self, scope: Scope, send: Send, note: ChangeNote) -> Send:
        """Return a function that sends a response after the audit log has the request. Only strangers are not in it."""
        first_message: Message | None = None

        async def send_with_audit(message: Message) -> None:
            nonlocal first_message
            if message["type"] == "http.response.start":
                first_message = message  # the reason of a rejection is in the body
                return
            if first_message is not None:
                start, first_message = first_message, None
                identity = identity_of(scope)
                if identity is not None:
                    body = message.get("body", b"")
                    await run_in_threadpool(self._audit_request, scope, identity, note, start["status"], body)
                await send(start)
            await send(message)

        return send_with_audit

    def _audit_request(self, scope: Scope, identity: Identity, note: ChangeNote, status: int, body: bytes) -> None:
        outcome, reason = "done", ""
        if status >= 400:
            outcome, reason = "refused" if status < 500 else "failed", f"{status} {_error_message(body)}"
        elif note.failures:
            outcome = "partly" if len(note.failures) < len(note.runs) else "failed"
            run, error = next(iter(note.failures.items()))
            reason = f"{len(note.failures)} of {len(note.runs)} runs failed, {run}: {error}"
        try:
            self.audit.add(
                note.action,
                identity.name,
                outcome=outcome,
                key_id=identity.key_id,
                address=self.access.proxy.client_of(scope, Headers(scope=scope)),
                project=identity.project,
                runs=note.runs,
                old=note.old,
                new=note.new,
                reason=reason,
            )
        except OSError as error:  # too late to refuse the change
            self.metrics.add_fault("cannot write the audit log", error)

    def close(self) -> None:
        """Close the copies."""
        self._is_closed.set()
        self.ingest.close()
        self._group.close()
        self.copies.close()
        if self._feeder is not None:
            self._feeder.close()

    def _collect_blobs(self) -> None:
        """Delete blobs that no run and no artifact refers to, now and then."""
        wait_s = _FIRST_COLLECTION_S
        while not self._is_closed.wait(wait_s):
            wait_s = _COLLECTION_INTERVAL_S
            if not self._group.is_leader:
                continue
            try:
                for folder in find_artifact_folders(self.copies.root):
                    with contextlib.suppress(ArtifactError):  # one is being stored at the moment
                        ArtifactStore(folder).collect_garbage(grace_s=_ARTIFACT_GRACE_S)
                self.blobs.collect()
            except OSError as error:
                self.metrics.add_fault("cannot delete unused media", error)

    async def _dashboard_of_identity(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/readyz":
            await (await self._report_readiness(scope))(scope, receive, send)
            return
        if path == "/metrics":
            await self._send_metrics(scope, receive, send)
            return
        identity = identity_of(scope)
        project = identity.project if identity is not None else None
        app = self._all_projects_app if project is None else self._project_app(project)
        await app(scope, receive, send)

    async def _report_readiness(self, scope: Scope) -> Response:
        """Return whether the server is ready; identities that may see its metrics also get the reasons."""
        async with self._checking:
            # Anyone can ask, and a check writes a file.
            if time.monotonic() - self._readiness_checked_s >= _READY_INTERVAL_S:
                self._readiness = await run_in_threadpool(check_readiness, self.copies.root, self.keys)
                self._readiness_checked_s = time.monotonic()
            report = self._readiness
        status = 200 if report.status == "ok" else 503
        identity = self.access.identify(scope, Headers(scope=scope))
        if identity is None or identity.project is not None or not identity.allows("read"):
            report = ReadinessReport(report.status)
        elif self._feeder is not None:  # being behind is not a problem: answers then come from files
            store_report = await run_in_threadpool(self._group.store_report)
            report = msgspec.structs.replace(report, store=store_report)
        return Response(msgspec.json.encode(report), status, media_type="application/json")

    async def _send_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity = self.access.identify(scope, Headers(scope=scope))
        if identity is None:
            raise ApiError(401, "no_token", "metrics need a key with the scope `read` for all projects")
        if identity.project is not None or not identity.allows("read"):
            raise ApiError(403, "not_allowed", f"{identity.name!r} lacks the scope `read` for all projects")
        response = Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
        await response(scope, receive, send)

    def _project_app(self, project: str) -> ASGIApp:
        app = self._apps.get(project)
        if app is None:
            folder = self.copies.root / project_folder(project)
            make_folder(folder, below=self.copies.root)
            app = self._apps[project] = self._create_dashboard(folder)
        self._apps.move_to_end(project)
        while len(self._apps) > _MAX_PROJECT_APPS:
            self._apps.popitem(last=False)
        return app

    def _create_dashboard(self, folder: Path) -> ASGIApp:
        return create_dashboard(
            folder,
            self.access,
            static=self._static,
            is_closing=lambda: self.server is not None and self.server.should_exit,
            hooks=ServerHooks(self._control_problem, self._column_store, self._group.release_copies),
            needs_identity=True,
        )

    def _column_store(self, folder: RunFolder) -> ColumnStore | None:
        """Return the column store for a copy if it answers. It does not have the rows of a copy that has diverged."""
        feeder = self._feeder
        if feeder is None or feeder.store is None or feeder.lag.error is not None or not feeder.store.is_answering:
            return None
        status = read_copy_status(folder)
        return None if status is None or "~" in status.run_id else feeder.store

    def _report_store(self) -> StoreReport | None:
        if self._feeder is None:
            return None
        lag = self._feeder.lag
        return StoreReport(lag.lag_s, lag.num_bytes, lag.num_rows, lag.error)

    def _control_problem(self, folder: RunFolder) -> str | None:
        entry = self.copies.entry_of(folder)
        if entry is None or entry.remote_control:
            return None
        return f"{folder.name!r} does not accept requests from the server: start it with remote_control=True"


def _change_note(scope: Scope) -> ChangeNote | None:
    """Return a note about a request that changes something; None if no route with its address does."""
    for route, pattern in _CHANGING_ROUTES:
        match = pattern.fullmatch(scope["path"]) if scope["method"] == route.method else None
        if match is not None:
            return ChangeNote(route.action, [match["run"][:_MAX_NAME_CHARS]] if "run" in pattern.groupindex else [])
    return None


def _error_message(body: bytes) -> str:
    try:
        error = decode_json(body, ErrorBody).error
    except msgspec.MsgspecError:
        return ""
    return f"{error.code}: {error.message}"


def _create_feeder(address: str, root: Path) -> StoreFeeder:
    from tachograph.server.columns import StoreFeeder

    return StoreFeeder(address, root)


def check_readiness(root: Path, keys: KeyRing) -> ReadinessReport:
    """Check that runs can be stored and keys can be read."""
    problems = []
    free = _free_bytes(root)
    if free < _MIN_FREE_BYTES:
        problems.append(f"the disk of {root} has only {free >> 20} MiB left")
    probe = root / ".server" / f"probe-{os.getpid()}-{threading.get_ident()}"
    try:
        os.close(create_file(probe, below=root, mode=0o600))
        probe.unlink()
    except OSError as error:
        problems.append(f"{root} cannot be written: {error.strerror}")
    try:
        keys.check("")
    except KeyFileError as error:
        problems.append(str(error))
    return ReadinessReport("ok" if not problems else "not ready", problems, free)


def _free_bytes(root: Path) -> int:
    try:
        return shutil.disk_usage(root).free
    except OSError:
        return 0


class _TeamProtocol(LimitedProtocol):
    """More clients, and slower ones, than a private dashboard has."""

    request_timeout_s = 120.0
    max_connections = 8_192
    max_foreign_connections = 8_192


class _ServeOptions(msgspec.Struct, frozen=True):
    """What each process of a server needs to know; see `serve_team`."""

    data_dir: str
    host: str
    port: int
    allow_hosts: tuple[str, ...]
    proxy: ProxyTrust | None
    tls: TlsFiles | None
    is_durable: bool
    store: str | None
    for_group: bool


def serve_team(
    data_dir: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    allow_hosts: tuple[str, ...] = (),
    proxy: ProxyTrust | None = None,
    tls: TlsFiles | None = None,
    is_durable: bool = False,
    store: str | None = None,
    for_group: bool = False,
    num_workers: int = 1,
    set_up_worker: Callable[[], None] = lambda: None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a team until interrupted, or until SIGTERM.

    Args:
        data_dir: The folder that holds the runs and the keys.
        host: The address to listen on.
        port: The port; 0 picks a free one.
        allow_hosts: Additional `Host` names to accept, such as the name of a proxy.
        proxy: The proxies in front of the server.
        tls: The certificate, if clients connect without a proxy.
        is_durable: Flush each batch to the disk before it is acknowledged.
        store: The address of a database in ClickHouse that is kept up to date with the runs.
        for_group: Let the group of the data folder read the runs; by default only the user of the server can.
        num_workers: How many processes serve.
        set_up_worker: Called first in each process, if there are several; a function of a module.
        on_ready: Called with the URL once the server accepts connections.

    Raises:
        ServeError: The address cannot be bound, or the folder or the certificate cannot be used.
    """
    if RunFolder(data_dir).exists():
        raise ServeError(f"{os.fspath(data_dir)!r} is a single run; pass a folder for the runs of the team")
    if num_workers > 1 and not can_share_ports():
        raise ServeError(f"--workers {num_workers}: on this system only one process can serve; leave it out")
    _tls_options(tls)
    listener = bind_address(host, port)
    if num_workers > 1:
        port = listener.getsockname()[1]
        listener.close()  # it has shown that no other program has the port
        listener = bind_address(host, port, is_shared=True, listens=False)
    port = listener.getsockname()[1]
    options = _ServeOptions(
        os.fspath(data_dir), host, port, allow_hosts, proxy, tls, is_durable, store, for_group=for_group
    )
    url_host = f"[{host}]" if ":" in host else host
    url = f"{'https' if tls else 'http'}://{url_host}:{port}/"
    with contextlib.closing(listener), private_umask(for_group=for_group):
        try:
            warning = close_to_others(Path(data_dir), for_group=for_group)
        except OSError as error:
            raise ServeError(f"--data {os.fspath(data_dir)!r}: {error.strerror or error}") from error
        if warning is not None:
            _log.warning("%s", warning)
        if num_workers > 1:
            serve_with_workers(
                num_workers, partial(_serve_as_worker, options, set_up_worker), on_ready=lambda: on_ready(url)
            )
        else:
            _serve(options, listener, lambda: on_ready(url))


def _serve_as_worker(options: _ServeOptions, set_up: Callable[[], None], starter: Connection) -> None:
    """Serve as one of several processes; report on a connection when it begins."""
    set_up()
    with contextlib.closing(bind_address(options.host, options.port, is_shared=True)) as listener:
        _serve(options, listener, lambda: starter.send(WorkerStart()))


def _serve(options: _ServeOptions, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    _allow_open_files()
    tls_options = _tls_options(options.tls)
    try:
        app = TeamServer(
            options.data_dir,
            (*options.allow_hosts, options.host),
            proxy=options.proxy,
            is_durable=options.is_durable,
            store=options.store,
        )
    except OSError as error:
        raise ServeError(f"--data {options.data_dir!r}: {error.strerror or error}") from error
    server = create_team_server(app, **tls_options)
    on_ready()
    try:
        server.run(sockets=[listener])
    finally:
        app.close()


def create_team_server(app: TeamServer, **options: Any) -> uvicorn.Server:
    """Return a server for an application; `options` are more arguments of `uvicorn.Config`."""
    config = uvicorn.Config(
        app,
        http=_TeamProtocol,
        ws="none",
        proxy_headers=False,  # `ProxyTrust` reads them
        log_level=logging.ERROR,
        access_log=False,
        timeout_graceful_shutdown=10,
        server_header=False,
        timeout_keep_alive=75,
        **options,
    )
    app.server = uvicorn.Server(config)
    return app.server


def _allow_open_files() -> None:
    """Allow as many open files as the system does: each client and each run that is received needs some."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < limit:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _tls_options(tls: TlsFiles | None) -> dict[str, Any]:
    if tls is None:
        return {}
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServeError(f"--tls-cert {tls.certificate!r} and --tls-key {tls.key!r}: {reason}") from error
    return {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
