"""`parse-local doctor --model FILE`: which way each kind of file takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from parse_local.cli import main
from parse_local.llama.model import Model
from parse_local.load_options import LoadOptions
from parse_local.memory import CHECKPOINT_BYTES

Tiny = Callable[..., Path]


def look(*arguments: object) -> tuple[int, str]:
    """Exit status and stdout of one call that writes nothing to stderr."""
    done = CliRunner().invoke(main, ["doctor", "--model", *map(str, arguments)])
    assert done.stderr == ""
    return done.exit_code, done.stdout


def report(path: Path) -> dict[str, Any]:
    status, text = look(path, "--json")
    found = json.loads(text)
    assert status == (1 if found["problems"] else 0)
    return dict(found)


def test_a_plain_model(tiny: Tiny) -> None:
    path = tiny(seed=1)
    found = report(path)
    assert found["path"] == str(path)
    assert found["model"]["architecture"] == "llama"
    assert found["model"]["bytes"] == path.stat().st_size
    assert found["model"]["n_ctx_train"] == 8192
    assert found["model"]["n_vocab"] == 271
    assert found["model"]["chat_template"] is True
    assert found["memory"] == {
        "path": "unified",
        "reason": "it is a decoder with attention to every earlier token",
        "can_cut": True,
        "n_swa": 0,
        "state_bytes": 0,
        "max_forks": LoadOptions().max_forks,
        "max_checkpoints": 0,
    }
    assert found["roles"] == {"target": True, "draft": True, "judge": True}
    assert found["notes"] == found["problems"] == []


def test_a_sliding_window(tiny: Tiny) -> None:
    memory = report(tiny(seed=3, architecture="gemma3", n_layer=2))["memory"]
    assert (memory["path"], memory["can_cut"], memory["n_swa"]) == ("sliding window", True, 32)
    assert "the last 32 tokens only" in memory["reason"]


@pytest.mark.parametrize("name", ["mamba", "lfm2", "qwen35"])
def test_a_memory_that_cannot_be_cut(tiny: Tiny, name: str) -> None:
    path = tiny(seed=3, architecture=name, n_layer=2)
    found = report(path)
    memory = found["memory"]
    assert (memory["path"], memory["can_cut"]) == ("checkpoints", False)
    assert (memory["max_forks"], memory["max_checkpoints"]) == (32, 35)
    # A convolution of 3 columns of 128 values, and 16 values for each of them, in two layers.
    if name == "mamba":
        assert 0 <= memory["state_bytes"] - 2 * 4 * (3 * 128 + 16 * 128) < 3 * 10_486
    assert found["roles"] == {"target": True, "draft": True, "judge": True}
    status, text = look(path)
    assert status == 0
    assert "32 at once and 35 checkpoints" in " ".join(text.split())
    assert "decoded again" in " ".join(text.split())


def test_large_states_leave_few_checkpoints(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a state of 128 MiB, as of a large model, leaves of 1 GiB: 8 states.
    from parse_local import room
    from parse_local.llama.memory_kind import StateSize

    monkeypatch.setattr(room, "state_size", lambda _: StateSize(CHECKPOINT_BYTES // 8, 0))
    memory = report(tiny(seed=3, architecture="mamba"))["memory"]
    assert memory["state_bytes"] == CHECKPOINT_BYTES // 8
    assert (memory["max_forks"], memory["max_checkpoints"]) == (2, 5)


def test_without_a_chat_template(tiny: Tiny) -> None:
    found = report(tiny(seed=1, template=None))
    assert found["model"]["chat_template"] is False
    assert "There is no chat template" in found["notes"][0]
    assert found["roles"]["judge"] is True


def test_a_template_that_refuses_the_question(tiny: Tiny) -> None:
    path = tiny(seed=1, template="{{ raise_exception('only in verse') }}")
    found = report(path)
    assert found["roles"] == {"target": True, "draft": True, "judge": False}
    assert "only in verse" in found["notes"][0]
    assert found["memory"]["max_forks"] == 0
    assert "cannot be asked for verdicts" in " ".join(look(path)[1].split())


def test_what_does_not_fit(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny(seed=1)
    needs = report(path)["needs"]
    memory = type("memory", (), {"available": needs - 1})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    status, text = look(path)
    assert status == 1
    assert "✗ This needs about" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"architecture": "t5"}, "is an encoder-decoder model (t5)"),
        ({"architecture": "dream"}, "is a diffusion model (dream)"),
        ({"architecture": "bert", "causal": False}, "is an embedding model (bert)"),
        ({"architecture": "hal9000"}, "'hal9000', which this llama.cpp does not know"),
    ],
)
def test_refused(tiny: Tiny, arguments: dict[str, Any], sentence: str) -> None:
    path = tiny(seed=1, **arguments)
    found = report(path)
    assert found["memory"]["path"] == "refused"
    assert found["roles"] == {"target": False, "draft": False, "judge": False}
    assert len(found["problems"]) == 1
    assert sentence in found["problems"][0]
    status, text = look(path)
    assert status == 1
    assert sentence in " ".join(text.split())


def test_no_model_at_all(tiny: Tiny, tmp_path: Path) -> None:
    cut, text = tmp_path / "cut.gguf", tmp_path / "text.gguf"
    cut.write_bytes(tiny(seed=1).read_bytes()[:-1000])
    text.write_text("This is no model.")
    for path, sentence in (
        (tmp_path / "none.gguf", "There is no file"),
        (cut, "is truncated or damaged; delete it"),
        (text, "is not a GGUF file; convert the model"),
        (tmp_path, "Is a directory"),
    ):
        found = report(path)
        assert len(found["problems"]) == 1
        assert sentence in found["problems"][0]
    assert CliRunner().invoke(main, ["doctor", "--model"]).exit_code == 2


def test_the_weights_are_not_read(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bool] = []
    init = Model.__init__

    def counting(model: Model, path: Path, **options: Any) -> None:
        loaded.append(options["headers_only"])
        init(model, path, **options)

    monkeypatch.setattr(Model, "__init__", counting)
    report(tiny(seed=3, architecture="lfm2", n_layer=2))
    assert loaded == [True]


def test_a_model_of_the_catalogue_that_is_not_here() -> None:
    done = CliRunner().invoke(main, ["doctor", "--model", "qwen3-0.6b-q8_0"])
    assert done.exit_code == 1
    assert "parse-local models pull" in done.output
