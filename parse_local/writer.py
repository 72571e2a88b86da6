"""One model of a pair, ready to write: weights, chat template and KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from parse_local.call_formats import CallFormat, find_format
from parse_local.channels import Parser, Written
from parse_local.chat_template import ChatTemplate, Message, Tool, split_begun
from parse_local.errors import ContextLengthError, UsageError
from parse_local.events import Channel
from parse_local.harmony import Harmony
from parse_local.llama.context import Context
from parse_local.llama.model import Model
from parse_local.thinking import Thinking, find_marks

N_END = 64
"""Tokens at the end of a prompt that hold what a template writes to open an answer."""
_USUAL = 16
"""Characters of a token that hardly any text reaches on average; more is looked at closely."""


def template_of(model: Model) -> ChatTemplate:
    """The model's own chat template, ChatML where its file has none."""
    return ChatTemplate(
        model.chat_template,
        bos=model.bos,
        eos=model.eos,
        end_of_turn=model.end_of_turn,
        name=model.path.name,
    )


def thinking_of(model: Model) -> Thinking:
    """How the model marks what it thinks, by its chat template and its vocabulary."""

    def is_token(text: str) -> bool:
        return len(model.tokenize(text, special=True)) == 1

    marks = find_marks(model.chat_template or "", is_token)
    if marks is None:
        return Thinking()
    return Thinking(marks, controls_of(model, marks.markers))


def controls_of(model: Model, markers: Iterable[str]) -> dict[int, bytes]:
    """Those of some markers that are control tokens, by token."""
    tokens = {m: model.tokenize(m, special=True) for m in markers}
    single = {t[0]: m.encode() for m, t in tokens.items() if len(t) == 1}
    return {token: marker for token, marker in single.items() if not model.piece(token)}


@dataclass
class Writer:
    """A model with its template and its KV cache."""

    model: Model
    template: ChatTemplate
    context: Context

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        tools: Sequence[Tool] | None = None,
    ) -> list[int]:
        """Prompt tokens of a conversation.

        Where it ends with words of the assistant, the prompt ends with them, to be gone on with.

        Raises:
            TemplateError: the template refuses the messages or the tools.
            ContextLengthError: no token of an answer would fit behind the prompt.
        """
        asked, begun = split_begun(messages)
        self._refuse_hopeless(begun)
        prompt = self.encode(self.template.render(asked, thinking=thinking, tools=tools))
        if begun:
            said = self.thinking.writes(self.parser(prompt), [("answer", begun)])
            prompt += self.encode_written(said)
            self._require_room(len(prompt))
        return prompt

    def n_prompt(self, messages: Sequence[Message], *, thinking: bool = False) -> int:
        """Tokens of a conversation's prompt, also of one that does not fit.

        Raises:
            TemplateError: the template refuses the messages.
        """
        return len(self._tokens(self.template.render(messages, thinking=thinking)))

    def encode(self, text: str) -> list[int]:
        """Tokens of a whole prompt: control tokens recognised, the beginning token put before it.

        Raises:
            UsageError: there are none.
            ContextLengthError: no token of an answer would fit behind them.
        """
        self._refuse_hopeless(text)
        tokens = self._tokens(text)
        if not tokens:
            raise UsageError("The prompt is empty; give some text to go on from.")
        self._require_room(len(tokens))
        return tokens

    def _require_room(self, n: int) -> None:
        if n >= self.context.n_ctx:
            raise ContextLengthError(
                f"The prompt has {n} tokens and the context of {self.model.path.name} "
                f"holds {self.context.n_ctx}; raise --ctx, or shorten the conversation."
            )

    def _refuse_hopeless(self, text: str) -> None:
        # llama.cpp's tokenizers take quadratic time for some texts, and nothing stops them:
        # minutes for megabytes of control tokens. What cannot fit is not given to them.
        n_ctx = self.context.n_ctx
        if len(text) <= _USUAL * n_ctx:
            return
        least = len(text.encode("utf-8", "surrogatepass")) // self.model.longest_token
        if least >= n_ctx:
            raise ContextLengthError(
                f"The prompt has at least {least} tokens and the context of "
                f"{self.model.path.name} holds {n_ctx}; raise --ctx, or shorten the conversation."
            )

    def _tokens(self, text: str) -> list[int]:
        bos = self.model.bos_token
        tokens = self.model.tokenize(text, special=True)
        if bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    @cached_property
    def thinking(self) -> Thinking:
        """How it marks what it thinks."""
        return thinking_of(self.model)

    @cached_property
    def call_format(self) -> CallFormat | None:
        """How it writes calls of tools, by its chat template."""
        return find_format(self.model.chat_template or "")

    @cached_property
    def call_controls(self) -> dict[int, bytes]:
        """Markers of calls that are control tokens."""
        form = self.call_format
        return {} if form is None else controls_of(self.model, form.markers)

    def read(self, token: int) -> tuple[bytes, bytes]:
        """What `Parser.push` takes of a token."""
        return self.model.piece(token), self.thinking.controls.get(token, b"")

    def parser(self, prompt: Sequence[int]) -> Parser:
        """Tells reasoning from the answer in what the model writes behind a prompt."""
        end = (self.model.piece(t) or self.model.token_text(t).encode() for t in prompt[-N_END:])
        return self.thinking.parser(b"".join(end).decode("utf-8", "replace"))

    def answering(self, prompt: list[int]) -> list[int]:
        """A prompt behind which the answer itself begins, with nothing thought before."""
        written = self.thinking.writes(self.parser(prompt), [("answer", "")])
        return prompt + self.encode_written(written)

    def begun(
        self, prompt: list[int], parser: Parser, *, thinking: bool
    ) -> tuple[list[int], Parser]:
        """A prompt that settles whether the model thinks, with the parser behind it.

        Where a grammar holds for the answer, the model cannot be left to open a block itself.
        """
        thinks = thinking or isinstance(self.thinking.marks, Harmony)
        if not (thinks and parser.undecided):
            return prompt, parser
        more = self.encode_written(self.thinking.writes(parser, [("reasoning", "")]))
        if len(prompt) + len(more) >= self.context.n_ctx:
            return prompt, parser
        return prompt + more, self.parser(prompt + more)

    def following(
        self, target: Parser, prompt: list[int], *, thinking: bool
    ) -> tuple[list[int], Parser]:
        """A draft model's prompt in the state of the target's: thinking, or answering.

        Args:
            target: the target's parser, behind its prompt.
            prompt: this model's own.
            thinking: the target may still begin to think.

        Returns:
            The prompt, and this model's parser behind it. Next to a target that marks nothing,
            all that it writes is answer.
        """
        own = self.parser(prompt)
        said: list[tuple[Channel, str]] = []
        if target.in_reasoning:
            said = [] if own.in_reasoning else [("reasoning", "")]
        elif not target.marks or (own.in_reasoning and not thinking):
            said = [("answer", "")]
        prompt = prompt + self.encode_written(self.thinking.writes(own, said))
        return prompt, self.parser(prompt) if target.marks else Parser()

    def encode_written(self, written: Iterable[Written]) -> list[int]:
        """Tokens of what a model has written."""
        return [t for text, special in written for t in self.model.tokenize(text, special=special)]

    def close(self) -> None:
        """Free the cache and the weights."""
        self.context.close()
        self.model.close()
