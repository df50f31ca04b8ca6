"""A server that answers SwanLab's client as the public one does, and records what it receives."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SwanLabServer:
    """Projects, experiments and their metrics, in memory."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any, dict[str, str]]] = []
        self.projects: set[str] = set()
        self.experiments: dict[str, dict[str, Any]] = {}
        self.metrics: list[dict[str, Any]] = []
        self.fails = False
        """Whether uploads of metrics are rejected with status 503."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    body = json.loads(data) if data else None
                except ValueError:
                    body = data
                status, answer = server.answer(self.command, self.path, body, dict(self.headers))
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = handle_any

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        self.requests.append((method, path, body, headers))
        path = path.partition("?")[0]
        if path == "/api/login/api_key":
            user = {"username": "me", "name": "Me"}
            return 200, {"sid": "session", "expiredAt": "2099-01-01T00:00:00.000Z", "userInfo": user}
        if method == "POST" and (found := re.fullmatch(r"/api/projects/([^/]+)", path)):
            self.projects.add(f"{found[1]}/{body['name']}")
            return 201, {}
        if method == "GET" and (found := re.fullmatch(r"/api/project/([^/]+)/([^/]+)", path)):
            if f"{found[1]}/{found[2]}" not in self.projects:
                return 404, {}
            group = {"username": found[1]}
            place = {"name": found[2], "path": f"/{found[1]}/{found[2]}", "version": 1}
            return 200, {"cuid": "project", "group": group, "_count": {"experiments": 0}, **place}
        if path.endswith("/experiment"):
            is_new = body["cuid"] not in self.experiments
            known = self.experiments.setdefault(body["cuid"], {**body, "createdAt": "2026-01-01T00:00:00.000Z"})
            created = {"cuid": body["cuid"], "slug": body["cuid"], "name": body["name"]}
            return (201 if is_new else 200), {**created, "createdAt": known["createdAt"]}
        if path.startswith("/api/house/metrics/summaries/"):
            last: dict[str, int] = {}
            for metric in self.metrics:
                last[metric["key"]] = max(metric["index"], last.get(metric["key"], -1))
            return 200, {"log": [], "media": [], "scalar": [{"key": key, "step": last[key]} for key in last]}
        if path == "/api/house/metrics":
            if self.fails:
                return 503, {}
            self.metrics += body["metrics"]
        if path == "/api/resources/presigned/put":
            return 200, {"urls": [f"{self.url}/{name}" for name in body["paths"]]}
        if path.endswith("/state"):
            self.experiments[path.split("/")[-2]]["state"] = body["state"]
        return 200, {}
