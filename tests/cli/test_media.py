"""`tacho media`: listing and exporting."""

from __future__ import annotations

import shutil
import zipfile

from PIL import Image

from tests.cli.test_catalog_commands import tacho
from tests.media_files import image, media, picture
from tests.store import END, START, write


def test_media_are_listed_and_exported(logs, tmp_path, monkeypatch):
    run = logs / "a"
    records = [
        media("val/x", "image", number, image(run, picture(64, 48, (80 * number, 0, 0)), caption="日本 fox\n" * 9))
        for number in range(3)
    ]
    write(run, [{**START, "run_name": "a"}, *records, END])
    options = ("--log-dir", str(logs))
    assert "val/x" in tacho("media", "a", *options)
    monkeypatch.chdir(tmp_path)
    for output in (tmp_path / "out.zip", "out.png", "./out.webp"):
        tacho("media", "a", "val/x", "-o", str(output), *options)
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert len(archive.namelist()) == 4
    with Image.open(tmp_path / "out.png") as sheet:
        assert abs(sheet.getpixel((12 + 160, 12 + 160))[0] - 160) < 4  # the latest step, in its colours
    with Image.open(tmp_path / "out.webp") as animation:
        assert (animation.n_frames, animation.size) == (3, (64, 48))
    assert "--force" in tacho("media", "a", "val/x", "-o", str(tmp_path / "out.zip"), *options, code=1)
    assert "two steps" in tacho(
        "media", "a", "val/x", "-o", str(tmp_path / "b.webp"), "--prompt", "7", *options, code=1
    )
    assert not (tmp_path / "b.webp").exists()
    assert "it has val/x" in tacho("media", "a", "x", "-o", "x.zip", *options, code=1)


def test_an_archive_without_all_files_says_so(logs, tmp_path):
    run = logs / "a"
    items = [image(run, picture(64, 48, (80 * number, 0, 0))) for number in range(3)]
    pointer = {"sha256": "0" * 64, "bytes": 1, "kept": False, "path": "/x"}
    records = [media("x", "image", number, item) for number, item in enumerate(items)]
    write(run, [{**START, "run_name": "a"}, *records, media("file", "file", 0, pointer), END])
    options = ("--log-dir", str(logs), "--force")
    output = tmp_path / "out.zip"
    tacho("media", "a", "file", "-o", str(output), *options)
    stored = sorted(path for path in (run / "media").rglob("*") if path.is_file())
    stored[0].unlink()
    text = tacho("media", "a", "x", "-o", str(output), *options, code=1)
    assert "wrote" in text and "1 of 3 items of 'x' not exported" in text and "is missing" in text
    with zipfile.ZipFile(output) as archive:
        assert len(archive.namelist()) == 3
    shutil.rmtree(run / "media")
    output.unlink()
    assert "can be shown" in tacho("media", "a", "x", "-o", str(tmp_path / "out.png"), *options, code=1)
    text = tacho("media", "a", "x", "-o", str(output), *options, code=1)
    assert "3 of 3 items" in text and "wrote" not in text and not output.exists()
