"""Record a Hugging Face `Trainer` with one additional line.

Run it, then open the dashboard with `tacho ui`. It trains a language model with a few thousand parameters on synthetic
data, on any machine.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tachograph.integrations.transformers import TachographCallback


class Sequences(torch.utils.data.Dataset):
    """Sequences that count up from a random number, so that there is something to learn."""

    def __init__(self, num_samples: int, seed: int) -> None:
        first = torch.randint(0, 32, (num_samples, 1), generator=torch.Generator().manual_seed(seed))
        self.tokens = (first + torch.arange(16)) % 32

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Train a small language model."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir="checkpoints/hf-example",
        max_steps=60,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=20,
        save_steps=30,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=Sequences(512, seed=0),
        eval_dataset=Sequences(32, seed=1),
        callbacks=[TachographCallback("hf-example")],  # the only change
    )
    trainer.train()


if __name__ == "__main__":
    main()
