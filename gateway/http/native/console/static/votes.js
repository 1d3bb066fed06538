// The votes of a request: how many replicas said the same, and where the others differ.

import { h } from "./dom.js";
import { cut, visible } from "./text.js";
import { failureOf } from "./failures.js";

/** Return the votes of a response, the one with most first; each with its share and its differences from that one. */
export function countVotes(response) {
  const candidates = response?.candidates ?? [];
  const counted = candidates.map((candidate) => ({
    replica: candidate.replica_index ?? 0,
    text: candidate.structured_output_json || candidate.content || "",
    votes: candidate.votes ?? 0,
    of: candidates.length,
    share: (candidate.votes ?? 0) / candidates.length,
    failure: candidate.error ? failureOf(candidate.error) : null,
  }));
  const winner = [...counted].sort((a, b) => b.votes - a.votes || a.replica - b.replica)[0];
  for (const vote of counted) vote.differences = vote.failure ? [] : differences(winner.text, vote.text);
  return counted;
}

/** Return the places where a JSON text differs from another, in words; for other texts, whether they differ. */
export function differences(wanted, found) {
  if (wanted === found) return [];
  try {
    return [...leavesThatDiffer(JSON.parse(wanted), JSON.parse(found), "")];
  } catch {
    return ["another text"];
  }
}

function* leavesThatDiffer(wanted, found, path) {
  const areObjects = [wanted, found].every((value) => value !== null && typeof value === "object");
  if (areObjects && Array.isArray(wanted) === Array.isArray(found)) {
    for (const key of new Set([...Object.keys(wanted), ...Object.keys(found)])) {
      yield* leavesThatDiffer(wanted[key], found[key], path ? `${path}.${key}` : key);
    }
  } else if (JSON.stringify(wanted) !== JSON.stringify(found)) {
    yield `${path || "the value"}: ${JSON.stringify(wanted) ?? "nothing"} → ${JSON.stringify(found) ?? "nothing"}`;
  }
}

/** Return a vote's particulars as lines. */
export function voteLines(vote) {
  if (vote.failure) return [`abstains: ${vote.failure.code}: ${vote.failure.message}`];
  return [`${vote.votes} of ${vote.of} say the same`, ...vote.differences];
}

/** Return an element that shows the votes of a response; null where nobody voted. */
export function shownVotes(response) {
  const votes = countVotes(response);
  if (!votes.length) return null;
  const rows = votes.map((vote) =>
    h(
      "li",
      {},
      h("span", { class: "replica" }, `Replica ${vote.replica}`),
      h("meter", { min: 0, max: 1, value: vote.share, "aria-label": `Share of replica ${vote.replica}` }),
      h("span", {}, vote.failure ? "abstains" : `${vote.votes} of ${votes.length}`),
      h("code", {}, visible(cut(vote.failure ? vote.failure.message : vote.text, 2000))),
      vote.differences.length
        ? h("ul", { class: "differences" }, vote.differences.map((one) => h("li", {}, visible(cut(one, 500)))))
        : null,
    ),
  );
  return h("section", { class: "votes", "aria-label": "Votes" }, h("h3", {}, "Votes"), h("ol", {}, rows));
}
