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
from serving import Running, serving, tiny_pair, until

from parse_local import Options, load_pair
from parse_local.events import Span
from parse_local.policy import STRATEGIES, AcceptMode
from parse_local.sessions.export import export
from parse_local.sessions.record import Session, StoredMessage

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra [test]")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra [test]")

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
    files = tiny_pair(tiny)
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


@pytest.fixture(scope="module")
def watched(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens a page of its own storage, which is watched until the end of the module."""
    errors, requests = [], []

    def new(**arguments: Any) -> Page:
        page: Page = browser.new_context(**arguments).new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if bad(message) else None)
        page.on("request", lambda request: requests.append(request.url))
        return page

    def bad(message: Any) -> bool:
        # Chromium itself logs answers that are errors; the page has to cope with them.
        return message.type == "error" and "Failed to load resource" not in message.text

    yield new
    assert errors == []
    here = re.compile(r"(http://127\.0\.0\.1:\d+/|data:|blob:http://127)")
    assert [url for url in requests if not here.match(url)] == []


@pytest.fixture(scope="module")
def tab(watched: Callable[..., Page]) -> Page:
    return watched()


@pytest.fixture
def page(tab: Page, server: Running) -> Iterator[Page]:
    """The page, freshly opened and without anything kept."""
    tab.set_viewport_size({"width": 900, "height": 700})
    tab.emulate_media(color_scheme="light")
    tab.goto(server.url)
    yield tab
    tab.unroute_all(behavior="ignoreErrors")
    tab.evaluate("localStorage.clear(), sessionStorage.clear()")


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

    page.unroute("**/v1/chat/completions")  # an earlier answer
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


def ask_for_long(page: Page) -> None:
    """Asks for more than a second's worth, and waits for some of it that is final."""
    page.get_by_role("button", name="Options").click()
    page.get_by_label("Most tokens of an answer").fill("8000")
    page.keyboard.press("Escape")
    page.locator("#question").fill("Go on for long.")
    page.locator("#question").press("Enter")
    final = page.locator(".live .tail > span:not(.draft)")
    expect(final).to_have_text(re.compile(".{120}", re.DOTALL))


def test_escape_stops_and_what_is_final_stays(page: Page, server: Running) -> None:
    ask_for_long(page)
    page.keyboard.press("Escape")
    expect(page.locator(".answer:not(.live)")).to_contain_text("stopped")
    answer = saved(page)[1]
    assert answer["finish"] == "cancelled"
    assert len(answer["content"]) > 100
    assert page.locator("#send").is_visible()
    until(lambda: server.worker.n_running == 0)  # it has not gone on without a reader


def test_a_reload_in_mid_answer_keeps_what_is_final(page: Page, server: Running) -> None:
    ask_for_long(page)
    page.reload()
    expect(page.locator(".answer")).to_contain_text("interrupted")
    assert len(saved(page)[1]["content"]) > 50  # of the hundred that were there, draft included
    until(lambda: server.worker.n_running == 0)


def test_tabs_follow_each_other(page: Page, server: Running) -> None:
    answering(page, chunk("Four."))
    ask(page)
    other = page.context.new_page()
    other.goto(server.url)
    other.keyboard.press("Control+k")
    other.locator("#session-list .open").click()
    answering(other, chunk("Five."))
    ask(other, "And now?")
    other.close()
    expect(page.locator(".answer .text")).to_have_text(["Four.", "Five."])


def test_a_key_is_asked_for_where_the_server_wants_one(
    watched: Callable[..., Page], pair: Callable[[], Any]
) -> None:
    with serving(pair, api_key="correct horse") as guarded:
        page = watched()
        page.goto(guarded.url)
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
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: None)  # it never answers
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".answer:not(.live)")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator(".answer .text")).to_have_text("The first answer.")
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_role("button", name="New").click()
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


# while it is written

LIVE = """async (steps) => {
  const { Answer } = await import("/answer.js");
  const { LiveView } = await import("/answer_view.js");
  const answer = new Answer();
  const view = new LiveView(answer);
  document.getElementById("turns").replaceChildren(view.node);
  const seen = [];
  for (const step of steps) {
    if (typeof step === "number") await new Promise((done) => setTimeout(done, step));
    else answer.apply(step);
    view.paint();
    const shown = (node) => node.textContent;
    seen.push([shown(view.rendered), ...[view.final, view.struck, view.draft].map(shown)]);
  }
  return seen;
}"""


