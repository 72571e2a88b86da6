"""The documentation says what the code does, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from script_loader import ROOT, load_script

from parse_local import errors
from parse_local.catalog import load_catalog
from parse_local.hub import format_size
from parse_local.policy import DEFAULT_PAIR, STRATEGIES

DOCS = ROOT / "docs"
PACKAGE = ROOT / "parse_local"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "ggml_patches" / "README.md"])
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


@pytest.mark.parametrize("name", ["write_cli_docs", "write_api_docs"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    generator = load_script(name)
    from generated_docs import stale

    differences = stale(generator.PAGE, generator.render())
    repair = f"{generator.PAGE.name} is stale; run: .venv/bin/python scripts/{name}"
    assert not differences, "\n".join([repair, *differences[:40]])


def test_a_changed_page_is_found(tmp_path: Path) -> None:
    load_script("write_cli_docs")
    from generated_docs import stale

    page = tmp_path / "cli.md"
    assert stale(page, "a\n")
    page.write_text("a\nb\n")
    assert not stale(page, "a\nb\n")
    assert [line for line in stale(page, "a\nc\n") if line[:2] in ("-b", "+c")] == ["-b", "+c"]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        n = sum(a == anchor or a.startswith(f"{anchor}~") for a in found)
        found.append(f"{anchor}~{n}" if n else anchor)
    return {a.replace("~", "-") for a in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    lost = []
    for match in LINK.finditer(text):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        place = page.parent / path if path else page
        known = anchors(place) if anchor and place.suffix == ".md" and place.exists() else {anchor}
        if not place.exists() or anchor not in known:
            lost.append(link)
    assert not lost


def test_the_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    missing = [p.name for p in DOCS.glob("*.md") if f"({p.name})" not in index]
    assert missing == ["README.md"]


def test_every_error_has_a_remedy() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE))
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ParseLocalError)
    }
    assert set(rows) == set(classes)
    for name, row in rows.items():
        meaning, remedy = row.split("|")
        assert meaning.strip()
        assert remedy.strip()
        status = re.search(r"\((\d+)\) *$", meaning)
        assert (int(status[1]) if status else 1) == classes[name].exit_status, name


def test_every_pair_is_listed_with_its_licences() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([\w.-]+)`(?: \((default)\))? \| (.*) \| (.*) \| (.*) \| (yes|no) \|$",
        text,
        re.MULTILINE,
    )
    pairs = load_catalog().pairs
    assert [row[0] for row in rows] == list(pairs)
    for name, default, models, size, licence, tested in rows:
        pair = pairs[name]
        assert bool(default) == (name == DEFAULT_PAIR)
        draft, target = models.split(" → ")
        assert (draft, target) == (pair.draft.parameters, pair.target.parameters)
        assert size == format_size(pair.draft.size + pair.target.size)
        assert all(model.licence in licence for model in (pair.draft, pair.target))
        assert (tested == "yes") == pair.tested


def test_every_strategy_is_documented() -> None:
    text = (DOCS / "strategies.md").read_text(encoding="utf-8")
    assert [name for name in STRATEGIES if f"`{name}`" not in text] == []


def test_the_house_map_names_what_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./]+(?:\.py|/))`", text)
    assert len(named) > 50
    assert [n for n in named if not any((top / n).exists() for top in (ROOT, PACKAGE))] == []
    # And all of the package's own directories, but those that the build fills.
    parts = [p.parent.name for p in PACKAGE.glob("*/__init__.py")]
    assert [part for part in parts if f"`{part}/`" not in text] == []
