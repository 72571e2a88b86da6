"""How families of models write calls of functions, as their chat templates show it (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parse_local.call_readers import (
    read_addressed,
    read_deepseek,
    read_gemma,
    read_invoked,
    read_json,
    read_keyed,
    read_kimi,
    read_mistral,
    read_python,
    read_tagged,
)
from parse_local.events import ToolCall
from parse_local.harmony import CALL_CLOSING, CALL_OPENING


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    Args:
        hint: what the chat templates of these models contain.
        openings: markers that begin calls.
        closing: what ends one; "" for the end of the answer.
        read: what stands between the two → calls, None where it is none.
        whole: what a call that is the whole answer begins with. Some models leave out markers.
        inner: further markers.
        written: one call, with `{call}` for an object of name and arguments, or with places for
            `{name}` and `{arguments}`; "" where no grammar can hold an answer to it.
        arguments: what the object calls its arguments.
    """

    hint: str
    openings: tuple[str, ...]
    closing: str
    read: Callable[[str, Mapping[str, Any]], list[ToolCall] | None]
    whole: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    written: str = "{call}"
    arguments: str = "arguments"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of their own."""
        return tuple(m for m in (*self.openings, self.closing, *self.inner) if m)


def find_format(template: str) -> CallFormat | None:
    """The format that a chat template asks for; None where it knows no calls."""
    return next((f for f in FORMATS if f.hint in template), None)


PART_OF_CALL = (b"{", b"<function=")
"""Openings that are no mere markers."""

FORMATS = (
    # Mistral, later and earlier
    CallFormat(
        "[ARGS]",
        ("[TOOL_CALLS]",),
        "",
        read_mistral,
        inner=("[ARGS]", "[CALL_ID]"),
        written="[TOOL_CALLS]{name}[ARGS]{arguments}",
    ),
    CallFormat(
        "[TOOL_CALLS]",
        ("[TOOL_CALLS]",),
        "",
        read_mistral,
        inner=("[ARGS]", "[CALL_ID]"),
        written="[TOOL_CALLS][{call}]",
    ),
    # Gemma 4
    CallFormat(
        "<|tool_call>",
        ("<|tool_call>",),
        "<tool_call|>",
        read_gemma,
        inner=('<|"|>',),
        written="<|tool_call>call:{name}{arguments}<tool_call|>",
    ),
    # Command R7B and Command A
    CallFormat(
        "<|START_ACTION|>",
        ("<|START_ACTION|>",),
        "<|END_ACTION|>",
        read_json,
        written='<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{name}", '
        '"parameters": {arguments}}]<|END_ACTION|>',
    ),
    # Seed-OSS
    CallFormat(
        "<seed:tool_call>",
        ("<seed:tool_call>",),
        "</seed:tool_call>",
        read_tagged,
        written="<seed:tool_call><function={name}>{arguments}</function></seed:tool_call>",
    ),
    # MiniMax-M2
    CallFormat(
        "<minimax:tool_call>",
        ("<minimax:tool_call>",),
        "</minimax:tool_call>",
        read_invoked,
        written='<minimax:tool_call><invoke name="{name}">{arguments}</invoke></minimax:tool_call>',
    ),
    # LFM2, whose templates show only how tools are listed, and LFM2.5
    *(
        CallFormat(
            hint,
            ("<|tool_call_start|>",),
            "<|tool_call_end|>",
            read_python,
            written="<|tool_call_start|>[{call}]<|tool_call_end|>",
        )
        for hint in ("<|tool_list_start|>", "<|tool_call_start|>")
    ),
    # Kimi K2
    CallFormat(
        "<|tool_calls_section_begin|>",
        ("<|tool_calls_section_begin|>",),
        "<|tool_calls_section_end|>",
        read_kimi,
        inner=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        written="<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0"
        "<|tool_call_argument_begin|>{arguments}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    # DeepSeek
    CallFormat(
        "<｜tool▁calls▁begin｜>",
        ("<｜tool▁calls▁begin｜>",),
        "<｜tool▁calls▁end｜>",
        read_deepseek,
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        written="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    # Apertus
    CallFormat(
        "<|tools_prefix|>",
        ("<|tools_prefix|>",),
        "<|tools_suffix|>",
        read_keyed,
        written='<|tools_prefix|>[{"{name}": {arguments}}]<|tools_suffix|>',
    ),
    # Nemotron Nano
    CallFormat(
        "<TOOLCALL>",
        ("<TOOLCALL>",),
        "</TOOLCALL>",
        read_json,
        written="<TOOLCALL>[{call}]</TOOLCALL>",
    ),
    # Hermes, Qwen and many others; with other tags inside Qwen3-Coder and GLM
    CallFormat(
        "<tool_call>",
        ("<tool_call>",),
        "</tool_call>",
        read_tagged,
        whole=("{", "```json"),
        written="<tool_call>\n{call}\n</tool_call>",
    ),
    # Jamba, Apriel
    CallFormat(
        "<tool_calls>",
        ("<tool_calls>",),
        "</tool_calls>",
        read_json,
        written="<tool_calls>[{call}]</tool_calls>",
    ),
    # Granite 3, Phi-4-mini
    CallFormat("<|tool_call|>", ("<|tool_call|>",), "", read_json, written="<|tool_call|>[{call}]"),
    # Firefunction
    CallFormat("functools[", ("functools",), "", read_json, written="functools[{call}]"),
    # functionary for Llama 3.1
    CallFormat(
        "<function=",
        ("<function=",),
        "</function>",
        read_tagged,
        written="<function={name}>{arguments}</function>",
    ),
    # gpt-oss, as `harmony` marks its calls
    CallFormat("<|call|>", (CALL_OPENING,), CALL_CLOSING, read_addressed, written=""),
    # Llama 3.1 and later, whose calls are a whole answer
    CallFormat(
        "<|python_tag|>",
        ("<|python_tag|>",),
        "",
        read_json,
        whole=("{",),
        arguments="parameters",
    ),
    CallFormat('"parameters":', (), "", read_json, whole=("{",), arguments="parameters"),
)
