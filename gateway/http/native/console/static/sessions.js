// The pages of stored conversations: the list, and one with its messages.

import { call, newId } from "./api.js";
import { confirmed } from "./dialogs.js";
import { announce, copyButton, field, h } from "./dom.js";
import { CallFailure, shownFailure } from "./failures.js";
import { shownText } from "./output.js";
import { bare, count, cut, indented, visible } from "./text.js";
import { TITLE, TITLE_LENGTH, sessionPath, setTitle, titleOf } from "./titles.js";

const PAGE = 50;
const MESSAGES = 50;
const SPEAKERS = { USER: "You", ASSISTANT: "Answer", SYSTEM: "System", TOOL: "Tool" };

/** Show the list of sessions, the one used last first. */
export async function showSessions(main, signal) {
  const rows = h("tbody");
  const columns = ["Conversation", "Messages", "Last used", "Began", "In the chat"];
  const table = h(
    "table",
    { class: "list", hidden: true },
    h("caption", { class: "unseen" }, "Conversations, the one used last first"),
    h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
    rows,
  );
  const note = h("div", { class: "empty", role: "alert" }, "Loading …");
  const more = h("button", { type: "button", hidden: true }, "Older ones");
  let token = "";
  let isLoading = false;
  const load = async () => {
    if (isLoading) return; // A second press would show the same rows again.
    isLoading = true;
    try {
      const page = await call(`v1/sessions?${new URLSearchParams({ page_size: PAGE, page_token: token, state_key: TITLE })}`, { signal });
      const added = page.sessions.map(sessionRow);
      rows.append(...added);
      if (token) added[0]?.querySelector("a").focus();
      token = page.next_page_token;
      more.hidden = !token;
      table.hidden = !rows.children.length;
      note.hidden = rows.children.length > 0;
      note.replaceChildren("No conversation is stored yet. ", h("a", { href: "#/chat" }, "Begin one in the chat"), ".");
      announce(`${count(rows.children.length, "conversation")} shown.`);
    } catch (failure) {
      if (signal.aborted) return;
      note.hidden = false;
      note.replaceChildren(shownFailure(failure, [["Try again", load]]));
    } finally {
      isLoading = false;
    }
  };
  more.addEventListener("click", load);
  main.replaceChildren(
    h("div", { class: "title" }, h("h1", {}, "Sessions"), h("a", { class: "button", href: "#/chat" }, "New conversation")),
    h("p", {}, "Conversations that the orchestrator keeps. Deleting one forgets its messages, answers and events, too."),
    table,
    note,
    more,
  );
  await load();
}

function sessionRow(session) {
  const id = session.session_id;
  const title = titleOf(session);
  const address = encodeURIComponent(id);
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: `#/sessions/${address}` }, visible(title || id)), title ? h("small", { class: "below" }, visible(id)) : null),
    h("td", { "data-label": "Messages" }, (session.message_count ?? 0).toLocaleString("en")),
    h("td", { "data-label": "Last used" }, time(session.updated_at)),
    h("td", { "data-label": "Began" }, time(session.created_at)),
    h("td", {}, h("a", { href: `#/chat/${address}`, "aria-label": `Continue ${visible(title || id)}` }, "Continue")),
  );
}

function time(stamp) {
  return stamp ? h("time", { datetime: stamp }, new Date(stamp).toLocaleString()) : "";
}

/** Show one session. */
export async function showSession(main, id, signal) {
  main.replaceChildren(h("h1", {}, "Session"), h("p", { class: "empty" }, "Loading …"));
  try {
    const page = new SessionPage(main, id, signal);
    await page.load();
  } catch (failure) {
    if (signal.aborted) return;
    const again = [["Try again", () => showSession(main, id, signal)]];
    main.replaceChildren(h("h1", {}, "Session"), h("div", { role: "alert" }, shownFailure(failure, again)), back());
  }
}

function back() {
  return h("p", {}, h("a", { href: "#/sessions" }, "All sessions"));
}

class SessionPage {
  constructor(main, id, signal) {
    this.main = main;
    this.id = id;
    this.signal = signal;
    this.messages = h("ol", { class: "turns", "aria-label": "Messages" });
    this.problem = h("div", { role: "alert" });
    this.context = h("dd", {}, "Loading …");
    this.before = 0;
    this.isLoading = false;
  }

  async load() {
    const session = await this.#page();
    this.title = h("h1", {});
    this.#showTitle(titleOf(session));
    this.older = h("button", { type: "button", hidden: !this.before, onclick: () => this.#loadOlder() }, "Older messages");
    this.main.replaceChildren(
      h("div", { class: "title" }, this.title),
      this.#facts(session),
      this.#actions(),
      this.#renaming(titleOf(session)),
      this.problem,
      h("h2", {}, "Messages"),
      this.older,
      this.messages,
      ...shownValues(session.state_json ?? {}),
      back(),
    );
    if (!session.message_count) this.messages.replaceWith(h("p", { class: "empty" }, "It has no messages yet."));
    await this.#loadContext();
  }

  async #page() {
    const query = new URLSearchParams({ max_messages: MESSAGES });
    if (this.before) query.set("before_position", this.before);
    const session = await call(`${sessionPath(this.id)}?${query}`, { signal: this.signal });
    this.before = session.first_position ?? 0;
    this.messages.prepend(...(session.messages ?? []).map(shownMessage));
    return session;
  }

  async #loadOlder() {
    if (this.isLoading) return; // A second press would show the same messages again.
    this.isLoading = true;
    try {
      await this.#page();
      this.older.hidden = !this.before;
      this.messages.firstElementChild.focus();
    } catch (failure) {
      this.#fail(failure);
    } finally {
      this.isLoading = false;
    }
  }

