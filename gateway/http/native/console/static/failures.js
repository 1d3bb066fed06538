// Failures in words: the code, what happened, and the next step.

import { h } from "./dom.js";
import { bare, visible } from "./text.js";

const NEXT_OF_CODE = {
  INFERENCE_CONTEXT_EXCEEDED: "Shorten the text, or begin a new conversation.",
  INFERENCE_OUTPUT_TRUNCATED: "Raise the most tokens in the options, or ask for less.",
  INFERENCE_MODEL_UNAVAILABLE: "Choose another model, or wait until this one is loaded.",
  INFERENCE_OVERLOADED: "Wait a moment, then send it again.",
  ORCHESTRATION_NOT_ANSWERABLE: "Add documents that answer, or retrieve more of them.",
  ORCHESTRATION_NO_CONSENSUS: "Look at the votes below: ask more precisely, or take more samples.",
  ORCHESTRATION_DEPENDENCY_UNAVAILABLE: "The message names the service: have its operator look at it, then send it again.",
  ORCHESTRATION_DEPENDENCY_FAILED: "The message names the service: have its operator look at it, then send it again.",
  AUTH_MISSING: "Enter an API key with the button above.",
  AUTH_INVALID: "Enter another API key with the button above.",
  AUTH_EXPIRED: "Have an administrator create another key, and enter it with the button above.",
  AUTH_DENIED: "Use a key with the scope that the message names.",
  AUTH_POLICY: "Use another model or collection, or have the policy changed.",
  QUOTA_RATE: "Wait a moment, then send it again.",
  QUOTA_CONCURRENCY: "Wait until other requests have ended, then send it again.",
  QUOTA_BUDGET: "Ask for fewer tokens, wait for the next period, or have the budget raised.",
  QUOTA_STORAGE: "Delete what is not needed, or have the storage of the tenant raised.",
  GUARD_BLOCKED: "Change the text: a guard of the operator does not let it pass.",
  CANCELLED_SIGNAL: "It was stopped. Send it again to run it once more.",
  CANCELLED_TIMEOUT: "Send it again, and ask for less or allow more time.",
  ALREADY_EXISTS: "Choose another name or id.",
  ABORTED: "Wait until what uses it has ended, then try again.",
  FILE_UNREADABLE: "Choose the file again; in place of a folder, choose its files.",
  NO_CONNECTION: "See whether `pagantic serve` runs and this machine has a network, then try again.",
};
const NEXT_OF_CATEGORY = {
  INFERENCE_FAILURE: "Send it again.",
  TOOL_FAILURE: "Send it again, or go on without the tool.",
  CONSTRAINT_FAILURE: "Correct the schema, or send it again.",
  VALIDATION_FAILURE: "Change the prompt or the rule.",
  ORCHESTRATION_FAILURE: "Change the request as the message says.",
  CONFIGURATION_FAILURE: "Correct what the message names.",
};
const NEXT_OF_STATUS = {
  401: NEXT_OF_CODE.AUTH_MISSING,
  404: "Check the id or name: it may be deleted, and executions are kept for a limited time.",
  409: "Do what the message says; where another turn of this conversation runs, wait until it has ended.",
  413: "Send less at once, or have the operator raise the bound.",
  503: "Wait a moment, then try again.",
};

/** A call that failed. */
export class CallFailure extends Error {
  constructor({ code, message, status = 0, category = "", retryable = false, causes = [] }) {
    super(message);
    Object.assign(this, { code, status, category, retryable, causes });
  }

  /** Return the next step as a sentence. */
  get next() {
    const known = NEXT_OF_CODE[this.code] ?? NEXT_OF_CATEGORY[this.category] ?? NEXT_OF_STATUS[this.status];
    if (known) return known;
    return this.retryable ? "Try again." : "Change the request as the message says.";
  }
}

/**
 * Tell whether a call may succeed when it is made again: the connection was lost, or a gateway that has answered before
 * says that what is behind it is away for now. One that never answered may be wrong about more than the time.
 */
export function mayComeBack(failure, wasAnswered) {
  return failure.code === "NO_CONNECTION" || (wasAnswered && failure.status === 503);
}

/** Return the failure that a SystemError describes. */
export function failureOf(error) {
  return new CallFailure({
    code: bare(error.code, "ERROR_CODE_") || "UNKNOWN",
    message: error.message ?? "",
    category: bare(error.category, "ERROR_CATEGORY_"),
    retryable: Boolean(error.retryable),
    causes: (error.caused_by ?? []).map((cause) => `${bare(cause.code, "ERROR_CODE_")}: ${cause.message}`),
  });
}

/** Return an element that shows a failure, with a button for each [words, what it does] pair. */
export function shownFailure(failure, actions = []) {
  if (!(failure instanceof CallFailure)) throw failure;
  const causes = failure.causes.map((cause) => h("li", {}, visible(cause)));
  return h(
    "section",
    { class: "failure", "aria-label": "Failure" },
    h("p", {}, h("strong", {}, visible(failure.code))),
    h("p", {}, visible(failure.message)),
    causes.length ? h("ul", { "aria-label": "Causes" }, causes) : null,
    h("p", { class: "next" }, h("strong", {}, "Next step: "), failure.next),
    actions.map(([words, act]) => h("button", { type: "button", onclick: act }, words)),
  );
}
