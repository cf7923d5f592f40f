// The same request twice, plain and with drafts, side by side: speeds, and whether the texts are equal, as they must be.
import {count, fixed, make} from "./dom.js";
import {Answer} from "./answer.js";

const SIDES = ["plain", "drafts"];

export function bodiesOf(body) {
  const {spec_preset, speculate, ...rest} = body;
  return {plain: {...rest, speculate: false}, drafts: spec_preset ? {...rest, spec_preset} : rest};
}

// The first character in which the texts differ, -1 where neither does as far as both go.
export function difference(a, b) {
  const end = Math.min(a.length, b.length);
  for (let at = 0; at < end; ++at) if (a[at] !== b[at]) return at;
  return -1;
}

export class Comparison {
  constructor(preset) {
    this.preset = preset;
    this.answers = {plain: new Answer(), drafts: new Answer()};
    this.lines = {plain: make("p", {class: "figures"}), drafts: make("p", {class: "figures"})};
    const names = {plain: "Plain", drafts: preset && preset !== "off" ? `With drafts: ${preset}` : "With drafts"};
    this.node = make("div", {class: "sides"}, ...SIDES.map((side) =>
      make("section", {class: "side", "aria-label": names[side]}, make("p", {class: "side-name"}, names[side]),
        this.lines[side], this.answers[side].node)));
  }

  restore({text, marks, compared}) {
    this.answers.plain.restore(compared.text ?? text, []);
    this.answers.drafts.restore(text, marks);
    for (const side of SIDES) this.lines[side].textContent = compared[side];
  }

  // onBegin(answer): it is its turn; the rest as Answer.stream has it.
  async stream(body, signal, together, told) {
    const bodies = bodiesOf(body);
    const ask = (side) => {
      const answer = this.answers[side];
      return answer.stream(bodies[side], signal, {...told, onChunk: (chunk) => told.onChunk(chunk, answer)});
    };
    if (together) {
      told.onBegin(this.answers.drafts);
      const both = await Promise.allSettled(SIDES.map(ask));
      for (const {reason} of both) if (reason) throw reason;
      return;
    }
    for (const side of SIDES) {
      told.onBegin(this.answers[side]);
      await ask(side);
    }
  }

  flush() {
    for (const side of SIDES) {
      this.answers[side].view.flush();
      this.lines[side].textContent = this.answers[side].figures();
    }
  }

  finish() {
    for (const side of SIDES) {
      this.answers[side].finish();
      this.lines[side].textContent = this.answers[side].figures();
    }
  }

  // {good, text}; `whole`: both answers are complete.
  outcome(whole, together) {
    const {plain, drafts} = this.answers, at = difference(plain.text, drafts.text);
    if (at >= 0 || (whole && (plain.text.length !== drafts.text.length || plain.reason !== drafts.reason))) {
      const place = at >= 0 ? at : Math.min(plain.text.length, drafts.text.length);
      const text = `The texts differ from character ${count(place + 1)} on. They must not: this is a bug of the server.`;
      return {good: false, text};
    }
    if (!whole) return {good: true, text: "Stopped. As far as both go, the texts are equal."};
    const gain = drafts.rounds.numbers().speed / plain.rounds.numbers().speed;
    let text = `The texts are equal: ${count(drafts.text.length)} characters.`;
    if (gain > 0 && Number.isFinite(gain)) {
      text += ` With drafts ${fixed(gain, 2)}× as fast${together ? ", while both shared the machine" : ""}.`;
    }
    return {good: true, text};
  }

  stored() {
    const {plain, drafts} = this.answers;
    return {preset: this.preset, plain: this.lines.plain.textContent, drafts: this.lines.drafts.textContent,
      text: plain.text === drafts.text ? null : plain.text};
  }
}
