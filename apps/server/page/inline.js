// Markdown inside of a line: emphasis, code, links, math, escapes. The parser reads a line once from left to right, in time
// that grows with its length only, and gives edits of the text; `writeInline` turns them into nodes. Text only ever becomes
// text nodes, and a link is made for http, https and mailto addresses only: anything else stays as it was written.
import {make} from "./dom.js";
import {mathOrCode} from "./math.js";

const DEEPEST_NEST = 8;   // elements within each other; further markers change nothing
const DEEPEST_TINT = 8;
const TAGS = {"*": "em", "_": "em", "**": "strong", "__": "strong", "***": "strong-em", "___": "strong-em",
  "~~": "del"};
const SPECIAL = /[\\`*_~[\]$<]|!\[|https?:\/\//g;
const ADDRESS = /[^\s<>"`]*/y;
const TARGET = /\(\s*<?((?:[^\s()<>]|\([^\s()<>]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const AUTO = /<(https?:\/\/[^\s<>]*|mailto:[^\s<>]*)>/y;
const isSpace = (c) => c === undefined || /\s/.test(c);
const isWord = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);

// The address if a link may lead there, else null.
export function safeAddress(text) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(text).protocol) ? text : null;
  } catch {
    return null;  // relative addresses are this server's own: a model has no business there
  }
}

// Sentences end after an address, and brackets close around it.
function withoutTail(text) {
  let end = text.length, open = 0;
  for (const c of text) open += c === "(" ? 1 : c === ")" ? -1 : 0;
  for (; end > 0; --end) {
    const c = text[end - 1];
    if (c === ")" && open < 0) ++open;
    else if (!".,;:!?'*_~]}|".includes(c)) break;
  }
  return text.slice(0, end);
}

class InlineParser {
  constructor(text) {
    this.text = text;
    this.edits = [];          // {at, end, kind: "open" | "close" | "hide" | "code" | "math", ...}
    this.openers = [];        // {marker, at, end} that may still be closed
    this.places = new Map();  // marker -> their indices in `openers`
    this.missing = new Set(); // closers that the rest of the line does not have
  }

  parse() {
    SPECIAL.lastIndex = 0;
    for (let found = SPECIAL.exec(this.text); found; found = SPECIAL.exec(this.text)) {
      SPECIAL.lastIndex = this.take(found[0], found.index);
    }
    return this.edits.sort((a, b) => a.at - b.at);
  }

  // Handles what stands at `at` and returns where to go on.
  take(what, at) {
    switch (what) {
      case "\\": return this.escape(at);
      case "`": return this.code(at);
      case "$": return this.dollar(at);
      case "[": case "![": return this.open("[", at, at + what.length);
      case "]": return this.link(at);
      case "<": return this.auto(at);
      case "*": case "_": case "~": return this.emphasis(what, at);
      default: return this.address(at);
    }
  }

  run(c, at) {
    let end = at;
    while (this.text[end] === c) ++end;
    return end - at;
  }

  // Where `closer` is, from `from` on, or -1; a search that found nothing is not made again.
  closing(closer, from) {
    if (this.missing.has(closer)) return -1;
    const at = this.text.indexOf(closer, from);
    if (at < 0) this.missing.add(closer);
    return at;
  }

  leaf(kind, at, from, to, end, display = false) {
    this.edits.push({kind, at, from, to, end, display});
    return end;
  }

  escape(at) {
    const next = this.text[at + 1];
    if (next === "(" || next === "[") {
      const end = this.closing(next === "(" ? "\\)" : "\\]", at + 2);
      if (end > at + 2) return this.leaf("math", at, at + 2, end, end + 2, next === "[");
    }
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return at + 1;
    this.edits.push({kind: "hide", at, end: at + 1});
    return at + 2;
  }

  code(at) {
    const size = this.run("`", at), closer = "`".repeat(size);
    for (let end = this.closing(closer, at + size); end >= 0; end = this.closing(closer, end)) {
      const there = this.run("`", end);
      if (there === size) return this.leaf("code", at, at + size, end, end + size);
      end += there;
    }
    this.missing.add(closer);  // it is only part of longer ones
    return at + size;
  }

  // Money is not math: no space after the opening sign or before the closing one, and no digit after that.
  dollar(at) {
    if (this.text[at + 1] === "$") {
      const end = this.closing("$$", at + 2);
      return end > at + 2 ? this.leaf("math", at, at + 2, end, end + 2, true) : at + 2;
    }
    const end = this.closing("$", at + 1);
    if (end < 0 || isSpace(this.text[at + 1]) || isSpace(this.text[end - 1])) return at + 1;
    if (this.text[end - 1] === "\\" || /\d/.test(this.text[end + 1] ?? "")) return at + 1;
    return this.leaf("math", at, at + 1, end, end + 1);
  }

  open(marker, at, end) {
    if (!this.places.has(marker)) this.places.set(marker, []);
    this.places.get(marker).push(this.openers.length);
    this.openers.push({marker, at, end});
    return end;
  }

