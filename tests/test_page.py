"""The server's page, in headless Chromium: with the real server, and with scripted answers.

Scripted are only answers that no tiny model writes: Markdown, verdicts, errors, attacks.
Every page that a test opens is watched: it may log no error and send no request elsewhere.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from serving import Running, serving, until
from tiny_gguf import READABLE

from parse_local import Options, load_pair
from parse_local.policy import STRATEGIES, AcceptMode

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip)")
from axe_playwright_python.sync_playwright import Axe  # noqa: E402

Page = sync_api.Page
expect = sync_api.expect

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt install chromium)")

USAGE = {
    "prompt_tokens": 42,
    "completion_tokens": 212,
    "prompt_tokens_details": {"cached_tokens": 12},
    "parse": {
        "strategy": "parse",
        "accept": "semantic",
        "accepted_share": 0.824,
        "tokens_per_second": 31.44,
        "speedup": 1.92,
        "n_rounds": 2,
        "tokens": {"draft_decoded": 1260, "target_decoded": 280, "suffix_decoded": 90},
        "timings": {
            "prompt_s": 0.5,
            "draft_s": 2.0,
            "verify_s": 1.0,
            "fork_s": 0.25,
            "target_s": 1.0,
            "total_s": 5.0,
            "ttft_s": 0.9,
        },
    },
}

# servers and pages


@pytest.fixture(scope="module")
def pair(tiny: Callable[..., Path]) -> Callable[[], Any]:
    """Loads a pair that writes readable text and never ends by itself."""
    files = {
        "target": tiny(seed=1, bias=READABLE),
        "draft": tiny(seed=3, weights_from=1, bias=READABLE),
    }
    settings: dict[str, Any] = {"kv_type": "f32", "flash_attn": "off", "spec": "none"}
    return lambda: load_pair(**files, n_ctx=8192, n_threads=1, **settings)


@pytest.fixture(scope="module")
def server(pair: Callable[[], Any]) -> Iterator[Running]:
    options = Options(strategy="parse", accept="exact", window=8, max_tokens=48)
    with serving(pair, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def new_page(browser: Any, server: Running) -> Iterator[Callable[..., Page]]:
    """Opens a page of its own storage; closed and checked after the test."""
    contexts, errors, requests = [], [], []

    def new(url: str = "", **arguments: Any) -> Page:
        arguments = {"viewport": {"width": 900, "height": 700}, **arguments}
        contexts.append(browser.new_context(**arguments))
        page: Page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if bad(message) else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(url or server.url)
        return page

    def bad(message: Any) -> bool:
        # Chromium itself logs answers that are errors; the page has to cope with them.
        return message.type == "error" and "Failed to load resource" not in message.text

    yield new
    for context in contexts:
        context.close()
    assert errors == []
    here = re.compile(r"(http://127\.0\.0\.1:\d+/|data:|blob:http://127)")
    assert [url for url in requests if not here.match(url)] == []


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    return new_page()


def chunk(text: str | None = None, source: str = "target", **more: Any) -> dict[str, Any]:
    """A chunk with a piece of final text, or with `parse` alone."""
    delta = {} if text is None else {"content": text}
    parse = {"parse": {"event": "text", "source": source}} if text is not None else {}
    finish = more.pop("finish_reason", None)
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **parse, **more}


def drafted(text: str, channel: str = "answer") -> dict[str, Any]:
    return chunk(parse={"event": "drafted", "text": text, "n_draft": 1, "channel": channel})


def decided(kept: str, dropped: str, **round: Any) -> list[dict[str, Any]]:
    """The chunks of a round: a token a word."""
    n_accept = len(kept.split())
    found = {
        "n_draft": len((kept + dropped).split()),
        "n_exact": n_accept,
        "n_accept": n_accept,
        "boundaries": [],
        "p_correct": [],
        "label_mass": [],
        "n_chars": [],
        "n_accept_chars": len(kept),
        **round,
    }
    chunks = [chunk(parse={"event": "verified", "round": found, "text": kept + dropped})]
    if kept:
        chunks.append(chunk(parse={"event": "accepted", "n_accept": n_accept, "text": kept}))
    if dropped:
        n = len(dropped.split())
        chunks.append(chunk(parse={"event": "rolled_back", "n_tokens": n, "text": dropped}))
    return chunks + ([chunk(kept, "draft")] if kept else [])


# Two rounds: the first is kept up to its second boundary, the second whole.
JUDGED = [
    drafted("Mutexes lock. They 🎉 work always."),
    *decided(
        "Mutexes lock. They 🎉 work",
        " always.",
        boundaries=[2, 5, 6],
        p_correct=[0.981, 0.964, 0.412],
        label_mass=[0.99, 0.99, 0.85],
        n_chars=[13, 25, 33],
    ),
    chunk(" well.", "target"),
    *decided(" Use them.", ""),
]


def answering(page: Page, *chunks: dict[str, Any], status: int = 200, **more: Any) -> list[Any]:
    """Answers the page's questions with these chunks; returns the questions' bodies."""
    asked: list[Any] = []
    if status == 200:
        done = [chunk(finish_reason="stop"), {"choices": [], "usage": USAGE}]
        ended = any("error" in c for c in chunks)
        data = [json.dumps(c) for c in (*chunks, *([] if ended else done))]
        body = "".join(f"data: {d}\n\n" for d in (*data, *([] if ended else ["[DONE]"])))
        more["content_type"] = "text/event-stream"
    else:
        body = json.dumps({"error": {"message": "It cannot be done."}})

    def answer(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(status=status, body=body, **more)

    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", answer)
    return asked


def ask(page: Page, question: str = "hello there") -> None:
    """Asks by keyboard and waits for the answer's end."""
    n = page.locator(".answer:not(.live)").count()
    page.locator("#question").fill(question)
    page.locator("#question").press("Enter")
    expect(page.locator(".answer:not(.live)")).to_have_count(n + 1)


