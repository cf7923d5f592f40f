// The conversation: its messages on the page, and the request that runs.
import {byId, count, fixed, make, oncePerFrame, seconds} from "./dom.js";
import {ApiError, streamChat} from "./api.js";
import {AnswerView} from "./render.js";
import {fileLabel} from "./files.js";
import {loadChat, saveChat} from "./store.js";

const MOST_TRIES = 5;  // of a request while the server is busy
const NEAR = 48;       // pixels from the end that count as being there

// Documents come first: a further question about them finds them in the cache.
export function contentOf(message) {
  const files = (message.files ?? []).map((file) => `${file.name}:\n\n${file.text}\n\n`);
  return files.join("") + message.text;
}

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

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // pages that did not come over a safe connection have no clipboard
    const box = document.body.appendChild(make("textarea", {class: "out-of-sight"}));
    box.value = text;
    box.select();
    document.execCommand("copy");
    box.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

export class Chat {
  // parts: settings, strip, meter, announce(text), askKey() -> whether there is one, onState()
  constructor(parts) {
    Object.assign(this, parts);
    this.room = byId("chat");
    this.list = byId("messages");
    this.running = null;    // the AbortController of the request that runs
    this.atEnd = true;
    this.lastTop = 0;
    this.promptTexts = [];  // what the strip stands for
    this.room.addEventListener("scroll", () => this.look(), {passive: true});
    this.list.addEventListener("pointerover", ({target}) => {  // a tint in words, made when the pointer is there
      const depth = /^d([1-8])$/.exec(target.className)?.[1];
      if (depth) target.title = `Drafted, depth ${depth}${depth === "8" ? " or more" : ""}`;
    });
    byId("to-end").addEventListener("click", () => this.toEnd());
    this.messages = loadChat();
    for (const message of this.messages) this.restore(message);
    this.refresh();
    this.toEnd();
  }

  // Only going up leaves the end: it also moves away while an answer arrives.
  look() {
    const top = this.room.scrollTop, near = this.room.scrollHeight - top - this.room.clientHeight < NEAR;
    if (near || top < this.lastTop) this.atEnd = near;
    this.lastTop = top;
    byId("to-end").hidden = this.atEnd;
  }
  toEnd() {
    this.room.scrollTop = this.room.scrollHeight;
  }
  stay() {
    if (this.atEnd) this.toEnd();
  }

  refresh() {
    byId("welcome").hidden = this.list.children.length > 0;
    this.onState();
  }

  keep() {
    if (!saveChat(this.messages)) this.announce("This conversation is too large to be kept over a reload.");
  }

  clear() {
    this.stop();
    this.messages = [];
    this.promptTexts = [];
    this.list.replaceChildren();
    this.strip.clear();
    this.meter.reset();
    this.keep();
    this.refresh();
  }

  send(text, files) {
    if (this.running || (!text.trim() && !files.length)) return;
    const message = {role: "user", text: text.trim(), files};
    this.messages.push(message);
    this.userItem(message);
    this.keep();
    this.atEnd = true;
    this.run();
  }

  stop() { this.running?.abort(); }

  // Asks again for the last answer: after an error, or for another one.
  again() {
    if (this.running) return;
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    if (this.list.lastElementChild?.classList.contains("assistant")) this.list.lastElementChild.remove();
    if (this.messages.at(-1)?.role === "user") this.run();
    byId("message").focus();
  }

  userItem(message) {
    const files = message.files.map((file) => make("li", {class: "chip"}, ...fileLabel(file)));
    const long = message.text.length > 2000;
    this.list.append(make("li", {class: "user"}, make("span", {class: "out-of-sight"}, "You: "),
      files.length ? make("ul", {class: "chips", "aria-label": "Attached files"}, ...files) : null,
      message.text ? make("div", {class: long ? "bubble long" : "bubble", tabindex: long ? 0 : null}, message.text) : null));
  }

  assistantItem(message) {
    const item = {message, answer: make("div", {class: "answer"}), note: make("p", {class: "note"}),
      numbers: make("p", {class: "numbers"})};
    const copyButton = make("button", {type: "button", class: "small copy", onclick: () => copy(message.text, copyButton)}, "Copy");
    item.actions = make("div", {class: "actions"}, copyButton,
      make("button", {type: "button", class: "small regenerate", onclick: () => this.again()}, "Regenerate"));
    item.node = make("li", {class: "assistant"}, make("span", {class: "out-of-sight"}, "Answer: "), item.answer, item.note,
      make("div", {class: "foot"}, item.actions, item.numbers));
    item.view = new AnswerView(item.answer);
    this.list.append(item.node);
    return item;
  }

  restore(message) {
    if (message.role === "user") return this.userItem(message);
    const item = this.assistantItem(message);
    let at = 0;
    for (let i = 0; i + 1 < message.marks.length; i += 2) {
      item.view.append(message.text.slice(at, at + message.marks[i]), message.marks[i + 1]);
      at += message.marks[i];
    }
    item.view.append(message.text.slice(at), 0);
    this.end(item);
  }

