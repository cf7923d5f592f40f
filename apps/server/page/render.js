// An answer on the page, drawn as it arrives: Markdown line by line, with a tint per depth. Finished lines are not touched
// again but for the head of a table and for displayed math, which only the next lines tell; the line that is still being
// written is redrawn in each frame.
import {make} from "./dom.js";
import {CodeBlock} from "./code.js";
import {PieceReader, writeInline} from "./inline.js";
import {toMath} from "./math.js";
import {alignments, cellsOf, makeTable, writeRow} from "./table.js";

const LONGEST_LINE = 2000;   // characters; the line goes on in a new piece, so that redrawing stays cheap
const LONGEST_BLOCK = 6000;  // likewise for paragraphs, which the browser lays out as a whole
const DEEPEST_QUOTE = 6;
const DEEPEST_LIST = 6;

const FENCE = /^([ \t]*)(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const ITEM = /^([ \t]*)(?:[-*+]|(\d{1,9})[.)])(?:\s+|$)/;
const DISPLAYED = /^\s*(\$\$|\\\[)/;
const widthOf = (space) => space.replaceAll("\t", "    ").length;
const isRule = (text) => text.length < 200 && /^(?:-{3,}|\*{3,}|_{3,})$/.test(text.replace(/\s+/g, ""));

// How many quotation marks a line begins with (at most `most`), and where what they quote begins.
function quoted(text, most) {
  let depth = 0, at = 0;
  while (depth < most) {
    let next = at;
    while (next < at + 4 && text[next] === " ") ++next;
    if (text[next] !== ">") break;
    ++depth;
    at = next + 1;
    if (text[at] === " ") ++at;
  }
  return {depth, at};
}

export class AnswerView {
  constructor(root) {
    this.root = root;
    this.queue = [];        // pieces that came since the last frame
    this.line = [];         // pieces of the line being written
    this.length = 0;        // its characters
    this.continues = false; // it is the rest of a line that was too long
    this.block = null;      // {kind, ...}: what the next line may belong to; never changed once a frame has seen it
    this.quotes = [];       // the quotations that are open, outermost first
    this.drawn = null;      // how to take back the drawing of the line being written
  }

  append(text, depth) { this.queue.push({text, depth}); }

  drain() {
    if (!this.queue.length) return;
    this.takeBack();
    for (const {text, depth} of this.queue) {
      let from = 0;
      for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
        this.add(text.slice(from, end), depth);
        this.endLine(true);
        from = end + 1;
      }
      this.add(text.slice(from), depth);
    }
    this.queue = [];
  }

  // To the line, which ends where it is too long, but not inside a character of two halves.
  add(text, depth) {
    while (this.length + text.length > LONGEST_LINE) {
      let room = LONGEST_LINE - this.length;
      if (/[\ud800-\udbff]/.test(text[room - 1] ?? "")) --room;
      if (room > 0) this.line.push({text: text.slice(0, room), depth});
      text = text.slice(room);
      this.endLine(false);
    }
    if (!text) return;
    this.line.push({text, depth});
    this.length += text.length;
  }

  endLine(ended) {
    this.place(ended);
    this.line = [];
    this.length = 0;
    this.continues = !ended;
  }

  // Draws what came, and the line being written; to be called once per frame.
  flush() {
    this.drain();
    if (this.drawn || !this.length) return;
    this.drawn = {made: [], block: this.block, quotes: this.quotes};
    this.place(false);
  }

  finish() {
    this.drain();
    this.takeBack();
    if (this.length) this.endLine(true);
  }

  takeBack() {
    if (!this.drawn) return;
    for (const node of this.drawn.made) node.remove();
    this.block = this.drawn.block;
    this.quotes = this.drawn.quotes;
    this.drawn = null;
  }

  attach(parent, node) {
    parent.append(node);
    this.drawn?.made.push(node);
    return node;
  }

  parent() { return this.quotes.at(-1) ?? this.root; }

  // The line from character `from` on, with its Markdown.
  write(node, text, from) {
    writeInline(node, new PieceReader(this.line), text, from, text.length);
    return node;
  }

  place(ended) {
    const text = this.line.map((piece) => piece.text).join("");
    const inside = this.block?.kind === "code" || this.block?.kind === "math";
    let from = 0;
    if (!this.continues) {
      const {depth, at} = quoted(text, inside ? this.quotes.length : DEEPEST_QUOTE);
      from = at;
      this.quote(depth);
    }
    const rest = text.slice(from);
    if (this.block?.kind === "code") this.placeCode(text, from, ended);
    else if (this.block?.kind === "math") this.placeMath(rest, ended);
    else if (this.continues) this.placeText(text, 0, false);
    else if (!rest.trim()) this.blank();
    else if (!this.placeBlock(text, rest, from, ended)) this.placeText(text, from, true);
  }

  quote(depth) {
    if (depth === this.quotes.length) return;
    if (depth < this.quotes.length) this.quotes = this.quotes.slice(0, depth);
    this.block = null;
    while (this.quotes.length < depth) this.quotes = [...this.quotes, this.attach(this.parent(), make("blockquote"))];
  }

  // An empty line ends everything but a list, which may go on after it.
  blank() {
    this.block = this.block?.kind === "item" ? {...this.block, blank: true} : null;
  }

  // What a line says by its beginning; false where it is only text.
  placeBlock(text, rest, from, ended) {
    const fence = FENCE.exec(rest), heading = HEADING.exec(rest), item = ITEM.exec(rest);
    if (fence) this.openCode(fence);
    else if (this.placeTable(text, rest, from, ended)) return true;
    else if (isRule(rest)) {
      this.attach(this.parent(), make("hr"));
      this.block = null;
    } else if (heading) {  // the page itself has the first two levels
      const node = this.attach(this.parent(), make(`h${Math.min(6, heading[1].length + 2)}`));
      this.write(node, text, from + heading[0].length);
      this.block = null;
    } else if (DISPLAYED.test(rest) && this.openMath(rest, ended)) return true;
    else if (item) this.placeItem(text, from, item);
    else return false;
    return true;
  }

  // Code belongs to a list's item where it is indented like the item's text.
  openCode([, space, marks, info]) {
    const within = this.block?.kind === "item" && widthOf(space) >= 2 ? this.block : null;
    const code = new CodeBlock(info.trim());
    this.attach(within?.node ?? this.parent(), code.node);
    this.block = {kind: "code", code, open: null, indent: space.length, back: within,
      end: new RegExp(`^\\s*${marks[0]}{${marks.length},}\\s*$`)};
  }

  placeCode(text, from, ended) {
    const {code, open, end, indent, back} = this.block, rest = text.slice(from);
    if (!this.continues && end.test(rest)) {
      if (ended) this.block = back;  // until then it may still become something else
      return;
    }
    let begin = 0;
    while (!this.continues && begin < indent && /[ \t]/.test(rest[begin] ?? "")) ++begin;
    const line = code.line(new PieceReader(this.line), text, from + begin, open);
    if (ended) line.node.append("\n");
    this.attach(code.body, line.node);
    if (ended) code.add(rest.slice(begin) + "\n");
    else if (!this.drawn) code.add(rest.slice(begin));
    this.block = {...this.block, open: line.open};
  }

  // Math that stands by itself is text until the line that closes it, and then becomes MathML, if it can.
  openMath(rest, ended) {
    const [whole, opener] = DISPLAYED.exec(rest), closer = opener === "$$" ? "$$" : "\\]";
    if (rest.includes(closer, whole.length)) return false;  // all in one line
    const node = make("code", {class: "tex block"});
    this.attach(this.parent(), node);
    this.block = {kind: "math", node, opener, closer, tex: ""};
    this.placeMath(rest, ended, whole.length);
    return true;
  }

  placeMath(rest, ended, from = 0) {
    const {node, opener, closer, tex} = this.block, at = rest.indexOf(closer, from);
    if (!this.continues && !rest.trim()) {
      this.block = null;  // math has no empty lines: this was none
      return;
    }
    const line = make("span");
    new PieceReader([{text: rest, depth: 0}]).write(line, 0, rest.length);
    if (ended) line.append("\n");
    this.attach(node, line);
    if (!ended && this.drawn) return;
    const whole = tex + (at < 0 ? rest : rest.slice(0, at)) + "\n";
    this.block = {...this.block, tex: whole};
    if (at < 0) return;
    const math = rest.slice(at + closer.length).trim() ? null : toMath(whole.trimStart().slice(opener.length), true);
    if (math) node.replaceWith(make("div", {class: "math", tabindex: 0, role: "group", "aria-label": "Formula"}, math));
    this.block = null;
  }

  // A row of the table that is open, or the line that makes one of the line before it.
  placeTable(text, rest, from, ended) {
    if (this.block?.kind === "table") {
      if (!rest.includes("|")) {
        this.block = null;
        return false;
      }
      const row = make("tr");
      writeRow(row, "td", new PieceReader(this.line), text, cellsOf(text, from), this.block.sides);
      this.attach(this.block.body, row);
      return true;
    }
    if (!ended || this.block?.kind !== "text" || !this.block.last || !this.block.last.text.includes("|")) return false;
    const {last, node} = this.block, sides = alignments(rest), head = sides && cellsOf(last.text, last.from);
    if (!sides || head.length !== sides.length) return false;
    for (const made of last.nodes) made.remove();
    if (!node.hasChildNodes()) node.remove();
    const table = makeTable();
    writeRow(table.head, "th", new PieceReader(last.line), last.text, head, sides);
    this.attach(this.parent(), table.node);
    this.block = {kind: "table", body: table.body, sides};
    return true;
  }

  placeItem(text, from, [whole, space, number]) {
    const indent = widthOf(space), tag = number === undefined ? "ul" : "ol";
    let stack = this.block?.kind === "item" ? this.block.stack : [];
    while (stack.length && stack.at(-1).indent > indent) stack = stack.slice(0, -1);
    const top = stack.at(-1);
    if (top && indent >= top.indent + 2 && stack.length < DEEPEST_LIST) {
      stack = [...stack, {tag, indent, list: this.attach(top.item, make(tag))}];
    } else if (!top || top.tag !== tag) {
      stack = stack.slice(0, -1);
      stack = [...stack, {tag, indent, list: this.attach(stack.at(-1)?.item ?? this.parent(), make(tag))}];
    }
    const item = this.attach(stack.at(-1).list, make("li", {value: number ?? null}));
    this.write(item, text, from + whole.length);
    stack = [...stack.slice(0, -1), {...stack.at(-1), item}];
    this.block = {kind: "item", stack, node: item, size: text.length};
  }

  // A line of a paragraph, or the next of a list's item.
  placeText(text, from, fresh) {
    const block = this.block, indented = /^\s/.test(text.slice(from, from + 1));
    if (block?.kind === "item" && (!fresh || indented)) {
      if (fresh) this.attach(block.node, block.blank ? make("br") : document.createTextNode("\n"));
      if (fresh) from += /^\s*/.exec(text.slice(from))[0].length;
      this.attach(block.node, this.write(make("span"), text, from));
      this.block = {...block, blank: false};
      return;
    }
    let node = block?.kind === "text" ? block.node : null, size = node ? block.size : 0;
    const nodes = [];
    if (!node) node = this.attach(this.parent(), make("p"));
    else if (size + text.length > LONGEST_BLOCK) {
      node = this.attach(this.parent(), make("p", {class: fresh ? "next" : "rest"}));
      size = 0;
    } else if (fresh) nodes.push(this.attach(node, document.createTextNode("\n")));
    nodes.push(this.attach(node, this.write(make("span"), text, from)));
    const last = fresh ? {nodes, text, from, line: this.line} : null;  // it may be the head of a table
    this.block = {kind: "text", node, size: size + text.length, last};
  }
}
