"""One model of a pair, ready to write: weights, chat template and KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parse_local.chat_template import ChatTemplate, Message, Tool
from parse_local.errors import ContextLengthError, UsageError
from parse_local.llama.context import Context
from parse_local.llama.model import Model


def template_of(model: Model) -> ChatTemplate:
    """The model's own chat template, ChatML where its file has none."""
    return ChatTemplate(
        model.chat_template,
        bos=model.bos,
        eos=model.eos,
        end_of_turn=model.end_of_turn,
        name=model.path.name,
    )


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

        Raises:
            TemplateError: the template refuses the messages or the tools.
            ContextLengthError: no token of an answer would fit behind the prompt.
        """
        return self.encode(self.template.render(messages, thinking=thinking, tools=tools))

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
        tokens = self._tokens(text)
        if not tokens:
            raise UsageError("The prompt is empty; give some text to go on from.")
        if len(tokens) >= self.context.n_ctx:
            raise ContextLengthError(
                f"The prompt has {len(tokens)} tokens and the context of {self.model.path.name} "
                f"holds {self.context.n_ctx}; raise --ctx, or shorten the conversation."
            )
        return tokens

    def _tokens(self, text: str) -> list[int]:
        bos = self.model.bos_token
        tokens = self.model.tokenize(text, special=True)
        if bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def close(self) -> None:
        """Free the cache and the weights."""
        self.context.close()
        self.model.close()