  end(item) {
    item.view.finish();
    item.node.removeAttribute("aria-busy");
    item.node.classList.add("done");
    item.note.textContent = item.message.note ?? "";
    item.numbers.textContent = item.message.numbers ?? "";
  }

  body() {
    const {preset, temperature, maxTokens, seed, system} = this.settings;
    const messages = this.messages.map((m) => ({role: m.role, content: contentOf(m)}));
    if (system.trim()) messages.unshift({role: "system", content: system});
    this.promptTexts = messages.map((m) => m.content);
    const body = {messages, stream: true, stream_options: {include_usage: true}, spec_details: true, return_progress: true, temperature,
      reasoning_format: "none",  // the page shows thoughts as part of the text
      seed: seed ?? crypto.getRandomValues(new Uint32Array(1))[0]};
    if (this.model) body.model = this.model;
    if (maxTokens) body.max_tokens = maxTokens;
    if (preset === "off") body.speculate = false;
    else if (preset) body.spec_preset = preset;
    return body;
  }

  async run() {
    const running = this.running = new AbortController();
    const body = this.body();
    const item = this.assistantItem({role: "assistant", text: "", marks: [], note: "", numbers: ""});
    const {message} = item;
    item.node.setAttribute("aria-busy", "true");
    item.last = {};
    this.meter.reset();
    this.strip.waiting();
    this.refresh();
    this.toEnd();
    const draw = oncePerFrame(() => {
      if (running.signal.aborted && this.running !== running) return;
      item.view.flush();
      this.stay();
    });
    let failure = null;
    try {
      await this.ask(item, body, running.signal, draw);
      if (item.last.reason === "length") message.note = "Stopped at the most tokens an answer may have.";
    } catch (error) {
      if (error.name === "AbortError") message.note = message.text ? "Stopped." : "Stopped before the answer began.";
      else failure = error;
    }
    if (!this.list.contains(item.node)) return;  // a new chat was begun meanwhile
    this.running = null;
    this.finish(item, failure, body.seed);
  }

  async ask(item, body, signal, draw) {
    for (let tries = 1; ; ++tries) {
      try {
        return await streamChat(body, signal, (chunk) => {
          this.take(item, chunk);
          draw();
        });
      } catch (error) {
        if (error.status === 401 && await this.askKey()) continue;
        if (error.status !== 429 || tries >= MOST_TRIES) throw error;
        for (let left = error.retryAfter || 2; left > 0; --left) {
          item.note.textContent = `The server is busy. Trying again in ${left} s.`;
          await pause(1000, signal);
        }
        item.note.textContent = "";
      }
    }
  }

  take(item, chunk) {
    const {message} = item, choice = chunk.choices?.[0];
    if (chunk.prompt_progress) this.strip.progress(chunk.prompt_progress);
    const details = chunk.specextend;
    const text = choice?.delta?.content ?? "";
    if (text) {
      const tokens = Array.isArray(details?.tokens) ? details.tokens : [];
      const pieces = tokens.map((t) => t.text).join("") === text ? tokens : [{text, depth: 0}];
      for (const {text: piece, depth} of pieces) {
        item.view.append(piece, depth);
        message.marks.push(piece.length, depth);
      }
      message.text += text;
    }
    if (details) {
      if (Array.isArray(details.rounds)) this.meter.add(details.rounds);
      this.strip.details(details);
    }
    if (choice?.finish_reason) item.last.reason = choice.finish_reason;
    if (chunk.timings) item.last.timings = chunk.timings;
    if (chunk.usage) item.last.usage = chunk.usage;
    if (chunk.metrics?.speculative_decoding) item.last.metrics = chunk.metrics.speculative_decoding;
  }

  finish(item, failure, seed) {
    const {message, last} = item;
    const numbers = this.meter.finish(last.timings, last.metrics);
    if (last.timings) message.numbers = this.sumUp(last, numbers, seed);
    this.strip.done();
    if (message.text || !failure) this.messages.push(message);
    this.end(item);
    if (failure) {
      item.node.classList.add("failed");
      item.note.replaceChildren(make("span", {class: "error", role: "alert"}, this.explain(failure, message.text)),
        make("button", {type: "button", class: "small retry", onclick: () => this.again()}, "Try again"));
    } else this.announce(`Answer finished${last.usage ? `, ${count(last.usage.completion_tokens)} tokens` : ""}. ${message.note}`);
    this.keep();
    this.refresh();
    this.stay();
  }

  explain(failure, text) {
    if (!(failure instanceof ApiError)) return `This page failed: ${failure.message}`;
    const rest = text && failure.status === 0 ? " What came before is above." : "";
    return (failure.status === 429 ? "The server is busy: " : "") + failure.message + rest;
  }

  sumUp({timings: t, metrics}, numbers, seed) {
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

  // A few words at a share of the prompt, for the strip. Tokens are not equally long: it is only about there.
  textAt(share) {
    const total = this.promptTexts.reduce((sum, text) => sum + text.length, 0);
    let at = Math.floor(share * total);
    for (const text of this.promptTexts) {
      if (at < text.length) return text.slice(Math.max(0, at - 35), at + 35).replace(/\s+/g, " ").trim();
      at -= text.length;
    }
    return "";
  }
}
