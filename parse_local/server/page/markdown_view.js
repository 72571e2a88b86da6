// Blocks of Markdown → DOM nodes.

import { button, copy, el } from "./dom.js";
import { inlineTree, join } from "./markdown.js";

/**
 * Draws blocks.
 *
 * @param {string} source the whole text.
 * @param {Array<Object>} blocks of `markdown.parse`.
 * @param {function(number, number): Node[]} leaf nodes for a slice of the source.
 * @returns {Node[]} one for each block.
 */
export function render(source, blocks, leaf) {
  return blocks.map((block) => BLOCKS[block.type](block, source, leaf));
}

function words(content, source, leaf) {
  const { text, starts } = join(source, content);
  const draw = (node) => (Array.isArray(node) ? slices(node, starts, leaf) : [element(node, draw)]);
  return inlineTree(text).flatMap(draw);
}

function element({ tag, children }, draw) {
  return el(tag, {}, children.flatMap(draw));
}

/** Nodes for a range of the joined text, which may go over several slices of the source. */
function slices([from, to], starts, leaf) {
  const nodes = [];
  for (let k = 0; k < starts.length; k++) {
    const [at, start] = starts[k];
    const end = k + 1 < starts.length ? starts[k + 1][0] - 1 : Infinity; // its line break
    if (at > 0 && from < at && to >= at) nodes.push(document.createTextNode("\n"));
    const [a, b] = [Math.max(from, at), Math.min(to, end)];
    if (a < b) nodes.push(...leaf(start + a - at, start + b - at));
  }
  return nodes;
}

const BLOCKS = {
  paragraph: (block, source, leaf) => el("p", {}, words(block.content, source, leaf)),
  // An answer stands below the page's own heading "Answer", an h3.
  heading: (block, source, leaf) =>
    el(
      `h${Math.min(6, block.level + 3)}.level-${block.level}`,
      {},
      words(block.content, source, leaf),
    ),
  rule: () => el("hr"),
  quote: (block, source, leaf) => el("blockquote", {}, render(source, block.blocks, leaf)),
  list: (block, source, leaf) => {
    const items = block.items.map((blocks) => el("li", {}, render(source, blocks, leaf)));
    const list = el(block.ordered ? "ol" : "ul", {}, items);
    if (block.ordered && block.number !== 1) list.start = block.number;
    if (!block.loose) list.classList.add("tight");
    return list;
  },
  table: (block, source, leaf) => {
    const row = (cells, tag) =>
      el(
        "tr",
        {},
        block.align.map((align, k) => {
          const cell = el(tag, {}, words(cells[k] ?? [], source, leaf));
          if (align) cell.classList.add(align);
          if (tag === "th") cell.scope = "col";
          return cell;
        }),
      );
    const head = el("thead", {}, row(block.head, "th"));
    const body = el(
      "tbody",
      {},
      block.rows.map((cells) => row(cells, "td")),
    );
    return el("div.table", { role: "region", "aria-label": "Table" }, el("table", {}, head, body));
  },
  code: (block, source, leaf) => {
    const code = el("code");
    block.content.forEach(({ start, end }, k) => {
      if (k) code.append("\n");
      if (start < end) code.append(...leaf(start, end));
    });
    const text = block.content.map(({ start, end }) => source.slice(start, end)).join("\n");
    const name = block.language.split(/\s/)[0];
    const copying = button("Copy", (event) => copy(text, event.currentTarget), {
      "aria-label": "Copy the code",
    });
    const label = name ? `Code, ${name}` : "Code";
    return el(
      "figure.code",
      {},
      el("figcaption", {}, el("span", {}, name), copying),
      el("pre", { role: "region", "aria-label": label }, code),
    );
  },
};
