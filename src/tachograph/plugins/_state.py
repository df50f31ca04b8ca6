"""The state of plugins in checkpoints: tensors as safetensors, everything else as JSON in the same file's metadata.

checkpoint-100/tachograph_plugins/plugins.json             the plugins that the training had
checkpoint-100/tachograph_plugins/grokfast.safetensors     of rank 0; other ranks: grokfast-00001.safetensors
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tachograph._base.files import replace_file
from tachograph.exceptions import PluginError
from tachograph.plugins._base import BasePlugin

__all__ = ["load_states", "save_states"]

_FOLDER = "tachograph_plugins"
_LIST = "plugins.json"


def save_states(plugins: list[BasePlugin], checkpoint: Path, *, rank: int = 0) -> None:
    """Write the state of all plugins into a checkpoint."""
    from safetensors.torch import save_file

    if not checkpoint.is_dir():
        return
    folder = checkpoint / _FOLDER
    folder.mkdir(exist_ok=True)
    names = []
    for plugin in plugins:
        tensors: dict[str, Any] = {}
        try:
            state = plugin.state_dict()
            text = json.dumps(_split(state, "", tensors))
        except PluginError:
            raise
        except Exception as error:
            raise plugin.error(f"cannot save its state: {type(error).__name__}: {error}") from error
        if not state:
            continue
        names.append(plugin.plugin_name())
        path = _file(folder, plugin, rank)
        temporary = path.with_suffix(".tmp")
        save_file(tensors, temporary, metadata={"state": text})  # not in memory: may be as large as a model
        temporary.replace(path)
    if rank == 0:
        plugin_list = {"plugins": [plugin.plugin_name() for plugin in plugins], "with_state": names}
        replace_file(folder / _LIST, json.dumps(plugin_list).encode(), below=checkpoint)


def load_states(plugins: list[BasePlugin], checkpoint: Path, *, rank: int = 0) -> list[str]:
    """Restore the state of all plugins from a checkpoint. Return the names of plugins that it does not list.

    Raises:
        PluginError: if the file of a plugin is missing or damaged.
    """
    folder = checkpoint / _FOLDER
    try:
        plugin_list = json.loads((folder / _LIST).read_text(encoding="utf-8"))
        with_state = set(plugin_list["with_state"])
        plugin_names = set(plugin_list["plugins"])
    except FileNotFoundError:
        return [plugin.plugin_name() for plugin in plugins]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PluginError(f"cannot read {folder / _LIST}: {error}; resume from another checkpoint") from error
    for plugin in plugins:
        if plugin.plugin_name() in with_state:
            path = _file(folder, plugin, rank)
            state = _read_state(path, plugin)
            try:
                plugin.load_state_dict(state)
            except PluginError:
                raise
            except Exception as error:
                raise plugin.error(f"cannot restore its state in {path}: {type(error).__name__}: {error}") from error
    return [plugin.plugin_name() for plugin in plugins if plugin.plugin_name() not in plugin_names]


def _file(folder: Path, plugin: BasePlugin, rank: int) -> Path:
    suffix = f"-{rank:05d}" if rank else ""
    return folder / f"{plugin.plugin_name()}{suffix}.safetensors"


def _read_state(path: Path, plugin: BasePlugin) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            plain = json.loads((file.metadata() or {})["state"])
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise plugin.error(f"cannot read its state in {path}: {error}; resume from another checkpoint") from error
    state = _join(plain, "", tensors)
    return state if isinstance(state, dict) else {}


_TENSOR = "\x00tensor"
_ITEMS = "\x00items"
"""The only key of a dict that has keys other than texts, which JSON does not have; its value is a list of pairs."""


def _split(value: Any, path: str, tensors: dict[str, Any]) -> Any:
    """Move the tensors of nested dicts and lists into `tensors`; return the rest with markers in their places."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().cpu().contiguous().clone()
        return _TENSOR
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return {_ITEMS: _split([[key, entry] for key, entry in value.items()], path, tensors)}
        return {key: _split(entry, f"{path}/{key}", tensors) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_split(entry, f"{path}/{index}", tensors) for index, entry in enumerate(value)]
    return value


def _join(value: Any, path: str, tensors: dict[str, Any]) -> Any:
    if value == _TENSOR:
        return tensors[path]
    if isinstance(value, dict):
        if _ITEMS in value:
            return dict(_join(value[_ITEMS], path, tensors))
        return {key: _join(entry, f"{path}/{key}", tensors) for key, entry in value.items()}
    if isinstance(value, list):
        return [_join(entry, f"{path}/{index}", tensors) for index, entry in enumerate(value)]
    return value
