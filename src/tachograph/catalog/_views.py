"""Saved views of the table of runs: which runs, columns, order and charts somebody wants to see again.

A view is a file of the log folder, ``.tachograph/views/<slug>.json``, so everyone who uses the folder has the same
views. It is meant to survive versions: keys that this version does not know are kept when the view is saved again, and
a key with a wrong value is reported and left out instead of making the whole view useless. The fields that a view names
may belong to runs that no longer exist, so they are not checked here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from tachograph._base.files import UnsafeFileError, make_folder, read_small, replace_file
from tachograph._base.typed import convert, decode_json
from tachograph.catalog._catalog import OWN_FOLDER
from tachograph.exceptions import TachographError, did_you_mean

__all__ = ["SavedView", "ViewError", "delete_view", "list_views", "load_view", "save_view", "slug_of", "view_from"]

_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MAX_BYTES = 64 << 10
_MAX_VIEWS = 1_000
_MAX_NAME_CHARS = 200


class ViewError(TachographError):
    """A view does not exist or cannot be saved; the message says what to do."""


class SavedView(msgspec.Struct, kw_only=True):
    """A saved view."""

    slug: str
    """The name of its file, and in addresses."""
    name: str = ""
    filter: str = ""
    """The expression that selects runs."""
    columns: list[str] = []
    sort: str = ""
    """The field to sort by; a minus in front means highest first."""
    group: list[str] = []
    archived: Literal["no", "only", "all"] = "no"
    only_differing: bool = False
    """Whether columns in which all runs agree are left out."""
    pinned_columns: list[str] = []
    pinned_runs: list[str] = []
    charts: list[Any] = []
    colors: dict[str, Any] = {}
    x: str = ""
    """The axis of the charts."""
    others: dict[str, Any] = {}
    """Keys that this version does not know."""
    problems: list[str] = []
    """Problems of the file; not saved."""

    def to_dict(self) -> dict[str, Any]:
        """Return the view as it is stored: all keys side by side, without `slug` and `problems`."""
        fields = {name: getattr(self, name) for name in _FIELD_TYPES}
        return {**self.others, **fields}


_FIELD_TYPES: dict[str, Any] = {
    field.name: field.type
    for field in msgspec.structs.fields(SavedView)
    if field.name not in {"slug", "others", "problems"}
}
_NOT_STORED = {"slug", "problems"}


def slug_of(name: str) -> str:
    """Return the slug for a name: ``My best runs!`` becomes ``my-best-runs``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9_]+", "-", plain).strip("-_")[:64].rstrip("-_")
    return slug or "view-" + hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=4).hexdigest()


def view_from(slug: str, values: Mapping[str, Any]) -> SavedView:
    """Return a view from its stored keys; a key with a wrong value is left out and reported."""
    view = SavedView(slug=slug)
    for key, value in values.items():
        if key in _FIELD_TYPES:
            try:
                setattr(view, key, convert(value, _FIELD_TYPES[key]))
            except msgspec.ValidationError as error:
                view.problems.append(f"ignored {key!r}: {error}")
        elif key not in _NOT_STORED:
            view.others[key] = value
            view.problems.append(f"{key[:80]!r} is unknown to this version; it is kept, but has no effect")
    view.name = view.name or slug
    return view


def list_views(log_dirs: Sequence[str]) -> list[SavedView]:
    """Return the views of log folders by name; of two with the same slug, the one of the first folder.

    A file that cannot be read is a view with nothing but `problems`.
    """
    views: dict[str, SavedView] = {}
    for log_dir in log_dirs:
        for slug in _slugs(log_dir):
            if slug not in views:
                views[slug] = _read_view(log_dir, slug)
    return sorted(views.values(), key=lambda view: (view.name.casefold(), view.slug))


def load_view(log_dirs: Sequence[str], slug: str) -> SavedView:
    """Return a view.

    Raises:
        ViewError: if there is none of this slug.
    """
    return _read_view(_home_of(log_dirs, slug), slug)


