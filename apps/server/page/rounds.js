// What the server decided in each round: how much it drafted and checked, what was accepted, and what that took. A round
// without a draft is one in which drafting would not have paid. Fields this page does not know are shown by their names.
import {byId, count, fixed, make} from "./dom.js";

const SHOWN = 24;  // rounds, the newest first
const MOST_FIELDS = 6;  // that are not known
const COLUMNS = [["drafted", "Drafted", 0], ["verified", "Checked", 0], ["accepted", "Accepted", 0],
  ["tokens", "Tokens", 0], ["ms", "ms", 1], ["plain_ms", "Plain ms", 1]];
// What preset auto decided before the round, where the server says so.
const DECISIONS = [["decision", "Decision", 0], ["levels", "Levels", 0], ["why", "Why", 0],
  ["expected_tokens", "Tokens expected", 2], ["expected_steps", "Steps expected", 2]];
const KNOWN = new Set([...COLUMNS, ...DECISIONS].map(([name]) => name));

const cellText = (value, digits) => (typeof value === "number" ? fixed(value, Number.isInteger(value) ? 0 : digits || 2)
  : value == null ? "–" : String(value).slice(0, 40));

export class RoundsPanel {
  constructor() {
    this.box = byId("rounds");
    this.counter = null;
    this.box.addEventListener("toggle", () => this.counter && this.paint());
  }

  show(counter) {
    this.counter = counter;
    if (this.box.open) this.paint();
  }

  paint() {
    const {rounds, total: t} = this.counter, shown = rounds.slice(-SHOWN).reverse();
    const names = new Set(shown.flatMap((round) => Object.keys(round)));
    const others = [...names].filter((name) => !KNOWN.has(name)).slice(0, MOST_FIELDS);
    const columns = [...COLUMNS, ...(names.has("decision") ? DECISIONS : []), ...others.map((name) => [name, name, 2])];
    byId("rounds-sum").textContent = this.sum(t);
    const head = (scope, text) => make("th", {scope}, text);
    byId("rounds-head").replaceChildren(head("col", "Round"), ...columns.map(([, label]) => head("col", label)));
    byId("rounds-body").replaceChildren(...shown.map((round, i) => make("tr", {}, head("row", count(t.rounds - i)),
      ...columns.map(([name, , digits]) => make("td", {}, cellText(round[name], digits))))));
  }

  sum({rounds, drafting, drafted, accepted}) {
    if (!rounds) return "No rounds yet.";
    const parts = `Drafted in ${count(drafting)} of ${count(rounds)} rounds`;
    if (!drafting) return `${parts}.`;
    return `${parts}, ${fixed(drafted / drafting, 1)} tokens each; ${fixed((100 * accepted) / drafted, 0)} % of them accepted.`;
  }
}
