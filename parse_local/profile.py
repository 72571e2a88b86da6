"""The pair's profile: how its target is asked, and the thresholds that follow from that."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, isinf
from pathlib import Path
from typing import Any

from parse_local.calibration.features import TERMS
from parse_local.errors import UsageError
from parse_local.fingerprint import fingerprint
from parse_local.paths import data_dir, package_models_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class JudgeWording:
    """The verdict question; a finished answer and an unfinished one get different ones.

    An unfinished answer cannot be "correct", so the same question for both
    pushes early prefixes below any useful threshold. What a model thinks before its answer
    has a question of its own.
    """

    question_full: str = "Is the answer above correct? Reply with one word: Correct or Incorrect."
    question_prefix: str = (
        "The answer above is unfinished. Is everything in it correct so far? "
        "Reply with one word: Correct or Incorrect."
    )
    label_correct: str = "Correct"
    label_incorrect: str = "Incorrect"
    question_score: str = (
        "Look at the last paragraph of the answer above only. Are its facts right, and does it "
        "follow from what comes before? Style and usefulness do not count. Give it a mark: one "
        "digit from 0 (wrong) to 9 (right)."
    )
    question_reasoning: str = (
        "The reasoning above is unfinished. Is everything in it correct so far? "
        "Reply with one word: Correct or Incorrect."
    )


@dataclass(frozen=True)
class Weight:
    """What one term of evidence counts: weight * (value - mean) / std."""

    mean: float
    std: float
    weight: float

    def part(self, value: float) -> float:
        """Its part in the score."""
        return self.weight * (value - self.mean) / self.std


@dataclass(frozen=True)
class Fusion:
    """A logistic regression over the evidence at one boundary.

    Args:
        weights: by the names of `calibration.features.TERMS`.
        intercept: log-odds of an answer whose evidence is average.
        threshold_full: score above which a finished answer is accepted; inf accepts none.
        threshold_prefix: the same for an unfinished prefix.
    """

    weights: Mapping[str, Weight] = field(hash=False)
    intercept: float
    threshold_full: float
    threshold_prefix: float

    def parts(self, terms: Mapping[str, float]) -> dict[str, float]:
        """Each term's part in the score; a term that was not measured has none."""
        return {name: w.part(terms[name]) for name, w in self.weights.items() if name in terms}

    def score(self, terms: Mapping[str, float]) -> float:
        """Log-odds that the answer is correct, given the terms that were measured."""
        return self.intercept + sum(self.parts(terms).values())

    def accepts(self, terms: Mapping[str, float], *, complete: bool) -> bool:
        """Whether the score passes; never where a verdict that counts was not asked for."""
        if self.needs_verdict and "log_odds" not in terms:
            return False
        if self.needs_tokens and "mean_logprob" not in terms:
            return False
        return self.score(terms) > (self.threshold_full if complete else self.threshold_prefix)

    @property
    def needs_verdict(self) -> bool:
        """Whether P(Correct) counts at all."""
        return any(TERMS[name].verdict for name in self._counting)

    @property
    def needs_earlier(self) -> bool:
        """Whether verdicts at earlier boundaries count: forks that a whole answer has to buy."""
        return any(TERMS[name].earlier for name in self._counting)

    @property
    def needs_tokens(self) -> bool:
        """Whether the scores of the draft's tokens count."""
        return any(TERMS[name].tokens for name in self._counting)

    @property
    def _counting(self) -> list[str]:
        return [name for name, w in self.weights.items() if w.weight]


@dataclass(frozen=True)
class FittedFile:
    """A model file that a profile was fitted on; see `fingerprint.fingerprint`."""

    file: str
    fingerprint: str


@dataclass(frozen=True)
class Profile:
    """What is known about a pair.

    Args:
        name: the pair, or "default".
        calibrated: the thresholds carry a guarantee; only then is a lossy mode the default.
        tau_full, tau_prefix: thresholds on P(Correct).
        wording: the verdict question.
        fusion: weights of the "fused" mode, None where nobody fitted them.
        target: the file that it was fitted on, None where the profile does not say.
        drafts: the draft files that it was fitted on; the guarantee covers no other.
    """

    name: str = "default"
    calibrated: bool = False
    tau_full: float = 0.9
    tau_prefix: float = 0.9
    wording: JudgeWording = field(default_factory=JudgeWording)
    fusion: Fusion | None = None
    target: FittedFile | None = None
    drafts: tuple[FittedFile, ...] = ()


def profile_name(pair_name: str, files: Mapping[str, Path]) -> str:
    """Under which name a pair's profile is kept; two files that are no named pair have one too.

    Args:
        pair_name: of the catalogue, "" for a pair made of files.
        files: by role, "target" and perhaps "draft".
    """
    return pair_name or "+".join(files[r].stem for r in ("target", "draft") if r in files)


def user_profile(name: str) -> Path:
    """Where `parse-local calibrate` keeps the profile of this name."""
    return data_dir() / "profiles" / f"{name}.toml"


