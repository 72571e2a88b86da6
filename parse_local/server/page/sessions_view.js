// The panel of sessions: find, open, rename, export, import, delete.

import { button, byId, download, el } from "./dom.js";
import { fromJson, listSessions, remove, save, titleOf, toJson, toMarkdown } from "./sessions.js";

const MAX_FILE = 10_000_000;

/**
 * @param {Object} chat `current()` the id of the open session, `open(session)`, and
 *   `changed(id)` where a session was renamed or, with `removed`, deleted.
 */
export function startSessions(chat) {
  const dialog = byId("sessions");
  const say = (text) => (byId("sessions-note").textContent = text);

  function draw() {
    const wanted = byId("find").value.trim().toLowerCase();
    const all = listSessions();
    const found = all.filter((session) => !wanted || matches(session, wanted));
    byId("session-list").replaceChildren(...found.map(row));
    byId("no-sessions").hidden = found.length > 0;
    byId("no-sessions").textContent = all.length
      ? "No session has these words."
      : "Nothing is saved yet. Chats are kept in this browser only.";
  }

  function row(session) {
    const title = titleOf(session);
    const opening = button(title, () => open(session), { className: "open" });
    if (session.id === chat.current()) opening.setAttribute("aria-current", "true");
    const time = el(
      "time.quiet",
      { dateTime: new Date(session.updated).toISOString() },
      when(session.updated),
    );
    const line = el("li", {}, opening, time);
    const actions = el(
      "p.actions",
      {},
      button("Rename", () => rename(session, line), { "aria-label": `Rename ${title}` }),
      button(
        "Export Markdown",
        () => download(fileName(title, "md"), "text/markdown", toMarkdown(session)),
        {
          "aria-label": `Export Markdown of ${title}`,
        },
      ),
      button(
        "Export JSON",
        () => download(fileName(title, "json"), "application/json", toJson(session)),
        {
          "aria-label": `Export JSON of ${title}`,
        },
      ),
      button("Delete", (event) => reallyRemove(session, event.currentTarget), {
        "aria-label": `Delete ${title}`,
      }),
    );
    line.append(actions);
    return line;
  }

  function open(session) {
    dialog.close();
    chat.open(session);
  }

  function rename(session, line) {
    const field = el("input", { value: titleOf(session), "aria-label": "New name" });
    const done = (take) => {
      if (take && field.value.trim()) {
        session.title = field.value.trim();
        save(session, { touch: false });
        chat.changed(session.id);
      }
      draw();
      focusRow(session.id);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      done(event.key === "Enter");
    });
    const form = el(
      "div.rename",
      {},
      field,
      button("Save", () => done(true)),
      button("Cancel", () => done(false)),
    );
    line.replaceChildren(form);
    field.select();
    field.focus();
  }

  function focusRow(id) {
    const at = listSessions().findIndex((session) => session.id === id);
    (byId("session-list").querySelectorAll(".open")[at] ?? byId("find")).focus();
  }

  // Asked on the button itself: a second press deletes.
  function reallyRemove(session, pressed) {
    if (!pressed.classList.contains("sure")) {
      pressed.classList.add("sure");
      pressed.textContent = "Really delete";
      pressed.setAttribute("aria-label", `Really delete ${titleOf(session)}`);
      pressed.addEventListener("blur", draw, { once: true });
      return;
    }
    remove(session.id);
    say(`Deleted: ${titleOf(session)}`);
    chat.changed(session.id, { removed: true });
    draw();
    byId("find").focus();
  }

  async function importFile(file) {
    try {
      if (file.size > MAX_FILE)
        throw new Error("This file is larger than 10 MB; import a smaller one.");
      const sessions = fromJson(await file.text());
      if (!sessions.every((session) => save(session, { touch: false }))) {
        throw new Error("This browser has no room left; delete sessions first.");
      }
      say(
        sessions.length === 1
          ? `Imported: ${titleOf(sessions[0])}`
          : `Imported ${sessions.length} sessions`,
      );
    } catch (error) {
      say(error.message);
    }
    draw();
  }

  byId("find").addEventListener("input", draw);
  byId("find").addEventListener("keydown", (event) => {
    const first = byId("session-list").querySelector(".open");
    if (!first || !["Enter", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Enter") first.click();
    else first.focus();
  });
  byId("session-list").addEventListener("keydown", (event) => {
    if (!event.target.matches(".open") || !["ArrowDown", "ArrowUp"].includes(event.key)) return;
    const rows = [...byId("session-list").querySelectorAll(".open")];
    const to = rows[rows.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
    event.preventDefault();
    (to ?? (event.key === "ArrowUp" ? byId("find") : event.target)).focus();
  });
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) await importFile(file);
    event.target.value = "";
  });
  window.addEventListener("storage", () => dialog.open && draw());

  return function show() {
    byId("find").value = "";
    say("");
    draw();
    dialog.showModal();
    byId("find").focus();
  };
}

const matches = (session, wanted) =>
  [titleOf(session), ...session.messages.map((message) => message.content)].some((text) =>
    text.toLowerCase().includes(wanted),
  );

function when(time) {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  return today
    ? date.toLocaleTimeString([], { timeStyle: "short" })
    : date.toLocaleDateString([], { dateStyle: "medium" });
}

function fileName(title, ending) {
  const name = title
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 50);
  return `${name || "chat"}.${ending}`;
}
