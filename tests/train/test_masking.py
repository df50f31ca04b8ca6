"""Which tokens are trained on, token by token. The tokenizer has one token per character."""

from __future__ import annotations

import pytest

from tachograph.train._chat import ChatFormat, Rendered
from tachograph.train._config import TrainConfig
from tachograph.train._data import encode
from tachograph.train._dataset_config import DatasetConfig
from tachograph.train._formats import format_of
from tachograph.train._problems import Problems, RowError
from tachograph.train._templates import read_built_in
from tests.train.conftest import TEMPLATE, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def parts(tokenizer, rendered):
    """Return the tokens of a text, those that are trained on in brackets: ``<|user|>hi<|end|>[yes<|end|>]``."""
    ((ids, labels),) = encode(tokenizer, [rendered])
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
    text, was_trained = "", False
    for token, label in zip(ids, labels, strict=True):
        is_trained = label != -100
        text += "[" * (is_trained and not was_trained) + "]" * (was_trained and not is_trained)
        text += tokenizer.convert_ids_to_tokens(token)
        was_trained = is_trained
    return text + "]" * was_trained


def message(role, content, **more):
    return {"role": role, "content": content, **more}


TWO_TURNS = [message("user", "a"), message("assistant", "yes"), message("user", "b"), message("assistant", "no")]


def render(tokenizer, row, *, template=TEMPLATE, options=None, **dataset):
    """Return what is trained on in a row."""
    config = TrainConfig(base_model="model", chat_template="jinja", chat_template_jinja=template, **(options or {}))
    problems = Problems("config.yaml")
    found = format_of("datasets[0]", DatasetConfig(path="x", **dataset), config, tokenizer, problems)
    problems.raise_if_any()
    return parts(tokenizer, found(row))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "<|user|>a<|end|><|assistant|>[yes<|end|>]<|user|>b<|end|><|assistant|>[no<|end|>]"),
        ({"train_on_eos": "last"}, "<|user|>a<|end|><|assistant|>[yes]<|end|><|user|>b<|end|><|assistant|>[no<|end|>]"),
        ({"train_on_eos": "none"}, "<|user|>a<|end|><|assistant|>[yes]<|end|><|user|>b<|end|><|assistant|>[no]<|end|>"),
        (
            {"roles_to_train": ["user"]},
            "<|user|>[a<|end|>]<|assistant|>yes<|end|><|user|>[b<|end|>]<|assistant|>no<|end|>",
        ),
        ({"train_on_inputs": True}, "[<|user|>a<|end|><|assistant|>yes<|end|><|user|>b<|end|><|assistant|>no<|end|>]"),
    ],
    ids=["answers", "end of last", "no ends", "other role", "everything"],
)
def test_chat_trains_on_chosen_messages(tokenizer, options, expected):
    assert render(tokenizer, {"messages": TWO_TURNS}, type="chat_template", **options) == expected


def test_messages_can_choose_themselves(tokenizer):
    rows = [message("user", "a"), message("assistant", "yes", train=False), message("assistant", "no", train=True)]
    found = render(tokenizer, {"messages": rows}, type="chat_template", message_field_training="train")
    assert found == "<|user|>a<|end|><|assistant|>yes<|end|><|assistant|>[no<|end|>]"


def test_sharegpt_columns_are_mapped(tokenizer):
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "yes"}]}
    found = render(
        tokenizer,
        row,
        type="chat_template",
        field_messages="conversations",
        message_property_mappings={"role": "from", "content": "value"},
    )
    assert found == "<|user|>a<|end|><|assistant|>[yes<|end|>]"


def test_default_system_message_is_added_and_masked(tokenizer):
    found = render(
        tokenizer, {"messages": TWO_TURNS[:2]}, type="chat_template", options={"default_system_message": "be"}
    )
    assert found == "<|system|>be<|end|><|user|>a<|end|><|assistant|>[yes<|end|>]"


def test_line_break_after_the_end_is_not_trained_on(tokenizer):
    template = TEMPLATE.replace("'<|end|>'", "'<|end|>\n'")
    found = render(tokenizer, {"messages": TWO_TURNS[:2]}, type="chat_template", template=template)
    assert found == "<|user|>a<|end|>\n<|assistant|>[yes<|end|>]\n"


