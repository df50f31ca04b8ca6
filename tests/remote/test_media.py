"""Media of a run on a team's server: sent after the records, stored once per project, and deleted with the last run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.journal import RunFolder
from tachograph.remote import RunSender, hash_bytes, read_send_state
from tachograph.server.team import count_kept_bytes, create_backup, restore_backup
from tests.conftest import wait_for
from tests.media_files import image, media, picture, store, table_file
from tests.remote.conftest import Team, send_all
from tests.remote.test_hostile_server import REGISTERED, HostileServer, hostile, is_registration
from tests.store import append, step

__all__ = ["hostile"]

MakeRun = Callable[..., RunFolder]
API = "/api/v1/ingest"


def media_files(folder: RunFolder) -> dict[str, bytes]:
    paths = [path for path in folder.media.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in paths}


def blobs(team: Team) -> list[Path]:
    return [path for path in (team.data_dir / ".server" / "blobs").rglob("*") if path.is_file()]


def add_video(folder: RunFolder, num_bytes: int = 1 << 20) -> dict[str, Any]:
    """Log a file that takes several parts; return its item."""
    item = store(folder.path, os.urandom(num_bytes), "mp4")
    append(folder, [media("clip", "video", 1, item)])
    return item


def with_small_parts(sender: RunSender) -> RunSender:
    sender._media._part_bytes = 64 << 10
    sender._media._adapt_part_size = lambda duration_s: None  # type: ignore[method-assign]
    return sender


def get(team: Team, path: str, **key: Any) -> Any:
    return team.client.get(f"/api/v1/runs/{path}", headers=team.headers("read", **key))


def test_media_of_a_sent_run_are_served(team: Team, make_run: MakeRun):
    folder = make_run()
    mask, cell = image(folder.path, picture(8, 8)), image(folder.path, picture(9, 9))
    table = table_file(folder.path, [{"n": number, "picture": cell} for number in range(3)])
    shown = image(folder.path, caption="a fox", masks={"prediction": mask})
    append(folder, [media("samples", "image", 1, shown), media("table", "table", 2, table), step(3)])
    sender = team.sender(folder, team.token("write", name="vision", project="vision"))
    send_all(sender)
    copy = team.copy_of(sender)
    assert media_files(copy) == media_files(folder)
    assert len(media_files(copy)) == 4
    reader: dict[str, Any] = {"name": "reader", "project": "vision"}
    (record,) = get(team, "run/media/items?name=samples", **reader).json()["records"]
    assert [(item["caption"], item["is_missing"]) for item in record["items"]] == [("a fox", False)]
    for sha256, query in ((shown["sha256"], ""), (mask["sha256"], ""), (cell["sha256"], f"?table={table['sha256']}")):
        answer = get(team, f"run/media/blobs/{sha256}{query}", **reader)
        assert (answer.status_code, hash_bytes(answer.content)) == (200, sha256)
    assert get(team, f"run/media/blobs/{shown['sha256']}?size=320", **reader).headers["content-type"] == "image/webp"
    other = get(team, f"run/media/blobs/{shown['sha256']}", name="other", project="nlp")
    assert other.status_code == 404
    sent_bytes = sender.num_sent_bytes
    again = team.sender(folder, team.token("write", name="vision"))
    send_all(again)
    assert sent_bytes > sum(map(len, media_files(folder).values()))
    assert again.num_sent_bytes == 0


def test_large_file_resumes_after_both_sides_restart(team: Team, make_run: MakeRun):
    folder = make_run()
    item = add_video(folder)
    sender = with_small_parts(team.sender(folder))
    wait_for(lambda: sender.poll(flush=True) is not None and sender._media.num_sent_bytes >= 5 * (64 << 10))
    assert not sender.is_complete
    state = read_send_state(folder)
    assert state is not None
    assert state.media_offset < folder.journal.stat().st_size
    # Not closed, as if it was killed.
    team.stop()
    team.start()
    second = team.sender(folder)
    send_all(second)
    assert second._media.num_sent_bytes == item["bytes"] - sender._media.num_sent_bytes
    assert media_files(team.copy_of(second)) == media_files(folder)
    assert [path.suffix for path in blobs(team)] == [""]
    # The first one continues later; the answer to its next part says that the server has everything.
    send_all(sender)
    assert sender._media.num_sent_bytes == 6 * (64 << 10)


def test_journal_overtakes_media(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    add_video(folder)
    sender = with_small_parts(team.sender(folder))
    number = 10
    while not sender.is_complete:
        append(folder, [step(number)])
        number += 1
        sender.poll(flush=True)
        assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()
    assert number >= 10 + (1 << 20) // (64 << 10)


def test_files_that_cannot_be_sent_are_counted(team: Team, make_run: MakeRun):
    folder = make_run()
    changed, deleted, good = (image(folder.path, picture(colour=(number, 0, 0))) for number in range(3))
    append(folder, [media("samples", "image", 1, changed, deleted, good)])
    for item, text in ((changed, b"changed"), (deleted, None)):
        path = folder.media / item["sha256"][:2] / f"{item['sha256']}.png"
        path.write_bytes(text) if text is not None else path.unlink()
    sender = team.sender(folder)
    send_all(sender)
    assert (sender.state.num_rejected_media, sender.state.num_missing_media) == (1, 1)
    (report,) = sender.reports  # type: ignore[attr-defined]
    assert report[0] == "media_not_sent"
    assert changed["sha256"][:12] in report[2]
    assert list(media_files(team.copy_of(sender))) == [f"{good['sha256']}.png"]
    (record,) = get(team, "default%2Frun/media/items?name=samples").json()["records"]
    assert [(item["is_missing"], item.get("problem")) for item in record["items"]] == [
        (True, None),
        (True, None),
        (False, None),
    ]


def test_media_that_follow_are_not_received_yet(team: Team, make_run: MakeRun):
    folder = make_run()
    item = add_video(folder)
    sender = with_small_parts(team.sender(folder))
    sender.poll(flush=True)
    sender.poll(flush=True)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()
    (record,) = get(team, "default%2Frun/media/items?name=clip").json()["records"]
    assert [(each["is_missing"], each["problem"]) for each in record["items"]] == [(True, "not received yet")]
    answer = get(team, f"default%2Frun/media/blobs/{item['sha256']}")
    assert (answer.status_code, "not received yet" in answer.text) == (404, True)
    send_all(sender)
    (record,) = get(team, "default%2Frun/media/items?name=clip").json()["records"]
    assert record["items"][0]["is_missing"] is False
    assert (
        get(team, f"default%2Frun/media/blobs/{item['sha256']}").content == media_files(folder)[f"{item['sha256']}.mp4"]
    )


def test_full_quota_pauses_media_alone(team: Team, make_run: MakeRun):
    folder = make_run(ends=False)
    add_video(folder)
    sender = with_small_parts(team.sender(folder, team.token("write", name="small", max_bytes=200_000)))
    wait_for(lambda: sender.poll(flush=True) > 10, "a pause")
    assert "its limit" in sender.state.error
    assert not sender.is_complete
    append(folder, [step(10)])
    sender.poll(flush=True)
    assert team.copy_of(sender).journal.read_bytes() == folder.journal.read_bytes()
    kept_bytes = count_kept_bytes(team.data_dir)["small"]
    assert team.counted_bytes("small") == kept_bytes
    assert 100_000 < kept_bytes <= 200_000


def test_equal_files_are_stored_once_and_collected_last(team: Team, make_run: MakeRun):
    folders = [make_run(f"run{number}", run_id=str(number) * 16) for number in range(3)]
    for folder in folders:
        append(folder, [media("samples", "image", 1, image(folder.path))])
    tokens = [
        *[team.token("write", name="vision", project="vision")] * 2,
        team.token("write", name="nlp", project="nlp"),
    ]
    senders = [team.sender(folder, token) for folder, token in zip(folders, tokens, strict=True)]
    for sender in senders:
        send_all(sender)
    files = [next(path for path in team.copy_of(sender).media.rglob("*.png")) for sender in senders]
    inodes = [path.stat().st_ino for path in files]
    assert inodes[0] == inodes[1] != inodes[2]
    size = len(picture())
    assert [sender._media.num_sent_bytes for sender in senders] == [size, 0, size]
    journal_bytes = sum(team.copy_of(sender).journal.stat().st_size for sender in senders[:2])
    assert count_kept_bytes(team.data_dir)["vision"] == journal_bytes + size
    team.app.copies.close()
    shutil.rmtree(team.copy_of(senders[0]).path)
    assert team.app.blobs.collect(grace_s=0).num_files == 0
    assert files[1].read_bytes() == picture()
    shutil.rmtree(team.copy_of(senders[1]).path)
    assert team.app.blobs.collect().num_files == 0, "nothing is deleted at once"
    assert tuple(team.app.blobs.collect(grace_s=0)) == (1, size)
    assert count_kept_bytes(team.data_dir)["vision"] == 0
    assert [path.stat().st_ino for path in blobs(team)] == [inodes[2]]


def test_file_that_is_being_sent_is_not_collected(team: Team, make_run: MakeRun):
    folder = make_run()
    add_video(folder)
    sender = with_small_parts(team.sender(folder))
    wait_for(lambda: sender.poll(flush=True) is not None and sender._media.num_sent_bytes > 0)
    assert team.app.blobs.collect().num_files == 0
    # A part that is collected anyway, after a long pause, is sent again.
    assert team.app.blobs.collect(grace_s=0).num_files == 1
    send_all(sender)
    assert media_files(team.copy_of(sender)) == media_files(folder)


def test_backup_has_each_file_once(team: Team, make_run: MakeRun, tmp_path: Path):
    folders = [make_run(f"run{number}", run_id=str(number) * 16) for number in range(2)]
    data = os.urandom(300_000)
    for folder in folders:
        append(folder, [media("samples", "image", 1, image(folder.path, data))])
        send_all(team.sender(folder))
    archive, restored = tmp_path / "backup.tar.gz", tmp_path / "restored"
    create_backup(team.data_dir, archive)
    assert archive.stat().st_size < 400_000
    restore_backup(archive, restored)
    paths = [path for path in restored.rglob("*") if path.name.startswith(hash_bytes(data))]
    assert len(paths) == 3
    assert {path.read_bytes() for path in paths} == {data}
    assert {path.stat().st_nlink for path in paths} == {3}


def test_no_key_learns_of_files_of_other_projects(team: Team, make_run: MakeRun):
    folder = make_run()
    item = image(folder.path)
    append(folder, [media("samples", "image", 1, item)])
    send_all(team.sender(folder, team.token("write", name="alpha", project="alpha")))
    run_id, sha256 = "0123456789abcdef", item["sha256"]
    other = make_run("other", run_id="f" * 16)
    send_all(team.sender(other, team.token("write", name="beta", project="beta")))
    beta, alpha = team.headers("write", name="beta"), team.headers("write", name="alpha")
    body = {"files": [[sha256, "png"]]}
    assert team.client.head(f"{API}/blobs/{sha256}", headers=beta).status_code == 404
    assert team.client.head(f"{API}/blobs/{sha256}?run={'f' * 16}", headers=beta).status_code == 404
    assert team.client.head(f"{API}/blobs/{sha256}?run={run_id}", headers=beta).status_code == 403
    assert team.client.put(f"{API}/runs/{run_id}/media", json=body, headers=beta).status_code == 403
    answer = team.client.put(f"{API}/runs/{'f' * 16}/media", json=body, headers=beta)
    assert (answer.status_code, answer.json()) == (200, {"missing": {sha256: 0}})
    url = f"{API}/blobs/{sha256}?run={run_id}&ext=png&offset=0&size=4"
    assert team.client.put(url, content=b"data", headers=beta).status_code == 403
    assert not (team.data_dir / "beta" / "other" / "media").exists()
    assert team.client.head(f"{API}/blobs/{sha256}", headers=alpha).status_code == 200
    assert team.client.put(f"{API}/runs/{run_id}/media", json=body, headers=alpha).json() == {"missing": {}}
    # A key of the same project cannot add to a run that another key registered.
    rival = team.headers("write", name="rival", project="alpha")
    assert team.client.put(f"{API}/runs/{run_id}/media", json=body, headers=rival).status_code == 403


def test_parts_and_names_are_checked(team: Team, make_run: MakeRun):
    send_all(team.sender(make_run()))
    headers, run_id = team.headers("write"), "0123456789abcdef"
    data = b"abcdefgh"
    sha256 = hash_bytes(data)

    def put(part: bytes, offset: int, size: int = 8, name: str = sha256, ext: str = "png", **more: str) -> Any:
        url = f"{API}/blobs/{name}?run={run_id}&ext={ext}&offset={offset}&size={size}"
        part_headers = {**headers, "Tacho-Sha256": hash_bytes(part), **more}
        return team.client.put(url, content=part, headers=part_headers)

    def has() -> tuple[int, str]:
        answer = team.client.head(f"{API}/blobs/{sha256}?run={run_id}", headers=headers)
        return answer.status_code, answer.headers.get("tacho-have", "")

    assert put(b"abc", 0).json()["have"] == 3
    assert has() == (404, "3")
    assert put(b"abc", 0).json()["have"] == 3, "a repeated part changes nothing"
    answer = put(b"h", 7)
    assert (answer.status_code, answer.json()["have"]) == (409, 3)
    assert put(b"bcde", 1).json()["have"] == 5, "an overlapping part adds its new bytes"
    assert put(b"XXX", 5).status_code == 400, "the whole has another hash"
    assert has() == (404, "0")
    assert put(b"abcd", 0, **{"Tacho-Sha256": "0" * 64}).status_code == 400
    assert put(b"abcdefghi", 0).status_code == 400
    assert put(data, 0, name="0" * 64).status_code == 400
    for extension in ("..", "png%2f..%2f..", "PNG", "", "a.b.c", ".png", "png.", "p" * 30):
        assert put(data, 0, ext=extension).status_code == 400, extension
    for name in ("0" * 63, "A" * 64, "%2e%2e", "..%2f..%2fkeys.json"):
        assert put(data, 0, name=name).status_code in {400, 404}, name
    for query in ("size=8", "offset=0", "offset=-1&size=8", "offset=0&size=1e3", "x=1", "run=a&run=b", "run=..%2fx"):
        assert team.client.put(f"{API}/blobs/{sha256}?{query}", content=data, headers=headers).status_code == 400
    too_many = {"files": [[sha256, "png"]] * 501}
    assert team.client.put(f"{API}/runs/{run_id}/media", json=too_many, headers=headers).status_code == 400
    assert (
        team.client.put(f"{API}/runs/{run_id}/media", json={"files": [["..", "png"]]}, headers=headers).status_code
        == 400
    )
    assert not (team.data_dir / "default" / "run" / "media").exists()
    assert put(b"abcd", 0).json()["have"] == 4
    assert put(b"efgh", 4).json()["have"] == 8
    assert has() == (200, "")
    assert (team.data_dir / "default" / "run" / "media" / sha256[:2] / f"{sha256}.png").read_bytes() == data


@pytest.mark.parametrize(
    ("answer", "is_complete"),
    [
        ((404, {"error": {"code": "not_found", "message": "no such route"}}), True),
        ((200, {"missing": {"0" * 64: 5}}), True),
        ((200, {"missing": "x"}), False),
        ((200, {"missing": {"SHA": 10**15}}), False),
        ((500, b""), False),
    ],
    ids=["old server", "other file", "wrong type", "too far", "error"],
)
def test_any_answer_about_media_is_survived(
    hostile: HostileServer, make_run: MakeRun, answer: tuple[int, Any], is_complete: bool
):
    folder = make_run()
    item = image(folder.path)
    append(folder, [media("samples", "image", 1, item)])
    status, body = answer
    if isinstance(body, dict) and isinstance(body.get("missing"), dict):
        body = {"missing": {name.replace("SHA", item["sha256"]): have for name, have in body["missing"].items()}}
    size = folder.journal.stat().st_size

    def answers(path: str) -> tuple[int, Any]:
        if is_registration(path):
            return 200, REGISTERED
        return (200, {"have": size}) if path.endswith(("beat", "?offset=0")) and "blobs" not in path else (status, body)

    sender = hostile.sender(folder)
    hostile.answers = answers
    for _ in range(10):
        sender.poll(flush=True, ignore_pause=True)
    assert sender.is_complete is is_complete
    assert len(hostile.requests) < 40
