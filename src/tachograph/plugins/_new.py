"""Writes the package of a new plugin from a template.

The templates are real packages with the names `my_plugin` and `my_optimizer`, so that linters and type checkers read
them; a new package replaces these names.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

from tachograph._base.files import replace_file
from tachograph.exceptions import PluginError
from tachograph.plugins._loading import PLUGINS

__all__ = ["write_package"]

_TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9_]{1,29}")


def write_package(name: str, folder: Path, *, is_optimizer: bool = False) -> list[Path]:
    """Write a package with a plugin, its options, metrics, tests and entry point.

    Args:
        name: the name of the plugin and of its module, such as `gradient_noise`.
        folder: the folder to create.
        is_optimizer: write a plugin that only creates an optimizer.

    Returns:
        The written files.

    Raises:
        PluginError: if the name cannot be used, or the folder exists.
    """
    _check_name(name)
    if folder.exists() or folder.is_symlink():
        raise PluginError(f"{folder} exists: choose another name, or remove it")
    kind, old_name = ("optimizer", "my_optimizer") if is_optimizer else ("plugin", "my_plugin")
    replacements = _replacements(name, old_name)
    paths = []
    for source in sorted(path for path in (_TEMPLATES / kind).rglob("*") if path.is_file()):
        if "__pycache__" in source.parts:
            continue
        relative = source.relative_to(_TEMPLATES / kind)
        path = folder.joinpath(*(part.replace(old_name, name) for part in relative.parts))
        text = source.read_text(encoding="utf-8")
        for old, new in replacements.items():
            text = text.replace(old, new)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, text.encode(), below=folder.parent)
        except OSError as error:
            raise PluginError(f"{path} cannot be written: {error.strerror or error}") from error
        paths.append(path)
    return paths


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        example = re.sub(r"\W+|_+", "_", name.lower()).strip("_")
        hint = f", such as {example!r}" if _NAME.fullmatch(example) and not keyword.iskeyword(example) else ""
        raise PluginError(
            f"{name!r} cannot be the name of a plugin: use 2 to 30 lower-case letters, digits and underscores, and a "
            f"letter first{hint}"
        )
    if name in PLUGINS.names():
        raise PluginError(f"there is a plugin {name!r} already: choose another name")
    if importlib.util.find_spec(name) is not None:
        raise PluginError(f"there is a module {name!r} already: choose another name")


def _replacements(name: str, old_name: str) -> dict[str, str]:
    """Return the names in a template with their replacements, the longest first."""
    words = "".join(part.capitalize() for part in name.split("_"))
    stem = words.removesuffix("Plugin") or words
    return {
        "MyOptimizerPlugin": f"{stem}Plugin",
        "MyOptimizerOptions": f"{stem}Options",
        "MyPlugin": f"{stem}Plugin",
        "MyOptions": f"{stem}Options",
        old_name: name,
        old_name.replace("_", "-"): name.replace("_", "-"),
    }
