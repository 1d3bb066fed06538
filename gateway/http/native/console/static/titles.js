// The titles of stored conversations, which are values of sessions.

import { call } from "./api.js";

export const TITLE = "console.title"; // The value of a session that is its title.
export const TITLE_LENGTH = 200;

/** Return the path of a session. */
export function sessionPath(id) {
  return `v1/sessions/${encodeURIComponent(id)}`;
}

/** Set the title of a session, and return the session; an empty title is removed. */
export function setTitle(id, title) {
  const named = title.trim().slice(0, TITLE_LENGTH);
  const body = named ? { state_json: { [TITLE]: JSON.stringify(named) } } : { removed_keys: [TITLE] };
  return call(sessionPath(id), { method: "PATCH", body });
}

/** Return the title of a session; empty without one. */
export function titleOf(session) {
  try {
    const title = JSON.parse(session.state_json?.[TITLE] ?? '""');
    return typeof title === "string" ? title : "";
  } catch {
    return "";
  }
}
