"""Generate text with a diffusion model: start with masked tokens, and unmask the most confident ones step by step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch

from tachograph.exceptions import ConfigError, PluginError
from tachograph.plugins.diffusion._process import attention_mask_for, find_segments, shift_logits
from tachograph.plugins.diffusion._tokens import special_ids_of

__all__ = ["DiffusionSample", "attention_of", "evaluating", "sample", "unmask"]

_RANDOM_RATIO = (0.1, 0.7)
"""The range of the ratio of masked tokens in the mode `random`, unless it is given."""


class DiffusionSample(NamedTuple):
    """A generated text.

    Args:
        original: the text before masking; None in the mode `completion`.
        masked: the text with the mask token.
        generated: the text with all masked tokens replaced.
        mode: how it was masked.
        num_masked: number of masked tokens.
        mask_ratio: their share of the tokens.
        accuracy: the share of masked tokens that equal the original; None in the mode `completion`.
        ids: the generated ids.
    """

    original: str | None
    masked: str
    generated: str
    mode: str
    num_masked: int
    mask_ratio: float
    accuracy: float | None
    ids: list[int]


def attention_of(model: Any) -> str:
    """Return the attention implementation of a model.

    Raises:
        PluginError: if it cannot look in both directions.
    """
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    implementation = getattr(config, "_attn_implementation", None) or "eager"
    if implementation not in {"eager", "sdpa"}:
        raise PluginError(
            f"plugin diffusion: attention {implementation!r} does not take a mask for attention in both directions: "
            f'load the model with attn_implementation="sdpa" or "eager" (in a config of tacho train: '
            f"attn_implementation: sdpa, and flash_attention: false)"
        )
    return str(implementation)


@contextmanager
def evaluating(model: Any) -> Any:
    """Run a block without gradients and dropout."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def unmask(
    model: Any,
    input_ids: torch.Tensor,
    mask: torch.Tensor,
    *,
    mask_token_id: int,
    attention_mask: torch.Tensor | None = None,
    steps: int = 128,
    temperature: float = 0.0,
    forbidden_ids: Sequence[int] | torch.Tensor = (),
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return ids in which all masked tokens are replaced by predicted ones.

    Each step predicts all masked tokens and keeps the most confident ones: the number of tokens still masked, divided
    by the number of remaining steps, but at least one. The last step keeps all.

    Args:
        model: the model.
        input_ids: ids of the shape (rows, positions); tokens that are not masked stay as they are.
        mask: which tokens to replace.
        mask_token_id: the mask token, which is never generated.
        attention_mask: 0 for padding, 1 for tokens.
        steps: the largest number of steps.
        temperature: 0 takes the most likely token; above, tokens are drawn at random (by Gumbel noise).
        forbidden_ids: further tokens that are never generated.
        generator: the source of random numbers, on the CPU.
    """
    mask = mask.clone()
    ids = torch.where(mask, mask_token_id, input_ids)
    segments = find_segments(ids, attention_mask)
    dtype = next(model.parameters()).dtype
    attention = attention_mask_for(segments, attention_of(model), dtype)
    forbidden = torch.as_tensor([mask_token_id, *map(int, forbidden_ids)], device=ids.device)
    with evaluating(model):
        for step in range(steps):
            remaining = mask.sum(dim=1)
            if not bool(remaining.any()):
                break
            outputs = model(input_ids=ids, attention_mask=attention, use_cache=False)
            logits = shift_logits(outputs.logits, segments).float()
            logits[..., forbidden] = -torch.inf
            noisy = logits
            if temperature > 0:
                uniform = torch.rand(logits.shape, generator=generator, dtype=torch.float64).to(logits.device)
                noisy = logits / temperature - torch.log(-torch.log(uniform.clamp(min=1e-20)))
            choice = noisy.argmax(dim=-1)
            confidence = logits.softmax(dim=-1).gather(-1, choice[..., None])[..., 0]
            confidence = torch.where(mask, confidence, -1.0)
            num_kept = (remaining // (steps - step)).clamp(min=1)
            order = confidence.argsort(dim=1, descending=True, stable=True)
            is_kept = torch.zeros_like(mask).scatter_(
                1, order, torch.arange(mask.shape[1], device=mask.device) < num_kept[:, None]
            )
            is_kept &= mask
            ids = torch.where(is_kept, choice, ids)
            mask &= ~is_kept
    return ids


def sample(
    model: Any,
    tokenizer: Any,
    text: str | Sequence[int] | torch.Tensor,
    *,
    mode: Literal["random", "completion", "sft"] = "completion",
    mask_ratio: float | None = None,
    num_tokens: int = 64,
    labels: Sequence[int] | torch.Tensor | None = None,
    steps: int = 128,
    temperature: float = 0.0,
    mask_token_id: int | None = None,
    seed: int = 0,
) -> DiffusionSample:
    """Mask a text and generate the masked tokens.

    Args:
        model: a model that was trained with the plugin `diffusion`.
        tokenizer: its tokenizer.
        text: a text, or token ids.
        mode: `completion` appends masked tokens; `random` masks random tokens; `sft` masks the tokens with a label.
        mask_ratio: with `random`, the share of masked tokens from 0 to 1; random from 0.1 to 0.7 by default.
        num_tokens: with `completion`, the number of tokens to append.
        labels: with `sft`, the labels of the tokens: -100 in the prompt.
        steps: see `unmask`, as well as `temperature`.
        temperature: see there.
        mask_token_id: the mask token; by default the tokenizer's.
        seed: of the random numbers.

    Raises:
        ConfigError: if an argument is invalid.
        PluginError: if there is no mask token, or the attention of the model is not supported.

    Example:
        >>> sample(model, tokenizer, "The quick brown fox", num_tokens=16).generated
        >>> sample(model, tokenizer, "The quick brown fox jumps over the dog", mode="random", mask_ratio=0.4).generated
    """
    if mask_ratio is not None and not 0 <= mask_ratio <= 1:
        raise ConfigError(f"mask_ratio={mask_ratio!r}: expected a number from 0 to 1")
    if mode not in {"random", "completion", "sft"}:
        raise ConfigError(f"mode={mode!r}: expected random, completion or sft")
    if num_tokens < 1 or steps < 1:
        raise ConfigError(f"num_tokens={num_tokens} and steps={steps}: expected numbers of at least 1")
    mask_id = tokenizer.mask_token_id if mask_token_id is None else mask_token_id
    if mask_id is None:
        raise PluginError(
            "the tokenizer has no mask token: load the tokenizer that was saved with the model, or pass mask_token_id"
        )
    token_ids = tokenizer(text)["input_ids"] if isinstance(text, str) else list(map(int, text))
    special = special_ids_of(model, tokenizer)
    if mode == "completion" and isinstance(text, str) and token_ids and token_ids[-1] == tokenizer.eos_token_id:
        token_ids = token_ids[:-1]  # some tokenizers end every text
    ids = torch.tensor(token_ids, dtype=torch.long)
    generator = torch.Generator().manual_seed(seed)
    if mode == "completion":
        mask = torch.zeros(len(ids) + num_tokens, dtype=torch.bool)
        mask[len(ids) :] = True
        ids = torch.cat([ids, torch.full((num_tokens,), mask_id)])
    else:
        may_mask = torch.tensor([int(token) not in special for token in ids], dtype=torch.bool)
        if mode == "sft":
            if labels is None or len(labels) != len(ids):
                raise ConfigError("mode='sft' needs labels, one per token")
            mask = may_mask & (torch.as_tensor(labels) != -100)
        else:
            low, high = _RANDOM_RATIO
            uniform = float(torch.rand((), generator=generator))
            ratio = low + (high - low) * uniform if mask_ratio is None else mask_ratio
            mask = torch.zeros_like(may_mask)
            candidates = may_mask.nonzero()[:, 0]
            order = torch.randperm(len(candidates), generator=generator)
            mask[candidates[order[: round(ratio * len(candidates))]]] = True
    device = next(model.parameters()).device
    num_outputs = model.get_input_embeddings().weight.shape[0]
    result = unmask(
        model,
        ids[None].to(device),
        mask[None].to(device),
        mask_token_id=mask_id,
        steps=steps,
        temperature=temperature,
        forbidden_ids=range(len(tokenizer), num_outputs),  # rows that no token uses
        generator=generator,
    )[0].cpu()
    num_masked = int(mask.sum())
    is_completion = mode == "completion"
    return DiffusionSample(
        original=None if is_completion else tokenizer.decode(ids.tolist()),
        masked=tokenizer.decode(torch.where(mask, mask_id, ids).tolist()),
        generated=tokenizer.decode(result.tolist()),
        mode=mode,
        num_masked=num_masked,
        mask_ratio=num_masked / max(len(ids), 1),
        accuracy=None if is_completion or not num_masked else float((result == ids)[mask].float().mean()),
        ids=result.tolist(),
    )
