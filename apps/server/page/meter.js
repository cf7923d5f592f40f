// Live numbers of an answer, from the rounds the server reports: a round made accepted + 1 tokens in `ms`; without drafts
// each token would have taken `plain_ms`.
import {byId, colour, fit, fixed, oncePerFrame} from "./dom.js";

const WINDOW_MS = 2000;  // of rounds, for the speed that is shown while it runs
const BARS = 64;

export class Meter {
  constructor() {
    this.draw = oncePerFrame(() => this.paint());
    new ResizeObserver(this.draw).observe(byId("spark"));
    this.reset();
  }

  reset() {
    this.rounds = [];  // {tokens, ms}, the last ones
    this.total = {rounds: 0, tokens: 0, ms: 0, drafted: 0, accepted: 0, timedTokens: 0, timedMs: 0, plainMs: 0};
    this.final = null;
    this.draw();
  }

  add(rounds) {
    const t = this.total;
    for (const {drafted = 0, accepted = 0, ms = 0, plain_ms = 0} of rounds) {
      const tokens = accepted + 1;
      this.rounds.push({tokens, ms});
      t.rounds += 1;
      t.tokens += tokens;
      t.ms += ms;
      t.drafted += drafted;
      t.accepted += accepted;
      if (plain_ms > 0) {
        t.timedTokens += tokens;
        t.timedMs += ms;
        t.plainMs += tokens * plain_ms;
      }
    }
    if (this.rounds.length > 2 * BARS + 1000) this.rounds.splice(0, this.rounds.length - BARS - 500);
    this.draw();
  }

  // What the server measured, when the answer is there: timings, metrics.speculative_decoding.
  finish(timings, metrics) {
    const numbers = this.numbers(), plain = timings?.plain_per_second;
    const measured = timings?.predicted_ms > 0 ? (1000 * timings.predicted_n) / timings.predicted_ms : this.speed(this.total);
    this.final = {
      speed: timings?.predicted_per_second ?? measured,
      plain: plain > 0 ? plain : numbers.plain,
      perRound: metrics?.mean_acceptance_length || numbers.perRound,
    };
    const drafted = timings?.draft_n ?? this.total.drafted;  // without drafts both speeds are the same one, measured in two ways
    this.final.gain = drafted > 0 && this.final.plain > 0 ? this.final.speed / this.final.plain : numbers.gain;
    this.draw();
    return this.final;
  }

  speed({tokens, ms}) { return ms > 0 ? (1000 * tokens) / ms : NaN; }

  numbers() {
    const t = this.total, last = {tokens: 0, ms: 0};
    for (let i = this.rounds.length - 1; i >= 0 && last.ms < WINDOW_MS; --i) {
      last.tokens += this.rounds[i].tokens;
      last.ms += this.rounds[i].ms;
    }
    return {
      speed: this.speed(last),
      plain: t.plainMs > 0 ? (1000 * t.timedTokens) / t.plainMs : NaN,
      gain: t.drafted > 0 && t.plainMs > 0 && t.timedMs > 0 ? t.plainMs / t.timedMs : NaN,
      perRound: t.rounds ? t.tokens / t.rounds : NaN,
    };
  }

  paint() {
    const n = this.final ?? this.numbers();
    byId("speed").textContent = fixed(n.speed, n.speed < 10 ? 2 : 1);
    byId("plain").textContent = fixed(n.plain, n.plain < 10 ? 2 : 1);
    byId("gain").textContent = Number.isFinite(n.gain) ? `${fixed(n.gain, 2)}×` : "–";
    byId("per-round").textContent = fixed(n.perRound, 2);
    const {pen, width, height} = fit(byId("spark"));
    const shown = this.rounds.slice(-BARS), step = width / BARS;
    const tallest = Math.max(4, ...shown.map((round) => round.tokens));
    pen.fillStyle = colour("--line");
    pen.fillRect(0, height - 1, width, 1);
    pen.fillStyle = colour("--accent");
    shown.forEach(({tokens}, i) => {
      const tall = Math.max(1, ((height - 1) * tokens) / tallest);
      pen.fillRect(i * step, height - tall, Math.max(1, step - 1), tall);
    });
  }
}
