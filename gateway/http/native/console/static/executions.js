// The page of all executions that the caller may see, the newest first.

import { call, pageOf } from "./api.js";
import { announce, field, h, menu } from "./dom.js";
import { shownFailure } from "./failures.js";
import { bare, count, visible } from "./text.js";

const STATES = ["INIT", "PLAN", "PREPARE", "EXECUTE", "VALIDATE", "COMPLETE", "ERROR", "CANCELLED"];
const MODES = ["CHAT", "STRUCTURED", "PLAN", "REDUNDANT", "DECIDE"];
const PAGE = 50;

/** Show the list, with the filters that the address names. */
export async function showExecutions(main, query, signal) {
  const list = new ExecutionList(main, query, signal);
  list.show();
  await list.load();
}

class ExecutionList {
  constructor(main, query, signal) {
    this.main = main;
    this.query = query;
    this.signal = signal;
    this.token = "";
    this.isLoading = false;
  }

  show() {
    const all = (names) => [["", "All"], ...names.map((name) => [name, name])];
    const session = h("input", { id: "session", type: "text", autocomplete: "off", spellcheck: "false" });
    session.value = this.query.get("session") ?? "";
    const form = h(
      "form",
      { class: "filters", "aria-label": "Filters" },
      field("State", menu("state", all(STATES), this.query.get("state") ?? "")),
      field("Mode", menu("mode", all(MODES), this.query.get("mode") ?? "")),
      field("Session", session),
      h("button", { type: "submit", class: "main-action" }, "Show"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#filter(form);
    });
    this.rows = h("tbody");
    this.table = h(
      "table",
      { class: "list" },
      h("caption", { class: "unseen" }, "Executions, the newest first"),
      h("thead", {}, h("tr", {}, ["Execution", "Mode", "State", "Started", "Session"].map((name) => h("th", { scope: "col" }, name)))),
      this.rows,
    );
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.load() }, "Older ones");
    this.note = h("p", { class: "empty" }, "Loading …");
    this.main.replaceChildren(h("h1", {}, "Executions"), form, this.table, this.note, this.more);
  }

  #filter(form) {
    const chosen = [...form.elements].filter((control) => control.id && control.value.trim());
    const query = new URLSearchParams(chosen.map((control) => [control.id, control.value.trim()]));
    const address = `#/executions${query.size ? `?${query}` : ""}`;
    if (location.hash === address) {
      if (this.isLoading) return;
      this.token = "";
      this.rows.replaceChildren();
      this.load();
    } else {
      location.hash = address;
    }
  }

  /** Add the next page. */
  async load() {
    if (this.isLoading) return; // A second press would show the same rows again.
    this.isLoading = true;
    const asked = new URLSearchParams({ page_size: PAGE, page_token: this.token });
    const [session, state, mode] = ["session", "state", "mode"].map((name) => this.query.get(name));
    if (session) asked.set("session_id", session);
    if (state) asked.set("state", `LIFECYCLE_STATE_${state}`);
    if (mode) asked.set("mode", `MODE_${mode}`);
    try {
      const page = await call(`v1/executions?${asked}`, { signal: this.signal });
      const added = page.executions.map(row);
      this.rows.append(...added);
      if (this.token) added[0]?.querySelector("a").focus();
      this.token = page.next_page_token;
      this.more.hidden = !this.token;
      this.note.textContent = this.rows.children.length ? "" : "There are none.";
      this.note.hidden = this.rows.children.length > 0;
      announce(`${count(this.rows.children.length, "execution")} shown.`);
    } catch (failure) {
      if (this.signal.aborted) return;
      this.note.replaceWith((this.note = h("div", { role: "alert" }, shownFailure(failure))));
    } finally {
      this.isLoading = false;
    }
  }
}

function row(execution) {
  const state = bare(execution.state.current, "LIFECYCLE_STATE_");
  const started = new Date(execution.started_at);
  const session = execution.session_id ?? "";
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: pageOf(execution.request_id) }, visible(execution.request_id))),
    h("td", {}, bare(execution.mode, "MODE_")),
    h("td", {}, shownState(state), execution.interrupted ? " interrupted" : execution.wakes_at ? " parked" : ""),
    h("td", {}, h("time", { datetime: execution.started_at }, started.toLocaleString())),
    h("td", {}, session ? h("a", { href: `#/chat/${encodeURIComponent(session)}` }, visible(session)) : "none"),
  );
}

/** Return a state with its colour. */
export function shownState(state) {
  const kind = { COMPLETE: "good", ERROR: "bad", CANCELLED: "warned" }[state] ?? "live";
  return h("span", { class: `state ${kind}` }, state);
}