def test_drafts_are_dim_struck_where_rejected_and_then_gone(page: Page) -> None:
    verified, accepted, rolled_back, text = decided("A mutex", " is a cat")
    steps = [
        drafted("A mutex"),
        drafted(" is a cat"),
        verified,
        accepted,
        rolled_back,
        text,
        chunk(" locks.\n\nNext"),
        drafted(" par"),
        800,
    ]
    seen = page.evaluate(LIVE, steps)
    assert seen == [
        ["", "", "", "A mutex"],
        ["", "", "", "A mutex is a cat"],
        ["", "", "", ""],
        ["", "A mutex", "", ""],
        ["", "A mutex", " is a cat", ""],
        ["", "A mutex", " is a cat", ""],
        ["", "A mutex locks.\n\nNext", " is a cat", ""],
        ["", "A mutex locks.\n\nNext", " is a cat", " par"],
        ["", "A mutex locks.\n\nNext", "", " par"],
    ]
    colours = page.evaluate(
        """() => ["body", ".draft", ".tail"].map(
            (name) => getComputedStyle(document.querySelector(name)).color)"""
    )
    assert colours[0] == colours[2] != colours[1]
    assert page.locator(".draft, .rejected").evaluate_all(
        "nodes => nodes.map(node => node.ariaHidden)"
    ) == ["true", "true"]


def test_whole_blocks_are_rendered_while_the_next_is_written(page: Page) -> None:
    seen = page.evaluate(
        LIVE, [chunk("**One**\n\n"), chunk("Two\n"), chunk("\n- th"), chunk("ree\n")]
    )
    assert [step[0] for step in seen] == ["", "One", "One", "OneTwo"]
    assert seen[-1][1] == "- three\n"


def test_reasoning_is_apart_and_closed(page: Page) -> None:
    reasoning = {"choices": [{"delta": {"reasoning_content": "Let me see."}}]}
    round_ = decided("Let me see.", " Or not", channel="reasoning")[:-1]  # its text is `reasoning`
    answering(page, drafted("Let me see. Or not", "reasoning"), *round_, reasoning, chunk("Four."))
    ask(page)
    assert saved(page)[1]["marks"] == []
    box = page.locator("details.reasoning")
    assert box.evaluate("node => node.open") is False
    expect(page.locator(".answer .text")).to_have_text("Four.")
    box.locator("summary").click()
    expect(box.locator("div")).to_have_text("Let me see.")
    asked = answering(page, chunk("Five."))
    ask(page, "And now?")
    assert asked[0]["messages"][1] == {"role": "assistant", "content": "Four."}


def test_screen_readers_get_sentences(page: Page) -> None:
    said = """async ([pieces, region]) => {
      const { Speech } = await import("/speech.js");
      const speech = new Speech(document.createElement("div"));
      let text = "";
      for (const piece of pieces) speech.follow((text += piece));
      speech.follow(text, true);
      return [...speech.region.children].map((child) => child.textContent);
    }"""
    pieces = ["It", " is", " 3", ".", "5", " m", ". ", "Yes", "!\n", "A", " list"]
    assert page.evaluate(said, [pieces, None]) == ["It is 3.5 m.", "Yes!", "A list"]
    long = ["word "] * 70  # no sentence in sight
    assert page.evaluate(said, [long, None]) == [("word " * 60).strip(), ("word " * 10).strip()]
    answering(page, chunk("One"), drafted("."), *decided(". Two", "!"), chunk(". Three"))
    ask(page)
    spoken = page.locator("#spoken")
    assert spoken.get_attribute("aria-live") == "polite"
    assert " ".join(spoken.locator("p").all_inner_texts()) == "One. Two. Three"


# who wrote what


def test_colours_show_who_wrote_what_and_verdicts(page: Page) -> None:
    answering(page, *JUDGED)
    ask(page)
    legend = page.locator("#legend")
    expect(legend).to_be_hidden()
    expect(page.locator(".mark").first).to_be_hidden()
    page.get_by_role("button", name="Colours").click()
    expect(legend).to_be_visible()
    text = page.locator(".answer .text")
    assert (
        "".join(text.locator(".by-draft").all_text_contents())
        == "Mutexes lock. They 🎉 work Use them."
    )
    assert text.locator(".by-target").all_text_contents() == [" well."]
    shades = text.locator("span").evaluate_all(
        "nodes => nodes.map(node => getComputedStyle(node).backgroundColor)"
    )
    assert len(set(shades)) == 2
    tip = page.get_by_role("tooltip")
    text.get_by_text("Mutexes lock.").hover()
    expect(tip).to_have_text("Kept up to here: 2 tokensP(Correct) 0.981")
    text.get_by_text("They").hover()
    expect(tip).to_have_text(
        "5 of 6 drafted tokens kept"
        "P(Correct) 0.964"
        "Next boundary, 6 tokens: P(Correct) 0.412"
        "Exactly the target's own words: the first 5"
        "Dropped: always."
    )
    page.mouse.move(1, 1)
    expect(tip).to_be_hidden()


