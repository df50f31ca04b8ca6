"""Tiny models, a tokenizer and data for the tests of training, built in code: nothing is downloaded."""

from __future__ import annotations

import importlib
import json
import shutil
import string
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")
pytest.importorskip("peft")

from tests.tiny_models import one_thread, tiny_llama, tiny_moe  # noqa: E402

__all__ = ["one_thread"]

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"


def make_tokenizer(template=TEMPLATE):
    """Return a tokenizer with one token per character, so that tests can count tokens by hand."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    wrapped.add_tokens(["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], special_tokens=True)
    wrapped.chat_template = template
    return wrapped


def make_model(seed=7, **options):
    """Return a Llama for the tokenizer."""
    return tiny_llama(seed, vocab_size=len(SPECIAL) + len(CHARACTERS), max_position_embeddings=256, **options)


def write_rows(path, rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def conversations(count=16):
    return [
        {
            "messages": [
                {"role": "user", "content": f"add {number}"},
                {"role": "assistant", "content": f"is {number + 1}"},
            ]
        }
        for number in range(count)
    ]


def write_workspace(folder):
    """Write models, a tokenizer and data to a folder."""
    tokenizer = make_tokenizer()
    models = {"model": make_model(7), "teacher": make_model(8), "sparse-model": make_model(9)}
    models["moe-model"] = tiny_moe(seed=10, vocab_size=len(tokenizer))
    with torch.no_grad():
        for module in models["sparse-model"].modules():
            if isinstance(module, torch.nn.Linear) and module is not models["sparse-model"].lm_head:
                groups = module.weight.view(-1, 4)  # the two smallest of every four are zero
                groups.scatter_(1, groups.abs().topk(2, largest=False).indices, 0.0)
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
    write_rows(folder / "data.jsonl", conversations())
    write_rows(
        folder / "text.jsonl", [{"text": f"the number {number} is followed by {number + 1}"} for number in range(16)]
    )


@pytest.fixture(scope="session")
def template_folder(tmp_path_factory):
    """A folder with models, a tokenizer and data, to copy."""
    folder = tmp_path_factory.mktemp("train")
    write_workspace(folder)
    return folder


@pytest.fixture
def workspace(template_folder, tmp_path, monkeypatch):
    """The working directory of a test, with models and data."""
    folder = tmp_path / "work"
    shutil.copytree(template_folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # of plugins
    for module in ("huggingface_hub.constants", "datasets.config"):  # read from the environment at import
        monkeypatch.setattr(importlib.import_module(module), "HF_HUB_OFFLINE", True)
    yield folder
    for name, module in list(sys.modules.items()):  # the next test has functions of the same name
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


BASE = {
    "base_model": "./model",
    "datasets": [{"path": "./data.jsonl", "type": "chat_template"}],
    "output_dir": "./out",
    "sequence_len": 64,
    "micro_batch_size": 2,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "save_strategy": "no",
    "telemetry": {"log_dir": "./logs", "console": False, "system_interval_s": 0},
}


@pytest.fixture
def make_job(workspace):
    """Return a function that loads a job from the base config with changes; None removes a key."""
    import yaml

    from tachograph.train import load

    jobs = []

    def make(*overrides, **changes):
        values = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
        path = Path("config.yaml")
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        job = load(path, overrides)
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        job.close()
