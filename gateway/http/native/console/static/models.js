// The page of models: those that are served, those that were pulled, and how to get more.

import { call } from "./api.js";
import { announce, copyButton, h } from "./dom.js";
import { CallFailure, failureOf, shownFailure } from "./failures.js";
import { count, visible } from "./text.js";

/** Show the models; what only operators may see is left out for others, and the page says so. */
export async function showModels(main, signal) {
  const page = new ModelsPage(main, signal);
  page.show();
  await page.load();
}

class ModelsPage {
  constructor(main, signal) {
    this.main = main;
    this.signal = signal;
  }

  show() {
    this.problem = h("div", { role: "alert" });
    this.note = h("p", { class: "note" });
    this.served = h("tbody");
    this.servedTable = table("Served models, the default one first", ["Model", "Context", "Can", "State", "Memory", "In use", "Change"], this.served);
    this.machine = h("div");
    this.main.replaceChildren(
      h("h1", {}, "Models"),
      h("h2", {}, "Served"),
      this.problem,
      this.note,
      this.servedTable,
      this.machine,
    );
  }

  async load() {
    try {
      const { data } = await call("v1/models", { signal: this.signal });
      const replicas = await this.#loadReplicas();
      this.served.replaceChildren(...data.map((model, place) => this.#row(model, place, replicas)));
      this.servedTable.hidden = !data.length;
      if (!data.length) this.note.textContent = "No model is served that you may use.";
      this.problem.replaceChildren();
      if (replicas) await this.#loadMachine(new Set(data.map(({ id }) => id)));
    } catch (failure) {
      if (this.signal.aborted) return;
      this.problem.replaceChildren(shownFailure(failure, [["Try again", () => this.load()]]));
    }
  }

  /** Return the replicas; null for a caller who is no operator. */
  async #loadReplicas() {
    try {
      const { replicas = [] } = await call("v1/replicas", { signal: this.signal });
      const away = replicas.filter((one) => one.error).length;
      this.note.textContent = away ? `${count(away, "replica")} of ${replicas.length} do not answer: the page Load says why.` : "";
      return replicas;
    } catch (failure) {
      if (!(failure instanceof CallFailure) || failure.code !== "AUTH_DENIED") throw failure;
      this.note.textContent =
        "Your key lacks the scope admin (AUTH_DENIED): whether models are loaded is not shown, and they cannot be loaded, unloaded or pulled.";
      return null;
    }
  }

  #row(model, place, replicas) {
    const { context_window: context, capabilities } = model.pagantic ?? {};
    const name = [h("code", { class: "long" }, visible(model.id))];
    if (place === 0 && capabilities) name.push(" ", h("span", { class: "state live" }, "default"));
    const row = h("tr", { "data-model": model.id }, h("th", { scope: "row" }, name));
    if (!capabilities) {
      row.append(h("td", { "data-label": "Can", colspan: "6" }, "another name of a served model, by the settings of the gateway"));
      return row;
    }
    const state = replicas ? stateOf(model.id, replicas) : null;
    const used = state && (state.running ? count(state.running, "request") : "no");
    row.append(
      cell("Context", context ? `${context.toLocaleString("en")} tokens` : "not known"),
      cell("Can", visible(capabilities.join(", "))),
      cell("State", state ? shownLoaded(state) : "not shown"),
      cell("Memory", state ? megabytes(state.memory) : "not shown"),
      cell("In use", used ?? "not shown"),
      h("td", {}, state?.known && !capabilities.includes("route") ? this.#changes(model.id, state) : ""),
    );
    return row;
  }

  #changes(name, state) {
    const buttons = [];
    if (state.loaded < state.known) buttons.push(["load", "Load"]);
    if (state.loaded) buttons.push(["unload", "Unload"]);
    return h(
      "div",
      { class: "row" },
      buttons.map(([verb, words]) => h("button", { type: "button", class: "small", "aria-label": `${words} ${visible(name)}`, onclick: (event) => this.#change(name, verb, event.target) }, words)),
    );
  }

  async #change(name, verb, button) {
    if (button.getAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true"); // A disabled button would lose the focus.
    button.textContent = verb === "load" ? "Loading …" : "Unloading …";
    announce(`${button.textContent} ${visible(name)}`);
    let problem = null;
    try {
      const { results = [] } = await call(`v1/models/${encodeURIComponent(name)}/${verb}`, { method: "POST", body: {}, signal: this.signal });
      const failed = results.filter((one) => one.error);
      announce(failed.length ? `${visible(name)}: ${count(failed.length, "replica")} failed.` : `${visible(name)} is ${verb}ed.`);
      if (failed.length) problem = failureOf(failed[0].error);
    } catch (failure) {
      if (this.signal.aborted) return;
      if (!(failure instanceof CallFailure)) throw failure;
      problem = failure;
    }
    await this.load();
    if (problem) this.problem.replaceChildren(shownFailure(problem));
    const row = [...this.served.children].find((one) => one.dataset.model === name);
    row?.querySelector("button")?.focus();
  }

  async #loadMachine(served) {
    const { pulled, catalog } = await call("v1/pulled-models", { signal: this.signal });
    const isHere = new Set(pulled.map(({ name }) => name));
    const idle = pulled.filter(({ name }) => !served.has(name));
    const others = catalog.filter(({ name }) => !isHere.has(name));
    this.machine.replaceChildren(
      h("h2", {}, "Pulled to the gateway's machine"),
      idle.length ? pulledTable(idle) : h("p", { class: "empty" }, pulled.length ? "Every pulled model is served." : "None yet. The commands below pull one."),
      h("h2", {}, "To be pulled"),
      h("p", {}, "Pulling takes minutes and room on a disk, so it is a command of that machine:"),
      others.length ? catalogTable(others) : h("p", { class: "empty" }, "Every model of the catalog is here."),
      h("p", {}, "A model of a hub: ", command("pagantic pull hf:OWNER/REPO/FILE.gguf")),
    );
  }
}

/** Return what the replicas say of a model. */
function stateOf(name, replicas) {
  const states = replicas.flatMap(({ models = [], states: all = [] }) => all.filter((_, place) => models[place]?.name === name));
  const sum = (value) => states.reduce((total, state) => total + value(state), 0);
  return {
    known: states.length,
    loaded: states.filter((state) => state.is_loaded).length,
    memory: sum((state) => (state.is_loaded ? Number(state.memory_bytes ?? 0) : 0)),
    running: sum((state) => state.running ?? 0),
  };
}

function shownLoaded({ known, loaded }) {
  if (!known) return "not known";
  const words = known > 1 && loaded && loaded < known ? `loaded in ${loaded} of ${known}` : loaded ? "loaded" : "not loaded";
  return h("span", { class: `state ${loaded ? "good" : "warned"}` }, words);
}

function pulledTable(models) {
  const rows = models.map((model) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("code", { class: "long" }, visible(model.name))),
      cell("Size", megabytes(model.size_bytes)),
      cell("Context", model.context_tokens ? `${model.context_tokens.toLocaleString("en")} tokens` : "not known"),
      cell("Can", visible(model.capabilities.join(", ") || "nothing that can be served")),
      cell("License", visible(model.license || "not known")),
      cell("To serve it", command(`PAGANTIC_INFERENCE_MODEL_PATH=${model.name} pagantic up`)),
    ),
  );
  return table("Pulled models that are not served", ["Model", "Size", "Context", "Can", "License", "To serve it"], h("tbody", {}, rows));
}

function catalogTable(models) {
  const rows = models.map((model) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("code", { class: "long" }, visible(model.name)), h("small", { class: "below" }, visible(model.title))),
      cell("Size", megabytes(model.size_bytes)),
      cell("Context", `${model.context_tokens.toLocaleString("en")} tokens`),
      cell("License", visible(model.license)),
      cell("Command", command(`pagantic pull ${model.name}`)),
    ),
  );
  return table("Models of the catalog", ["Model", "Size", "Context", "License", "Command"], h("tbody", {}, rows));
}

function table(caption, columns, body) {
  return h(
    "table",
    { class: "list" },
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
    body,
  );
}

function cell(label, content) {
  return h("td", { "data-label": label }, content);
}

function command(words) {
  return h("span", { class: "command" }, h("code", {}, visible(words)), copyButton("Copy", () => words));
}

function megabytes(bytes) {
  return bytes ? `${Math.round(bytes / 1e6).toLocaleString("en")} MB` : "none";
}
