"""One model of a pair, ready to write: weights, chat template and KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parse_local.chat_template import ChatTemplate, Message
from parse_local.errors import ContextLengthError
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

    def prompt(self, messages: Sequence[Message], *, thinking: bool = False) -> list[int]:
        """Prompt tokens of a conversation.

        Raises:
            TemplateError: the template refuses the messages.
            ContextLengthError: no token of an answer would fit behind the prompt.
        """
        text = self.template.render(messages, thinking=thinking)
        bos = self.model.bos_token
        tokens = self.model.tokenize(text, special=True)
        if bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        if len(tokens) >= self.context.n_ctx:
            raise ContextLengthError(
                f"The prompt has {len(tokens)} tokens and the context of {self.model.path.name} "
                f"holds {self.context.n_ctx}; raise --ctx, or shorten the conversation."
            )
        return tokens

    def close(self) -> None:
        """Free the cache and the weights."""
        self.context.close()
        self.model.close()
