// Live numbers of an answer, from the rounds the server reports: a round made accepted + 1 tokens in `ms`; without drafts
// each token would have taken `plain_ms`.
import {byId, colour, fit, fixed, oncePerFrame} from "./dom.js";

const WINDOW_MS = 2000;  // of rounds, for the speed that is shown while it runs
const BARS = 64;
const speedOf = ({tokens, ms}) => (ms > 0 ? (1000 * tokens) / ms : NaN);

export class RoundCounter {
  constructor() {
    this.rounds = [];  // the last ones, as the server sent them, with the number of `tokens` each made
    this.total = {rounds: 0, drafting: 0, tokens: 0, ms: 0, drafted: 0, accepted: 0, timedTokens: 0, timedMs: 0,
      plainMs: 0};
    this.final = null;
  }

  add(rounds) {
    const t = this.total;
    for (const round of rounds) {
      const {drafted = 0, accepted = 0, ms = 0, plain_ms = 0} = round, tokens = accepted + 1;
      this.rounds.push({...round, drafted, accepted, ms, tokens});
      t.rounds += 1;
      t.tokens += tokens;
      t.ms += ms;
      t.drafted += drafted;
      t.drafting += drafted > 0 ? 1 : 0;
      t.accepted += accepted;
      if (plain_ms > 0) {
        t.timedTokens += tokens;
        t.timedMs += ms;
        t.plainMs += tokens * plain_ms;
      }
    }
    if (this.rounds.length > 2 * BARS + 1000) this.rounds.splice(0, this.rounds.length - BARS - 500);
  }

  // What the server measured, when the answer is there: timings, metrics.speculative_decoding.
  finish(timings, metrics) {
    const numbers = this.numbers(), plain = timings?.plain_per_second;
    const measured = timings?.predicted_ms > 0 ? (1000 * timings.predicted_n) / timings.predicted_ms : speedOf(this.total);
    this.final = {
      speed: timings?.predicted_per_second ?? measured,
      plain: plain > 0 ? plain : numbers.plain,
      perRound: numbers.perRound || metrics?.mean_acceptance_length,  // the latter leaves out rounds without a draft
    };
    const drafted = timings?.draft_n ?? this.total.drafted;  // without drafts both speeds are the same one, measured in two ways
    this.final.gain = drafted > 0 && this.final.plain > 0 ? this.final.speed / this.final.plain : numbers.gain;
    return this.final;
  }

  numbers() {
    if (this.final) return this.final;
    const t = this.total, last = {tokens: 0, ms: 0};
    for (let i = this.rounds.length - 1; i >= 0 && last.ms < WINDOW_MS; --i) {
      last.tokens += this.rounds[i].tokens;
      last.ms += this.rounds[i].ms;
    }
    return {
      speed: speedOf(last),
      plain: t.plainMs > 0 ? (1000 * t.timedTokens) / t.plainMs : NaN,
      gain: t.drafted > 0 && t.plainMs > 0 && t.timedMs > 0 ? t.plainMs / t.timedMs : NaN,
      perRound: t.rounds ? t.tokens / t.rounds : NaN,
    };
  }
}

// Shows the rounds of one answer.
export class Meter {
  constructor(panel) {
    this.panel = panel;
    this.draw = oncePerFrame(() => this.paint());
    new ResizeObserver(this.draw).observe(byId("spark"));
    this.show(new RoundCounter());
  }

  show(counter) {
    this.counter = counter;
    this.draw();
  }

  paint() {
    const n = this.counter.numbers();
    this.panel.show(this.counter);
    byId("speed").textContent = fixed(n.speed, n.speed < 10 ? 2 : 1);
    byId("plain").textContent = fixed(n.plain, n.plain < 10 ? 2 : 1);
    byId("gain").textContent = Number.isFinite(n.gain) ? `${fixed(n.gain, 2)}×` : "–";
    byId("per-round").textContent = fixed(n.perRound, 2);
    const {pen, width, height} = fit(byId("spark"));
    const shown = this.counter.rounds.slice(-BARS), step = width / BARS;
    const tallest = Math.max(4, ...shown.map((round) => Math.max(round.tokens, round.verified ?? 0)));
    pen.fillStyle = colour("--line");
    pen.fillRect(0, height - 1, width, 1);
    const bars = (name, valueOf) => {
      pen.fillStyle = colour(name);
      shown.forEach((round, i) => {
        const tall = Math.max(1, ((height - 1) * valueOf(round)) / tallest);
        pen.fillRect(i * step, height - tall, Math.max(1, step - 1), tall);
      });
    };
    bars("--d3", (round) => round.verified ?? 0);  // behind: what was drafted and checked
    bars("--accent", (round) => round.tokens);
  }
}
