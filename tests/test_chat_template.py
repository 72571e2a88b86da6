"""Prompts and judge suffixes of templates that behave as the well-known ones do."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from parse_local.chat_template import CHATML, ChatTemplate, Message, merge_turns
from parse_local.errors import TemplateError
from parse_local.thinking import skip_thinking

TEMPLATES = Path(__file__).parent / "chat_templates"
QUESTION = "Is the answer above correct? Reply with one word."
CHATML_SUFFIX = f"<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
GEMMA_SUFFIX = (
    f"<end_of_turn>\n<start_of_turn>user\n{QUESTION}<end_of_turn>\n<start_of_turn>model\n"
)
STAND_IN = "739104826517"

TOKENS = {  # bos, eos, end of turn, as the models' vocabularies have them
    "llama3.1": ("<|begin_of_text|>", "<|eot_id|>", "<|eot_id|>"),
    "gemma2": ("<bos>", "<eos>", "<end_of_turn>"),
    "gemma3": ("<bos>", "<eos>", "<end_of_turn>"),
    "mistral": ("<s>", "</s>", ""),
    "deepseek-r1": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ""),
    "harmony": ("<|startoftext|>", "<|return|>", "<|end|>"),
    "command-r": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", ""),
    "summarises-answers": ("<s>", "</s>", ""),
    "drops-answers-inst": ("<s>", "</s>", ""),
    "ignores-system": ("<s>", "</s>", ""),
    "gemma4": ("<bos>", "<eos>", "<turn|>"),
    "seed-oss": ("<seed:bos>", "<seed:eos>", "<seed:eos>"),
    "apriel": ("<s>", "<|end|>", "<|end|>"),
    "magistral": ("<s>", "</s>", ""),
}
CHATML_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|im_end|>")

SUFFIXES = {
    "chatml": CHATML_SUFFIX,
    "qwen2.5": CHATML_SUFFIX,
    "qwen3": CHATML_SUFFIX + "<think>\n\n</think>\n\n",
    "llama3.1": "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    f"{QUESTION}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma2": GEMMA_SUFFIX,
    "gemma3": GEMMA_SUFFIX,
    "mistral": f"</s>[INST]{QUESTION}[/INST]",
    "deepseek-r1": f"<｜end▁of▁sentence｜><｜User｜>{QUESTION}<｜Assistant｜>"
    "<think>\n\n</think>\n\n",
    # The generation prompt alone would leave the channel open to choice.
    "harmony": f"<|end|><|start|>user<|message|>{QUESTION}<|end|>"
    "<|start|>assistant<|channel|>final<|message|>",
    "command-r": f"<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>{QUESTION}"
    "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    "<|START_THINKING|><|END_THINKING|>",
    "upper-case": CHATML_SUFFIX,
    "upper-case-questions": CHATML_SUFFIX.replace(QUESTION, QUESTION.upper()),
    "summarises-answers": f"</s>[INST]{QUESTION}[/INST]",
    "drops-answers": CHATML_SUFFIX,
    "drops-answers-inst": f"</s>\n[INST]{QUESTION}[/INST]",
    "repeats-answers": CHATML_SUFFIX,
    "quotes-answers-twice": CHATML_SUFFIX,
    # An answer follows "ASSISTANT: ", with a space that the generation prompt leaves out.
    "ignores-system": f"</s>\nUSER: {QUESTION}\nASSISTANT: ",
    "marks-training": CHATML_SUFFIX,
    "gemma4": f"<turn|>\n<|turn>user\n{QUESTION}<turn|>\n<|turn>model\n"
    "<|channel>thought\n<channel|>",
    "seed-oss": f"<seed:eos><seed:bos>user\n{QUESTION}<seed:eos><seed:bos>assistant\n"
    "<seed:think>The budget is 0.</seed:think>",
    "apriel": f"\n<|end|>\n<|begin_user|>\n{QUESTION}\n<|begin_assistant|>\n"
    "Here are my reasoning steps:\n\n[BEGIN FINAL RESPONSE]\n\n",
    "magistral": f"</s>[INST]{QUESTION}[/INST]",
}


def template(name: str) -> ChatTemplate:
    bos, eos, end_of_turn = TOKENS.get(name, CHATML_TOKENS)
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos=bos, eos=eos, end_of_turn=end_of_turn, name=f"{name}.gguf")


# What a generation prompt ends with although no earlier answer has it, and the
# reverse: what an earlier answer begins with although the model writes it itself.
OPENS_THINKING = {
    "qwen3": "<think>\n\n</think>\n\n",
    "deepseek-r1": "<think>\n",
    "command-r": "<|START_THINKING|>",
    "gemma4": "<|channel>thought\n<channel|>",
    "seed-oss": "<seed:think>The budget is 0.</seed:think>",
    "apriel": "Here are my reasoning steps:\n",
}
MODEL_WRITES = {"harmony": "<|channel|>final<|message|>", "ignores-system": " "}
REWRITE_ANSWERS = {
    "upper-case",
    "upper-case-questions",
    "summarises-answers",
    "drops-answers",
    "drops-answers-inst",
    "repeats-answers",
    "quotes-answers-twice",
}


def turns(*contents: str, system: str | None = None) -> list[Message]:
    """Turns by user and assistant in alternation."""
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]
    return [*([{"role": "system", "content": system}] if system else []), *said]


CONVERSATIONS = {
    "one turn": turns("What is 6 * 7?"),
    "several turns": turns("Hello", "Hi!", "What is 6 * 7?"),
    "a system turn": turns("What is 6 * 7?", system="Be brief."),
    "a long system turn": turns("Hello", "Hi!", "6 * 7?", system="Be very brief. " * 200),
    "the stand-in": turns(f"{STAND_IN}?", f"{STAND_IN}!", STAND_IN, system=STAND_IN),
    "the question": turns(QUESTION, "Yes.", QUESTION),
    "two users in a row": [*turns("Hello"), *turns("What is 6 * 7?")],
    "earlier thinking": turns("Hello", "<think>\nHm.\n</think>\n\nHi!", "6 * 7?"),
    "braces": turns("What does {{ 6 * 7 }} mean in {% raw %}?"),
}


def test_every_template_is_tried() -> None:
    files = {path.stem for path in TEMPLATES.glob("*.jinja")}
    assert files == SUFFIXES.keys() | {"invalid", "refuses"}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", SUFFIXES)
def test_the_suffix_is_the_same_behind_any_conversation(name: str, conversation: str) -> None:
    # The room for forks is planned on that, and a system turn must not be read once a fork.
    assert template(name).suffix(CONVERSATIONS[conversation], QUESTION) == SUFFIXES[name]


@pytest.mark.parametrize(
    "asked", [turns("6 * 7?"), turns("Hello", "Hi!", "6 * 7?")], ids=["one turn", "several turns"]
)
@pytest.mark.parametrize("name", sorted(SUFFIXES.keys() - REWRITE_ANSWERS))
def test_prompt_answer_and_suffix_are_what_the_template_makes_of_all_turns(
    name: str, asked: list[Message]
) -> None:
    opens, writes = OPENS_THINKING.get(name, ""), MODEL_WRITES.get(name, "")
    said = [*turns("6 * 7?", "It is 42."), *turns(QUESTION)][1:]
    whole = template(name).render([*asked, *said])
    prompt = template(name).render(asked).removesuffix(opens)
    suffix = template(name).suffix(asked, QUESTION)
    # The reply begins behind a closed thinking block and what the model would write itself.
    suffix = suffix.removesuffix(skip_thinking(opens)).removesuffix(writes)
    assert prompt + writes + "It is 42." + suffix + opens == whole


@pytest.mark.parametrize("name", SUFFIXES)
def test_white_space_around_the_question_changes_nothing(name: str) -> None:
    assert template(name).suffix(turns("Hello"), f"\n {QUESTION} \n") == SUFFIXES[name]


@pytest.mark.parametrize("name", sorted({*SUFFIXES} - {"upper-case", "upper-case-questions"}))
def test_every_prompt_holds_what_was_said(name: str) -> None:
    # Whatever a template does to earlier answers, system and user turns reach the model.
    prompt = template(name).render(turns("What is 6 * 7?", system="Be brief."))
    assert prompt.count("Be brief.") == (2 if name == "repeats-answers" else 1)
    assert prompt.count("What is 6 * 7?") == 1
    assert prompt.index("Be brief.") < prompt.index("What is 6 * 7?")


def test_digits_in_the_question_are_not_taken_for_the_answer() -> None:
    question = f"Is {STAND_IN} above?"
    expected = CHATML_SUFFIX.replace(QUESTION, question)
    assert template("chatml").suffix(turns("Hello"), question) == expected


# What each template makes of a conversation


def test_chatml_stands_in_where_there_is_no_template() -> None:
    fallback = ChatTemplate(None, eos="<|im_end|>")
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert fallback.render(turns("Hi", system="Be brief.")) == prompt + "<|im_start|>assistant\n"
    assert fallback.suffix(turns("Hi"), QUESTION) == CHATML_SUFFIX
    assert fallback.is_fallback
    assert not ChatTemplate(CHATML).is_fallback


def test_a_default_system_turn_does_not_return_in_the_suffix() -> None:
    assert template("qwen2.5").render(turns("Hi")) == (
        "<|im_start|>system\nYou are a default assistant.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    # Nor where the template drops answers, so that nothing can be cut.
    assert "default" not in template("drops-answers").suffix(turns("Hi"), QUESTION)


def test_qwen3_thinks_only_where_it_may() -> None:
    qwen = template("qwen3")
    asked = turns("Hello", "<think>\nHm.\n</think>\n\nHi!", "6 * 7?")
    prompt = (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>user\n6 * 7?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert qwen.render(asked, thinking=True) == prompt
    assert qwen.render(asked) == prompt + "<think>\n\n</think>\n\n"


def test_llama_gets_bos_once_and_todays_date() -> None:
    before = datetime.datetime.now()
    prompt = template("llama3.1").render(turns(" Hi \n", system=" Be brief."))
    dates = {d.strftime("%d %b %Y") for d in (before, datetime.datetime.now())}
    assert prompt in {
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
        f"Today Date: {date}\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        for date in dates
    }


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_a_system_turn_is_folded_into_the_users(name: str) -> None:
    assert template(name).render(turns("Hi", system="Be brief.")) == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral"])
def test_turns_of_one_role_are_joined_where_they_must_alternate(name: str) -> None:
    two = template(name).render([*turns("Hello"), *turns("6 * 7?")])
    assert two == template(name).render(turns("Hello\n\n6 * 7?"))


def test_a_template_that_allows_it_keeps_two_turns_apart() -> None:
    prompt = template("chatml").render([*turns("Hello"), *turns("6 * 7?")])
    assert prompt.count("<|im_start|>user\n") == 2


def test_mistral_puts_the_system_turn_into_the_last_question() -> None:
    asked = turns("Hello", "Hi!", "6 * 7?", system="Be brief.")
    assert template("mistral").render(asked) == (
        "<s>[INST]Hello[/INST]Hi!</s>[INST]Be brief.\n\n6 * 7?[/INST]"
    )


def test_a_system_turn_that_a_template_would_drop_reaches_the_user_turn() -> None:
    assert template("ignores-system").render(turns("Hi", system="Be brief.")) == (
        "USER: Be brief.\n\nHi\nASSISTANT:"
    )
    assert template("ignores-system").render(turns("Hi")) == "USER: Hi\nASSISTANT:"


def test_deepseek_r1_forgets_earlier_thinking_and_thinks() -> None:
    asked = turns("Hello", "<think>\nHm.\n</think>Hi!", "6 * 7?", system="Be brief.")
    assert template("deepseek-r1").render(asked) == (
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hello<｜Assistant｜>Hi!<｜end▁of▁sentence｜>"
        "<｜User｜>6 * 7?<｜Assistant｜><think>\n"
    )


def test_harmony_ends_earlier_answers_with_end_not_return() -> None:
    prompt = template("harmony").render(turns("Hello", "Hi!", "6 * 7?", system="Be brief."))
    assert prompt.endswith(
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|>"
        "<|start|>user<|message|>Hello<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hi!<|end|>"
        "<|start|>user<|message|>6 * 7?<|end|><|start|>assistant"
    )


def test_training_marks_leave_no_trace() -> None:
    assert template("marks-training").render(turns("Hello", "Hi!", "6 * 7?")) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>user\n6 * 7?<|im_end|>\n<|im_start|>assistant\n"
    )


EARLIER_TURNS = {
    "chatml": "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n Hi! <|im_end|>\n"
    "<|im_start|>user\n6 * 7?<|im_end|>\n<|im_start|>assistant\n",
    "gemma3": "<bos><start_of_turn>user\nHello<end_of_turn>\n"
    "<start_of_turn>model\nHi!<end_of_turn>\n"
    "<start_of_turn>user\n6 * 7?<end_of_turn>\n<start_of_turn>model\n",
    "mistral": "<s>[INST]Hello[/INST] Hi! </s>[INST]6 * 7?[/INST]",
    "command-r": "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hello<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|> Hi! <|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>6 * 7?<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>",
    "upper-case": "<|im_start|>user\nHELLO<|im_end|>\n<|im_start|>assistant\n HI! <|im_end|>\n"
    "<|im_start|>user\n6 * 7?<|im_end|>\n<|im_start|>assistant\n",
    "drops-answers-inst": "<s>[INST]Hello[/INST][INST]6 * 7?[/INST]",
    "summarises-answers": "<s>[INST]Hello[/INST](an answer of 1 words)</s>[INST]6 * 7?[/INST]",
}


@pytest.mark.parametrize("name", EARLIER_TURNS)
def test_earlier_turns_are_written_as_the_template_says(name: str) -> None:
    assert template(name).render(turns("Hello", " Hi! ", "6 * 7?")) == EARLIER_TURNS[name]


# What a template may do


def test_tojson_leaves_text_as_it_is() -> None:
    source = "{{ {'text': messages[0].content} | tojson }}"
    assert ChatTemplate(source).render(turns("<b>猫 & 'cat'</b>")) == (
        '{"text": "<b>猫 & \'cat\'</b>"}'
    )


def test_block_tags_leave_no_lines_behind() -> None:
    # As in transformers: trim_blocks and lstrip_blocks.
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(source).render(turns("Hi")) == "Hi\n"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages[0].update(content='') }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ ''['__class__'].__base__ }}",
        "{{ '{0.__class__.__base__.x}'.format('') }}",
        "{{ range(1000000000) | list }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_cannot_reach_outside(source: str) -> None:
    messages = turns("Hi")
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(messages)
    assert messages == turns("Hi")


# What cannot be helped


def test_invalid_jinja_names_the_model_and_a_remedy() -> None:
    with pytest.raises(
        TemplateError,
        match=r"The chat template of invalid\.gguf is not valid Jinja .*endfor.*"
        r"use another conversion of the model\.",
    ):
        template("invalid")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content | no_such_filter }}",
        "{% break %}",  # Jinja lets these pass, and Python refuses what comes of them
        "{% for a in messages %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
    ids=["filter", "break", "loops", "brackets"],
)
def test_what_only_python_refuses_is_invalid_too(source: str) -> None:
    with pytest.raises(TemplateError, match=r"not valid Jinja .*use another conversion"):
        ChatTemplate(source)


def test_a_conversation_that_no_merging_makes_alternate_is_refused() -> None:
    answer_first = turns("", "Hi!", "6 * 7?")[1:]
    for refused in (template("gemma3").render, lambda m: template("gemma3").suffix(m, QUESTION)):
        with pytest.raises(TemplateError, match=r"\(Roles must alternate\); start a new one"):
            refused(answer_first)


def test_a_template_that_refuses_everything_says_why() -> None:
    expected = (
        r"The chat template of refuses\.gguf refuses this conversation \(Not with me\); "
        r"start a new one, or use another model\."
    )
    with pytest.raises(TemplateError, match=expected):
        template("refuses").render(turns("Hi"))
    with pytest.raises(TemplateError, match=expected):
        template("refuses").suffix(turns("Hi"), QUESTION)


def test_any_error_inside_a_template_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match="division by zero"):
        ChatTemplate("{{ 1 / 0 }}").render(turns("Hi"))


# Parts


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n", "<|im_start|>assistant\n"),
        ("<｜Assistant｜><think>\n", "<｜Assistant｜><think>\n\n</think>\n\n"),
        ("<｜Assistant｜><think>", "<｜Assistant｜><think>\n\n</think>\n\n"),
        ("<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("What is <think>?\n<|im_start|>assistant\n", "What is <think>?\n<|im_start|>assistant\n"),
        ("<seed:bos>assistant\n<seed:think>", "<seed:bos>assistant\n<seed:think></seed:think>"),
        (
            "<|CHATBOT_TOKEN|><|START_THINKING|>",
            "<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>",
        ),
    ],
)
def test_only_an_open_thinking_block_is_closed(prompt: str, expected: str) -> None:
    assert skip_thinking(prompt) == expected


def test_merging_leaves_alternating_turns_alone_and_copies_them() -> None:
    messages = turns("a", "b", "c")
    merged = merge_turns(messages)
    assert merged == messages
    joined = [*messages, {"role": "system", "content": "d"}]
    assert merge_turns(joined)[-1] == {"role": "user", "content": "c\n\nd"}
    assert messages == turns("a", "b", "c")
