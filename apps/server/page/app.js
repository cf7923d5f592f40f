// The page: connects the controls with the conversation.
import {byId, make} from "./dom.js";
import * as api from "./api.js";
import {Chat} from "./chat.js";
import {Files} from "./files.js";
import {Library} from "./library.js";
import {Meter} from "./meter.js";
import {RoundsPanel} from "./rounds.js";
import * as store from "./store.js";
import {Strip} from "./strip.js";

const EXAMPLES = [
  "Explain in five sentences why the sky is blue.",
  "Write a Python function that merges two sorted lists, then explain it line by line.",
  "List the months of the year with the number of days each has.",
];
const root = document.documentElement;
const box = byId("message");
const settings = store.loadSettings();
const meter = new Meter(new RoundsPanel());
const announce = (text) => { byId("status").textContent = text; };

let chat = null, library = null;
const files = new Files((problem) => showProblem(problem), () => onState());
const strip = new Strip((share) => chat.textAt(share));
chat = new Chat({settings, strip, meter, announce, askKey, onState, keep: (talk) => library.keep(talk)});
library = new Library({chat, settings, announce, showProblem, focusBox: () => box.focus()});

function onState() {
  const running = Boolean(chat?.running), send = byId("send");
  send.textContent = running ? "Stop" : "Send";
  send.title = running ? "Stop the answer (Esc)" : "Send (Enter)";
  send.classList.toggle("stop", running);
  byId("examples").hidden = running;
  root.classList.toggle("running", running);
}

function grow() {
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, window.innerHeight * 0.4)}px`;
}

function submit() {
  if (chat.running) return chat.stop();
  const text = box.value;
  if (!text.trim() && !files.list.length) return;
  box.value = "";
  grow();
  chat.send(text, files.take());
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
box.addEventListener("input", grow);
box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!chat.running) submit();
});
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && library.closeDrawer()) event.preventDefault();
  else if (event.key === "Escape" && chat.running) {
    event.preventDefault();
    chat.stop();
    box.focus();
  } else if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.matches("input, textarea, select")) {
    event.preventDefault();
    box.focus();
  }
});
byId("examples").append(...EXAMPLES.map((text) => make("li", {}, make("button", {type: "button", onclick: () => {
  chat.send(text, files.take());
  box.focus();
}}, text))));

// Problems with files: for a while where the chips are, and said aloud.
function showProblem(text) {
  const chip = make("li", {class: "chip bad", role: "alert"}, make("span", {class: "problem"}, text));
  byId("chips").append(chip);
  setTimeout(() => chip.remove(), 8000);
}

// Colours.
const THEMES = {auto: "as the system", light: "light", dark: "dark"};
function showTheme() {
  const theme = root.dataset.theme ?? "auto", button = byId("theme");
  button.textContent = theme[0].toUpperCase() + theme.slice(1);
  button.title = `Colours: ${THEMES[theme]}`;
  button.setAttribute("aria-label", button.title);
  meter.draw();
  strip.draw();
}
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES), next = names[(names.indexOf(root.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    localStorage.setItem("specextend.theme", next);
  } catch {
    // forbidden: it holds until the page is left
  }
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTheme();

// Settings.
const wholeOrNull = (text, least) => {
  const n = Math.floor(Number(text));
  return text.trim() === "" || !Number.isFinite(n) ? null : Math.max(least, n);
};
const FIELDS = {
  temperature: ["temperature", (text) => Number(text)],
  "max-tokens": ["maxTokens", (text) => wholeOrNull(text, 1)],
  seed: ["seed", (text) => wholeOrNull(text, 0)],
  system: ["system", (text) => text],
};
for (const [id, [name, read]] of Object.entries(FIELDS)) {
  const input = byId(id);
  input.value = settings[name] ?? "";
  input.addEventListener("input", () => {
    settings[name] = read(input.value);
    showTemperature();
    store.saveSettings(settings);
  });
}
function showTemperature() {
  byId("temperature-value").textContent = settings.temperature === 0 ? "0, greedy" : settings.temperature.toFixed(2);
}
showTemperature();
byId("tint").checked = settings.tint;
byId("tint").addEventListener("change", (event) => {
  settings.tint = event.target.checked;
  root.classList.toggle("no-tint", !settings.tint);
  store.saveSettings(settings);
});
root.classList.toggle("no-tint", !settings.tint);
function showCompare() {
  byId("compare").setAttribute("aria-pressed", settings.compare);
  byId("together").checked = settings.together;
}
showCompare();
byId("compare").addEventListener("click", () => {
  settings.compare = !settings.compare;
  showCompare();
  store.saveSettings(settings);
  announce(settings.compare ? "Each answer is made plain and with drafts." : "One answer each.");
});
byId("together").addEventListener("change", (event) => {
  settings.together = event.target.checked;
  store.saveSettings(settings);
});
byId("preset").addEventListener("change", (event) => {
  settings.preset = event.target.value;
  store.saveSettings(settings);
});
byId("open-settings").addEventListener("click", () => byId("settings").showModal());

// The key.
function useKey(key) {
  api.setKey(key);
  store.saveKey(key.trim());
  byId("key").value = key.trim();
}
useKey(store.loadKey());
byId("key").addEventListener("change", (event) => {
  useKey(event.target.value);
  loadProps();
});
function askKey() {
  const dialog = byId("ask-key"), input = byId("asked-key");
  input.value = "";
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    if (input.value.trim()) useKey(input.value);
    resolve(input.value.trim() !== "");
  }, {once: true}));
}

// What the server is. Without an answer the page works, it only knows less.
function showPresets(names) {
  const select = byId("preset");
  select.replaceChildren(make("option", {value: ""}, "default"),
    ...names.filter((name) => name && name !== "off").map((name) => make("option", {value: name}, name)),
    make("option", {value: "off"}, "off: plain decoding"));
  select.value = settings.preset;
  if (select.value !== settings.preset) select.value = settings.preset = "";  // another server's
}
async function loadProps() {
  try {
    const props = await api.props();
    const names = Array.isArray(props.presets) ? props.presets.map((p) => (typeof p === "string" ? p : p?.name)) : [];
    showPresets(names.filter((name) => typeof name === "string"));
    chat.model = props.model_alias ?? props.model_path?.split("/").pop() ?? "";
    byId("model").textContent = chat.model;
    strip.context = files.context = props.n_ctx ?? props.default_generation_settings?.n_ctx ?? 0;
    strip.describe();
  } catch (error) {
    if (error.status === 401) {
      if (await askKey()) await loadProps();
    } else if (error.status === 503 || error.status === 0) {  // not there yet, or not any more
      byId("model").textContent = error.status ? "The model is being loaded" : "not connected";
      setTimeout(loadProps, 1000);
    }
  }
}
loadProps();
grow();
if (!matchMedia("(pointer: coarse)").matches) box.focus();  // where that brings up no keyboard
