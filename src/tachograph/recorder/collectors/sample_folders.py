"""The folder into which a trainer writes its samples, and the meaning of the names of its files.

Trainers of image and video models write samples into a folder that their config names:

- AI Toolkit: ``<training_folder>/<name>/samples/<milliseconds>__<step>_<index>.jpg``
- sd-scripts of kohya, musubi-tuner and forks: ``<output_dir>/sample/<output_name>_<step>_<index>_<date>_<seed>.png``;
  samples of an epoch have ``e`` and its number in place of the step.

The prompts are in the config, or in a file that it names. The position of a prompt is the index of its files. Options
follow a prompt after ``--``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tachograph._base.config import fields_of, parse_yaml
from tachograph._base.files import read_small
from tachograph._base.guard import faults, suppress

if sys.version_info >= (3, 11):
    import tomllib

__all__ = ["CONFIG_FILE_KEYS", "SampleFolder", "SampleName", "SamplePrompt", "find_sample_folders"]

KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif"), "image"),
    **dict.fromkeys(("mp4", "webm"), "video"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg"), "audio"),
}
"""The kind of media, by extension."""

CONFIG_FILE_KEYS = ("config_file_list", "config_file", "config")
"""Arguments that may name job files."""

_MAX_CONFIG_BYTES = 256 << 10
_MAX_CONFIG_FILES = 8
_MAX_PROMPTS = 1_000
_MAX_PROCESSES = 8
_MAX_PROMPT_CHARS = 8_000
_AI_TOOLKIT = re.compile(
    r"(?:rank\d+_sample(?P<sample>\d{1,6})_)?(?P<ms>\d{10,16})__(?P<step>\d{1,12})_(?P<index>\d{1,6})\.(?P<ext>\w{2,4})"
)
_SD_SCRIPTS = (
    re.compile(
        r"(?:(?P<name>.+)_)?(?P<step>e?\d{6,9})_(?P<index>\d{2,6})_(?P<date>\d{14})(?:_(?P<seed>-?\d{1,20}))?"
        r"\.(?P<ext>\w{2,4})"
    ),
    # Before 2023.
    re.compile(
        r"(?:(?P<name>.+)_)?(?P<date>\d{14})_(?P<step>e?\d{6,9})_(?P<index>\d{2,6})(?:_(?P<seed>-?\d{1,20}))?"
        r"\.(?P<ext>\w{2,4})"
    ),
)
_OPTIONS = {
    "n": "negative_prompt",
    "d": "seed",
    "seed": "seed",
    "l": "guidance",
    "cfg": "guidance",
    "g": "guidance",
    "s": "num_inference_steps",
    "steps": "num_inference_steps",
    "w": "width",
    "width": "width",
    "h": "height",
    "height": "height",
    "m": "network_multiplier",
}
"""Facts about a sample, by the option of a prompt."""


class SamplePrompt(NamedTuple):
    """A prompt, and the facts that are the same for all of its samples."""

    text: str
    meta: Mapping[str, Any] = {}


class SampleName(NamedTuple):
    """The content of the name of a file."""

    time_s: float
    step: int | None
    epoch: int | None
    prompt_index: int
    seed: int | None
    kind: str


class SampleFolder(NamedTuple):
    """A folder that a trainer writes samples to."""

    path: str
    trainer: str
    prompts: tuple[SamplePrompt, ...] = ()
    output_name: str | None = None
    """The prefix of the names of its files; None if they may have any."""

    def parse_name(self, name: str) -> SampleName | None:
        """Return the content of the name of a file; None if it is no sample of this trainer."""
        if self.trainer == "AI Toolkit":
            match = _AI_TOOLKIT.fullmatch(name)
            kind = KINDS.get(match["ext"].lower()) if match else None
            if match is None or kind is None:
                return None
            return SampleName(
                int(match["ms"]) / 1000, int(match["step"]), None, int(match["sample"] or match["index"]), None, kind
            )
        for pattern in _SD_SCRIPTS:
            match = pattern.fullmatch(name)
            if match is not None and self.output_name in (None, match["name"]):
                return _sd_scripts_name(match)
        return None


def _sd_scripts_name(match: re.Match[str]) -> SampleName | None:
    kind = KINDS.get(match["ext"].lower())
    try:
        time_s = time.mktime(time.strptime(match["date"], "%Y%m%d%H%M%S"))
    except (ValueError, OverflowError):
        return None
    if kind is None:
        return None
    is_epoch, number = match["step"].startswith("e"), int(match["step"].removeprefix("e"))
    seed = None if match["seed"] is None else int(match["seed"])
    return SampleName(
        time_s, None if is_epoch else number, number if is_epoch else None, int(match["index"]), seed, kind
    )


# Configs -------------------------------------------------------------------------------------------------------------


def find_sample_folders(config: Mapping[str, Any], working_folder: str) -> list[SampleFolder]:
    """Return the folders of samples that a config names, or a file that it names. Reads files."""
    folders = [*_ai_toolkit_folders(config, working_folder), *_sd_scripts_folders(config, working_folder)]
    for job in _config_files(config, working_folder):
        folders += _ai_toolkit_folders(job, working_folder)
    return list({folder.path: folder for folder in folders}.values())


def _config_files(config: Mapping[str, Any], working_folder: str) -> Iterator[Mapping[str, Any]]:
    """Yield the content of the job files of AI Toolkit that the arguments of its program name."""
    paths: list[str] = []
    for key in CONFIG_FILE_KEYS:
        value = config.get(key)
        paths += [path for path in (value if isinstance(value, list) else [value]) if isinstance(path, str)]
    name = config.get("name")
    for path in paths[:_MAX_CONFIG_FILES]:
        text = _read_config_text(path, working_folder)
        if "training_folder" not in text:  # parsing YAML takes long
            continue
        if isinstance(name, str) and name:
            text = text.replace("[name]", name)
        with suppress(Exception):  # not a valid file; the trainer will say so
            content = json.loads(text) if text.lstrip().startswith("{") else parse_yaml(text)
            if isinstance(content, Mapping):
                yield content


def _read_config_text(path: str, working_folder: str) -> str:
    """Return the text of a job file; AI Toolkit also looks for its name in the folder `config`."""
    for folder in ("", "config"):
        for ext in ("", ".yaml", ".yml", ".json"):
            text = _read_text(os.path.join(working_folder, folder, path + ext))
            if text:
                return text
    return ""


def _read_text(path: str) -> str:
    """Return the text of a small file; empty if it cannot be read."""
    try:
        return read_small(Path(os.path.realpath(path)), _MAX_CONFIG_BYTES).decode("utf-8-sig", "replace")
    except faults(OSError, ValueError):  # such as a path with a null character
        return ""


def _ai_toolkit_folders(config: Mapping[str, Any], working_folder: str) -> Iterator[SampleFolder]:
    job = fields_of(config.get("config")) or config
    processes = job.get("process")
    if not isinstance(processes, (list, tuple)):
        processes = [config] if "training_folder" in config else []
    for process in [fields_of(process) for process in processes[:_MAX_PROCESSES]]:
        folder = process.get("training_folder") or job.get("training_folder")
        name = process.get("name") or job.get("name")
        if isinstance(folder, str) and isinstance(name, str) and folder and name:
            path = os.path.abspath(os.path.join(working_folder, folder, name, "samples"))
            yield SampleFolder(path, "AI Toolkit", tuple(_ai_toolkit_prompts(process, job)))


def _ai_toolkit_prompts(process: Mapping[Any, Any], job: Mapping[Any, Any]) -> Iterator[SamplePrompt]:
    sample = fields_of(process.get("sample"))
    samples = sample.get("samples")
    if isinstance(samples, (list, tuple)) and samples:
        entries = [fields_of(entry) for entry in samples]
    else:
        prompts = sample.get("prompts")
        entries = [{"prompt": prompt} for prompt in (prompts if isinstance(prompts, (list, tuple)) else ())]
    trigger = process.get("trigger_word") or job.get("trigger_word")
    for index, entry in enumerate(entries[:_MAX_PROMPTS]):
        text, options = _split_prompt(str(entry.get("prompt") or ""))
        if isinstance(trigger, str):
            text = text.replace("[trigger]", trigger)
        seed = entry.get("seed", sample.get("seed"))
        if type(seed) is int and "seed" not in entry and sample.get("walk_seed") is True:
            seed += index
        facts = {
            "seed": seed,
            "guidance": entry.get("guidance_scale", sample.get("guidance_scale")),
            "num_inference_steps": entry.get("sample_steps", sample.get("sample_steps")),
            **options,
        }
        yield SamplePrompt(text, {name: value for name, value in facts.items() if isinstance(value, (int, float, str))})


def _sd_scripts_folders(config: Mapping[str, Any], working_folder: str) -> Iterator[SampleFolder]:
    folder, output_name = config.get("output_dir"), config.get("output_name")
    is_sampling = any(
        config.get(key)
        for key in ("sample_every_n_steps", "sample_every_n_epochs", "sample_prompts", "sample_at_first")
    )
    if is_sampling and isinstance(folder, str) and folder:
        prompts = config.get("sample_prompts")
        yield SampleFolder(
            os.path.abspath(os.path.join(working_folder, folder, "sample")),
            "sd-scripts",
            tuple(_read_prompt_file(os.path.join(working_folder, prompts))) if isinstance(prompts, str) else (),
            output_name if isinstance(output_name, str) and output_name else None,
        )


def _read_prompt_file(path: str) -> list[SamplePrompt]:
    """Return the prompts of a file: a line each, or JSON, or TOML."""
    text = _read_text(path)
    entries: Any = None
    with suppress(Exception):
        if path.endswith(".json"):
            entries = json.loads(text)
        elif path.endswith(".toml") and sys.version_info >= (3, 11):
            prompt = tomllib.loads(text).get("prompt")
            shared_facts = {name: value for name, value in fields_of(prompt).items() if name != "subset"}
            subsets = fields_of(prompt).get("subset")
            if isinstance(subsets, list):
                entries = [{**shared_facts, **fields_of(subset)} for subset in subsets]
    if isinstance(entries, list):
        return [_prompt_of(fields_of(entry)) for entry in entries[:_MAX_PROMPTS]]
    if path.endswith((".json", ".toml")):
        return []
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [SamplePrompt(*_split_prompt(line)) for line in lines[:_MAX_PROMPTS]]


def _prompt_of(entry: Mapping[Any, Any]) -> SamplePrompt:
    names = {"scale": "guidance", "sample_steps": "num_inference_steps"}
    facts = {names.get(name, name): value for name, value in entry.items() if isinstance(value, (int, float, str))}
    text = str(facts.pop("prompt", ""))[:_MAX_PROMPT_CHARS]
    known_facts = {name: value for name, value in facts.items() if name in _OPTIONS.values()}
    return SamplePrompt(text, known_facts)


def _split_prompt(text: str) -> tuple[str, dict[str, Any]]:
    """Return a prompt without its options, and the facts in these."""
    prompt, *options = re.split(r"(?:^|\s)--(?=[a-z])", text[:_MAX_PROMPT_CHARS])
    facts: dict[str, Any] = {}
    for option in options:
        word, _, value = option.partition(" ")
        name, value = _OPTIONS.get(word.strip()), value.strip()
        if name is not None and value:
            facts[name] = _number_or_text(value) if name != "negative_prompt" else value
    return prompt.strip(), facts


def _number_or_text(text: str) -> int | float | str:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text
