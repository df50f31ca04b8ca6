"""Compressed models: sparse tensors as a bit per position and the values that are not zero.

A compressed folder has the files of a model folder, except that `NAME.safetensors` is `NAME.compressed.safetensors`. In
it, a sparse tensor `x` is two entries: `x:bits`, as `pack_bits` writes them, true where a value is stored, and
`x:values`, those values in row-major order. All other tensors are stored as they are. The metadata entry
`tachograph_compressed` is JSON: the version of the format, and the shape of each sparse tensor.

"Zero" means that all bits are zero, so -0.0 is stored as a value and every tensor is restored bit by bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tachograph._base.files import add_file, make_temporary_folder, temporary_path
from tachograph.exceptions import PluginError
from tachograph.plugins.llm_compressor._masks import pack_bits, unpack_bits

__all__ = ["compress", "decompress", "load_compressed", "load_compressed_model", "save_model"]

_DENSE_SUFFIX = ".safetensors"
_SUFFIX = ".compressed.safetensors"
_INDEX = "model.safetensors.index.json"
_METADATA = "tachograph_compressed"
_VERSION = 1
_BITS, _VALUES = ":bits", ":values"
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type by the size of an element: tensors are compared and copied as integers, that is, bit by bit."""
_COPIED_SUFFIXES = (".jinja", ".json", ".md", ".model", ".py", ".txt")
"""Suffixes of a model's other files: its config, its tokenizer, its code."""


def compress(model_folder: str | os.PathLike[str], folder: str | os.PathLike[str]) -> float:
    """Write a compressed copy of a model folder. An earlier compressed copy is replaced.

    Args:
        model_folder: a folder that `save_pretrained` has written, with safetensors files.
        folder: the new folder.

    Returns:
        The size of the compressed weights as a share of the original size.

    Raises:
        PluginError: if there are no weights, they cannot be read, or the folder exists and is something else.
    """
    source = Path(model_folder)
    files = sorted(path for path in source.glob(f"*{_DENSE_SUFFIX}") if not path.name.endswith(_SUFFIX))
    if not files:
        raise PluginError(
            f"{source} has no {_DENSE_SUFFIX} files to compress: save the model with save_pretrained first"
        )
    dense_bytes = compressed_bytes = 0
    with _new_folder(Path(folder)) as target:
        for path in files:
            compressed_path = target / f"{path.name.removesuffix(_DENSE_SUFFIX)}{_SUFFIX}"
            _compress_file(path, compressed_path)
            dense_bytes += path.stat().st_size
            compressed_bytes += compressed_path.stat().st_size
        _copy_others(source, target)
    return compressed_bytes / dense_bytes


