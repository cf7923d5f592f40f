// A conversation: messages that branch. A message that is edited, or answered again, gets another version beside it; the
// messages from the first to `leaf` are what is shown and sent.
//
// Messages: {parent, role: "user", text, files: [{name, text, bytes, tokens}]} and
// {parent, role: "assistant", text, marks: [length, depth, length, depth, ...], note, numbers, compared}.
// `parent` is the index of the message before it, -1 for a first one; it is smaller than the message's own.

const LONGEST_TITLE = 60;

const isText = (value) => typeof value === "string";
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;

export function newId() {
  return [...crypto.getRandomValues(new Uint32Array(3))].map((n) => n.toString(36)).join("");
}

export class Conversation {
  constructor({id = newId(), updated = Date.now(), messages = [], leaf = messages.length - 1} = {}) {
    Object.assign(this, {id, updated, messages, leaf});
  }

  // The indices of the messages that are shown, the first one first.
  path() {
    const path = [];
    for (let at = this.leaf; at >= 0; at = this.messages[at].parent) path.push(at);
    return path.reverse();
  }
  shown() { return this.path().map((at) => this.messages[at]); }

  add(message, parent = this.leaf) {
    this.messages.push({parent, ...message});
    this.leaf = this.messages.length - 1;
    this.updated = Date.now();
    return this.leaf;
  }

  versions(index) {
    const {parent, role} = this.messages[index];
    return this.messages.map((m, at) => (m.parent === parent && m.role === role ? at : -1)).filter((at) => at >= 0);
  }

  // Shows this version, with the newest of what follows it.
  choose(index) {
    for (let at = index; at >= 0; at = this.messages.findLastIndex(({parent}) => parent === this.leaf)) this.leaf = at;
  }

  title() {
    const first = this.messages[this.path()[0]];
    if (!first) return "New conversation";
    const text = (first.text || first.files[0]?.name || "").replace(/\s+/g, " ").trim();
    const short = [...text].slice(0, LONGEST_TITLE).join("");
    return short.length < text.length ? short + "…" : short;
  }

  // As JSON: a document that several messages have is there once.
  toJSON() {
    const documents = [];
    const number = (file) => {
      const at = documents.findIndex((d) => d.name === file.name && d.text === file.text);
      return at >= 0 ? at : documents.push(file) - 1;
    };
    const messages = this.messages.map((m) => (m.role === "user" ? {...m, files: m.files.map(number)} : m));
    return {id: this.id, title: this.title(), updated: this.updated, leaf: this.leaf, documents, messages};
  }

  // Out of what JSON gave, whatever that is: null where it is no conversation.
  static from(stored) {
    if (!Array.isArray(stored?.messages) || !Array.isArray(stored.documents) || !stored.messages.length) return null;
    const documents = stored.documents.map((d) => {
      if (!isText(d?.name) || !isText(d.text)) return null;
      const {name, text, bytes, tokens} = d;
      return {name, text, bytes: isCount(bytes) ? bytes : text.length, tokens: isCount(tokens) ? tokens : 0};
    });
    const messages = stored.messages.map((m, at) => {
      const parent = m?.parent;
      if (!m || !isText(m.text) || !Number.isInteger(parent) || parent < -1 || parent >= at) return null;
      if (m.role === "user") {
        const files = Array.isArray(m.files) ? m.files.map((n) => documents[n]) : [null];
        return files.every(Boolean) ? {parent, role: "user", text: m.text, files} : null;
      }
      if (m.role !== "assistant" || !Array.isArray(m.marks) || !m.marks.every(isCount)) return null;
      const {plain, drafts, text, preset} = m.compared ?? {};
      const compared = isText(plain) && isText(drafts) &&
        {preset: isText(preset) ? preset : "", plain, drafts, text: isText(text) ? text : null};
      return {parent, role: "assistant", text: m.text, marks: m.marks, note: isText(m.note) ? m.note : "",
        numbers: isText(m.numbers) ? m.numbers : "", ...(compared && {compared})};
    });
    if (!messages.every(Boolean)) return null;
    const leaf = isCount(stored.leaf) && stored.leaf < messages.length ? stored.leaf : messages.length - 1;
    return new Conversation({id: isText(stored.id) && /^[\w-]{1,64}$/.test(stored.id) ? stored.id : newId(),
      updated: Number.isFinite(stored.updated) ? stored.updated : 0, messages, leaf});
  }
}
