"""Tests of replacing files."""

from __future__ import annotations

import os

import pytest

from tachograph._base.files import replacing


def write(path, text, **options):
    with replacing(path, below=path.parent, **options) as descriptor:
        os.write(descriptor, text.encode())
    os.close(descriptor)


def test_file_takes_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "a"
    for must_be_new in (True, False):
        with replacing(path, below=tmp_path, must_be_new=must_be_new) as descriptor:
            os.write(descriptor, b"new")
            assert path.exists() != must_be_new
        os.close(descriptor)
        assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["a"])


@pytest.mark.parametrize("other", ["file", "link", "folder"])
def test_new_file_never_replaces_another(tmp_path, other):
    path = tmp_path / "a"
    with pytest.raises(FileExistsError) as caught:
        with replacing(path, below=tmp_path, must_be_new=True):
            if other == "file":
                path.write_text("theirs")
            elif other == "link":
                path.symlink_to("nowhere")
            else:
                path.mkdir()
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["a"]
    assert other != "file" or path.read_text() == "theirs"


def test_failing_block_keeps_the_old_file(tmp_path):
    write(tmp_path / "a", "old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a", below=tmp_path):
        raise RuntimeError
    assert ((tmp_path / "a").read_text(), os.listdir(tmp_path)) == ("old", ["a"])
