// The page of the load: what runs and waits, in each replica that serves models. It is asked for again while it is seen.

import { call } from "./api.js";
import { announce, h, svg } from "./dom.js";
import { failureOf, shownFailure } from "./failures.js";
import { keepLoading } from "./polling.js";
import { visible } from "./text.js";

const EVERY_MS = 2000;
const KEPT = 60;
const WIDTH = 240;
const HEIGHT = 48;

/** Show the load until the person leaves. */
export async function showLoad(main, signal) {
  const page = new LoadPage(main, signal);
  page.show();
  await page.follow();
}

class LoadPage {
  constructor(main, signal) {
    this.main = main;
    this.signal = signal;
    this.views = new Map();
    this.isPaused = false;
  }

  show() {
    this.pauseButton = h("button", { type: "button", id: "pause", "aria-pressed": "false", onclick: () => this.#pause() }, "Pause");
    this.updated = h("small", {}, "Loading …");
    this.problem = h("div", { role: "alert" });
    this.executions = h("dl", { class: "meters" });
    this.replicas = h("div", { class: "replicas" });
    this.main.replaceChildren(
      h("div", { class: "title" }, h("h1", {}, "Load"), h("div", { class: "row" }, this.updated, this.pauseButton)),
      this.problem,
      h("h2", {}, "Orchestrator"),
      this.executions,
      h("h2", {}, "Inference"),
      this.replicas,
    );
  }

  async follow() {
    const onLost = (isLost) => {
      if (isLost !== this.isLost) announce(isLost ? "The connection was lost. Trying again." : "The connection is back.");
      if (isLost) this.problem.replaceChildren(h("p", { class: "note warned" }, "The connection was lost: the numbers are old. Trying again …"));
      else if (this.isLost) this.problem.replaceChildren();
      this.isLost = isLost;
    };
    this.isLost = false;
    this.problem.replaceChildren();
    this.following?.abort();
    this.following = new AbortController();
    const signal = AbortSignal.any([this.signal, this.following.signal]);
    try {
      await keepLoading(() => this.#load(signal), { signal, everyMs: EVERY_MS, onLost });
    } catch (failure) {
      if (signal.aborted) return;
      this.updated.textContent = "";
      this.problem.replaceChildren(shownFailure(failure, [["Try again", () => this.follow()]]));
    }
  }

  #pause() {
    this.isPaused = !this.isPaused;
    this.pauseButton.setAttribute("aria-pressed", String(this.isPaused));
    announce(this.isPaused ? "Paused." : "It goes on.");
    if (!this.isPaused) {
      this.follow();
      return;
    }
    this.following.abort();
    this.problem.replaceChildren(); // Nothing is tried again.
  }

  async #load(signal) {
    const found = await call("v1/replicas", { signal });
    const { replicas = [], running_executions: running = 0, max_executions: most = 0 } = found;
    this.executions.replaceChildren(...meterOf("Executions that run", running, most));
    const known = new Set(replicas.map(keyOf));
    for (const [key, view] of this.views) {
      if (known.has(key)) continue;
      view.element.remove();
      this.views.delete(key);
    }
    for (const replica of replicas) this.#viewOf(replica).show(replica);
    this.updated.textContent = `As of ${new Date().toLocaleTimeString()}, every ${EVERY_MS / 1000} s`;
    return false;
  }

  #viewOf(replica) {
    const key = keyOf(replica);
    if (!this.views.has(key)) {
      this.views.set(key, new ReplicaView(replica));
      this.replicas.append(this.views.get(key).element);
    }
    return this.views.get(key);
  }
}

function keyOf({ service, address }) {
  return `${service} ${address}`;
}

/** A replica: its meters, and the tokens of the last minutes. */
class ReplicaView {
  constructor({ service, address }) {
    const isOnly = service === address;
    this.meters = h("dl", { class: "meters" });
    this.rate = h("dd", {}, "measuring …");
    this.total = h("dd", {});
    this.line = svg("polyline", { class: "spark-line", points: "" });
    this.spark = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, preserveAspectRatio: "none", "aria-hidden": "true", focusable: "false" }, this.line);
    this.rateName = h("dt", {}, "Tokens per second");
    this.totalName = h("dt", {}, "Tokens since its start");
    this.body = h("div", {}, this.meters, this.spark);
    this.failure = h("div", { hidden: true });
    this.element = h(
      "section",
      { class: "panel open", "aria-label": `Replica ${visible(address)}` },
      h("h3", { class: "first long" }, visible(address)),
      isOnly ? null : h("p", { class: "note" }, `of ${visible(service)}`),
      this.failure,
      this.body,
    );
    this.rates = [];
    this.last = null;
  }

  show({ load, error }) {
    this.failure.replaceChildren(...(error ? [shownFailure(failureOf(error))] : []));
    this.failure.hidden = !error;
    this.body.hidden = !load;
    if (!load) {
      this.last = null;
      return;
    }
    this.meters.replaceChildren(
      ...meterOf("Requests that wait", load.queued_requests, load.queue_capacity),
      ...meterOf("Sequences that run", load.running_sequences, load.sequence_capacity),
      ...meterOf("KV cache, in tokens", load.kv_used_tokens, load.kv_capacity_tokens),
      ...meterOf("Prompt tokens to compute", load.pending_prompt_tokens),
      this.rateName,
      this.rate,
      this.totalName,
      this.total,
    );
    this.#measure(Number(load.output_tokens_total ?? 0));
  }

  #measure(total) {
    this.total.textContent = total.toLocaleString("en");
    const now = performance.now();
    if (this.last && total >= this.last.total) {
      this.rates.push(((total - this.last.total) * 1000) / Math.max(1, now - this.last.now));
      this.rates.splice(0, this.rates.length - KEPT);
      const most = Math.max(...this.rates);
      this.rate.textContent = `${this.rates.at(-1).toFixed(1)} now, at most ${most.toFixed(1)} in the last minutes`;
      this.line.setAttribute("points", this.rates.map((rate, place) => pointOf(place, rate, most)).join(" "));
    }
    this.last = { total, now };
  }
}

function pointOf(place, rate, most) {
  const x = (place / (KEPT - 1)) * WIDTH;
  const y = HEIGHT - 2 - (most ? rate / most : 0) * (HEIGHT - 4);
  return `${x.toFixed(1)},${y.toFixed(1)}`;
}

function meterOf(name, value = 0, most = 0) {
  const words = `${value.toLocaleString("en")}${most ? ` of ${most.toLocaleString("en")}` : ""}`;
  const meter = most ? h("meter", { min: 0, max: most, high: most * 0.9, value, "aria-label": name }) : null;
  return [h("dt", {}, name), h("dd", {}, meter, " ", words)];
}
