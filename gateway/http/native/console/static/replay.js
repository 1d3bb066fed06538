// The page that runs a recorded execution again with changes, and shows both answers side by side.

import { AnswerView } from "./answer.js";
import { call, execute, executionPath, newId, pageOf, stepsOf } from "./api.js";
import { announce, checkbox, field, h, menu } from "./dom.js";
import { CallFailure, shownFailure } from "./failures.js";
import { cut, visible } from "./text.js";

const SHOWN = 4000;

/** Show the form for a replay of an execution. */
export async function showReplay(main, id, signal) {
  main.replaceChildren(h("h1", {}, "Replay"), h("p", { class: "empty" }, "Loading …"));
  try {
    const execution = await call(executionPath(id), { signal });
    const steps = await stepsOf(id, signal); // It refuses what cannot be replayed.
    if (!execution.response) {
      main.replaceChildren(h("h1", {}, "Replay"), h("p", { role: "alert" }, "The execution has not ended yet."));
      return;
    }
    new ReplayPage(main, execution, steps, signal).show();
  } catch (failure) {
    if (signal.aborted) return;
    if (!(failure instanceof CallFailure)) throw failure;
    main.replaceChildren(h("h1", {}, "Replay"), h("div", { role: "alert" }, shownFailure(failure)));
  }
}

class ReplayPage {
  constructor(main, execution, steps, signal) {
    Object.assign(this, { main, execution, steps, signal });
    this.request = execution.request;
    this.results = steps.flatMap((step) => step.tool_calls_made ?? []);
    this.compared = h("div");
    this.problem = h("div", { role: "alert" });
  }

  show() {
    const { request_id: id } = this.execution;
    this.runButton = h("button", { type: "submit", class: "main-action" }, "Run it again");
    this.form = h(
      "form",
      { class: "panel open", "aria-label": "Changes" },
      h("div", { class: "grid" }, this.#stepField(), this.#modelField(), this.#temperatureField()),
      h("div", { class: "grid wide" }, this.#textField("system", "System prompt", this.#system()), this.#textField("said", "Last message", this.#said())),
      this.#resultFields(),
      h("div", { class: "checks" }, checkbox("live", "Call tools again", false, "Otherwise recorded results answer the same calls.")),
      this.problem,
      h("div", { class: "row" }, this.runButton),
    );
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    const intro = h("p", {}, "Of ", h("a", { href: pageOf(id) }, visible(id)), ": change something, and see what comes of it. Tools that write are not called again unless you say so.");
    this.main.replaceChildren(h("h1", {}, "Replay"), intro, this.form, this.compared);
  }

  #stepField() {
    const names = this.steps.map((step) => [step.name, step.name]);
    const control = menu("step", [["", "As the changes ask for"], ...names]);
    return field("First step that runs again", control, "Steps before it take their recorded results.");
  }

  #modelField() {
    const control = h("input", { id: "model", type: "text", autocomplete: "off", spellcheck: "false" });
    control.value = this.request.hints?.model ?? "";
    return field("Model", control, "Empty is the default.");
  }

