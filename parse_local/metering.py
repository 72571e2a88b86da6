"""What an answer has cost: tokens, decodes and seconds, as its result reports them."""

from __future__ import annotations

from parse_local.answer import Answer
from parse_local.baseline import Baseline
from parse_local.events import Pass, Progress, Result, Timings, TokenCounts, Usage
from parse_local.llama.context import Context
from parse_local.speculation import Speculation


class Meter:
    """Counts what one answer costs, from the contexts' running totals.

    Args:
        target, draft: the pair's caches; their counters start anew.
        speculation: of the target.
        baseline: of the target alone.
    """

    def __init__(
        self,
        target: Context,
        draft: Context | None,
        speculation: Speculation | None,
        baseline: Baseline,
    ) -> None:
        self._target = target
        self._draft = draft
        self._speculation = speculation
        self._baseline = baseline
        for counted in (target, draft, speculation):
            if counted is not None:
                counted.start_count()

    def progress(self, answer: Answer) -> Progress:
        """How far an answer is; may be asked while another thread writes it."""
        seconds = answer.age
        return Progress(
            len(answer.prompt),
            len(answer.tokens),
            answer.n_accept,
            seconds,
            self._speedup(answer, seconds),
        )

    def _speedup(self, answer: Answer, seconds: float) -> float | None:
        target, draft, spec = self._target, self._draft, self._speculation
        helped = (draft is not None and draft.n_decoded) or (spec is not None and spec.n_proposed)
        if not helped or target.n_reused is None:  # the target wrote alone, or not at all
            return None
        n_tokens = len(answer.tokens) + (answer.finish_reason in ("stop", "tool_calls"))
        return self._baseline.speedup(n_tokens, answer.seconds.get("prompt_s", 0.0), seconds)

    def result(self, answer: Answer) -> Result:
        """What the answer is, and what was decoded for it since the meter was made."""
        target, draft, spec = self._target, self._draft, self._speculation
        seconds, total_s = answer.seconds, answer.age
        return Result(
            text=answer.joined("answer"),
            reasoning=answer.joined("reasoning"),
            finish_reason=answer.finish_reason or "stop",
            usage=Usage(len(answer.prompt), len(answer.tokens)),
            tool_calls=tuple(answer.calls.calls),
            rounds=tuple(answer.rounds),
            tokens=TokenCounts(
                draft_decoded=draft.n_decoded if draft else 0,
                target_decoded=target.n_decoded,
                suffix_decoded=target.n_suffix_decoded,
                reused=target.n_reused or 0,
                reused_draft=(draft.n_reused or 0) if draft else 0,
                n_accept=answer.n_accept,
                spec_proposed=spec.n_proposed if spec else 0,
                spec_accepted=spec.n_accepted if spec else 0,
            ),
            timings=Timings(
                prompt_s=seconds.get("prompt_s", 0.0),
                draft_s=seconds.get("draft_s", 0.0),
                verify_s=max(0.0, seconds.get("verify_s", 0.0) - target.fork_s),
                fork_s=target.fork_s,
                target_s=seconds.get("target_s", 0.0),
                total_s=total_s,
                ttft_s=answer.first_text or total_s,
            ),
            spans=tuple(answer.spans),
            target_passes=_passes(target),
            draft_passes=_passes(draft) if draft else (),
            speedup=self._speedup(answer, total_s),
        )


def _passes(context: Context) -> tuple[Pass, ...]:
    return tuple(Pass(*shape, n) for shape, n in sorted(context.passes.items()))
