"""Fixtures: a team's server in a thread, with keys, and runs to send."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tachograph.journal import RunFolder
from tachograph.remote import Connection, RunSender, parse_server
from tachograph.server.team import TeamServer, create_team_server
from tests.conftest import HANG_S, reserve_port, wait_for
from tests.store import END, START, step, write

ALL_SCOPES = ("read", "write", "control", "admin")


class Team:
    """A team's server in a thread. It can be stopped and started again on the same port."""

    def __init__(self, data_dir: Path, **options: Any) -> None:
        self.data_dir = data_dir
        self.options = options
        self.port = reserve_port()
        self.start()
        self.tokens: dict[str, str] = {}
        self.connections: list[Connection] = []
        self.client = httpx.Client(base_url=self.url, timeout=HANG_S)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", self.port))
        self.listener.listen(128)
        self.app = TeamServer(self.data_dir, **self.options)
        self.server = create_team_server(self.app, lifespan="off")
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        wait_for(lambda: self.server.started)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()
        self.app.close()

    def token(self, *scopes: str, name: str = "", **options: Any) -> str:
        """Create a key, or return the one that was created with the same name."""
        name = name or "-".join(scopes)
        if name not in self.tokens:
            self.tokens[name] = self.app.keys.create(name, scopes, **options)[1]
        return self.tokens[name]

    def headers(self, *scopes: str, **options: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(*scopes, **options)}"}

    def sender(self, folder: RunFolder, token: str | None = None, **options: Any) -> RunSender:
        """Return a sender of a run; what it reports is in `reports`."""
        key = token or self.token("write")
        connection = Connection(parse_server(self.url), lambda: key)
        reports: list[tuple[str, str, str]] = []
        sender = RunSender(folder, connection, lambda *report: reports.append(report), **options)
        sender.reports = reports  # type: ignore[attr-defined]
        self.connections.append(connection)
        return sender

    def counted_bytes(self, key: str) -> int:
        """Return how many stored bytes are counted for the limit of a key."""
        counts = json.loads((self.data_dir / ".server" / "counts_of_keys" / f"{key}.json").read_text())
        return int(counts["stored_bytes"])

    def copy_of(self, sender: RunSender) -> RunFolder:
        return RunFolder(self.data_dir / sender.state.run)


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    """A team's server over an empty folder."""
    found = Team(tmp_path / "data")
    yield found
    found.client.close()
    for connection in found.connections:
        connection.close()
    found.stop()


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    """Return a function that writes a run with a number of steps."""

    def make(
        name: str = "run", num_steps: int = 3, *, run_id: str = "0123456789abcdef", ends: bool = True
    ) -> RunFolder:
        folder = RunFolder(tmp_path / "logs" / name)
        folder.path.mkdir(parents=True, exist_ok=True)
        records = [{**START, "run_name": name, "run_id": run_id}, *(step(index) for index in range(num_steps))]
        write(folder.path, [*records, *([END] if ends else [])])
        return folder

    return make


def send_all(sender: RunSender) -> None:
    """Poll a sender until the server has everything."""

    def is_done() -> bool:
        sender.poll(flush=True, ignore_pause=True)
        return sender.is_complete

    wait_for(is_done, "sending")
    sender.close()
