// Turns the events of an execution into the items of its picture. Pure: every event belongs to exactly one item.

import { bare, count, span } from "./text.js";
import { countVotes, voteLines } from "./votes.js";

const LIFECYCLE = "lifecycle";
const HASH_DIGITS = 8;

const state = (name) => bare(name, "LIFECYCLE_STATE_");
const lower = (name, prefix) => bare(name, prefix).toLowerCase().replaceAll("_", " ");

// What each kind of event says of itself, in one line: the words of `pagantic timeline`.
const WORDS = {
  transition: (of) => (of.from_state ? `${state(of.from_state)} -> ` : "") + state(of.to_state) + (of.reason ? `: ${of.reason}` : ""),
  inference_start: (of) =>
    [
      count(of.message_count ?? 0, "message"),
      count(of.tool_defs_count ?? 0, "tool"),
      ...(of.schema_present ? ["schema"] : []),
      ...(of.grammar_present ? ["grammar"] : []),
    ].join(", "),
  inference_end: (of) =>
    `${of.tokens_in ?? 0} in${of.cached_tokens ? ` (${of.cached_tokens} cached)` : ""}, ${of.tokens_out ?? 0} out, ` +
    lower(of.finish_reason, "FINISH_REASON_") +
    (of.model ? `, by ${of.model}` : ""),
  tool_start: (of) => `${of.tool_name} (${of.tool_call_id})`,
  tool_end: (of) => `${of.tool_name} ${of.success ? "ok" : bare(of.error_code, "ERROR_CODE_")}`,
  context_retrieved: (of) =>
    `${of.collection}: ${count(of.chunk_count ?? 0, "chunk")}` +
    (of.token_count ? `, ${count(of.token_count, "token")}` : "") +
    (of.more_query_count ? `, queries by the model: ${of.more_query_count}` : ""),
  context_weighed: (of) =>
    of.probability === undefined
      ? "no probability of an answer"
      : `an answer with probability ${of.probability.toFixed(3)}, at least ${of.min_probability ?? 0} is asked for`,
  repair_applied: (of) => `${lower(of.stage, "STAGE_")}: ${(of.repairs ?? []).join("; ")}`,
  validation_stage: ({ report }) => {
    const reasons = [...(report.reasons ?? []), ...(report.violations ?? []).map((one) => one.message)];
    return `${lower(report.stage, "STAGE_")} ${lower(report.outcome, "STAGE_OUTCOME_")}${reasons.length ? `: ${reasons.join("; ")}` : ""}`;
  },
  vote_cast: (of) =>
    `replica ${of.replica_index ?? 0} ${of.abstained ? "abstains" : `votes for value #${of.value_hash.slice(0, HASH_DIGITS)}`}`,
  step_start: (of) => `${of.name} (${of.kind})`,
  step_end: (of) => `${of.name} (${of.kind}) ${of.success ? "ok" : "failed"}`,
  step_recorded: (of) => `${of.name} from the record`,
  approval_requested: ({ approval }) => `${approval.tool_name}: ${approval.reason ?? ""}`,
  approval_resolved: ({ approval }) => {
    const { decision, subject, reason } = approval.resolution ?? {};
    const by = subject ? ` by ${subject}` : "";
    return `${approval.tool_name} ${lower(decision, "APPROVAL_DECISION_")}${by}${reason ? `: ${reason}` : ""}`;
  },
  wait_began: ({ wait }) =>
    wait.kind === "WAIT_KIND_QUESTION"
      ? `${wait.wait_id}: ${wait.reason}`
      : `${wait.wait_id}: ${wait.name ? `signal ${wait.name}, ` : ""}until ${wait.expires_at}`,
  wait_ended: ({ wait }) => {
    const { expired, subject } = wait.resolution ?? {};
    if (!wait.name) return `${wait.wait_id}: the time has come`;
    if (expired) return `${wait.wait_id}: no signal ${wait.name} came in time`;
    return `${wait.wait_id}: signal ${wait.name}${subject ? ` by ${subject}` : ""}`;
  },
  signal_dropped: (of) => `signal ${of.name} (${of.signal_id}): ${of.reason}`,
  guard_acted: (of) =>
    `${of.guard} ${lower(of.outcome, "GUARD_OUTCOME_")}: ${lower(of.stage, "GUARD_STAGE_")}` +
    (of.finding_count ? `, ${count(of.finding_count, "finding")} (${(of.kinds ?? []).join(", ")})` : ""),
  variant_assigned: (of) => `${of.experiment}: ${of.variant}`,
  inference_continued: (of) => `another replica continues after ${count(of.tokens ?? 0, "token")}`,
  attempt_discarded: (of) => `attempt ${of.attempt}: ${of.reason}`,
  resumed: (of) => `${count(of.completed_steps ?? 0, "step")} had ended`,
  parked: (of) => `until ${of.wakes_at}, a decision or a signal`,
  woken: () => "",
  completed: ({ response }) => {
    const usage = response?.token_usage ?? {};
    const cached = usage.cached_prompt_tokens ? ` (${usage.cached_prompt_tokens} cached)` : "";
    return `${usage.prompt_tokens ?? 0} prompt tokens${cached}, ${usage.output_tokens ?? 0} output tokens`;
  },
};

