"""The LM Evaluation Harness: metrics against an own computation, training that stays the same, the command, errors."""

from __future__ import annotations

import io
import json
import re
import string
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from rich.console import Console

import tachograph
from tachograph.cli._main import main
from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins import PluginSession, apply
from tachograph.plugins.lm_eval._results import EvaluationResult
from tests.plugins.conftest import llama, logged, weights

pytest.importorskip("lm_eval")
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

LETTERS = string.ascii_lowercase + "0123456789 ?|"


@pytest.fixture
def tokenizer():
    """One token per character."""
    vocabulary = {name: number for number, name in enumerate(["<pad>", "<bos>", "<eos>", *LETTERS])}
    built = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    built.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def documents(seed, count):
    generator = torch.Generator().manual_seed(seed)

    def word(length):
        return "".join(LETTERS[int(n)] for n in torch.randint(0, 26, (length,), generator=generator))

    return [
        {"question": f"{word(5)}?", "choices": [word(2), word(2), word(2)], "answer": number % 3}
        for number in range(count)
    ]


@pytest.fixture
def tasks(tmp_path):
    """Two tasks in a folder: `colors` without examples of its own, and `shapes` with two."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, seed in (("colors", 1), ("shapes", 2)):
        files = {}
        for split, count in (("test", 12), ("train", 2)):
            path = folder / f"{name}_{split}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in documents(seed + count, count)))
            files[split] = str(path)
        config = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files, "cache_dir": str(tmp_path / "cache")},
            "output_type": "multiple_choice",
            "test_split": "test",
            "fewshot_split": "train",
            "fewshot_config": {"sampler": "first_n"},
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "target_delimiter": " ",
            "fewshot_delimiter": "|",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"version": 1},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return folder


@torch.no_grad()
def accuracy(model, tokenizer, seed, num_examples=0):
    """Return the share of documents whose right choice has the highest log-likelihood, computed without the harness."""
    examples = documents(seed + 2, 2)[:num_examples]
    prefix = "".join(f"{row['question']} {row['choices'][row['answer']]}|" for row in examples)
    model.eval()
    right = 0
    for row in documents(seed + 12, 12):
        scores = []
        for choice in row["choices"]:
            context = tokenizer.encode(prefix + row["question"])
            ids = torch.tensor([tokenizer.encode(f"{prefix}{row['question']} {choice}")])
            logits = model(input_ids=ids[:, :-1]).logits.log_softmax(-1)[0]
            targets = ids[0, 1:]
            scores.append(float(logits[torch.arange(len(targets)), targets][len(context) - 1 :].sum()))
        right += int(torch.tensor(scores).argmax()) == row["answer"]
    return right / 12


def options(folder, **given):
    return {
        "lm_eval_tasks": ["colors"],
        "lm_eval_include_path": str(folder),
        "lm_eval_include_defaults": False,
        **given,
    }


@pytest.fixture
def trainer_with(make_trainer, tokenizer):
    def make(model=None, **arguments):
        trainer = make_trainer(model if model is not None else llama(max_position_embeddings=256), **arguments)
        trainer.processing_class = tokenizer
        return trainer

    return make


@pytest.fixture
def saved(tmp_path, tokenizer):
    """Save a model with its tokenizer."""

    def save(name, seed=0, with_tokenizer=True):
        torch.manual_seed(seed)
        model = llama(max_position_embeddings=256)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.05)
        model.save_pretrained(tmp_path / name)
        if with_tokenizer:
            tokenizer.save_pretrained(tmp_path / name)
        return model

    return save


def result_files(folder):
    return sorted((folder / "lm_eval_results").glob("*.json"))


# In a training --------------------------------------------------------------------------------------------------------


def test_metrics_equal_an_own_computation(trainer_with, tokenizer, tasks, tmp_path, capsys):
    trainer = trainer_with()
    names = ["axolotl.integrations.lm_eval.LMEvalPlugin"]
    apply(trainer, names, options(tasks, lm_eval_tasks=["colors", "shapes:2"], lm_eval_batch_size=None))
    trainer.train()
    assert trainer.model.training
    expected = {
        "eval/colors/acc": accuracy(trainer.model, tokenizer, 1),
        "eval/shapes/acc": accuracy(trainer.model, tokenizer, 2, num_examples=2),
    }
    assert {name: logged(trainer, name) for name in expected} == {name: [value] for name, value in expected.items()}
    (path,) = result_files(tmp_path / "out")
    saved_results = json.loads(path.read_text())
    assert saved_results["metrics"] == expected
    assert saved_results["step"] == 4
    assert [entry["num_fewshot"] for entry in saved_results["evaluations"]] == [None, 2]
    assert saved_results["evaluations"][1]["n-shot"] == {"shapes": 2}
    shown = capsys.readouterr().out
    assert "colors" in shown
    assert "examples" in shown


def test_evaluating_every_n_steps_leaves_training_unchanged(trainer_with, tasks, tmp_path):
    def model():
        return llama(max_position_embeddings=256, attention_dropout=0.2)

    plain = trainer_with(model(), max_steps=6)
    plain.train()
    trainer = trainer_with(model(), max_steps=6)
    tokens = (trainer.processing_class.padding_side, trainer.processing_class.pad_token)
    apply(trainer, ["lm_eval"], options(tasks, lm_eval_steps=2))
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval/colors/acc" in entry] == [2, 4, 6]
    assert logged(trainer, "loss") == logged(plain, "loss")
    for name, weight in weights(plain.model).items():
        assert torch.equal(weights(trainer.model)[name], weight), name
    assert (trainer.processing_class.padding_side, trainer.processing_class.pad_token) == tokens
    assert len(result_files(tmp_path / "out")) == 3
    assert all(value > 0 for value in logged(trainer, "plugin/lm_eval/evaluation_s"))


def test_modes_and_random_states_are_restored(tokenizer, tasks):
    import random

    import numpy as np

    from tachograph.plugins.lm_eval._harness import preserve_state

    model = llama()
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    expected = (torch.rand(1), random.random(), np.random.rand())
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    with pytest.raises(RuntimeError), preserve_state(model):
        model.eval()
        torch.manual_seed(9), random.seed(9), np.random.seed(9)
        raise RuntimeError
    assert [module.training for module in model.modules()] == modes
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_run_has_metrics_and_a_span_per_evaluation(trainer_with, tasks, tmp_path):
    from tachograph.integrations.transformers import TachographCallback

    with tachograph.init("evaluated", log_dir=str(tmp_path / "logs"), git=False, system_interval_s=0) as run:
        trainer = trainer_with(callbacks=[TachographCallback()])
        apply(trainer, ["lm_eval"], options(tasks, lm_eval_steps=2))
        trainer.train()
    found = tachograph.read(run)
    assert list(found.series("eval/colors/acc").steps) == [2, 4]
    spans = found.spans("validation_loop")
    assert len(spans) == 2
    assert list(found.series("train_loss").steps) == [1, 2, 3, 4]


def test_failed_evaluation_is_reported_and_training_ends(trainer_with, tasks, tmp_path, caplog):
    trainer = trainer_with()
    apply(trainer, ["lm_eval"], options(tasks, lm_eval_steps=2))
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "lm_eval_results").write_text("in the way")
    trainer.train()
    assert trainer.state.global_step == 4
    assert caplog.text.count("the evaluation failed") == 2
    assert logged(trainer, "plugin/lm_eval/failures") == [1.0]
    assert len(logged(trainer, "loss")) == 4


def test_runner_evaluates_after_saving(trainer_with, tasks, tmp_path):
    from pydantic import BaseModel

    class RunnerOptions(BaseModel):
        output_dir: str

    out = tmp_path / "runner"
    session = PluginSession.open(["lm_eval"], {**options(tasks), "output_dir": str(out)}, base=RunnerOptions)
    session.pre_model_load()
    assert list(session.plugins[0].report.changes) == ["tasks evaluated"]
    trainer = trainer_with(output_dir=str(out))
    trainer.__class__ = session.trainer_class(type(trainer))
    session.attach(trainer)
    trainer.train()
    assert not result_files(out)
    session.post_train(trainer.model)
    assert len(result_files(out)) == 1
    assert len(logged(trainer, "eval/colors/acc")) == 1


# Errors before training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lm_eval_tasks": ["color"]}, "unknown task 'color' \\(did you mean 'colors'\\?\\).*lm_eval_include_path"),
        ({"lm_eval_tasks": []}, "no task is listed"),
        ({"lm_eval_tasks": ["colors", "colors"]}, "'colors' is listed twice"),
        ({"lm_eval_tasks": [":5"]}, "':5' names no task"),
        ({"lm_eval_include_path": "missing"}, "'missing' is not a folder"),
        ({"lm_eval_include_path": None}, "lm_eval_include_path is missing"),
        ({"lm_eval_steps": 2, "lm_eval_model": "x"}, "lm_eval_model names another one"),
        ({"lm_eval_model": "./nope"}, "lm_eval_model='./nope': no such folder"),
        ({"lm_eval_steps": 0}, "lm_eval_steps=0"),
        ({"lm_eval_batch_size": 0}, "lm_eval_batch_size=0: expected a number of at least 1, or auto"),
        ({"lm_eval_batch_size": "all"}, "lm_eval_batch_size='all': expected a number"),
        ({"lm_eval_task": ["x"]}, "unknown key 'lm_eval_task'; did you mean 'lm_eval_tasks'"),
    ],
)
def test_wrong_options_are_errors_before_training(trainer_with, tasks, given, message):
    with pytest.raises(ConfigError, match=message):
        apply(trainer_with(), ["lm_eval"], options(tasks, **given))


def test_broken_tasks_are_errors_before_training(trainer_with, tasks):
    (tasks / "colors_test.jsonl").unlink()
    with pytest.raises(PluginError, match="cannot load colors: FileNotFoundError"):
        apply(trainer_with(), ["lm_eval"], options(tasks))
    path = tasks / "shapes.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "num_fewshot": 0}))
    with pytest.raises(PluginError, match="'shapes' allows no examples.*remove :5"):
        apply(trainer_with(), ["lm_eval"], options(tasks, lm_eval_tasks=["shapes:5"]))
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "unsafe_code": True}))
    with pytest.raises(PluginError, match="'shapes' executes code that the model writes"):
        apply(trainer_with(), ["lm_eval"], options(tasks, lm_eval_tasks=["shapes"]))


def test_trainer_without_tokenizer_is_an_error(make_trainer, tasks):
    with pytest.raises(PluginError, match="no tokenizer: pass it as processing_class"):
        apply(make_trainer(), ["lm_eval"], options(tasks))


# The command ----------------------------------------------------------------------------------------------------------


def command(tmp_path, **config):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return CliRunner().invoke(main, ["lm-eval", str(path)])


def test_command_evaluates_by_priority(tmp_path, tasks, saved, tokenizer):
    """`lm_eval_model` wins over `hub_model_id`, and that over `output_dir`; other keys are ignored."""
    models = {name: saved(name, seed) for seed, name in enumerate(("chosen", "hub", "out"))}
    given = {
        "lm_eval_model": str(tmp_path / "chosen"),
        "hub_model_id": str(tmp_path / "hub"),
        "output_dir": str(tmp_path / "out"),
        "learning_rate": 1e-3,
        "plugins": ["axolotl.integrations.lm_eval.LMEvalPlugin"],
    }
    for name, key in (("chosen", "lm_eval_model"), ("hub", "hub_model_id"), ("out", "")):
        done = command(tmp_path, **options(tasks), **given)
        assert done.exit_code == 0, done.output
        assert "colors" in done.output
        results = json.loads(result_files(tmp_path / "out")[-1].read_text())
        assert results["model"] == str(tmp_path / name)
        assert results["metrics"] == {"eval/colors/acc": accuracy(models[name], tokenizer, 1)}
        assert str(result_files(tmp_path / "out")[-1]) in done.output.replace("\n", "")
        given.pop(key, None)
    assert len(result_files(tmp_path / "out")) == 3


def test_command_distinguishes_numbers_of_examples(tmp_path, tasks, saved, tokenizer):
    model = saved("out", with_tokenizer=False)
    saved("base")
    done = command(
        tmp_path,
        **options(tasks, lm_eval_tasks=["colors:0", "colors:2", "shapes:0"]),
        output_dir=str(tmp_path / "out"),
        base_model=str(tmp_path / "base"),
    )
    assert done.exit_code == 0, done.output
    (path,) = result_files(tmp_path / "out")
    assert json.loads(path.read_text())["metrics"] == {
        "eval/colors:0/acc": accuracy(model, tokenizer, 1),
        "eval/shapes/acc": accuracy(model, tokenizer, 2),
        "eval/colors:2/acc": accuracy(model, tokenizer, 1, num_examples=2),
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "lm_eval_tasks: field required"),
        ({"lm_eval_limit": 3}, "set lm_eval_model, hub_model_id or output_dir"),
        ({"lm_eval_tasks": ["colors"], "output_dir": "nowhere"}, "'nowhere' has no model: train one first"),
        ({"lm_eval_tasks": ["colour"], "lm_eval_model": "x"}, "did you mean 'colors'?"),
        ({"lm_eval_tasks": ["colors"], "lm_eval_model": "./absent"}, "cannot load the model './absent'"),
    ],
)
def test_command_explains_what_is_missing(tmp_path, tasks, config, message):
    done = command(tmp_path, **{**options(tasks), **config}) if config else command(tmp_path, learning_rate=1)
    assert done.exit_code == 1
    assert message.lower() in " ".join(done.output.replace("│", " ").split()).lower()


def test_command_needs_a_mapping(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- 1\n")
    done = CliRunner().invoke(main, ["lm-eval", str(path)])
    assert done.exit_code == 1
    assert "mapping" in done.output


def test_adapter_is_evaluated_with_its_base_model(tmp_path, tasks, saved, tokenizer):
    peft = pytest.importorskip("peft")
    base = saved("base")
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "out")
    done = command(tmp_path, **options(tasks), output_dir=str(tmp_path / "out"), base_model=str(tmp_path / "base"))
    assert done.exit_code == 0, done.output
    (path,) = result_files(tmp_path / "out")
    assert json.loads(path.read_text())["metrics"] == {"eval/colors/acc": accuracy(adapted, tokenizer, 1)}


def test_plan_names_tasks_and_times(tasks):
    session = PluginSession.open(["lm_eval"], options(tasks, lm_eval_tasks=["colors:5"], lm_eval_steps=10))
    assert session.plugins[0].plan(session.cfg, None) == ["evaluates colors:5 every 10 steps and after training"]
    session = PluginSession.open(["lm_eval"], options(tasks, lm_eval_tasks=["color"]))
    with pytest.raises(PluginError, match="did you mean 'colors'"):
        session.plugins[0].plan(session.cfg, None)


def test_task_of_the_docs_is_evaluated(trainer_with, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "plugins" / "lm_eval.md").read_text()
    config, task = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    task["dataset_kwargs"]["cache_dir"] = str(tmp_path / "cache")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "colors.yaml").write_text(yaml.safe_dump(task))
    (tmp_path / "tasks" / "colors.jsonl").write_text(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    trainer = trainer_with()
    apply(trainer, config["plugins"], {key: value for key, value in config.items() if key.startswith("lm_eval_")})
    trainer.train()
    assert [len(logged(trainer, f"eval/colors:{count}/acc")) for count in (0, 2)] == [2, 2]


def test_table_prints_no_control_characters_and_no_markup():
    hostile = "\x1b[2J\x1b]8;;http://x\x07\u202e[red]x[/red][link=http://x]y[/link]"
    result = EvaluationResult(hostile)
    result.rows.append((hostile, 0, hostile, 0.5))
    output = io.StringIO()
    Console(file=output, width=500, color_system=None).print(result.table())
    assert all(line.isprintable() for line in output.getvalue().splitlines())
    assert output.getvalue().count("[red]x[/red][link=http://x]y[/link]") == 3
