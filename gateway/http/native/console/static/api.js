// Calls the native API of the gateway, and follows the events of an execution through lost connections.

import { CallFailure, mayComeBack } from "./failures.js";

const KEY = "pagantic.key";
const TRIES = 6;
const FIRST_WAIT_MS = 400;
const SILENCE_MS = 45_000; // The gateway sends a line every 15 s while nothing happens.
const ENDED = new Set(["LIFECYCLE_STATE_COMPLETE", "LIFECYCLE_STATE_ERROR", "LIFECYCLE_STATE_CANCELLED"]);

let askForKey = async () => false;

/** Set what asks the person for a key; it resolves to whether there is one to try again with. */
export function onMissingKey(ask) {
  askForKey = ask;
}

/** Return the API key of this tab; empty for none. */
export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** Keep an API key for this tab; an empty one is forgotten. */
export function keepKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Return an id that no other request has. */
export function newId(prefix) {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `${prefix}-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Tell whether a state is one after which nothing follows. */
export function hasEnded(state) {
  return ENDED.has(state);
}

/** Return the path of an execution. */
export function executionPath(id, rest = "") {
  return `v1/executions/${encodeURIComponent(id)}${rest}`;
}

/** Return the address of an execution's page. */
export function pageOf(id) {
  return `#/executions/${encodeURIComponent(id)}`;
}

/** Return the JSON of a GET, or of another method with a body. Throws CallFailure. */
export async function call(path, { method = "GET", body, signal } = {}) {
  const response = await send(path, { method, body, signal, accept: "application/json" });
  return response.json().catch((error) => {
    throw lost(error, signal);
  });
}

/** Return the stored events of an execution, from all pages. */
export function eventsOf(id, signal) {
  return allOf(executionPath(id, "/timeline"), "events", "after_sequence", signal);
}

/** Return the results of the steps of a kept execution, from all pages. */
export function stepsOf(id, signal) {
  return allOf(executionPath(id, "/steps"), "steps", "page_token", signal);
}

/** Return a list from all its pages, each of which gives the `parameter` of the next one. */
async function allOf(path, list, parameter, signal) {
  const all = [];
  let next = "";
  do {
    const page = await call(`${path}?${parameter}=${encodeURIComponent(next)}`, { signal });
    all.push(...page[list]);
    next = page[`next_${parameter}`];
  } while (next);
  return all;
}

/** Send a file as the body of a POST, and return the JSON of the answer; `onProgress` gets the share that is sent. */
export async function sendFile(path, file, { signal, onProgress }) {
  for (;;) {
    const key = apiKey();
    const { status, text } = await post(path, file, key, signal, onProgress);
    const body = parsed(text);
    if (status >= 200 && status < 300) {
      if (body) return body;
      throw noConnection("the answer of the gateway cannot be read");
    }
    const failure = failureIn(status, body);
    if (status !== 401) throw failure;
    const hasAnother = apiKey() !== key;
    if (!hasAnother && !(await askForKey(failure))) throw failure;
  }
}

/** Post a file. XMLHttpRequest is what tells how much of a body is sent. */
function post(path, file, key, signal, onProgress) {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(lost(null, signal));
      return;
    }
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.setRequestHeader("accept", "application/json");
    request.setRequestHeader("content-type", file.type || "application/octet-stream");
    if (key) request.setRequestHeader("authorization", `Bearer ${key}`);
    request.upload.addEventListener("progress", (event) => onProgress(event.total ? event.loaded / event.total : 0));
    request.addEventListener("load", () => resolve({ status: request.status, text: request.responseText }));
    request.addEventListener("error", () => reject(noConnection("the connection was lost while the file was sent")));
    request.addEventListener("abort", () => reject(lost(null, signal)));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(file);
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Yield the events of a request that is sent now, and its response at last. Throws CallFailure. */
export async function* execute(request, { signal, onLost = () => {} } = {}) {
  yield* events(request.request_id, { request, signal, onLost });
}

