"""Scripts that train with a framework, each in a fork made after all of them are imported.

``python trainers.py FOLDER [NAME …]`` writes for each the sum of its weights and the states of the random generators.
Those whose name begins with ``own`` use Tachograph themselves.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import accelerate
import datasets
import numpy
import tokenizers
import torch
import torch._dynamo
import transformers
import trl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SCRIPTS: dict[str, Callable[[], nn.Module]] = {}
WORDS = "<pad> <eos> <unk> two plus three is five six".split()


def script(function: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    SCRIPTS[function.__name__] = function
    return function


def llama() -> Any:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(WORDS), **sizes, **special))


def trainer(folder: str, **more: Any) -> Any:
    tokens = [{"input_ids": row, "labels": row} for row in torch.randint(0, 9, (24, 6)).tolist()]
    arguments = transformers.TrainingArguments(
        folder,
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return transformers.Trainer(llama(), arguments, train_dataset=tokens, eval_dataset=tokens[:4], **more)


@script
def hugging_face() -> nn.Module:
    made = trainer("hugging_face")
    made.train()
    made.save_model("final")
    return made.model


@script
def sft() -> nn.Module:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    made = trl.SFTTrainer(
        llama(),
        trl.SFTConfig("sft", max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True, logging_steps=1),
        train_dataset=datasets.Dataset.from_list([{"text": "two plus three is five"}] * 8),
        processing_class=tokenizer,
    )
    made.train()
    return made.model


@script
def private() -> nn.Module:
    os.environ["TACHO_COMPLETIONS"] = "0"
    return sft()


@script
def accelerated() -> nn.Module:
    """A hand-written loop that steps through Accelerate."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state("state")
    return model


@script
def saved_pretrained() -> nn.Module:
    """A hand-written loop around a model of transformers."""
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters())
    for row in torch.randint(0, 9, (3, 1, 6)):
        optimizer.zero_grad()
        model(input_ids=row, labels=row).loss.backward()
        optimizer.step()
    model.save_pretrained("pretrained")
    return model


@script
def own_callback() -> nn.Module:
    from tachograph.integrations.transformers import TachographCallback

    made = trainer("own_callback", callbacks=[TachographCallback("own_callback", console=False)])
    made.train()
    return made.model


@script
def own_callback_added() -> nn.Module:
    from tachograph.integrations.transformers import TachographCallback

    made = trainer("own_callback_added")
    made.add_callback(TachographCallback("own_callback_added", console=False))
    made.train()
    return made.model


@script
def own_run() -> nn.Module:
    import tachograph

    made = trainer("own_run")
    with tachograph.init("own_run", console=False):
        made.train()
    return made.model


def fit(package: str, **options: Any) -> nn.Module:
    lightning = importlib.import_module(package)

    class Task(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def training_step(self, batch: Any) -> torch.Tensor:
            loss = self.inner(batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any) -> None:
            self.log("val_loss", self.inner(batch[0]).square().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    task = Task()
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
    made = lightning.Trainer(
        max_epochs=2, accumulate_grad_batches=2, log_every_n_steps=1, default_root_dir=package, **quiet, **options
    )
    made.fit(task, loader, loader)
    return task


@script
def lightning() -> nn.Module:
    return fit("lightning.pytorch")


@script
def pytorch_lightning() -> nn.Module:
    return fit("pytorch_lightning")


@script
def own_lightning_callback() -> nn.Module:
    from tachograph.integrations.lightning import TachographCallback

    return fit("lightning.pytorch", callbacks=[TachographCallback("own_lightning_callback", console=False)])


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for package in ("lightning.pytorch", "pytorch_lightning"):
        importlib.import_module(package)
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True)
    os.chdir(folder)
    gc.freeze()
    for name in sys.argv[2:] or SCRIPTS:
        pid = os.fork()
        if not pid:
            torch.manual_seed(0)
            numpy.random.seed(0)
            random.seed(0)
            model = SCRIPTS[name]()
            weights = [parameter.detach().tolist() for parameter in model.parameters()]
            state = [weights, torch.get_rng_state().tolist(), str(numpy.random.get_state()), str(random.getstate())]
            (folder / f"{name}.json").write_text(json.dumps(state))
            atexit._run_exitfuncs()  # what a normal exit runs, without tearing down torch
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{name} failed")


if __name__ == "__main__":
    main()
