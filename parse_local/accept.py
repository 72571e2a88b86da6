"""Evidence → length of the accepted prefix: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from parse_local.distribution import Distribution
from parse_local.events import Boundary
from parse_local.policy import Policy, TokenConfidence


def accepts(boundary: Boundary, policy: Policy) -> bool:
    """Whether the evidence at one boundary passes the policy's threshold.

    A boundary without the verdict that the mode looks at never does.
    """
    if boundary.score is not None:
        return boundary.score >= policy.min_score
    if policy.accept == "fused":
        fusion = policy.profile.fusion
        return fusion is not None and fusion.accepts(boundary.terms, complete=boundary.complete)
    if boundary.p_correct is None:
        return False
    return boundary.p_correct > (policy.tau_full if boundary.complete else policy.tau_prefix)


def accepted_length(n_exact: int, boundaries: Sequence[Boundary], policy: Policy) -> int:
    """Tokens of the draft that are kept.

    A finished answer that passes as a whole is kept whole. Otherwise the
    prefix verdicts decide by the policy's rule: "first-failure" keeps what lies
    before the first boundary that fails, "longest" the longest that passes.
    What the target would have written itself (`n_exact`) is always kept.

    Args:
        n_exact: length of the exact prefix.
        boundaries: judged boundaries in ascending order; ones at or below
            `n_exact` need not be among them.
        policy: mode, rule and thresholds.

    Source: PARSE, section 3.
    """
    if not policy.accepts_boundaries:
        return n_exact
    for boundary in boundaries:
        if boundary.complete and accepts(boundary, policy):
            return boundary.n_tokens
    kept = 0
    passed = True
    for boundary in boundaries:
        if boundary.complete:
            continue
        # A stretch that the draft was sure of says nothing about what precedes it.
        passed = passed if boundary.confidence is not None else accepts(boundary, policy)
        if passed:
            kept = boundary.n_tokens
        elif policy.rule == "first-failure" and boundary.n_tokens > n_exact:
            break
    return max(n_exact, kept)


def confidence(logprobs: Sequence[float], *, by: TokenConfidence = "mean") -> float:
    """How sure a model was of tokens that it wrote: a probability.

    Args:
        logprobs: of the tokens under that model (nats).
        by: "mean" takes their geometric mean, "min" the least likely one.

    Returns:
        0 to 1; 0 for no tokens, of which nothing is known.
    """
    if not len(logprobs):
        return 0.0
    return float(np.exp(np.mean(logprobs) if by == "mean" else np.min(logprobs)))


def sure_stretches(
    cuts: Sequence[int],
    logprobs: Sequence[float],
    *,
    start: int,
    least: float,
    by: TokenConfidence = "mean",
) -> dict[int, float]:
    """Where evidence is not worth buying: cuts behind a stretch that the draft was sure of.

    Args:
        cuts: prefix lengths in tokens, ascending, all beyond `start`.
        logprobs: of the draft's tokens under its own model (nats).
        start: where the first stretch begins.
        least: confidence (see `confidence`) that a stretch has to exceed.
        by: as `confidence`.

    Returns:
        The confidence of each such cut's stretch, which begins at the cut before.

    Source: the idea of ConfSpec (arXiv 2602.18447), with the tokens' own probabilities.
    """
    sure = {}
    for begin, end in zip([start, *cuts], cuts, strict=False):
        found = confidence(logprobs[begin:end], by=by)
        if found > least:
            sure[end] = found
    return sure


def loose_length(
    n_exact: int,
    ranks: npt.NDArray[np.int32],
    entropies: npt.NDArray[np.float32],
    *,
    min_entropy: float,
    window: int,
) -> int:
    """Tokens of the draft that are kept when a differing token may pass.

    A token that the target would not have chosen passes where the target itself is undecided
    (an entropy of at least `min_entropy`) and goes on as the draft does: the next `window`
    tokens are all its own choice. The first token that does not pass ends what is kept. One
    so near to the end that fewer than `window` tokens follow it is not decided yet and does
    not pass either; the draft is cut in front of it, and a later draft may offer it again.

    Args:
        n_exact: length of the exact prefix, shorter than the draft unless all of it is exact.
        ranks: of the draft's tokens under the target, shape (n,); 0 is its first choice. They
            are those of the raw logits: behind the first difference a repeat penalty is not
            looked at.
        entropies: of the target's distribution before each token (nats), shape (n,).
        min_entropy: 0 lets every token pass that the window lets pass, infinity none.
        window: tokens that have to agree again; 0 leaves the entropy alone to decide.

    Source: FLy (arXiv 2511.22972): entropy-level gate and token-level deferred window.
    """
    differs = ranks != 0
    differs[:n_exact] = False
    differs[n_exact : n_exact + 1] = True  # also where a penalty or a tie made it differ
    places = [*(int(i) for i in np.flatnonzero(differs)), len(ranks)]
    for i, following in pairwise(places):
        if not entropies[i] >= min_entropy or following - i <= window:
            return i
    return len(ranks)


def speculative_step(
    target: Distribution, draft: Distribution, token: int, rng: np.random.Generator
) -> tuple[bool, int]:
    """One step of speculative sampling: keep the drafted token or draw another.

    The token is kept with probability min(1, p/q); otherwise one is drawn
    from the normalised positive part of p - q. Either way the result is
    distributed as the target.

    Args:
        target: p, the target's distribution at this position.
        draft: q, the distribution that `token` was drawn from.
        token: the drafted token.
        rng: random numbers independent of those that drew `token`.

    Returns:
        (kept, token to go on with).

    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1.
    """
    p, q = target.probability(token), draft.probability(token)
    if p > 0 and rng.random() * q < p:
        return True, token
    rest = np.maximum(0.0, target.probs - draft.probabilities(target.ids))
    total = rest.sum()
    if total <= 0:  # p and q agree to rounding error
        return False, target.sample(rng)
    return False, Distribution(target.ids, rest / total).sample(rng)
