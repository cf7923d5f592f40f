// An answer while it arrives: its text with tints, what the server says about its rounds, what it measured.
import {count, fixed, make, seconds} from "./dom.js";
import {ApiError, streamChat} from "./api.js";
import {RoundCounter} from "./meter.js";
import {AnswerView} from "./render.js";

const MOST_TRIES = 5;  // of a request while the server is busy

const pause = (ms, signal) => new Promise((resolve, reject) => {
  const stop = () => {
    clearTimeout(timer);
    reject(new DOMException("stopped", "AbortError"));
  };
  const timer = setTimeout(() => {
    signal.removeEventListener("abort", stop);
    resolve();
  }, ms);
  signal.addEventListener("abort", stop, {once: true});
});

export class Answer {
  constructor() {
    this.node = make("div", {class: "answer"});
    this.view = new AnswerView(this.node);
    this.text = "";
    this.marks = [];
    this.rounds = new RoundCounter();
    this.reason = "";
    this.timings = this.usage = this.metrics = null;
  }

  restore(text, marks) {
    let at = 0;
    for (let i = 0; i + 1 < marks.length; i += 2) {
      this.view.append(text.slice(at, at + marks[i]), marks[i + 1]);
      at += marks[i];
    }
    this.view.append(text.slice(at), 0);
    this.view.finish();
  }

  take(chunk) {
    const choice = chunk.choices?.[0], details = chunk.specextend, text = choice?.delta?.content ?? "";
    if (text) {
      const tokens = Array.isArray(details?.tokens) ? details.tokens : [];
      const pieces = tokens.map((t) => t.text).join("") === text ? tokens : [{text, depth: 0}];
      for (const {text: piece, depth} of pieces) {
        this.view.append(piece, depth);
        this.marks.push(piece.length, depth);
      }
      this.text += text;
    }
    if (Array.isArray(details?.rounds)) this.rounds.add(details.rounds);
    if (choice?.finish_reason) this.reason = choice.finish_reason;
    if (chunk.timings) this.timings = chunk.timings;
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.metrics?.speculative_decoding) this.metrics = chunk.metrics.speculative_decoding;
  }

  // Streams the answer to `body` into this. told: onChunk(chunk), onBusy(text; "" when it is over), askKey() -> whether
  // there is one.
  async stream(body, signal, told) {
    for (let tries = 1; ; ++tries) {
      try {
        return await streamChat(body, signal, (chunk) => {
          this.take(chunk);
          told.onChunk(chunk);
        });
      } catch (error) {
        if (error.status === 401 && await told.askKey()) continue;
        if (error.status !== 429 || tries >= MOST_TRIES) throw error;
        for (let left = error.retryAfter || 2; left > 0; --left) {
          told.onBusy(`The server is busy. Trying again in ${left} s.`);
          await pause(1000, signal);
        }
        told.onBusy("");
      }
    }
  }

  finish() {
    this.view.finish();
    this.rounds.finish(this.timings, this.metrics);
  }

  // In a line, also while it arrives.
  figures() {
    const {speed, perRound} = this.rounds.numbers(), t = this.timings;
    if (!this.rounds.total.rounds && !t) return "";
    const parts = [`${fixed(speed, 1)} tok/s`, `${fixed(perRound, 2)} tokens per pass`];
    if (t) parts.push(`${count(t.predicted_n)} tokens in ${seconds(t.predicted_ms)}`);
    return parts.join(" · ");
  }

  sumUp(seed) {
    const t = this.timings, metrics = this.metrics, numbers = this.rounds.numbers();
    if (!t) return "";
    const parts = [`${count(t.predicted_n)} tokens in ${seconds(t.predicted_ms)}`, `${fixed(numbers.speed, 1)} tok/s`];
    if (metrics?.num_draft_tokens) {
      if (numbers.gain > 0) parts.push(`${fixed(numbers.gain, 2)}× plain`);
      parts.push(`${fixed(numbers.perRound, 2)} tokens per round`,
        `${count(metrics.num_accepted_draft_tokens)} of ${count(metrics.num_draft_tokens)} drafts accepted`);
    }
    const prompt = (t.prompt_n ?? 0) + (t.cache_n ?? 0);
    const cached = t.cache_n ? `, ${count(t.cache_n)} from the cache` : "";
    parts.push(`prompt ${count(prompt)}${cached}, ${seconds(t.prompt_ms)}`, `seed ${seed}`);
    return parts.join(" · ");
  }
}

// What went wrong, for people; `text` is what had come of the answer.
export function explain(failure, text) {
  if (!(failure instanceof ApiError)) return `This page failed: ${failure.message}`;
  const rest = text && failure.status === 0 ? " What came before is above." : "";
  return (failure.status === 429 ? "The server is busy: " : "") + failure.message + rest;
}