def load_compressed(folder: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the weights in a compressed folder, bit by bit as they were.

    Raises:
        PluginError: if the folder has no compressed weights, or a file is damaged.

    Example:
        >>> load_compressed("out/compressed")["lm_head.weight"]
    """
    weights: dict[str, torch.Tensor] = {}
    for path in _compressed_files(Path(folder)):
        weights.update(_restore_file(path))
    return weights


def load_compressed_model(folder: str | os.PathLike[str], **options: Any) -> Any:
    """Return the model in a compressed folder, as `from_pretrained` returns it from a dense one.

    Args:
        folder: the folder.
        options: options of `from_pretrained`, such as ``dtype="auto"``.

    Raises:
        PluginError: if the folder has no compressed weights, a file is damaged, or its model class is unknown.
    """
    import transformers

    tensors = load_compressed(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    (name, *_) = config.architectures or [""]
    kind = getattr(transformers, name, None)
    if kind is None:
        raise PluginError(f"{folder}: config.json names no class of transformers: use decompress and load the result")
    return kind.from_pretrained(None, config=config, state_dict=tensors, **options)


def decompress(folder: str | os.PathLike[str], model_folder: str | os.PathLike[str]) -> None:
    """Write the dense model of a compressed folder, for `from_pretrained` and for other tools.

    Args:
        folder: the compressed folder.
        model_folder: the new folder.

    Raises:
        PluginError: if the folder has no compressed weights, a file is damaged, or the new folder is not empty.
    """
    from safetensors.torch import save_file

    files = _compressed_files(Path(folder))
    weight_map: dict[str, str] = {}
    num_bytes = 0
    with _new_folder(Path(model_folder)) as target:
        for path in files:
            tensors = _restore_file(path)
            name = f"{path.name.removesuffix(_SUFFIX)}{_DENSE_SUFFIX}"
            save_file(tensors, target / name, metadata={"format": "pt"})
            weight_map.update(dict.fromkeys(tensors, name))
            num_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if len(files) > 1:
            index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
            add_file(target / _INDEX, json.dumps(index, indent=2).encode(), below=target)
        _copy_others(Path(folder), target)


def _compress_file(source: Path, target: Path) -> None:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    shapes: dict[str, list[int]] = {}
    try:
        with safe_open(source, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                tensor = file.get_tensor(name)
                parts = _split(tensor)
                if parts is None:
                    tensors[name] = tensor
                else:
                    shapes[name] = list(tensor.shape)
                    tensors[name + _BITS], tensors[name + _VALUES] = parts
    except (OSError, SafetensorError) as error:
        raise PluginError(f"cannot read {source}: {error}") from error
    save_file(tensors, target, metadata={_METADATA: json.dumps({"version": _VERSION, "shapes": shapes})})


def _split(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the bits and the values of a tensor; None if they would not be smaller than the tensor."""
    size, count = tensor.element_size(), tensor.numel()
    if size not in _INTEGERS or not count:
        return None
    integers = tensor.contiguous().view(-1).view(_INTEGERS[size])
    is_stored = integers != 0
    values = integers[is_stored]
    if values.numel() * size + (count + 7) // 8 >= count * size:
        return None
    return pack_bits(is_stored), values.view(tensor.dtype)


def _restore_file(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    weights: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_METADATA])
            if header["version"] != _VERSION:
                raise PluginError(f"{path} has version {header['version']} of the format: update Tachograph to read it")
            for name, shape in header["shapes"].items():
                bits, values = file.get_tensor(name + _BITS), file.get_tensor(name + _VALUES)
                weights[name] = _join(bits, values, shape)
            parts = {name + suffix for name in header["shapes"] for suffix in (_BITS, _VALUES)}
            weights.update({name: file.get_tensor(name) for name in file.keys() if name not in parts})  # noqa: SIM118
    except PluginError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PluginError(f"cannot read {path}: {type(error).__name__}: {error}; the file is damaged") from error
    return weights


def _join(bits: torch.Tensor, values: torch.Tensor, shape: list[int]) -> torch.Tensor:
    is_stored = unpack_bits(bits, shape)
    if int(is_stored.sum()) != values.numel():
        raise ValueError(f"{values.numel()} values for {int(is_stored.sum())} positions")
    integer = _INTEGERS[values.element_size()]
    tensor = torch.zeros(shape, dtype=integer)
    tensor[is_stored] = values.view(integer)
    return tensor.view(values.dtype)


def _compressed_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    if not files:
        raise PluginError(f"{folder} has no *{_SUFFIX} files: give the folder `compressed` of a training's output")
    return files


def _copy_others(source: Path, target: Path) -> None:
    """Copy the files of a model folder besides weights: config, tokenizer and code."""
    skipped_names = {_INDEX, "trainer_state.json"}
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix in _COPIED_SUFFIXES and path.name not in skipped_names:
            add_file(target / path.name, path.read_bytes(), below=target)


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that gets its name when it is complete. Only a compressed folder is replaced."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not any(folder.glob(f"*{_SUFFIX}")))):
        raise PluginError(f"{folder} exists already: remove it, or choose another folder")
    temporary = temporary_path(folder)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_model(model: Any, tokenizer: Any, folder: Path) -> float:
    """Write a compressed folder of a model in memory; return the ratio of `compress`.

    The model is saved densely first, in a temporary folder, because `save_pretrained` alone knows the names and the
    layout under which a model is loaded again.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with make_temporary_folder(folder.parent, below=folder.parent) as dense:
        model.save_pretrained(dense, max_shard_size="5GB")  # bounds the memory that compressing needs
        if tokenizer is not None and hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(dense)
        return compress(dense, folder)