def test_verdicts_can_be_walked_with_the_keyboard(page: Page) -> None:
    answering(page, *JUDGED)
    ask(page)
    page.get_by_role("button", name="Colours").press("Enter")
    page.locator(".mark").first.focus()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("2 tokens")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("5 of 6")
    name = page.evaluate("document.activeElement.ariaLabel")
    assert name.startswith("Verdict: 5 of 6 drafted tokens kept. P(Correct) 0.964. ")
    page.keyboard.press("End")
    expect(tip).to_contain_text("All 2 drafted tokens kept")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    assert page.locator(".mark").evaluate_all("marks => marks.map(m => m.tabIndex)") == [-1, -1, 0]


def test_the_time_of_an_answer_is_split(page: Page) -> None:
    answering(page, *JUDGED)
    ask(page)
    stats = page.locator(".stats")
    expect(stats.locator("summary > span").first).to_have_text(
        "212 tokens · 31.4 tok/s · 1.9\u00d7 the target alone · 82% from the draft · 5.0 s"
    )
    assert stats.get_by_role("img").get_attribute("aria-label") == (
        "Where the time went: prompt 0.50 s, 10%; draft 2.00 s, 40%; verify 1.00 s, 20%; "
        "verdicts 0.25 s, 5%; target 1.00 s, 20%; other 0.25 s, 5%"
    )
    widths = stats.locator(".bar > span").evaluate_all("parts => parts.map(p => p.offsetWidth)")
    assert [round(20 * width / sum(widths)) for width in widths] == [2, 8, 4, 1, 4, 1]
    stats.locator("summary").press("Enter")
    expect(stats.locator("tr").nth(1)).to_have_text("draft2.00 s40%")
    expect(stats.locator("dl")).to_contain_text("42, 12 of them cached")


# sessions


