// The figures of an answer: one line, the split of its time as a bar, and a table of it.

import { el } from "./dom.js";

const PHASES = [
  ["prompt_s", "prompt"],
  ["draft_s", "draft"],
  ["verify_s", "verify"],
  ["fork_s", "verdicts"],
  ["target_s", "target"],
];

/** Where the time went: `[name, seconds, share]` for each phase that took any, and "other". */
export function timeSplit(timings) {
  const total = timings.total_s;
  if (!total) return [];
  const split = PHASES.map(([field, name]) => [name, timings[field] ?? 0]);
  const known = split.reduce((sum, [, seconds]) => sum + seconds, 0);
  split.push(["other", Math.max(0, total - known)]);
  return split
    .filter(([, seconds]) => seconds > 0)
    .map(([name, seconds]) => [name, seconds, seconds / total]);
}

/** A share, 0 to 1, in whole percent; 0% and 100% only where that is exact. */
export function percent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 0 && share > 0) return "<1%";
  if (rounded === 100 && share < 1) return ">99%";
  return `${rounded}%`;
}

const number = (n) => n.toLocaleString("en");

/** What happened to an answer that did not end by itself; "" for one that did. */
export function ending(finish) {
  return (
    {
      cancelled: "stopped",
      interrupted: "interrupted",
      error: "broken off",
      length: "cut at the length limit",
    }[finish] ?? ""
  );
}

/** One line, for example `128 tokens · 17.9 tok/s · 1.8× the target alone · 71% from the draft`. */
export function statsLine({ usage, finish }) {
  const parse = usage?.parse;
  const parts = [];
  if (usage)
    parts.push(
      `${number(usage.completion_tokens)} ${usage.completion_tokens === 1 ? "token" : "tokens"}`,
    );
  if (parse?.tokens_per_second) parts.push(`${parse.tokens_per_second.toFixed(1)} tok/s`);
  if (parse?.speedup) parts.push(`${parse.speedup.toFixed(1)}× the target alone`);
  if (parse?.n_rounds) parts.push(`${percent(parse.accepted_share)} from the draft`);
  if (parse?.timings?.total_s) parts.push(`${parse.timings.total_s.toFixed(1)} s`);
  if (ending(finish)) parts.push(ending(finish));
  return parts.join(" · ");
}

/** The figures under an answer; null where there are none. */
export function statsView(message) {
  const line = statsLine(message);
  if (!line) return null;
  const split = timeSplit(message.usage?.parse?.timings ?? {});
  if (!split.length) return el("p.stats.quiet", {}, line);
  return el(
    "details.stats",
    {},
    el("summary", {}, el("span", {}, line), bar(split)),
    table(message, split),
  );
}

const size = (seconds) => `${seconds.toFixed(2)} s`;

function bar(split) {
  const said = split
    .map(([name, seconds, share]) => `${name} ${size(seconds)}, ${percent(share)}`)
    .join("; ");
  const parts = split.map(([name, , share]) => {
    const part = el(`span.phase-${name}`);
    part.style.setProperty("flex-grow", String(share));
    return part;
  });
  return el("span.bar", { role: "img", "aria-label": `Where the time went: ${said}` }, parts);
}

function table(message, split) {
  const rows = split.map(([name, seconds, share]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el(`span.swatch.phase-${name}`, { "aria-hidden": "true" }), name),
      el("td", {}, size(seconds)),
      el("td", {}, percent(share)),
    ),
  );
  const times = el("table", {}, el("caption", {}, "Where the time went"), el("tbody", {}, rows));
  const facts = el(
    "dl",
    {},
    counts(message).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
  return el("div.figures", {}, times, facts);
}

function counts({ usage }) {
  const { parse } = usage;
  const tokens = parse.tokens ?? {};
  const strategy = parse.accept ? `${parse.strategy}, ${parse.accept}` : parse.strategy;
  const cached = usage.prompt_tokens_details?.cached_tokens;
  return [
    ["strategy", strategy],
    ["rounds", parse.n_rounds],
    ["first text after", parse.timings.ttft_s ? size(parse.timings.ttft_s) : null],
    [
      "prompt tokens",
      cached
        ? `${number(usage.prompt_tokens)}, ${number(cached)} of them cached`
        : usage.prompt_tokens,
    ],
    ["decoded by the draft", tokens.draft_decoded],
    ["decoded by the target", tokens.target_decoded],
    ["decoded for verdicts", tokens.suffix_decoded],
    [
      "proposals accepted",
      tokens.spec_proposed
        ? `${number(tokens.spec_accepted)} of ${number(tokens.spec_proposed)}`
        : null,
    ],
  ]
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [name, typeof value === "number" ? number(value) : value]);
}