  // The last opener of a marker, with those after it forgotten; null where there is none.
  match(marker) {
    const index = this.places.get(marker)?.at(-1);
    if (index === undefined) return null;
    const opener = this.openers[index];
    for (const {marker: other} of this.openers.splice(index)) this.places.get(other)?.pop();
    return opener;
  }

  element(opener, tag, at, end, href = null) {
    this.edits.push({kind: "open", at: opener.at, end: opener.end, tag, href}, {kind: "close", at, end});
    return end;
  }

  emphasis(c, at) {
    const size = this.run(c, at), end = at + size, marker = c.repeat(Math.min(size, 4)), tag = TAGS[marker];
    if (!tag) return end;
    const before = at > 0 ? this.text[at - 1] : undefined, after = this.text[end];
    if (!isSpace(before) && !(c === "_" && isWord(after))) {
      const opener = this.match(marker);
      if (opener) return this.element(opener, tag, at, end);
    }
    if (!isSpace(after) && !(c === "_" && isWord(before))) this.open(marker, at, end);
    return end;
  }

  link(at) {
    if (!this.places.get("[")?.length) return at + 1;
    TARGET.lastIndex = at + 1;
    const target = this.text[at + 1] === "(" ? TARGET.exec(this.text) : null, href = target && safeAddress(target[1]);
    if (!href) {
      this.forget(1);
      return at + 1;
    }
    const opener = this.match("[");
    this.forget(this.places.get("[").length);  // a link holds no other link
    return this.element(opener, "a", at, at + 1 + target[0].length, href);
  }

  // The last `many` opening brackets stay text.
  forget(many) {
    const brackets = this.places.get("[");
    for (const index of brackets.splice(brackets.length - many)) this.openers[index].marker = "";
  }

  auto(at) {
    AUTO.lastIndex = at;
    const found = AUTO.exec(this.text), href = found && safeAddress(found[1]);
    return href ? this.element({at, end: at + 1}, "a", at + found[0].length - 1, at + found[0].length, href) : at + 1;
  }

  address(at) {
    ADDRESS.lastIndex = at;
    const whole = ADDRESS.exec(this.text)[0], href = isWord(this.text[at - 1]) ? null : safeAddress(withoutTail(whole));
    if (!href || this.places.get("[")?.length) return at + 4;  // inside of brackets it may be a link's text
    return this.element({at, end: at}, "a", at + href.length, at + href.length, href);
  }
}

export const parseInline = (text) => new InlineParser(text).parse();

// Reads pieces [{text, depth}] once, from left to right, into nodes with a tint for their depth.
export class PieceReader {
  constructor(pieces) {
    this.pieces = pieces;
    this.index = 0;
    this.begin = 0;  // of the piece at `index`, in the whole text
  }

  // The characters from `from` (not before an earlier call's `to`) up to `to`.
  write(parent, from, to) {
    let plain = "";
    const flush = () => {
      if (plain) parent.append(plain);
      plain = "";
    };
    while (this.index < this.pieces.length && this.begin < to) {
      const {text, depth} = this.pieces[this.index], part = text.slice(Math.max(0, from - this.begin), to - this.begin);
      if (part && !depth) plain += part;
      else if (part) {
        flush();
        parent.append(make("span", {class: `d${Math.min(depth, DEEPEST_TINT)}`}, part));
      }
      if (this.begin + text.length > to) break;  // the rest of it comes with the next call
      this.begin += text.length;
      ++this.index;
    }
    flush();
  }
}

const anchor = (href) => make("a", {href, title: href, rel: "noopener noreferrer nofollow",
  target: href.startsWith("mailto:") ? null : "_blank"});

function elementsOf({tag, href}) {
  if (tag === "a") return [anchor(href)];
  return tag === "strong-em" ? [make("strong"), make("em")] : [make(tag)];
}

// Characters `from` to `to` of the pieces' text, with their Markdown.
export function writeInline(parent, reader, text, from, to) {
  const stack = [parent];
  let at = from, skipped = 0;
  const top = () => stack.at(-1);
  for (const edit of parseInline(text.slice(from, to))) {
    reader.write(top(), at, from + edit.at);
    at = from + edit.end;
    if (edit.kind === "open") {
      if (skipped || stack.length > DEEPEST_NEST) ++skipped;
      else {
        const made = elementsOf(edit);
        if (made.length > 1) made[0].append(made[1]);
        top().append(made[0]);
        stack.push(made.at(-1));
      }
    } else if (edit.kind === "close") {
      if (skipped) --skipped;
      else stack.pop();
    } else if (edit.kind === "code") {
      const node = make("code");
      reader.write(node, from + edit.from, from + edit.to);
      top().append(node);
    } else if (edit.kind === "math") {
      top().append(mathOrCode(text.slice(from + edit.from, from + edit.to), edit.display));
    }
  }
  reader.write(top(), at, to);
}
