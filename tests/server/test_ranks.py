"""The ranks of a run: the worst first, where they hung, and how they compare over time."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.ranks.written_job import NUM_RANKS, write_job
from tests.server.conftest import Served, check_error


@pytest.fixture
def job(server: Served, logs: Path) -> Path:
    """The folder of a run of six ranks."""
    write_job(logs / "r")
    return logs / "r"


def test_worst_ranks_come_first(client: httpx.Client, job: Path) -> None:
    page = client.get("/api/v1/runs/r/ranks?limit=2").json()
    assert (page["num_ranks"], page["num_by_state"]) == (NUM_RANKS, {"finished": NUM_RANKS})
    worst = page["ranks"][0]
    assert (worst["rank"], worst["num_iterations"]) == (4, 80)
    assert worst["own_s"] == pytest.approx(0.13)
    assert worst["score"] == pytest.approx(1 / 1.3)
    assert len(page["ranks"]) == 2
    rare, common = page["stacks"]
    assert (rare["ranks"], rare["lines"]) == ([2], ['  File "train.py", line 3, in load'])
    assert (common["num_ranks"], common["ranks"]) == (2, [0, 1])


def test_heat_has_a_byte_for_each_rank_and_window(client: httpx.Client, job: Path) -> None:
    response = client.get("/api/v1/runs/r/ranks/heat")
    assert response.headers["content-type"] == "application/octet-stream"
    line, _, cells = response.content.partition(b"\n")
    assert json.loads(line) == {
        "ranks": [*range(NUM_RANKS)],
        "first_iteration": 15,
        "last_iteration": 79,
        "num_columns": 5,
    }
    rows = [list(cells[5 * rank : 5 * rank + 5]) for rank in range(NUM_RANKS)]
    typical = 1 + round(254 * 0.1 / 0.6)
    slow = 1 + round(254 * 0.4 / 0.6)
    assert rows[4] == [typical, typical, slow, slow, slow]
    assert all(row == [typical] * 5 for rank, row in enumerate(rows) if rank != 4)
    data = client.get("/api/v1/runs/r/ranks/heat?quantity=data").content.partition(b"\n")[2]
    assert set(data) == {typical}
    check_error(client.get("/api/v1/runs/r/ranks/heat?quantity=nothing"), 400)


def test_run_of_one_process_has_no_ranks(client: httpx.Client) -> None:
    page = client.get("/api/v1/runs/r/ranks").json()
    assert (page["num_ranks"], page["ranks"], page["stacks"]) == (0, [], [])
    line, _, cells = client.get("/api/v1/runs/r/ranks/heat").content.partition(b"\n")
    assert (json.loads(line)["ranks"], cells) == ([], b"")


def test_broken_rank_files_cost_nothing_else(client: httpx.Client, job: Path) -> None:
    (job / "ranks" / "00001.jsonl").write_bytes(b'{"event":"rank","ms":[null]}\n{"event":"rank",\xff\n{"torn')
    (job / "ranks" / "00003.jsonl").write_bytes(b"")
    (job / "ranks" / "00002.stacks.txt").write_bytes(b"\x00\xff")
    page = client.get("/api/v1/runs/r/ranks").json()
    assert page["num_ranks"] == NUM_RANKS
    assert client.get("/api/v1/runs/r/ranks/heat").status_code == 200
