// The conversation that is open: its messages on the page, and the request that runs.
import {byId, copyText, count, make, oncePerFrame} from "./dom.js";
import {Answer, explain} from "./answer.js";
import {Comparison} from "./compare.js";
import {Conversation} from "./conversation.js";
import {fileLabel} from "./files.js";

const NEAR = 48;  // pixels from the end that count as being there

// Documents come first: a further question about them finds them in the cache.
export function contentOf(message) {
  const files = (message.files ?? []).map((file) => `${file.name}:\n\n${file.text}\n\n`);
  return files.join("") + message.text;
}

async function copy(text, button) {
  await copyText(text, button);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

export class Chat {
  // parts: settings, strip, meter, announce(text), askKey() -> whether there is one, onState(), keep(conversation)
  constructor(parts) {
    Object.assign(this, parts);
    this.room = byId("chat");
    this.list = byId("messages");
    this.running = null;    // the AbortController of the request that runs
    this.atEnd = true;
    this.lastTop = 0;
    this.promptTexts = [];  // what the strip stands for
    this.talk = new Conversation();
    this.room.addEventListener("scroll", () => this.look(), {passive: true});
    this.list.addEventListener("pointerover", ({target}) => {  // a tint in words, made when the pointer is there
      const depth = /^d([1-8])$/.exec(target.className)?.[1];
      if (depth) target.title = `Drafted, depth ${depth}${depth === "8" ? " or more" : ""}`;
    });
    byId("to-end").addEventListener("click", () => this.toEnd());
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

  // Another conversation, or a new one. An answer that runs is stopped, and stays with its own.
  open(talk) {
    this.stop();
    this.talk = talk;
    this.promptTexts = [];
    this.strip.clear();
    this.meter.show(new Answer().rounds);
    this.show();
    this.toEnd();
  }

  // Draws the messages from the first to the chosen leaf.
  show() {
    this.list.setAttribute("aria-live", "off");  // only what is new is read aloud
    this.list.replaceChildren();
    for (const index of this.talk.path()) {
      if (this.talk.messages[index].role === "user") this.userItem(index);
      else this.restore(index);
    }
    setTimeout(() => this.list.setAttribute("aria-live", "polite"), 100);
    this.refresh();
  }

  send(text, files) {
    if (this.running || (!text.trim() && !files.length)) return;
    this.userItem(this.talk.add({role: "user", text: text.trim(), files}));
    this.keep(this.talk);
    this.atEnd = true;
    this.run();
  }

  stop() { this.running?.abort(); }

  // Asks again for the last answer, after an error or for another one: a new version of it.
  again() {
    if (this.running) return;
    const {talk} = this;
    if (talk.messages[talk.leaf]?.role === "assistant") talk.leaf = talk.messages[talk.leaf].parent;
    if (this.list.lastElementChild?.classList.contains("assistant")) this.list.lastElementChild.remove();
    if (talk.messages[talk.leaf]?.role === "user") this.run();
    byId("message").focus();
  }

  // The message with another text, as a version of it; the conversation goes on from there.
  branch(index, text) {
    const {files, parent} = this.talk.messages[index];
    if (this.running || (!text.trim() && !files.length)) return;
    this.talk.add({role: "user", text: text.trim(), files}, parent);
    this.keep(this.talk);
    this.show();
    this.atEnd = true;
    this.run();
    byId("message").focus();
  }

  choose(index, direction) {
    if (this.running) return;
    const depth = this.talk.path().indexOf(index), versions = this.talk.versions(index);
    const chosen = versions[versions.indexOf(index) + direction];
    this.talk.choose(chosen);
    this.keep(this.talk);
    this.show();
    const node = this.list.children[depth], name = direction < 0 ? ".previous" : ".following";
    node.scrollIntoView({block: "nearest"});
    (node.querySelector(`${name}:not([disabled])`) ?? node.querySelector(".versions button:not([disabled])")).focus();
    this.announce(`Version ${versions.indexOf(chosen) + 1} of ${versions.length}`);
  }

  // Buttons that go through the versions of a message; nothing where there is only one.
  versions(index) {
    const versions = index == null ? [] : this.talk.versions(index), at = versions.indexOf(index);
    if (versions.length < 2) return null;
    const button = (name, label, sign, by, end) => make("button", {type: "button", class: `small ${name}`,
      "aria-label": label, title: label, disabled: end, onclick: () => this.choose(index, by)}, sign);
    return make("span", {class: "versions", role: "group", "aria-label": `Version ${at + 1} of ${versions.length}`},
      button("previous", "Previous version", "‹", -1, at === 0), `${at + 1}/${versions.length}`,
      button("following", "Next version", "›", 1, at === versions.length - 1));
  }

  userItem(index) {
    const message = this.talk.messages[index], long = message.text.length > 2000;
    const files = message.files.map((file) => make("li", {class: "chip"}, ...fileLabel(file)));
    const bubble = message.text
      ? make("div", {class: long ? "bubble long" : "bubble", tabindex: long ? 0 : null}, message.text) : null;
    const actions = make("div", {class: "actions"}, this.versions(index),
      make("button", {type: "button", class: "small edit", onclick: () => this.edit(node, index)}, "Edit"));
    const node = make("li", {class: "user"}, make("span", {class: "out-of-sight"}, "You: "),
      files.length ? make("ul", {class: "chips", "aria-label": "Attached files"}, ...files) : null, bubble, actions);
    this.list.append(node);
  }

  edit(node, index) {
    if (this.running) return;
    const {text} = this.talk.messages[index], hidden = [...node.querySelectorAll(".bubble, .actions")];
    const box = make("textarea", {"aria-label": "Edit the message", rows: Math.min(12, text.split("\n").length + 1)});
    const end = () => {
      form.remove();
      for (const part of hidden) part.hidden = false;
      node.querySelector(".edit").focus();
    };
    const form = make("form", {class: "editor", onsubmit: (event) => {
      event.preventDefault();
      this.branch(index, box.value);
    }, onkeydown: (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === box) {
        event.preventDefault();
        this.branch(index, box.value);
      }
    }}, box, make("div", {class: "actions"}, make("button", {class: "small send-edit"}, "Send"),
      make("button", {type: "button", class: "small cancel-edit", onclick: end}, "Cancel")));
    for (const part of hidden) part.hidden = true;
    node.append(form);
    box.value = text;
    box.focus();
  }

  // An answer on the page: `body` is what shows its text.
  answerItem(index, body, text) {
    const item = {note: make("p", {class: "note"}), numbers: make("p", {class: "numbers"})};
    const small = (name, label, onclick) => make("button", {type: "button", class: `small ${name}`, onclick}, label);
    const copyButton = small("copy", "Copy", () => copy(text(), copyButton));
    item.actions = make("div", {class: "actions"}, copyButton, small("regenerate", "Regenerate", () => this.again()),
      this.versions(index));
    item.node = make("li", {class: "assistant"}, make("span", {class: "out-of-sight"}, "Answer: "), body, item.note,
      make("div", {class: "foot"}, item.actions, item.numbers));
    this.list.append(item.node);
    return item;
  }

  restore(index) {
    const message = this.talk.messages[index];
    const shown = message.compared ? new Comparison(message.compared.preset) : new Answer();
    if (message.compared) shown.restore(message);
    else shown.restore(message.text, message.marks);
    const item = this.answerItem(index, shown.node, () => message.text);
    if (message.compared) item.note.classList.add(message.compared.text === null ? "equal" : "differ");
    this.end(item, message);
  }

  end(item, {note, numbers}) {
    item.node.removeAttribute("aria-busy");
    item.node.classList.add("done");
    item.note.textContent = note ?? "";
    item.numbers.textContent = numbers ?? "";
  }

  body() {
    const {preset, temperature, maxTokens, seed, system} = this.settings;
    const messages = this.talk.shown().map((m) => ({role: m.role, content: contentOf(m)}));
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

  // Asks for the answer to the last message; twice, where two are to be compared.
  async run() {
    const running = this.running = new AbortController(), {talk} = this, parent = talk.leaf, body = this.body();
    const {compare, together, preset} = this.settings, pair = compare ? new Comparison(preset) : null;
    const answer = pair ? pair.answers.drafts : new Answer(), shown = pair ?? answer;
    const item = this.answerItem(null, shown.node, () => answer.text);
    item.node.setAttribute("aria-busy", "true");
    this.refresh();
    this.toEnd();
    const draw = oncePerFrame(() => {
      if (this.running !== running) return;
      if (pair) pair.flush();
      else answer.view.flush();
      this.stay();
    });
    let watched = answer;  // its rounds and its cache are on the page
    const told = {
      askKey: this.askKey,
      onBegin: (one) => {
        watched = one;
        this.meter.show(one.rounds);
        this.strip.waiting();
      },
      onBusy: (text) => { item.note.textContent = text; },
      onChunk: (chunk, from = answer) => {
        if (from === watched && this.talk === talk) this.watch(chunk);
        draw();
      },
    };
    let failure = null, note = "";
    try {
      if (pair) await pair.stream(body, running.signal, together, told);
      else {
        told.onBegin(answer);
        await answer.stream(body, running.signal, told);
      }
      if (answer.reason === "length") note = "Stopped at the most tokens an answer may have.";
    } catch (error) {
      if (error.name === "AbortError") note = answer.text ? "Stopped." : "Stopped before the answer began.";
      else failure = error;
    }
    if (this.running === running) this.running = null;
    shown.finish();
    const text = pair ? answer.text || pair.answers.plain.text : answer.text;
    const numbers = pair ? `seed ${body.seed}` : answer.sumUp(body.seed);
    const message = {role: "assistant", text, marks: answer.marks, note, numbers};
    if (pair) this.conclude(pair, item, message, !failure && !running.signal.aborted, together);
    this.finish({talk, parent, item, message, failure, tokens: answer.usage?.completion_tokens});
  }

  watch(chunk) {
    if (chunk.prompt_progress) this.strip.progress(chunk.prompt_progress);
    if (!chunk.specextend) return;
    this.meter.draw();
    this.strip.details(chunk.specextend);
  }

  conclude(pair, item, message, whole, together) {
    const {plain, drafts} = pair.answers;
    if (!plain.text || !drafts.text) return;  // there is only one
    message.compared = pair.stored();
    const {good, text} = pair.outcome(whole, together);
    item.note.classList.toggle("equal", good && whole);
    item.note.classList.toggle("differ", !good);
    message.note = [whole ? message.note : "", text].filter(Boolean).join(" ");
  }

  finish({talk, parent, item, message, failure, tokens}) {
    if (message.text || !failure) talk.add(message, parent);
    this.keep(talk);
    if (this.talk !== talk) return this.onState();  // another one was opened meanwhile
    this.meter.draw();
    this.strip.done();
    const versions = this.versions(message.text || !failure ? talk.leaf : null);
    if (versions) item.actions.append(versions);
    this.end(item, message);
    if (failure) {
      item.node.classList.add("failed");
      item.note.replaceChildren(make("span", {class: "error", role: "alert"}, explain(failure, message.text)),
        make("button", {type: "button", class: "small retry", onclick: () => this.again()}, "Try again"));
    } else this.announce(`Answer finished${tokens ? `, ${count(tokens)} tokens` : ""}. ${message.note}`);
    this.refresh();
    this.stay();
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
