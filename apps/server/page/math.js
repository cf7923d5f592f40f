// Common TeX as MathML. What this converter does not know is shown as it was written, as code: nothing is guessed.
import {make} from "./dom.js";
import {ACCENTS, BELOW, FENCES, FUNCTIONS, IGNORED, INTEGRALS, LETTERS, LIMITS, SIGNS, SPACES, STACKED, TABLES,
  inAlphabet} from "./math_names.js";

const LONGEST = 4000;  // characters
const DEEPEST = 24;    // groups within each other
const TOKEN = /\\[a-zA-Z]+|\\[^]|\s+|\d+(?:\.\d+)?|[^]/gu;
const NAMESPACE = "http://www.w3.org/1998/Math/MathML";

function element(tag, children, attributes = {}) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const APART = {lspace: ".17em", rspace: ".17em"};  // names of functions
const fence = (text) => element("mo", [text], {stretchy: "true", fence: "true"});

class Unsupported extends Error {}

class TexParser {
  constructor(tex, display) {
    this.tokens = tex.match(TOKEN) ?? [];
    this.at = 0;
    this.display = display;
    this.depth = 0;
  }

  peek() {
    while (this.tokens[this.at]?.trim() === "") ++this.at;
    return this.tokens[this.at];
  }
  next() {
    const token = this.peek();
    if (token === undefined) throw new Unsupported("ended early");
    ++this.at;
    return token;
  }
  expect(token) {
    if (this.next() !== token) throw new Unsupported(`no ${token}`);
  }

  whole() {
    const row = this.row([]);
    if (this.peek() !== undefined) throw new Unsupported("too much");
    return row;
  }

  row(ends) {
    if (++this.depth > DEEPEST) throw new Unsupported("too deep");
    const nodes = [];
    for (let token = this.peek(); token !== undefined && !ends.includes(token); token = this.peek()) {
      const node = this.scripted();
      if (node) nodes.push(node);
    }
    --this.depth;
    return nodes.length === 1 ? nodes[0] : element("mrow", nodes);
  }

  group(end) {
    const row = this.row([end]);
    this.expect(end);
    return row;
  }

  // {…} or a single thing.
  argument() {
    if (++this.depth > DEEPEST) throw new Unsupported("too deep");
    let node = null;
    while (!node) node = this.atom();
    --this.depth;
    return node;
  }

  // What stands between braces, as it is.
  raw() {
    this.expect("{");
    let text = "", open = 1;
    while (this.at < this.tokens.length) {
      const token = this.tokens[this.at++];
      open += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (!open) return text;
      text += token;
    }
    throw new Unsupported("no }");
  }

  scripted() {
    const token = this.peek();
    let base = token === "^" || token === "_" || token === "'" ? element("mrow", []) : this.atom();
    if (!base) return null;
    let below = null, above = null;
    for (let sign = this.peek(); sign === "^" || sign === "_" || sign === "'"; sign = this.peek()) {
      ++this.at;
      if (sign === "_" ? below : sign === "^" && above) throw new Unsupported("two scripts");
      if (sign === "_") below = this.argument();
      else if (sign === "^") above = this.argument();
      else above = above ? element("mrow", [above, element("mo", ["′"])]) : element("mo", ["′"]);
    }
    const stacked = this.display && base.dataset?.limits;
    if (below && above) base = element(stacked ? "munderover" : "msubsup", [base, below, above]);
    else if (below) base = element(stacked ? "munder" : "msub", [base, below]);
    else if (above) base = element(stacked ? "mover" : "msup", [base, above]);
    return base;
  }

