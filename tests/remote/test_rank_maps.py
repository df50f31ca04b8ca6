"""The map of all ranks on a server is the one that rank 0 keeps: journals of large jobs are too long to read."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tachograph.journal import RunFolder, compress_journal, lock_run_folder, read_rank_map, write_rank_map
from tachograph.reader import _rank_heat, read_rank_heat
from tachograph.records import RANK_MAP_QUANTITIES, RankMap
from tachograph.remote import RunSender, hash_bytes
from tests.ranks.written_job import NUM_RANKS, write_job
from tests.remote.conftest import Team, send_all
from tests.store import append

NUM_COLUMNS = 400
"""More windows than the journals have."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of six ranks whose journals count as large, and whose map has more windows than they have."""
    monkeypatch.setattr(_rank_heat, "_MAP_FROM_BYTES", 1_000)
    folder = RunFolder(tmp_path / "logs" / "job")
    write_job(folder.path)
    write_rank_map(folder, make_map())
    return folder


def make_map(num_columns: int = NUM_COLUMNS, first_iteration: int = 0) -> RankMap:
    codes = bytes(index % 256 for index in range(NUM_RANKS * num_columns))
    return RankMap(
        world_size=NUM_RANKS,
        ranks_per_row=1,
        first_iteration=first_iteration,
        iterations_per_column=16,
        num_columns=num_columns,
        last_iteration=first_iteration + 16 * num_columns - 1,
        cells={quantity: zlib.compress(codes) for quantity in RANK_MAP_QUANTITIES},
    )


def heat_of(team: Team, sender: RunSender, quantity: str) -> bytes:
    run = sender.state.run.replace("/", "%2F")
    target = f"/api/v1/runs/{run}/ranks/heat?quantity={quantity}"
    response = team.client.get(target, headers=team.headers("read"))
    assert response.status_code == 200
    return response.content


def count_map_requests(sender: RunSender) -> list[int]:
    """Return a list that gets the status of each request that sends the map."""
    statuses: list[int] = []
    request = sender._connection.request

    def count(method: str, target: str, *arguments: Any) -> Any:
        response = request(method, target, *arguments)
        if target.endswith("/rank-map"):
            statuses.append(response.status)
        return response

    sender._connection.request = count  # type: ignore[method-assign, assignment]
    return statuses


def test_server_shows_the_map_of_the_trainer(team: Team, job: RunFolder) -> None:
    sender = team.sender(job)
    send_all(sender)
    for quantity in ("own", "wait", "data"):
        heat = read_rank_heat(job, quantity)  # type: ignore[arg-type]
        assert heat is not None
        assert heat.num_columns == NUM_COLUMNS
        head, _, cells = heat_of(team, sender, quantity).partition(b"\n")
        assert cells == heat.cells
        assert msgspec.json.decode(head)["last_iteration"] == heat.last_iteration


@pytest.mark.parametrize("is_compressed", [False, True])
def test_map_is_used_for_compressed_journals(team: Team, job: RunFolder, is_compressed: bool) -> None:
    sender = team.sender(job)
    send_all(sender)
    for folder in (job, team.copy_of(sender)):
        for path in (folder.journal, *folder.ranks.glob("*.jsonl")) if is_compressed else ():
            compress_journal(path, below=folder.path, publishing=lambda folder=folder: lock_run_folder(folder))  # type: ignore[misc]
        heat = read_rank_heat(folder)
        assert heat is not None
        assert heat.num_columns == NUM_COLUMNS


def test_map_is_sent_again_only_when_it_changed(team: Team, job: RunFolder) -> None:
    now_s = 0.0
    sender = team.sender(job, clock=lambda: now_s)
    statuses = count_map_requests(sender)
    send_all(sender)
    for _ in range(5):
        now_s += 100.0
        sender.poll()
    assert statuses == [200]
    write_rank_map(job, make_map(NUM_COLUMNS + 1))
    now_s += 100.0
    sender.poll()
    assert statuses == [200, 200]
    assert read_rank_map(team.copy_of(sender)) == read_rank_map(job)
    write_rank_map(job, make_map(NUM_COLUMNS + 2))
    now_s += 10.0
    sender.poll()
    assert statuses == [200, 200]  # a map may have a megabyte
    sender.poll(flush=True)
    assert read_rank_map(team.copy_of(sender)) == read_rank_map(job)


