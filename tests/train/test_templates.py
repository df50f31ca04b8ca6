"""The built-in chat templates: their texts beside the models' own templates, and which parts are trained on."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tachograph.train._chat import ChatFormat
from tachograph.train._dataset_config import DatasetConfig
from tachograph.train._problems import RowError
from tachograph.train._templates import TEMPLATES, check_template_name, read_built_in
from tests.train.conftest import make_tokenizer

pytest.importorskip("trl")


def message(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = message("system", " Be brief. ")
QUESTION, ANSWER = message("user", " say yes or no "), message("assistant", " yes ")
SECOND_QUESTION, SECOND_ANSWER = message("user", "yes?"), message("assistant", "no")
THOUGHT = message("assistant", "no", reasoning_content="so no")
EMBEDDED_THOUGHT = message("assistant", "<think>\nno no\n</think>\n\nno")
CALLS = [
    {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "x", "c": [1, "y"]}}},
    {"type": "function", "function": {"name": "stop", "arguments": {}}},
]
CALL, RESULT = message("assistant", "", tool_calls=CALLS), message("tool", "3")
TOOLS = [{"type": "function", "function": {"name": "add", "description": "add é", "parameters": {"type": "object"}}}]
CONVERSATIONS = [
    [QUESTION, ANSWER],
    [SYSTEM, QUESTION, ANSWER],
    [SYSTEM, QUESTION, ANSWER, SECOND_QUESTION, SECOND_ANSWER],
    [SYSTEM, QUESTION],
    [QUESTION, EMBEDDED_THOUGHT, SECOND_QUESTION, EMBEDDED_THOUGHT],
    [QUESTION, THOUGHT, SECOND_QUESTION, THOUGHT],
    [QUESTION, ANSWER, SYSTEM, SECOND_QUESTION, SECOND_ANSWER],
    [QUESTION, QUESTION, ANSWER],
]
CONVERSATIONS_WITH_TOOLS = [
    [QUESTION, CALL, RESULT, RESULT, ANSWER],
    [SYSTEM, QUESTION, {**CALL, "content": "let me see"}, RESULT, THOUGHT],
    [QUESTION, CALL, RESULT, ANSWER, SECOND_QUESTION, CALL],
]
MODELS_OWN = {
    "aya": "cohere",
    "cohere": "cohere",
    "gemma": "gemma",
    "gemma3": "gemma3",
    "gemma3n": "gemma3",
    "gemma4": "gemma4_v5",
    "llama3": "llama3",
    "phi_3": "phi3",
    "phi_35": "phi3_5",
    "qwen2_vl": "qwen2_5_vl",
    "qwen3": "qwen3",
    "qwen3_5": "qwen3_5_think",
    "qwen_25": "qwen2_5",
}
"""The file of TRL with the template that the tokenizers of a model carry."""


def render(template, messages, **options):
    """Return a text; None if the template rejects the conversation."""
    from jinja2 import TemplateError

    try:
        texts, _ = render_jinja_template(
            [messages], chat_template=template, bos_token="<s>", eos_token="</s>", **options
        )
    except TemplateError:
        return None
    return texts[0]


def own_template(name):
    from pathlib import Path

    import trl

    path = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"this version of TRL has no {path.name}")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODELS_OWN)
def test_text_is_that_of_the_models_tokenizer(name):
    own, built_in = own_template(MODELS_OWN[name]), read_built_in(name)
    has_tools = TEMPLATES[name].has_tools
    cases = [(messages, None) for messages in CONVERSATIONS]
    cases += [(messages, tools) for messages in CONVERSATIONS_WITH_TOOLS for tools in (None, TOOLS) if has_tools]
    num_texts = 0
    for messages, tools in cases:
        for options in ({}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "enable_thinking": False}):
            text = render(built_in, messages, tools=tools, **options)
            if text is None and messages == [QUESTION, QUESTION, ANSWER] and name == "gemma4":
                continue
            assert text == render(own, messages, tools=tools, **options), (messages, options)
            num_texts += text is not None
    assert num_texts > 8


# The trained parts are in brackets. The second question contains the first answer, and the first question both.
TEXTS = {
    "alpaca": "<s>be\n\n### Instruction:\nyes or no\n\n### Response:\n⟦yes</s>⟧\n\n"
    "### Instruction:\nyes?\n\n### Response:\n⟦no</s>⟧",
    "chatml": "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nyes or no<|im_end|>\n<|im_start|>assistant\n"
    "⟦yes<|im_end|>⟧\n<|im_start|>user\nyes?<|im_end|>\n<|im_start|>assistant\n⟦no<|im_end|>⟧\n",
    "cohere": "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>be<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>"
    "yes or no<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>⟦yes<|END_OF_TURN_TOKEN|>⟧"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>yes?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    "⟦no<|END_OF_TURN_TOKEN|>⟧",
    "deepseek_v2": "<s>be<｜User｜>yes or no<｜Assistant｜>⟦yes<｜end▁of▁sentence｜>⟧<｜User｜>yes?<｜Assistant｜>"
    "⟦no<｜end▁of▁sentence｜>⟧",
    "exaone": "[|system|]be[|endofturn|]\n[|user|]yes or no\n[|assistant|]⟦yes[|endofturn|]⟧\n[|user|]yes?\n"
    "[|assistant|]⟦no[|endofturn|]⟧\n",
    "falcon_h1": "<s><|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nyes or no<|im_end|>\n<|im_start|>assistant\n"
    "⟦yes<|im_end|>⟧\n<|im_start|>user\nyes?<|im_end|>\n<|im_start|>assistant\n⟦no<|im_end|>⟧\n",
    "gemma3": "<s><start_of_turn>user\nbe\n\nyes or no<end_of_turn>\n<start_of_turn>model\n⟦yes<end_of_turn>⟧\n"
    "<start_of_turn>user\nyes?<end_of_turn>\n<start_of_turn>model\n⟦no<end_of_turn>⟧\n",
    "gemma4": "<s><|turn>system\nbe<turn|>\n<|turn>user\nyes or no<turn|>\n<|turn>model\n⟦yes<turn|>⟧\n<|turn>user\n"
    "yes?<turn|>\n<|turn>model\n⟦no<turn|>⟧\n",
    "jamba": "<s><|bom|><|system|> be<|eom|><|bom|><|user|> yes or no<|eom|><|bom|><|assistant|>⟦ yes<|eom|>⟧<|bom|>"
    "<|user|> yes?<|eom|><|bom|><|assistant|>⟦ no<|eom|>⟧",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nbe<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\nyes or no<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦yes<|eot_id|>⟧"
    "<|start_header_id|>user<|end_header_id|>\n\nyes?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n⟦no<|eot_id|>⟧",
    "llama4": "<s><|header_start|>system<|header_end|>\n\nbe<|eot|><|header_start|>user<|header_end|>\n\nyes or no"
    "<|eot|><|header_start|>assistant<|header_end|>\n\n⟦yes<|eot|>⟧<|header_start|>user<|header_end|>\n\nyes?<|eot|>"
    "<|header_start|>assistant<|header_end|>\n\n⟦no<|eot|>⟧",
    "mistral_v1": "<s> [INST] be\n\nyes or no [/INST]⟦ yes</s>⟧ [INST] yes? [/INST]⟦ no</s>⟧",
    "mistral_v2v3": "<s>[INST] yes or no[/INST]⟦ yes</s>⟧[INST] be\n\nyes?[/INST]⟦ no</s>⟧",
    "mistral_v3_tekken": "<s>[INST]yes or no[/INST]⟦yes</s>⟧[INST]be\n\nyes?[/INST]⟦no</s>⟧",
    "mistral_v7_tekken": "<s>[SYSTEM_PROMPT]be[/SYSTEM_PROMPT][INST]yes or no[/INST]⟦yes</s>⟧[INST]yes?[/INST]⟦no</s>⟧",
    "phi_3": "<|system|>\nbe<|end|>\n<|user|>\nyes or no<|end|>\n<|assistant|>\n⟦yes<|end|>⟧\n<|user|>\nyes?<|end|>\n"
    "<|assistant|>\n⟦no<|end|>⟧\n</s>",
    "qwen3": "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nyes or no<|im_end|>\n<|im_start|>assistant\n"
    "⟦yes<|im_end|>⟧\n<|im_start|>user\nyes?<|im_end|>\n<|im_start|>assistant\n"
    "⟦<think>\n\n</think>\n\nno<|im_end|>⟧\n",
    "qwen3_5": "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nyes or no<|im_end|>\n<|im_start|>assistant\n"
    "⟦yes<|im_end|>⟧\n<|im_start|>user\nyes?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    "⟦\n</think>\n\nno<|im_end|>⟧\n",
}
SAME_TEXTS = {
    "aya": "cohere",
    "deepseek_v3": "deepseek_v2",
    "gemma3n": "gemma3",
    "gemma4_unified": "gemma4",
    "phi_35": "phi_3",
    "qwen2_vl": "chatml",
    "qwen_25": "chatml",
}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def marked(tokenizer, name, messages, tools=None, **dataset):
    """Return the text of a conversation with the trained parts in brackets."""
    chat = ChatFormat(tokenizer, read_built_in(name), DatasetConfig(path="x", **dataset), train_on_inputs=False)
    rendered = chat.render(messages, tools)
    text, position = "", 0
    for start, end in rendered.spans:
        text += f"{rendered.text[position:start]}⟦{rendered.text[start:end]}⟧"
        position = end
    return text + rendered.text[position:]


def test_only_answers_are_trained_on(tokenizer):
    messages = [
        message("system", "be"),
        message("user", "yes or no"),
        message("assistant", "yes"),
        message("user", "yes?"),
        message("assistant", "no"),
    ]
    for name, text in {**TEXTS, **{name: TEXTS[other] for name, other in SAME_TEXTS.items()}}.items():
        assert marked(tokenizer, name, messages) == text, name
        without_ends = marked(tokenizer, name, messages, train_on_eos="none")
        assert "yes⟧" in without_ends and "no⟧" in without_ends, name
    assert marked(tokenizer, "gemma", messages[1:]) == TEXTS["gemma3"].replace("be\n\n", "")
    assert {*TEXTS, *SAME_TEXTS, "gemma"} == set(TEMPLATES)


def test_calls_of_tools_are_trained_on(tokenizer):
    calls = {
        "qwen_25": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        "qwen3": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        "qwen3_5": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    }
    call = message("assistant", "", tool_calls=[{"function": {"name": "add", "arguments": {"a": 1}}}])
    messages = [QUESTION, call, RESULT, message("assistant", "yes"), SECOND_QUESTION, SECOND_ANSWER]
    for name, text in calls.items():
        trained = marked(tokenizer, name, messages, TOOLS).split("⟦")[1:]
        parts = [part.partition("⟧")[0] for part in trained]
        assert parts[:2] == [f"{text}<|im_end|>", "yes<|im_end|>"], name


def test_reasoning_is_trained_on_where_it_is_written(tokenizer):
    messages = [QUESTION, EMBEDDED_THOUGHT, SECOND_QUESTION, EMBEDDED_THOUGHT]
    for name, prompt in (("qwen3", ""), ("qwen3_5", "<think>\n")):
        trained = [part.partition("⟧")[0] for part in marked(tokenizer, name, messages).split("⟦")[1:]]
        assert trained == ["no<|im_end|>", "<think>\nno no\n</think>\n\nno<|im_end|>".removeprefix(prompt)]


def test_template_without_tools_rejects_them(tokenizer):
    for name in set(TEMPLATES) - {"qwen_25", "qwen3", "qwen3_5"}:
        for messages, tools in (
            ([QUESTION, ANSWER], TOOLS),
            ([QUESTION, CALL, RESULT, ANSWER], None),
            ([QUESTION, RESULT, ANSWER], None),
        ):
            with pytest.raises(RowError, match="this template has no format for tools"):
                marked(tokenizer, name, messages, tools)


def test_names_are_checked():
    for name in (*TEMPLATES, "tokenizer_default", "jinja", "tokenizer_default_fallback_gemma3"):
        check_template_name(name)
    for name, error in (("llama33", "expected one of"), ("llava", "template for images")):
        with pytest.raises(ValueError, match=error):
            check_template_name(name)


def test_text_of_an_answer_in_a_question_is_not_trained_on(tokenizer):
    """The template moves the system message, so the beginning of a conversation is not the beginning of its text."""
    messages = [SYSTEM, message("user", "yes yes"), message("assistant", "yes"), message("user", "yes"), ANSWER]
    assert marked(tokenizer, "mistral_v3_tekken", messages) == (
        "<s>[INST]yes yes[/INST]⟦yes</s>⟧[INST] Be brief. \n\nyes[/INST]⟦ yes </s>⟧"
    )