/** Return the kind of an event, which is the name of its content; an event of a newer version has none here. */
export function kindOf(event) {
  return Object.keys(WORDS).find((kind) => event[kind] !== undefined) ?? "";
}

/** Return what an event says of itself, with its failure. */
export function describe(event) {
  const kind = kindOf(event);
  const words = kind ? WORDS[kind](event[kind]) : "";
  const { error } = event;
  if (!error) return words;
  return [words, `${bare(error.code, "ERROR_CODE_")}: ${error.message ?? ""}`].filter(Boolean).join("; ");
}

/** Return the rows of the timeline as text. */
export function rowsOf(events) {
  const begin = events.length ? Date.parse(events[0].timestamp) : 0;
  return events.map((event) => ({
    sequence: Number(event.sequence),
    at: Date.parse(event.timestamp) - begin,
    layer: event.layer,
    action: event.action,
    step: event.step_name ?? "",
    attempt: event.attempt ?? 1,
    took: event.duration ? tookOf(event) : null,
    words: describe(event),
  }));
}

/**
 * Return the items of a picture with its first and last time, in milliseconds.
 *
 * An item has the lane that it lies in, its kind, a label, a begin, an end, the sequences of its events, and lines of
 * [name, value] with everything that is known of it.
 */
export function pictureOf(events, response = null, isLive = false) {
  const maker = new Items(response);
  for (const event of events) maker.add(event);
  const last = events.length ? Date.parse(events.at(-1).timestamp) : 0;
  const end = isLive ? Math.max(last, Date.now()) : last;
  maker.close(end);
  return { items: maker.items, begin: maker.zero ?? 0, end };
}

class Items {
  constructor(response) {
    this.items = [];
    this.open = [];
    this.response = response;
    this.votes = countVotes(response);
    this.calls = new Map((response?.tool_calls_made ?? []).map((record) => [record.id, record]));
  }

  add(event) {
    this.zero ??= Date.parse(event.timestamp);
    const kind = kindOf(event);
    if (kind !== "validation_stage") this.checks = null;
    const place = this[`_${kind}`];
    if (place) place.call(this, event, event[kind]);
    else this.#point(event, kind || "other", event.action);
  }

  /** Give the items that never ended the end of the picture. */
  close(end) {
    for (const item of this.open) {
      item.end = end;
      item.isOpen = item.kind !== "state";
    }
  }

  _transition(event, { to_state: to, reason }) {
    const now = Date.parse(event.timestamp);
    const before = this.open.find((item) => item.kind === "state" || item.kind === "retry");
    if (before) this.#end(before, now);
    const isRetry = (event.attempt ?? 1) > (this.attempt ?? 1);
    this.attempt = event.attempt ?? 1;
    const label = isRetry ? `retry: attempt ${event.attempt}` : state(to);
    const item = this.#item(event, isRetry ? "retry" : "state", label, { lane: LIFECYCLE, begin: now });
    if (isRetry && reason) item.lines.push(["retried because", reason]);
    if (isRetry && this.failedCheck) item.lines.push(["the check before", this.failedCheck]);
    this.open.push(item);
  }