def find_profile(name: str) -> Profile:
    """The user's own profile of this name, else the shipped one, else the default."""
    for path in (user_profile(name), package_models_dir() / "profiles" / f"{name}.toml"):
        if path.is_file():
            return replace(load_profile(path), name=name)
    return Profile(name=name)


def for_files(profile: Profile, files: Mapping[str, Path]) -> tuple[Profile, str]:
    """The profile as it holds for these files: a guarantee is about what was measured.

    A profile that was fitted on another target or draft keeps its wording and weights, but is
    not calibrated. A requantised draft is another draft, unless the profile lists it.

    Args:
        profile: of the pair.
        files: by role, "target" and perhaps "draft"; without a draft nothing is accepted.

    Returns:
        The profile, and a note for the user where it lost its guarantee.
    """
    if not profile.calibrated:
        return profile, ""
    for role, path in files.items():
        known = profile.drafts if role == "draft" else (profile.target,)
        if role in ("target", "draft") and fingerprint(path) not in [
            f.fingerprint for f in known if f is not None
        ]:
            return replace(profile, calibrated=False), (
                f"the profile {profile.name} was calibrated with another {role} than {path.name}, "
                "so answers stay lossless; parse-local calibrate fits one for this pair."
            )
    return profile, ""


def load_profile(path: Path) -> Profile:
    """Read a profile from TOML.

    Args:
        path: a file with the fields of `Profile`, tables `[wording]`, `[fusion]` with one
            `[fusion.terms.NAME]` a term, and `[fitted]`, which says what it was fitted on.

    Raises:
        UsageError: the file cannot be read, or holds an unknown or malformed field.
    """
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        fitted = _table(data.pop("fitted", {}))  # the rest of it is provenance, for readers
        wording = JudgeWording(**_texts(data.pop("wording", {})))
        fusion = _fusion(data.pop("fusion")) if "fusion" in data else None
        _numbers({name: data[name] for name in ("tau_full", "tau_prefix") if name in data})
        for name in ("target", "drafts"):
            if name in data:
                raise TypeError(f"{name} belongs into [fitted]")
        if not isinstance(data.get("calibrated", False), bool):
            raise TypeError(f"calibrated must be true or false, not {data['calibrated']!r}")
        return Profile(
            wording=wording,
            fusion=fusion,
            target=FittedFile(**_texts(fitted["target"])) if "target" in fitted else None,
            drafts=tuple(FittedFile(**_texts(d)) for d in fitted.get("drafts", [])),
            **data,
        )
    except OSError as error:
        raise UsageError(f"Cannot use the profile {path}: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError) as error:
        raise UsageError(f"Cannot use the profile {path}: {error}.") from error


def dump_profile(profile: Profile, fitted: Mapping[str, Any] | None = None) -> str:
    """The profile as TOML, which `load_profile` reads back.

    Args:
        profile: all of it is written.
        fitted: what else `[fitted]` says, for readers: texts, numbers, lists and tables.
    """
    fields: dict[str, Any] = {
        "name": profile.name,
        "calibrated": profile.calibrated,
        "tau_full": profile.tau_full,
        "tau_prefix": profile.tau_prefix,
        "wording": asdict(profile.wording),
    }
    if profile.fusion is not None:
        fusion = asdict(profile.fusion)
        terms = fusion.pop("weights")
        fields["fusion"] = {**fusion, "terms": terms}
    origin = dict(fitted or {})
    if profile.target is not None:
        origin["target"] = asdict(profile.target)
    if profile.drafts:
        origin["drafts"] = [asdict(d) for d in profile.drafts]
    return "\n".join(_lines({**fields, **({"fitted": origin} if origin else {})})) + "\n"


def _lines(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    tables = {}
    for name, value in table.items():
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
        if isinstance(value, Mapping) or _is_tables(value):
            tables[f"{path}{key}"] = value
        else:
            yield f"{key} = {_value(value)}"
    for inner, value in tables.items():
        for one in [value] if isinstance(value, Mapping) else value:
            yield ""
            yield f"[{inner}]" if one is value else f"[[{inner}]]"
            yield from _lines(one, f"{inner}.")


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


def _fusion(table: Any) -> Fusion:
    table = dict(_table(table))
    weights: dict[str, Weight] = {}
    for name, term in _table(table.pop("terms", {})).items():
        if name not in TERMS:
            raise TypeError(f"fusion.terms.{name} is not one of: {', '.join(TERMS)}")
        weights[name] = Weight(**_numbers(term))
    return Fusion(weights=weights, **_numbers(table))


def _texts(table: Any) -> dict[str, str]:
    for name, value in _table(table).items():
        if not isinstance(value, str) or not value:
            raise TypeError(f"{name} must be a text, not {value!r}")
    return dict(table)


def _numbers(table: Any) -> dict[str, float]:
    for name, value in _table(table).items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # A threshold may be infinite: nothing is accepted on that evidence.
        if not number or not (isfinite(value) or (isinf(value) and name.startswith("threshold"))):
            raise TypeError(f"{name} must be a number, not {value!r}")
        if name == "std" and value <= 0:
            raise TypeError(f"{name} must be above 0, not {value!r}")
    return dict(table)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a table was expected, not {value!r}")
    return value
