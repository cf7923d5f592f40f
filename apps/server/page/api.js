// What this page asks of the server.
import {EventParser} from "./sse.js";

export class ApiError extends Error {
  constructor(status, message, retryAfter = 0) {
    super(message);
    this.status = status;          // 0: no answer at all, or one that broke off
    this.retryAfter = retryAfter;  // seconds
  }
}

let key = "";
export const setKey = (text) => { key = text.trim(); };
export const hasKey = () => key !== "";

async function ask(path, options = {}) {
  const headers = {...options.headers};
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, {...options, headers, cache: "no-store", credentials: "same-origin"});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (/[^\x20-\x7e]/.test(key)) throw new ApiError(401, "The API key has characters no key can have.");
    throw new ApiError(0, "The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    // not ours, perhaps a proxy's
  }
  if (typeof message !== "string" || !message) message = `The server answered with status ${response.status}.`;
  throw new ApiError(response.status, message, Math.min(60, Math.max(0, Number(response.headers.get("Retry-After")) || 0)));
}

const JSON_BODY = {"Content-Type": "application/json"};
const post = (path, body, signal) => ask(path, {method: "POST", headers: JSON_BODY, body: JSON.stringify(body), signal});

export const props = async () => (await ask("props")).json();
export const countTokens = async (content, signal) =>
  (await (await post("tokenize", {content, parse_special: false}, signal)).json()).tokens.length;

// Calls onChunk for each chunk of the answer. Ends when the stream is whole; throws otherwise.
export async function streamChat(body, signal, onChunk) {
  const response = await post("v1/chat/completions", body, signal);
  let done = false, failure = null;
  const parser = new EventParser((data, name) => {
    if (done || failure) return;
    if (data === "[DONE]") {
      done = true;
      return;
    }
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      failure = new ApiError(0, "The server sent something that is not JSON.");
      return;
    }
    if (chunk.error || name === "error") {
      const error = chunk.error ?? chunk;
      failure = new ApiError(Number(error.code) || 500, String(error.message ?? "The server ended the answer with an error."));
    } else onChunk(chunk);
  });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  try {
    while (!done && !failure) {
      const {value, done: ended} = await reader.read();
      if (ended) break;
      parser.push(decoder.decode(value, {stream: true}));
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    failure ??= new ApiError(0, "The connection was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
  if (failure) throw failure;
  if (!done) throw new ApiError(0, "The connection was lost before the answer was complete.");
}
