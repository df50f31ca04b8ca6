"""Calls the harness in this process, on a model that is being trained or on one that is loaded for it.

An evaluation must not change a training: the harness seeds the random generators and sets the model to evaluation mode,
so both are saved before and restored afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tachograph.exceptions import PluginError
from tachograph.plugins.lm_eval._options import LMEvalOptions
from tachograph.plugins.lm_eval._results import EvaluationResult
from tachograph.plugins.lm_eval._tasks import LoadedTasks

__all__ = ["check_model", "choose_model", "evaluate", "load_model", "preserve_state", "wrap_model"]

_RANDOM_SEED, _SEED = 0, 1234
"""The harness's own defaults, so that results can be compared."""
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def choose_model(options: LMEvalOptions, config: Mapping[str, Any]) -> str:
    """Return the model to evaluate: `lm_eval_model`, else `hub_model_id`, else `output_dir`.

    Raises:
        PluginError: if there is none of them, or the folder has no model.
    """
    model = options.lm_eval_model or config.get("hub_model_id")
    if model:
        return str(model)
    output_dir = config.get("output_dir")
    if not output_dir:
        raise PluginError("no model to evaluate: set lm_eval_model, hub_model_id or output_dir")
    if not any(os.path.isfile(os.path.join(output_dir, name)) for name in ("config.json", "adapter_config.json")):
        raise PluginError(f"output_dir {str(output_dir)!r} has no model: train one first, or set lm_eval_model")
    return str(output_dir)


def check_model(name: str, output_dir: str | None = None) -> None:
    """Check before training that the folder of a model exists, unless the training creates it. Hub ids are accepted.

    Raises:
        PluginError: if it is neither a folder nor a hub id.
    """
    path = os.path.abspath(os.path.expanduser(name))
    if os.path.isdir(path) or (output_dir and (path + os.sep).startswith(os.path.abspath(output_dir) + os.sep)):
        return
    if not _HUB_ID.fullmatch(name):
        raise PluginError(f"plugin lm_eval: lm_eval_model={name!r}: no such folder; give a folder or a hub id")


def load_model(name: str, options: LMEvalOptions, base_model: str | None = None) -> Any:
    """Load a model for the harness.

    Args:
        name: a folder or a hub id. A folder with an adapter is loaded with its base model.
        options: the options.
        base_model: the base model of an adapter, and the source of the tokenizer if the folder has none.

    Raises:
        PluginError: if it cannot be loaded.
    """
    from lm_eval.models.huggingface import HFLM

    arguments: dict[str, Any] = {"pretrained": name}
    adapter = os.path.join(name, "adapter_config.json")
    try:
        if os.path.isfile(adapter):
            with open(adapter, encoding="utf-8") as file:
                adapter_base = json.load(file).get("base_model_name_or_path")
            arguments = {"pretrained": base_model or adapter_base, "peft": name}
        if os.path.isdir(name) and not any(os.path.isfile(os.path.join(name, file)) for file in _TOKENIZER_FILES):
            if not base_model:
                raise PluginError(f"{name} has no tokenizer: set base_model, whose tokenizer is then used")
            arguments["tokenizer"] = base_model
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with _quiet():
            return HFLM(**arguments, device=device, dtype="auto", batch_size=options.lm_eval_batch_size)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, PluginError):
            raise
        raise PluginError(f"cannot load the model {name!r} to evaluate: {error}") from error


def wrap_model(model: Any, tokenizer: Any, options: LMEvalOptions) -> Any:
    """Return a model in memory for the harness; to be called inside `preserve_state`."""
    from lm_eval.models.huggingface import HFLM

    with _quiet():
        # The harness changes the padding of the tokenizer, which the training also uses.
        return HFLM(pretrained=model, tokenizer=copy.deepcopy(tokenizer), batch_size=options.lm_eval_batch_size)


def evaluate(lm: Any, name: str, options: LMEvalOptions, tasks: LoadedTasks) -> EvaluationResult:
    """Evaluate tasks, with one call of the harness per number of examples.

    `lm_eval.simple_evaluate` is not used: it loads all tasks again, and starts programs to describe the machine.

    Args:
        lm: the model, from `load_model` or `wrap_model`.
        name: its name, for the results.
        options: the options.
        tasks: the tasks, from `load_tasks`.
    """
    import lm_eval

    result = EvaluationResult(name)
    for num_fewshot, group in tasks:
        random.seed(_RANDOM_SEED)
        np.random.seed(_SEED)
        torch.manual_seed(_SEED)
        with _quiet():
            output = lm_eval.evaluate(
                lm=lm,
                task_dict=group,
                limit=options.lm_eval_limit,
                apply_chat_template=options.lm_eval_apply_chat_template,
                fewshot_as_multiturn=options.lm_eval_apply_chat_template,
                bootstrap_iters=0,
                log_samples=False,
            )
        if output is not None:  # None on all ranks but the first
            result.add(output, num_fewshot)
    return result


@contextlib.contextmanager
def preserve_state(model: Any) -> Iterator[None]:
    """Restore the mode of each module and the state of all random generators at the end of the block."""
    modes = [(module, module.training) for module in model.modules()]
    python_state, numpy_state, cpu_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of the harness: it warns about models in memory and about every number of examples."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
