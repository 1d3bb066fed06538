/** Return the text without control characters, so that a model's answer cannot steer the terminal. */
export function printable(text: string): string {
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, "\ufffd");
}

/** Write a part of the answer. */
export function write(text: string): void {
  process.stdout.write(printable(text));
}

/** Tell the user something beside the answer. */
export function note(text: string): void {
  process.stderr.write(printable(text) + "\n");
}
