// One answer: reasoning, tool calls, approvals, text, citations, votes and failure, as its events come or as it is stored.

import { pageOf } from "./api.js";
import { shownApproval } from "./approvals.js";
import { announce, copyButton, h } from "./dom.js";
import { failureOf, shownFailure } from "./failures.js";
import { OutputText, shownText } from "./output.js";
import { chunkButton } from "./chunks.js";
import { bare, count, indented, span, visible } from "./text.js";
import { shownVotes } from "./votes.js";

const READ_ALOUD = 600;
const MARK = /\[(\d{1,3})\]/g;
let made = 0;

/** Shows an answer, and takes its events. Its citations open their chunks where the collection is known. */
export class AnswerView {
  constructor(requestId, collection = "") {
    this.requestId = requestId;
    this.collection = collection;
    this.prefix = `answer-${++made}`;
    this.reasoning = new OutputText();
    this.text = new OutputText();
    this.thoughts = h("details", { class: "reasoning", hidden: true }, h("summary", {}, "Reasoning"), this.reasoning.element);
    this.calls = h("ul", { class: "calls", "aria-label": "Tool calls", hidden: true });
    this.notes = h("div", { class: "notes" });
    this.after = h("div", { class: "after" });
    this.foot = h("footer", { class: "answer-foot" });
    this.element = h("div", { class: "answer" }, this.thoughts, this.calls, this.notes, this.text.element, this.after, this.foot);
    this.callViews = new Map();
    this.#showLink();
  }

  /** Take an event of the stream; the last one has the response. */
  take(event) {
    if (event.content_delta) this.text.append(event.content_delta.text);
    else if (event.reasoning_delta) this.#think(event.reasoning_delta.text);
    else if (event.tool_start) this.#callView(event.tool_start.tool_call_id, event.tool_start.tool_name);
    else if (event.tool_progress) this.#progress(event.tool_call_id, event.tool_progress);
    else if (event.tool_end) this.#end(event);
    else if (event.approval_requested) this.#ask(event.approval_requested.approval);
    else if (event.approval_resolved) this.#decided(event.approval_resolved.approval);
    else if (event.attempt_discarded) this.#discard(event.attempt_discarded);
    else if (event.guard_acted) this.#note(`The guard ${event.guard_acted.guard} ${guardWords(event.guard_acted)}.`);
    else if (event.completed) this.finish(event.completed.response);
  }

  /** Show a whole response in place of what has streamed. */
  finish(response) {
    this.response = response;
    this.text.finish();
    const content = response.content || response.structured_output_json || "";
    if (this.text.text !== content) this.#replace(this.text, content);
    if (response.reasoning && this.reasoning.text !== response.reasoning) this.#replace(this.reasoning, response.reasoning);
    this.thoughts.hidden = !this.reasoning.length;
    for (const record of response.tool_calls_made ?? []) this.#record(record);
    for (const form of this.element.querySelectorAll(".approval")) leave(form);
    this.#showCitations(response);
    this.after.append(...[shownVotes(response), ...warningsOf(response)].filter(Boolean));
    if (response.error) this.after.append(shownFailure(failureOf(response.error)));
    this.#showUsage(response);
  }

  /** Show that the call itself failed. */
  fail(failure, actions = []) {
    this.text.finish();
    this.after.append(shownFailure(failure, actions));
  }

  /** Return what a screen reader says at the end. */
  get summary() {
    const { error } = this.response ?? {};
    if (error) return `The answer failed: ${error.message}`;
    const text = this.text.text;
    return text.length <= READ_ALOUD ? `Answer: ${visible(text)}` : `The answer is complete: ${count(text.length, "character")}.`;
  }

