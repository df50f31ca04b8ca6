"""The mask token: an existing token, or a new one with a row in the embeddings."""

from __future__ import annotations

from typing import Any, NamedTuple

from tachograph.exceptions import PluginError

__all__ = ["DEFAULT_MASK_TOKEN", "MaskToken", "choose_mask_token", "find_mask_token", "special_ids_of"]

DEFAULT_MASK_TOKEN = "<|diffusion_mask|>"  # noqa: S105 - not a secret


class MaskToken(NamedTuple):
    """The mask token.

    Args:
        id: its id.
        text: its text, if there is a tokenizer.
        is_new: whether it was added to the tokenizer.
        num_rows_added: rows added to the embeddings.
    """

    id: int
    text: str | None
    is_new: bool = False
    num_rows_added: int = 0


def special_ids_of(model: Any, tokenizer: Any) -> set[int]:
    """Return the ids of the tokens for the begin and end of a text, and for padding."""
    token_ids: set[int] = set()
    for owner in (tokenizer, getattr(model, "config", None), getattr(model, "generation_config", None)):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(owner, name, None)
            token_ids.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return {int(value) for value in token_ids}


def choose_mask_token(
    model: Any, tokenizer: Any, *, mask_token_id: int | None = None, mask_token_str: str | None = None
) -> MaskToken:
    """Return the mask token without adding it.

    Args:
        model: the model.
        tokenizer: its tokenizer, or None.
        mask_token_id: the id of an existing token.
        mask_token_str: the text of a token, existing or not; by default the mask token of the tokenizer, or a new one.

    Raises:
        PluginError: if the token cannot be used.
    """
    num_rows = int(model.get_input_embeddings().weight.shape[0])
    if tokenizer is None:
        if mask_token_id is None:
            raise PluginError(
                "plugin diffusion: there is no tokenizer to look up or add a mask token: create the trainer with "
                "processing_class=tokenizer, or set diffusion.mask_token_id"
            )
        if not 0 <= mask_token_id < num_rows:
            raise PluginError(
                f"plugin diffusion: mask_token_id={mask_token_id} is not a token of the model, which has {num_rows}"
            )
        return _check_unused(MaskToken(mask_token_id, None), model, tokenizer)
    size = len(tokenizer)  # `vocab_size` does not count added tokens
    if mask_token_id is not None:
        if not 0 <= mask_token_id < min(size, num_rows):
            raise PluginError(
                f"plugin diffusion: mask_token_id={mask_token_id} is not a token: the tokenizer has {size} tokens and "
                f"the model {num_rows}. Give the id of an unused token, or remove mask_token_id to add one"
            )
        mask_token = MaskToken(mask_token_id, str(tokenizer.convert_ids_to_tokens(mask_token_id)))
    else:
        text = mask_token_str or tokenizer.mask_token or DEFAULT_MASK_TOKEN
        existing_id = tokenizer.get_vocab().get(text)
        mask_token = MaskToken(size if existing_id is None else int(existing_id), text, is_new=existing_id is None)
    return _check_unused(mask_token, model, tokenizer)


def find_mask_token(
    model: Any,
    tokenizer: Any,
    *,
    mask_token_id: int | None = None,
    mask_token_str: str | None = None,
    may_resize: bool = True,
) -> MaskToken:
    """Return the mask token; add it to the tokenizer and to the embeddings of the model if necessary.

    Args:
        model: the model.
        tokenizer: its tokenizer, or None. Its `mask_token` is set, so that it is saved with the tokenizer.
        mask_token_id: see `choose_mask_token`, as well as `mask_token_str`.
        mask_token_str: see there.
        may_resize: whether rows may be added to the embeddings; an optimizer that exists would not train them.

    Raises:
        PluginError: if the token cannot be used.
    """
    mask_token = choose_mask_token(model, tokenizer, mask_token_id=mask_token_id, mask_token_str=mask_token_str)
    if tokenizer is None:
        return mask_token
    num_rows = int(model.get_input_embeddings().weight.shape[0])
    if mask_token.id >= num_rows and not may_resize:
        raise PluginError(
            "plugin diffusion: the optimizer exists already and would not train a new mask token: create the trainer "
            "without an optimizer, or set diffusion.mask_token_id to an unused token"
        )
    if tokenizer.mask_token != mask_token.text:
        tokenizer.add_special_tokens({"mask_token": mask_token.text})
    if mask_token.is_new:
        mask_token = mask_token._replace(id=int(tokenizer.convert_tokens_to_ids(mask_token.text)))
    if mask_token.id >= num_rows:
        model.resize_token_embeddings(mask_token.id + 1)
        mask_token = mask_token._replace(num_rows_added=mask_token.id + 1 - num_rows)
    return mask_token


def _check_unused(token: MaskToken, model: Any, tokenizer: Any) -> MaskToken:
    if token.id in special_ids_of(model, tokenizer) and not token.is_new:
        raise PluginError(
            f"plugin diffusion: the mask token {token.text or token.id!r} also begins, ends or pads texts, so a model "
            f"could not recognise it: choose an unused token, or remove mask_token_id and mask_token_str to add one"
        )
    return token
