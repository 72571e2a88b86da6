"""The algorithm: draft → verify → accept → continue, yielded as events.

A draft model writes (a window of) the answer. The target reads it once;
forks of its KV cache at candidate boundaries answer the judge's question in one
batch. The longest valid prefix stays, both caches roll back to it, and the target,
or the draft again, goes on from there (PARSE, arXiv 2605.04263, section 3).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from parse_local.answer import Answer, TextStream
from parse_local.chat_template import Message, Tool
from parse_local.drafting import Draft, Drafter, Stop
from parse_local.errors import Cancelled, ContextLengthError
from parse_local.events import (
    Accepted,
    Event,
    Finished,
    Result,
    RolledBack,
    Round,
    Source,
    Text,
    TokenLogprob,
    Verified,
)
from parse_local.evidence import Evidence
from parse_local.forced_calls import ToolChoice
from parse_local.judge import Judge
from parse_local.llama.context import Context
from parse_local.llama.logprobs import LogprobReader
from parse_local.llama.model import Model
from parse_local.llama.sampler import Sampler
from parse_local.loaded_pair import LoadedPair
from parse_local.metering import Meter
from parse_local.pacing import Planned
from parse_local.policy import Options, Policy, resolve
from parse_local.request import Chat, Completion, Request
from parse_local.speculation import Speculation
from parse_local.turns import Windows, make_turns
from parse_local.verifier import Verifier


class Engine(LoadedPair):
    """A loaded pair that answers; `load_pair` makes it.

    One answer at a time: a new `stream` may start when the last one is finished
    or abandoned. `cancel` may come from any thread.
    What it holds and knows, and verdicts on any text, are in `LoadedPair`.
    """

    def generate(
        self,
        messages: Sequence[Message],
        options: Options | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
    ) -> Result:
        """Answer the last message and return the whole result; otherwise as `stream`."""
        result = Result()
        for event in self.stream(messages, options, tools=tools, tool_choice=tool_choice):
            if isinstance(event, Finished):
                result = event.result
        return result

    def stream(
        self,
        messages: Sequence[Message],
        options: Options | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
    ) -> Iterator[Event]:
        """Answer the last message.

        Args:
            messages: the conversation; dicts with `role` (system, user, assistant or tool) and
                `content`, those of the assistant also with `tool_calls`. Where the last is the
                assistant's, the answer goes on with its words, which are not in the result.
            options: how, see `Options`.
            tools: functions that the model may call, as in OpenAI's API; what it calls is in
                the result's `tool_calls`.
            tool_choice: "auto" leaves it to the model; "required" makes the answer a call of one
                of them, {"type": "function", "function": {"name": NAME}} of that one. Arguments
                then validate against its schema, as far as a grammar can see to that.

        Yields:
            Events; `Finished` is always the last.

        Raises:
            UsageError: the options ask for what this pair does not have; or a call is required
                of a model whose notation is not known or cannot be forced, or of a `strict` tool
                with a schema that a grammar cannot hold an answer to.
            ContextLengthError: the prompt does not fit; nothing has been decoded.
            TemplateError, JudgeError: a template cannot render the conversation or the question.
            DecodeError: llama.cpp failed.
        """
        options = options or Options()
        request = Chat(messages, tools, options.thinking, tool_choice)
        yield from self._respond(request, options)

    def complete(self, prompt: str, options: Options | None = None) -> Iterator[Event]:
        """Go on with a text, without a chat template.

        Args:
            prompt: the text. Control tokens written out in it are recognised, and the token
                that every text of this model begins with is put before it, as llama.cpp's
                server does.
            options: how, see `Options`. Where they leave acceptance open it is "exact":
                a verdict needs a question to an answer, and there is none.

        Yields:
            The same events as `stream`.

        Raises:
            UsageError: the options ask for verdicts, or for what this pair does not have; or
                the prompt is empty.
            ContextLengthError, DecodeError: as `stream`.
        """
        options = options or Options()
        yield from self._respond(Completion(prompt), options)

    def _respond(self, request: Request, options: Options) -> Iterator[Event]:
        self._cancel.clear()
        writer = self._require_draft() if options.strategy == "draft" else self.target
        options = request.check(options, writer)
        policy = resolve(options, self.profile)
        prompt = request.tokens(writer)
        parser = request.parser(writer, prompt)
        if options.grammar is not None:
            prompt, parser = writer.begun(prompt, parser, thinking=options.thinking)
        n_top, (calls, call_controls) = options.logprobs, request.calls(writer)
        answer = Answer(
            prompt=prompt,
            max_tokens=min(options.max_tokens, writer.context.n_ctx - len(prompt)),
            stops=options.stop,
            parser=parser.copy(),
            controls=writer.thinking.controls,
            calls=calls,
            call_controls=call_controls,
            reader=None if n_top is None else LogprobReader(writer.model, n_top),
        )
        sampler = self._sampler(writer, options, prompt, answer.parser, marks=call_controls)
        draft_context = self.draft.context if self.draft else None
        baseline = self.controller.baseline
        meter = Meter(self.target.context, draft_context, self.speculation, baseline)
        self._running = meter, answer
        try:
            with answer.timed("prompt_s"):
                writer.context.resume(prompt)
            if options.strategy == "speculative":
                yield from self._write(answer, sampler, self._speculates())
            elif options.strategy in ("target", "draft"):
                plain = Speculation(writer.context)
                yield from self._write(answer, sampler, plain)
            else:
                yield from self._parse(answer, request, options, policy, sampler)
        except Cancelled:
            answer.finish_reason = "cancelled"
        else:
            self.controller.n_tokens.update(len(answer.tokens), 1)
        yield from answer.close("stop")
        yield Finished(meter.result(answer))

    # the loop

    def _parse(
        self,
        answer: Answer,
        request: Request,
        options: Options,
        policy: Policy,
        sampler: Sampler,
    ) -> Iterator[Event]:
        planned = options.strategy == "auto"
        speculation = self.speculation or Speculation(self.target.context)
        if planned and self.draft is None:
            yield from self._write(answer, sampler, speculation)
            return
        draft_writer = self._require_draft()
        judge = None
        if policy.asks_verdicts:
            judge = self._judge(self.target, request.messages, policy.question)
        weighs = policy.min_confidence is not None
        by_verdict = policy.confidence_by == "verdict"
        own_judge = self._judge(draft_writer, request.messages) if weighs and by_verdict else None
        try:
            draft_prompt, draft_parser = draft_writer.following(
                answer.parser, request.tokens(draft_writer), thinking=options.thinking
            )
        except ContextLengthError:  # its vocabulary may spell the same text in more tokens
            yield from self._write(answer, sampler, speculation)
            return
        _, marks = request.calls(draft_writer)
        drafter = Drafter(
            draft_writer,
            self.target,
            shared_vocabulary=self.shared_vocabulary,
            sampler=self._sampler(
                draft_writer, options, draft_prompt, draft_parser, marks=marks, stream=1
            ),
            prompt=draft_prompt,
            parser=draft_parser,
            logprobs=planned or (weighs and not by_verdict),
            judge=own_judge,
            clock=self.controller.drafted if planned else None,
        )
        turns = (
            self._planned(answer, policy, judge, drafter, speculation)
            if planned
            else make_turns(policy)
        )
        judging, reading = self._verifiers(answer, sampler, judge, policy, turns)
        n_unread = partial(drafter.n_missing, answer)
        while not answer.done:
            if proposal := turns.proposal(answer):
                pieces = [self.target.model.piece(t) for t in proposal]
                seen = answer.seen(proposal, pieces)
                draft: Draft | None = Draft(proposal, pieces, False, shown=seen)
            else:
                limit = turns.limit(answer, n_unread)
                stop = turns.draft_stop(answer)
                draft = yield from drafter.write(answer, limit=limit, stop=stop)
            if draft is None:  # none pays, or no budget or no room is left
                more = turns.without_draft(answer)
                yield from self._write(answer, sampler, speculation, more.n_tokens)
                continue
            if planned and options.seed is not None:
                # How far a draft goes depends on measured times. Compared with the target's own
                # draws, one for each token, the text of a seed does not.
                draft = replace(draft, proposals=None)
            # Another vocabulary may spell it in tokens that the grammar does not allow.
            draft = draft.cut(sampler.n_fitting(answer.sequence, draft.tokens))
            found = turns.settle(draft)
            evidence: Evidence | None = None
            if found is None:
                verifier = judging if turns.judged else reading
                found, evidence = self._verify(answer, draft, verifier)
            turns.verified(answer, draft, found)
            yield from self._accept(answer, draft, found, evidence)
            if found.whole:
                break
            # The target's own next token behind what is kept, where it was read.
            own, own_read = evidence.behind(found.n_accept) if evidence else ([], [])
            yield from self._append(answer, self.target.model, own, own_read)
            tail = draft.tokens[found.n_accept :]
            if not own:  # nothing has replaced its first token yet
                tail = [answer.sequence[-1], *tail]
            for stretch in turns.target_writes(answer, draft, found):
                yield from self._write(
                    answer, sampler, speculation, stretch.n_tokens, tail, stretch.stop
                )
                tail = []

        turns.finished(answer)

    def _planned(
        self,
        answer: Answer,
        policy: Policy,
        judge: Judge | None,
        drafter: Drafter,
        speculation: Speculation,
    ) -> Planned:
        return Planned(
            answer,
            policy,
            self.controller,
            shared_vocabulary=self.shared_vocabulary,
            n_suffix=len(judge.full.suffix) if judge else 0,
            speculation=speculation,
            drafted=lambda: drafter.tokens,
        )

    def _verifiers(
        self,
        answer: Answer,
        sampler: Sampler,
        judge: Judge | None,
        policy: Policy,
        turns: Windows,
    ) -> tuple[Verifier, Verifier]:
        # One for drafts that get verdicts where the mode asks for any, one for others.
        planner = turns if isinstance(turns, Planned) else None
        clock = self.controller.read if planner else None
        context = self.target.context
        asks = partial(Verifier, context, sampler, clock=clock, reader=answer.reader)
        judging = asks(judge, policy, planner=planner)
        by_token = replace(policy, accept="exact") if policy.accepts_boundaries else policy
        return judging, asks(None, by_token)

    def _verify(
        self, answer: Answer, draft: Draft, verifier: Verifier
    ) -> tuple[Round, Evidence | None]:
        if self.target.context.n_reused is None:  # it has not read the prompt yet
            with answer.timed("prompt_s"):
                self._prefill(self.target.context, answer.prompt)
        with answer.timed("verify_s"):
            return verifier.verify(answer.sequence, draft)

    def _accept(
        self, answer: Answer, draft: Draft, verified: Round, evidence: Evidence | None
    ) -> Iterator[Event]:
        verified = replace(verified, channel=draft.channel)
        answer.rounds.append(verified)
        n = verified.n_accept
        kept = draft.head(n)
        yield Verified(verified, draft.text)
        if n:
            yield Accepted(n, kept)
        if n < len(draft.tokens):
            yield RolledBack(len(draft.tokens) - n, draft.text[len(kept) :])
        read = evidence.read if evidence else ()
        yield from answer.append(draft.tokens[:n], draft.pieces[:n], "draft", read)

    def _write(
        self,
        answer: Answer,
        sampler: Sampler,
        speculation: Speculation,
        n: int | None = None,
        tail: Sequence[int] = (),
        stop: Stop | None = None,
    ) -> Iterator[Text]:
        """One model writes: at least `n` tokens, or up to where `stop` says, or to the end.

        Goes on to the end of a character that another vocabulary could not be shown half of.
        A rejected `tail` of a draft, its first token already replaced, is what it proposes first.
        """
        context = speculation.context
        phase = "target_s" if context is self.target.context else "draft_s"
        in_half = answer.in_half and not self.shared_vocabulary
        if answer.done or (n is not None and n <= 0 and not in_half):
            return  # what has to be decoded again is, together with the next draft
        with answer.timed(phase if answer.tokens else "prompt_s"):
            self._prefill(context, answer.sequence)
            speculation.begin(answer.sequence, tail, answer.reader)
        shown, parser, n_closed = TextStream(), answer.parser, answer.parser.n_closed
        if stop is not None:
            parser = parser.copy()
        stopped = False
        while not answer.done and (
            not (stopped or (n is not None and n <= 0))
            or (answer.in_half and not self.shared_vocabulary)
        ):
            with answer.timed(phase):
                started, n_proposed = time.perf_counter(), speculation.n_proposed
                n_accepted = speculation.n_accepted
                tokens = speculation.step(answer.sequence, sampler, answer.n_left)
            if context is self.target.context:
                self.controller.looked_up.update(speculation.n_accepted - n_accepted, len(tokens))
                if speculation.n_proposed == n_proposed:
                    seconds = time.perf_counter() - started
                    self.controller.read(False, 1, seconds)
                    self.controller.baseline.observe(seconds)
            if stop is not None and not stopped:
                written = [t for t in tokens if not context.model.is_eog(t)]
                for i, token in enumerate(written):
                    piece = context.model.piece(token)
                    runs = parser.push(piece, answer.controls.get(token, b""))
                    text = shown.push(b"".join(data for _, data in runs))
                    if stop.push(text) or parser.n_closed > n_closed:
                        stopped = True
                        in_half = shown.in_character or parser.in_marker
                        if self.shared_vocabulary or not in_half:
                            tokens = tokens[: i + 1]  # the rest is decoded and forgotten
                        break
            yield from self._append(answer, context.model, tokens, speculation.read)
            n = None if n is None else n - len(tokens)

    def _prefill(self, context: Context, tokens: list[int]) -> None:
        started, n = time.perf_counter(), context.n_decoded
        context.prefill(tokens)
        if context is self.target.context and context.n_decoded > n:
            self.controller.read(True, context.n_decoded - n, time.perf_counter() - started)

    def _append(
        self,
        answer: Answer,
        model: Model,
        tokens: Sequence[int],
        read: Sequence[TokenLogprob] = (),
    ) -> Iterator[Text]:
        if answer.done or not tokens:
            return
        ended = model.is_eog(tokens[-1])
        tokens = tokens[:-1] if ended else tokens
        source: Source = "target" if model is self.target.model else "draft"
        yield from answer.append(tokens, [model.piece(t) for t in tokens], source, read)
        if ended and not answer.done:
            answer.finish_reason = "stop"
