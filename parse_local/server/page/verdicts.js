// Who wrote what and where it was judged, drawn into a text; the verdicts' tip.

import { describe } from "./answer.js";
import { byId, el } from "./dom.js";

/**
 * A leaf for `markdown_view.render`: slices cut where the writer changes and at verdicts.
 *
 * Each piece knows the verdict at its end (`data-mark`), so that pointing at any of it shows
 * that verdict. A mark whose place is Markdown's own syntax comes with the next text.
 *
 * @param {Object} message with `content`, `spans` and `marks`.
 * @param {number} from where the drawing begins; verdicts before it are left out.
 */
export function leafOf({ content, spans = [], marks = [] }, from = 0) {
  const writers = [];
  let at = 0;
  for (const [length, source] of spans) writers.push([at, (at += length), source]);
  const order = marks
    .map((mark, index) => ({ mark, index }))
    .filter(({ mark }) => mark.at >= from)
    .sort((a, b) => a.mark.at - b.mark.at);
  const shown = new Set();

  return (start, end) => {
    const nodes = [];
    const due = () => {
      for (const { mark, index } of order) {
        if (shown.has(index) || mark.at > start) continue;
        shown.add(index);
        nodes.push(marker(mark, index));
      }
    };
    while (start < end) {
      due();
      const writer = writers.find(([a, b]) => a <= start && start < b);
      const next = order.find(({ mark, index }) => !shown.has(index) && mark.at > start);
      const stop = Math.min(end, writer?.[1] ?? end, next?.mark.at ?? end);
      const piece = el("span", {}, content.slice(start, stop));
      if (writer) piece.className = writer[2] === "draft" ? "by-draft" : "by-target";
      if (next && writer?.[2] === "draft") piece.dataset.mark = next.index;
      nodes.push(piece);
      start = stop;
    }
    due();
    return nodes;
  };
}

function marker(mark, index) {
  const cut = mark.round && mark.round.kept < mark.round.drafted;
  const node = el(cut ? "button.mark.cut" : "button.mark", {
    type: "button",
    tabIndex: -1,
    "aria-label": `Verdict: ${describe(mark).join(". ")}`,
  });
  node.dataset.mark = index;
  return node;
}

/**
 * Lets the verdicts below `root` be pointed at and walked through with the arrow keys.
 *
 * @param {HTMLElement} root holds answers, each in a `.text`.
 * @param {function(HTMLElement): Object} messageOf the message that a `.text` shows.
 */
export function followVerdicts(root, messageOf) {
  const tip = byId("tip");
  let hiding = 0;

  function show(target) {
    const text = target.closest(".text");
    const index = target.dataset.mark;
    const mark = messageOf(text)?.marks?.[index];
    const at = text?.querySelector(`.mark[data-mark="${index}"]`) ?? target;
    if (!mark) return;
    hide();
    const [first, ...others] = describe(mark);
    tip.replaceChildren(el("strong", {}, first), ...others.map((line) => el("span", {}, line)));
    for (const piece of text.querySelectorAll(`[data-mark="${index}"]`))
      piece.classList.add("pointed");
    tip.hidden = false;
    place(at.getBoundingClientRect());
  }

  function place(rect) {
    const { offsetWidth: width, offsetHeight: height } = tip;
    const below = rect.bottom + 8 + height < window.innerHeight;
    const left = Math.max(8, Math.min(rect.left - 16, window.innerWidth - width - 8));
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? rect.bottom + 8 : Math.max(8, rect.top - height - 8)}px`;
  }

  function hide() {
    clearTimeout(hiding);
    tip.hidden = true;
    for (const piece of root.querySelectorAll(".pointed")) piece.classList.remove("pointed");
  }

  const coloured = () => document.body.classList.contains("coloured");
  root.addEventListener("pointerover", (event) => {
    const target = event.target.closest("[data-mark]");
    if (!coloured() || !target) return;
    clearTimeout(hiding);
    show(target);
  });
  const leave = () => {
    clearTimeout(hiding);
    hiding = setTimeout(hide, 250); // time to move onto the tip itself
  };
  root.addEventListener("pointerout", leave);
  tip.addEventListener("pointerover", () => clearTimeout(hiding));
  tip.addEventListener("pointerout", leave);
  root.addEventListener("focusin", (event) => {
    const target = event.target.closest(".mark");
    if (target) show(target);
  });
  root.addEventListener("focusout", hide);
  root.addEventListener("click", (event) => {
    if (event.target.matches(".mark")) show(event.target);
  });
  document.addEventListener("scroll", () => !tip.hidden && hide(), { passive: true });
  root.addEventListener("keydown", (event) => {
    const from = event.target.closest(".mark");
    if (!from) return;
    const marks = [...from.closest(".text").querySelectorAll(".mark")];
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to =
      { Home: marks[0], End: marks.at(-1) }[event.key] ??
      (step && marks[marks.indexOf(from) + step]);
    if (!to) return;
    event.preventDefault();
    rove(marks, to);
    to.focus();
  });

  return { hide, isShown: () => !tip.hidden };
}

/** One stop for Tab in each answer; the arrow keys do the rest. */
function rove(marks, to) {
  for (const mark of marks) mark.tabIndex = mark === to ? 0 : -1;
}

/** Makes the first verdict of a drawn answer the one that Tab comes to. */
export function startRoving(text) {
  const marks = [...text.querySelectorAll(".mark")];
  if (marks.length) rove(marks, marks[0]);
}
