"""The ASGI application: the API, live updates and the dashboard's static files.

Every request passes the access gate first (see `_access`). API requests are parsed here and handled in a thread,
because the store reads files and takes locks. Responses to `GET` carry an `ETag`, so that polling an unchanged run
costs no bandwidth.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.resources
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tachograph._base.typed import convert, decode_json, field_types
from tachograph.catalog import Catalog
from tachograph.exceptions import did_you_mean
from tachograph.journal import LogFolders, RunScan
from tachograph.server._access import OPEN_PATHS, Access, AccessGate, check_json, is_loopback
from tachograph.server._change_note import change_note_of
from tachograph.server._errors import ApiError, error_response
from tachograph.server._help import send_help
from tachograph.server._identity import identity_of
from tachograph.server._live import LiveUpdates
from tachograph.server._models import LoginRequest, LogoutRequest
from tachograph.server._openapi import openapi
from tachograph.server._routes import (
    HEALTH_PATH,
    ROUTES,
    RequestContext,
    Route,
    ServerHooks,
    check_scope,
    handle_request,
)
from tachograph.server._run_list import RunList
from tachograph.server._series_cache import SeriesCache
from tachograph.server._table import MAX_AGE_S
from tachograph.server._table_lines import LineCache
from tachograph.store import Store

__all__ = ["LogDirs", "create_app", "create_dashboard"]

_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "md": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
}
_MAX_WATCHED_RUNS = 64
_MAX_THREADS = 8
_MAX_SLOW_REQUESTS = 3
"""How many requests of slow routes are handled at once: a gallery asks for a hundred pictures."""
_MAX_PARAMETERS = 600
_MIN_COMPRESSED_BYTES = 16 << 10
_ACCESS_INTERVAL_S = 1.0
"""How often it is checked that the user of a live stream still has access."""
_MISSING_UI_PAGE = """<!doctype html><html lang="en"><title>Tachograph</title>
<h1>The dashboard was not built</h1>
<p>This installation has no user interface. To build it, install Node.js 20.19 or newer and run <code>make ui</code>
in the source folder.</p>
<p>The <a href="/api/v1/openapi.json">API</a> works without it.</p></html>"""


LogDirs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A log folder, or several."""