def saved(page: Page) -> list[dict[str, Any]]:
    """The messages of the only session."""
    keys = "Object.keys(localStorage).filter(k => k.startsWith('parse-local.session.'))"
    (session,) = page.evaluate(f"{keys}.map(k => JSON.parse(localStorage.getItem(k)))")
    return session["messages"]


# with the real server


def test_an_answer_is_streamed_and_kept(page: Page, server: Running) -> None:
    question = [{"role": "user", "content": "hello there"}]
    with server.client() as client:
        expected = client.post("/v1/chat/completions", json={"messages": question}).json()
    ask(page)
    answer = saved(page)[1]
    assert answer["content"] == expected["choices"][0]["message"]["content"]
    assert sum(length for length, _ in answer["spans"]) == len(answer["content"])
    assert {source for _, source in answer["spans"]} == {"draft", "target"}
    own = expected["usage"]["parse"]
    assert answer["usage"]["parse"]["tokens"]["accepted"] == own["tokens"]["accepted"]
    assert sum("round" in mark for mark in answer["marks"]) == own["n_rounds"]
    expect(page.locator(".stats")).to_contain_text("48 tokens · ")
    expect(page.locator("#context")).to_contain_text(" of 8,192 tokens")
    expect(page.locator("#model")).to_have_text(server.worker.engine.pair_name)


def test_escape_stops_and_what_is_final_stays(page: Page, server: Running) -> None:
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Most tokens of an answer").fill("8000")
    page.keyboard.press("Escape")
    page.locator("#question").fill("Go on for long.")
    page.locator("#question").press("Enter")
    expect(page.locator(".live .tail")).to_have_text(re.compile(".{100}", re.DOTALL))
    page.keyboard.press("Escape")
    expect(page.locator(".answer:not(.live)")).to_contain_text("stopped")
    answer = saved(page)[1]
    assert answer["finish"] == "cancelled"
    assert len(answer["content"]) > 100
    assert page.locator("#send").is_visible()
    until(lambda: server.worker.n_running == 0)  # it has not gone on without a reader


def test_a_key_is_asked_for_where_the_server_wants_one(
    new_page: Callable[..., Page], pair: Callable[[], Any]
) -> None:
    with serving(pair, api_key="correct horse") as guarded:
        page = new_page(guarded.url)
        field = page.locator("#asked-key")
        field.fill("wrong")
        field.press("Enter")
        expect(page.locator("#key-refused")).to_be_visible()
        field.fill("correct horse")
        field.press("Enter")
        expect(page.locator("#ask-key")).to_be_hidden()
        ask(page)
        assert len(saved(page)) == 2
        page.reload()
        ask(page, "Again.")  # the tab still has it
        assert len(saved(page)) == 4
        assert "correct horse" not in page.evaluate("JSON.stringify(localStorage)")


def test_regenerating_replaces_the_answer(page: Page) -> None:
    ask(page)
    before = saved(page)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".live")).to_have_count(0)
    expect(page.locator(".answer")).to_have_count(1)
    after = saved(page)
    assert [m["content"] for m in after] == [m["content"] for m in before]  # greedy
    assert after[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


# what is sent


def test_the_last_question_can_be_edited(page: Page) -> None:
    asked = answering(page, chunk("Four."))
    ask(page, "What is 1 + 1?")
    ask(page, "And 2 + 2?")
    page.get_by_role("button", name="Edit").click()
    expect(page.locator("#question")).to_have_value("And 2 + 2?")
    page.locator("#question").press("Escape")  # leaves it as it was
    expect(page.locator("#question")).to_have_value("")
    page.get_by_role("button", name="Edit").click()
    page.locator("#question").fill("And 3 + 1?")
    page.locator("#question").press("Enter")
    expect(page.locator(".said")).to_have_text(["What is 1 + 1?", "And 3 + 1?"])
    expect(page.locator(".live")).to_have_count(0)
    assert asked[-1]["messages"] == [
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "And 3 + 1?"},
    ]
    assert len(saved(page)) == 4


