"""The application: the API, the live events, and the files of the dashboard."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route as Rule
from starlette.types import ASGIApp

from tachograph.exceptions import did_you_mean
from tachograph.server._access import Access, Gate, set_cookie
from tachograph.server._faults import ApiError, fault_response
from tachograph.server._live import watch
from tachograph.server._models import Login
from tachograph.server._openapi import openapi
from tachograph.server._routes import ROUTES, Call, Route, answer
from tachograph.store import Store

__all__ = ["create_app"]

_KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "md": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
}
_MOST_WATCHED = 64
_MOST_THREADS = 8
_NO_UI = """<!doctype html><html lang="en"><title>Tachograph</title>
<h1>The dashboard was not built</h1>
<p>This installation has no built user interface. In the source folder, with Node.js 20 or newer, run:
<code>make ui</code></p>
<p>The <a href="/api/v1/openapi.json">API</a> works.</p></html>"""


def create_app(
    log_dir: str | os.PathLike[str],
    access: Access | None = None,
    *,
    static: Path | None = None,
    is_closing: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Return the application that serves the runs of a log folder.

    Args:
        log_dir: the folder that holds the runs.
        access: who may ask; without it, anybody on this machine.
        static: the built user interface; without it, the one in the package.
        is_closing: tells when the streams of live events are to end.
    """
    store = Store(log_dir)
    access = access or Access()
    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    rules = [Rule(path, _endpoint(routes, store), methods=list(routes)) for path, routes in by_path.items()]
    rules += [
        Rule("/api/v1/live", _live(store, is_closing)),
        Rule("/api/v1/login", _login(access), methods=["POST"]),
        Rule("/api/v1/login", _only_post, methods=["GET"]),
        Rule("/api/v1/openapi.json", _document),
        Rule("/{path:path}", _files(static or Path(str(importlib.resources.files("tachograph.server"))) / "static")),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: _http_fault,
        ApiError: _api_fault,
        ClientDisconnect: _gone,
        Exception: _own_fault,
    }
    return Gate(Starlette(routes=rules, exception_handlers=handlers, lifespan=_few_threads), access)


@contextlib.asynccontextmanager
async def _few_threads(app: Starlette) -> AsyncIterator[None]:
    """Answer a few requests at once: more threads would take turns all the same, and each keeps memory of its own."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = _MOST_THREADS
    yield


Endpoint = Callable[[Request], Awaitable[Response]]


def _endpoint(routes: dict[str, Route], store: Store) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        route = routes["GET" if request.method == "HEAD" else request.method]
        query = _query(route.query, request)
        body = _body(route.body, await request.body()) if route.body else None
        call = Call(store, dict(request.path_params), query, body)
        found = await run_in_threadpool(answer, route, call)
        if isinstance(found, Response):
            return found
        return _json(request, msgspec.json.encode(found), route.status)

    return endpoint


def _json(request: Request, data: bytes, status: int = 200) -> Response:
    if request.method == "POST":
        return Response(data, status, media_type="application/json")
    return _cached(request, data, "application/json", status)


def _cached(request: Request, data: bytes, kind: str, status: int = 200) -> Response:
    """Return an answer, or only that the reader has it already."""
    tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(data, status, headers, kind)


def _query(wanted: type[msgspec.Struct] | None, request: Request) -> Any:
    items = _query_items(request)
    fields = {field.name: field for field in msgspec.structs.fields(wanted)} if wanted else {}
    values: dict[str, Any] = {}
    for name, value in items:
        if name not in fields:
            raise ApiError(400, "bad_query", f"unknown parameter {name[:80]!r}{did_you_mean(name[:80], fields)}")
        if _is_list(fields[name]):
            values.setdefault(name, []).append(value)
        elif name in values:
            raise ApiError(400, "bad_query", f"{name} is given twice")
        else:
            values[name] = value
    if wanted is None:
        return None
    try:
        query = msgspec.convert(values, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise ApiError(400, "bad_query", str(error)) from None
    for name in fields:
        value = getattr(query, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ApiError(400, "bad_query", f"{name}: expected a finite number, got {value!r}")
    return query


def _query_items(request: Request) -> list[tuple[str, str]]:
    try:
        return parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=500, errors="replace")
    except ValueError:
        raise ApiError(400, "bad_query", "more than 500 parameters") from None


def _is_list(field: msgspec.structs.FieldInfo) -> bool:
    return getattr(getattr(field.type, "__origin__", None), "__origin__", None) is list


def _body(wanted: type[msgspec.Struct], data: bytes) -> Any:
    try:
        return msgspec.json.decode(data, type=wanted)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError(400, "bad_body", str(error)) from None


def _live(store: Store, is_closing: Callable[[], bool]) -> Endpoint:
    async def live(request: Request) -> Response:
        items = _query_items(request)
        names = [value for name, value in items if name == "run"]
        if len(names) != len(items):
            raise ApiError(400, "bad_query", "only `run` is known here; it may be given several times")
        if len(names) > _MOST_WATCHED:
            raise ApiError(400, "bad_query", f"at most {_MOST_WATCHED} runs can be watched at once")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(watch(store, names, is_closing), 200, headers, "text/event-stream")

    return live


def _login(access: Access) -> Endpoint:
    async def login(request: Request) -> Response:
        given = _body(Login, await request.body())
        if not access.is_token(given.token):
            raise ApiError(401, "wrong_token", "this is not the token that the server printed when it started")
        response = Response(status_code=204)
        set_cookie(response, access)
        return response

    return login


async def _only_post(request: Request) -> Response:
    raise ApiError(405, "wrong_method", f"{request.method} is not possible here", {"Allow": "POST"})


async def _document(request: Request) -> Response:
    return _json(request, msgspec.json.encode(openapi()))


def _files(folder: Path) -> Endpoint:
    """Serve the files that are there when the page is loaded, and no others."""
    files: dict[str, Path] = {}

    def find(path: str) -> bytes | None:
        nonlocal files
        if path == "index.html" or not files:
            files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        found = files.get(path)
        return found.read_bytes() if found and not path.startswith(".") and found.is_file() else None

    async def file(request: Request) -> Response:
        path = request.path_params["path"] or "index.html"
        data = await run_in_threadpool(find, path)
        if data is None and path == "index.html":
            return HTMLResponse(_NO_UI)
        if data is None:
            raise ApiError(404, "not_found", f"there is nothing at /{path[:200]}")
        kind = _KINDS.get(path.rpartition(".")[2], "application/octet-stream")
        response = _cached(request, data, kind)
        if path.startswith("assets/"):  # these are named by their content
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response

    return file


async def _api_fault(request: Request, error: ApiError) -> Response:
    return fault_response(error)


async def _http_fault(request: Request, error: HTTPException) -> Response:
    codes = {404: "not_found", 405: "wrong_method"}
    text = f"{request.method} is not possible here" if error.status_code == 405 else str(error.detail)
    return fault_response(
        ApiError(error.status_code, codes.get(error.status_code, "bad_request"), text, dict(error.headers or {}))
    )


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)  # which nobody will read


async def _own_fault(request: Request, error: Exception) -> Response:
    return fault_response(
        ApiError(500, "server_fault", f"the server failed: {type(error).__name__}; its log says more")
    )
