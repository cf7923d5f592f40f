// The strip that stands for the text in the cache: how far the prompt is read, which places the draft works on (they light
// up when they are chosen, and fade), and which part was generated.
import {byId, colour, count, fit, oncePerFrame, seconds} from "./dom.js";

const FADE_MS = 1600;
const still = matchMedia("(prefers-reduced-motion: reduce)");

// Ranges [first, end), ascending: the parts of `a` that are not in `b`.
export function without(a, b) {
  const left = [];
  for (let [first, end] of a) {
    for (const [from, to] of b) {
      if (to <= first || from >= end) continue;
      if (from > first) left.push([first, from]);
      first = Math.min(end, to);
    }
    if (first < end) left.push([first, end]);
  }
  return left;
}

export class Strip {
  constructor(textAt) {
    this.textAt = textAt;  // textAt(share of the prompt): a few words from there
    this.box = byId("strip");
    this.canvas = this.box.querySelector("canvas");
    this.tip = byId("strip-tip");
    this.draw = oncePerFrame((now) => this.paint(now));
    this.context = 0;
    new ResizeObserver(this.draw).observe(this.canvas);
    this.box.addEventListener("pointermove", (event) => this.point(event.clientX - this.box.getBoundingClientRect().left));
    this.box.addEventListener("pointerleave", () => this.hideTip());
    this.box.addEventListener("blur", () => this.hideTip());
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.clear();
  }

  clear() {
    this.prompt = 0;      // its tokens
    this.cached = 0;      // of them, there from before
    this.read = 0;        // of them, in the cache now
    this.history = 0;     // tokens in the cache
    this.cells = [];
    this.fresh = [];      // {ranges, since}
    this.refreshes = 0;
    this.chosen = -1;     // by keyboard
    this.reading = null;
    this.describe();
  }

  // A request was sent: until the server says otherwise, the cache is as it was.
  waiting() {
    this.cells = [];
    this.refreshes = 0;
    this.prompt = 0;
    this.draw();
  }

  done() {
    this.reading = null;
    this.describe();
  }

  progress({total = 0, cache = 0, processed = 0, time_ms = 0}) {
    Object.assign(this, {prompt: total, cached: cache, read: processed, history: processed});
    const rate = time_ms > 0 ? (processed - cache) / time_ms : 0;  // per ms
    this.reading = processed < total ? {rate, left: rate > 0 ? (total - processed) / rate : NaN} : null;
    this.describe();
  }

  details({history, cells, refreshes}) {
    this.reading = null;
    if (Number.isFinite(history)) {
      if (!this.prompt) this.prompt = history;
      this.read = this.prompt;
      this.history = Math.max(history, this.prompt);
    }
    if (Number.isFinite(refreshes)) this.refreshes = refreshes;
    if (Array.isArray(cells)) {
      const fresh = without(cells, this.cells);
      if (fresh.length && !still.matches) this.fresh.push({ranges: fresh, since: performance.now()});
      // What the draft has left again does not go on glowing.
      this.fresh = this.fresh.map(({ranges, since}) => ({ranges: without(ranges, without(ranges, cells)), since})).slice(-8);
      this.cells = cells;
    }
    this.describe();
  }

  total() { return Math.max(this.prompt, this.history, 1); }
  working() { return this.cells.reduce((sum, [first, end]) => sum + end - first, 0); }

  describe() {
    let label = "No text in the cache yet";
    if (this.reading) {
      label = `Reading ${count(this.read)} of ${count(this.prompt)} tokens`;
      if (this.reading.rate > 0) label += ` · ${count(1000 * this.reading.rate)} tok/s · about ${seconds(this.reading.left)} left`;
    } else if (this.history) {
      label = `${count(this.history)} tokens in the cache`;
      if (this.cells.length) {
        const places = this.cells.length === 1 ? "one place" : `${this.cells.length} places`;
        label += ` · draft: ${count(this.working())} in ${places}`;
        if (this.refreshes) label += `, chosen ${this.refreshes === 1 ? "once" : `${count(this.refreshes)} times`}`;
      }
    }
    byId("strip-label").textContent = label;
    byId("strip-side").textContent = this.context ? `context ${count(this.total() === 1 ? 0 : this.total())} / ${count(this.context)}` : "";
    this.box.setAttribute("aria-label", `The text in the cache: ${label}. Left and right arrows go through the places.`);
    this.box.setAttribute("role", this.reading ? "progressbar" : "img");
    for (const [name, value] of [["valuemin", 0], ["valuemax", this.prompt], ["valuenow", this.read]]) {
      if (this.reading) this.box.setAttribute(`aria-${name}`, value);
      else this.box.removeAttribute(`aria-${name}`);
    }
    this.draw();
  }

