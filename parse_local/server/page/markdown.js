// Markdown → blocks (pure). Only what models write: paragraphs, headings, lists, quotes,
// tables, rules, code, bold, italic, struck, links as text. HTML stays text.
//
// Everything shown is a slice of the source and knows its offsets, so that who wrote it and
// where it was judged can be drawn into the rendered text.

const MAX_DEPTH = 12;
const FENCE = /^( *)(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const DELIMITER = /^ *\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/**
 * The blocks of a text, from an offset on that begins a block.
 *
 * @returns {Array<Object>} each with `type`, `start` (offset of its first line) and its parts.
 */
export function parse(source, from = 0) {
  const lines = [];
  for (let start = from; start <= source.length;) {
    let end = source.indexOf("\n", start);
    if (end < 0) end = source.length;
    lines.push({ start, end: source[end - 1] === "\r" && end > start ? end - 1 : end });
    start = end + 1;
  }
  return parseLines(source, lines, 0);
}

/**
 * The blocks of a growing text that stay as they are, whatever is appended to it: of those
 * made of whole lines all but the last.
 *
 * @returns {Array} these blocks, and the block that comes behind them so far, or null.
 */
export function settled(source, from = 0) {
  const blocks = parse(source.slice(0, source.lastIndexOf("\n") + 1), from);
  const last = blocks.pop() ?? null;
  return [blocks, last];
}

function parseLines(source, lines, depth) {
  const blocks = [];
  const text = (line) => source.slice(line.start, line.end);
  for (let i = 0; i < lines.length;) {
    const line = text(lines[i]);
    if (!line.trim()) {
      i++;
      continue;
    }
    const read = blockAt(source, lines, i, depth);
    blocks.push({ start: lines[i].start, ...read.block });
    i = read.next;
  }
  return blocks;
}

function blockAt(source, lines, i, depth) {
  const text = (n) => source.slice(lines[n].start, lines[n].end);
  const line = text(i);
  const fence = FENCE.exec(line);
  if (fence) return fenceAt(text, lines, i, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const start = lines[i].start + line.indexOf(heading[2], heading[1].length);
    const content = [{ start, end: start + heading[2].length }];
    return { block: { type: "heading", level: heading[1].length, content }, next: i + 1 };
  }
  if (RULE.test(line)) return { block: { type: "rule" }, next: i + 1 };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quoteAt(source, lines, i, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return listAt(source, lines, i, depth);
  if (/^(?: {4}|\t)/.test(line)) return indentedAt(text, lines, i);
  if (isTable(text, lines, i)) return tableAt(text, lines, i);
  let next = i + 1;
  while (next < lines.length && !interrupts(text, lines, next, depth)) next++;
  const content = lines.slice(i, next).map((l) => trim(source, l));
  return { block: { type: "paragraph", content }, next };
}

/** Whether line `n` ends a paragraph that stands before it. */
function interrupts(text, lines, n, depth) {
  const line = text(n);
  if (!line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth < MAX_DEPTH && (QUOTE.test(line) || /^ *(?:[-*+]|\d{1,9}[.)])[ \t]+\S/.test(line)))
    return true;
  return isTable(text, lines, n);
}

function trim(source, { start, end }) {
  while (start < end && /[ \t]/.test(source[start])) start++;
  while (end > start && /[ \t]/.test(source[end - 1])) end--;
  return { start, end };
}

function fenceAt(text, lines, i, [, indent, fence, info]) {
  let next = i + 1;
  const closes = (line) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");
  while (next < lines.length && !closes(text(next))) next++;
  const content = lines.slice(i + 1, next).map((l, k) => {
    const own = /^ */.exec(text(i + 1 + k))[0].length;
    return { start: l.start + Math.min(own, indent.length), end: l.end };
  });
  const open = next >= lines.length;
  // The empty line behind the text's last line break is no line of the code.
  if (open && content.length && content.at(-1).start >= content.at(-1).end) content.pop();
  return { block: { type: "code", language: info.trim(), content, open }, next: next + 1 };
}

function indentedAt(text, lines, i) {
  let next = i;
  while (next < lines.length && (/^(?: {4}|\t)/.test(text(next)) || !text(next).trim())) next++;
  while (!text(next - 1).trim()) next--;
  const content = lines.slice(i, next).map(({ start, end }, k) => {
    const n = text(i + k).startsWith("\t") ? 1 : 4;
    return { start: Math.min(start + n, end), end };
  });
  return { block: { type: "code", language: "", content }, next };
}

function quoteAt(source, lines, i, depth) {
  const inner = [];
  let next = i;
  for (; next < lines.length; next++) {
    const { start, end } = lines[next];
    const marker = QUOTE.exec(source.slice(start, end));
    if (!marker) break;
    inner.push({ start: start + marker[0].length, end });
  }
  return { block: { type: "quote", blocks: parseLines(source, inner, depth + 1) }, next };
}

function listAt(source, lines, i, depth) {
  const text = (n) => source.slice(lines[n].start, lines[n].end);
  const first = ITEM.exec(text(i));
  const ordered = /\d/.test(first[2]);
  const sort = first[2].at(-1);
  const indent = first[1].length;
  const items = [];
  let loose = false;
  let next = i;
  while (next < lines.length) {
    const marker = ITEM.exec(text(next));
    if (!marker || RULE.test(text(next))) break;
    if (marker[2].at(-1) !== sort || marker[1].length > indent + 1) break;
    const inner = [{ start: lines[next].start + marker[0].length, end: lines[next].end }];
    const width = Math.min(marker[0].length, marker[1].length + marker[2].length + 1);
    let blank = false;
    let inFence = FENCE.test(text(next).slice(marker[0].length));
    for (next++; next < lines.length; next++) {
      const line = text(next);
      const own = /^ */.exec(line)[0].length;
      const item = ITEM.exec(line);
      if (!line.trim()) {
        blank = true;
      } else if (own > indent + 1 && (own >= width || item || !blank || inFence)) {
        if (blank && !inFence && own < width + 2 && !item) loose = true;
        blank = false;
        if (FENCE.test(line)) inFence = !inFence;
      } else if (blank || item || interrupts(text, lines, next, depth)) {
        break; // another item, or not of this list
      }
      const { start, end } = lines[next];
      inner.push({ start: Math.min(start + Math.min(own, width), end), end });
    }
    items.push(parseLines(source, inner, depth + 1));
    const another = next < lines.length && ITEM.exec(text(next));
    if (blank && another && another[2].at(-1) === sort && another[1].length <= indent + 1)
      loose = true;
  }
  const start = ordered ? Number.parseInt(first[2], 10) : null;
  return { block: { type: "list", ordered, number: start, items, loose }, next };
}

function isTable(text, lines, i) {
  return (
    i + 1 < lines.length &&
    text(i).includes("|") &&
    text(i + 1).includes("-") &&
    DELIMITER.test(text(i + 1)) &&
    cells(text(i)).length === cells(text(i + 1)).length
  );
}

/** The cells of a table's row, as pairs of offsets into the line. */
function cells(line) {
  const found = [];
  let start = line.search(/\S/);
  if (line[start] === "|") start++;
  for (let at = start; at <= line.length; at++) {
    if (line[at] === "\\") at++;
    else if (line[at] === "|" || at === line.length) {
      if (at < line.length || line.slice(start).trim()) found.push([start, at]);
      start = at + 1;
    }
  }
  return found;
}

function tableAt(text, lines, i) {
  const row = (n) =>
    cells(text(n)).map(([start, end]) => {
      const space = /^[ \t]*/.exec(text(n).slice(start, end))[0].length;
      const content = text(n).slice(start, end).trim();
      const at = lines[n].start + start + space;
      return [{ start: at, end: at + content.length }];
    });
  const align = cells(text(i + 1)).map(([start, end]) => {
    const mark = text(i + 1)
      .slice(start, end)
      .trim();
    if (!mark.endsWith(":")) return "";
    return mark.startsWith(":") ? "middle" : "end";
  });
  let next = i + 2;
  const rows = [];
  while (next < lines.length && text(next).trim() && text(next).includes("|"))
    rows.push(row(next++));
  return { block: { type: "table", head: row(i), rows, align }, next };
}

// Inline

/** Text of several slices as one string, with a way back to offsets. */
export function join(source, content) {
  let text = "";
  const starts = [];
  for (const { start, end } of content) {
    if (text || starts.length) text += "\n";
    starts.push([text.length, start]);
    text += source.slice(start, end);
  }
  return { text, starts };
}

const ESCAPED = /[\\`*_~#|]/;

/** A joined text → its tree: ranges `[start, end]` of it, and `{tag, children}`. */
export const inlineTree = (text) => inline(text, 0, text.length, 0, new Set());

// `closed` remembers what is not closed before `to`, so that nobody looks for it again.
function inline(text, from, to, depth, closed) {
  const found = [];
  let plain = from;
  const flush = (end) => end > plain && found.push([plain, end]);
  for (let i = from; i < to;) {
    const read = inlineAt(text, i, to, depth, closed);
    if (!read) {
      i++;
      continue;
    }
    flush(i);
    found.push(...read.nodes);
    i = plain = read.next;
  }
  flush(to);
  return found;
}

function inlineAt(text, i, to, depth, closed) {
  const character = text[i];
  if (character === "\\" && i + 1 < to && ESCAPED.test(text[i + 1])) {
    return { nodes: [[i + 1, i + 2]], next: i + 2 };
  }
  if (character === "`") return codeAt(text, i, to, closed);
  if (character === "[" || (character === "!" && text[i + 1] === "["))
    return linkAt(text, i, to, depth, closed);
  if ("*_~".includes(character) && depth < MAX_DEPTH) return emphasisAt(text, i, to, depth, closed);
  return null;
}

function codeAt(text, i, to, closed) {
  let n = 1;
  while (text[i + n] === "`") n++;
  const key = "`".repeat(n);
  if (closed.has(`${key} ${to}`)) return { nodes: [[i, i + n]], next: i + n };
  for (let end = text.indexOf(key, i + n); end >= 0 && end + n <= to;) {
    let run = n;
    while (text[end + run] === "`") run++;
    if (run === n) {
      const padded = end - i - n > 2 && text[i + n] === " " && text[end - 1] === " ";
      const pad = padded ? 1 : 0;
      return { nodes: [{ tag: "code", children: [[i + n + pad, end - pad]] }], next: end + n };
    }
    end = text.indexOf(key, end + run);
  }
  closed.add(`${key} ${to}`); // not closed from here, so from nowhere behind either
  return { nodes: [[i, i + n]], next: i + n };
}

function linkAt(text, i, to, depth, closed) {
  const open = text.indexOf("[", i);
  const rest = text.slice(open + 1, Math.min(to, open + 2000));
  const link =
    /^([^[\]\n]*)\]\(<?([^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*)>?(?:[ \t]+"[^"\n]*")?\)/.exec(rest);
  if (!link) return null;
  const [whole, label, address] = link;
  const nodes = inline(text, open + 1, open + 1 + label.length, depth + 1, closed);
  const at = open + 1 + whole.indexOf(address, label.length + 2);
  // The address is shown, never followed: a model may write any address under any words.
  if (address && address !== label)
    nodes.push({ tag: "span.address", children: [[at, at + address.length]] });
  return { nodes, next: open + 1 + whole.length };
}

const WORD = /[\p{L}\p{N}]/u;

function emphasisAt(text, i, to, depth, closed) {
  const character = text[i];
  let n = 1;
  while (i + n < to && text[i + n] === character) n++;
  const whole = { nodes: [[i, i + n]], next: i + n };
  if (n > 3 || (character === "~" && n !== 2)) return whole;
  if (/\s/.test(text[i + n] ?? " ")) return whole;
  if (character === "_" && i > 0 && WORD.test(text[i - 1])) return whole;
  const key = character.repeat(n);
  if (closed.has(`${key} ${to}`)) return whole;
  const end = closer(text, i + n, to, key);
  if (end < 0) {
    closed.add(`${key} ${to}`);
    return whole;
  }
  let children = inline(text, i + n, end, depth + 1, new Set());
  if (n === 3) children = [{ tag: "em", children }];
  const tag = character === "~" ? "s" : n === 1 ? "em" : "strong";
  return { nodes: [{ tag, children }], next: end + n };
}

/** Where emphasis opened by `key` before `from` is closed; -1 if nowhere. */
function closer(text, from, to, key) {
  for (let i = from; i < to; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "`") i = skipCode(text, i, to);
    else if (text[i] === key[0]) {
      let n = 1;
      while (i + n < to && text[i + n] === key[0]) n++;
      const fits = n === key.length || (n === 3 && key.length < 3);
      const left = !/\s/.test(text[i - 1]);
      const right = key[0] !== "_" || !WORD.test(text[i + n] ?? " ");
      if (fits && left && right && i > from)
        return n === 3 && key.length < 3 ? i + 3 - key.length : i;
      i += n - 1;
    }
  }
  return -1;
}

function skipCode(text, i, to) {
  let n = 1;
  while (text[i + n] === "`") n++;
  const end = text.indexOf("`".repeat(n), i + n);
  return end < 0 || end >= to ? i + n - 1 : end + n - 1;
}
