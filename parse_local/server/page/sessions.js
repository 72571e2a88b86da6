// Sessions in this browser's localStorage, one entry each; and as Markdown or JSON files.

import { shorten } from "./answer.js";

const PREFIX = "parse-local.session.";
const FORMAT = "parse-local-session";
const ROLES = new Set(["user", "assistant"]);

/** A session without messages, which is not kept before it has one. */
export function newSession(system = "") {
  return {
    id: crypto.randomUUID?.() ?? fallbackId(),
    title: "",
    system,
    updated: Date.now(),
    messages: [],
  };
}

// Browsers have randomUUID only where the page came from this machine or over HTTPS.
function fallbackId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) =>
    n.toString(16).padStart(8, "0"),
  ).join("");
}

/** All kept sessions, the latest first. */
export function listSessions() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const sessions = keys.map((key) => load(key.slice(PREFIX.length))).filter(Boolean);
  return sessions.sort((a, b) => b.updated - a.updated);
}

/** One session, null where there is none. */
export function load(id) {
  try {
    return clean(JSON.parse(localStorage.getItem(PREFIX + id)), id);
  } catch {
    return null; // somebody else's, or damaged: leave it alone
  }
}

/**
 * Keeps a session that has messages.
 *
 * @returns {boolean} false where the browser has no room left or keeps nothing.
 */
export function save(session, { touch = true } = {}) {
  if (!session.messages.length) return true;
  if (touch) session.updated = Date.now();
  try {
    localStorage.setItem(PREFIX + session.id, JSON.stringify(session));
    return true;
  } catch {
    return false;
  }
}

/** Forgets a session. */
export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** The session's name, or what it was first asked. */
export function titleOf(session) {
  const first = session.messages.find((message) => message.role === "user");
  return session.title || shorten(first?.content ?? "", 60) || "New chat";
}

/** A session as a Markdown document. */
export function toMarkdown(session) {
  const parts = [`# ${titleOf(session)}`];
  if (session.system) parts.push(`> ${session.system.replaceAll("\n", "\n> ")}`);
  for (const { role, content } of session.messages) {
    parts.push(role === "user" ? "## You" : "## Answer", content);
  }
  return `${parts.join("\n\n")}\n`;
}

/** A session as JSON that `fromJson` reads; verdicts and figures included. */
export function toJson(session) {
  const { title, system, updated, messages } = session;
  return `${JSON.stringify({ format: FORMAT, version: 1, title, system, updated, messages }, null, 2)}\n`;
}

/**
 * Sessions in a JSON file: one, or a list of them, of this page or of `parse-local sessions
 * export`. Any object with a list of `messages` that have a role and a content will do.
 *
 * @returns {Object[]} with new ids.
 * @throws {Error} one sentence, where there is none.
 */
export function fromJson(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON; import one that was exported as JSON.");
  }
  const found = (Array.isArray(data) ? data : [data])
    .map((one) => clean(one, newSession().id))
    .filter(Boolean);
  if (!found.length)
    throw new Error("There is no session in this file; import one that was exported as JSON.");
  return found;
}

/** A session with only what belongs into one, null where it has no messages. */
function clean(data, id) {
  if (!data || !Array.isArray(data.messages)) return null;
  const system = data.messages.find((message) => message?.role === "system")?.content;
  const messages = data.messages
    .filter((message) => ROLES.has(message?.role) && typeof message.content === "string")
    .map((message) =>
      message.role === "user" ? { role: "user", content: message.content } : cleanAnswer(message),
    );
  if (!messages.length) return null;
  return {
    id,
    title: text(data.title),
    system: text(data.system) || text(system),
    updated: new Date(data.updated).getTime() || Date.now(),
    messages,
  };
}

const text = (value) => (typeof value === "string" ? value : "");
const list = (value) => (Array.isArray(value) ? value : []);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Spans are pairs here; `parse-local sessions export` writes them with their text.
function cleanSpans(spans) {
  return list(spans)
    .filter((span) => span && span.channel !== "reasoning")
    .map((span) =>
      Array.isArray(span) ? [span[0], span[1]] : [text(span.text).length, span.source],
    )
    .filter(([length, source]) => isNumber(length) && ["draft", "target"].includes(source));
}

function cleanAnswer(message) {
  return {
    role: "assistant",
    content: message.content,
    reasoning: text(message.reasoning) || text(message.reasoning_content),
    spans: cleanSpans(message.spans),
    marks: list(message.marks).map(cleanMark).filter(Boolean),
    finish: text(message.finish) || text(message.finish_reason) || null,
    usage: cleanUsage(message.usage),
  };
}

/** Only the numbers (and null) among these fields of an object. */
function numbers(from, names) {
  return Object.fromEntries(
    names.map((name) => [name, isNumber(from?.[name]) ? from[name] : null]),
  );
}

function cleanMark(mark) {
  if (!isNumber(mark?.at)) return null;
  const found = {
    ...numbers(mark, ["at", "tokens", "p", "mass", "score"]),
    dropped: text(mark.dropped),
  };
  if (mark.round) found.round = numbers(mark.round, ["drafted", "exact", "kept", "confidence"]);
  if (mark.failed) found.failed = numbers(mark.failed, ["p", "score", "tokens"]);
  return found;
}

function cleanUsage(usage) {
  if (!isNumber(usage?.prompt_tokens) || !isNumber(usage?.completion_tokens)) return null;
  const found = numbers(usage, ["prompt_tokens", "completion_tokens"]);
  found.prompt_tokens_details = numbers(usage.prompt_tokens_details, ["cached_tokens"]);
  const { parse } = usage;
  if (!parse) return found;
  const only = (from) =>
    Object.fromEntries(Object.entries(from ?? {}).filter(([, value]) => isNumber(value)));
  found.parse = {
    ...numbers(parse, ["accepted_share", "tokens_per_second", "speedup", "n_rounds"]),
    strategy: text(parse.strategy),
    accept: text(parse.accept),
    tokens: only(parse.tokens),
    timings: only(parse.timings),
  };
  return found;
}
