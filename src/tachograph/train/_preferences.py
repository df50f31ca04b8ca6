"""Reads and checks preference data (DPO, KTO, ORPO) and prompts (GRPO), in the form that TRL expects.

Prompts and answers are texts, or lists of messages, which TRL renders with the tokenizer's chat template. Types are
written as in Axolotl: ``template.columns``, such as ``chatml.intel``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.exceptions import PluginError, did_you_mean
from tachograph.plugins import import_dotted
from tachograph.train._chat import parse_messages
from tachograph.train._config import TrainConfig
from tachograph.train._data import Limits, PreparedData
from tachograph.train._dataset_config import CustomFormat, DatasetConfig
from tachograph.train._formats import column_of
from tachograph.train._problems import Problems, RowError
from tachograph.train._sources import read_rows

__all__ = ["prepare_preferences"]

Convert = Callable[[Mapping[str, Any]], dict[str, Any]]

_PAIR_COLUMNS = {
    "argilla": ("instruction", "chosen_response", "rejected_response"),
    "argilla_chat": ("prompt", "chosen", "rejected"),
    "icr": ("input", "chosen", "rejected"),
    "intel": ("question", "chosen", "rejected"),
    "prompt_pairs": ("prompt", "chosen", "rejected"),
    "ultra": ("prompt", "chosen", "rejected"),
}
"""The columns of prompt, chosen and rejected completion."""
_COMPLETION_COLUMNS = {
    "argilla": ("instruction", "completion"),
    "argilla_chat": ("completion", "completion"),
    "intel": ("question", "completion"),
    "prompt_pairs": ("prompt", "completion"),
    "ultra": ("prompt", "completion"),
}
"""The columns of prompt and completion (KTO)."""
_TEMPLATES = ("chat_template", "chatml", "llama3", "zephyr", "user_defined")


def prepare_preferences(config: TrainConfig, tokenizer: Any, limits: Limits, problems: Problems) -> PreparedData:
    """Return the data as `datasets.Dataset`. Errors are added to the problems; then the data is incomplete."""
    import datasets

    if not config.datasets:
        problems.add("datasets is missing: add `datasets: [{path: data.jsonl}]`")
    notes: list[str] = []
    train = _read_sets(config.train_sets(), config, tokenizer, limits, problems, notes)
    held_out = _read_sets(config.eval_sets(), config, tokenizer, limits, problems, notes)
    if config.dataset_exact_deduplication:
        train, held_out = _without_repeats(train, "datasets", notes), _without_repeats(held_out, "test_datasets", notes)
    if config.val_set_size and not problems:
        num_eval = int(config.val_set_size if config.val_set_size >= 1 else len(train) * config.val_set_size)
        if not 0 < num_eval < len(train):
            problems.add(f"val_set_size={config.val_set_size:g} leaves {num_eval} of {len(train)} rows for evaluation")
        else:
            random.Random(config.seed).shuffle(train)  # noqa: S311
            train, held_out = train[num_eval:], train[:num_eval]
    if problems:
        return PreparedData([])
    return PreparedData(
        datasets.Dataset.from_list(train),
        datasets.Dataset.from_list(held_out) if held_out else None,
        len(train),
        notes=notes,
    )


def _without_repeats(rows: list[dict[str, Any]], key: str, notes: list[str]) -> list[dict[str, Any]]:
    rows_by_text: dict[str, dict[str, Any]] = {}
    for row in rows:
        rows_by_text.setdefault(json.dumps(row, sort_keys=True), row)
    if len(rows_by_text) < len(rows):
        notes.append(f"{key}: dropped {len(rows) - len(rows_by_text)} rows that repeat an earlier row")
    return list(rows_by_text.values())


def _read_sets(
    sets: list[tuple[str, DatasetConfig]],
    config: TrainConfig,
    tokenizer: Any,
    limits: Limits,
    problems: Problems,
    notes: list[str],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for key, dataset in sets:
        convert = _converter(key, dataset, config, problems)
        if convert is None:
            continue
        num_read = num_long = 0
        first_long = ""
        before = len(rows)
        for row in read_rows(key, dataset, problems):
            num_read += 1
            try:
                example = convert(row.values)
                length = _num_tokens(example, tokenizer, limits)
            except RowError as error:
                problems.add_row(row.location, str(error))
                continue
            if length > config.sequence_len and config.rl != "grpo":
                num_long += 1
                first_long = first_long or f"{row.location} ({length} tokens)"
                if config.excess_length_strategy == "raise":
                    problems.add_row(
                        row.location,
                        f"{length} tokens are more than sequence_len={config.sequence_len}: raise it, or set "
                        "excess_length_strategy to drop or truncate",
                    )
                if config.excess_length_strategy != "truncate":
                    continue
            rows.append(example)
        if num_long and config.excess_length_strategy != "raise":
            verb = "dropped" if config.excess_length_strategy == "drop" else "truncates"
            notes.append(
                f"{key}: {verb} {num_long} of {num_read} rows, which are longer than sequence_len="
                f"{config.sequence_len}; the first is {first_long}"
            )
        if len(rows) == before and not problems:
            if num_read:
                problems.add(
                    f"{key}.path={dataset.path!r}: no row is left, all {num_long} are longer than sequence_len="
                    f"{config.sequence_len}: raise it"
                )
            else:
                problems.add(f"{key}.path={dataset.path!r}: the dataset is empty")
    return rows


def _converter(key: str, dataset: DatasetConfig, config: TrainConfig, problems: Problems) -> Convert | None:
    kind = dataset.type
    if isinstance(kind, CustomFormat):
        custom = kind
        if config.rl == "kto":
            return lambda row: _labelled_completion(
                row, dataset, custom.field_prompt, custom.field_completion, custom.field_label
            )
        if config.rl == "grpo":
            return lambda row: _prompt(row, dataset, custom.field_prompt)
        return lambda row: _preference_pair(
            row, dataset, custom.field_prompt, custom.field_chosen, custom.field_rejected
        )
    template, _, columns = (kind or "chat_template.default").partition(".")
    if config.rl == "grpo" and kind is not None and template not in _TEMPLATES:
        return _transform(key, kind, config, problems)
    if template not in _TEMPLATES:
        problems.add(
            f"{key}.type={kind!r}: unknown format of rl: {config.rl}; expected chat_template.default, chatml.COLUMNS "
            f"({', '.join(sorted(_PAIR_COLUMNS))}) or a mapping such as {{field_prompt: question, field_chosen: good}}"
        )
        return None
    if config.rl == "grpo":
        return lambda row: _prompt(row, dataset, dataset.field_prompt)
    table: dict[str, tuple[str, ...]] = dict(_COMPLETION_COLUMNS if config.rl == "kto" else _PAIR_COLUMNS)
    if columns in ("", "default"):
        if config.rl == "kto":
            return lambda row: _labelled_completion(
                row, dataset, dataset.field_prompt, dataset.field_completion, dataset.field_label
            )
        return lambda row: _preference_pair(
            row, dataset, dataset.field_prompt, dataset.field_chosen, dataset.field_rejected
        )
    if columns not in table:
        problems.add(
            f"{key}.type={kind!r}: unknown columns {columns!r}{did_you_mean(columns, table)} Available: default, "
            f"{', '.join(sorted(table))}"
        )
        return None
    names = table[columns]
    if config.rl == "kto":
        return lambda row: _labelled_completion(row, dataset, names[0], names[1], dataset.field_label)
    return lambda row: _preference_pair(row, dataset, *names)


def _transform(key: str, path: str, config: TrainConfig, problems: Problems) -> Convert | None:
    """Return the user's function that converts rows, as in Axolotl's configs for GRPO."""
    try:
        factory_result = import_dotted(path, f"{key}.type")(config.model_dump())
    except PluginError as error:
        problems.add(f"{error}; expected chat_template.default, or the dotted path of a function")
        return None
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        problems.add(f"{key}.type={path!r}: the function failed: {type(error).__name__}: {error}")
        return None
    function = factory_result[0] if isinstance(factory_result, tuple) else factory_result
    if not callable(function):
        problems.add(f"{key}.type={path!r}: it must return a function that changes a row, got {function!r}")
        return None

    def convert(row: Mapping[str, Any]) -> dict[str, Any]:
        try:
            new_row = function(dict(row))
        except Exception as error:  # the user's code may raise anything
            raise RowError(f"{path} failed: {type(error).__name__}: {error}") from error
        if not isinstance(new_row, dict) or not new_row.get("prompt"):
            raise RowError(f"{path} must return a dict with 'prompt', got {new_row!r:.60}")
        return new_row

    return convert


def _messages_or_text(value: Any, column: str, dataset: DatasetConfig) -> Any:
    if isinstance(value, str):
        if not value.strip():
            raise RowError(f"column {column!r} is empty")
        return value
    if isinstance(value, dict):
        value = [value]
    return parse_messages(value, column, dataset)


def _prompt_of(row: Mapping[str, Any], dataset: DatasetConfig, column: str) -> Any:
    """Return the prompt: the column of the prompt, or else the column of the messages."""
    if column not in row and dataset.field_messages in row:
        column = dataset.field_messages
    prompt = _messages_or_text(column_of(row, column, "field_prompt"), column, dataset)
    system = row.get(dataset.field_system)
    if isinstance(system, str) and system.strip():
        prompt = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        prompt = [{"role": "system", "content": system}, *prompt]
    return (
        [{"role": message["role"], "content": message["content"]} for message in prompt]
        if isinstance(prompt, list)
        else prompt
    )


def _completion_of(row: Mapping[str, Any], dataset: DatasetConfig, column: str, key: str, prompt: Any) -> Any:
    """Return a completion, as messages if the prompt is, and without the prompt if the column repeats it."""
    completion = _messages_or_text(column_of(row, column, key), column, dataset)
    if isinstance(prompt, str) and isinstance(completion, list):
        return completion[-1]["content"]
    if isinstance(prompt, list):
        content = completion if isinstance(completion, str) else completion[-1]["content"]
        return [{"role": "assistant", "content": content}]
    return completion


def _preference_pair(
    row: Mapping[str, Any], dataset: DatasetConfig, prompt_column: str, chosen_column: str, rejected_column: str
) -> dict[str, Any]:
    question = _prompt_of(row, dataset, prompt_column)
    completions = [
        column_of(row, name, key)
        for name, key in ((chosen_column, "field_chosen"), (rejected_column, "field_rejected"))
    ]
    if isinstance(question, str) and any(isinstance(completion, (list, dict)) for completion in completions):
        question = [{"role": "user", "content": question}]
    pair = {
        "prompt": question,
        "chosen": _completion_of(row, dataset, chosen_column, "field_chosen", question),
        "rejected": _completion_of(row, dataset, rejected_column, "field_rejected", question),
    }
    if pair["chosen"] == pair["rejected"]:
        raise RowError(f"columns {chosen_column!r} and {rejected_column!r} are the same, so the row says nothing")
    return pair


def _labelled_completion(
    row: Mapping[str, Any], dataset: DatasetConfig, prompt_column: str, completion_column: str, label_column: str
) -> dict[str, Any]:
    question = _prompt_of(row, dataset, prompt_column)
    if isinstance(question, str) and isinstance(row.get(completion_column), (list, dict)):
        question = [{"role": "user", "content": question}]
    value = column_of(row, label_column, "field_label")
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if not isinstance(value, bool) and value not in (0, 1):
        raise RowError(f"column {label_column!r} must be true or false, got {value!r:.40}")
    return {
        "prompt": question,
        "completion": _completion_of(row, dataset, completion_column, "field_completion", question),
        "label": bool(value),
    }


def _prompt(row: Mapping[str, Any], dataset: DatasetConfig, column: str) -> dict[str, Any]:
    prompt = _prompt_of(row, dataset, column)
    # The other columns go to the reward functions.
    others = {name: value for name, value in row.items() if name not in (column, dataset.field_messages)}
    return {**others, "prompt": prompt}


def _num_tokens(row: dict[str, Any], tokenizer: Any, limits: Limits) -> int:
    """Return the approximate number of tokens of the longest text of a row, and check that the model knows them."""
    prompt = _text(row["prompt"])
    longest = 0
    for name in ("chosen", "rejected", "completion"):
        if name in row or name == "chosen":
            text = prompt + (_text(row[name]) if name in row else "")
            ids = tokenizer(text, add_special_tokens=True, verbose=False)["input_ids"]
            longest = max(longest, len(ids))
            if limits.vocab_size is not None and ids and max(ids) >= limits.vocab_size:
                raise RowError(
                    f"token {max(ids)} is beyond the vocabulary of the model, which has {limits.vocab_size} tokens: "
                    "the tokenizer does not belong to the model; set tokenizer_config"
                )
    if limits.max_positions is not None and longest > limits.max_positions:
        raise RowError(f"{longest} tokens are more than the model's {limits.max_positions} positions: shorten the text")
    return longest


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(str(message["content"]) for message in value)