def save_view(log_dirs: Sequence[str], view: SavedView) -> bool:
    """Save a view in the folder that has it already, else in the first one; return whether it is new.

    Raises:
        ViewError: if it is invalid or cannot be written.
    """
    if not _SLUG.fullmatch(view.slug):
        raise ViewError(f"{view.slug[:80]!r} cannot be the slug of a view: use 1 to 64 of a-z, 0-9, - and _")
    if len(view.name) > _MAX_NAME_CHARS:
        raise ViewError(f"the name of a view has at most {_MAX_NAME_CHARS} characters")
    home = next((log_dir for log_dir in log_dirs if _path(log_dir, view.slug).is_file()), None)
    root = Path(home or log_dirs[0])
    if home is None and len(_slugs(str(root))) >= _MAX_VIEWS:
        raise ViewError(f"{str(root)!r} has {_MAX_VIEWS} views; delete some")
    try:
        data = msgspec.json.format(msgspec.json.encode(view.to_dict()), indent=2) + b"\n"
    except (ValueError, RecursionError) as error:  # a text that is not valid Unicode, or deeply nested keys
        raise ViewError(f"cannot save the view {view.slug!r}: {error}") from None
    if len(data) > _MAX_BYTES:
        raise ViewError(f"the view {view.slug!r} has more than {_MAX_BYTES >> 10} KiB")
    path = _path(str(root), view.slug)
    try:
        make_folder(path.parent, below=root)
        replace_file(path, data, below=root)
    except OSError as error:
        raise ViewError(_explain("save", view.slug, error)) from error
    return home is None


def delete_view(log_dirs: Sequence[str], slug: str) -> SavedView:
    """Delete a view; return it.

    Raises:
        ViewError: if there is none of this slug, or it cannot be deleted.
    """
    home = _home_of(log_dirs, slug)
    view = _read_view(home, slug)
    path = _path(home, slug)
    if path.parent.resolve() != Path(home).resolve() / OWN_FOLDER / "views":
        raise ViewError(f"cannot delete the view {slug!r}: {path.parent} is a link; replace it by a folder")
    try:
        path.unlink()
    except OSError as error:
        raise ViewError(_explain("delete", slug, error)) from error
    return view


def _path(log_dir: str, slug: str) -> Path:
    return Path(log_dir, OWN_FOLDER, "views", f"{slug}.json")


def _slugs(log_dir: str) -> list[str]:
    try:
        names = os.listdir(Path(log_dir, OWN_FOLDER, "views"))
    except OSError:
        return []
    slugs = sorted(name[:-5] for name in names if name.endswith(".json"))
    return [slug for slug in slugs if _SLUG.fullmatch(slug)][:_MAX_VIEWS]


def _home_of(log_dirs: Sequence[str], slug: str) -> str:
    """Return the log folder that has a view."""
    if _SLUG.fullmatch(slug):
        for log_dir in log_dirs:
            with contextlib.suppress(OSError):
                if _path(log_dir, slug).is_file():
                    return log_dir
    slugs = [other for log_dir in log_dirs for other in _slugs(log_dir)]
    hint = did_you_mean(slug, slugs) if len(slug) <= 200 else ""
    raise ViewError(f"no view {slug[:80]!r}{hint or '; save one with: tacho ls … --save-view NAME'}")


def _read_view(log_dir: str, slug: str) -> SavedView:
    try:
        values = decode_json(read_small(_path(log_dir, slug), _MAX_BYTES, below=Path(log_dir)), dict[str, Any])
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        return SavedView(slug=slug, name=slug, problems=[f"the file of this view cannot be read: {reason}"])
    return view_from(slug, values)


def _explain(verb: str, slug: str, error: OSError) -> str:
    reason = error if isinstance(error, UnsafeFileError) else error.strerror or error
    return f"cannot {verb} the view {slug!r}: {reason} ({error.filename}); check the permissions of the log folder"