def test_server_that_lost_the_map_gets_it_again(team: Team, job: RunFolder) -> None:
    sender = team.sender(job)
    send_all(sender)
    team.stop()
    copy = team.copy_of(sender)
    copy.rank_map.unlink()
    team.start()
    sender = team.sender(job)  # the trainer is restarted, too
    append(job, [{"event": "event", "time": 2e6, "name": "more"}])
    send_all(sender)
    assert read_rank_map(copy) == read_rank_map(job)


def test_second_copy_of_a_run_has_the_map(team: Team, job: RunFolder) -> None:
    sender = team.sender(job)
    send_all(sender)
    data = job.journal.read_bytes()
    job.journal.write_bytes(data.replace(b'"loss":1', b'"loss":2'))
    append(job, [{"event": "event", "time": 2e6, "name": "more"}])
    send_all(sender)
    assert sender.state.generation == 2
    assert read_rank_map(team.copy_of(sender)) == read_rank_map(job)


def test_late_request_does_not_replace_a_newer_map(team: Team, job: RunFolder) -> None:
    sender = team.sender(job)
    send_all(sender)
    assert put_map(team, msgspec.json.encode(make_map(3))) == 200
    assert read_rank_map(team.copy_of(sender)) == read_rank_map(job)
    other = make_map(3, first_iteration=16)  # rank 0 has lost its map
    assert put_map(team, msgspec.json.encode(other)) == 200
    assert read_rank_map(team.copy_of(sender)) == other


def put_map(team: Team, data: bytes) -> int:
    headers = {
        "Content-Type": "application/json",
        "Content-Encoding": "gzip",
        "Tacho-Bytes": str(len(data)),
        "Tacho-Sha256": hash_bytes(data),
    }
    target = "/api/v1/ingest/runs/0123/rank-map"
    return team.client.put(
        target, content=gzip.compress(data), headers={**headers, **team.headers("write")}
    ).status_code


def damage(change: Callable[[dict[str, Any]], None]) -> bytes:
    content = msgspec.to_builtins(make_map(3))
    change(content)
    return msgspec.json.encode(content)


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[]",
        b"\xff",
        damage(lambda content: content["cells"].pop("data")),
        damage(lambda content: content["cells"].update(own="")),
        damage(lambda content: content.update(num_columns=4)),
        damage(lambda content: content.update(ranks_per_row=0)),
        damage(lambda content: content.update(world_size=10**18)),
        damage(lambda content: content.update(last_iteration=-1)),
        damage(lambda content: content["cells"].update(more=msgspec.to_builtins(os.urandom(5 << 20)))),
    ],
    ids=range(10),
)
def test_invalid_map_is_rejected(team: Team, job: RunFolder, data: bytes) -> None:
    sender = team.sender(job)
    send_all(sender)
    assert put_map(team, data) in {400, 413}
    assert read_rank_map(team.copy_of(sender)) == make_map()


def test_map_that_the_server_rejects_delays_nothing(team: Team, job: RunFolder) -> None:
    job.rank_map.write_bytes(b"{}")
    sender = team.sender(job)
    statuses = count_map_requests(sender)
    send_all(sender)
    assert sender.is_complete
    assert not statuses  # a damaged map is not sent at all
    assert sender.reports == []  # type: ignore[attr-defined]


def test_server_of_an_earlier_version_is_asked_once(team: Team, job: RunFolder) -> None:
    sender = team.sender(job)
    request = sender._connection.request
    targets: list[str] = []

    def without_route(method: str, target: str, *arguments: Any) -> Any:
        targets.append(target)
        return request(method, target.replace("/rank-map", "/unknown"), *arguments)

    sender._connection.request = without_route  # type: ignore[method-assign, assignment]
    send_all(sender)
    write_rank_map(job, make_map(NUM_COLUMNS + 1))
    sender.poll(flush=True)
    assert sender.is_complete
    assert sum(target.endswith("/rank-map") for target in targets) == 1
    assert sender.reports == []  # type: ignore[attr-defined]