  _inference_start(event) {
    this.open.push(this.#item(event, "inference", "inference", { begin: Date.parse(event.timestamp) }));
  }

  _inference_end(event, end) {
    const item = this.#ending(event, "inference", "inference", () => true);
    const cached = end.cached_tokens ?? 0;
    item.cached = end.tokens_in ? cached / end.tokens_in : 0;
    item.label = `${end.model || "inference"} ${end.tokens_in ?? 0} → ${end.tokens_out ?? 0}`;
    if (end.model) item.lines.push(["model", end.model]);
    item.lines.push(["prompt tokens", `${end.tokens_in ?? 0}, ${cached} of them cached`]);
    item.lines.push(["output tokens", String(end.tokens_out ?? 0)]);
    if (end.seed !== undefined) item.lines.push(["seed", String(end.seed)]);
  }

  _tool_start(event, start) {
    const item = this.#item(event, "tool", start.tool_name, { begin: Date.parse(event.timestamp), call: start.tool_call_id });
    this.open.push(item);
  }

  _tool_end(event, end) {
    const item = this.#ending(event, "tool", end.tool_name, (one) => one.call === end.tool_call_id);
    const record = this.calls.get(end.tool_call_id);
    if (record) item.lines.push(["arguments", record.arguments_json ?? ""], ["result", record.result ?? ""]);
    if (!end.success) this.#fail(item);
  }

  _approval_requested(event, { approval }) {
    const begin = Date.parse(event.timestamp);
    const item = this.#item(event, "approval", `approval: ${approval.tool_name}`, { begin, call: approval.tool_call_id });
    item.lines.push(["arguments", approval.arguments_json ?? ""]);
    this.open.push(item);
  }

  _approval_resolved(event, { approval }) {
    const isOfCall = (one) => one.call === approval.tool_call_id;
    const item = this.#ending(event, "approval", `approval: ${approval.tool_name}`, isOfCall);
    const { resolution = {} } = approval;
    item.label = `${approval.tool_name} ${lower(resolution.decision, "APPROVAL_DECISION_")}`;
    if (resolution.arguments_json) item.lines.push(["changed arguments", resolution.arguments_json]);
    if (resolution.decision !== "APPROVAL_DECISION_APPROVED") this.#fail(item);
  }

  _step_start(event, start) {
    const lane = laneOf(event, start.name);
    this.open.push(this.#item(event, "step", `${start.name} (${start.kind})`, { lane, begin: Date.parse(event.timestamp), step: start.name }));
  }

  _step_end(event, end) {
    const item = this.#ending(event, "step", `${end.name} (${end.kind})`, (one) => one.step === end.name, laneOf(event, end.name));
    if (!end.success) this.#fail(item);
  }

  _vote_cast(event, cast) {
    const replica = cast.replica_index ?? 0;
    const vote = this.votes.find((one) => one.replica === replica);
    const share = vote && !vote.failure ? ` ${vote.votes} of ${vote.of}` : "";
    const item = this.#point(event, "vote", cast.abstained ? `#${replica} abstains` : `#${replica}${share}`);
    item.lane = "votes";
    if (!vote) return;
    item.share = vote.share;
    item.isMinority = vote.differences.length > 0;
    item.lines.push(...voteLines(vote).map((line, index) => [index ? "differs" : "share", line]));
    item.lines.push(["output", vote.text]);
  }

  /** Add a stage to the item of the stages just before it: one output is checked by several, in no time. */
  _validation_stage(event, { report }) {
    const stage = lower(report.stage, "STAGE_");
    const isSame = this.checks?.lane === laneOf(event);
    if (isSame) this.#note(this.checks, event);
    const item = isSame ? this.checks : this.#point(event, "check", stage);
    this.checks = item;
    item.end = Date.parse(event.timestamp);
    if (report.outcome === "STAGE_OUTCOME_FAILED") {
      this.failedCheck = describe(event);
      this.#fail(item);
      item.label = `${stage} failed`;
    } else if (isSame && !item.isFailed) {
      item.label = `${item.sequences.length} checks`;
    }
  }

  _context_retrieved(event, { collection, chunk_count: chunks }) {
    this.#point(event, "context", `${collection}: ${count(chunks ?? 0, "chunk")}`);
  }

  _context_weighed(event) {
    this.#point(event, "context", "weighed");
  }

  _attempt_discarded(event, discarded) {
    this.#point(event, "retry", `attempt ${discarded.attempt} discarded`);
  }

  _repair_applied(event) {
    this.#point(event, "retry", "repaired");
  }

  _completed(event, { response }) {
    const item = this.#point(event, "end", response?.error ? bare(response.error.code, "ERROR_CODE_") : "response");
    Object.assign(item, { lane: LIFECYCLE, begin: item.end });
    if (!response?.error) return;
    item.lines.push(["failure", `${bare(response.error.code, "ERROR_CODE_")}: ${response.error.message}`]);
    this.#fail(item);
  }

  /** Add an event that has no other: a point, or the time that it took. */
  #point(event, kind, label) {
    const end = Date.parse(event.timestamp);
    const item = this.#item(event, kind, label, { begin: Math.max(this.zero ?? 0, end - tookOf(event)), end });
    if (event.duration) item.lines.push(["took", span(tookOf(event))]);
    return item;
  }

  #item(event, kind, label, more) {
    const item = { id: `s${event.sequence}`, lane: laneOf(event), kind, label, sequences: [], lines: [], ...more };
    item.end ??= null;
    this.#note(item, event);
    if (event.attempt > 1) item.lines.push(["attempt", String(event.attempt)]);
    this.items.push(item);
    return item;
  }

  #note(item, event) {
    item.sequences.push(Number(event.sequence));
    item.lines.push([`${event.sequence} ${event.action}`, describe(event)]);
    if (event.error) this.#fail(item);
  }

  #fail(item) {
    item.isFailed = true;
  }

  #end(item, end) {
    item.end = end;
    this.open = this.open.filter((one) => one !== item);
  }

  /** Return the open item that an event ends: of those that match, the one that began when the event's work did. */
  #ending(event, kind, label, matches, lane = laneOf(event)) {
    const end = Date.parse(event.timestamp);
    const begin = end - tookOf(event);
    const far = (item) => Math.abs(item.begin - begin);
    const fitting = this.open.filter((item) => item.kind === kind && item.lane === lane && matches(item));
    const item = fitting.sort((a, b) => far(a) - far(b))[0];
    if (!item) return this.#point(event, kind, label);
    this.#note(item, event);
    this.#end(item, end);
    item.lines.push(["took", span(end - item.begin)]);
    return item;
  }
}

function tookOf(event) {
  return Number.parseFloat(event.duration ?? "0") * 1000;
}

function laneOf(event, step = event.step_name) {
  return step ? `step ${step}` : event.layer;
}
