// The page of collections: the list, and the form that makes one.

import { call } from "./api.js";
import { announce, field, h, menu } from "./dom.js";
import { shownFailure } from "./failures.js";
import { count, visible } from "./text.js";

const NAME = "[A-Za-z0-9._\\-]{1,64}";
const DEFAULT = "default";
const OWN_CHOICES = 2;

/** Return the path of a collection. */
export function collectionPath(name, rest = "") {
  return `v1/collections/${encodeURIComponent(name)}${rest}`;
}

/** Return how far the embeddings of a collection are, in words. */
export function embeddingWords(collection) {
  if (!collection.embedding_model) return "none";
  const embedded = (collection.embedded_chunk_count ?? 0).toLocaleString("en");
  return `${embedded} of ${count(collection.chunk_count ?? 0, "chunk")}, by ${visible(collection.embedding_model)}`;
}

/** Tell whether chunks still wait for their embeddings. */
export function isEmbedding(collection) {
  return Boolean(collection.embedding_model) && (collection.embedded_chunk_count ?? 0) < (collection.chunk_count ?? 0);
}

/** Show the list. */
export async function showCollections(main, signal) {
  const page = new CollectionsPage(main, signal);
  page.show();
  await Promise.all([page.load(), page.loadModels()]);
}

class CollectionsPage {
  constructor(main, signal) {
    this.main = main;
    this.signal = signal;
  }

  show() {
    this.rows = h("tbody");
    const columns = ["Collection", "Documents", "Chunks", "Embeddings", "Language", "Made"];
    this.table = h(
      "table",
      { class: "list", hidden: true },
      h("caption", { class: "unseen" }, "Collections by name"),
      h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
      this.rows,
    );
    this.note = h("div", { class: "empty", role: "alert" }, "Loading …");
    this.main.replaceChildren(
      h("h1", {}, "Collections"),
      h("p", {}, "Documents that answers are drawn from, with citations."),
      this.#form(),
      this.table,
      this.note,
    );
  }

  #form() {
    const name = h("input", { id: "name", type: "text", required: true, pattern: NAME, autocomplete: "off", spellcheck: "false" });
    const language = h("input", { id: "language", type: "text", autocomplete: "off", spellcheck: "false" });
    this.models = menu("embedding", [[DEFAULT, "Default"], ["", "None: words alone"]], DEFAULT);
    this.problem = h("div", { role: "alert" });
    const form = h(
      "form",
      { class: "panel open", "aria-label": "New collection" },
      h("h2", { class: "first" }, "New collection"),
      h(
        "div",
        { class: "grid" },
        field("Name", name, "Letters, digits, dots, dashes; at most 64."),
        field("Embedding model", this.models, "Finds what is meant, beside the words."),
        field("Language", language, "Such as english; empty is the default."),
      ),
      this.problem,
      h("div", { class: "row" }, h("button", { type: "submit", class: "main-action" }, "Create")),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#create(name.value, language.value.trim());
    });
    return form;
  }

  async #create(name, language) {
    const body = { name, language };
    if (this.models.value !== DEFAULT) body.embedding_model = this.models.value;
    try {
      await call("v1/collections", { method: "POST", body });
      announce(`The collection ${name} is made.`);
      if (!this.signal.aborted) location.hash = `#/collections/${encodeURIComponent(name)}`;
    } catch (failure) {
      if (!this.signal.aborted) this.problem.replaceChildren(shownFailure(failure));
    }
  }

  async loadModels() {
    try {
      const { data } = await call("v1/models", { signal: this.signal });
      const embeds = data.filter((model) => model.pagantic?.capabilities.includes("embed"));
      for (const option of [...this.models.options].slice(OWN_CHOICES)) option.remove();
      this.models.append(...embeds.map(({ id }) => h("option", { value: id }, visible(id))));
    } catch (failure) {
      if (!this.signal.aborted) this.problem.replaceChildren(shownFailure(failure));
    }
  }

  #again() {
    this.problem.replaceChildren();
    return Promise.all([this.load(), this.loadModels()]);
  }

  async load() {
    try {
      const { collections } = await call("v1/collections", { signal: this.signal });
      this.rows.replaceChildren(...collections.map(collectionRow));
      this.table.hidden = !collections.length;
      this.note.hidden = collections.length > 0;
      this.note.textContent = "There is no collection yet. Name one above, then add files to it.";
      announce(`${count(collections.length, "collection")} shown.`);
    } catch (failure) {
      if (this.signal.aborted) return;
      this.note.hidden = false;
      this.note.replaceChildren(shownFailure(failure, [["Try again", () => this.#again()]]));
    }
  }
}

function collectionRow(collection) {
  const made = collection.created_at;
  const address = `#/collections/${encodeURIComponent(collection.name)}`;
  const number = (value) => (value ?? 0).toLocaleString("en");
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: address }, visible(collection.name))),
    h("td", { "data-label": "Documents" }, number(collection.document_count)),
    h("td", { "data-label": "Chunks" }, number(collection.chunk_count)),
    h("td", { "data-label": "Embeddings" }, embeddingWords(collection)),
    h("td", { "data-label": "Language" }, visible(collection.language ?? "")),
    h("td", { "data-label": "Made" }, made ? h("time", { datetime: made }, new Date(made).toLocaleDateString()) : ""),
  );
}