def create_app(
    log_dir: LogDirs,
    access: Access | None = None,
    *,
    static: Path | None = None,
    is_closing: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Return an application that serves the runs in a log folder, or in several.

    Args:
        log_dir: The folder that holds the runs, or several folders.
        access: The access policy; by default every request for a local host name is allowed.
        static: The folder of the built user interface; defaults to the one in the package.
        is_closing: Returns True once the server shuts down; live streams end then.
    """
    access = access or Access()
    return AccessGate(create_dashboard(log_dir, access, static=static, is_closing=is_closing), access)


def create_dashboard(
    log_dir: LogDirs,
    access: Access,
    *,
    static: Path | None = None,
    is_closing: Callable[[], bool] = lambda: False,
    hooks: ServerHooks | None = None,
    needs_identity: bool = False,
) -> ASGIApp:
    """Return the application behind the access gate; see `create_app`.

    Args:
        log_dir: See `create_app`.
        access: See `create_app`; used to log in and out, and to end live streams that are no longer allowed.
        static: See `create_app`.
        is_closing: See `create_app`.
        hooks: Actions that a team's server adds.
        needs_identity: Reject requests to the API whose identity the access gate did not find out.
    """
    log_dirs = [log_dir] if isinstance(log_dir, (str, os.PathLike)) else log_dir
    scan = RunScan(LogFolders(*log_dirs))
    store = Store(
        *log_dirs,
        known_overview=lambda run: catalog.known_overview(run),  # noqa: PLW0108 - defined below
        scan=scan,
    )
    catalog = Catalog(*log_dirs, open_run=store.share, scan=scan)
    # One Starlette route per path: only then does it answer a wrong method with 405 and all allowed methods.
    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    static = static or Path(str(importlib.resources.files("tachograph.server"))) / "static"
    caches = SeriesCache(), LineCache()
    run_list = RunList(store, catalog.outdate)
    hooks = hooks or ServerHooks()
    routes = [
        StarletteRoute(path, _api_endpoint(by_method, store, catalog, run_list, caches, hooks), methods=list(by_method))
        for path, by_method in by_path.items()
    ]
    routes += [
        StarletteRoute("/api/v1/live", _live_endpoint(store, run_list, access, is_closing)),
        StarletteRoute("/api/v1/login", _login_endpoint(access), methods=["GET", "POST"]),
        StarletteRoute("/api/v1/logout", _logout_endpoint(access), methods=["POST"]),
        StarletteRoute("/api/v1/logout", _reject_get, methods=["GET"]),  # or the static files would answer it with 404
        StarletteRoute("/api/v1/openapi.json", _send_openapi),
        StarletteRoute("/help", lambda request: RedirectResponse("help/")),
        StarletteRoute("/help/{page:path}", send_help),
        StarletteRoute("/{path:path}", _static_endpoint(static, catalog)),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: _handle_http_error,
        ApiError: _handle_api_error,
        ClientDisconnect: _handle_disconnect,
        Exception: _handle_unexpected_error,
    }
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=_limit_threads)
    return _keep_encoded_slashes(_require_identity(app) if needs_identity else app)


def _require_identity(app: ASGIApp) -> ASGIApp:
    """Reject requests to the API without an identity: a second barrier, should the access gate miss one."""

    async def with_identity(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_private = scope["type"] == "http" and path.startswith("/api/") and path not in OPEN_PATHS
        if is_private and identity_of(scope) is None:
            await error_response(ApiError(401, "no_token", "log in first"))(scope, receive, send)
            return
        await app(scope, receive, send)

    return with_identity


_SLASH = "\0"
"""Stands for a slash inside of a path segment; no name of a run has this character."""


def _keep_encoded_slashes(app: ASGIApp) -> ASGIApp:
    """Let `%2F` be part of a path segment, as in the id of a nested run: the server decodes it before routes match."""

    async def with_segments(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path", b"") if scope["type"] == "http" else b""
        if b"%2f" in raw.lower() or b"%00" in raw:
            segments = [unquote(part.decode("latin-1")) for part in raw.partition(b"?")[0].split(b"/")]
            path = "/".join(segment.replace(_SLASH, "\ufffd").replace("/", _SLASH) for segment in segments)
            scope = {**scope, "path": path}
        await app(scope, receive, send)

    return with_segments


@contextlib.asynccontextmanager
async def _limit_threads(app: Starlette) -> AsyncIterator[None]:
    """Limit the worker threads: the GIL serialises them anyway, and each keeps its own buffers."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = _MAX_THREADS
    yield


Endpoint = Callable[[Request], Awaitable[Response]]


def _api_endpoint(
    routes: dict[str, Route],
    store: Store,
    catalog: Catalog,
    run_list: RunList,
    caches: tuple[SeriesCache, LineCache],
    hooks: ServerHooks,
) -> Endpoint:
    """Return the endpoint of one path, given its routes by method."""
    slow_limiter: anyio.CapacityLimiter | None = None

    async def endpoint(request: Request) -> Response:
        route = routes["GET" if request.method == "HEAD" else request.method]
        identity = identity_of(request.scope)
        check_scope(route, identity)  # before anything of the request is parsed
        query = _parse_query(route.query, request)
        data, body = b"", None
        if route.body:
            check_json(request.headers)
            data = await request.body()
            body = _parse_body(route.body, data)
        path = {name: value.replace(_SLASH, "/") for name, value in request.path_params.items()}
        note = change_note_of(request.scope)
        context = RequestContext(store, catalog, run_list, *caches, path, query, body, data, identity, hooks, note)
        if route.path == HEALTH_PATH:  # also answered while all threads are busy
            return _respond(request, route, context)
        if route.is_slow:
            nonlocal slow_limiter
            slow_limiter = slow_limiter or anyio.CapacityLimiter(_MAX_SLOW_REQUESTS)  # needs the event loop
            return await anyio.to_thread.run_sync(_respond, request, route, context, limiter=slow_limiter)
        return await run_in_threadpool(_respond, request, route, context)

    return endpoint


def _respond(request: Request, route: Route, context: RequestContext) -> Response:
    """Handle a request and encode the result: several megabytes of points take a while, too."""
    result = handle_request(route, context)
    return (
        result if isinstance(result, Response) else _json_response(request, msgspec.json.encode(result), route.status)
    )


def _json_response(request: Request, data: bytes, status: int = 200) -> Response:
    if request.method not in {"GET", "HEAD"}:
        return Response(data, status, media_type="application/json")
    response = _etag_response(request, data, "application/json", status)
    if len(data) >= _MIN_COMPRESSED_BYTES:
        response.headers["Vary"] = "Accept-Encoding"
        if response.status_code != 304 and _accepts_gzip(request) and _is_remote(request):
            return _compress(response)
    return response


def _accepts_gzip(request: Request) -> bool:
    encodings = request.headers.get("accept-encoding", "").split(",")
    return "gzip" in {encoding.strip() for encoding in encodings}


def _is_remote(request: Request) -> bool:
    """Return whether a response goes through a network, where its size takes more time than compressing it."""
    return request.client is not None and not is_loopback(request.client.host)


def _compress(response: Response) -> Response:
    """Compress as fast as possible: noisy points to less than half."""
    response.body = gzip.compress(bytes(response.body), 1, mtime=0)
    response.headers["Content-Length"] = str(len(response.body))
    response.headers["Content-Encoding"] = "gzip"
    response.headers["ETag"] = f"W/{response.headers['ETag']}"  # the other encoding has the same tag
    return response


def _etag_response(request: Request, data: bytes, media_type: str, status: int = 200) -> Response:
    """Return the data with an `ETag`, or 304 without it if the client already has this version."""
    # A hash of the body, not the run's version: a run's state can change without a new record.
    tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(data, status, headers, media_type)


def _parse_query(model: type[msgspec.Struct] | None, request: Request) -> Any:
    """Convert the query string to a model; None if the route takes no parameters."""
    items = _query_items(request)
    kinds = field_types(model) if model else {}
    values: dict[str, Any] = {}
    for name, value in items:
        if name not in kinds:
            raise ApiError(400, "bad_query", f"unknown parameter {name[:80]!r}{did_you_mean(name[:80], kinds)}")
        if _is_list(kinds[name]):
            values.setdefault(name, []).append(value)
        elif name in values:
            raise ApiError(400, "bad_query", f"parameter {name} is repeated; give it once")
        else:
            values[name] = value
    if model is None:
        return None
    try:
        query = convert(values, model, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError(400, "bad_query", str(error)) from None
    # msgspec parses "null" as None, and "nan" and "inf" as floats.
    for name, text in values.items():
        value = getattr(query, name)
        if value is None:
            raise ApiError(400, "bad_query", f"{name}: expected a value, got {text!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ApiError(400, "bad_query", f"{name}: expected a finite number, got {value!r}")
    return query


def _query_items(request: Request) -> list[tuple[str, str]]:
    # Not `request.url.query`: older versions of Starlette split the decoded path at a question mark in a run name.
    text = request.scope["query_string"].decode("latin-1")
    # Invalid UTF-8 is replaced, so that it ends up as an unknown name or value instead of a server error.
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="replace")
    except ValueError:
        raise ApiError(400, "bad_query", f"more than {_MAX_PARAMETERS} parameters") from None


def _is_list(kind: Any) -> bool:
    # `Annotated[list[...], Meta]`: the first origin is the list with its items, the second the bare `list`.
    return getattr(getattr(kind, "__origin__", None), "__origin__", None) is list


def _parse_body(model: type[msgspec.Struct], data: bytes) -> Any:
    try:
        return decode_json(data, model)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # RecursionError: deeply nested arrays
        raise ApiError(400, "bad_body", str(error)) from None


def _live_endpoint(store: Store, run_list: RunList, access: Access, is_closing: Callable[[], bool]) -> Endpoint:
    updates = LiveUpdates(store, run_list)

    async def live(request: Request) -> Response:
        items = _query_items(request)
        names = [value for name, value in items if name == "run"]
        versions = [value for name, value in items if name == "after"]
        if len(names) + len(versions) != len(items) or len(versions) > 1:
            raise ApiError(
                400, "bad_query", "unknown parameter; this route takes only `run`, which can be repeated, and `after`"
            )
        if len(names) > _MAX_WATCHED_RUNS:
            raise ApiError(400, "bad_query", f"too many runs; watch at most {_MAX_WATCHED_RUNS} at once")
        # Without X-Accel-Buffering nginx would hold events back until its buffer is full.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        must_end = _stream_must_end(request, access, is_closing)
        return StreamingResponse(updates.watch(names, must_end, *versions), 200, headers, "text/event-stream")

    return live


def _stream_must_end(request: Request, access: Access, is_closing: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that is true once the server shuts down or the request would be rejected: a key was revoked."""
    last_check_s = time.monotonic()

    def must_end() -> bool:
        nonlocal last_check_s
        if is_closing():
            return True
        if time.monotonic() - last_check_s < _ACCESS_INTERVAL_S:
            return False
        last_check_s = time.monotonic()
        try:
            access.check_user(request.scope, request.headers)
        except ApiError:
            return True
        return False

    return must_end


def _login_endpoint(access: Access) -> Endpoint:
    async def login(request: Request) -> Response:
        if request.method != "POST":
            return _json_response(request, msgspec.json.encode(access.login_form))
        login_request = _parse_body(LoginRequest, await request.body())
        response = Response(status_code=204)
        access.log_in(request.scope, request.headers, login_request.token, response)
        return response

    return login


def _logout_endpoint(access: Access) -> Endpoint:
    async def logout(request: Request) -> Response:
        _parse_body(LogoutRequest, await request.body())
        response = Response(status_code=204)
        access.log_out(response)
        return response

    return logout


async def _reject_get(request: Request) -> Response:
    raise ApiError(405, "wrong_method", f"{request.method} is not allowed here; use POST", {"Allow": "POST"})


async def _send_openapi(request: Request) -> Response:
    return _json_response(request, msgspec.json.encode(openapi()))


def _static_endpoint(folder: Path, catalog: Catalog) -> Endpoint:
    """Serve the files that existed when the page was last loaded.

    Requests are looked up in a list of files instead of being joined to the folder, so no path can escape it.
    """
    files: dict[str, Path] = {}
    compressed: dict[str, bytes] = {}

    def read_file(path: str, can_compress: bool) -> tuple[bytes, bool] | None:
        """Return the content of a file, and whether it is compressed."""
        nonlocal files
        # A rebuild changes the hashed names of the assets; a page load is when the new names are first needed.
        if path == "index.html" or not files:
            files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
            for name in compressed.keys() - files.keys():
                compressed.pop(name, None)
        file = files.get(path)
        if not file or path.startswith(".") or not file.is_file():
            return None
        if not can_compress or not path.startswith("assets/"):
            return file.read_bytes(), False
        if path not in compressed:  # its name contains a hash of its content
            compressed[path] = gzip.compress(file.read_bytes(), 6, mtime=0)
        return compressed[path], True

    async def send_file(request: Request) -> Response:
        path = request.path_params["path"] or "index.html"
        content = await run_in_threadpool(read_file, path, _accepts_gzip(request))
        if content is None and path == "index.html":
            return HTMLResponse(_MISSING_UI_PAGE)
        if content is None:
            raise ApiError(404, "not_found", f"not found: /{path[:200]}")
        data, is_compressed = content
        media_type = _MEDIA_TYPES.get(path.rpartition(".")[2], "application/octet-stream")
        response = _etag_response(request, data, media_type)
        if path == "index.html":
            # The page requests the table as soon as its scripts are loaded: look at the runs in the meantime.
            response.background = BackgroundTask(catalog.rows, max_age_s=MAX_AGE_S)
        if path.startswith("assets/"):  # their names contain a hash of their content
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
            response.headers["Vary"] = "Accept-Encoding"
        if is_compressed:
            response.headers["Content-Encoding"] = "gzip"
        return response

    return send_file


async def _handle_api_error(request: Request, error: ApiError) -> Response:
    return error_response(error)


async def _handle_http_error(request: Request, error: HTTPException) -> Response:
    codes = {404: "not_found", 405: "wrong_method"}
    message = f"{request.method} is not allowed here" if error.status_code == 405 else str(error.detail)
    code = codes.get(error.status_code, "bad_request")
    return error_response(ApiError(error.status_code, code, message, dict(error.headers or {})))


async def _handle_disconnect(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)  # never sent: the client has disconnected


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    message = f"internal error: {type(error).__name__}; see the server's output for the traceback"
    return error_response(ApiError(500, "server_fault", message))
