"""Files with the SNR of layers: written by Spectrum, and our own cache in the same format.

``{"model.layers.0.mlp.down_proj": {"snr": 0.35, "type": "mlp.down_proj"}, …}``, or sorted by type
``{"mlp.down_proj": {"model.layers.0.mlp.down_proj": 0.35, …}, …}``. Values may be Infinity and NaN, which JSON does not
have but Python writes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tachograph._base.files import make_folder, replace_file
from tachograph.plugins.spectrum._snr import LayerScore, layer_type

__all__ = ["cache_folder", "cached_file", "encode_scores", "file_of_model", "read_scores", "weights_key", "write_file"]

_VERSION = 1
"""Part of the key of the cache: to be increased when the formula changes."""


def read_scores(path: Path) -> dict[str, LayerScore]:
    """Return the scores of a file.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is not such a file.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    scores: dict[str, LayerScore] = {}
    if not isinstance(content, dict):
        raise ValueError(f"expected an object with the names of layers, got {type(content).__name__}")
    for name, entry in content.items():
        if isinstance(entry, dict) and "snr" in entry:
            kind = entry.get("type")
            experts = tuple(_number(value, name) for value in entry.get("experts") or ())
            scores[name] = LayerScore(_number(entry["snr"], name), str(kind or layer_type(name)), experts)
        elif isinstance(entry, dict):
            scores.update({layer: LayerScore(_number(value, layer), name) for layer, value in entry.items()})
        else:
            raise ValueError(f'{name!r}: expected {{"snr": …, "type": …}}, got {entry!r}')
    if not scores:
        raise ValueError("it has no layers")
    return scores


def _number(value: Any, name: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str) and value in {"Infinity", "-Infinity", "NaN"}:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"the SNR of {name!r} is {value!r}: expected a number")
    return float(value)


def encode_scores(scores: Mapping[str, LayerScore], **extra_values: Mapping[str, Any]) -> bytes:
    """Return scores as JSON in the format of Spectrum.

    Args:
        scores: the scores.
        extra_values: further values by layer.
    """
    content: dict[str, dict[str, Any]] = {}
    for name, score in scores.items():
        content[name] = {"snr": score.snr, "type": score.type}
        if score.experts:
            content[name]["experts"] = list(score.experts)
        content[name].update({key: values[name] for key, values in extra_values.items()})
    return json.dumps(content, indent=1).encode()


def write_file(path: Path, data: bytes) -> None:
    """Replace a file atomically; create its folder.

    Raises:
        OSError: if that fails.
    """
    folder = Path(os.path.abspath(path.parent))
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    make_folder(folder, below=existing)
    replace_file(folder / path.name, data, below=folder)


def file_of_model(model_name: str) -> str:
    """Return the name that Spectrum gives to the file of a model."""
    return f"snr_results_{_slug(model_name)}.json"


def _slug(model_name: str) -> str:
    return re.sub(r"[^\w.-]|_", "-", model_name).strip("-.") or "model"


# The cache -----------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return the default folder of the cache: `tachograph/spectrum` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says to ignore a relative path.
    home = Path(cache) if cache and os.path.isabs(cache) else Path(os.path.expanduser("~")) / ".cache"
    return home / "tachograph" / "spectrum"


def weights_key(weights: Mapping[str, torch.Tensor], method: str) -> str:
    """Return a hash of all weights, their names, and how their SNR is computed."""
    digest = hashlib.blake2b(f"{_VERSION} {method}".encode(), digest_size=16)
    for name, weight in weights.items():
        digest.update(f"\0{name}\0{weight.dtype}\0{tuple(weight.shape)}\0".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def cached_file(folder: Path, key: str, model_name: str) -> Path:
    """Return the path of a cached file: one with this key that exists, else a new one with the name of the model."""
    existing = sorted(folder.glob(f"*_{key}.json"))
    return existing[0] if existing else folder / f"{file_of_model(model_name).removesuffix('.json')}_{key}.json"
