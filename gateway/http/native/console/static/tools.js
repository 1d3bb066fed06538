// The page of tools: the calls that wait for a decision, and what is offered to models.

import { call, pageOf } from "./api.js";
import { shownApproval } from "./approvals.js";
import { announce, field, h } from "./dom.js";
import { shownFailure } from "./failures.js";
import { shownText } from "./output.js";
import { keepLoading } from "./polling.js";
import { bare, count, indented, span, visible } from "./text.js";

const LOOK_AGAIN_MS = 3000;
const MOST_WAITING = 500;
const SHORT = 140;
const SAFETY = {
  NONE: ["computes", "It computes, and neither reads nor changes anything outside.", "good"],
  READ: ["reads", "It reads state: clock, files, databases.", "live"],
  WRITE: ["writes", "It changes state.", "warned"],
  EXTERNAL: ["external", "It reaches systems outside of this deployment.", "warned"],
};
const UNKNOWN_SAFETY = ["not said", "It does not say what it does.", "warned"];

/** Show the tools, and follow the calls that wait. */
export async function showTools(main, signal) {
  const waiting = new WaitingCalls(signal);
  const tools = new ToolList(signal);
  main.replaceChildren(
    h("h1", {}, "Tools"),
    h("h2", {}, "Waiting for a decision"),
    waiting.element,
    h("h2", {}, "Offered to models"),
    tools.element,
  );
  await Promise.all([waiting.follow(), tools.load()]);
}

/** The calls that wait. One that somebody edits stays as it is while others come and go. */
class WaitingCalls {
  constructor(signal) {
    this.signal = signal;
    this.made = 0;
    this.shown = new Map();
    this.decided = new Set();
    this.note = h("p", { class: "empty" }, "Loading …");
    this.problem = h("div", { role: "alert" });
    this.list = h("ul", { class: "waiting", "aria-label": "Calls that wait" });
    this.more = h("p", { class: "note", hidden: true }, `These are the first ${MOST_WAITING}; decide some, and others follow.`);
    this.element = h("div", { id: "waiting", tabindex: "-1" }, this.problem, this.note, this.list, this.more);
  }

  async follow() {
    const onLost = (isLost) => {
      this.problem.replaceChildren(...(isLost ? [h("p", { class: "note warned" }, "The connection was lost. Trying again …")] : []));
    };
    try {
      await keepLoading(() => this.#load(), { signal: this.signal, everyMs: LOOK_AGAIN_MS, onLost });
    } catch (failure) {
      if (this.signal.aborted) return;
      this.note.hidden = true;
      this.problem.replaceChildren(shownFailure(failure, [["Try again", () => this.follow()]]));
    }
  }

  async #load() {
    // What is decided while the list is on its way may still be in it.
    this.decided.clear();
    const listed = await call(`v1/approvals?page_size=${MOST_WAITING}`, { signal: this.signal });
    const keyed = listed.approvals.map((one) => [`${one.request_id} ${one.tool_call_id}`, one]);
    const waiting = new Map(keyed.filter(([key]) => !this.decided.has(key)));
    this.more.hidden = !listed.next_page_token;
    for (const [key, item] of this.shown) {
      if (!waiting.has(key)) this.#remove(key, item);
    }
    const added = [...waiting].filter(([key]) => !this.shown.has(key));
    for (const [key, approval] of added) {
      const item = this.#item(key, approval);
      this.shown.set(key, item);
      this.list.append(item);
    }
    if (added.length) announce(`${count(this.shown.size, "call")} of tools wait for a decision.`);
    this.#count();
  }

  #count() {
    this.note.hidden = this.shown.size > 0;
    this.note.textContent =
      "No call waits. Calls wait where the deployment's policy or a request says that a tool asks first, as the chat's option “Ask before each tool call” does.";
  }

  #item(key, approval) {
    const name = visible(approval.tool_name);
    const form = shownApproval(approval, `waiting-${++this.made}`, () => this.#leave(key, item));
    const expires = approval.expires_at && new Date(approval.expires_at);
    const item = h(
      "li",
      {},
      h("h3", {}, h("code", {}, name)),
      h(
        "p",
        { class: "note" },
        h("a", { href: pageOf(approval.request_id) }, `Execution ${visible(approval.request_id)}`),
        expires ? [", denied at ", h("time", { datetime: approval.expires_at }, expires.toLocaleTimeString()), " unless somebody decides"] : "",
      ),
      form,
    );
    return item;
  }

  #leave(key, item) {
    this.decided.add(key);
    this.#remove(key, item);
  }

  #remove(key, item) {
    const isFocused = item.contains(document.activeElement);
    const next = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    this.shown.delete(key);
    this.#count();
    if (isFocused) (next?.querySelector("textarea") ?? this.element).focus();
  }
}

