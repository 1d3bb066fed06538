// The page of one execution: what was asked and answered, and how: as a picture, and as the same timeline in words.

import { AnswerView } from "./answer.js";
import { call, eventsOf, executionPath, hasEnded, pageOf } from "./api.js";
import { announce, copyButton, h } from "./dom.js";
import { shownFailure } from "./failures.js";
import { shownState } from "./executions.js";
import { shownText } from "./output.js";
import { Picture } from "./picture.js";
import { keepLoading } from "./polling.js";
import { bare, span, visible } from "./text.js";
import { pictureOf, rowsOf } from "./timeline.js";

const ASK_AGAIN_MS = 1500;

/** Show an execution; one that runs is asked for again until it has ended, or the person leaves the page. */
export async function showExecution(main, id, signal) {
  const page = new ExecutionPage(main, id);
  main.replaceChildren(h("h1", {}, "Execution"), h("p", { class: "empty" }, "Loading …"));
  try {
    await keepLoading(() => page.load(signal), { signal, everyMs: ASK_AGAIN_MS });
  } catch (failure) {
    if (signal.aborted) return;
    main.replaceChildren(h("h1", {}, "Execution"), h("div", { role: "alert" }, shownFailure(failure)));
  }
}

class ExecutionPage {
  constructor(main, id) {
    this.main = main;
    this.id = id;
    this.picture = new Picture();
    this.facts = h("div");
    this.result = h("section", { "aria-label": "Answer" });
    this.usage = h("section", { "aria-label": "Usage" });
    this.rows = h("tbody");
    this.seen = "";
  }

  /** Load and show the execution; returns whether nothing follows. */
  async load(signal) {
    const execution = await call(executionPath(this.id), { signal });
    const events = await eventsOf(this.id, signal);
    const isEnded = hasEnded(execution.state.current) || Boolean(execution.interrupted);
    const now = `${execution.state.current} ${events.length}`;
    if (now !== this.seen) this.#show(execution, events, isEnded);
    this.seen = now;
    return isEnded;
  }

  #show(execution, events, isEnded) {
    if (!this.seen) this.#layOut();
    this.#showFacts(execution, events);
    this.picture.show(pictureOf(events, execution.response, !isEnded));
    this.rows.replaceChildren(...rowsOf(events).map(shownRow));
    if (!execution.response) return;
    this.#showResult(execution);
    this.#showUsage(execution.response.token_usage ?? {});
    if (this.seen) announce("The execution has ended.");
  }

  #layOut() {
    const columns = ["#", "At", "Layer", "Event", "Took", "What"];
    const table = h(
      "table",
      { class: "timeline" },
      h("caption", { class: "unseen" }, "Timeline in words"),
      h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
      this.rows,
    );
    const words = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline in words" }, table);
    this.main.replaceChildren(
      h("h1", {}, "Execution"),
      this.facts,
      h("div", { class: "columns" }, this.result, this.usage),
      h("h2", {}, "How it came out"),
      this.picture.element,
      h("h2", {}, "The same in words"),
      words,
    );
  }

  #showFacts(execution, events) {
    const state = bare(execution.state.current, "LIFECYCLE_STATE_");
    const last = events.at(-1)?.timestamp ?? execution.state.entered_at;
    const facts = [
      ["State", [shownState(state), execution.interrupted ? " interrupted" : execution.wakes_at ? " parked" : ""]],
      ["Mode", bare(execution.mode, "MODE_")],
      ["Request", [h("code", {}, visible(execution.request_id)), copyButton("Copy", () => execution.request_id)]],
      ["Started", new Date(execution.started_at).toLocaleString()],
      ["Took", span(Date.parse(last) - Date.parse(execution.started_at))],
    ];
    if (execution.trace_id) facts.push(["Trace", [h("code", {}, execution.trace_id), copyButton("Copy", () => execution.trace_id)]]);
    if (execution.session_id) {
      const address = `#/chat/${encodeURIComponent(execution.session_id)}`;
      facts.push(["Session", h("a", { href: address }, visible(execution.session_id))]);
    }
    const original = execution.metadata?.["replay.of"];
    if (original) facts.push(["Replay of", h("a", { href: pageOf(original) }, visible(original))]);
    this.facts.replaceChildren(
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      h("div", { class: "row" }, this.#actions(execution)),
    );
  }

  #actions(execution) {
    const isEnded = hasEnded(execution.state.current);
    const actions = [];
    if (!isEnded) actions.push(h("button", { type: "button", onclick: (event) => this.#stop(event.target) }, "Stop"));
    if (isEnded && execution.request) {
      actions.push(h("a", { class: "button main-action", href: `${pageOf(this.id)}/replay` }, "Replay or fork"));
    } else if (isEnded) {
      actions.push(h("small", {}, "The request was not kept, so it cannot be replayed."));
    }
    return actions;
  }

  async #stop(button) {
    button.disabled = true;
    try {
      await call(executionPath(this.id), { method: "DELETE" });
      announce("Stopped.");
    } catch (failure) {
      button.disabled = false;
      button.after(shownFailure(failure));
    }
  }

  #showResult(execution) {
    const answer = new AnswerView(this.id, execution.request?.context?.collection);
    answer.finish(execution.response);
    answer.foot.querySelector("a").remove();
    const asked = execution.request?.messages?.at(-1)?.content;
    const question = asked ? [h("h3", {}, "Asked"), shownText(asked)] : [];
    this.result.replaceChildren(h("h2", {}, "Answer"), ...question, asked ? h("h3", {}, "Answered") : "", answer.element);
  }

  #showUsage(usage) {
    const number = (value) => (value ?? 0).toLocaleString("en");
    const rows = [
      ["Prompt tokens", number(usage.prompt_tokens)],
      ["of them cached", number(usage.cached_prompt_tokens)],
      ["Output tokens", number(usage.output_tokens)],
      ["of them reasoning", number(usage.reasoning_tokens)],
      ["Decoding", `${(usage.tokens_per_second ?? 0).toFixed(1)} tokens/s`],
    ];
    const share = usage.context_window ? usage.context_tokens / usage.context_window : 0;
    const words = `${number(usage.context_tokens)} of ${number(usage.context_window)} tokens`;
    const meter = h("meter", { min: 0, max: 1, high: 0.9, value: share, "aria-label": "Context" });
    if (share) rows.push(["Context", [meter, " ", words]]);
    const shown = rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)));
    this.usage.replaceChildren(h("h2", {}, "Usage"), h("table", { class: "usage" }, h("tbody", {}, shown)));
  }
}

function shownRow(row) {
  const where = row.step ? `${row.layer}, step ${row.step}` : row.layer;
  const attempt = row.attempt > 1 ? ` (attempt ${row.attempt})` : "";
  return h(
    "tr",
    { "data-sequence": row.sequence },
    h("th", { scope: "row" }, String(row.sequence)),
    h("td", { class: "number" }, row.at ? span(row.at) : "0"),
    h("td", {}, visible(where)),
    h("td", {}, row.action + attempt),
    h("td", { class: "number" }, row.took === null ? "" : span(row.took)),
    h("td", { class: "what" }, visible(row.words)),
  );
}
