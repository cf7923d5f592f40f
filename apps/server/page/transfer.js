// Conversations as files: JSON, which can be read back, and Markdown for people.
import {bytes, count, make} from "./dom.js";
import {Conversation, newId} from "./conversation.js";

const FORMAT = "specextend-conversations";
const LARGEST_FILE = 50_000_000;  // bytes

export const toJson = (conversations) =>
  JSON.stringify({format: FORMAT, version: 1, exported: new Date().toISOString(), conversations}, null, 1);

export function toMarkdown(conversation, model) {
  const parts = [`# ${conversation.title()}`];
  if (model) parts.push(`Model: ${model}`);
  for (const message of conversation.shown()) {
    parts.push(message.role === "user" ? "## Question" : "## Answer");
    for (const file of message.files ?? []) {
      parts.push(`Attached: ${file.name} (${bytes(file.bytes)}${file.tokens ? `, ${count(file.tokens)} tokens` : ""})`);
    }
    if (message.text) parts.push(message.text);
    for (const note of [message.note, message.numbers]) if (note) parts.push(`(${note})`);
  }
  return parts.join("\n\n") + "\n";
}

// A name for a file out of a title: letters and digits of any script.
export function fileName(title, ending) {
  const letters = [...title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")].slice(0, 50).join("");
  return (letters || "conversation") + ending;
}

export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], {type}));
  const link = document.body.appendChild(make("a", {href: address, download: name, hidden: true}));
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// The conversations of a file that toJson wrote; throws an Error that says what is wrong with it. Those whose id is `taken`
// get another one.
export async function readConversations(file, taken) {
  if (file.size > LARGEST_FILE) throw new Error(`${file.name} is larger than ${bytes(LARGEST_FILE)}.`);
  let stored;
  try {
    stored = JSON.parse(await file.text());
  } catch {
    throw new Error(`${file.name} is not JSON.`);
  }
  if (stored?.format !== FORMAT || !Array.isArray(stored.conversations)) {
    throw new Error(`${file.name} has no conversations of this page.`);
  }
  if (stored.version !== 1) throw new Error(`${file.name} is of version ${stored.version}; this page reads version 1.`);
  const used = new Set(taken);
  return stored.conversations.map((one, at) => {
    const conversation = Conversation.from(one);
    if (!conversation) throw new Error(`${file.name}: conversation ${at + 1} is damaged. Nothing was imported.`);
    if (used.has(conversation.id)) conversation.id = newId();
    used.add(conversation.id);
    return conversation;
  });
}