  paint(now) {
    const {pen, width, height} = fit(this.canvas);
    const total = this.total(), scale = width / total;
    const bar = (first, end, least = 1) => pen.fillRect(first * scale, 0, Math.max(least, (end - first) * scale), height);
    pen.fillStyle = colour("--track");
    pen.fillRect(0, 0, width, height);
    if (!this.history && !this.prompt) return;
    pen.fillStyle = colour("--read");
    bar(0, this.read, 0);
    if (this.reading) {
      pen.fillStyle = colour("--cached");
      bar(0, this.cached, 0);
    }
    if (this.history > this.prompt) {
      pen.fillStyle = colour("--made");
      bar(this.prompt, this.history, 2);
    }
    pen.fillStyle = colour("--cells");
    for (const [first, end] of this.cells) bar(first, end);
    pen.fillStyle = colour("--flash");
    this.fresh = this.fresh.filter(({since}) => now - since < FADE_MS);
    for (const {ranges, since} of this.fresh) {
      pen.globalAlpha = Math.min(1, Math.max(0, 1 - (now - since) / FADE_MS));
      for (const [first, end] of ranges) bar(first, end, 2);
    }
    pen.globalAlpha = 1;
    if (this.history > this.prompt) {  // below the draft's places, which may cover it; and where the prompt ends
      pen.fillStyle = colour("--made");
      pen.fillRect(this.prompt * scale, height - 4, Math.max(2, (this.history - this.prompt) * scale), 4);
      pen.fillStyle = colour("--fg");
      pen.fillRect(Math.min(width - 1, this.prompt * scale), 0, 1, height);
    }
    if (this.fresh.length) this.draw();
  }

  // The place under a point: a range of the draft, else the part of the text.
  point(x) {
    if (!this.history) return;
    const width = this.box.clientWidth, at = Math.min(this.total() - 1, Math.max(0, Math.floor((x / width) * this.total())));
    const slack = (3 / width) * this.total();  // a narrow range is still to be hit
    const range = this.cells.find(([first, end]) => at >= first - slack && at < end + slack);
    if (range) this.showTip(range, "the draft works on this");
    else if (at >= this.prompt) this.showTip([this.prompt, this.history], "generated");
    else this.showTip([at, at + 1], at < this.read ? "in the cache" : "not read yet");
  }

  showTip([first, end], what) {
    const place = end - first > 1 ? `Tokens ${count(first)} to ${count(end - 1)}` : `Token ${count(first)}`;
    const words = first < this.prompt && this.prompt ? this.textAt((first + Math.min(end, this.prompt)) / 2 / this.prompt) : "";
    this.tip.textContent = `${place}: ${what}` + (words ? `. About here: “${words}”` : "");
    this.tip.hidden = false;
    const x = (((first + end) / 2) * this.box.clientWidth) / this.total(), half = this.tip.offsetWidth / 2;
    this.tip.style.left = `${Math.max(0, Math.min(this.box.clientWidth - 2 * half, x - half))}px`;
  }

  hideTip() {
    this.tip.hidden = true;
    this.chosen = -1;
  }

  key(event) {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step || !this.cells.length) return;
    event.preventDefault();
    this.chosen = this.chosen < 0 ? (step > 0 ? 0 : this.cells.length - 1)
      : (this.chosen + step + this.cells.length) % this.cells.length;
    this.showTip(this.cells[this.chosen], "the draft works on this");
    byId("status").textContent = this.tip.textContent;
  }
}
