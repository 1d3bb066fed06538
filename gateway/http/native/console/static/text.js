// Makes characters visible that a terminal or a text renderer would obey instead of show. Pure.

// Controls of C0 but tab and line feed, DEL, controls of C1, marks and overrides of direction, invisible spaces and
// separators, and the tag characters, with which whole texts can be hidden. Joiners stay: scripts and emoji need them.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
    "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]|\\p{Cs}",
  "gu",
);

/** Return a text in which such characters are written by name: U+202E is «U+202E», and ESC is ␛. */
export function visible(text) {
  return text.replace(/\r\n/g, "\n").replace(HIDDEN, picture);
}

function picture(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `«U+${code.toString(16).toUpperCase().padStart(4, "0")}»`;
}

/** Return a text that is at most so long, with what was left out in words. */
export function cut(text, most) {
  return text.length <= most ? text : `${text.slice(0, most)} … (${text.length - most} more characters)`;
}

/** Return a number and a noun that agree. */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return a length of time as people read it. */
export function span(milliseconds) {
  if (milliseconds < 1) return "<1 ms";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60_000) return `${(milliseconds / 1000).toFixed(2)} s`;
  return `${Math.floor(milliseconds / 60_000)} min ${Math.round((milliseconds % 60_000) / 1000)} s`;
}

/** Return the name of a value of an enum without its prefix: MODE_CHAT is CHAT. */
export function bare(name, prefix) {
  return (name ?? "").replace(prefix, "");
}

/** Return JSON with indents; a text that is none, or that would change, stays as it is. */
export function indented(json) {
  try {
    const value = JSON.parse(json);
    const compact = (text) => text.replace(/\s+/g, "");
    const laidOut = JSON.stringify(value, null, 2);
    return compact(laidOut) === compact(json) ? laidOut : json;
  } catch {
    return json;
  }
}
