// Elements without HTML strings: whatever a model wrote only ever becomes a text node.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/**
 * A new element.
 *
 * @param {string} tag with classes: "p.quiet".
 * @param {Object} properties set on it; functions named on… become listeners, names with a
 *   dash and `role` attributes.
 * @param {...(Node|string|null|Array)} children appended; null is left out.
 */
export function el(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (key.includes("-") || key === "role") node.setAttribute(key, value);
    else node[key] = value;
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

/** A button with a word on it. */
export const button = (text, onclick, properties = {}) =>
  el("button", { type: "button", onclick, ...properties }, text);

/** Puts text on the clipboard and says so on the button for a moment. */
export async function copy(text, from) {
  const before = from.textContent;
  try {
    await writeClipboard(text);
    from.textContent = "Copied";
  } catch {
    from.textContent = "Not allowed here";
  }
  setTimeout(() => (from.textContent = before), 1500);
}

async function writeClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Over plain HTTP from another machine browsers offer the old way only.
  const field = el("textarea.unseen", { value: text });
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  if (!done) throw new Error("not copied");
}

/** Offers text as a file. */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Makes what scrolls sideways reachable with the keyboard, and only that. */
export function markScrollable(root) {
  for (const box of root.querySelectorAll("pre, .table")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
