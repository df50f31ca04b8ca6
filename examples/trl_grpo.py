"""Record GRPO with TRL: the completions that the model generates, with their rewards and advantages.

Run it, then open the tab *Completions* of `tacho ui`. A language model with a few thousand parameters learns to answer
with the word in its prompt. Nothing is downloaded, and it takes seconds on any machine.
"""

from __future__ import annotations

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from tachograph.integrations.transformers import TachographCallback

COLOURS = ["red", "green", "blue", "grey"]
WORDS = ["<pad>", "<eos>", "<unk>", "say", *COLOURS]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words, created in memory."""
    pad, end, unknown = WORDS[:3]
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=unknown))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token=pad, eos_token=end, bos_token=end, unk_token=unknown
    )


def make_model() -> LlamaForCausalLM:
    """Return a very small model with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return LlamaForCausalLM(config)


def says_the_word(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """Reward completions by the share of their words that match the word in the prompt."""
    wanted = [prompt.split()[-1] for prompt in prompts]
    answers = [completion.split() for completion in completions]
    return [answer.count(word) / max(len(answer), 1) for word, answer in zip(wanted, answers, strict=True)]


def is_one_word(completions: list[str], **_: object) -> list[float]:
    """Reward completions that consist of one word."""
    return [float(len(completion.split()) == 1) for completion in completions]


def main() -> None:
    """Train a small language model with GRPO."""
    torch.set_num_threads(1)
    arguments = GRPOConfig(
        output_dir="checkpoints/trl-example",
        max_steps=60,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=3,
        reward_weights=[1.0, 0.2],
        learning_rate=1e-2,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        make_model(),
        reward_funcs=[says_the_word, is_one_word],
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": f"say {colour}"} for colour in COLOURS * 60]),
        processing_class=make_tokenizer(),
        callbacks=[TachographCallback("trl-example", completions_every=20)],  # the only change
    )
    trainer.train()


if __name__ == "__main__":
    main()