class ToolList {
  constructor(signal) {
    this.signal = signal;
    this.filter = h("input", { id: "tool-filter", type: "search", autocomplete: "off", spellcheck: "false" });
    this.filter.addEventListener("input", () => this.#filter());
    this.search = h("div", { class: "search", hidden: true }, field("Filter", this.filter));
    this.note = h("div", { class: "empty", role: "alert" }, "Loading …");
    this.list = h("ul", { class: "tool-list", "aria-label": "Tools" });
    this.element = h("div", {}, this.search, this.note, this.list);
  }

  async load() {
    try {
      const { tools } = await call("v1/tools", { signal: this.signal });
      this.items = tools.map((tool) => [wordsOf(tool), toolItem(tool)]);
      this.list.replaceChildren(...this.items.map(([, item]) => item));
      this.search.hidden = tools.length < 2;
      this.note.hidden = tools.length > 0;
      this.note.textContent = "No tool is offered. The settings of the tools service turn on built-in ones, MCP servers and OpenAPI documents.";
    } catch (failure) {
      if (this.signal.aborted) return;
      this.note.hidden = false;
      this.note.replaceChildren(shownFailure(failure, [["Try again", () => this.load()]]));
    }
  }

  #filter() {
    const wanted = this.filter.value.trim().toLowerCase();
    let shown = 0;
    for (const [words, item] of this.items) {
      item.hidden = !words.includes(wanted);
      shown += item.hidden ? 0 : 1;
    }
    this.note.hidden = shown > 0;
    this.note.textContent = "No tool has these words.";
    announce(`${count(shown, "tool")} shown.`);
  }
}

function wordsOf({ definition, origin = "" }) {
  return `${definition.name} ${definition.description ?? ""} ${origin}`.toLowerCase();
}

function toolItem(tool) {
  const { definition } = tool;
  const [safety, about, kind] = SAFETY[bare(definition.safety, "TOOL_SAFETY_")] ?? UNKNOWN_SAFETY;
  const asks = tool.action === "TOOL_ACTION_ASK";
  const chips = [h("span", { class: `state ${kind}` }, safety)];
  if (asks) chips.push(h("span", { class: "state warned" }, "asks first"));
  if (!tool.available) chips.push(h("span", { class: "state bad" }, "not available"));
  const facts = [
    ["Offered by", visible(tool.origin || "the deployment")],
    ["Safety", about],
    ["A call", asks ? "waits for an approval" : "runs at once"],
    ["Twice", definition.idempotent ? "does no harm, so a failed call is retried" : "may do harm, so it is called once"],
  ];
  if (definition.timeout) facts.push(["Longest time", span(Number.parseFloat(definition.timeout) * 1000)]);
  if (definition.requires?.length) facts.push(["Needs", visible(definition.requires.join(", "))]);
  if (!tool.available) facts.unshift(["Not available", visible(tool.unavailable_reason ?? "")]);
  return h(
    "li",
    {},
    h(
      "details",
      {},
      h("summary", {}, h("code", { class: "long" }, visible(definition.name)), " ", chips, h("small", { class: "below" }, visible(firstLine(definition.description ?? "")))),
      isLong(definition.description ?? "") ? [h("h4", {}, "For models"), shownText(definition.description)] : null,
      h("dl", { class: "pairs" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      h("h4", {}, "Schema of the arguments"),
      shownText(indented(definition.parameters_json ?? "{}"), { isCode: true }),
    ),
  );
}

function firstLine(text) {
  const line = text.split("\n", 1)[0];
  if (line.length <= SHORT) return line;
  const space = line.lastIndexOf(" ", SHORT);
  return `${line.slice(0, space > 0 ? space : SHORT)} …`;
}

function isLong(text) {
  return firstLine(text) !== text;
}
