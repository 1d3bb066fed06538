// The page of one collection: its files on their way, questions to it, and its end.

import { AnswerView } from "./answer.js";
import { call, execute, newId } from "./api.js";
import { collectionPath, embeddingWords, isEmbedding } from "./collections.js";
import { confirmed } from "./dialogs.js";
import { announce, field, h } from "./dom.js";
import { CallFailure, shownFailure } from "./failures.js";
import { keepLoading } from "./polling.js";
import { count, visible } from "./text.js";
import { FileQueue } from "./uploads.js";

const LOOK_AGAIN_MS = 2000;
const CHUNKS = 6;
const CLAIMS = 3;

/** Show a collection; one whose embeddings are being made is asked for again until they are. */
export async function showCollection(main, name, signal) {
  const page = new CollectionPage(main, name, signal);
  page.show();
  await page.follow();
}

class CollectionPage {
  constructor(main, name, signal) {
    this.main = main;
    this.name = name;
    this.signal = signal;
    this.collection = null;
    this.isLost = false;
  }

  show() {
    this.facts = h("dl", { class: "facts" });
    this.problem = h("div", { role: "alert" });
    this.notLoaded = h("div", { role: "alert" });
    this.lost = h("div", { role: "alert" });
    this.files = new FileQueue(this.name, this.signal, () => this.follow());
    this.answers = h("ol", { class: "turns", "aria-label": "Questions and answers" });
    this.main.replaceChildren(
      h("div", { class: "title" }, h("h1", { class: "long" }, `Collection ${visible(this.name)}`)),
      this.facts,
      this.notLoaded,
      this.lost,
      this.problem,
      h("h2", {}, "Add files"),
      this.files.element,
      h("h2", {}, "Ask"),
      this.#question(),
      this.answers,
      h(
        "div",
        { class: "row end" },
        h("a", { href: "#/collections" }, "All collections"),
        h("button", { type: "button", id: "delete", class: "danger", onclick: () => this.#delete() }, "Delete this collection"),
      ),
    );
  }

  /** Show what the collection has, until nothing of it changes by itself. */
  async follow() {
    this.following?.abort();
    this.following = new AbortController();
    const signal = AbortSignal.any([this.signal, this.following.signal]);
    try {
      await keepLoading(() => this.#load(signal), { signal, everyMs: LOOK_AGAIN_MS });
    } catch (failure) {
      if (signal.aborted) return;
      this.notLoaded.replaceChildren(shownFailure(failure, [["Try again", () => this.follow()]]));
    }
  }

  async #load(signal) {
    const { collections } = await call("v1/collections", { signal });
    this.collection = collections.find((one) => one.name === this.name);
    if (!this.collection) {
      throw new CallFailure({ code: "NOT_FOUND", message: `no collection is named ${this.name}`, status: 404 });
    }
    this.notLoaded.replaceChildren();
    const facts = [
      ["Documents", (this.collection.document_count ?? 0).toLocaleString("en")],
      ["Chunks", (this.collection.chunk_count ?? 0).toLocaleString("en")],
      ["Embeddings", embeddingWords(this.collection)],
      ["Language", visible(this.collection.language ?? "")],
    ];
    this.facts.replaceChildren(...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    return !isEmbedding(this.collection);
  }

  #question() {
    this.question = h("input", { id: "question", type: "text", required: true, autocomplete: "off" });
    this.ask = h("button", { type: "submit", class: "main-action" }, "Ask");
    const form = h(
      "form",
      { class: "inline", "aria-label": "Question" },
      field("Question", this.question, "The answer quotes the documents; each quote opens its chunk."),
      this.ask,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send(this.question.value.trim());
    });
    return form;
  }

  /** Tell whether there is something to ask; what was stored a moment ago may not be shown yet. */
  async #hasDocuments() {
    if (this.collection?.document_count) return true;
    await this.#load(this.signal).catch((failure) => {
      if (!(failure instanceof CallFailure)) throw failure;
    });
    return Boolean(this.collection?.document_count);
  }

  async #send(question) {
    if (!question || this.ask.disabled) return;
    if (!(await this.#hasDocuments())) {
      this.problem.replaceChildren(h("p", { class: "note" }, "The collection has no documents yet: add files first."));
      announce("The collection has no documents yet: add files first.");
      return;
    }
    this.problem.replaceChildren();
    const request = this.#request(question);
    const answer = new AnswerView(request.request_id, this.name);
    const said = h("div", { class: "said" }, h("h3", { class: "who" }, "You"), h("div", { class: "plain", dir: "auto" }, visible(question)));
    const answered = h("div", { class: "answered" }, h("h3", { class: "who" }, "Answer"), answer.element);
    this.answers.prepend(h("li", {}, said, answered));
    this.question.value = "";
    announce("Sent. The answer is being written.");
    await this.#run(answer, request, question);
  }

  async #run(answer, request, question) {
    this.ask.disabled = true;
    answer.element.setAttribute("aria-busy", "true");
    try {
      for await (const event of execute(request, { signal: this.signal, onLost: (isLost) => this.#lose(isLost) })) {
        answer.take(event);
      }
      announce(answer.summary);
    } catch (failure) {
      if (!(failure instanceof CallFailure)) throw failure;
      if (this.signal.aborted) return;
      answer.fail(failure, [["Ask again", () => this.#send(question)]]);
      announce(`The request failed: ${failure.message}. Next step: ${failure.next}`);
    } finally {
      answer.element.removeAttribute("aria-busy");
      this.#showLost(false); // Whatever came of it, nothing is tried again.
      this.ask.disabled = false;
    }
  }

  #lose(isLost) {
    if (isLost === this.isLost) return;
    this.#showLost(isLost);
    announce(isLost ? "The connection was lost. Trying again." : "The connection is back.");
  }

  #showLost(isLost) {
    this.isLost = isLost;
    const note = h("p", { class: "note warned" }, "The connection was lost. Trying again …");
    this.lost.replaceChildren(...(isLost ? [note] : []));
  }

  #request(question) {
    const retriever = this.collection.embedded_chunk_count ? "RETRIEVER_HYBRID" : "RETRIEVER_BM25";
    return {
      request_id: newId("console"),
      mode: "MODE_CHAT",
      messages: [{ role: "ROLE_USER", content: question }],
      context: { collection: this.name, retriever, max_chunks: CHUNKS, required: true },
      output: { citations: { max_claims: CLAIMS } },
      background: true, // The answer outlives a lost connection.
      keep_request: true,
    };
  }

  async #delete() {
    const documents = count(this.collection?.document_count ?? 0, "document");
    const question = {
      title: `Delete ${visible(this.name)}?`,
      words: `Its ${documents} are deleted. That cannot be undone. Answers that cite them stay.`,
      action: "Delete",
    };
    if (!(await confirmed(question))) return;
    try {
      await call(collectionPath(this.name), { method: "DELETE" });
      if (!this.signal.aborted) location.hash = "#/collections";
      announce("The collection is deleted.");
    } catch (failure) {
      if (!this.signal.aborted) this.problem.replaceChildren(shownFailure(failure));
    }
  }
}
