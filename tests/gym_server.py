"""The servers of a NeMo Gym: a head server, resources servers and agents, as real HTTP servers in threads.

Each `GymServer` responds with what a test sets: rewards that depend on the request, or a fault.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import yaml


class Fault(NamedTuple):
    """A response that is no valid one."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    is_silent: bool = False
    """Accepts the request and never responds."""
    is_endless: bool = False
    """Sends a body without end."""
    is_dripping: bool = False
    """Sends headers without end, one byte at a time, so that no single read takes long."""
    delay_s: float = 0.0
    is_dropped: bool = False
    """Closes the connection without a response."""
    content_length: int | None = None
    """The size that the headers state, if it is not the real one."""


class GymServer(ThreadingHTTPServer):
    """A server that passes requests to `respond`, a function of path and body that returns an object or a `Fault`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, respond: Callable[[str, Any], Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.respond = respond
        self.requests: list[tuple[str, Any]] = []
        self.is_released = threading.Event()
        self.lock = threading.Lock()
        self.num_active = self.max_active = 0
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def bodies(self, path: str) -> list[Any]:
        with self.lock:
            return [body for own_path, body in self.requests if own_path == path]

    def stop(self) -> None:
        self.is_released.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: GymServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle(None)

    def do_POST(self) -> None:
        self._handle(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _handle(self, body: Any) -> None:
        server = self.server
        with server.lock:
            server.requests.append((self.path, body))
            server.num_active += 1
            server.max_active = max(server.max_active, server.num_active)
        try:
            reply = server.respond(self.path, body)
        finally:
            with server.lock:
                server.num_active -= 1
        fault = reply if isinstance(reply, Fault) else Fault(json.dumps(reply).encode())
        with contextlib.suppress(OSError):
            self._send(fault)

    def _send(self, fault: Fault) -> None:
        if fault.is_silent:
            self.server.is_released.wait()
        if fault.is_dripping:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.server.is_released.wait(0.02):
                self.wfile.write(b"x")
            return
        self.server.is_released.wait(fault.delay_s)
        if fault.is_silent or fault.is_dropped:
            return
        self.send_response(fault.status)
        for name, value in fault.headers:
            self.send_header(name, value)
        if not fault.is_endless:
            size = len(fault.body) if fault.content_length is None else fault.content_length
            self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(fault.body)
        while fault.is_endless and not self.server.is_released.is_set():
            self.wfile.write(b" " * 65536)


def text_of(body: Any) -> str:
    """Return the text of the completion in a request to `/verify`."""
    return "".join(part["text"] for item in body["response"]["output"] for part in item.get("content", ()))


def verify(path: str, body: Any) -> Any:
    """Reward a completion with the number of its characters, in hundredths."""
    return {**(body or {}), "reward": len(text_of(body)) / 100} if path == "/verify" else {}


def turns(*parts: tuple[list[int], list[int]], reward: Any = 1.0) -> dict[str, Any]:
    """Return the response of an agent: for each turn the new tokens before it, and the generated ones."""
    output: list[dict[str, Any]] = []
    sequence: list[int] = []
    for number, (new_ids, generated_ids) in enumerate(parts):
        if number:
            output.append({"type": "function_call_output", "call_id": f"c{number}", "output": "sunny"})
        start = sequence + new_ids
        output.append(
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "…"}],
                "prompt_token_ids": start,
                "generation_token_ids": generated_ids,
                "generation_log_probs": [-0.5 - token / 100 for token in generated_ids],
            }
        )
        sequence = start + generated_ids
    return {"reward": reward, "response": {"output": output}}


class Gym:
    """A head server and the servers that it lists."""

    def __init__(self, resources: dict[str, Any], agents: dict[str, tuple[str, Any]] | None = None) -> None:
        self.servers = {name: GymServer(respond) for name, respond in resources.items()}
        self.config: dict[str, Any] = {
            name: {"resources_servers": {name: {"host": "127.0.0.1", "port": server.port, "entrypoint": "app.py"}}}
            for name, server in self.servers.items()
        }
        for name, (resources_name, respond) in (agents or {}).items():
            server = self.servers[name] = GymServer(respond)
            reference = {"type": "resources_servers", "name": resources_name}
            settings = {"host": "127.0.0.1", "port": server.port, "resources_server": reference}
            self.config[name] = {"responses_api_agents": {"simple_agent": settings}}
        self.config |= {"head_server": {"host": "127.0.0.1", "port": 1}, "policy_model": {"responses_api_models": {}}}
        self.head = GymServer(self._respond)

    def _respond(self, path: str, body: Any) -> Any:
        return yaml.safe_dump(self.config) if path == "/global_config_dict_yaml" else Fault(status=404)

    def stop(self) -> None:
        for server in (self.head, *self.servers.values()):
            server.stop()


@contextlib.contextmanager
def running_gym(*arguments: Any) -> Iterator[Gym]:
    """Run a NeMo Gym for the time of a block."""
    gym = Gym(*arguments)
    try:
        yield gym
    finally:
        gym.stop()
