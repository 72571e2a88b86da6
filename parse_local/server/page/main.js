// The chat: sends, follows the stream, keeps the session, and answers the keyboard.

import { Answer } from "./answer.js";
import { answerView, LiveView, questionView } from "./answer_view.js";
import { ApiError, apiKey, chat, models, setApiKey } from "./api.js";
import { byId, button, el, markScrollable } from "./dom.js";
import { requestOptions, startOptions } from "./options.js";
import { load, newSession, remove, save, titleOf } from "./sessions.js";
import { startSessions } from "./sessions_view.js";
import { Speech } from "./speech.js";
import { percent } from "./stats.js";
import { followVerdicts } from "./verdicts.js";

const CURRENT = "parse-local.current";
const SAVE_EVERY_MS = 1000;

let session = load(sessionStorage.getItem(CURRENT)) ?? newSession();
let model = null; // as the server lists it
let running = null; // { answer, controller, view, before } while an answer is written
let loading = false; // the server is still loading the models
let editing = false; // the last question is in the question field
let waiting = 0; // timer of a busy server
const field = byId("question");
const speech = () => new Speech(byId("spoken"));

// The screen

function draw() {
  const { messages } = session;
  const lastQuestion = messages.findLastIndex((message) => message.role === "user");
  const views = messages.map((message, index) => {
    const last = index === messages.length - 1;
    if (message.role === "user") {
      return questionView(message, { onEdit: index === lastQuestion && !running ? edit : null });
    }
    return answerView(message, {
      onRegenerate: last && !running ? regenerate : null,
      error: message.error,
    });
  });
  if (running) views.push(running.view.node);
  else if (messages.at(-1)?.role === "user")
    views.push(el("p.actions", {}, button("Ask again", regenerate)));
  byId("turns").replaceChildren(...views);
  byId("empty").hidden = messages.length > 0;
  byId("title").textContent = titleOf(session);
  document.title = messages.length ? `${titleOf(session)} · parse-local` : "parse-local";
  byId("send").hidden = running !== null;
  byId("stop").hidden = running === null;
  markScrollable(byId("turns"));
  drawContext();
}

function drawContext() {
  const usage = session.messages.findLast((message) => message.usage)?.usage;
  const size = model?.n_ctx;
  byId("context").hidden = !usage;
  if (!usage) return;
  const used = usage.prompt_tokens + usage.completion_tokens;
  const share = size
    ? ` of ${size.toLocaleString("en")} tokens (${percent(used / size)})`
    : " tokens";
  byId("context").textContent = `Context: ${used.toLocaleString("en")}${share}`;
}

function messageOf(text) {
  if (running?.view.text === text) return running.answer;
  const at = [...byId("turns").children].indexOf(text.closest("article"));
  return session.messages[at];
}

const atEnd = () =>
  window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;
const toEnd = () => window.scrollTo({ top: document.documentElement.scrollHeight });

function notice(...children) {
  clearInterval(waiting);
  byId("notice").replaceChildren(...children);
}

function keepSession(how) {
  if (!save(session, how))
    notice("This browser has no room left for this chat; export it, or delete sessions.");
  else if (session.messages.length) sessionStorage.setItem(CURRENT, session.id);
}

// Asking

function send() {
  const text = field.value.trim();
  if (!text || running) return;
  if (editing)
    session.messages.length = session.messages.findLastIndex((message) => message.role === "user");
  setEditing(false);
  session.messages.push({ role: "user", content: text });
  field.value = "";
  fit();
  answerNow();
}

function regenerate() {
  if (running) return;
  const before = session.messages.at(-1)?.role === "assistant" ? session.messages.pop() : null;
  field.focus();
  answerNow(before);
}

function request() {
  const messages = session.messages
    .filter((message) => message.content)
    .map(({ role, content }) => ({ role, content }));
  if (session.system) messages.unshift({ role: "system", content: session.system });
  return {
    model: model?.id ?? "default",
    messages,
    stream: true,
    stream_options: { include_usage: true },
    ...requestOptions(),
  };
}

/** Asks the server; the answer `before` comes back where there is nothing in its place. */
async function answerNow(before = null) {
  const answer = new Answer();
  const controller = new AbortController();
  const view = new LiveView(answer);
  running = { answer, controller, view, before };
  notice();
  if (!before) keepSession(); // else the old answer stays in store until there is a new one
  draw();
  toEnd();
  const stopPainting = paintWhileWriting(answer, view);
  let error = null;
  try {
    for await (const chunk of chat(request(), controller.signal)) answer.apply(chunk);
  } catch (problem) {
    if (problem.name !== "AbortError") error = problem;
  }
  stopPainting();
  answer.close(controller.signal.aborted ? "cancelled" : error ? "error" : "stop");
  if (running?.answer !== answer) return; // another session was opened meanwhile
  running = null;
  finish(answer, error, before);
}

/** Paints at most once a frame, says whole sentences, and saves now and then. */
function paintWhileWriting(answer, view) {
  const voice = speech();
  let frame = 0;
  let saved = performance.now();
  const paint = () => {
    const follow = atEnd();
    view.paint();
    voice.follow(answer.text);
    if (follow) toEnd();
    if (performance.now() - saved > SAVE_EVERY_MS) {
      saved = performance.now();
      saveSoFar();
    }
    frame = requestAnimationFrame(paint);
  };
  frame = requestAnimationFrame(paint);
  return () => {
    cancelAnimationFrame(frame);
    voice.follow(answer.text, true);
  };
}