  #showTitle(title) {
    this.title.textContent = visible(title || this.id);
    document.title = `${this.title.textContent} · pagantic`;
  }

  #facts(session) {
    const facts = [
      ["Session", h("dd", {}, h("code", {}, visible(this.id)), copyButton("Copy", () => this.id))],
      ["Messages", h("dd", {}, (session.message_count ?? 0).toLocaleString("en"))],
      ["Began", h("dd", {}, time(session.created_at))],
      ["Last used", h("dd", {}, time(session.updated_at))],
      ["Context of the last turn", this.context],
    ];
    return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), value)));
  }

  #actions() {
    const address = encodeURIComponent(this.id);
    return h(
      "div",
      { class: "row" },
      h("a", { class: "button main-action", id: "continue", href: `#/chat/${address}` }, "Continue in the chat"),
      h("a", { class: "button", href: `#/executions?session=${address}` }, "Its executions"),
      h("button", { type: "button", id: "delete", class: "danger", onclick: () => this.#delete() }, "Delete"),
    );
  }

  #renaming(title) {
    const name = h("input", { id: "title", type: "text", maxlength: String(TITLE_LENGTH), autocomplete: "off" });
    name.value = title;
    const form = h(
      "form",
      { class: "inline", "aria-label": "Title" },
      field("Title", name, "Shown in place of the id. Models do not see it."),
      h("button", { type: "submit" }, "Rename"),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        this.#showTitle(titleOf(await setTitle(this.id, name.value)));
        this.problem.replaceChildren();
        announce("Renamed.");
      } catch (failure) {
        this.#fail(failure);
      }
    });
    return form;
  }

  async #loadContext() {
    try {
      const query = new URLSearchParams({ session_id: this.id, page_size: 1 });
      const { executions } = await call(`v1/executions?${query}`, { signal: this.signal });
      const last = executions[0] && (await call(`v1/executions/${encodeURIComponent(executions[0].request_id)}`, { signal: this.signal }));
      this.context.replaceChildren(...shownContext(last?.response?.token_usage ?? {}));
    } catch (failure) {
      if (!(failure instanceof CallFailure)) throw failure;
      this.context.replaceChildren(`not known: ${visible(failure.code)}`);
    }
  }

  async #delete() {
    const question = {
      title: "Delete this conversation?",
      words: "Its messages are deleted, and what its executions keep of it: answers and events. That cannot be undone.",
      action: "Delete",
    };
    if (!(await confirmed(question))) return;
    try {
      await call(sessionPath(this.id), { method: "DELETE" });
      if (!this.signal.aborted) location.hash = "#/sessions";
      announce("The conversation is deleted.");
    } catch (failure) {
      this.#fail(failure);
    }
  }

  #fail(failure) {
    if (this.signal.aborted) return;
    this.problem.replaceChildren(shownFailure(failure));
  }
}

function shownContext(usage) {
  if (!usage.context_window) return ["not known: no turn of it is kept"];
  const share = (usage.context_tokens ?? 0) / usage.context_window;
  const words = `${(usage.context_tokens ?? 0).toLocaleString("en")} of ${usage.context_window.toLocaleString("en")} tokens`;
  return [h("meter", { min: 0, max: 1, high: 0.9, value: share, "aria-label": "Context of the last turn" }), " ", words];
}

function shownMessage(message) {
  const role = bare(message.role, "ROLE_");
  const speaker = SPEAKERS[role] ?? "Unknown";
  const parts = [h("h3", { class: "who" }, message.name ? `${speaker} ${visible(message.name)}` : speaker)];
  if (message.reasoning) {
    parts.push(h("details", { class: "reasoning" }, h("summary", {}, "Reasoning"), shownText(message.reasoning)));
  }
  if (message.content) parts.push(shownText(message.content));
  for (const one of message.tool_calls ?? []) {
    parts.push(h("p", { class: "note" }, "Calls ", h("code", {}, visible(one.name)), ":"), shownText(indented(one.arguments_json ?? "{}"), { isCode: true }));
  }
  const images = (message.parts ?? []).filter((part) => part.image).length;
  if (images) parts.push(h("p", { class: "note" }, `With ${count(images, "image")}.`));
  if (message.removed) parts.push(h("p", { class: "note" }, "It was removed."));
  if (message.cut) parts.push(h("p", { class: "note" }, "It was cut: the request was stopped, or its time was up."));
  return h("li", { class: role === "USER" ? "said" : "answered", id: newId("message"), tabindex: "-1" }, parts);
}

function shownValues(values) {
  const others = Object.entries(values).filter(([key]) => key !== TITLE);
  if (!others.length) return [];
  const rows = others.map(([key, value]) => h("div", {}, h("dt", {}, visible(key)), h("dd", {}, h("code", {}, visible(cut(value, 2000))))));
  return [h("h2", {}, "Values"), h("dl", { class: "facts" }, rows)];
}
