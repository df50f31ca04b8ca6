"""Saved views: files that several people and versions share."""

from __future__ import annotations

import json

import pytest

from tachograph.catalog import SavedView, ViewError, delete_view, list_views, load_view, save_view, slug_of


def view_path(logs, slug):
    return logs / ".tachograph" / "views" / f"{slug}.json"


def test_saved_view_is_loaded_listed_and_deleted(tmp_path):
    folders = [str(tmp_path)]
    view = SavedView(slug="best", name="Best ones", filter="loss.min<1", columns=["config.lr"], group=["config.lr"])
    assert save_view(folders, view)
    assert not save_view(folders, view)
    assert load_view(folders, "best") == view
    save_view(folders, SavedView(slug="all", name="All"))
    assert [found.name for found in list_views(folders)] == ["All", "Best ones"]
    assert delete_view(folders, "best") == view
    with pytest.raises(ViewError, match="no view 'best'"):
        load_view(folders, "best")


def test_unknown_and_wrong_keys_are_kept_or_reported(tmp_path):
    save_view([str(tmp_path)], SavedView(slug="v", filter="x"))
    path = view_path(tmp_path, "v")
    path.write_text(json.dumps({"filter": "x", "columns": 3, "zoom": {"low": 1}, "slug": "other", "problems": ["old"]}))
    view = load_view([str(tmp_path)], "v")
    assert (view.slug, view.filter, view.columns, view.others) == ("v", "x", [], {"zoom": {"low": 1}})
    assert view.problems[0].startswith("ignored 'columns': ")
    assert "'zoom' is unknown" in view.problems[1]
    save_view([str(tmp_path)], view)
    assert json.loads(path.read_text())["zoom"] == {"low": 1}
    assert json.loads(path.read_text()).keys().isdisjoint({"slug", "problems", "others"})


def test_unreadable_view_is_listed_with_its_problem(tmp_path):
    save_view([str(tmp_path)], SavedView(slug="good"))
    view_path(tmp_path, "torn").write_text('{"filter":')
    view_path(tmp_path, "Not A Slug").write_text("{}")
    (tmp_path / "outside.json").write_text("{}")
    view_path(tmp_path, "link").symlink_to(tmp_path / "outside.json")
    found = {view.slug: view for view in list_views([str(tmp_path)])}
    assert found.keys() == {"good", "torn", "link"}
    assert not found["good"].problems
    assert "cannot be read" in found["torn"].problems[0]
    assert "cannot be read" in found["link"].problems[0]


def test_view_is_saved_where_it_is_else_in_first_folder(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    save_view([str(second)], SavedView(slug="v", filter="old"))
    assert not save_view([str(first), str(second)], SavedView(slug="v", filter="new"))
    assert save_view([str(first), str(second)], SavedView(slug="w"))
    assert load_view([str(second)], "v").filter == "new"
    assert view_path(first, "w").exists()
    assert not view_path(first, "v").exists()


@pytest.mark.parametrize("slug", ["", "../x", "a/b", ".hidden", "A", "x" * 65, "x\0", "x.json"])
def test_slug_cannot_leave_the_folder(tmp_path, slug):
    with pytest.raises(ViewError, match="cannot be the slug"):
        save_view([str(tmp_path)], SavedView(slug=slug))
    with pytest.raises(ViewError, match="no view"):
        load_view([str(tmp_path)], slug)
    assert not (tmp_path / ".tachograph").exists()


def test_folder_of_views_that_is_a_link_is_not_used(tmp_path):
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    (logs / ".tachograph").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "v.json").write_text("{}")
    (logs / ".tachograph" / "views").symlink_to(elsewhere)
    with pytest.raises(ViewError, match="cannot save"):
        save_view([str(logs)], SavedView(slug="w"))
    with pytest.raises(ViewError, match="is a link"):
        delete_view([str(logs)], "v")
    assert [path.name for path in elsewhere.iterdir()] == ["v.json"]


@pytest.mark.parametrize(
    ("name", "slug"),
    [("My best runs!", "my-best-runs"), ("Größe / lr", "groe-lr"), ("--", slug_of("--")), ("x" * 99, "x" * 64)],
)
def test_slug_is_made_of_the_name(tmp_path, name, slug):
    assert slug_of(name) == slug
    assert save_view([str(tmp_path)], SavedView(slug=slug_of(name), name=name))
