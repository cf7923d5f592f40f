// An answer on the page, drawn as it arrives: text with a tint per depth, and a little of Markdown (code blocks, lists,
// headings, bold, code). Finished lines are never touched again; only the line that is still being written is redrawn.
import {make} from "./dom.js";

const LONGEST_LINE = 2000;   // characters; the line goes on in a new piece, so that redrawing stays cheap
const LONGEST_BLOCK = 6000;  // likewise for paragraphs, which the browser lays out as a whole
const DEEPEST = 8;

const CODE = /^\s*(?:```|~~~)\s*([\w+#.-]*)\s*$/;
const CODE_END = /^\s*(?:```|~~~)\s*$/;
const HEADING = /^#{1,6}\s+/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+/;
const MARKED = /`([^`]+)`|\*\*([^*]+)\*\*/g;

// Pieces [{text, depth}] from character `from` to `to` of their text, as nodes.
function put(parent, pieces, from, to) {
  let at = 0, plain = "";
  const flush = () => {
    if (plain) parent.append(plain);
    plain = "";
  };
  for (const {text, depth} of pieces) {
    const part = text.slice(Math.max(0, from - at), Math.max(0, to - at));
    at += text.length;
    if (!part) continue;
    if (!depth) plain += part;
    else {
      flush();
      parent.append(make("span", {class: `d${Math.min(depth, DEEPEST)}`}, part));
    }
  }
  flush();
}

function putInline(parent, pieces, text, from) {
  MARKED.lastIndex = from;
  for (let found = MARKED.exec(text); found; found = MARKED.exec(text)) {
    const edge = found[1] !== undefined ? 1 : 2, end = MARKED.lastIndex;
    put(parent, pieces, from, found.index);
    const node = make(edge === 1 ? "code" : "strong");
    put(node, pieces, found.index + edge, end - edge);
    parent.append(node);
    from = end;
  }
  put(parent, pieces, from, text.length);
}

export class AnswerView {
  constructor(root) {
    this.root = root;
    this.queue = [];        // pieces that came since the last frame
    this.line = [];         // pieces of the line being written
    this.length = 0;        // its characters
    this.continues = false; // it is the rest of a line that was too long
    this.block = null;      // {kind, node, size}: what the next line may belong to
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
    const block = this.block && {...this.block};
    this.drawn = {made: [], block};
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
    this.drawn = null;
  }

  attach(parent, node) {
    parent.append(node);
    this.drawn?.made.push(node);
    return node;
  }

  open(kind, node, size = 0) {
    this.block = {kind, node, size};
    return node;
  }

  place(ended) {
    const text = this.line.map((piece) => piece.text).join("");
    if (this.block?.kind === "code") return this.placeCode(text, ended);
    if (this.continues) return this.placeText(text, false);
    const fence = CODE.exec(text), item = ITEM.exec(text), heading = HEADING.exec(text);
    if (fence) {
      const node = make("code");
      this.attach(this.root, make("pre", {tabindex: 0, "data-language": fence[1] || null}, node));
      this.open("code", node);
    } else if (!text.trim()) {
      if (ended) this.block = null;
    } else if (heading) {
      const node = this.attach(this.root, make("h3"));
      putInline(node, this.line, text, heading[0].length);
      this.open("heading", node);
      if (ended) this.block = null;
    } else if (item) this.placeItem(text, item);
    else this.placeText(text, true);
  }

  placeCode(text, ended) {
    if (!this.continues && CODE_END.test(text)) {
      if (ended) this.block = null;  // until then it may still become something else
      return;
    }
    const node = make("span");
    put(node, this.line, 0, text.length);
    if (ended) node.append("\n");
    this.attach(this.block.node, node);
  }

  placeItem(text, item) {
    const kind = item[2] === undefined ? "ul" : "ol";
    if (this.block?.list !== kind) {
      const list = this.attach(this.root, make(kind));
      this.block = {kind: "item", list: kind, parent: list};
    }
    const level = Math.min(3, Math.floor(item[1].length / 2));
    const node = this.attach(this.block.parent, make("li", {value: item[2] ?? null, class: level ? `level${level}` : null}));
    putInline(node, this.line, text, item[0].length);
    this.block = {...this.block, node, size: text.length};
  }

  // A line of a paragraph, or the next of a list's item.
  placeText(text, fresh) {
    const block = this.block;
    if (!block || block.kind === "heading" || (block.kind === "item" && fresh && !/^\s/.test(text))) {
      this.open("text", this.attach(this.root, make("p")));
    } else if (block.kind === "text" && block.size + text.length > LONGEST_BLOCK) {
      this.open("text", this.attach(this.root, make("p", {class: fresh ? "next" : "rest"})));
    } else if (fresh) this.attach(block.node, document.createTextNode("\n"));
    const line = make("span");
    putInline(line, this.line, text, 0);
    this.attach(this.block.node, line);
    this.block.size += text.length;
  }
}
