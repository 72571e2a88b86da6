"""What a run of `tune` knows about one file: settings, what was made of it, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parse_local.costs import SIZES, CostCurve
from parse_local.fingerprint import fingerprint
from parse_local.llama.model import Model
from parse_local.llama.quantize import Recipe
from parse_local.load_options import FlashAttention
from parse_local.tune import store
from parse_local.tune.check import Quality, Role
from parse_local.tune.measure import Speeds, Subject
from parse_local.tune.store import Candidate, Record, Requantised, Setting


@dataclass(frozen=True)
class Request:
    """One file to tune.

    Args:
        path: the file.
        n_gpu_layers: of its layers on the GPU, the output layer counted.
        requantise: look for a faster quantisation of it.
        n_threads: CPU threads, None to find out how many are fastest.
    """

    path: Path
    n_gpu_layers: int
    requantise: bool
    n_threads: int | None = None


def decode_name(role: Role, n: int, rows: bool) -> str:
    """What a timed decode is called."""
    return f"{role}, {n} tokens" + (", every row" if rows else "")


def decodes(role: Role) -> Iterator[tuple[int, bool]]:
    """Decodes whose cost is measured: tokens, and whether each has an output row."""
    for n in SIZES:
        yield n, False
        if role == "target" and n > 1:  # one token has one row either way
            yield n, True


class Found:
    """What is known about one file so far, and what was made of it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.subject: Subject  # the original, with the settings that were chosen
        self.token_s = 0.0  # of a token in a decode of `WINDOW`, roughly
        self.n_threads = 0
        self.flash_attn: FlashAttention = "auto"
        self.speeds = Speeds()
        self.settings: list[Setting] = []
        self.candidates: list[Candidate] = []
        self.requantised: Requantised | None = None
        self.part_path: Path | None = None
        self._parts: list[Path] = []
        self._fingerprint = fingerprint(request.path)

    @property
    def path(self) -> Path:
        """The file that is used from now on."""
        return self.part_path or self.request.path

    @property
    def chosen_settings(self) -> dict[str, Any]:
        """As arguments of `Context`."""
        return {"n_threads": self.n_threads, "flash_attn": self.flash_attn}

    def expected(self, role: Role) -> dict[str, float]:
        """Seconds that the decodes of the cost curves will take, roughly."""
        return {decode_name(role, n, rows): n * self.token_s for n, rows in decodes(role)}

    def load(self, stack: ExitStack, path: Path) -> Model:
        """Load a file where the original would be placed."""
        model = Model(path, n_gpu_layers=self.request.n_gpu_layers)
        stack.callback(model.close)
        return model

    def part(self, role: Role, recipe: Recipe) -> Path:
        """Where a requantisation lies until it is known to be of use."""
        path = store.requantised_path(role, self.request.path, self._fingerprint, recipe.name)
        self._parts.append(store.part_of(path))
        return self._parts[-1]

    def choose(self, role: Role, recipe: Recipe, part: Path) -> None:
        """A requantisation takes the original's place."""
        path = store.requantised_path(role, self.request.path, self._fingerprint, recipe.name)
        self.part_path = part
        self.requantised = Requantised(recipe.name, path.name, part.stat().st_size)

    def keep(self) -> None:
        """Give the chosen file its name."""
        if self.requantised is not None and self.part_path is not None:
            self.part_path.replace(self.requantised.path)

    def tidy(self) -> None:
        """Remove what has no name."""
        for part in self._parts:
            part.unlink(missing_ok=True)

    def note(
        self,
        recipe: Recipe,
        n_bytes: int,
        verdict: str,
        *,
        speed: float | None = None,
        quality: Quality | None = None,
    ) -> None:
        """Write down what became of a requantisation."""
        self.candidates.append(Candidate(recipe.name, n_bytes, speed, quality, verdict))

    def record(self, role: Role, seconds: Mapping[str, float]) -> Record:
        """The result, with the curves out of what `in_turns` measured."""

        def curve(rows: bool) -> CostCurve:
            names = {n: decode_name(role, n, rows and n > 1) for n in SIZES}
            return CostCurve.through({n: seconds[k] for n, k in names.items() if k in seconds})

        return Record(
            role=role,
            file=self.request.path.name,
            fingerprint=self._fingerprint,
            machine=store.machine(),
            n_gpu_layers=self.request.n_gpu_layers,
            n_threads=self.n_threads,
            flash_attn=self.flash_attn,
            bare=curve(False),
            rows=curve(True) if role == "target" else None,
            speeds=self.speeds,
            settings=tuple(self.settings),
            candidates=tuple(self.candidates),
            requantised=self.requantised,
        )