/** Yield the events of an execution that runs or has ended, from the first on. Throws CallFailure. */
export async function* follow(id, { signal, onLost = () => {} } = {}) {
  yield* events(id, { signal, onLost });
}

async function* events(id, { request, signal, onLost }) {
  let last = "";
  for (let tries = 0; ; ) {
    try {
      for await (const event of read(await open(id, last ? null : request, last, signal))) {
        last = event.id;
        tries = 0;
        onLost(false);
        yield event.data;
        if (event.data.completed) return;
      }
      throw noConnection("the stream ended before the answer did");
    } catch (failure) {
      if (signal?.aborted || !mayComeBack(failure, Boolean(last)) || ++tries >= TRIES) throw failure;
      onLost(true);
      await new Promise((resolve) => setTimeout(resolve, FIRST_WAIT_MS * 2 ** (tries - 1)));
    }
  }
}

/** Open the stream of a request, or of what follows an event. The same request again joins its execution. */
function open(id, request, last, signal) {
  const accept = "text/event-stream";
  if (request) return send("v1/executions", { method: "POST", body: request, signal, accept });
  return send(executionPath(id), { method: "GET", signal, accept, last });
}

async function send(path, { method, body, signal, accept, last = "" }) {
  for (;;) {
    const headers = { accept };
    const key = apiKey();
    if (key) headers.authorization = `Bearer ${key}`;
    if (last) headers["last-event-id"] = last;
    if (body !== undefined) headers["content-type"] = "application/json";
    const sent = { method, headers, signal, cache: "no-store", redirect: "error", credentials: "omit" };
    if (body !== undefined) sent.body = JSON.stringify(body);
    const response = await fetch(path, sent).catch((error) => {
      throw lost(error, signal);
    });
    if (response.ok) return response;
    const failure = failureIn(response.status, await response.json().catch(() => null));
    if (response.status !== 401) throw failure;
    const hasAnother = apiKey() !== key; // Somebody entered it while this call was made.
    if (!hasAnother && !(await askForKey(failure))) throw failure;
  }
}

function lost(error, signal) {
  if (signal?.aborted) return new CallFailure({ code: "CANCELLED_SIGNAL", message: "the call was stopped" });
  return noConnection(`the gateway does not answer: ${error.message}`);
}

function noConnection(message) {
  return new CallFailure({ code: "NO_CONNECTION", message, retryable: true });
}

function failureIn(status, body) {
  const described = body?.error;
  const ours = described?.pagantic ?? {};
  return new CallFailure({
    code: described?.code ?? `HTTP_${status}`,
    message: described?.message ?? `the gateway answered with status ${status}`,
    status,
    retryable: Boolean(ours.retryable),
    causes: (ours.caused_by ?? []).map((cause) => `${cause.code ?? ""}: ${cause.message}`),
  });
}

/** Yield the events in a stream, each with its id and its JSON. */
async function* read(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const lines = [];
  let rest = [];
  try {
    for (;;) {
      const { value, done } = await readInTime(reader);
      if (done) return;
      const parts = value.split("\n");
      for (const part of parts.slice(0, -1)) {
        const line = rest.concat(part).join("");
        rest = [];
        if (line) {
          lines.push(line);
          continue;
        }
        const event = eventOf(lines.splice(0));
        if (event) yield event;
      }
      rest.push(parts.at(-1));
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** Read the next part of a stream. The gateway is never silent for long, so silence means that the connection is lost. */
async function readInTime(reader) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came for ${SILENCE_MS / 1000} s`)), SILENCE_MS);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } catch (error) {
    throw noConnection(`the connection was lost: ${error.message}`);
  } finally {
    clearTimeout(timer);
  }
}

function eventOf(lines) {
  const fields = {};
  for (const line of lines) {
    const [, name, value] = /^([a-z]+): ?(.*)$/s.exec(line) ?? [];
    if (name) fields[name] = value;
  }
  return fields.data ? { id: fields.id, data: JSON.parse(fields.data) } : null;
}
