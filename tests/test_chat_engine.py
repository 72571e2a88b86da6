"""The chat on tiny models: verdicts on its answers, and models that change under it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_chat import chat
from terminal_screen import Terminal

from parse_local import LoadOptions, load_pair
from parse_local.cli_chat import PairLoader
from parse_local.policy import Options
from parse_local.sessions import SessionStore

SETTINGS = {"n_ctx": 512, "n_threads": 1, "kv_type": "f32", "flash_attn": "off", "spec": "none"}


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PairLoader:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path))
    unset = ("spec_model", "pair", "draft", "target", "profile")
    return PairLoader({**dict.fromkeys(unset), **SETTINGS, "verbose": False})


def test_verify_draws_verdicts_and_thresholds(
    load: Callable[..., Any], tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = load(draft=tiny(seed=2, weights_from=1), target=tiny(seed=1))
    options = Options(strategy="parse", accept="exact", max_tokens=12, tau_full=0.25)
    chat(engine, "hello\r/verify\rmore\r", options, system="S")
    err = capsys.readouterr().err
    (row,) = re.findall(r"^[│·] .* (0\.\d{3}|1\.000)!?$", err, re.MULTILINE)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hello"}]
    text = engine.generate(messages, options).text
    judged = engine.verify(messages, text, options=Options(accept="semantic"))
    assert row == f"{judged.boundaries[-1].p_correct:.3f}"
    assert "tau 0.25 whole" in err


def test_verify_says_at_a_terminal_that_it_judges(
    load: Callable[..., Any], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(draft=tiny(seed=2, weights_from=1), target=tiny(seed=1))
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    chat(engine, "hello\r/verify\r", Options(strategy="target", max_tokens=6))
    assert "Judging…" in "".join(screen.sent)
    assert "Judging" not in screen.screen.text()


def test_models_change_under_a_conversation(
    loader: PairLoader,
    tiny: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two = tiny(seed=1), tiny(seed=3)
    engine = load_pair(draft=one, target=one, options=LoadOptions(**SETTINGS))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing else")
    store = SessionStore(tmp_path / "sessions.db")
    options = Options(strategy="target", max_tokens=6)
    keys = f"hello\r/model {broken} {broken}\r/regen\r/model {two} {two}\r/regen\r"
    models = {"draft": str(one), "target": str(one)}
    chat(engine, keys, options, loader=loader, models=models, store=store)

    shown = capsys.readouterr()
    assert "broken.gguf" in shown.err
    assert f"Loaded {two.stem}; the conversation goes on with it." in shown.err
    other = load_pair(draft=two, target=two, options=LoadOptions(**SETTINGS))
    question = [{"role": "user", "content": "hello"}]
    expected = other.generate(question, options).text
    other.close()
    session = store.find()
    assert store.messages(session.id)[1].content == expected
    assert session.models == {"draft": str(two), "target": str(two)}
