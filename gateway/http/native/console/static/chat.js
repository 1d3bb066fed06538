// The page of a conversation: options, turns, and the field for the next message.

import { AnswerView } from "./answer.js";
import { call, execute, executionPath, follow, hasEnded, newId } from "./api.js";
import { announce, checkbox, field, h, menu } from "./dom.js";
import { CallFailure, shownFailure } from "./failures.js";
import { bare, visible } from "./text.js";
import { setTitle } from "./titles.js";

const OPTIONS = "pagantic.chat";
const MODES = [
  ["CHAT", "Chat"],
  ["STRUCTURED", "Structured: one answer under a schema"],
  ["REDUNDANT", "Vote: several answers under a schema"],
];
const SCHEMA = '{\n  "type": "object",\n  "properties": {"answer": {"type": "string"}},\n  "required": ["answer"]\n}';
const TURNS_SHOWN = 30;
const NEAR_END = 120;
const TITLE_LENGTH = 80;

/** Show a conversation, a new one where `session` is empty. `signal` ends when the person leaves the page. */
export async function showChat(main, session, signal) {
  const page = new ChatPage(main, session, signal);
  page.show();
  await Promise.all([page.loadModels(), page.loadTurns()]);
}

/** Show an empty page also where the address stays the same: only chats are kept in a session, which has an address. */
function beginAgain() {
  if (location.hash === "#/chat") dispatchEvent(new HashChangeEvent("hashchange"));
}

class ChatPage {
  constructor(main, session, signal) {
    this.main = main;
    this.session = session || newId("console");
    this.isStored = Boolean(session);
    this.signal = signal;
    this.running = null;
  }

