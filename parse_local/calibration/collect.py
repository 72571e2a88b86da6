"""What calibration learns from: answers of both models, who is right, and all evidence.

Both models answer every problem, many at once. The target reads every draft in one verify
pass, as the engine would, judges it under every candidate wording, and goes on by itself
from the draft's exact prefix: that is its own greedy answer.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from parse_local.bench.tasks import Problem
from parse_local.boundaries import candidate_boundaries, spread
from parse_local.calibration.wordings import WORDINGS
from parse_local.drafting import Draft, in_target_tokens
from parse_local.engine import Engine
from parse_local.errors import StorageError, UsageError
from parse_local.json_lines import drop_torn_line, whole_lines
from parse_local.judge import Question, make_question, verdicts
from parse_local.llama.batch_writer import BatchWriter, Ending, Job, Written
from parse_local.llama.context import Context
from parse_local.llama.sampler import Sampler
from parse_local.load_options import LoadOptions
from parse_local.policy import Options, resolve
from parse_local.profile import JudgeWording
from parse_local.room import SUFFIX_SLACK
from parse_local.verifier import Verifier
from parse_local.writer import Writer

N_AT_ONCE = 16
"""Answers that each model writes at once."""
N_PREFIXES = 3
"""Unfinished prefixes of a draft that are judged."""
MAX_CELLS = 16384
"""Cells of the cache that answers are written in."""

Record = dict[str, Any]
"""One problem's line; see `collect`."""


def read_collected(path: Path) -> dict[str, Record]:
    """Records of a file by their problem's name; a torn last line is left out.

    Raises:
        UsageError: the file is something else.
    """
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise UsageError(f"Cannot read the collected answers in {path}: {error}.") from error
    found: dict[str, Record] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            found[record["problem"]] = record
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{path} line {number} is not a collected answer ({error!r}); "
                "name another file, or delete this one."
            ) from error
    return found


def collect(
    engine: Engine,
    problems: Sequence[Problem],
    path: Path,
    *,
    task: str,
    allow_exec: bool = False,
    wordings: Mapping[str, JudgeWording] = WORDINGS,
    n_prefixes: int = N_PREFIXES,
    n_at_once: int = N_AT_ONCE,
    load: LoadOptions | None = None,
) -> Iterator[Record]:
    """Answer, check, verify and judge every problem that is not in the file yet.

    A line of the file, and what is yielded:

    ```
    {"task", "problem", "pair",
     "target": {"text", "correct", "n_tokens", "finish_reason"}, "draft": {the same},
     "n_exact": tokens of the draft until the target would have written another,
     "logprobs", "ranks", "entropies": of the draft's tokens under the target (nats),
     "draft_logprobs": under the draft model, in its own tokens,
     "verdicts": [{"wording", "n_tokens", "complete", "p_correct", "label_mass"}, ...]}
    ```

    Verdicts with `complete` are those at the end of the draft, one a wording, also where
    `max_tokens` cut it; the others are at evenly spread boundaries, in the first wording.

    Args:
        engine: a loaded pair.
        problems: with different names.
        path: a JSON Lines file, made or continued. A torn last line is replaced.
        task: written into every line.
        allow_exec: problems may run code that the models wrote.
        wordings: by name.
        n_prefixes: most boundaries judged before the end of a draft.
        n_at_once: answers that each model writes at once.
        load: cache type and flash attention of the caches that answers are written in.

    Yields:
        Each new record, once its line is on the disk.

    Raises:
        UsageError: no draft model; code would be run and that is not allowed; the file is
            something else, or of another pair.
        StorageError: the file cannot be written.
        ContextLengthError, TemplateError, JudgeError, DecodeError, Cancelled: as `Engine.stream`.
    """
    if engine.draft is None:
        raise UsageError("Calibration compares two models; name a pair or give --draft FILE.")
    if not allow_exec and any(p.runs_code for p in problems):
        raise UsageError(
            f"The task {task} runs code that the models wrote, or that its file holds; "
            "allow that with --allow-exec."
        )
    pair = f"{engine.draft.model.path.name} + {engine.target.model.path.name}"
    known = read_collected(path)
    others = {str(record.get("pair")) for record in known.values()} - {pair}
    if others:
        raise UsageError(
            f"{path} holds answers of {min(others)}, not of {pair}; name another file."
        )
    todo = [p for p in problems if p.name not in known]
    if not todo:
        return
    load = load or LoadOptions()
    with ExitStack() as stack:
        file = stack.enter_context(_appending(path))
        drafts = stack.enter_context(_drafts(engine.draft, todo, n_at_once, load))
        examiner = _Examiner(engine, wordings, n_prefixes, todo, n_at_once, load)
        stack.callback(examiner.close)
        for number, evidence in examiner.examine(drafts):
            problem = todo[number]
            for role in ("target", "draft"):
                answer = evidence[role]
                answer["correct"] = problem.check(answer["text"])
            record = {"task": task, "problem": problem.name, "pair": pair, **evidence}
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            yield record


