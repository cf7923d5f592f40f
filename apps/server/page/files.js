// Files that are dropped or chosen: read as text, shown as chips, counted in tokens by the server.
import {byId, bytes, count, make} from "./dom.js";
import {countTokens} from "./api.js";

const LARGEST = 8_000_000;  // bytes

async function readText(file) {
  if (file.size > LARGEST) throw new Error(`is larger than ${bytes(LARGEST)}`);
  let data;
  try {
    data = new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error("cannot be read");  // a folder, or gone
  }
  const wide = data[0] === 0xff && data[1] === 0xfe ? "utf-16le" : data[0] === 0xfe && data[1] === 0xff ? "utf-16be" : "";
  if (!wide && data.includes(0)) throw new Error("is not a text file");
  try {
    return new TextDecoder(wide || "utf-8", {fatal: true}).decode(data);
  } catch {
    return new TextDecoder("windows-1252").decode(data);
  }
}

// A chip's text; also for the messages that files were sent with.
export function fileLabel(file) {
  return [make("span", {class: "name", title: file.name}, file.name),
    make("span", {class: "soft"}, bytes(file.bytes) + (file.tokens ? ` · ${count(file.tokens)} tokens` : ""))];
}

export class Files {
  constructor(onProblem, onChange) {
    this.onProblem = onProblem;
    this.onChange = onChange;
    this.list = [];
    this.context = 0;  // tokens the server holds; 0: not known
    byId("attach").addEventListener("click", () => byId("files").click());
    byId("files").addEventListener("change", (event) => {
      this.add([...event.target.files]);
      event.target.value = "";  // the same file may be chosen again
    });
    this.listenForDrops();
  }

  listenForDrops() {
    const veil = byId("drop");
    let inside = 0;  // enter and leave events of the elements below the pointer come in pairs
    const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    const show = (by) => {
      inside = by === 0 ? 0 : Math.max(0, inside + by);
      veil.hidden = inside === 0;
    };
    window.addEventListener("dragenter", (event) => hasFiles(event) && (event.preventDefault(), show(1)));
    window.addEventListener("dragleave", (event) => hasFiles(event) && show(-1));
    window.addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
    window.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(0);
      this.add([...event.dataTransfer.files]);
    });
  }

  async add(files) {
    for (const file of files) {
      try {
        const text = await readText(file);
        if (!text.trim()) throw new Error("is empty");
        const entry = {name: file.name, text, bytes: file.size, tokens: 0, label: make("span", {class: "label"})};
        entry.chip = make("li", {class: "chip"}, entry.label, make("button", {type: "button", "aria-label": `Remove ${entry.name}`,
          title: "Remove", onclick: () => this.remove(entry)}, "×"));
        this.list.push(entry);
        this.show(entry, "");
        byId("chips").append(entry.chip);
        this.sum();
        this.onChange();
        this.measure(entry);
      } catch (error) {
        this.onProblem(`${file.name} ${error.message}.`);
      }
    }
  }

  async measure(entry) {
    let problem = "";
    try {
      entry.tokens = await countTokens(entry.text);
      if (this.context && entry.tokens >= this.context) problem = `more than the ${count(this.context)} tokens of the context`;
    } catch (error) {
      if (error.status === 413) problem = "larger than the server takes";
    }
    this.show(entry, problem);
    this.sum();
  }

  // Of several documents: how large they are together.
  sum() {
    const total = (field) => this.list.reduce((sum, entry) => sum + entry[field], 0), tokens = total("tokens");
    const full = this.context > 0 && tokens >= this.context, line = byId("documents");
    line.hidden = this.list.length < 2;
    line.classList.toggle("bad", full);
    line.textContent = `${count(this.list.length)} documents, ${bytes(total("bytes"))}` +
      (tokens ? `, ${count(tokens)} tokens` : "") + (full ? `: more than the ${count(this.context)} tokens of the context` : "");
  }

  show(entry, problem) {
    entry.chip.classList.toggle("bad", problem !== "");
    entry.label.replaceChildren(...fileLabel(entry), ...(problem ? [make("span", {class: "problem"}, problem)] : []));
  }

  remove(entry) {
    this.list = this.list.filter((other) => other !== entry);
    entry.chip.remove();
    this.sum();
    this.onChange();
    byId("message").focus();
  }

  take() {
    const taken = this.list.map(({name, text, bytes: size, tokens}) => ({name, text, bytes: size, tokens}));
    for (const {chip} of this.list) chip.remove();
    this.list = [];
    this.sum();
    this.onChange();
    return taken;
  }
}