  #temperatureField() {
    const control = h("input", { id: "temperature", type: "number", min: 0, max: 2, step: 0.1 });
    control.value = this.request.hints?.temperature ?? "";
    return field("Temperature", control);
  }

  #textField(id, label, text) {
    const control = h("textarea", { id, rows: 4 });
    control.value = text ?? "";
    control.disabled = text === null;
    return field(label, control, text === null ? "It is made of a template or instructions, and stays as it is." : "");
  }

  #resultFields() {
    if (!this.results.length) return null;
    const fields = this.results.map((record, index) => {
      const control = h("textarea", { id: `result-${index}`, rows: 2, spellcheck: "false" });
      control.value = record.result ?? "";
      return field(`Result of ${visible(record.name)}`, control, visible(cut(record.arguments_json ?? "", 300)));
    });
    return h("fieldset", {}, h("legend", {}, "Results of tools"), h("div", { class: "grid wide" }, fields));
  }

  /** Return the text of the system prompt, null where it is given in another way. */
  #system() {
    const { prompt } = this.request;
    return prompt && prompt.text === undefined ? null : (prompt?.text ?? "");
  }

  #said() {
    const last = this.request.messages?.at(-1);
    return last && !last.parts?.length ? (last.content ?? "") : null;
  }

  #changed() {
    const value = (id) => this.form.elements[id].value;
    const request = structuredClone(this.request);
    for (const name of ["session_id", "trace_id", "replay"]) delete request[name];
    request.request_id = newId("console");
    request.background = true;
    request.keep_request = true;
    request.hints = { ...request.hints, model: value("model").trim() };
    delete request.hints.temperature;
    if (value("temperature") !== "") request.hints.temperature = Number(value("temperature"));
    if (this.#system() !== null && value("system") !== this.#system()) request.prompt = { text: value("system") };
    if (this.#said() !== null) request.messages.at(-1).content = value("said");
    const results = this.results.flatMap((record, index) => {
      const result = value(`result-${index}`);
      return result === (record.result ?? "") ? [] : [{ tool_call_id: record.id, result }];
    });
    const tools = this.form.elements.live.checked ? "REPLAY_TOOLS_LIVE" : "REPLAY_TOOLS_RECORDED";
    request.replay = { request_id: this.execution.request_id, from_step: value("step"), tool_results: results, tools };
    return request;
  }

  async #run() {
    const request = this.#changed();
    const before = new AnswerView(this.execution.request_id);
    before.finish(this.execution.response);
    const after = new AnswerView(request.request_id);
    const side = (name, answer) => h("section", { class: "side", "aria-label": name }, h("h2", {}, name), answer.element);
    const steps = h("div");
    this.compared.replaceChildren(h("div", { class: "columns even" }, side("Recorded", before), side("Replay", after)), steps);
    this.problem.replaceChildren();
    this.runButton.disabled = true;
    announce("The replay runs.");
    try {
      for await (const event of execute(request, { signal: this.signal })) after.take(event);
      steps.replaceChildren(await this.#comparison(request.request_id));
      announce(`The replay has ended. ${after.summary}`);
    } catch (failure) {
      if (this.signal.aborted) return;
      if (!(failure instanceof CallFailure)) throw failure;
      this.problem.replaceChildren(shownFailure(failure));
      if (!after.response) this.compared.replaceChildren();
    } finally {
      this.runButton.disabled = false;
    }
  }

  async #comparison(id) {
    const steps = await stepsOf(id, this.signal);
    const names = new Set([...this.steps, ...steps].map((step) => step.name));
    const rows = [...names].map((name) => {
      const [before, after] = [this.steps, steps].map((some) => some.find((step) => step.name === name));
      const [was, is] = [gave(before), gave(after)];
      const verdict = was === is ? "same" : "differs";
      return h(
        "tr",
        { class: verdict },
        h("th", { scope: "row" }, visible(name)),
        h("td", {}, verdict),
        h("td", {}, h("pre", {}, visible(cut(was, SHOWN)))),
        h("td", {}, h("pre", {}, visible(cut(is, SHOWN)))),
      );
    });
    const head = ["Step", "", "Recorded", "Replay"].map((name) => (name ? h("th", { scope: "col" }, name) : h("td")));
    const table = h("table", { class: "steps" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
    const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Steps compared" }, table);
    return h("section", { "aria-label": "Steps" }, h("h2", {}, "Steps"), scroll);
  }
}

/** Return what a step gave, as one text. */
function gave(step) {
  if (!step) return "did not run";
  const calls = (step.tool_calls ?? []).map((one) => `calls ${one.name} ${one.arguments_json}`);
  const made = (step.tool_calls_made ?? []).map((one) => `${one.name} gave ${one.result ?? ""}`);
  const votes = (step.candidates ?? []).map((one) => `replica ${one.replica_index ?? 0}: ${one.content ?? ""}`);
  const system = step.system_prompt ? [`system prompt: ${step.system_prompt}`] : [];
  const planned = step.step_result ? [JSON.stringify(step.step_result, null, 1)] : [];
  const failed = step.error ? [`${step.error.code}: ${step.error.message}`] : [];
  return [...system, step.content, ...calls, ...made, ...votes, ...planned, ...failed].filter(Boolean).join("\n");
}
