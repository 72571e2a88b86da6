"""Results of `tune`: made on tiny models, kept, found again, used by `load_pair`, removed."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from parse_local import load_pair
from parse_local.cli import main
from parse_local.costs import SIZES, CostCurve, PairCosts
from parse_local.errors import Cancelled
from parse_local.fingerprint import fingerprint
from parse_local.llama.quantize import Recipe
from parse_local.load_options import LoadOptions
from parse_local.paths import tune_dir
from parse_local.tune import store
from parse_local.tune.apply import Tuned, look_up
from parse_local.tune.check import Quality, Role
from parse_local.tune.found import Request
from parse_local.tune.measure import WINDOW, Speeds
from parse_local.tune.report import bounds, print_report
from parse_local.tune.store import Candidate, Record, Requantised, Setting
from parse_local.tune.tuner import RECIPES, Tuner

BARE = CostCurve(((1, 0.02), (16, 0.16), (512, 4.0)))
ROWS = CostCurve(((1, 0.02), (16, 0.20), (512, 5.0)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def record(role: Any, path: Path, **values: Any) -> Record:
    return dataclasses.replace(
        Record(
            role=role,
            file=path.name,
            fingerprint=fingerprint(path),
            machine=store.machine(),
            n_gpu_layers=0,
            n_threads=1,
            flash_attn="off",
            bare=BARE,
            rows=ROWS if role == "target" else None,
            speeds=Speeds(1.25, 1.5, 1.375),
            settings=(Setting(1, "off", "f16", 1.2),),
            candidates=(Candidate("q4_0", 7, 1.5, Quality(0.5, 1.25), "agrees in 50.0%"),),
        ),
        **values,
    )


def files() -> set[str]:
    return {path.suffix for path in tune_dir().glob("*")}


# keeping and finding


def test_a_record_is_found_again_wherever_its_file_went(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    path = tiny(seed=1)
    kept = record("target", path)
    store.save(kept)
    moved = Path(shutil.copy(path, tmp_path / "elsewhere.gguf"))
    os.utime(moved, (1, 1))
    assert store.find("target", path) == kept
    assert store.find("target", moved) == kept
    assert store.find("draft", path) is None
    assert store.find("target", tiny(seed=2)) is None


def test_a_record_of_a_changed_file_or_another_machine_is_ignored(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(tiny(seed=1), tmp_path / "target.gguf"))
    store.save(record("target", path))
    with monkeypatch.context() as m:
        m.setattr(store, "machine", lambda: "another")
        assert store.find("target", path) is None
        (note,) = look_up({"target": path}, LoadOptions()).notes
        assert note == (
            "What was tuned for the target holds for another machine or build of llama.cpp; "
            "`parse-local tune` measures this one."
        )
        assert store.reset([("target", path)]) > 0
        assert look_up({"target": path}, LoadOptions()).notes == ()
    store.save(record("target", path))
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    assert store.find("target", path) is None
    assert look_up({"target": path}, LoadOptions()) == Tuned({"target": path})


def test_results_are_of_the_patches_that_there_are() -> None:
    patches = sorted((Path(__file__).parent.parent / "ggml_patches").glob("*.patch"))
    assert len(patches) >= 6
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in patches))
    assert digest.hexdigest()[:8] == store.PATCHES  # patched anew: what was tuned holds no more


def test_a_record_whose_requantised_file_is_gone_is_ignored(tiny: Callable[..., Path]) -> None:
    path = tiny(seed=1)
    tune_dir().mkdir(parents=True)
    new = store.requantised_path("draft", path, fingerprint(path), "q4_0")
    new.write_bytes(b"1234567")
    store.save(record("draft", path, requantised=Requantised("q4_0", new.name, 7)))
    found = look_up({"draft": path}, LoadOptions())
    assert found.paths == {"draft": new}
    assert found.notes == (
        "Tuned for this machine: the draft runs as q4_0; --no-tuned leaves it as it was.",
    )
    assert look_up({"draft": path}, LoadOptions(tuned=False)) == Tuned({"draft": path})
    new.write_bytes(b"123456")
    assert look_up({"draft": path}, LoadOptions()) == Tuned({"draft": path})


def test_saving_anew_removes_the_requantised_file_of_before(tiny: Callable[..., Path]) -> None:
    path = tiny(seed=1)
    tune_dir().mkdir(parents=True)
    of = fingerprint(path)
    old, new = (store.requantised_path("draft", path, of, r) for r in ("q4_0", "q8_0"))
    for file in (old, new):
        file.write_bytes(b"1234567")
    store.save(record("draft", path, requantised=Requantised("q8_0", new.name, 7)))
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "\x00", '{"version": 1, "ro'])
def test_a_broken_result_is_one_note(tiny: Callable[..., Path], text: str) -> None:
    paths = {"draft": tiny(seed=2), "target": tiny(seed=1)}
    for role, path in paths.items():
        store.save(record(role, path))
    for result in tune_dir().iterdir():
        result.write_text(text)
    found = look_up(paths, LoadOptions())
    assert found.paths == paths
    (note,) = found.notes
    assert note.startswith("The result of `parse-local tune` in ")
    assert note.endswith("`parse-local tune --reset` removes it.")


def test_a_result_of_another_layout_is_ignored(tiny: Callable[..., Path]) -> None:
    path = tiny(seed=1)
    store.save(record("target", path))
    (result,) = tune_dir().iterdir()
    result.write_text(json.dumps({**json.loads(result.read_text()), "version": 0}))
    assert look_up({"target": path}, LoadOptions()) == Tuned({"target": path})


def test_reset_of_some_files_leaves_the_others(tiny: Callable[..., Path]) -> None:
    one, other = tiny(seed=1), tiny(seed=2)
    store.save(record("target", one))
    store.save(record("target", other))
    tune_dir().joinpath("killed.gguf.123.part").write_bytes(b"12345")
    assert store.reset([("target", one)]) > 0
    assert store.find("target", one) is None
    assert store.find("target", other) is not None
    assert store.reset() > 5
    assert not list(tune_dir().iterdir())


def test_only_what_no_process_writes_any_more_is_left_over() -> None:
    tune_dir().mkdir(parents=True)
    mine = store.part_of(tune_dir() / "a.gguf")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = [mine.name, f"b.gguf.{gone.pid}.part", "c.part"]
    for name in names:
        (tune_dir() / name).touch()
    store.remove_leftovers()
    assert [path.name for path in tune_dir().iterdir()] == [mine.name]


# what a record changes


def test_the_users_own_choice_comes_first(tiny: Callable[..., Path]) -> None:
    found = Tuned({}, {"target": record("target", tiny(seed=1), n_threads=3)})
    settings = found.settings
    assert settings("target", LoadOptions(), 0) == (3, "off")
    assert settings("target", LoadOptions(n_threads=2), 0) == (2, "off")
    assert settings("target", LoadOptions(flash_attn="on"), 0) == (3, "on")
    # A quantised cache needs flash attention, which was measured with another cache.
    assert settings("target", LoadOptions(kv_type="q8_0"), 0) == (3, "auto")
    assert settings("target", LoadOptions(), 5) == (None, "auto")  # elsewhere than measured
    assert settings("draft", LoadOptions(n_threads=2), 0) == (2, "auto")


def test_costs_hold_only_for_what_was_measured(tiny: Callable[..., Path]) -> None:
    draft, target = record("draft", tiny(seed=2)), record("target", tiny(seed=1))
    found = Tuned({}, {"draft": draft, "target": target})
    here = {"draft": 0, "target": 0}
    costs = PairCosts(BARE, ROWS, BARE)
    assert found.costs(LoadOptions(), here) == costs
    assert found.costs(LoadOptions(n_threads=1, flash_attn="off"), here) == costs
    assert found.costs(LoadOptions(n_threads=2), here) is None
    assert found.costs(LoadOptions(flash_attn="on"), here) is None
    assert found.costs(LoadOptions(kv_type="q8_0"), here) is None
    assert found.costs(LoadOptions(), {"draft": 9, "target": 0}) is None
    assert found.costs(LoadOptions(), {"target": 0}) is None
    assert Tuned({}, {"target": target}).costs(LoadOptions(), here) is None


def test_the_gain_before_and_after(tiny: Callable[..., Path]) -> None:
    draft = record("draft", tiny(seed=2), bare=CostCurve(((1, 0.01),)), speeds=Speeds(2.0))
    target = record("target", tiny(seed=1))
    assert bounds({"target": target}) is None
    found = bounds({"draft": draft, "target": target})
    # After: 20 / (10 + 200/16) ms. Before: 1.25 * 20 / (2 * 10 + 1.5 * 200/16) ms. The best
    # window is 512: 5000/512 ms a token.
    assert found == {
        "before": pytest.approx(25 / (20 + 18.75)),
        "after": pytest.approx(20 / 22.5),
        "best": pytest.approx(20 / (10 + 5000 / 512)),
    }


def test_faster_caches_are_shown_and_left_to_the_user(tiny: Callable[..., Path]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    settings = (
        Setting(2, "auto", "f16", 1.0),
        Setting(1, "auto", "f16", 1.2),
        Setting(1, "off", "f16", 1.1),
        Setting(1, "auto", "q8_0", 1.5),
    )
    known = record("target", tiny(seed=1), settings=settings, flash_attn="auto")
    print_report({"target": known}, console)
    shown = console.export_text()
    assert "The target would run at 1.25x with a q8_0 KV cache" in shown
    assert "--kv-type q8_0" in shown
    assert "--flash-attn" not in shown
    # A little faster than that, it would have been taken if it rounded as the other does.
    exact = dataclasses.replace(known, settings=(*settings, Setting(1, "off", "f16", 1.32)))
    print_report({"target": exact}, console)
    assert "The target would run at 1.10x with other attention" in console.export_text()
    # 20 ms written, 200 ms / 16 verified; before 1.25 and 1.5 times as much.
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("target  ")][:1]
    assert row == ["target", "it", "is", "1", "auto", "25", "→", "20", "18.8", "→", "12.5"]


# the real thing


def invoke(*arguments: Any) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def pair(tiny: Callable[..., Path]) -> list[str]:
    """A draft that is far larger than it has to be, so that any quantisation is faster."""
    draft = tiny(seed=2, weights_from=1, n_embd=512, n_layer=2)
    return ["--draft", str(draft), "--target", str(tiny(seed=1))]


TIME_ENOUGH = ("--budget", "1000", "--threads", "1")


@pytest.fixture
def tuned(pair: list[str]) -> Iterator[dict[str, Any]]:
    done = invoke("tune", *pair, *TIME_ENOUGH, "--json")
    assert done.exit_code == 0, done.output
    yield json.loads(done.stdout)
    store.reset()


def test_tune_from_end_to_end(pair: list[str], tuned: dict[str, Any]) -> None:
    draft, target = tuned["draft"], tuned["target"]
    verdicts = {c["recipe"]: c["verdict"] for c in draft["candidates"]}
    # Random weights in 4 bits say something else; in 8 bits they mostly say the same.
    assert verdicts["q4_0"].startswith(("agrees in", "a faster one"))
    assert draft["requantised"]["recipe"] == "q8_0"
    assert verdicts["q8_0"] == "used"
    assert draft["speeds"]["decode"] > 1.05
    assert target["requantised"] is None
    assert target["candidates"] == []
    for curve in (draft["bare"], target["bare"], target["rows"]):
        assert [n for n, _ in curve] == list(SIZES)
    assert draft["rows"] is None
    assert files() == {".json", ".gguf"}
    assert len(list(tune_dir().iterdir())) == 3

    # Known files are not measured again.
    before = tune_dir().stat().st_mtime_ns
    shown = invoke("tune", *pair)
    assert tune_dir().stat().st_mtime_ns == before
    assert shown.stderr.startswith("Measured before;")
    assert "Milliseconds a token" in shown.stdout
    assert "If every drafted token is accepted" in shown.stdout

    # load_pair uses what was found.
    paths = {"draft": pair[1], "target": pair[3]}
    engine = load_pair(**paths, n_ctx=512)
    assert engine.draft is not None
    assert engine.draft.model.path == tune_dir() / draft["requantised"]["file"]
    assert engine.draft.context.n_threads == draft["n_threads"]
    assert engine.notes == (
        "Tuned for this machine: the draft runs as q8_0; --no-tuned leaves it as it was.",
    )
    assert engine.costs is not None
    assert engine.costs.to_json() == {
        "draft": draft["bare"],
        "target": target["rows"],
        "target_bare": target["bare"],
    }
    engine.close()
    engine = load_pair(**paths, n_ctx=512, tuned=False)
    assert engine.draft is not None
    assert engine.draft.model.path == Path(pair[1])
    assert (engine.notes, engine.costs) == ((), None)
    engine.close()

    # So do the commands, and they say so.
    run = ("run", *pair, "--ctx", 512, "--max-tokens", 3, "hello")
    assert "Note: Tuned for this machine" in invoke(*run).stderr
    assert "Note" not in invoke(*run, "--no-tuned").stderr

    assert "freed" in invoke("tune", "--reset", *pair).stderr
    assert not list(tune_dir().iterdir())
    assert "Note" not in invoke(*run).stderr


def test_a_requantised_target_is_announced_as_another_model(pair: list[str]) -> None:
    path = Path(pair[1])
    request = Request(path, n_gpu_layers=0, requantise=True, n_threads=1)
    recipes = [Recipe("q8_0", "q8_0")]
    # The time of this process, so that what else the machine does is not in it.
    tuner = Tuner({"target": request}, budget_s=1000, recipes=recipes, clock=time.process_time)
    list(tuner.run())
    found = look_up({"target": path}, LoadOptions())
    assert found.paths["target"].name == f"{path.stem}.q8_0.target-{fingerprint(path)}.gguf"
    assert found.notes == (
        "Tuned for this machine: the target runs as q8_0, which changes the answers; "
        "--no-tuned leaves it as it was.",
    )
    (candidate,) = tuner.records["target"].candidates
    assert candidate.verdict == "used"
    assert candidate.n_bytes == found.paths["target"].stat().st_size


def test_without_time_only_what_matters_most_is_measured(pair: list[str]) -> None:
    requests: dict[Role, Request] = {
        "draft": Request(Path(pair[1]), n_gpu_layers=0, requantise=True, n_threads=1),
        "target": Request(Path(pair[3]), n_gpu_layers=0, requantise=False, n_threads=1),
    }
    tuner = Tuner(requests, budget_s=1e-9)
    list(tuner.run())
    draft, target = tuner.records["draft"], tuner.records["target"]
    assert target.rows is not None
    for curve in (draft.bare, target.bare, target.rows):
        assert [n for n, _ in curve.points] == [n for n in SIZES if n <= WINDOW]
    assert [s.kv_type for s in draft.settings + target.settings] == ["f16"] * 2
    late = {c.recipe for c in draft.candidates if c.verdict == "not made: no time left"}
    assert late == {recipe.name for recipe in RECIPES[1:]}
    # The rest of the curves is shown as what it is.
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(tuner.records, console)
    for line in console.export_text().splitlines():
        if line.split()[1:2] == ["tokens"]:
            n, _, *shown = line.split()
            assert [text.startswith("~") for text in shown] == [int(n) > WINDOW] * 3
    store.reset()


def test_stopping_leaves_nothing_behind(pair: list[str]) -> None:
    request = Request(Path(pair[1]), n_gpu_layers=0, requantise=True, n_threads=1)
    tuner = Tuner({"draft": request}, budget_s=1000.0)
    steps = tuner.run()
    while "comparing" not in next(steps).text:
        pass
    assert files() == {".part"}
    tuner.cancel()
    with pytest.raises(Cancelled):
        list(steps)
    assert not list(tune_dir().iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_ctrl_c_ends_quietly_and_leaves_nothing(pair: list[str]) -> None:
    command = [sys.executable, "-m", "parse_local.cli", "tune", *pair, *TIME_ENOUGH]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(tune_dir().glob("*.part")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "Interrupted.\n")
    assert not list(tune_dir().iterdir())


def test_reset_of_nothing() -> None:
    done = invoke("tune", "--reset")
    assert (done.exit_code, done.stderr) == (0, "Removed everything (0 bytes freed).\n")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
from parse_local.cli import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(pair: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "tune", *pair, *TIME_ENOUGH],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: There is no room left to write ")
    assert done.stderr.count("\n") == 1
    assert not list(tune_dir().iterdir())
