"""What one model's context has to hold, and how much memory that takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parse_local import memory
from parse_local.errors import JudgeError
from parse_local.judge import make_judge, make_score_question
from parse_local.llama.checkpoints import STRIDE
from parse_local.llama.context_params import KV_BYTES, N_UBATCH, keeps_in_cache, max_rows
from parse_local.llama.memory_kind import state_size
from parse_local.llama.model import Model
from parse_local.load_options import LoadOptions
from parse_local.profile import Profile
from parse_local.writer import template_of, thinking_of

SUFFIX_SLACK = 16
"""Cells of a fork beyond the suffix seen at load, which another conversation may render longer."""

CELLS_STEP = 256
"""Where memory is short, cells for cached conversations come in multiples of this."""


@dataclass(frozen=True)
class Room:
    """One model's part of the plan.

    Args:
        need: its memory.
        sequences: forks and checkpoints.
        n_fork_cells: cells for the questions of all forks together.
        conversation: bytes of one cached conversation that fills the context.
        in_cache: whether cached conversations share the KV cache; else each is copied, at two
            places (the end of its last prompt and its own) if the copy cannot be cut.
        n_cached: most cached conversations.
        n_cached_cells: cells that are there for them alone.
        n_copies: most of them where they are copied after all.
    """

    need: memory.Need
    sequences: memory.Sequences
    n_fork_cells: int
    conversation: int = 0
    in_cache: bool = True
    n_cached: int = 0
    n_cached_cells: int = 0
    n_copies: int = 0


def room_for(model: Model, options: LoadOptions, suffix: int) -> Room:
    """Plan one model's context.

    Args:
        model: its headers are enough.
        options: context length, cache type, most forks.
        suffix: cells that the question of one fork needs; 0 for a model that is asked none.
    """
    max_forks = options.max_forks if suffix else 0
    if model.memory_kind.can_cut:
        n_fork_cells = max_forks * suffix
        need = need_of(model, options, n_fork_cells)
        elements, shared = model.kv_elements_per_token(), keeps_in_cache(model, options.flash_attn)
        return Room(
            need,
            memory.Sequences(max_forks, 0),
            n_fork_cells,
            conversation=(2 if model.memory_kind.n_swa else 1) * _cells_bytes(elements, options),
            in_cache=shared,
        )
    size = state_size(model)
    sequences = memory.share_states(size.state, max_forks)
    # A fork begins at the checkpoint before its boundary.
    n_fork_cells = sequences.forks * (suffix + STRIDE)
    need = need_of(model, options, n_fork_cells, kv_elements=size.kv_elements)
    return Room(
        replace(need, states=size.state * sequences.total),
        sequences,
        n_fork_cells,
        conversation=2 * (_cells_bytes(size.kv_elements, options) + size.state),
        in_cache=False,
    )


def _cells_bytes(elements: float, options: LoadOptions) -> int:
    return memory.kv_cache_bytes(elements, options.n_ctx, KV_BYTES[options.kv_type])


def add_cached(
    rooms: dict[str, Room], options: LoadOptions, spare: int
) -> tuple[dict[str, Room], str]:
    """Give the cached conversations of all models together what memory there is for them.

    Args:
        rooms: by role, without cached conversations.
        options: how many, and how long.
        spare: bytes that are left; half of them stay free.

    Returns:
        (rooms with as many cells, or copies, as fit; what the user should know, or "").
    """
    n = options.n_cached
    wanted = n * sum(room.conversation for room in rooms.values())
    if not wanted:
        return rooms, ""
    share = min(1.0, max(0, spare) / 2 / wanted)
    n_cells = n * options.n_ctx
    if share < 1:
        n_cells = int(share * n_cells) // CELLS_STEP * CELLS_STEP
    found = {}
    for role, room in rooms.items():
        n_copies = int(share * n)
        need = replace(room.need, copies=n_copies * room.conversation)
        found[role] = replace(room, need=need, n_cached=n_copies, n_copies=n_copies)
        if room.in_cache:
            more = room.conversation * n_cells // options.n_ctx
            need = replace(room.need, kv_cache=room.need.kv_cache + more)
            found[role] = replace(found[role], need=need, n_cached=n, n_cached_cells=n_cells)
    if share == 1:
        return found, ""
    return found, (
        f"Memory is short: cached conversations get room for {n_cells:,} tokens instead of "
        f"{n * options.n_ctx:,}, and what a running answer leaves free."
    )


def judge_cells(model: Model, profile: Profile, max_forks: int) -> int:
    """Cells that one fork's share of a judge batch takes.

    The questions depend on the template alone, so that one made-up turn shows their lengths.
    A mark is asked for in one fork at a time, which may have the cells of all.

    Args:
        model: its headers are enough.
        profile: the wording.
        max_forks: most forks of one batch.

    Raises:
        JudgeError, TemplateError: the model cannot be asked.
    """
    turn = [{"role": "user", "content": "?"}]
    template = template_of(model)
    marks = thinking_of(model).marks
    judge = make_judge(model, template, turn, profile.wording, marks=marks)
    asked = (judge.full, judge.prefix, judge.about("reasoning"))
    cells = max(len(question.suffix) for question in asked) + SUFFIX_SLACK
    closing = marks.closing_text if marks is not None else ""
    try:
        score = make_score_question(model, template, turn, profile.wording, closing=closing)
    except JudgeError:  # said where a mark is asked for
        return cells
    return max(cells, -(-(len(score.suffix) + SUFFIX_SLACK) // max_forks))


def need_of(
    model: Model,
    options: LoadOptions,
    n_more_cells: int,
    *,
    kv_elements: float | None = None,
) -> memory.Need:
    """Memory of a model whose layers all attend, unless `kv_elements` says otherwise.

    Args:
        model: its headers are enough.
        options: context length and cache type.
        n_more_cells: cells beyond the context length.
        kv_elements: K and V values of one token, all layers; None for those of every layer.
    """
    elements = model.kv_elements_per_token() if kv_elements is None else kv_elements
    return memory.Need(
        weights=model.n_bytes,
        kv_cache=memory.kv_cache_bytes(
            elements, options.n_ctx + n_more_cells, KV_BYTES[options.kv_type]
        ),
        compute=memory.compute_bytes(
            model.n_vocab, model.n_embd, N_UBATCH, max_rows(model.n_vocab)
        ),
        n_layer=model.n_layer,
    )