@dataclass(frozen=True)
class _Head:
    # What the draft got right, which begins the target's own answer, and all that was found.
    draft: Written
    tokens: list[int]
    evidence: Record


class _Examiner:
    """The target's side: verifies and judges drafts, and finishes what it would have written.

    All in one cache. A draft is verified in the main sequence, its verdicts are asked in the
    first forks, and in the last ones the target goes on behind the exact prefixes of the
    drafts before, several at once. What a prefix has cost to verify is not computed again.
    """

    def __init__(
        self,
        engine: Engine,
        wordings: Mapping[str, JudgeWording],
        n_prefixes: int,
        problems: Sequence[Problem],
        n_at_once: int,
        load: LoadOptions,
    ) -> None:
        assert engine.draft is not None
        self._engine = engine
        self._draft = engine.draft
        self._wordings = wordings
        self._n_prefixes = n_prefixes
        self._problems = problems
        self._policy = resolve(Options(accept="exact"), engine.profile)
        self._sampler = Sampler(engine.target.model)
        n_forks = n_prefixes + len(wordings)
        n_suffix = n_forks * (
            SUFFIX_SLACK + max(len(q.suffix) for _, q in self._asked(problems[0]))
        )
        longest = max(len(self._prompt(p)) + p.max_tokens for p in problems)
        n_cells = max(longest, min(n_at_once * longest, MAX_CELLS))
        self._context = _context(
            engine.target, load, n_cells + longest, n_at_once + n_forks, n_suffix
        )
        self._writer = BatchWriter(self._context, n_sequences=n_at_once, n_cells=n_cells)

    def examine(self, drafts: Iterator[Written]) -> Iterator[tuple[int, Record]]:
        heads: list[_Head] = []
        whole: deque[tuple[int, Record]] = deque()  # nothing was left for the target to write

        def jobs() -> Iterator[Job]:
            for draft in drafts:
                problem = self._problems[draft.job]
                head, ended = self._verify(problem, draft)
                n_left = problem.max_tokens - len(head.tokens)
                if ended or n_left <= 0:
                    whole.append(self._finish(head, [], "stop" if ended else "length"))
                else:
                    heads.append(head)
                    yield Job(self._prompt(problem) + head.tokens, n_left)

        for written in self._writer.write(jobs()):
            yield from whole
            whole.clear()
            yield self._finish(heads[written.job], written.tokens, written.finish_reason)
        yield from whole

    def _finish(self, head: _Head, tokens: list[int], reason: Ending) -> tuple[int, Record]:
        target = _answer(self._engine.target, head.tokens + tokens, reason)
        draft = _answer(self._draft, head.draft.tokens, head.draft.finish_reason)
        return head.draft.job, {"target": target, "draft": draft, **head.evidence}

    def _verify(self, problem: Problem, written: Written) -> tuple[_Head, bool]:
        """The evidence on a draft, and whether the target's own answer ends with its prefix."""
        model = self._context.model
        prompt = self._prompt(problem)
        tokens, _ = in_target_tokens(
            written.tokens, self._draft.model, model, shared=self._engine.shared_vocabulary
        )
        tokens = tokens[: problem.max_tokens]
        pieces = [model.piece(t) for t in tokens]
        draft = Draft(tokens, pieces, complete=written.finish_reason == "stop")
        cuts = candidate_boundaries(draft.text, draft.offsets, delta=self._policy.delta)
        cuts = self._context.forkable([c for c in cuts if c < len(tokens)])
        cuts = spread(cuts, self._n_prefixes) if self._n_prefixes else []
        verifier = Verifier(self._context, self._sampler, None, self._policy)
        ends = [*cuts, len(tokens)]
        found = verifier.score(prompt, draft, ends, fork_at=cuts, token_scores=True)
        evidence = {
            "n_exact": found.n_exact,
            "logprobs": _rounded(found.logprobs.tolist()),
            "ranks": found.ranks.tolist(),
            "entropies": _rounded(found.entropies.tolist()),
            "draft_logprobs": _rounded(written.logprobs),
            "verdicts": self._judge(problem, len(prompt), cuts, len(tokens)) if tokens else [],
        }
        following = found.next_token[found.n_exact]
        ended = model.is_eog(following)
        own = tokens[: found.n_exact] + ([] if ended else [following])
        return _Head(written, own[: problem.max_tokens], evidence), ended

    def _judge(self, problem: Problem, n_prompt: int, cuts: list[int], n: int) -> list[Record]:
        (first, about_prefix), *about_whole = self._asked(problem)
        asked = [(first, about_prefix, cut) for cut in cuts]
        asked += [(name, question, n) for name, question in about_whole]
        # Every label is looked up behind every question: a handful of numbers, one batch.
        labels = [label for _, question, _ in asked for label in question.labels]
        found = self._context.judge_each(
            [(n_prompt + cut, question.suffix) for _, question, cut in asked], labels
        )
        own = np.array([found[i, 2 * i : 2 * i + 2] for i in range(len(asked))])
        p_correct, mass = verdicts(own)
        return [
            {
                "wording": name,
                "n_tokens": cut,
                "complete": i >= len(cuts),
                "p_correct": round(float(p_correct[i]), 8),
                "label_mass": round(float(mass[i]), 8),
            }
            for i, (name, _, cut) in enumerate(asked)
        ]

    def _asked(self, problem: Problem) -> list[tuple[str, Question]]:
        """The first wording's question for prefixes, then every wording's for whole answers."""
        named = list(self._wordings.items())
        texts = [(*named[0], named[0][1].question_prefix)]
        texts += [(name, wording, wording.question_full) for name, wording in named]
        target = self._engine.target
        return [
            (
                name,
                make_question(
                    target.model,
                    target.template,
                    problem.messages,
                    text,
                    (wording.label_correct, wording.label_incorrect),
                ),
            )
            for name, wording, text in texts
        ]

    def _prompt(self, problem: Problem) -> list[int]:
        return self._engine.target.prompt(problem.messages)

    def close(self) -> None:
        self._context.close()


