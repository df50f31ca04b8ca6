"""`tacho media`: listing and exporting."""

from __future__ import annotations

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
