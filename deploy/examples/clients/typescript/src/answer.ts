import type { ExecutionEvent__Output } from "./gen/pagantic/orchestrator/v1/ExecutionEvent.js";
import type { SystemResponse__Output } from "./gen/pagantic/orchestrator/v1/SystemResponse.js";
import { write } from "./terminal.js";

/** The text of an answer as it streams, and how much of it stands on the terminal. */
export class Answer {
  response?: SystemResponse__Output;
  sequence = 0;
  private text = "";
  private shown = "";
  private stored = 0;

  /** Read an event, and show the text that it brings. */
  take(event: ExecutionEvent__Output): void {
    // Deltas repeat the sequence of the stored event before them.
    if (Number(event.sequence) > this.sequence) {
      this.sequence = Number(event.sequence);
      this.stored = this.text.length;
    }
    if (event.contentDelta) {
      this.text += event.contentDelta.text;
    } else if (event.attemptDiscarded) {
      this.text = "";
      this.stored = 0;
    } else if (event.completed?.response) {
      this.response = event.completed.response;
      this.text = this.response.content;
    }
    this.show();
  }

  /** Forget the text after the last stored event: who follows from that event gets it again. */
  rewind(): void {
    this.text = this.text.slice(0, this.stored);
  }

  private show(): void {
    if (this.shown.startsWith(this.text)) return;
    write(this.text.startsWith(this.shown) ? this.text.slice(this.shown.length) : "\n" + this.text);
    this.shown = this.text;
  }
}
