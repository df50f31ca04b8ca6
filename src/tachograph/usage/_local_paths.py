"""Whether an id on the Hub may be a path of the user: ``google/private-name`` has the form of both.

An id counts as local if one of these is true:

* A config calls it a path, even if no such folder exists (yet): it is a value under a key that contains ``path``,
  ``dir``, ``file``, ``folder``, ``root`` or ``local``, a `Path`, or part of either, as in
  ``output_dir: runs/google/private-name``. ``name_or_path`` calls it neither and is left to the next rules.
* It exists in a folder that relative paths may refer to: the working directory, now or when the program started; the
  folder of the script, of each file on the command line, or of the file that a config was read from; each folder that
  a config names; all folders above these; the home folder.

Links count even if they lead nowhere, and a folder counts with and without its links followed. An id is checked when
its event is recorded and again before it is sent, so a folder that is created in between counts as well.

Nothing of a config is kept but its paths, in memory. If it has too many to check, every id counts as local.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, pairwise
from types import ModuleType
from typing import Any

from tachograph._base.guard import reraise_from_signal_handler, suppress
from tachograph.usage._folder import START_FOLDER

__all__ = ["LOCAL_PATHS", "LocalPaths", "is_path_key"]

_MAX_VALUES = 50_000
"""Values of a config that are looked at."""
_MAX_PATHS = 256
"""Folders that a config may name. Looking for each of them takes time, on a network disk in particular."""
_MAX_ARGUMENTS = 64

_WORDS = "path|dir|file|folder|root|local"
_PATH_KEY = re.compile(_WORDS, re.IGNORECASE)
_NAME_OR_PATH = re.compile(rf"(?i:(?:^|[_-])or[_-](?:{_WORDS})\w*)|Or(?:Path|Dir|File|Folder|Local)\w*")
_PATH = re.compile(r"(?:[/~\\]|\.{1,2}[/\\]|[A-Za-z]:[/\\]|file:)")
"""How a text begins that can only be a path."""


class LocalPaths:
    """The paths that the configs of this process named, and the folders that they are relative to."""

    def __init__(self) -> None:
        # Only ever extended: the sending thread reads them while a config is added, and a lock could be held during a
        # `fork`.
        self._folders: dict[str, None] = {}
        self._pairs: set[tuple[str, str]] = set()
        self._is_incomplete = False

    def add_config(self, config: Any, file: str | os.PathLike[str] | None = None) -> None:
        """Add the paths that a config names.

        Args:
            config: an object of any type.
            file: the file that it was read from, if known.
        """
        if file is not None:
            self._folders.update(dict.fromkeys(_folders_of(os.fspath(file))))
        candidates: set[str] = set()
        for text in self._paths_in(config):
            self.add_path(text)
            path = os.path.expandvars(os.path.expanduser(text.removeprefix("file://")))
            # A name with an ending is a file. Only its folder can contain a model.
            candidates.update([os.path.dirname(path), *([] if os.path.splitext(path)[1] else [path])])
        if len(candidates) > _MAX_PATHS:
            self._is_incomplete = True
            return
        bases = dict.fromkeys([*_start_folders(), *self._folders])
        folders = (os.path.normpath(os.path.join(base, path)) for base in bases for path in candidates - {""})
        self._folders.update(dict.fromkeys(filter(os.path.isdir, folders)))

    def add_path(self, text: str) -> None:
        """Add a path that was named, whether it exists or not."""
        parts = [part.casefold() for part in re.split(r"[/\\]+", text) if part not in ("", ".")]
        self._pairs.update(pairwise(parts))

    def contains(self, hub_id: str) -> bool:
        """Return whether an id on the Hub, ``owner/name``, may be a path of the user."""
        owner, _, name = hub_id.partition("/")
        if self._is_incomplete or (owner.casefold(), name.casefold()) in self._pairs:
            return True
        folders = dict.fromkeys([*_start_folders(), *list(self._folders), os.path.expanduser("~")])
        with_parents = dict.fromkeys(path for folder in folders for path in _with_parents(folder))
        return any(os.path.lexists(os.path.join(folder, owner, name)) for folder in with_parents)

    def clear(self) -> None:
        """Forget all configs."""
        self._folders, self._pairs, self._is_incomplete = {}, set(), False

    def _paths_in(self, config: Any) -> Iterator[str]:
        """Return every path in a config, level by level."""
        queue: deque[tuple[Any, bool]] = deque([(config, False)])
        # Holds the objects, because an id is used again after its object is freed.
        visited_values: dict[tuple[int, bool], Any] = {}
        num_left = _MAX_VALUES
        while queue:
            value, is_path = queue.popleft()
            text = _text(value)
            if text is not None:
                if is_path or _PATH.match(text) or not isinstance(value, str):
                    yield text
                continue
            if (id(value), is_path) in visited_values:
                continue
            visited_values[id(value), is_path] = value
            for key, item in islice(_items(value), num_left):
                num_left -= 1
                queue.append((item, is_path or (isinstance(key, str) and is_path_key(key))))
            if num_left <= 0:
                self._is_incomplete = True
                return


LOCAL_PATHS = LocalPaths()
"""The paths of this process. Apps share them: a folder that one of them knows is private for all."""


def is_path_key(key: str) -> bool:
    """Return whether the name of a value says that it is a path."""
    return _PATH_KEY.search(_NAME_OR_PATH.sub("", key)) is not None


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return the keys and values in a part of a config. A part that cannot be read has none."""
    try:
        if isinstance(value, Mapping):
            for key in value:
                try:
                    yield key, value[key]
                except Exception as error:  # noqa: BLE001 - a value that is required but not set, for example
                    reraise_from_signal_handler(error)
                    continue
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            yield from ((None, item) for item in value)
        # Models, tokenizers and the like are callable, and no part of a config.
        elif not callable(value) and not isinstance(value, ModuleType):
            names = [name for kind in type(value).__mro__ for name in _slots(kind)]
            yield from getattr(value, "__dict__", {}).items()
            yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))
    except Exception as error:  # noqa: BLE001 - objects of types that others wrote
        reraise_from_signal_handler(error)
        return


