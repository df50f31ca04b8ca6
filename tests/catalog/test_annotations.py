"""Annotations: files of their own beside the journal, folded in any order."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tachograph.catalog import AnnotationError, annotate, inverse_ops, read_annotations
from tachograph.catalog._annotations import AnnotationOp, fold, read_ops, this_actor
from tests.conftest import HANG_S
from tests.store import END, START, write

SET_NOTE = {"op": "set", "field": "note", "value": "long warm-up"}


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "logs" / "r", [START, END])


ops = st.builds(
    AnnotationOp,
    id=st.sampled_from("abcdef"),
    time=st.sampled_from([1.0, 2.0, 3.0]),
    actor=st.sampled_from(["x", "y"]),
    op=st.sampled_from(["set", "add", "remove", "mark", "unmark", "later"]),
    field=st.sampled_from(["note", "tags", "rating"]),
    value=st.sampled_from(["a", "b", 3, None]),
    global_step=st.sampled_from([None, 1, 2]),
    text=st.sampled_from(["", "here"]),
)


ONE_MARK, OTHER_MARK = (AnnotationOp(id="b", time=3.0, actor="x", op="mark", global_step=step) for step in (1, 2))


@example(([ONE_MARK, OTHER_MARK], [OTHER_MARK, ONE_MARK]))
@given(st.lists(ops, max_size=12).flatmap(lambda found: st.tuples(st.just(found), st.permutations(found))))
def test_any_order_of_folding_gives_the_same_result(orders):
    one, other = orders
    assert fold(one) == fold(other) == fold([*one, *other])


def test_annotations_are_folded_by_time(folder):
    before = folder.journal.read_bytes()
    annotate(folder, [SET_NOTE, {"op": "set", "field": "rating", "value": 4}])
    annotate(folder, [{**SET_NOTE, "value": "short"}, {"op": "add", "field": "tags", "value": "paper"}])
    annotate(
        folder, [{"op": "remove", "field": "tags", "value": "base"}, {"op": "mark", "global_step": 12, "text": "lr"}]
    )
    found = read_annotations(folder)
    assert found.values == {"note": "short", "rating": 4}
    assert found.merge_tags(["base", "other"]) == ["other", "paper"]
    assert [(mark.global_step, mark.text) for mark in found.marks] == [(12, "lr")]
    annotate(folder, [{"op": "unmark", "value": found.marks[0].id}, {**SET_NOTE, "value": None}])
    assert read_annotations(folder).marks == []
    assert "note" not in read_annotations(folder).values
    assert folder.journal.read_bytes() == before


def test_each_line_names_its_author(folder):
    annotate(folder, [SET_NOTE])
    (path,) = (folder.path / "annotations").iterdir()
    line = json.loads(path.read_text())
    assert path.name == f"{this_actor()}.jsonl"
    assert line["actor"] == this_actor()
    assert "@" in line["by"]
    assert set(line) == {"id", "time", "actor", "by", "op", "field", "value"}


def test_actor_stays_the_same_in_the_configuration_folder(folder, monkeypatch, tmp_path):
    from tachograph.catalog._annotations import _actor_in

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    first = this_actor()
    _actor_in.cache_clear()
    assert this_actor() == first
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    assert this_actor() != first
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert len(this_actor()) == 8


def test_request_with_the_same_id_counts_once(folder):
    annotate(folder, [{"op": "mark", "global_step": 1, "text": "here", "id": "m1"}])
    annotate(folder, [{"op": "mark", "global_step": 1, "text": "here", "id": "m1"}])
    assert len(read_annotations(folder).marks) == 1


def test_torn_and_unknown_lines_are_skipped(folder):
    annotate(folder, [SET_NOTE])
    (path,) = (folder.path / "annotations").iterdir()
    with open(path, "ab") as file:
        file.write(
            b'{"id":"x","time":1e99,"actor":"z","op":"paint","field":"note"}\n[1]\n\xff\n{"id":"y","time":9e9,"ac'
        )
    annotate(folder, [{"op": "add", "field": "tags", "value": "kept"}])
    found = read_annotations(folder)
    assert found.values == {"note": "long warm-up"}
    assert found.tags == {"kept": True}


def test_files_of_two_actors_are_merged(folder, tmp_path, monkeypatch):
    annotate(folder, [SET_NOTE, {"op": "add", "field": "tags", "value": "one"}])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    annotate(folder, [{**SET_NOTE, "value": "newer"}, {"op": "add", "field": "tags", "value": "two"}])
    assert len(list((folder.path / "annotations").iterdir())) == 2
    assert read_annotations(folder).values == {"note": "newer"}
    assert read_annotations(folder).tags == {"one": True, "two": True}


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(folder, tmp_path):
    code = (
        "import sys; from tachograph.catalog import annotate; from tachograph.journal import RunFolder\n"
        "for number in range(100):\n"
        "    annotate(RunFolder(sys.argv[1]), [{'op': 'add', 'field': 'tags', 'value': f'{sys.argv[2]}{number}'}])\n"
    )
    # Two of the writers are the same actor, so they append to the same file.
    configs = [tmp_path / "x", tmp_path / "x", tmp_path / "y"]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder.path), f"w{index}-"],
            env={**os.environ, "XDG_CONFIG_HOME": str(config)},
        )
        for index, config in enumerate(configs)
    ]
    assert [writer.wait(HANG_S) for writer in writers] == [0, 0, 0]
    assert len(list(read_ops(folder))) == 300
    assert set(read_annotations(folder).tags) == {f"w{index}-{number}" for index in range(3) for number in range(100)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"op": "set", "field": "notes", "value": "x"}, "'note'"),
        ({"op": "set", "field": "tags", "value": ["x"]}, "use add and remove"),
        ({"op": "set", "field": "rating", "value": 6}, "0 to 5"),
        ({"op": "set", "field": "archived", "value": "yes"}, "true or false"),
        ({"op": "set", "field": "display_name", "value": "x" * 201}, "at most 200"),
        ({"op": "set", "field": "custom.x", "value": [1]}, "expected a number"),
        ({"op": "add", "field": "tags", "value": "-x"}, "the first not"),
        ({"op": "add", "field": "tags", "value": ""}, "1 to 100"),
        ({"op": "add", "field": "note", "value": "x"}, "use set"),
        ({"op": "mark", "text": "x"}, "global_step"),
        ({"op": "mark", "global_step": "1", "text": "x"}, "integer"),
        ({"op": "ad", "field": "tags"}, "'add'"),
        ({"op": "set", "feld": "note"}, "'feld'"),
    ],
)
def test_invalid_annotation_is_refused_with_the_remedy(folder, change, expected):
    with pytest.raises(AnnotationError, match=expected):
        annotate(folder, [SET_NOTE, change])
    assert not (folder.path / "annotations").exists()


def test_folder_that_cannot_be_written_is_refused(folder):
    (folder.path / "annotations").write_text("in the way")
    with pytest.raises(AnnotationError, match="make the run folder writable"):
        annotate(folder, [SET_NOTE])


def test_annotations_do_not_follow_links(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", folder.path / "annotations")
    with pytest.raises(AnnotationError, match="symbolic link"):
        annotate(folder, [SET_NOTE])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_inverse_operations_restore_what_was_before(folder):
    annotate(folder, [SET_NOTE, {"op": "add", "field": "tags", "value": "old"}])
    before = read_annotations(folder)
    changes = [
        {"op": "set", "field": "note", "value": "other"},
        {"op": "set", "field": "rating", "value": 1},
        {"op": "remove", "field": "tags", "value": "old"},
        {"op": "remove", "field": "tags", "value": "base"},
        {"op": "add", "field": "tags", "value": "new"},
        {"op": "mark", "global_step": 1, "text": "x"},
    ]
    done = annotate(folder, changes)
    annotate(folder, inverse_ops(before, ["base"], done))
    after = read_annotations(folder)
    assert (after.values, after.merge_tags(["base"]), after.marks) == (before.values, before.merge_tags(["base"]), [])
