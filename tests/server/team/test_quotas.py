"""Limits of keys: what is over them arrives later, and nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

from click.testing import CliRunner

from tachograph.cli._main import main
from tachograph.journal import RunFolder
from tachograph.remote import hash_bytes
from tachograph.server.team import KeyUsage, count_kept_bytes
from tests.remote.conftest import Team, send_all
from tests.store import append, step

MakeRun = Callable[..., RunFolder]


class SteadyClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def with_clock(team: Team) -> SteadyClock:
    clock = SteadyClock()
    team.app.copies.usage = KeyUsage(team.data_dir, clock=clock)
    return clock


def test_run_over_the_limit_arrives_after_another_was_deleted(team: Team, make_run: MakeRun):
    first, second = make_run("first", 500, run_id="a" * 16), make_run("second", 500, run_id="b" * 16)
    size = first.journal.stat().st_size
    token = team.token("write", name="small", max_bytes=size + size // 2)
    clock = with_clock(team)
    one = team.sender(first, token)
    send_all(one)
    sender = team.sender(second, token)
    assert sender.poll(flush=True) > 30
    assert "HTTP 507: the runs of the key 'small' have reached" in sender.state.error
    assert sender._limits.max_bytes == size + size // 2
    send_all(team.sender(make_run("other", 500, run_id="c" * 16)))  # of another key
    team.app.copies.close()
    shutil.rmtree(team.copy_of(one).path)
    clock.now_s += 11
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == second.journal.read_bytes()


def test_kept_bytes_are_counted_again_after_a_restart(team: Team, make_run: MakeRun):
    folder = make_run("run", 500, ends=False)
    token = team.token("write", name="small", max_bytes=folder.journal.stat().st_size + 10)
    send_all(team.sender(folder, token))
    assert count_kept_bytes(team.data_dir) == {"small": folder.journal.stat().st_size}
    team.stop()
    team.start()
    append(folder, [step(1_000)])
    sender = team.sender(folder, token)
    sender.poll(flush=True)
    assert "HTTP 507" in sender.state.error


def test_repeated_batches_are_counted_once(team: Team, make_run: MakeRun):
    folder = make_run("run", 500)
    token = team.token("write", name="small", max_bytes=10**9)
    for _ in range(3):
        shutil.rmtree(folder.private, ignore_errors=True)
        send_all(team.sender(folder, token))
    assert {"small": team.counted_bytes("small")} == count_kept_bytes(team.data_dir)


def test_blobs_count_towards_the_limit(team: Team):
    """Also after a restart, and only for the key that sent a blob first."""
    limited = team.headers("write", name="small", max_bytes=2_500)
    other = team.headers("write", name="other", max_bytes=2_500)

    def put(text: str, headers: dict[str, str]) -> int:
        data = text.encode() * 1_000
        return team.client.put(f"/api/v1/ingest/blobs/{hash_bytes(data)}", content=data, headers=headers).status_code

    assert [put(text, limited) for text in "aabc"] == [201, 200, 201, 507]
    assert [put(text, other) for text in "abc"] == [200, 200, 201]
    assert count_kept_bytes(team.data_dir) == {"small": 2_000, "other": 1_000}
    team.stop()
    team.start()
    assert [put(text, limited) for text in "ad"] == [200, 507]
    assert put("d", other) == 201


def test_usage_is_counted_by_project_and_key(team: Team, make_run: MakeRun):
    folders = [make_run(f"run{number}", 10, run_id=str(number) * 16) for number in range(4)]
    ci, bob = team.token("write", name="ci"), team.token("write", name="bob", project="nlp")
    senders = [team.sender(folder, token) for folder, token in zip(folders, (ci, ci, bob, bob), strict=True)]
    for sender in senders:
        send_all(sender)
    for token in (ci, bob):
        data = b"x" * 1_000
        url, headers = f"/api/v1/ingest/blobs/{hash_bytes(data)}", {"Authorization": f"Bearer {token}"}
        assert team.client.put(url, content=data, headers=headers).status_code == 201
    team.app.copies.close()
    shutil.rmtree(team.copy_of(senders[3]).path)  # deleted runs do not count
    result = CliRunner().invoke(main, ["keys", "usage", "--data", str(team.data_dir), "--json"])
    usages = json.loads(result.output)
    sizes = [folder.journal.stat().st_size for folder in folders]
    facts = {(each["project"], each["key"]): (each["num_runs"], each["num_bytes"]) for each in usages}
    assert facts == {
        ("default", "ci"): (2, sizes[0] + sizes[1]),
        ("nlp", "bob"): (1, sizes[2] + 1_000),
        (None, "ci"): (0, 1_000),
    }
    assert all((each["last_seen"] is not None) == (each["num_runs"] > 0) for each in usages)
    assert "nlp" in CliRunner().invoke(main, ["keys", "usage", "--data", str(team.data_dir)]).output


def test_run_over_the_number_of_open_runs_waits(team: Team, make_run: MakeRun):
    clock = with_clock(team)
    token = team.token("write", name="two", max_open_runs=2)
    for number in range(2):
        send_all(team.sender(make_run(f"run{number}", run_id=str(number) * 16), token))
    folder = make_run("third", run_id="3" * 16)
    sender = team.sender(folder, token)
    assert 20 < sender.poll(flush=True) < 40
    assert "HTTP 429: the key 'two' may send 2 runs at once" in sender.state.error
    assert sorted(path.name for path in (team.data_dir / "default").iterdir()) == ["run0", "run1"]
    send_all(team.sender(make_run("run1", run_id="1" * 16), token))  # one that is open may be registered again
    clock.now_s += 301
    send_all(sender)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()


def test_list_of_keys_shows_what_is_kept(team: Team, make_run: MakeRun):
    folder = make_run("run", 500)
    send_all(team.sender(folder, team.token("write", name="ci", max_bytes=10**9)))
    result = CliRunner().invoke(main, ["keys", "list", "--data", str(team.data_dir), "--json"])
    assert [key["kept_bytes"] for key in json.loads(result.output)] == [folder.journal.stat().st_size]
