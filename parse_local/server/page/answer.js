// An answer as it grows: what is final, who wrote it, what is only a draft, and the verdicts.

/** UTF-16 length of the first `n` characters of a text; the server counts code points. */
export function lengthOf(text, n) {
  let at = 0;
  for (; n > 0 && at < text.length; n--) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}

/**
 * One answer, from the chunks of the stream.
 *
 * `text` and `reasoning` are final and only ever grow. `spans` are pairs of a length and who
 * wrote it, in order. `marks` are verdicts at offsets into `text`. The rest is provisional:
 * `draft` may go, `pending` is accepted and about to be sent again as final text, and
 * `rejected` has just gone.
 */
export class Answer {
  text = "";
  reasoning = "";
  spans = [];
  marks = [];
  finish = null;
  usage = null;
  draft = "";
  channel = "answer";
  pending = "";
  rejected = "";
  phase = "prompt";
  #base = 0; // where in `text` the last draft that was kept, or some of it, ends

  /** Takes in one chunk. */
  apply(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    const event = chunk.parse;
    if (event && event.event !== "text") this.#follow(event);
    if (choice?.delta?.reasoning_content) this.#reason(choice.delta.reasoning_content);
    if (choice?.delta?.content) this.#write(choice.delta.content, event?.source ?? "target");
    if (choice?.finish_reason) this.finish = choice.finish_reason;
  }

  /** Nothing follows: drops what never became final. */
  close(finish) {
    this.finish = this.finish ?? finish;
    this.draft = this.pending = this.rejected = "";
    this.marks = this.marks.filter((mark) => mark.at <= this.text.length);
  }

  /** What is kept of it in a session. */
  toMessage() {
    const { text, reasoning, spans, marks, finish, usage } = this;
    return { role: "assistant", content: text, reasoning, spans, marks, finish, usage };
  }

  #reason(text) {
    this.reasoning += text;
    this.phase = "reasoning";
    this.pending = this.pending.slice(text.length);
    this.channel = "reasoning";
  }

  #write(text, source) {
    this.text += text;
    this.phase = "writing";
    this.pending = this.pending.slice(text.length);
    this.channel = "answer";
    const last = this.spans.at(-1);
    if (last?.[1] === source) last[0] += text.length;
    else this.spans.push([text.length, source]);
  }

  #follow(event) {
    if (event.event === "drafted") {
      if (!this.draft) this.rejected = this.pending = "";
      this.draft += event.text;
      this.channel = event.channel ?? "answer";
      this.phase = "drafting";
    } else if (event.event === "verified") {
      this.draft = "";
      this.phase = "verifying";
      this.#judge(event);
    } else if (event.event === "accepted") {
      this.pending = event.text;
    } else if (event.event === "rolled_back") {
      this.rejected = event.text;
      const mark = this.marks.findLast((m) => m.at === this.#base && m.round);
      if (mark) mark.dropped = event.text.slice(0, 400);
    }
  }

  // Marks for a round: one at each boundary that was kept, one where the round ends.
  #judge({ round, text }) {
    this.#base = -1;
    if (round.channel === "reasoning") return; // it is folded away, without marks
    const start = this.text.length;
    const at = (n) => start + lengthOf(text, n);
    const end = at(round.n_accept_chars ?? 0);
    this.#base = end;
    const points = (round.boundaries ?? []).map((n, i) => ({
      at: at(round.n_chars?.[i] ?? 0),
      tokens: n,
      p: round.p_correct?.[i] ?? null,
      mass: round.label_mass?.[i] ?? null,
      score: round.score?.[i] ?? null,
    }));
    const asked = points.filter((point) => point.p !== null || point.score !== null);
    const kept = asked.filter((point) => point.at < end && point.at > start);
    this.marks.push(...kept);
    const here = asked.filter((point) => point.at === end).at(-1);
    const failed = asked.find((point) => point.tokens > round.n_accept);
    this.marks.push({
      ...here,
      at: end,
      round: {
        drafted: round.n_draft,
        exact: round.read === false ? null : round.n_exact,
        kept: round.n_accept,
        confidence: round.confidence ?? null,
      },
      failed: failed ? { p: failed.p, score: failed.score, tokens: failed.tokens } : null,
      dropped: "",
    });
  }
}

/** What a verdict says, as short lines; the first says what became of the draft. */
export function describe(mark) {
  const lines = [];
  const { round } = mark;
  if (round) {
    const tokens = round.drafted === 1 ? "drafted token" : "drafted tokens";
    if (round.kept >= round.drafted) lines.push(`All ${round.drafted} ${tokens} kept`);
    else if (round.kept === 0) lines.push(`None of ${round.drafted} ${tokens} kept`);
    else lines.push(`${round.kept} of ${round.drafted} ${tokens} kept`);
  } else {
    lines.push(`Kept up to here: ${mark.tokens} tokens`);
  }
  lines.push(...judged(mark));
  if (mark.failed)
    lines.push(`Next boundary, ${mark.failed.tokens} tokens: ${judged(mark.failed)[0]}`);
  if (round?.exact) {
    const all = round.exact >= round.drafted ? "all" : `the first ${round.exact}`;
    lines.push(`Exactly the target's own words: ${all}`);
  }
  if (round && round.confidence !== null) {
    lines.push(`The draft's confidence: ${round.confidence.toFixed(2)}`);
  }
  if (mark.dropped?.trim()) lines.push(`Dropped: ${shorten(mark.dropped.trim(), 90)}`);
  return lines;
}

function judged({ p = null, score = null, mass = null }) {
  const lines = [];
  if (p !== null) lines.push(`P(Correct) ${p.toFixed(3)}`);
  if (score !== null) lines.push(`The target's mark: ${score.toFixed(1)} of 9`);
  // Below this share of both labels the target hardly answered the question.
  if (mass !== null && mass < 0.9)
    lines.push(`Says little: its labels have ${mass.toFixed(2)} of the mass`);
  return lines;
}

/** A text of at most `n` characters, on one line. */
export function shorten(text, n) {
  const line = text.replace(/\s+/g, " ");
  const characters = Array.from(line);
  return characters.length > n
    ? `${characters
        .slice(0, n - 1)
        .join("")
        .trimEnd()}…`
    : line;
}
