// What outlives a reload: settings and the conversation in localStorage (bounded), the API key in sessionStorage.

const LARGEST_CHAT = 2_000_000;  // characters; browsers give a page about five million
const DEFAULTS = {preset: "", temperature: 0.6, maxTokens: 1024, seed: null, system: "", tint: true};

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

// Messages: {role: "user", text, files: [{name, text, bytes, tokens}]} and
// {role: "assistant", text, marks: [length, depth, length, depth, ...], note, numbers}.
export function loadChat() {
  const isText = (value) => typeof value === "string";
  const stored = load("localStorage", "chat");
  if (!Array.isArray(stored)) return [];
  const good = stored.every((m) => m && isText(m.text) && (m.role === "user"
    ? Array.isArray(m.files) && m.files.every((f) => f && isText(f.name) && isText(f.text))
    : m.role === "assistant" && Array.isArray(m.marks)));
  return good ? stored : [];
}

// False when the conversation is too large to be kept.
export function saveChat(messages) {
  const size = messages.reduce((sum, m) => sum + m.text.length + (m.files ?? []).reduce((s, f) => s + f.text.length, 0), 0);
  if (size > LARGEST_CHAT) {
    save("localStorage", "chat", null);
    return false;
  }
  if (save("localStorage", "chat", messages.length ? messages : null)) return true;
  save("localStorage", "chat", null);
  return false;
}
