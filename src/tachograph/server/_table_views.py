"""Saved views of the table over the API. All keys of a view are side by side, so what was returned can be saved."""

from __future__ import annotations

from typing import Any

from tachograph._base.typed import decode_json
from tachograph.catalog import Catalog, SavedView, ViewError, delete_view, list_views, load_view, save_view, view_from
from tachograph.server._errors import ApiError

__all__ = ["build_view", "build_views_page", "remove_view", "store_view"]


def build_views_page(catalog: Catalog) -> dict[str, Any]:
    """Return all views."""
    return {"views": [_to_json_view(view) for view in list_views(catalog.log_dirs)]}


def build_view(catalog: Catalog, slug: str) -> dict[str, Any]:
    """Return a view."""
    try:
        return _to_json_view(load_view(catalog.log_dirs, slug))
    except ViewError as error:
        raise ApiError(404, "no_such_view", str(error)) from error


def store_view(catalog: Catalog, slug: str, data: bytes) -> dict[str, Any]:
    """Save a view from a body that was checked already; return it as it was saved."""
    save_view(catalog.log_dirs, view_from(slug, decode_json(data, dict[str, Any])))
    return build_view(catalog, slug)


def remove_view(catalog: Catalog, slug: str) -> dict[str, Any]:
    """Delete a view; return it, so that it can be saved again."""
    view = build_view(catalog, slug)
    delete_view(catalog.log_dirs, slug)
    return view


def _to_json_view(view: SavedView) -> dict[str, Any]:
    return {**view.to_dict(), "slug": view.slug, "problems": view.problems}
