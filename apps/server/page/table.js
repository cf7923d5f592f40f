// Tables of Markdown: cells between bars, and a second line that says how columns are aligned.
import {make} from "./dom.js";
import {writeInline} from "./inline.js";

const MOST_COLUMNS = 64;

// The cells [from, to) of a line from character `from` on, without the spaces around them; a bar after a backslash, or
// inside of code, is text.
export function cellsOf(text, from) {
  const cells = [];
  let end = text.length;
  while (from < end && /\s/.test(text[from])) ++from;
  while (end > from && /\s/.test(text[end - 1])) --end;
  if (text[from] === "|") ++from;
  if (end > from && text[end - 1] === "|" && text[end - 2] !== "\\") --end;
  let code = false;
  for (let at = from; at <= end; ++at) {
    if (at < end && text[at] === "\\") ++at;
    else if (at < end && text[at] === "`") code = !code && text.indexOf("`", at + 1) > 0;
    else if (at >= end || (text[at] === "|" && !code && cells.length < MOST_COLUMNS - 1)) {
      let first = from, last = Math.min(at, end);
      while (first < last && /\s/.test(text[first])) ++first;
      while (last > first && /\s/.test(text[last - 1])) --last;
      cells.push([first, last]);
      from = at + 1;
    }
  }
  return cells;
}

// Of the line below a table's head: "", "left", "right" or "center" for each column; null where it is another line.
export function alignments(text) {
  if (!/^[\s|:-]+$/.test(text) || !text.includes("-") || !text.includes("|")) return null;
  const cells = cellsOf(text, 0).map(([from, to]) => text.slice(from, to));
  if (!cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => {
    if (cell.endsWith(":")) return cell[0] === ":" ? "center" : "right";
    return cell[0] === ":" ? "left" : "";
  });
}

// A row; the head's has as many cells as there are columns, and none of another row is lost.
export function writeRow(row, tag, reader, text, cells, sides) {
  for (let i = 0; i < Math.max(cells.length, sides.length); ++i) {
    const cell = make(tag, {class: sides[i] || null, scope: tag === "th" ? "col" : null});
    if (cells[i]) writeInline(cell, reader, text, ...cells[i]);
    row.append(cell);
  }
}

// An empty table that scrolls by itself where it is too wide.
export function makeTable() {
  const head = make("tr"), body = make("tbody");
  const table = make("table", {}, make("thead", {}, head), body);
  return {node: make("div", {class: "table", tabindex: 0, role: "group", "aria-label": "Table"}, table), head, body};
}
