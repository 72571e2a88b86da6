// Final text for screen readers: whole sentences, never token by token.

const END = /[.!?…。！？](?:["'”’)\]]*)(?=\s)|\n/g;
const LONGEST = 300;

/**
 * The first characters of a text that are worth saying now.
 *
 * @param {string} text final text that was not said yet.
 * @returns {number} up to the last end of a sentence or line; of a text without any, up to
 *   its last word once it is long; else 0.
 */
export function sayable(text) {
  let end = 0;
  for (const match of text.matchAll(END)) end = match.index + match[0].length;
  if (!end && text.length > LONGEST) end = text.lastIndexOf(" ", LONGEST) + 1 || LONGEST;
  return end;
}

/** Says an answer in a live region as it becomes final. */
export class Speech {
  #said = 0;

  /** @param {HTMLElement} region with `aria-live`. */
  constructor(region) {
    this.region = region;
  }

  /** Says what is new in `text`; all of it once it is `finished`. */
  follow(text, finished = false) {
    const fresh = text.slice(this.#said);
    const n = finished ? fresh.length : sayable(fresh);
    if (!n) return;
    this.#said += n;
    this.say(fresh.slice(0, n));
  }

  /** Says a text. */
  say(text) {
    if (!text.trim()) return;
    const piece = document.createElement("p");
    piece.textContent = text.trim();
    this.region.append(piece);
    while (this.region.childElementCount > 20) this.region.firstElementChild.remove();
  }
}
