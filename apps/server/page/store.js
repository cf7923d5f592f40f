// What outlives a reload: settings and conversations in localStorage (bounded), the API key in sessionStorage.
import {Conversation} from "./conversation.js";
import {count} from "./dom.js";

const LARGEST_CHAT = 2_000_000;  // characters of JSON
const LARGEST_STORE = 4_000_000; // likewise, of all conversations; browsers give a page about five million
const MOST_CHATS = 200;
const CHAT = "specextend.chat.";
const DEFAULTS = {preset: "", temperature: 0.6, maxTokens: 1024, seed: null, system: "", tint: true, list: true,
  compare: false, together: false};

function load(storage, name) {
  try {
    return JSON.parse(window[storage].getItem(`specextend.${name}`));
  } catch {
    return null;  // nothing there, not JSON, or storage is forbidden
  }
}

function save(storage, name, value) {
  try {
    if (value == null) window[storage].removeItem(`specextend.${name}`);
    else window[storage].setItem(`specextend.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

// Whatever is stored, what comes back has the types of the defaults.
export function loadSettings() {
  const stored = load("localStorage", "settings") ?? {}, settings = {...DEFAULTS};
  for (const name of Object.keys(DEFAULTS)) {
    const value = stored[name], numeric = name === "temperature" || name === "maxTokens" || name === "seed";
    if (numeric ? value === null || Number.isFinite(value) : typeof value === typeof DEFAULTS[name]) settings[name] = value;
  }
  settings.temperature ??= DEFAULTS.temperature;
  return settings;
}
export const saveSettings = (settings) => save("localStorage", "settings", settings);

export const loadKey = () => {
  const key = load("sessionStorage", "key");
  return typeof key === "string" ? key : "";
};
export const saveKey = (key) => save("sessionStorage", "key", key || null);

// Which conversation this tab has open, else the one that any tab had open last. "": a new one.
export const loadOpen = () => load("sessionStorage", "open") ?? load("localStorage", "open") ?? "";
export function saveOpen(id) {
  save("sessionStorage", "open", id);
  save("localStorage", "open", id);
}

function chatKeys() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(CHAT));
  } catch {
    return [];
  }
}
export const isChatKey = (key) => key === null || key.startsWith(CHAT);  // null: all was cleared
export const usedCharacters = () => chatKeys().reduce((sum, key) => sum + (localStorage.getItem(key)?.length ?? 0), 0);
export const storeLimit = LARGEST_STORE;

// What earlier versions of the page kept: one conversation without branches.
function takeOver() {
  const old = load("localStorage", "chat");
  if (!Array.isArray(old)) return;
  const documents = [], messages = old.map((m, at) => ({...m, parent: at - 1,
    ...(m?.role === "user" && {files: (Array.isArray(m.files) ? m.files : []).map((file) => documents.push(file) - 1)})}));
  const conversation = Conversation.from({documents, messages, updated: Date.now()});
  if (conversation && saveChat(conversation) === "") saveOpen(conversation.id);
  save("localStorage", "chat", null);
}

export function loadChats() {
  takeOver();
  const chats = chatKeys().map((key) => Conversation.from(load("localStorage", key.slice("specextend.".length))));
  return chats.filter(Boolean).sort((a, b) => b.updated - a.updated);
}

// "" when it is kept, else why not; what was kept of it before is gone then, as it would be another conversation.
export function saveChat(conversation) {
  const name = CHAT.slice("specextend.".length) + conversation.id, text = JSON.stringify(conversation);
  const others = chatKeys().filter((key) => key !== CHAT + conversation.id);
  const used = others.reduce((sum, key) => sum + localStorage.getItem(key).length, 0);
  let problem = "";
  if (others.length >= MOST_CHATS) problem = `there are ${MOST_CHATS}. Export and delete some.`;
  else if (used + text.length > LARGEST_STORE) {
    problem = `the others have ${count(used)} of ${count(LARGEST_STORE)} characters. Export and delete some.`;
  } else if (!save("localStorage", name, conversation)) problem = "the browser's storage is full or forbidden.";
  if (problem) problem = `This conversation is not kept: ${problem}`;
  if (text.length > LARGEST_CHAT) problem = "This conversation is too large to be kept over a reload.";
  if (problem) save("localStorage", name, null);
  return problem;
}
export const removeChat = (id) => save("localStorage", CHAT.slice("specextend.".length) + id, null);