def _text(value: Any) -> str | None:
    """Return a text or a path as a plain text, None for everything else."""
    try:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        return str.__str__(text) if isinstance(text, str) else None
    except Exception as error:  # noqa: BLE001 - objects of types that others wrote
        reraise_from_signal_handler(error)
        return None


def _slots(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _start_folders() -> Iterator[str]:
    """Return the folders that relative paths refer to, whatever a config says."""
    yield START_FOLDER
    with suppress(OSError):
        yield os.getcwd()
    yield from filter(os.path.isabs, [os.environ.get("PWD", "")])  # as the shell calls it, with its links
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    arguments = [*sys.argv[:_MAX_ARGUMENTS], *sys.orig_argv[1:_MAX_ARGUMENTS]]
    for argument in dict.fromkeys([script, *arguments]):
        if isinstance(argument, str):
            for text in {argument, argument.partition("=")[2]} - {""}:  # --config=train.yaml
                if os.path.lexists(os.path.join(START_FOLDER, os.path.expanduser(text))):
                    yield from _folders_of(text)


def _folders_of(path: str) -> list[str]:
    """Return the folder that a path is or is in, before and after links are followed."""
    path = os.path.normpath(os.path.join(START_FOLDER, os.path.expanduser(path)))
    real = os.path.realpath(path)
    return [path, real] if os.path.isdir(path) else [os.path.dirname(path), os.path.dirname(real)]


def _with_parents(folder: str) -> Iterator[str]:
    for path in (folder, os.path.realpath(folder)):
        yield path
        while path != os.path.dirname(path):
            path = os.path.dirname(path)  # noqa: PLW2901
            yield path
