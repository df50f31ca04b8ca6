"""Media: names, items, histograms and tables; and files of any content, which must do no harm."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from PIL import Image

from tachograph.catalog._media import drop_media, pack_media
from tachograph.reader._thumbnails import ThumbnailError, _scale
from tachograph.server import Access
from tests.media_files import histograms, image, media, picture, png_bomb, store, table_file
from tests.server.conftest import TOKEN, Served, check_error
from tests.store import END, START, step, write

HTML = b"<!doctype html><script>parent.document.title = 'stolen'; fetch('/api/v1/runs')</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(2)</script></svg>"
POLYGLOT = b"GIF89a/*\x00\x00\x00\x00\x00*/=1;fetch('/api/v1/runs');"
FILES: dict[str, tuple[bytes, str]] = {
    "png": (picture(), "png"),
    "jpeg": (picture(kind="JPEG"), "jpg"),
    "webp": (picture(kind="WEBP"), "webp"),
    "gif": (picture(kind="GIF"), "gif"),
    "wav": (b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(100), "wav"),
    "mp3": (b"ID3\x04" + bytes(100), "mp3"),
    "flac": (b"fLaC" + bytes(100), "flac"),
    "ogg": (b"OggS" + bytes(100), "ogg"),
    "mp4": (b"\x00\x00\x00\x20ftypisom" + bytes(range(256)) * 20, "mp4"),
    "webm": (b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\xf3\x81\x08B\x82\x84webm", "webm"),
    "html": (HTML, "html"),
    "html named png": (HTML + b"1", "png"),
    "svg": (SVG, "svg"),
    "svg named png": (SVG + b"<!-- -->", "png"),
    "polyglot": (POLYGLOT, "gif"),
    "broken": (picture()[:60], "png"),
    "bomb": (png_bomb(10_000, 8_000), "png"),
    "huge bomb": (png_bomb(30_000, 30_000), "png"),
    "empty": (b"", "png"),
    "matroska": (b"\x1a\x45\xdf\xa3" + bytes(100), "mkv"),
    "text": (b"plain words", "txt"),
    "points": (b"\x93NUMPY\x01\x00" + bytes(120), "npy"),
}
TYPES = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "polyglot": "image/gif",
    "broken": "image/png",
    "bomb": "image/png",
    "huge bomb": "image/png",
}
"""The types of the files that browsers may show; all others are downloads."""


class Media(NamedTuple):
    client: httpx.Client
    run: Path
    hashes: dict[str, str]

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(f"/api/v1/runs/m/media{path}", **options)

    def blob(self, name: str, query: str = "", **options: Any) -> httpx.Response:
        return self.get(f"/blobs/{self.hashes.get(name, name)}{query}", **options)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    logs = tmp_path_factory.mktemp("media")
    run = logs / "m"
    items = {name: store(run, data, extension) for name, (data, extension) in FILES.items()}
    cell = {"media": "image", **image(run, picture(9, 9, "green"))}
    rows = [{"prompt": f"p{i}", "score": float("nan") if i == 2 else i, "picture": cell} for i in range(30)]
    rows_json = [{**row, "score": "NaN" if row["score"] != row["score"] else row["score"]} for row in rows]
    table = table_file(run, rows_json)
    mask = store(run, picture(64, 48, 1, mode="L"), "png")
    lost = {"sha256": "f" * 64, "ext": "png", "bytes": 10}
    records = [
        START,
        *(media("files", "file", 1, {**item, "file_name": name}) for name, item in items.items()),
        media("page", "html", 1, items["html"]),
        media("table", "table", 5, table),
        *(media("samples", "image", i, *[{**items["png"], "caption": f"c{i}"}] * 4) for i in range(0, 100, 10)),
        media("samples", "image", 45, num_dropped=4, reason="queue full"),
        media("samples", "image", 90, {**items["png"], "caption": "again", "masks": {"m": mask}}),
        media("lost", "image", 3, lost),
        *(histograms(i, w={"edges": [0, 1, 2], "counts": [i, 1], "n": i + 1, "std": "NaN"}) for i in range(500)),
        END,
    ]
    write(run, records)
    server = Served(logs)
    hashes = {name: item["sha256"] for name, item in items.items()}
    yield Media(
        server.client,
        run,
        {**hashes, "table": table["sha256"], "cell": cell["sha256"], "mask": mask["sha256"], "lost": "f" * 64},
    )
    server.close()


def test_names_steps_and_gaps_are_listed(shared):
    page = shared.get("").json()
    by_name = {entry["name"]: entry for entry in page["media"]}
    samples = by_name["samples"]
    assert (samples["kind"], samples["steps"], samples["num_items"]) == ("image", list(range(0, 100, 10)), 41)
    assert samples["gaps"] == [{"step": 45, "num_dropped": 4, "reason": "queue full"}]
    assert page["histograms"] == [{"name": "w", "num_steps": 500}]
    assert page["is_whole"] and page["version"]


def test_items_are_returned_newest_first_within_limits(shared):
    page = shared.get("/items?name=samples&step_min=40&step_max=90").json()
    assert [record["step"] for record in page["records"]] == [90, 90, 80, 70, 60, 50, 45, 40]
    assert [item["caption"] for item in page["records"][0]["items"]] == ["again"]  # the later one of two
    assert page["records"][0]["items"][0]["is_missing"] is False
    assert page["is_whole"]
    few = shared.get("/items?name=samples&limit=9").json()
    assert [record["step"] for record in few["records"]] == [90, 90, 80]
    assert not few["is_whole"]
    assert shared.get("/items?name=lost").json()["records"][0]["items"][0]["is_missing"] is True
    assert shared.get("/items?name=nothing").json()["records"] == []
    for query in ("", "?name=samples&limit=0", "?name=samples&limit=5000", "?name=samples&step_min=x", "?nam=x"):
        check_error(shared.get(f"/items{query}"), 400, "bad_query")


def test_histograms_are_thinned_out_evenly(shared):
    page = shared.get("/histograms?name=w").json()
    steps = [histogram["step"] for histogram in page["histograms"]]
    assert (len(steps), steps[0], steps[-1], page["num_steps"]) == (200, 0, 499, 500)
    assert page["histograms"][7]["edges"] == [0, 1, 2]
    assert page["histograms"][7]["std"] is None
    check_error(shared.get("/histograms?name=nothing"), 404, "no_such_histogram")


def test_large_table_is_read_in_parts_with_its_pictures(shared):
    page = shared.get(f"/tables/{shared.hashes['table']}?offset=1&limit=2").json()
    assert [row["prompt"] for row in page["rows"]] == ["p1", "p2"]
    assert (page["rows"][1]["score"], page["num_rows"], page["is_whole"]) == ("NaN", 30, True)
    check_error(shared.blob("cell"), 404, "no_such_file")  # only the table lists it
    assert shared.blob("cell", f"?table={shared.hashes['table']}").content == picture(9, 9, "green")
    assert shared.blob("cell", f"?table={shared.hashes['table']}&size=320").headers["content-type"] == "image/webp"
    check_error(shared.blob("cell", f"?table={shared.hashes['png']}"), 404)
    assert shared.get(f"/tables/{shared.hashes['html']}").json()["rows"] == []


def test_metric_at_steps_with_media_and_its_best_step(tmp_path):
    run = tmp_path / "m"
    values = {0: 3.0, 9: float("nan"), 10: 0.5, 12: 0.2, 25: 0.4, 40: 0.4}
    steps = [step(number, val_loss=value, accuracy=value) for number, value in values.items()]
    pictures = [media("samples", "image", number, image(run)) for number in (0, 9, 11, 30, 50)]
    write(run, [START, *steps, *pictures, END])
    server = Served(tmp_path)
    try:
        url = "/api/v1/runs/m/media/metric"
        page = server.client.get(url, params={"name": "samples", "metric": "val_loss"}).json()
        assert page["steps"] == [0, 9, 11, 30, 50]
        assert page["values"] == [3.0, "NaN", 0.5, 0.4, 0.4]
        assert (page["best_step"], page["is_lower_better"]) == (30, True)  # the first of two
        page = server.client.get(url, params={"name": "samples", "metric": "accuracy"}).json()
        assert (page["best_step"], page["is_lower_better"]) == (0, False)
        page = server.client.get(url, params={"name": "samples", "metric": "none"}).json()
        assert (page["values"], page["best_step"]) == ([None] * 5, None)
        assert server.client.get(url, params={"name": "none", "metric": "val_loss"}).json()["steps"] == []
    finally:
        server.close()


def test_packed_and_thinned_media_are_served(tmp_path):
    run = tmp_path / "m"
    pictures = [image(run, picture(400, 300, (number, 0, 0))) for number in range(3)]
    table = table_file(run, [{"n": number} for number in range(3)])
    records = [media("samples", "image", number, item) for number, item in enumerate(pictures)]
    folder = write(run, [START, *records, media("table", "table", 1, table), END])
    assert drop_media(folder, is_thinned=True, publishing=lambda: nullcontext(True))[1] == 1
    assert pack_media(folder, publishing=lambda: nullcontext(True)) == 3
    server = Served(tmp_path)
    try:
        url = "/api/v1/runs/m/media"
        first = f"{url}/blobs/{pictures[0]['sha256']}"
        data = picture(400, 300, (0, 0, 0))
        assert server.client.get(first).content == data
        answer = server.client.get(first, headers={"Range": "bytes=5-9"})
        assert (answer.content, answer.headers["content-range"]) == (data[5:10], f"bytes 5-9/{len(data)}")
        assert server.client.get(first, params={"size": 320}).headers["content-type"] == "image/webp"
        assert server.client.get(f"{url}/tables/{table['sha256']}").json()["num_rows"] == 3
        records = server.client.get(f"{url}/items", params={"name": "samples"}).json()["records"]
        states = [(item["is_missing"], item.get("is_thumbnail")) for record in records for item in record["items"]]
        assert states == [(False, None), (True, True), (False, None)]
        thinned = f"{url}/blobs/{pictures[1]['sha256']}"
        assert server.client.get(thinned, params={"size": 320}).content[8:12] == b"WEBP"
        check_error(server.client.get(thinned), 404, "missing_file")
    finally:
        server.close()


def test_media_are_exported_as_zip_sheet_and_animation(shared):
    def export(**query: Any) -> httpx.Response:
        return shared.get("/export", params={"name": "samples", **query})

    answer = export()
    assert answer.headers["content-disposition"] == 'attachment; filename="samples.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == 42 and {"step-000000090-000.png", "step-000000090-000-2.png"} < set(names)
        lines = [json.loads(line) for line in archive.read("items.jsonl").splitlines()]
        assert [line["caption"] for line in lines if line["step"] == 50] == ["c50"] * 4
        assert archive.read("step-000000000-003.png") == picture()
    with Image.open(io.BytesIO(export(format="png", step=50).content)) as sheet:
        assert sheet.format == "PNG" and sheet.width == 4 * 332 + 12
        assert sheet.getpixel((12 + 160, 12 + 160)) != (255, 255, 255)
    with Image.open(io.BytesIO(export(format="webp", prompt="1").content)) as animation:
        assert getattr(animation, "n_frames", 1) >= 1 and animation.size == (64, 48)
    check_error(export(format="png", step=45), 404, "no_pictures")
    check_error(shared.get("/export", params={"name": "none"}), 404, "no_such_media")
    check_error(shared.get("/export", params={"name": "files", "format": "png"}), 404, "no_pictures")
    check_error(export(format="exe"), 400)
    with zipfile.ZipFile(io.BytesIO(shared.get("/export", params={"name": "lost"}).content)) as archive:
        assert archive.namelist() == ["items.jsonl"] and b"missing" in archive.read("items.jsonl")


def test_first_bytes_decide_what_may_be_shown(shared):
    for name, (data, _) in FILES.items():
        answer = shared.blob(name)
        assert (answer.status_code, answer.content) == (200, data), name
        assert answer.headers["content-type"] == TYPES.get(name, "application/octet-stream"), name
        disposition = answer.headers["content-disposition"]
        assert disposition == "inline" if name in TYPES else disposition.startswith("attachment; "), name
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["etag"] == f'"{shared.hashes[name]}"'
        assert answer.headers["x-frame-options"] == "DENY"
        if name != "huge bomb":
            download = shared.blob(name, "?download=true").headers["content-disposition"]
            assert re.fullmatch(r'attachment; filename="[0-9a-f]{16}\.[a-z0-9]+"', download)


def test_known_files_are_not_sent_again(shared):
    tag = shared.blob("png").headers["etag"]
    assert shared.blob("png", headers={"If-None-Match": tag}).status_code == 304
    small = shared.blob("png", "?size=320")
    again = shared.blob("png", "?size=320", headers={"If-None-Match": small.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert small.headers["etag"] != tag


def test_ranges_of_files_can_be_requested(shared):
    data = FILES["mp4"][0]
    size = len(data)
    end = size - 1
    for text, first, last in [("0-9", 0, 9), ("10-", 10, end), ("-7", size - 7, end), ("5-99999", 5, end)]:
        answer = shared.blob("mp4", headers={"Range": f"bytes={text}"})
        assert (answer.status_code, answer.content) == (206, data[first : last + 1]), text
        assert answer.headers["content-range"] == f"bytes {first}-{last}/{size}"
        assert answer.headers["content-security-policy"].startswith("sandbox")
    for text in ("99999-", "9-3", "-0"):
        answer = shared.blob("mp4", headers={"Range": f"bytes={text}"})
        assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}"), text
    for text in ("bytes=0-1,4-5", "bytes=a-b", "lines=0-1", "bytes=-"):
        assert shared.blob("mp4", headers={"Range": text}).content == data, text
    assert shared.blob("mp4", headers={"Range": "bytes=0-1", "If-Range": '"other"'}).content == data
    head = shared.client.head(f"/api/v1/runs/m/media/blobs/{shared.hashes['mp4']}")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(size), b"")


def test_pictures_are_scaled_down_and_cached(server, logs):
    run = logs / "t"
    large = image(run, picture(1600, 900))
    grey = image(run, picture(1200, 600, 40_000, mode="I;16"))
    clear = image(run, picture(700, 700, (1, 2, 3, 0), mode="RGBA"))
    write(run, [START, media("s", "image", 1, large, grey, clear)])
    url = "/api/v1/runs/t/media/blobs/{}?size=320"
    for item, size, pixel in [
        (large, (320, 180), (200, 30, 30)),
        (grey, (320, 160), (155, 155, 155)),
        (clear, (320, 320), None),
    ]:
        answer = server.client.get(url.format(item["sha256"]))
        scaled = Image.open(io.BytesIO(answer.content))
        assert (scaled.format, scaled.size) == ("WEBP", size)
        if pixel is None:
            assert scaled.getchannel("A").getextrema() == (0, 0)
        else:
            assert all(abs(a - b) < 8 for a, b in zip(scaled.convert("RGB").getpixel((9, 9)), pixel, strict=True))
    cached = run / ".tacho" / "thumbs" / f"{large['sha256']}-320.webp"
    assert cached.read_bytes() == server.client.get(url.format(large["sha256"])).content
    cached.write_bytes(HTML)  # not a picture: made again
    assert server.client.get(url.format(large["sha256"])).content[8:12] == b"WEBP"
    cached.unlink()
    cached.symlink_to(run / "metrics.jsonl")
    assert server.client.get(url.format(large["sha256"])).content[8:12] == b"WEBP"
    assert (run / "metrics.jsonl").read_bytes().startswith(b'{"event":"start"')


def test_what_cannot_be_scaled_says_why(shared):
    for name, reason in {
        "bomb": "10000 × 8000 pixels are too many",
        "huge bomb": "too many",
        "broken": "not a picture",
        "svg": "not a picture",
        "html named png": "not a picture",
        "empty": "not a picture",
        "polyglot": "not a picture",
        "mp4": "not a picture",
    }.items():
        assert reason in check_error(shared.blob(name, "?size=320"), 422, "no_thumbnail"), name
    for size in ("0", "319", "100000", "x", "-1"):
        check_error(shared.blob("png", f"?size={size}"), 400, "bad_query")


def test_decoding_ends_at_its_deadline(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(picture(3000, 3000))
    with open(path, "rb") as file, pytest.raises(ThumbnailError, match="longer than"):
        _scale(file, 320, deadline_s=-1.0)


def test_only_listed_files_of_the_run_can_be_read(server, logs):
    run = logs / "t"
    outside = store(logs / "r", b"a file of another run", "txt")
    listed = store(run, b"mine", "txt")
    unlisted = store(run, b"not in the journal", "txt")
    secret = logs / "secret.txt"
    secret.write_text("secret")
    linked, folder_linked = "1" * 64, "2" * 64
    (run / "media" / "11").mkdir()
    (run / "media" / "11" / f"{linked}.txt").symlink_to(secret)
    elsewhere = logs / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{folder_linked}.txt").write_text("secret")
    (run / "media" / "22").symlink_to(elsewhere)
    pipe = "3" * 64
    (run / "media" / "33").mkdir()
    os.mkfifo(run / "media" / "33" / f"{pipe}.txt")
    odd = [
        {"sha256": sha256, "ext": extension} for sha256 in ("4" * 64, "../" * 9) for extension in ("/../x", "..", "")
    ]
    items = [listed, *({"sha256": sha256, "ext": "txt"} for sha256 in (linked, folder_linked, pipe)), *odd]
    pointed = {"sha256": "5" * 64, "ext": "txt", "path": str(secret), "kept": False}
    write(run, [START, media("s", "file", 1, *items, pointed)])

    def status(text: str) -> int:
        return server.get_raw(f"/api/v1/runs/t/media/blobs/{text}")[0]

    assert status(listed["sha256"]) == 200
    tricks = [
        *(unlisted["sha256"], outside["sha256"], linked, folder_linked, pipe, "4" * 64, "5" * 64),
        *(listed["sha256"].upper(), listed["sha256"] + "0", listed["sha256"][:-1], f"{listed['sha256']}.txt", "x" * 64),
        *("..", "%2e%2e", "..%2f..%2fmetrics.jsonl", "%2fetc%2fpasswd", f"{listed['sha256']}%00", "%0a", "٣" * 64),
        f"{listed['sha256'][:2]}%2f{listed['sha256']}.txt",
    ]
    for text in tricks:
        assert status(text) in {400, 404}, text
        for part in ("frames", "tables"):
            assert server.get_raw(f"/api/v1/runs/t/media/{part}/{text}")[0] in {400, 404}, text
    check_error(server.client.get(f"/api/v1/runs/r/media/blobs/{outside['sha256']}"), 404)


def test_pages_are_served_only_to_sandboxed_frames(shared):
    answer = shared.get(f"/frames/{shared.hashes['html']}")
    assert (answer.status_code, answer.content) == (200, HTML)
    policy = answer.headers["content-security-policy"]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert rules["sandbox"] == ["allow-scripts"]
    assert rules["default-src"] == ["'none'"]
    assert rules["frame-ancestors"] == ["'self'"]
    assert "connect-src" not in rules and not any("self" in " ".join(rules[name]) for name in rules if "src" in name)
    for where in ("document", "object", "embed", "script", "empty"):
        refused = shared.get(f"/frames/{shared.hashes['html']}", headers={"Sec-Fetch-Dest": where})
        check_error(refused, 403, "only_in_frame")
    for name in ("png", "svg", "html named png", "table"):  # not logged as HTML
        check_error(shared.get(f"/frames/{shared.hashes[name]}"), 404, "no_such_file")


def test_policy_of_the_dashboard_allows_only_its_own_frames(shared):
    policy = shared.client.get("/").headers["content-security-policy"]
    assert "frame-src 'self'" in policy and "media-src 'self'" in policy
    assert "script-src 'self';" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy


def test_plotly_figure_needs_its_package(server, logs):
    run = logs / "t"
    figure = store(run, b'{"data": [{"y": [1]}], "layout": {"title": "</script><script>alert(1)</script>"}}', "json")
    write(run, [START, media("f", "plotly", 1, figure)])
    answer = server.client.get(f"/api/v1/runs/t/media/frames/{figure['sha256']}")
    assert answer.status_code == 200
    assert b"install the Python package" in answer.content or b"\\u003c/script>" in answer.content
    assert b"alert(1)</script>" not in answer.content.replace(b"\\u003c/script>", b"")


def test_missing_folder_of_media_is_said(server, logs):
    write(logs / "t", [START, media("s", "image", 1, {"sha256": "a" * 64, "ext": "png"})])
    for query in ("", "?size=320"):
        answer = server.client.get(f"/api/v1/runs/t/media/blobs/{'a' * 64}{query}")
        assert "missing" in check_error(answer, 404, "missing_file")


def test_files_need_the_token_like_everything_else(logs, serve: Callable[..., Any]):
    run = logs / "t"
    item = image(run)
    write(run, [START, step(1, loss=1.0), media("s", "image", 1, item)])
    client = serve(logs, Access(TOKEN)).client
    for path in ("", "/items?name=s", f"/blobs/{item['sha256']}", f"/frames/{item['sha256']}"):
        check_error(client.get(f"/api/v1/runs/t/media{path}"), 401)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get(f"/api/v1/runs/t/media/blobs/{item['sha256']}", headers=headers).content == picture()