  #replace(output, text) {
    output.clear();
    output.append(text);
    output.finish();
  }

  #think(text) {
    this.thoughts.hidden = false;
    this.reasoning.append(text);
  }

  #note(words) {
    this.notes.append(h("p", { class: "note" }, visible(words)));
  }

  #discard(discarded) {
    this.text.clear();
    this.reasoning.clear();
    this.#note(`Attempt ${discarded.attempt} was discarded: ${discarded.reason}. The text is written again.`);
  }

  #callView(id, name) {
    if (!this.callViews.has(id)) {
      const state = h("span", { class: "call-state" }, "runs …");
      const parts = h("div", { class: "call-parts" });
      const element = h(
        "li",
        {},
        h("details", {}, h("summary", {}, h("code", {}, visible(name)), " ", state), parts),
      );
      this.callViews.set(id, { element, state, parts });
      this.calls.hidden = false;
      this.calls.append(element);
    }
    return this.callViews.get(id);
  }

  #progress(id, progress) {
    const view = this.callViews.get(id);
    if (!view) return;
    const of = progress.total ? ` of ${progress.total}` : "";
    view.state.textContent = visible(`${progress.progress ?? 0}${of} ${progress.message ?? ""}`);
  }

  #end({ tool_end: end, tool_call_id: id, duration }) {
    const view = this.#callView(end.tool_call_id || id, end.tool_name);
    view.state.textContent = `${end.success ? "gave a result" : `failed: ${bare(end.error_code, "ERROR_CODE_")}`}${inTime(duration)}`;
  }

  #record(record) {
    const view = this.#callView(record.id, record.name);
    const outcome = record.is_error ? `failed: ${bare(record.error_code, "ERROR_CODE_") || "error"}` : "gave a result";
    view.state.textContent = outcome + inTime(record.duration);
    view.parts.replaceChildren(...part("Arguments", record.arguments_json), ...part("Result", record.result ?? ""));
  }

  #ask(approval) {
    const view = this.#callView(approval.tool_call_id, approval.tool_name);
    view.state.textContent = "waits for your approval";
    view.approval?.remove();
    view.approval = shownApproval(approval, `${this.prefix}-${this.callViews.size}`, leave);
    view.element.append(view.approval);
    announce(`The tool ${visible(approval.tool_name)} waits for your approval.`);
  }

  #decided(approval) {
    const view = this.#callView(approval.tool_call_id, approval.tool_name);
    if (view.approval) leave(view.approval);
    const decision = bare(approval.resolution?.decision, "APPROVAL_DECISION_").toLowerCase();
    view.state.textContent = decision;
  }

  #showCitations(response) {
    const citations = response.citations ?? [];
    if (!citations.length) return;
    const numbers = new Set(citations.map((citation) => citation.source));
    const items = citations.map((citation, index) =>
      h(
        "li",
        { id: `${this.prefix}-source-${index}`, tabindex: "-1" },
        h("strong", {}, `[${citation.source}] `, visible(citation.document ?? "")),
        citation.page ? ` page ${citation.page}` : "",
        h("p", {}, visible(citation.claim ?? "")),
        h("blockquote", {}, visible(citation.quote ?? "")),
        this.collection ? chunkButton(this.collection, citation, `${this.prefix}-chunk-${index}`) : null,
      ),
    );
    const heading = h("h3", {}, "Sources");
    this.after.append(h("section", { class: "sources", "aria-label": "Sources" }, heading, h("ul", {}, items)));
    this.#linkMarks(numbers, citations);
  }

  /** Make the marks in the shown text lead to their sources. */
  #linkMarks(numbers, citations) {
    for (const block of this.text.element.querySelectorAll(".plain")) {
      const pieces = block.textContent.split(MARK);
      block.replaceChildren(
        ...pieces.map((piece, index) => {
          if (index % 2 === 0) return piece;
          if (!numbers.has(Number(piece))) return `[${piece}]`;
          const place = citations.findIndex((citation) => citation.source === Number(piece));
          const show = () => document.getElementById(`${this.prefix}-source-${place}`).focus();
          return h("button", { type: "button", class: "mark", "aria-label": `Source ${piece}`, onclick: show }, `[${piece}]`);
        }),
      );
    }
  }

  #showLink() {
    this.foot.append(h("a", { href: pageOf(this.requestId) }, "How this came out"));
  }

  #showUsage(response) {
    const usage = response.token_usage ?? {};
    const parts = [];
    if (usage.output_tokens) parts.push(count(usage.output_tokens, "token"));
    if (usage.cached_prompt_tokens) parts.push(`${usage.cached_prompt_tokens} of ${usage.prompt_tokens} prompt tokens cached`);
    if (response.confidence !== undefined) parts.push(`confidence ${Number(response.confidence).toFixed(2)}`);
    const guarantee = bare(response.validation?.guarantee, "GUARANTEE_");
    if (guarantee && guarantee !== "UNSPECIFIED") parts.push(`schema ${guarantee.toLowerCase()}`);
    if (response.finish_reason === "FINISH_REASON_LENGTH") parts.push("cut at a limit");
    if (parts.length) this.foot.append(h("span", {}, parts.join(" · ")));
    if (this.text.length) this.foot.append(copyButton("Copy", () => this.text.text));
  }
}

function part(name, text) {
  return [h("h4", {}, name), shownText(indented(text), { isCode: true })];
}

function warningsOf(response) {
  const words = [...(response.warnings ?? []).map((one) => one.message), ...(response.validation?.warnings ?? [])];
  return words.map((one) => h("p", { class: "note" }, h("strong", {}, "Warning: "), visible(one)));
}

function guardWords(acted) {
  const outcome = bare(acted.outcome, "GUARD_OUTCOME_").toLowerCase().replaceAll("_", " ");
  return `${outcome} at ${bare(acted.stage, "GUARD_STAGE_").toLowerCase().replaceAll("_", " ")}`;
}

function inTime(duration) {
  return duration ? ` in ${span(milliseconds(duration))}` : "";
}

/** Return a duration of the contract, such as 1.5s, in milliseconds. */
export function milliseconds(duration) {
  return Number.parseFloat(duration ?? "0") * 1000;
}

/** Remove a form; the keyboard goes on at the call that it was about. */
function leave(form) {
  const isFocused = form.contains(document.activeElement);
  const call = form.closest("li")?.querySelector("summary");
  form.remove();
  if (isFocused) call?.focus();
}