  // One thing without its scripts; null for what leaves no trace.
  atom() {
    const token = this.next();
    if (token === "{") return this.group("}");
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/^\d/.test(token)) return element("mn", [token]);
    if (/^\p{L}$/u.test(token)) return element("mi", [token]);
    if ("}^_&#%$".includes(token)) throw new Unsupported(token);
    if (token === "~") return element("mspace", [], {width: ".25em"});
    const sign = {"-": "−", "*": "∗"}[token] ?? token;
    return element("mo", [sign], "()[]|/".includes(token) ? {stretchy: "false"} : {});
  }

  command(name) {
    if (LETTERS.has(name)) return element("mi", [LETTERS.get(name)]);
    if (SIGNS.has(name)) return element("mo", [SIGNS.get(name)]);
    if (FENCES.has(name)) return element("mo", [FENCES.get(name)], {stretchy: "false"});
    if (STACKED.has(name)) return element("mo", [STACKED.get(name)], {"data-limits": "1"});
    if (INTEGRALS.has(name)) return element("mo", [INTEGRALS.get(name)]);
    if (LIMITS.has(name)) return element("mo", [LIMITS.get(name)], {"data-limits": "1", ...APART});
    if (FUNCTIONS.has(name)) return element("mo", [name], APART);
    const over = ACCENTS.get(name), under = BELOW.get(name);
    if (over) return element("mover", [this.argument(), element("mo", [over])], {accent: "true"});
    if (under) return element("munder", [this.argument(), element("mo", [under])], {"data-limits": "1"});
    if (SPACES.has(name)) return element("mspace", [], {width: SPACES.get(name)});
    if (IGNORED.has(name)) return null;
    if (["%", "$", "#", "&", "_"].includes(name)) return element("mi", [name]);
    return this.structure(name);
  }

  structure(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac":
        return element("mfrac", [this.argument(), this.argument()]);
      case "binom": {
        const fraction = element("mfrac", [this.argument(), this.argument()], {linethickness: "0"});
        return element("mrow", [fence("("), fraction, fence(")")]);
      }
      case "sqrt": return this.root();
      case "text": case "textrm": case "textit": case "textbf": case "mbox": return element("mtext", [this.raw()]);
      case "mathrm": case "operatorname": case "rm":
        return element("mi", [this.raw().replace(/\\[,;! ]/g, " ")], {mathvariant: "normal"});
      case "pmod":
        return element("mrow", [element("mo", ["("]), element("mo", ["mod"], APART), this.argument(), element("mo", [")"])]);
      case "bmod": case "mod": return element("mo", ["mod"]);
      case "boxed": return element("mrow", [this.argument()], {class: "boxed"});
      case "left": return this.between();
      case "begin": return this.table();
      case "not": return element("mo", [this.argument().textContent + "\u0338"]);
      case "stackrel": case "overset": {
        const above = this.argument();
        return element("mover", [this.argument(), above]);
      }
      case "underset": {
        const below = this.argument();
        return element("munder", [this.argument(), below]);
      }
      default: {
        const letters = inAlphabet(name, "x") === null ? null : this.peek() === "{" ? this.raw() : this.next();
        if (letters === null || letters.includes("\\")) throw new Unsupported(`\\${name}`);
        return element("mi", [inAlphabet(name, letters)], {mathvariant: "normal"});
      }
    }
  }

  root() {
    if (this.peek() !== "[") return element("msqrt", [this.argument()]);
    ++this.at;
    const index = this.group("]");
    return element("mroot", [this.argument(), index]);
  }

  delimiter() {
    const token = this.next(), known = token[0] === "\\" ? FENCES.get(token.slice(1)) : token;
    if (known === undefined || [..."{}"].includes(token) || [...known].length !== 1) throw new Unsupported(token);
    return known === "." ? "" : known === "<" ? "⟨" : known === ">" ? "⟩" : known;
  }

  between() {
    const open = this.delimiter(), inner = this.row(["\\right"]);
    this.expect("\\right");
    return element("mrow", [fence(open), inner, fence(this.delimiter())]);
  }

  table() {
    const name = this.raw(), fences = TABLES.get(name);
    if (!fences) throw new Unsupported(name);
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(element("mtd", [this.row(["&", "\\\\", "\\end"])]));
      const sign = this.next();
      if (sign === "\\\\") rows.push([]);
      else if (sign === "\\end") break;
    }
    if (this.raw() !== name) throw new Unsupported("\\end");
    const last = rows.at(-1);
    if (rows.length > 1 && last.length === 1 && !last[0].textContent) rows.pop();
    const kind = name === "cases" ? "left" : /align|split/.test(name) ? "sides" : "";
    const table = element("mtable", rows.map((cells) => element("mtr", cells)), kind ? {class: kind} : {});
    if (!fences[0] && !fences[1]) return table;
    return element("mrow", [fence(fences[0]), table, ...(fences[1] ? [fence(fences[1])] : [])]);
  }
}

// The <math> element for TeX, or null where a part of it is not known.
export function toMath(tex, display) {
  if (tex.length > LONGEST || !tex.trim()) return null;
  try {
    return element("math", [new TexParser(tex, display).whole()], display ? {display: "block"} : {});
  } catch (error) {
    if (error instanceof Unsupported) return null;
    throw error;
  }
}

export const mathOrCode = (tex, display) =>
  toMath(tex, display) ?? make("code", {class: display ? "tex block" : "tex"}, tex);
