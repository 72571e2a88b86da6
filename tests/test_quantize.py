"""Requantising tiny models with llama.cpp's own quantiser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from parse_local.errors import StorageError
from parse_local.llama import quantize
from parse_local.llama.model import Model
from parse_local.llama.quantize import Recipe, requantise

Q4_0 = Recipe("q4_0", "q4_0")
Q8_0 = Recipe("q8_0", "q8_0")


def types(path: Path) -> dict[str, str]:
    """The type of each matrix, by name."""
    tensors = gguf.GGUFReader(path).tensors
    return {t.name: t.tensor_type.name for t in tensors if len(t.shape) > 1}


def made(original: Path, to: Path, recipe: Recipe) -> Path:
    model = Model(original, headers_only=True)
    try:
        requantise(model, to, recipe, n_threads=1)
    finally:
        model.close()
    return to


@pytest.mark.parametrize(
    ("recipe", "body", "output"),
    [
        (Q4_0, "Q4_0", "Q4_0"),
        (Recipe("mixed", "q4_0", "q8_0"), "Q4_0", "Q8_0"),
        (Recipe("output", None, "q8_0"), "F32", "Q8_0"),
    ],
)
def test_each_matrix_gets_its_type(
    tiny: Callable[..., Path], tmp_path: Path, recipe: Recipe, body: str, output: str
) -> None:
    found = types(made(tiny(seed=1), tmp_path / "new.gguf", recipe))
    assert found.pop("token_embd.weight") == output
    assert found.pop("output.weight") == output
    assert set(found.values()) == {body}
    assert [p.name for p in tmp_path.iterdir()] == ["new.gguf"]


def test_a_quantised_file_can_be_requantised(tiny: Callable[..., Path], tmp_path: Path) -> None:
    once = made(tiny(seed=1), tmp_path / "once.gguf", Q8_0)
    assert set(types(made(once, tmp_path / "twice.gguf", Q4_0)).values()) == {"Q4_0"}


@pytest.mark.parametrize("recipe", [Q4_0, Q8_0])
def test_the_estimate_is_near_the_size(
    tiny: Callable[..., Path], tmp_path: Path, recipe: Recipe
) -> None:
    original = tiny(seed=1, n_embd=512)  # wide enough that the header hardly counts
    model = Model(original, headers_only=True)
    estimate = recipe.estimate(model)
    model.close()
    size = made(original, tmp_path / "new.gguf", recipe).stat().st_size
    assert estimate == pytest.approx(size, rel=0.15)


LIMITED = """
import resource, sys
from pathlib import Path
from parse_local.errors import StorageError
from parse_local.llama.model import Model
from parse_local.llama.quantize import Recipe, requantise

original, directory, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    requantise(Model(original), directory / "new.gguf", Recipe("q8_0", "q8_0"), n_threads=1)
except StorageError as error:
    print(error)
print(*(path.name for path in directory.iterdir()), sep=",")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
@pytest.mark.parametrize("limit", [0, 5_000, 60_000])  # nothing, in the header, in the tensors
def test_a_full_disk_leaves_nothing_behind(
    tiny: Callable[..., Path], tmp_path: Path, limit: int
) -> None:
    original = tiny(seed=1)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(original), str(tmp_path), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    sentence, files = done.stdout.splitlines()
    assert sentence.startswith("There is no room left to write ")
    assert sentence.endswith("set PARSE_LOCAL_HOME to a directory on a larger disk.")
    assert files == ""


def test_a_disk_that_is_nearly_full_is_not_begun_to_fill(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "_SLACK", 1 << 60)
    with pytest.raises(StorageError, match="no room left"):
        made(tiny(seed=1), tmp_path / "new.gguf", Q8_0)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made(tiny: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        made(tiny(seed=1), tmp_path / "file" / "new.gguf", Q8_0)
