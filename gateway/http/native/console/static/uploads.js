// Files on their way into a collection, one after another: chosen or dropped, each with its progress and its result.

import { sendFile } from "./api.js";
import { collectionPath } from "./collections.js";
import { announce, h } from "./dom.js";
import { CallFailure, failureOf, shownFailure } from "./failures.js";
import { bare, count, visible } from "./text.js";

const WORDS = { ADDED: "added", REPLACED: "replaced an older document", UNCHANGED: "was stored already, unchanged" };
const PER_ANNOUNCEMENT = 10;

/** A zone that takes files, and the list of those that it took. */
export class FileQueue {
  constructor(collection, signal, onStored) {
    this.collection = collection;
    this.signal = signal;
    this.onStored = onStored;
    this.waiting = [];
    this.counts = { stored: 0, refused: 0 };
    this.list = h("ol", { class: "files", "aria-label": "Files" });
    this.stopButton = h("button", { type: "button", hidden: true, onclick: () => this.#stop() }, "Stop");
    this.summary = h("p", { class: "note" });
    this.element = h("div", {}, this.#zone(), h("div", { class: "row" }, this.stopButton, this.summary), this.list);
  }

  #zone() {
    const input = h("input", { id: "files", type: "file", multiple: true, "aria-describedby": "files-hint" });
    input.addEventListener("change", () => {
      this.#add([...input.files]);
      input.value = "";
    });
    const zone = h(
      "div",
      { class: "zone" },
      h("label", { for: "files" }, "Choose files, or drop them here"),
      input,
      h("small", { id: "files-hint" }, "Text, Markdown, HTML, PDF, docx, pptx, xlsx, JSON, CSV, and each as .gz. A file of the same name replaces its document."),
    );
    const drag = (isOver) => (event) => {
      event.preventDefault();
      zone.classList.toggle("over", isOver);
    };
    zone.addEventListener("dragover", drag(true));
    zone.addEventListener("dragleave", drag(false));
    zone.addEventListener("drop", (event) => {
      drag(false)(event);
      this.#add([...event.dataTransfer.files]);
    });
    // A file that misses the zone would replace the page.
    for (const name of ["dragover", "drop"]) {
      document.addEventListener(name, (event) => event.preventDefault(), { signal: this.signal });
    }
    return zone;
  }

  #add(files) {
    const rows = files.map((file) => new FileRow(file, this));
    this.list.append(...rows.map((row) => row.element));
    this.waiting.push(...rows);
    if (rows.length) announce(`${count(rows.length, "file")} added to the queue.`);
    this.#work();
  }

  /** Put a file that was refused into the queue again. */
  again(row) {
    this.counts.refused -= 1;
    this.waiting.push(row);
    this.#work();
  }

  async #work() {
    if (this.current) return;
    try {
      while (this.waiting.length && !this.signal.aborted) {
        const row = this.waiting.shift();
        this.current = new AbortController();
        this.stopButton.hidden = false;
        const isStored = await row.send(this.collection, AbortSignal.any([this.signal, this.current.signal]));
        this.counts[isStored ? "stored" : "refused"] += 1;
        this.#sum();
        if (isStored) this.onStored();
      }
    } finally {
      this.current = null; // A mistake of the console must not keep the files that are added later from being sent.
    }
    const hadFocus = document.activeElement === this.stopButton;
    this.stopButton.hidden = true;
    if (hadFocus) document.getElementById("files").focus();
    if (this.signal.aborted) return;
    announce(this.summary.textContent);
  }

  #sum() {
    const { stored, refused } = this.counts;
    const parts = [`${count(stored, "file")} stored`];
    if (refused) parts.push(`${refused} not stored`);
    if (this.waiting.length) parts.push(`${this.waiting.length} waiting`);
    this.summary.textContent = `${parts.join(", ")}.`;
    if (this.waiting.length && (stored + refused) % PER_ANNOUNCEMENT === 0) announce(this.summary.textContent);
  }

  #stop() {
    for (const row of this.waiting.splice(0)) {
      row.say("stopped", "warned");
      this.counts.refused += 1;
    }
    this.current?.abort();
  }
}

class FileRow {
  constructor(file, queue) {
    this.file = file;
    this.queue = queue;
    this.state = h("span", { class: "file-state" }, "waiting");
    this.bar = h("progress", { max: 1, value: 0, "aria-label": `Progress of ${visible(file.name)}` });
    this.below = h("div");
    this.element = h("li", {}, h("div", { class: "row" }, h("strong", { class: "long" }, visible(file.name)), h("small", {}, size(file.size)), this.bar, this.state), this.below);
  }

  /** Send the file; returns whether it is stored. */
  async send(collection, signal) {
    this.below.replaceChildren();
    this.bar.hidden = false;
    this.bar.value = 0;
    this.say("sending", "live");
    const onProgress = (share) => {
      this.bar.value = share;
      if (share < 1) this.say(`sending, ${Math.round(share * 100)} %`, "live");
      else this.#read();
    };
    const query = new URLSearchParams({ source: this.file.name });
    try {
      await check(this.file);
      const result = await sendFile(collectionPath(collection, `/files?${query}`), this.file, { signal, onProgress });
      if (result.outcome === "FILE_OUTCOME_FAILED") throw failureOf(result.error ?? {});
      const outcome = bare(result.outcome, "FILE_OUTCOME_");
      const chunks = result.chunk_count ? `: ${count(result.chunk_count, "chunk")}` : "";
      this.say(`${WORDS[outcome] ?? "stored"}${chunks}`, "good");
      return true;
    } catch (failure) {
      if (!(failure instanceof CallFailure)) throw failure;
      if (this.queue.signal.aborted) return false;
      this.#refuse(failure);
      return false;
    }
  }

  #read() {
    this.bar.removeAttribute("value"); // The browser shows that something happens, and not how much.
    this.say("being read and stored", "live");
  }

  #refuse(failure) {
    const isStopped = failure.code === "CANCELLED_SIGNAL";
    this.say(isStopped ? "stopped" : "not stored", isStopped ? "warned" : "bad");
    if (!isStopped) this.below.replaceChildren(shownFailure(failure, [["Send again", () => this.#again()]]));
  }

  #again() {
    this.below.replaceChildren();
    this.say("waiting", "");
    this.element.tabIndex = -1;
    this.element.focus();
    this.queue.again(this);
  }

  /** Show the state of the file. */
  say(words, kind) {
    this.state.className = `file-state ${kind}`;
    this.state.textContent = words;
    if (kind !== "live") this.bar.hidden = true;
  }
}

/** Throw a CallFailure for what cannot be read: the browser would say that the connection was lost. */
async function check(file) {
  await file.slice(0, 1).arrayBuffer().catch(() => {
    const message = "the file cannot be read: it is a folder, or it has changed since it was chosen";
    throw new CallFailure({ code: "FILE_UNREADABLE", message });
  });
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
