"""What an engine holds: both models ready to write, and what is known about them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from parse_local.answer import Answer
from parse_local.channels import AnswerStart, Parser
from parse_local.chat_template import Message
from parse_local.controller import PARALLEL_SLOPE, SLOPE, Controller, LearnedCosts, guess_costs
from parse_local.costs import PairCosts
from parse_local.drafting import Draft
from parse_local.errors import ContextLengthError, UsageError
from parse_local.events import Progress, Round
from parse_local.judge import Judge, make_judge
from parse_local.llama import library
from parse_local.llama.cancel import CancelFlag
from parse_local.llama.context import Context
from parse_local.llama.sampler import Sampler
from parse_local.llama.speculator import Speculator
from parse_local.metering import Meter
from parse_local.policy import Options, Question, resolve
from parse_local.profile import Profile
from parse_local.speculation import Speculation
from parse_local.verifier import Verifier
from parse_local.writer import Writer

_TIMED = (1, 1, 1, 8, 8, 8)
"""Tokens of the decodes by which an unmeasured draft model is timed; medians count, because the
first of a shape may have to wait for the disk, or for a GPU's shaders."""


class LoadedPair:
    """Two models with their caches, their profile, and what their answers have taught.

    Args:
        target: the model whose answer it is.
        draft: the model that proposes, None to run the target alone.
        profile: thresholds and wording of the pair.
        cancel: the flag that both contexts poll.
        pair_name: for messages.
        placements: where the models' layers went, one description each.
        n_cache_bytes: memory of caches and buffers, which closing gives back.
        speculation: how the target writes several tokens a step; None for one at a time.
        speculator: what it takes proposals from, to be closed with the engine.
        notes: what the user should know about how it was loaded.
        costs: what decodes of the pair cost here, where `parse-local tune` has measured it; the
            engine goes on from there, or from a guess, with its own timings.
    """

    def __init__(
        self,
        target: Writer,
        draft: Writer | None,
        *,
        profile: Profile,
        cancel: CancelFlag,
        pair_name: str = "",
        placements: Sequence[object] = (),
        n_cache_bytes: int = 0,
        speculation: Speculation | None = None,
        speculator: Speculator | None = None,
        notes: Sequence[str] = (),
        costs: PairCosts | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.profile = profile
        self.pair_name = pair_name
        self.placements = tuple(str(p) for p in placements)
        self.n_cache_bytes = n_cache_bytes
        self.shared_vocabulary = draft is not None and target.model.shares_vocabulary(draft.model)
        self.speculation = speculation
        self.notes = tuple(notes)
        self.costs = costs
        self.controller = Controller(costs or _guess(draft or target, target))
        """What the answers so far have taught, and what is planned from that."""
        self._speculator = speculator
        self._cancel = cancel
        self._running: tuple[Meter, Answer] | None = None

    def time_draft(self) -> None:
        """Find out what the draft model's decodes cost, in the time of a few tokens.

        Where nothing was measured the first answer would find out: there the draft model has to
        read the prompt first, and a slow one has cost more than this by then. What the
        target's decodes cost shows without any detour.

        Raises:
            DecodeError, Cancelled: as `Context.decode`.
        """
        if self.draft is None or self.costs is not None:
            return
        # In a thread that ends. OpenMP keeps the threads of a thread that has decoded; where
        # they and those of the one that answers outnumber the cores, all of them wait asleep
        # instead of spinning, and a token takes half as long again.
        with ThreadPoolExecutor(1) as apart:
            apart.submit(self._time, self.draft.context).result()

    def _time(self, context: Context) -> None:
        for n in _TIMED:
            tokens = [0] * min(n, context.n_ctx)
            started = time.perf_counter()
            context.last_row(tokens)
            self.controller.drafted(len(tokens), time.perf_counter() - started)
            context.clear()

    @property
    def can_think(self) -> bool:
        """Whether the target may think before it answers; for others `thinking` means nothing."""
        return self.target.thinking.marks is not None

    @property
    def n_ctx(self) -> int:
        """Tokens of context for prompt and answer."""
        return self.target.context.n_ctx

    @property
    def progress(self) -> Progress:
        """How far the running answer is, or how far the last one came; from any thread."""
        if self._running is None:
            return Progress()
        meter, answer = self._running
        return meter.progress(answer)

    def n_prompt(self, messages: Sequence[Message], options: Options | None = None) -> int:
        """Tokens of the prompt that `stream` would read, also where they do not fit.

        Raises:
            TemplateError: the template refuses the messages.
        """
        options = options or Options()
        writer = self._require_draft() if options.strategy == "draft" else self.target
        return writer.n_prompt(messages, thinking=options.thinking)

    def cancel(self) -> None:
        """Stop the running answer within one decode step; what is final stays."""
        self._cancel.set()

    def forget(self) -> None:
        """Empty both KV caches, cached conversations too: the next answer reuses nothing."""
        for writer in (self.target, self.draft):
            if writer is not None:
                writer.context.clear()

    def close(self) -> None:
        """Free the models; the engine cannot be used afterwards."""
        if self._speculator is not None:
            self._speculator.close()
        for writer in (self.target, self.draft):
            if writer is not None:
                writer.close()

    # verdicts on any text

    def verify(
        self,
        messages: Sequence[Message],
        text: str,
        *,
        options: Options | None = None,
        sequential: bool = False,
    ) -> Round:
        """Judge an answer that is already written, whoever wrote it.

        Args:
            messages: the conversation that `text` answers.
            text: the answer; its end is asked the question for finished answers.
            options: acceptance mode ("semantic" unless given), thresholds, boundaries.
            sequential: judge every prefix by a plain pass of its own instead of
                by forks in one batch; the same verdicts, slowly.

        Returns:
            A round whose boundaries all carry a verdict.

        Raises:
            UsageError: the text is empty.
            ContextLengthError: prompt and text do not fit.
            TemplateError, JudgeError, DecodeError, Cancelled: as `stream`.
        """
        options = options or Options()
        options = replace(options, accept=options.accept or "semantic")
        self._cancel.clear()
        policy = resolve(options, self.profile)
        prompt = self.target.answering(self.target.prompt(messages))
        judge = self._judge(self.target, messages)
        tokens = self.target.model.tokenize(text)
        if not tokens:
            raise UsageError("There is no text to judge; the draft is empty.")
        if len(prompt) + len(tokens) > self.n_ctx:
            raise ContextLengthError(
                f"Prompt and draft have {len(prompt) + len(tokens)} tokens and the context holds "
                f"{self.n_ctx}; raise --ctx."
            )
        draft = Draft(tokens, [self.target.model.piece(t) for t in tokens], complete=True)
        self.target.context.resume(prompt)
        sampler = self._sampler(self.target, replace(options, grammar=None), prompt, Parser())
        verifier = Verifier(self.target.context, sampler, judge, policy, sequential=sequential)
        return verifier.judge_all(prompt, draft)

    # parts

    def _speculates(self) -> Speculation:
        if self.speculation is None:
            raise UsageError(
                "This strategy needs token-level speculation, which --spec none leaves out; "
                "load with another --spec, or use --strategy target."
            )
        return self.speculation

    def _judge(
        self, writer: Writer, messages: Sequence[Message], question: Question = "correct"
    ) -> Judge:
        score = question == "score"
        wording = self.profile.wording
        marks = writer.thinking.marks
        return make_judge(
            writer.model, writer.template, messages, wording, score=score, marks=marks
        )

    def _require_draft(self) -> Writer:
        if self.draft is None:
            raise UsageError("This strategy needs a draft model; name a pair or give --draft FILE.")
        return self.draft

    def _sampler(
        self,
        writer: Writer,
        options: Options,
        prompt: list[int],
        parser: Parser,
        *,
        marks: Collection[int] = (),
        stream: int = 0,
    ) -> Sampler:
        # Draft and target draw from streams of their own: speculative sampling
        # needs the two independent.
        seed = None if options.seed is None else options.seed * 2 + stream
        return Sampler(
            writer.model,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repeat_penalty=options.repeat_penalty,
            seed=seed,
            grammar=options.grammar,
            marks=marks,
            n_prompt=len(prompt),
            begins=AnswerStart(parser, writer.read),
        )


def _guess(draft: Writer, target: Writer) -> LearnedCosts:
    on_gpu = target.model.n_gpu_layers != 0 and library.gpus()
    slope = PARALLEL_SLOPE if on_gpu or library.has_matrix_unit() else SLOPE
    return guess_costs(draft.model.n_bytes, target.model.n_bytes, slope=slope)