def _answer(writer: Writer, tokens: list[int], reason: Ending) -> Record:
    text = writer.model.detokenize(tokens).decode("utf-8", "replace")
    return {"text": text, "correct": False, "n_tokens": len(tokens), "finish_reason": reason}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(v, 5) for v in values]


@contextmanager
def _drafts(
    writer: Writer, problems: Sequence[Problem], n_at_once: int, load: LoadOptions
) -> Iterator[Iterator[Written]]:
    """All of the draft model's answers, in a cache of their own over the same weights."""
    jobs = [Job(writer.prompt(p.messages), p.max_tokens) for p in problems]
    longest = max(len(job.prompt) + job.max_tokens for job in jobs)
    n_cells = max(longest, min(n_at_once * longest, MAX_CELLS))
    context = _context(writer, load, n_cells, n_at_once)
    try:
        yield BatchWriter(context, n_sequences=n_at_once).write(jobs, logprobs=True)
    finally:
        context.close()


def _context(
    writer: Writer, load: LoadOptions, n_ctx: int, max_forks: int, n_fork_cells: int = 0
) -> Context:
    return Context(
        writer.model,
        n_ctx=n_ctx,
        n_fork_cells=n_fork_cells,
        max_forks=max_forks,
        n_threads=writer.context.n_threads,
        kv_type=load.kv_type,
        flash_attn=load.flash_attn,
        cancel=writer.context.cancel,
    )


@contextmanager
def _appending(path: Path) -> Iterator[BinaryIO]:
    """The file, open at the end of its last whole line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_torn_line(path)
        with path.open("ab") as file:
            yield file
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror}.") from error
