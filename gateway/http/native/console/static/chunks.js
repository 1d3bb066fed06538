// Finds the chunk that a citation quotes, and shows it with the quote marked.

import { call } from "./api.js";
import { h } from "./dom.js";
import { CallFailure, shownFailure } from "./failures.js";
import { shownText } from "./output.js";
import { visible } from "./text.js";

const CANDIDATES = 20;

/** Return a button that opens the chunk of a citation of a collection below itself, and closes it again. */
export function chunkButton(collection, citation, id) {
  const place = h("div", { id, hidden: true, tabindex: "-1", class: "chunk" });
  const button = h("button", { type: "button", class: "quiet small", "aria-expanded": "false", "aria-controls": id }, "Show the chunk");
  button.addEventListener("click", async () => {
    const isOpen = place.hidden;
    button.setAttribute("aria-expanded", String(isOpen));
    button.textContent = isOpen ? "Hide the chunk" : "Show the chunk";
    place.hidden = !isOpen;
    if (!isOpen || place.childElementCount) return;
    place.append(h("p", { class: "empty" }, "Loading …"));
    place.replaceChildren(...(await foundChunk(collection, citation)));
    place.focus();
  });
  return [button, place];
}

async function foundChunk(collection, citation) {
  try {
    const chunk = chunkOf(citation, await candidates(collection, citation));
    if (chunk) return shownChunk(chunk, citation.quote ?? "");
    return [h("p", { class: "note" }, "The document has changed since, or is gone: the quote above is what it said.")];
  } catch (failure) {
    if (!(failure instanceof CallFailure)) throw failure;
    return [shownFailure(failure)];
  }
}

async function candidates(collection, citation) {
  const body = {
    query: citation.quote || citation.claim || citation.document,
    policy: { max_chunks: CANDIDATES, filter: `source == ${JSON.stringify(citation.document ?? "")}` },
  };
  const found = await call(`v1/collections/${encodeURIComponent(collection)}/search`, { method: "POST", body });
  return found.chunks ?? [];
}

/** Return the chunk that has the quote, at its place in the document if one is there; undefined for none. */
function chunkOf(citation, chunks) {
  const quoting = chunks.filter((chunk) => (chunk.content ?? "").includes(citation.quote ?? ""));
  const start = citation.start ?? 0;
  const isThere = ({ location }) => location && (location.start ?? 0) <= start && start < (location.end ?? 0);
  return quoting.find(isThere) ?? quoting[0];
}

function shownChunk(chunk, quote) {
  const at = chunk.content.indexOf(quote);
  const { page = 0, heading = "" } = chunk.location ?? {};
  const where = [page ? `page ${page}` : "", visible(heading)].filter(Boolean).join(" · ");
  const text = h("div", { class: "plain", dir: "auto" });
  if (quote && at >= 0) {
    const after = chunk.content.slice(at + quote.length);
    text.append(visible(chunk.content.slice(0, at)), h("mark", {}, visible(quote)), visible(after));
  } else {
    text.append(shownText(chunk.content));
  }
  return [where ? h("p", { class: "note" }, where) : "", text].filter(Boolean);
}
