"""Which speculator a pair gets, and making it: the meaning of `--spec`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parse_local.errors import PairError, UsageError, VocabularyError
from parse_local.llama import speculator
from parse_local.llama.context import Context
from parse_local.llama.model import Model
from parse_local.llama.speculator import Speculator
from parse_local.load_options import LoadOptions, Spec
from parse_local.speculation import Governor, Speculation

NGRAM = "ngram-simple"
_KINDS = {"draft": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}
_NAMES = {
    "draft-simple": "an ordinary model",
    "draft-eagle3": "an EAGLE-3 head",
    "draft-mtp": "a model with MTP heads",
    "draft-dflash": "a DFlash head",
    "draft-dspark": "a DSpark head",
}


@dataclass(frozen=True)
class SpecPlan:
    """What proposes tokens for a target.

    Args:
        kind: a type of common/speculative, None for a draft's rejected tail alone.
        path: file of the draft model or head, None where there is none of its own.
        shares_draft: the pair's draft model serves, with a second KV cache.
        governed: propose only while it pays.
        note: what the user should know, "" for nothing.
    """

    kind: str | None = None
    path: Path | None = None
    shares_draft: bool = False
    governed: bool = False
    note: str = ""

    @property
    def uses_target_heads(self) -> bool:
        """Whether MTP heads in the target's own file propose."""
        return self.kind == "draft-mtp" and self.path is None


def plan(
    spec: Spec, target: Model, *, spec_path: Path | None, draft_path: Path | None
) -> SpecPlan | None:
    """Choose the speculator.

    Args:
        spec: as `LoadOptions.spec`.
        target: its headers.
        spec_path: file given for it.
        draft_path: the pair's draft model.

    Returns:
        The plan, None for no speculation.

    Raises:
        UsageError, ModelError, PairError: what was asked for cannot be had.
    """
    if spec == "none":
        return None
    governed = spec == "auto"
    if governed and not speculator.available():
        if spec_path is not None:
            speculator.type_of(spec_path)  # says why not
        return SpecPlan(governed=True)
    if spec == "ngram" or (governed and spec_path is None and not _has_heads(target)):
        speculator.require()
        return SpecPlan(NGRAM, governed=governed)
    if spec_path is None:
        if spec == "draft":
            if draft_path is None:
                raise UsageError("--spec draft needs a draft model; give one with --spec-model.")
            return _draft(target, draft_path, shares_draft=True, governed=False)
        if spec == "eagle3":
            raise UsageError("--spec eagle3 needs the head's file; give it with --spec-model.")
        if not _has_heads(target):
            raise PairError(
                f"{target.path.name} has no MTP heads that llama.cpp can use; "
                "give a file of them with --spec-model, or use --spec ngram."
            )
        return SpecPlan("draft-mtp", governed=governed)
    kind = speculator.type_of(spec_path)
    if spec == "draft" and kind == "draft-mtp":
        kind = "draft-simple"  # its heads are left alone
    if not governed and kind != _KINDS[spec]:
        raise UsageError(
            f"{spec_path.name} is {_NAMES[kind]}, which --spec {spec} cannot use; "
            "leave out --spec, which then takes what the file is."
        )
    if kind == "draft-simple":
        return _draft(target, spec_path, shares_draft=False, governed=governed)
    return SpecPlan(kind, spec_path, governed=governed)


def _has_heads(target: Model) -> bool:
    announced = target.metadata(f"{target.architecture}.nextn_predict_layers") not in (None, "0")
    return announced and speculator.type_of(target.path) == "draft-mtp"


def _draft(target: Model, path: Path, *, shares_draft: bool, governed: bool) -> SpecPlan:
    headers = Model(path, headers_only=True)
    try:
        if headers.shares_vocabulary(target):
            return SpecPlan("draft-simple", path, shares_draft=shares_draft, governed=governed)
    finally:
        headers.close()
    return _without_draft(path, governed=governed)


def _without_draft(path: Path, *, governed: bool) -> SpecPlan:
    note = f"{path.name} has another vocabulary than the target: n-grams propose in its place."
    return SpecPlan(NGRAM, governed=governed, note=note)


def make(
    chosen: SpecPlan | None,
    target: Context,
    *,
    draft: Model | None,
    options: LoadOptions,
    n_gpu_layers: int,
) -> tuple[Speculation | None, Speculator | None, str]:
    """Carry out a plan.

    Args:
        chosen: the plan.
        target: the context that is speculated for.
        draft: the pair's draft model.
        options: how the pair is loaded.
        n_gpu_layers: layers on the GPU of a model of the speculator's own.

    Returns:
        (speculation, its speculator, which has to be closed before the target; a note, or "").

    Raises:
        ModelError, PairError, OutOfMemoryError: the file does not fit the target or the memory.
    """
    if chosen is None:
        return None, None, ""
    note, made = chosen.note, None
    if chosen.kind is not None:
        try:
            made = _speculator(chosen, target, draft, options, n_gpu_layers)
        except VocabularyError:
            if chosen.kind != "draft-simple" or chosen.path is None:
                raise
            note = _without_draft(chosen.path, governed=chosen.governed).note
            made = Speculator(NGRAM, target, n_max=options.spec_max)
    governor = Governor() if chosen.governed else None
    return Speculation(target, made, n_max=options.spec_max, governor=governor), made, note


def _speculator(
    chosen: SpecPlan, target: Context, draft: Model | None, options: LoadOptions, n_gpu_layers: int
) -> Speculator:
    assert chosen.kind is not None
    owned = chosen.path is not None and not chosen.shares_draft
    model = draft if chosen.shares_draft else None
    if owned:
        assert chosen.path is not None
        heads = chosen.kind != "draft-simple"
        model = Model(
            chosen.path,
            n_gpu_layers=n_gpu_layers,
            mtp_heads=chosen.kind == "draft-mtp",
            is_head=heads,
        )
    try:
        return Speculator(
            chosen.kind,
            target,
            model,
            n_max=options.spec_max,
            kv_type=options.kv_type,
            flash_attn=options.flash_attn,
            owns_model=owned,
        )
    except BaseException:
        if owned and model is not None:
            model.close()
        raise