def test_template_that_rewrites_earlier_turns(tokenizer):
    """The last answer is rendered with a mark that disappears once other messages follow."""
    template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
        "{% if loop.last and message['role'] == 'assistant' %}{{ '*' }}{% endif %}"
        "{{ message['content'] + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    found = render(tokenizer, {"messages": TWO_TURNS}, type="chat_template", template=template)
    assert found == "<|user|>a<|end|><|assistant|>[yes<|end|>]<|user|>b<|end|><|assistant|>[*no<|end|>]"


def test_generation_prompt_that_is_not_in_the_text(tokenizer):
    template = TEMPLATE.replace("'<|assistant|>' }}{% endif", "'<|assistant|>think' }}{% endif")
    found = render(tokenizer, {"messages": TWO_TURNS}, type="chat_template", template=template)
    assert found == "<|user|>a<|end|><|assistant|>[yes<|end|>]<|user|>b<|end|><|assistant|>[no<|end|>]"


def test_answer_that_a_template_changes_is_an_error(tokenizer):
    template = "{% for message in messages %}{{ message['content'] | upper }}{{ messages | length }}{% endfor %}"
    with pytest.raises(RowError, match="message 2 cannot be found in the text of the chat template"):
        render(tokenizer, {"messages": TWO_TURNS}, type="chat_template", template=template)


def test_chatml_masks_prompts(tokenizer):
    chat = ChatFormat(
        tokenizer, read_built_in("chatml"), DatasetConfig(path="x"), train_on_inputs=False, eot_tokens=["<|im_end|>"]
    )
    rendered = chat.render([message("user", "a"), message("assistant", "yes")])
    assert rendered.text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["yes<|im_end|>"]


def test_header_that_contains_the_content_is_not_trained_on(tokenizer):
    dataset = DatasetConfig(path="x", roles_to_train=["system", "user", "assistant"])
    chat = ChatFormat(tokenizer, read_built_in("chatml"), dataset, train_on_inputs=False, eot_tokens=["<|im_end|>"])
    contents = [("system", "s"), ("user", "user"), ("assistant", "assistant"), ("user", "im_start")]
    rendered = chat.render([message(role, content) for role, content in contents])
    trained = [rendered.text[start:end] for start, end in rendered.spans]
    assert trained == [f"{content}<|im_end|>" for _, content in contents]
    rendered = chat.render([message("assistant", "assistant"), message("user", " user ")])
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["assistant<|im_end|>", " user <|im_end|>"]


def test_alpaca_writes_the_prompts_of_its_dataset(tokenizer):
    cases = [
        (
            {"instruction": "Add", "input": "1", "output": "2"},
            "Below is an instruction that describes a task, paired with an input that provides further context. Write "
            "a response that appropriately completes the request.\n\n### Instruction:\nAdd\n\n### Input:\n1\n\n"
            "### Response:\n[2</s>]",
        ),
        (
            {"instruction": "Add {x}", "input": "", "output": "2"},
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
            "\n\n### Instruction:\nAdd {x}\n\n### Response:\n[2</s>]",
        ),
        (
            {"instruction": "Add", "output": "2", "system": "Be"},
            "Be\n\n### Instruction:\nAdd\n\n### Response:\n[2</s>]",
        ),
    ]
    for row, expected in cases:
        assert render(tokenizer, row, type="alpaca") == expected


def test_custom_format_masks_the_prompt(tokenizer):
    kind = {"field_instruction": "q", "field_output": "a", "format": "Q: {instruction}\nA: "}
    assert render(tokenizer, {"q": "x", "a": "y"}, type=kind) == "Q: x\nA: [y</s>]"


def test_completion_trains_on_everything(tokenizer):
    assert render(tokenizer, {"body": "abc"}, type="completion", field="body") == "[abc</s>]"


def test_segments_train_on_labelled_parts(tokenizer):
    segments = [{"label": False, "text": "ab"}, {"label": True, "text": "cd"}, {"label": False, "text": "ef"}]
    assert render(tokenizer, {"segments": segments}, type="input_output") == "ab[cd]ef"


def test_token_across_a_boundary_is_not_trained_on():
    """With a tokenizer whose tokens are words, one that starts in the prompt belongs to the prompt."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"ab": 0, "cd": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(".."), "isolated")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    assert encode(wrapped, [Rendered("abcd", [(1, 4)])]) == [([0, 1], [-100, 1])]