/** Keeps what is final of the running answer, in case the page goes away. */
function saveSoFar() {
  if (!running?.answer.text) return;
  const message = { ...running.answer.toMessage(), finish: "interrupted" };
  save({ ...session, messages: [...session.messages, message] });
}

function finish(answer, error, before) {
  const follow = atEnd();
  const got = answer.text || answer.reasoning;
  if (!got && before) session.messages.push(before);
  else if (got || !error) session.messages.push({ ...answer.toMessage(), error: error?.message });
  keepSession();
  draw();
  if (follow) toEnd();
  if (error && !got) explain(error);
  if (error && got) speech().say(error.message);
  if (answer.finish === "cancelled") speech().say("Stopped.");
}

function explain(error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) {
    askKey(() => regenerate());
  } else if (error.retryAfter) {
    wait(error);
  } else {
    notice(error.message);
  }
}

/** Counts down to when a server that is busy or not ready wants to be asked again. */
function wait(error) {
  const again = button("Ask again", regenerate);
  const left = el("span");
  let seconds = error.retryAfter;
  const tick = () => {
    again.disabled = seconds > 0;
    left.textContent = seconds > 0 ? `Ask again in ${seconds} s.` : "It may be free now.";
    if (seconds-- <= 0) clearInterval(waiting);
  };
  left.setAttribute("aria-live", "off"); // said once; the countdown is for the eye
  notice(el("span", {}, error.message), left, again);
  tick();
  waiting = setInterval(tick, 1000);
}

function stop() {
  running?.controller.abort();
}

function edit() {
  field.value = session.messages.findLast((message) => message.role === "user").content;
  setEditing(true);
  fit();
  field.focus();
}

function setEditing(on) {
  editing = on;
  byId("keys").textContent = on
    ? "Editing the last question; Enter asks it again, Escape leaves it as it was"
    : "Enter sends, Shift+Enter starts a new line";
}

// Sessions, key, model

function open(next) {
  stop();
  if (running) {
    const { answer, before } = running;
    answer.close("cancelled");
    const message = answer.text ? answer.toMessage() : before;
    if (message) session.messages.push(message);
    keepSession({ touch: false });
    running = null;
  }
  session = next;
  setEditing(false);
  notice();
  byId("system").value = session.system;
  if (session.messages.length) sessionStorage.setItem(CURRENT, session.id);
  else sessionStorage.removeItem(CURRENT);
  draw();
  toEnd();
  field.focus();
}

function changed(id, { removed = false } = {}) {
  if (id !== session.id) return;
  if (removed) {
    open(newSession(session.system));
    remove(id); // what was still being written has been kept once more
  } else {
    session.title = load(id)?.title ?? session.title;
    draw();
  }
}

function askKey(then) {
  const dialog = byId("ask-key");
  if (dialog.open) return;
  byId("asked-key").value = "";
  byId("key-refused").hidden = !apiKey();
  byId("key-form").onsubmit = (event) => {
    event.preventDefault();
    setApiKey(byId("asked-key").value.trim());
    byId("key").value = byId("asked-key").value.trim();
    dialog.close();
    if (!model) findModel();
    then();
  };
  dialog.showModal();
}

async function findModel() {
  try {
    const [first] = await models();
    model = first ? { id: first.id, n_ctx: first.parse?.n_ctx } : null;
    byId("model").textContent = model?.id ?? "";
    if (loading) notice();
    loading = false;
    drawContext();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) askKey(() => {});
    else notice(error.message);
    loading = error.status === 503;
    if (loading) setTimeout(findModel, 1000 * (error.retryAfter ?? 2));
  }
}

// Keyboard and buttons

function fit() {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, window.innerHeight / 3)}px`;
}

const showSessions = startSessions({ current: () => session.id, open, changed });
const verdicts = followVerdicts(byId("turns"), messageOf);

field.addEventListener("input", fit);
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => {
  stop();
  field.focus();
});
byId("open-sessions").addEventListener("click", showSessions);
byId("new-session").addEventListener("click", () => open(newSession(session.system)));
byId("open-options").addEventListener("click", () => byId("options").showModal());
byId("colours").addEventListener("click", () => {
  const on = document.body.classList.toggle("coloured");
  byId("colours").setAttribute("aria-pressed", String(on));
  byId("legend").hidden = !on;
  verdicts.hide();
});
for (const closing of document.querySelectorAll("dialog .close")) {
  closing.addEventListener("click", () => closing.closest("dialog").close());
}
document.addEventListener("keydown", (event) => {
  if (
    event.key.toLowerCase() === "k" &&
    (event.ctrlKey || event.metaKey) &&
    !event.altKey &&
    !event.shiftKey
  ) {
    event.preventDefault();
    if (byId("sessions").open) byId("sessions").close();
    else if (!document.querySelector("dialog[open]")) showSessions();
  }
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]"))
    return;
  if (verdicts.isShown()) verdicts.hide();
  else if (running) stop();
  else if (editing) {
    field.value = "";
    setEditing(false);
    fit();
  }
});
window.addEventListener("pagehide", () => {
  saveSoFar();
  running?.answer.close("interrupted"); // the stream breaks off now, and that is no error
});
window.addEventListener("storage", () => {
  if (running || !session.messages.length) return; // another tab may have gone on with it
  session = load(session.id) ?? newSession(session.system);
  draw();
});
window.addEventListener("resize", () => markScrollable(byId("turns")));

startOptions({
  onSystem: (system) => {
    if (system === session.system) return;
    session.system = system;
    keepSession({ touch: false });
  },
  onKey: findModel,
});
byId("system").value = session.system;
draw();
toEnd();
field.focus();
findModel();