def test_sessions_survive_a_reload(page: Page) -> None:
    answering(page, *JUDGED)
    ask(page, "What is a mutex?")
    shown = page.locator(".answer").inner_html()
    page.reload()
    expect(page.locator(".said")).to_have_text("What is a mutex?")
    assert page.locator(".answer").inner_html() == shown
    page.get_by_role("button", name="New").click()
    expect(page.locator("article")).to_have_count(0)
    page.reload()
    expect(page.locator("article")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.type("MUTEX")
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text("What is a mutex?")


def test_sessions_are_renamed_exported_deleted_and_imported(page: Page, tmp_path: Path) -> None:
    answering(page, *JUDGED)
    ask(page, "What is a mutex?")
    shown = page.locator(".answer").inner_html()
    page.keyboard.press("Control+k")
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("Locks")
    page.keyboard.press("Enter")
    expect(page.locator("#session-list .open")).to_have_text("Locks")
    assert page.title() == "Locks · parse-local"

    def export(name: str) -> Path:
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        return path

    markdown = export("Export Markdown")
    assert markdown.name == "locks.md"
    assert markdown.read_text("utf-8") == (
        "# Locks\n\n## You\n\nWhat is a mutex?\n\n## Answer\n\n"
        "Mutexes lock. They 🎉 work well. Use them.\n"
    )
    exported = export("Export JSON")
    delete = page.get_by_role("button", name="elete Locks")
    delete.click()
    delete.click()
    expect(page.locator("#session-list li")).to_have_count(0)
    expect(page.locator("article")).to_have_count(0)
    page.locator("#import-file").set_input_files(exported)
    expect(page.locator("#sessions-note")).to_have_text("Imported: Locks")
    page.locator("#session-list .open").click()
    assert page.locator(".answer").inner_html() == shown  # verdicts and figures too
    broken = tmp_path / "broken.json"
    broken.write_text('{"messages": [{"role": "user", "content": 3}]}', "utf-8")
    page.keyboard.press("Control+k")
    page.locator("#import-file").set_input_files(broken)
    expect(page.locator("#sessions-note")).to_contain_text("There is no session in this file")


def test_a_session_of_the_terminal_is_imported(page: Page, tmp_path: Path) -> None:
    answer = StoredMessage(
        "assistant",
        "Four 🎉.",
        reasoning="Let me see.",
        spans=(
            Span("Let me see.", "target", "reasoning"),
            Span("Four", "draft"),
            Span(" 🎉.", "target"),
        ),
        finish_reason="length",
    )
    session = Session("a1", "Sums", system="Be brief.")
    path = tmp_path / "sums.json"
    path.write_text(export(session, [StoredMessage("user", "2 + 2?"), answer], "json"), "utf-8")
    page.keyboard.press("Control+k")
    page.locator("#import-file").set_input_files(path)
    page.locator("#session-list .open", has_text="Sums").click()
    expect(page.locator(".said")).to_have_text("2 + 2?")
    expect(page.locator(".reasoning div")).to_have_text("Let me see.")
    expect(page.locator(".answer .by-draft")).to_have_text("Four")
    expect(page.locator(".answer .by-target")).to_have_text(" 🎉.")
    expect(page.locator(".stats")).to_have_text("cut at the length limit")
    expect(page.locator("#system")).to_have_value("Be brief.")


# Markdown

MARKDOWN = {
    "a *b* **c** `d*` ~~e~~": "<p>a <em>b</em> <strong>c</strong> <code>d*</code> <s>e</s></p>",
    "***a*** **b *c* d**": ("<p><strong><em>a</em></strong> <strong>b <em>c</em> d</strong></p>"),
    "2 * 3 * 4 snake_case_name **open": "<p>2 * 3 * 4 snake_case_name **open</p>",
    r"\*a\* \(x\)": r"<p>*a* \(x\)</p>",
    "# One\n## Two ##\ntext": (
        '<h4 class="level-1">One</h4><h5 class="level-2">Two</h5><p>text</p>'
    ),
    "a\nb\n\nc": "<p>a\nb</p><p>c</p>",
    "- a\n  - b\n- c": (
        '<ul class="tight"><li><p>a</p><ul class="tight"><li><p>b</p></li></ul></li>'
        "<li><p>c</p></li></ul>"
    ),
    "3. a\n\n   b\n4. c": ('<ol start="3"><li><p>a</p><p>b</p></li><li><p>c</p></li></ol>'),
    "1. a\n```\nx\n```": '<ol class="tight"><li><p>a</p></li></ol>CODE:x',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "---": "<hr>",
    "```py\nif a:\n    b\n\n```\nc": "CODE:if a:\n    b\n<p>c</p>",
    "```\nopen\n": "CODE:open",
    "- a\n\n  ```\n  b\n    c\n  ```": "<ul><li><p>a</p>CODE:b\n  c</li></ul>",
    "[a](http://b.c/d) <http://e>": (
        '<p>a<span class="address">http://b.c/d</span> &lt;http://e&gt;</p>'
    ),
    "a|b\n-|-:\n`c`|d\\|e": (
        "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td><code>c</code></td><td>d|e</td></tr></tbody></table>"
    ),
    "&amp; <b>": "<p>&amp;amp; &lt;b&gt;</p>",
}


def test_markdown(page: Page) -> None:
    # Without what a test of structure does not need: figures around code, attributes of cells.
    drawn = page.evaluate(
        """async (sources) => {
          const { parse } = await import("/markdown.js");
          const { render } = await import("/markdown_view.js");
          return sources.map((source) => {
            const box = document.createElement("div");
            const leaf = (start, end) => [document.createTextNode(source.slice(start, end))];
            box.append(...render(source, parse(source), leaf));
            for (const code of box.querySelectorAll("figure")) {
              code.replaceWith(`CODE:${code.querySelector("pre").textContent}`);
            }
            const frames = box.querySelectorAll(".table");
            for (const frame of frames) frame.replaceWith(...frame.children);
            for (const cell of box.querySelectorAll("th, td")) {
              cell.removeAttribute("class");
              cell.removeAttribute("scope");
            }
            return box.innerHTML;
          });
        }""",
        list(MARKDOWN),
    )
    assert dict(zip(MARKDOWN, drawn, strict=True)) == MARKDOWN


def test_code_and_answers_can_be_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "Look:\n\n```py\nif a:\n    b\n```"
    answering(page, chunk(text))
    ask(page)
    for place, expected in ((".code", "if a:\n    b"), (".below", text)):
        button = page.locator(place).get_by_role("button", name="Copy")
        button.click()
        expect(page.locator(place)).to_contain_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == expected


def test_growing_markdown_changes_no_block_that_is_settled(page: Page) -> None:
    wrong = page.evaluate(
        r"""async () => {
          const { parse, settled } = await import("/markdown.js");
          const { render } = await import("/markdown_view.js");
          const parts = ["a", "b c", " ", "  ", "    ", "\n", "\n\n", "- ", "* ", "1. ", "2) ",
            "> ", "# ", "```", "```py\n", "|", "|-|-|\n", "a|b\n", "**", "*", "_", "`", "~~",
            "[x](y)", "\\", "---", "\t", "é", "🎉", "<b>"];
          let seed = 7;
          const pick = () => {
            seed = (seed * 1103515245 + 12345) & 0x7fffffff;
            return parts[(seed >> 8) % parts.length];
          };
          const wrong = [];
          for (let n = 0; n < 1500; n++) {
            const text = Array.from({ length: 1 + (n % 14) }, pick).join("");
            const blocks = parse(text).map((block) => JSON.stringify(block));
            for (let cut = 0; cut < text.length; cut++) {
              const [fixed] = settled(text.slice(0, cut));
              const changed = fixed.some((block, i) => JSON.stringify(block) !== blocks[i]);
              if (changed) wrong.push([text, cut]);
            }
            let at = 0; // what is drawn is of the text, in its order, once
            render(text, parse(text), (start, end) => {
              if (start < at || end <= start || end > text.length) wrong.push([text, start, end]);
              at = end;
              return [];
            });
          }
          return wrong;
        }"""
    )
    assert wrong == []


# for everybody


def test_everything_can_be_done_with_the_keyboard(page: Page) -> None:
    answering(page, *JUDGED)
    expect(page.locator("#question")).to_be_focused()
    names = []
    for _ in range(5):
        page.keyboard.press("Shift+Tab")
        names.append(page.evaluate("document.activeElement.textContent"))
    assert names == ["Options", "Colours", "New", "Sessions", "Skip to the question field"]
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    expect(page.locator("#question")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.getElementById('ask')).outlineStyle") == "solid"
    page.keyboard.type("One line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("and another")
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text("One line\nand another")
    expect(page.locator(".answer:not(.live)")).to_have_count(1)
    expect(page.locator("#question")).to_be_focused()
    page.keyboard.press("Control+k")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#sessions")).to_be_hidden()
    expect(page.locator("#question")).to_be_focused()


WIDE = (
    "Look:\n\n```\n"
    + "x" * 200
    + "\n```\n\n|"
    + " a |" * 30
    + "\n|"
    + "-|" * 30
    + "\n\n"
    + "y" * 200
)


@pytest.mark.parametrize("size", [(320, 640), (640, 360)], ids=["narrow", "zoomed to 200%"])
def test_nothing_scrolls_sideways(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    answering(page, *JUDGED, chunk(WIDE))
    page.get_by_role("button", name="Colours").click()
    ask(page, "z" * 200)
    page.locator(".stats summary").click()
    page.locator(".by-draft").first.hover()
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.locator("pre").evaluate("node => node.tabIndex") == 0  # it scrolls by itself
    for name in ("Sessions", "Options"):
        page.get_by_role("button", name=name).click()
        dialog = page.locator("dialog[open]")
        box = dialog.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
        assert dialog.evaluate("node => node.scrollWidth <= node.clientWidth")
        page.keyboard.press("Escape")


def test_axe_finds_nothing(page: Page) -> None:
    found = {}

    def check(state: str, *schemes: Any) -> None:
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            rules = {} if scheme == schemes[0] else {"runOnly": ["color-contrast"]}
            results = axe.Axe().run(page, options=rules)
            if results.violations_count:
                found[state, scheme] = results.generate_report()

    reasoning = {"choices": [{"delta": {"reasoning_content": "Let me see."}}]}
    answering(page, reasoning, *JUDGED, chunk(f"\n\n# A\n\n- b\n\n> `c`\n\n{WIDE}"))
    page.get_by_role("button", name="Colours").click()
    ask(page)
    page.locator(".stats summary").click()
    page.locator(".reasoning summary").click()
    page.locator(".by-draft").first.hover()
    check("answer, coloured, with a verdict", "light", "dark")
    for name, scheme in (("Sessions", "light"), ("Options", "dark")):
        page.get_by_role("button", name=name).click()
        check(name, scheme)
        page.keyboard.press("Escape")
    answering(page, status=400)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator("#notice")).not_to_be_empty()
    page.evaluate(LIVE, [drafted("Dim"), *decided("Dim", " gone"), drafted(" draft")])
    check("refused, and while it is written", "light", "dark")
    assert found == {}