  show() {
    const kept = JSON.parse(sessionStorage.getItem(OPTIONS) ?? "{}");
    this.turns = h("ol", { class: "turns", "aria-label": "Conversation" });
    this.empty = h("p", { class: "empty" }, "Ask something. Each answer links to a picture of how it came out.");
    this.message = h("textarea", { id: "message", rows: 3, placeholder: "Message", "aria-describedby": "message-hint" });
    this.message.addEventListener("keydown", (event) => this.#onKey(event));
    this.sendButton = h("button", { type: "submit", class: "main-action" }, "Send");
    this.stopButton = h("button", { type: "button", hidden: true, onclick: () => this.#stop() }, "Stop");
    this.problem = h("div", { role: "alert" });
    const form = h(
      "form",
      { class: "composer", "aria-label": "Next message" },
      this.problem,
      h("label", { for: "message", class: "unseen" }, "Message"),
      this.message,
      h(
        "div",
        { class: "row" },
        this.sendButton,
        this.stopButton,
        h("small", { id: "message-hint" }, "Enter sends, Shift+Enter begins a line."),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    const again = h("a", { href: "#/chat", class: "button", id: "new-chat", onclick: beginAgain }, "New conversation");
    this.main.replaceChildren(
      h("div", { class: "title" }, h("h1", {}, "Chat"), again),
      this.#optionsForm(kept),
      this.empty,
      this.turns,
      form,
    );
    this.message.focus({ preventScroll: true });
  }

  #optionsForm(kept) {
    const number = (id, label, hint, attributes) => {
      const control = h("input", { id, type: "number", ...attributes });
      control.value = kept[id] ?? "";
      return field(label, control, hint);
    };
    const text = (tag, id, label, hint, otherwise = "") => {
      const control = h(tag, { id, spellcheck: "false", autocomplete: "off" });
      control.value = kept[id] ?? otherwise;
      return field(label, control, hint);
    };
    this.contract = h(
      "div",
      { class: "grid wide" },
      text("textarea", "schema", "JSON Schema", "The answer satisfies it.", SCHEMA),
      number("samples", "Samples", "How many answers vote; empty is 3.", { min: 1, max: 16 }),
    );
    this.options = h(
      "form",
      { class: "options" },
      h(
        "div",
        { class: "grid" },
        field("Model", menu("model", [["", "Default"]]), ""),
        field("Mode", menu("mode", MODES, kept.mode), ""),
        number("temperature", "Temperature", "0 to 2; empty is the model's.", { min: 0, max: 2, step: 0.1 }),
        number("max_tokens", "Most tokens", "Empty is 2048.", { min: 1, step: 1 }),
        text("input", "collection", "Collection", "Documents to answer from; empty is none."),
      ),
      this.contract,
      h("div", { class: "grid wide" }, text("textarea", "system", "System prompt", "")),
      h(
        "div",
        { class: "checks" },
        checkbox("citations", "Cite the collection", kept.citations ?? true),
        checkbox("ask", "Ask before each tool call", kept.ask ?? false),
        checkbox("keep", "Keep for replay", kept.keep ?? true),
      ),
    );
    this.options.addEventListener("submit", (event) => event.preventDefault());
    this.options.addEventListener("input", () => this.#keepOptions());
    this.#showContract(kept.mode ?? "CHAT");
    this.keptModel = kept.model ?? "";
    return h("details", { class: "panel", id: "options" }, h("summary", {}, "Options"), this.options);
  }

  #values() {
    const controls = [...this.options.elements].filter((control) => control.id);
    const value = (control) => (control.type === "checkbox" ? control.checked : control.value);
    return Object.fromEntries(controls.map((control) => [control.id, value(control)]));
  }

  #keepOptions() {
    const values = this.#values();
    sessionStorage.setItem(OPTIONS, JSON.stringify(values));
    this.#showContract(values.mode);
  }

  #showContract(mode) {
    this.contract.hidden = mode === "CHAT";
    this.contract.querySelector("#samples").parentElement.hidden = mode !== "REDUNDANT";
  }

  async loadModels() {
    try {
      const { data } = await call("v1/models", { signal: this.signal });
      const talks = data.filter((model) => model.pagantic?.capabilities.includes("chat"));
      const choices = talks.map(({ id }) => h("option", { value: id, selected: id === this.keptModel }, visible(id)));
      this.options.elements.model.append(...choices);
    } catch (failure) {
      this.#showProblem(failure);
    }
  }

  /** Show the turns of a stored conversation, and follow the one that still runs. */
  async loadTurns() {
    if (!this.isStored) return;
    try {
      const query = new URLSearchParams({ session_id: this.session, page_size: TURNS_SHOWN });
      const { executions } = await call(`v1/executions?${query}`, { signal: this.signal });
      for (const { request_id: id } of executions.reverse()) await this.#loadTurn(id);
    } catch (failure) {
      this.#showProblem(failure);
    }
  }

  async #loadTurn(id) {
    const execution = await call(executionPath(id), { signal: this.signal });
    const asked = execution.request?.messages?.at(-1)?.content;
    const answer = this.#addTurn(asked ?? "(The message was not kept.)", id, execution.request?.context?.collection);
    if (hasEnded(execution.state.current)) answer.finish(execution.response);
    else this.#run(answer, follow(id, this.#following()));
  }

  #showProblem(failure) {
    if (this.signal.aborted) return;
    this.problem.replaceChildren(shownFailure(failure));
  }

  #onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  }

