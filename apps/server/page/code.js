// A block of code: its language, a button that copies it, coloured lines.
import {copyText, make} from "./dom.js";
import {colourLine, languageOf} from "./highlight.js";

export class CodeBlock {
  constructor(info) {
    this.language = languageOf(info);
    this.texts = [];  // what the button copies: what was drawn for good
    this.body = make("code");
    // The words on the button are the style's, so that they are no part of the answer's text.
    const button = make("button", {type: "button", class: "small copy-code", "aria-label": "Copy code",
      onclick: async () => {
        await copyText(this.texts.join("").replace(/\n$/, ""), button);
        button.classList.add("copied");
        setTimeout(() => button.classList.remove("copied"), 1500);
      }});
    const head = make("div", {class: "code-head"}, make("span", {class: "language"}, info), button);
    this.node = make("div", {class: "code"}, head, make("pre", {tabindex: 0}, this.body));
  }

  add(text) { this.texts.push(text); }

  // The line from character `from` on: {node, open: what the next one begins in}.
  line(reader, text, from, before) {
    const node = make("span"), {spans, open} = colourLine(this.language, text.slice(from), before);
    let at = from;
    for (const [begin, end, kind] of spans) {
      reader.write(node, at, from + begin);
      const part = make("span", {class: kind});
      reader.write(part, from + begin, from + end);
      node.append(part);
      at = from + end;
    }
    reader.write(node, at, text.length);
    return {node, open};
  }
}
