// Shows a text that grows, however long it gets: pieces are put together once a frame, and shown up to a limit.

import { h } from "./dom.js";
import { count, visible } from "./text.js";

const SHOWN_AT_FIRST = 100_000;
const SHOWN_AT_ONCE = 500_000;
// A block that is longer is continued in another, which the browser lays out only where it is on the screen.
const BLOCK = 20_000;
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const MAY_BECOME_FENCE = /^ {0,3}(`*|~*)$/;

const NO_FENCE_ENDS_IT = "\n";

/** A text of a model. Code between fences is shown as such, or all of it; everything else is plain. */
export class OutputText {
  constructor({ isCode = false } = {}) {
    this.firstFence = isCode ? NO_FENCE_ENDS_IT : "";
    this.element = h("div", { class: "output" });
    this.more = h("button", { type: "button", class: "quiet", hidden: true });
    this.more.addEventListener("click", () => this.#showMore());
    this.clear();
  }

  /** Forget everything. */
  clear() {
    this.element.replaceChildren(this.more);
    this.pieces = [];
    this.length = 0;
    this.waiting = [];
    this.hidden = "";
    this.limit = SHOWN_AT_FIRST;
    this.shown = 0;
    this.held = "";
    this.isAtLineStart = true;
    this.fence = this.firstFence;
    this.block = null;
    this.more.hidden = true;
  }

  /** Return the whole text, also the part that is not shown. */
  get text() {
    return this.pieces.join("");
  }

  /** Add text; it is shown with the next frame. */
  append(text) {
    if (!text) return;
    this.pieces.push(text);
    this.length += text.length;
    this.waiting.push(text);
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => this.flush());
  }

  /** Show what waits. */
  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const room = this.limit - this.shown;
    const text = this.waiting.join("");
    this.waiting = [];
    const end = room >= text.length ? text.length : wholeCharacters(text, Math.max(0, room));
    if (end > 0) this.#show(text.slice(0, end));
    if (end < text.length) {
      this.waiting.push(text.slice(end));
      this.more.hidden = false;
      this.more.textContent = `Show the rest (${count(this.length - this.shown, "character")} more)`;
    }
  }

  /** Show what was held back because it might have become a fence: no more text comes. */
  finish() {
    this.flush();
    if (this.waiting.length || !this.held) return;
    if (this.#turnsAtFence(this.held)) this.#turn(this.held);
    else this.#put(this.held);
    this.held = "";
  }

  #showMore() {
    const last = this.block;
    this.limit = this.shown + SHOWN_AT_ONCE;
    this.more.hidden = true;
    this.finish();
    if (!this.more.hidden || !last) return;
    last.tabIndex = -1; // The button is gone: the keyboard goes on where the new text begins.
    last.focus();
  }

  #show(text) {
    this.shown += text.length;
    let run = "";
    for (const line of visible(text).split(/(?<=\n)/)) {
      if (!this.isAtLineStart) {
        run += line;
        this.isAtLineStart = line.endsWith("\n");
        continue;
      }
      const whole = this.held + line;
      this.held = "";
      if (!whole.endsWith("\n") && (MAY_BECOME_FENCE.test(whole) || FENCE.test(whole))) {
        this.held = whole;
      } else if (this.#turnsAtFence(whole)) {
        this.#put(run);
        run = "";
        this.#turn(whole);
      } else {
        run += whole;
        this.isAtLineStart = whole.endsWith("\n");
      }
    }
    this.#put(run);
  }

  #turnsAtFence(line) {
    const found = FENCE.exec(line);
    if (!found) return false;
    return !this.fence || (found[1].startsWith(this.fence) && line.trim() === found[1]);
  }

  #turn(line) {
    this.fence = this.fence ? "" : FENCE.exec(line)[1];
    this.block = null;
  }

  #put(text) {
    for (let at = 0; at < text.length; ) {
      if (!this.block || this.blockLength >= BLOCK) this.#newBlock();
      const end = wholeCharacters(text, Math.min(text.length, at + BLOCK - this.blockLength));
      this.block.append(text.slice(at, end));
      this.blockLength += end - at;
      at = end;
    }
  }

  #newBlock() {
    this.block = this.fence ? h("code") : h("div", { class: "plain", dir: "auto" });
    this.blockLength = 0;
    this.more.before(this.fence ? h("pre", { tabindex: "0", role: "region", "aria-label": "Code" }, this.block) : this.block);
  }
}

/** Return the end of a piece of a text that cuts no character. */
function wholeCharacters(text, end) {
  const code = text.charCodeAt(end - 1);
  return end < text.length && code >= 0xd800 && code <= 0xdbff ? end + 1 : end;
}

/** Return an element that shows a whole text. */
export function shownText(text, options = {}) {
  const output = new OutputText(options);
  output.append(text);
  output.finish();
  return output.element;
}
