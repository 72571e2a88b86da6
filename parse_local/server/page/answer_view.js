// Turns on the screen: a question, a finished answer, and an answer while it is written.

import { ending, statsView } from "./stats.js";
import { button, copy, el, markScrollable } from "./dom.js";
import { parse, settled } from "./markdown.js";
import { render } from "./markdown_view.js";
import { leafOf, startRoving } from "./verdicts.js";

/** Seconds that a rejected tail stays on the screen, struck through. */
const STRUCK_S = 0.7;

/** A question with its buttons. */
export function questionView(message, { onEdit = null } = {}) {
  const actions = onEdit ? el("p.actions", {}, button("Edit", onEdit)) : null;
  return el(
    "article.question",
    {},
    el("h3.unseen", {}, "You"),
    el("div.said", {}, message.content),
    actions,
  );
}

/**
 * A finished answer.
 *
 * @param {Object} message of a session.
 * @param {Object} how `onRegenerate`, null where it is not the last; `error`, one sentence.
 */
export function answerView(message, { onRegenerate = null, error = null } = {}) {
  const text = el("div.text", {}, render(message.content, parse(message.content), leafOf(message)));
  startRoving(text);
  const actions = el("p.actions", {});
  if (message.content)
    actions.append(button("Copy", (event) => copy(message.content, event.currentTarget)));
  if (onRegenerate)
    actions.append(button(message.content ? "Regenerate" : "Ask again", onRegenerate));
  const empty = !message.content && !error ? el("p.quiet", {}, nothing(message)) : null;
  return el(
    "article.answer",
    {},
    el("h3.unseen", {}, "Answer"),
    message.reasoning ? reasoningView(message.reasoning) : null,
    text,
    empty,
    error ? el("p.error", {}, error) : null,
    el("div.below", {}, statsView(message), actions),
  );
}

function nothing({ finish, reasoning }) {
  const how = ending(finish);
  if (!how) return "The answer is empty.";
  return reasoning
    ? `No answer: ${how} while it was reasoning.`
    : `No answer: ${how} before the first word.`;
}

function reasoningView(text) {
  return el("details.reasoning", {}, el("summary", {}, "Reasoning"), el("div", {}, text));
}

const PHASES = {
  prompt: "Reading the question",
  reasoning: "Reasoning",
  drafting: "Drafting",
  verifying: "Verifying",
  writing: "Writing",
};

/**
 * An answer while it is written: blocks that are complete are rendered, the rest is plain,
 * the draft behind it is dim and hidden from screen readers.
 */
export class LiveView {
  #from = 0; // where the blocks begin that are not rendered for good
  #shown = -1;
  #struck = "";
  #struckAt = 0;
  #channel = "answer";
  #started = performance.now();

  /** @param {Answer} answer that grows. */
  constructor(answer) {
    this.answer = answer;
    this.rendered = el("div");
    this.final = el("span");
    this.struck = el("s.rejected", { "aria-hidden": "true" });
    this.draft = el("span.draft", { "aria-hidden": "true" });
    this.tail = el("div.tail", {}, this.final, this.struck, this.draft);
    this.text = el("div.text", {}, this.rendered, this.tail);
    this.thoughts = el("div");
    this.reasoning = el(
      "details.reasoning",
      { hidden: true },
      el("summary", {}, "Reasoning"),
      this.thoughts,
    );
    this.status = el("p.status.quiet");
    this.node = el(
      "article.answer.live",
      {},
      el("h3.unseen", {}, "Answer"),
      this.reasoning,
      this.text,
      this.status,
    );
  }

  /** Draws what changed. */
  paint() {
    const { answer } = this;
    if (answer.text.length !== this.#shown) this.#settle();
    const thinking = answer.channel === "reasoning";
    this.final.replaceChildren(
      ...leafOf(this.#message(), this.#from)(this.#from, answer.text.length),
    );
    this.#strike();
    this.#provisional(thinking);
    const phase = PHASES[answer.phase];
    const seconds = Math.floor((performance.now() - this.#started) / 1000);
    this.status.textContent = seconds ? `${phase} · ${seconds} s` : phase;
  }

  #message() {
    const { text: content, spans, marks } = this.answer;
    return { content, spans, marks };
  }

  // A block is rendered for good when another one has begun behind it.
  #settle() {
    const source = this.answer.text;
    this.#shown = source.length;
    const [blocks, last] = settled(source, this.#from);
    if (blocks.length) {
      this.rendered.append(...render(source, blocks, leafOf(this.#message(), this.#from)));
      markScrollable(this.rendered);
      this.#from = last.start;
    }
    this.tail.classList.toggle("in-code", last?.type === "code");
  }

  #strike() {
    const now = performance.now();
    const { rejected, channel } = this.answer;
    if (rejected && rejected !== this.#struck) {
      this.#struck = rejected;
      this.#struckAt = now;
      this.#channel = channel;
    }
    if (!this.#struck || now - this.#struckAt > 1000 * STRUCK_S) {
      if (this.#struck === rejected) this.answer.rejected = "";
      this.#struck = "";
    }
  }

  #provisional(thinking) {
    const struck = this.#struck;
    const { reasoning, pending, draft } = this.answer;
    const inText = this.#channel !== "reasoning";
    this.struck.textContent = inText ? struck : "";
    this.draft.textContent = thinking ? "" : draft;
    if (!thinking && pending) this.final.append(pending);
    this.reasoning.hidden = !reasoning && !(thinking && draft);
    if (this.reasoning.hidden) return;
    const parts = [reasoning];
    if (thinking) parts.push(pending, el("span.draft", { "aria-hidden": "true" }, draft));
    this.thoughts.replaceChildren(...parts);
  }
}