def test_options_are_sent_and_kept(page: Page) -> None:
    asked = answering(page, chunk("Yes."))
    ask(page)
    assert asked[0]["parse"] == {"events": True}  # the rest is the server's to choose
    assert not {"temperature", "max_tokens"} & set(asked[0])
    page.get_by_role("button", name="Options").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Strategy").select_option("parse")
    page.get_by_label("Acceptance").select_option("semantic")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Most tokens of an answer").fill("64")
    page.get_by_label("Let models that can think do so").check()
    page.keyboard.press("Escape")
    page.reload()
    answering(page, chunk("Yes."))
    asked = answering(page, chunk("Yes."))
    ask(page, "And now?")
    assert asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    own = {"events": True, "strategy": "parse", "accept": "semantic", "thinking": True}
    assert asked[0]["parse"] == own
    assert (asked[0]["temperature"], asked[0]["max_tokens"]) == (0.5, 64)


def test_the_panel_has_all_strategies_and_modes(page: Page) -> None:
    def choices(name: str) -> list[str]:
        options = page.locator(f"#{name} option")
        values: list[str] = options.evaluate_all("options => options.map(o => o.value)")
        return values

    assert choices("strategy") == ["", *STRATEGIES]
    assert choices("accept") == ["", *get_args(AcceptMode)]


# what goes wrong


def test_a_busy_server_says_how_long_to_wait(page: Page) -> None:
    answering(page, status=429, headers={"Retry-After": "1"})
    page.locator("#question").fill("Anyone?")
    page.locator("#question").press("Enter")
    expect(page.locator("#notice")).to_contain_text("busy")
    expect(page.locator("#notice")).to_contain_text("Ask again in 1 s.")
    again = page.locator("#notice").get_by_role("button", name="Ask again")
    expect(again).to_be_disabled()
    asked = answering(page, chunk("Here."))
    expect(again).to_be_enabled()
    again.click()
    expect(page.locator(".answer .text")).to_have_text("Here.")
    assert asked[0]["messages"] == [{"role": "user", "content": "Anyone?"}]
    expect(page.locator("#notice")).to_be_empty()


def test_a_refusal_is_one_sentence_and_loses_nothing(page: Page) -> None:
    answering(page, chunk("The first answer."))
    ask(page)
    answering(page, status=400)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("#notice")).to_have_text("It cannot be done.")
    expect(page.locator(".answer .text")).to_have_text("The first answer.")
    assert [message["content"] for message in saved(page)] == ["hello there", "The first answer."]


def test_an_answer_that_breaks_off_keeps_what_was_final(page: Page) -> None:
    answering(page, chunk("Up to here"), drafted(" and"), {"error": {"message": "It broke."}})
    ask(page)
    expect(page.locator(".answer .text")).to_have_text("Up to here")
    expect(page.locator(".answer .error")).to_have_text("It broke.")
    assert saved(page)[1]["finish"] == "error"


def test_no_server_is_one_sentence(page: Page) -> None:
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.locator("#question").fill("Anyone?")
    page.locator("#question").press("Enter")
    expect(page.locator("#notice")).to_contain_text("is parse-local serve still running?")
    expect(page.get_by_role("button", name="Ask again")).to_be_visible()


@pytest.mark.parametrize("colours", [False, True])
def test_what_a_model_writes_stays_text(page: Page, colours: bool) -> None:
    attack = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    link = "[click](javascript:alert(3)) ![x](http://elsewhere.example/x.png)"
    code = f"```<b>\n{attack}\n```"
    if colours:
        page.get_by_role("button", name="Colours").click()
    answering(
        page,
        {"choices": [{"delta": {"reasoning_content": attack}}]},
        drafted(f"{attack} {link}"),
        *decided(f"{attack} {link}", f" {attack}"),
        chunk(f"\n\n{code}\n\n| {attack} |\n|---|\n| {attack} |\n"),
    )
    ask(page, attack)
    page.get_by_role("button", name="Sessions").click()
    expect(page.locator("#session-list .open")).to_contain_text("<img")
    turns = page.locator("#turns")
    assert turns.locator("img, script, a, iframe").count() == 0
    text = page.locator(".answer .text")
    expect(text).to_contain_text(f"{attack} clickjavascript:alert(3)")
    expect(text.locator("pre")).to_have_text(attack)
    expect(text.locator("td")).to_have_text(attack)
    expect(page.locator(".said")).to_have_text(attack)