  #send() {
    const text = this.message.value;
    if (!text.trim() || this.running) return;
    this.problem.replaceChildren();
    let request;
    try {
      request = this.#request(text);
    } catch (failure) {
      this.#showProblem(failure);
      return;
    }
    this.message.value = "";
    this.#begin(text, request);
  }

  #begin(text, request) {
    const answer = this.#addTurn(text, request.request_id, request.context?.collection);
    if (request.session_id) history.replaceState(null, "", `#/chat/${encodeURIComponent(this.session)}`);
    announce("Sent. The answer is being written.");
    const ending = this.#run(answer, execute(request, this.#following()), () => {
      this.message.value = text;
      this.#send();
    });
    if (request.session_id && !this.isStored) ending.then(() => this.#name(text, answer));
  }

  /** Give a conversation its first message as a title; one whose key may not do that keeps its id. */
  async #name(text, answer) {
    if (!answer.response || answer.response.error || this.isStored) return;
    this.isStored = true;
    await setTitle(this.session, [...text.trim().split("\n", 1)[0]].slice(0, TITLE_LENGTH).join("")).catch((failure) => {
      if (!(failure instanceof CallFailure)) throw failure;
    });
  }

  #following() {
    const onLost = (isLost) => {
      if (isLost === this.isLost) return;
      this.isLost = isLost;
      this.main.classList.toggle("lost", isLost);
      announce(isLost ? "The connection was lost. Trying again." : "The connection is back.");
    };
    this.isLost = false;
    return { signal: this.signal, onLost };
  }

  #addTurn(text, id, collection) {
    this.empty.hidden = true;
    const answer = new AnswerView(id, collection);
    const said = h("div", { class: "said" }, h("h2", { class: "who" }, "You"), h("div", { class: "plain", dir: "auto" }, visible(text)));
    const answered = h("div", { class: "answered" }, h("h2", { class: "who" }, "Answer"), answer.element);
    this.turns.append(h("li", { "data-id": id }, said, answered));
    answered.scrollIntoView({ block: "nearest" });
    return answer;
  }

  async #run(answer, events, retry = null) {
    this.running = answer;
    this.#showRunning(true);
    answer.element.setAttribute("aria-busy", "true");
    try {
      for await (const event of events) {
        const isAtEnd = innerHeight + scrollY > document.documentElement.scrollHeight - NEAR_END;
        answer.take(event);
        if (isAtEnd) this.#followText();
      }
      announce(answer.summary);
    } catch (failure) {
      if (!(failure instanceof CallFailure)) throw failure;
      if (this.signal.aborted) return;
      answer.fail(failure, retry ? [["Send again", retry]] : []);
      announce(`The request failed: ${failure.message}. Next step: ${failure.next}`);
    } finally {
      answer.element.removeAttribute("aria-busy");
      if (!this.signal.aborted) this.main.classList.remove("lost");
      this.running = null;
      this.#showRunning(false);
    }
  }

  #followText() {
    if (this.scrolling) return;
    this.scrolling = requestAnimationFrame(() => {
      this.scrolling = 0;
      scrollTo({ top: document.documentElement.scrollHeight });
    });
  }

  #showRunning(isRunning) {
    const isFocused = document.activeElement === this.stopButton;
    this.isStopping = false;
    this.sendButton.disabled = isRunning;
    this.stopButton.hidden = !isRunning;
    if (isFocused && !isRunning) this.message.focus();
  }

  async #stop() {
    if (this.isStopping) return;
    this.isStopping = true; // The button stays enabled: a disabled one would lose the focus.
    const { requestId } = this.running;
    try {
      const { state } = await call(executionPath(requestId), { method: "DELETE" });
      announce(`Stopped: ${bare(state, "LIFECYCLE_STATE_").toLowerCase()}.`);
    } catch (failure) {
      this.isStopping = false;
      this.#showProblem(failure);
    }
  }

  /** Return the request for a message; throws CallFailure for options that make none. */
  #request(text) {
    const values = this.#values();
    const request = {
      request_id: newId("console"),
      mode: `MODE_${values.mode}`,
      messages: [{ role: "ROLE_USER", content: text }],
      hints: hintsOf(values),
      background: true, // The answer outlives a lost connection and a page that is loaded again; Stop cancels it.
      keep_request: values.keep,
    };
    if (values.mode === "CHAT") request.session_id = this.session;
    if (values.system.trim()) request.prompt = { text: values.system };
    if (values.ask) request.tool_rules = [{ tool: "*", action: "TOOL_ACTION_ASK" }];
    if (values.mode !== "CHAT") request.output = { schema_json: schemaOf(values.schema) };
    if (values.mode === "REDUNDANT") request.voting = { n: Number(values.samples) || 3 };
    if (values.collection.trim()) {
      request.context = { collection: values.collection.trim() };
      if (values.citations && values.mode === "CHAT") request.output = { citations: {} };
    }
    return request;
  }
}

function hintsOf(values) {
  const hints = {};
  if (values.model) hints.model = values.model;
  if (values.temperature !== "") hints.temperature = Number(values.temperature);
  if (values.max_tokens !== "") hints.max_tokens = Number(values.max_tokens);
  return hints;
}

function schemaOf(text) {
  try {
    JSON.parse(text);
    return text;
  } catch (error) {
    throw new CallFailure({
      code: "CONFIG_INVALID",
      category: "CONFIGURATION_FAILURE",
      message: `the schema in the options is not JSON: ${error.message}`,
    });
  }
}
