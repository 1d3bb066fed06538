// The form for a tool call that waits for a decision, in a conversation and in the list of all that wait.

import { call } from "./api.js";
import { announce, field, h } from "./dom.js";
import { CallFailure, shownFailure } from "./failures.js";
import { cut, indented, visible } from "./text.js";

/** Return a form that approves or rejects a call; `onDecided` gets the form afterwards. */
export function shownApproval(approval, prefix, onDecided) {
  const own = indented(approval.arguments_json ?? "{}");
  const changed = h("textarea", { id: `${prefix}-arguments`, rows: Math.min(10, own.split("\n").length + 1), spellcheck: "false" });
  changed.value = own;
  const reason = h("input", { id: `${prefix}-reason`, type: "text", maxlength: "500" });
  const problem = h("div", { role: "alert" });
  const name = visible(approval.tool_name);
  const form = h(
    "section",
    { class: "approval", "aria-label": `Approval of ${name}` },
    h("p", {}, h("strong", {}, "Approve this call? "), visible(approval.reason ?? "")),
    (approval.spans ?? []).map((one) =>
      h("p", { class: "note" }, `${visible(one.argument)} has text of ${visible(one.source)}: “${visible(cut(one.text, 200))}”`),
    ),
    field("Arguments", changed, "A changed JSON object replaces the model's arguments."),
    field("Reason", reason, "The model reads the reason of a rejection."),
  );
  const decide = async (decision) => {
    const body = { decision: `APPROVAL_DECISION_${decision}`, reason: reason.value };
    if (decision === "APPROVED" && changed.value !== own) body.arguments_json = changed.value;
    const path = `v1/approvals/${encodeURIComponent(approval.request_id)}/${encodeURIComponent(approval.tool_call_id)}/decision`;
    try {
      await call(path, { method: "POST", body });
      announce(decision === "APPROVED" ? `${name} is approved.` : `${name} is rejected.`);
      onDecided(form);
    } catch (failure) {
      if (!(failure instanceof CallFailure)) throw failure;
      problem.replaceChildren(shownFailure(failure));
    }
  };
  const approve = h("button", { type: "button", class: "main-action", onclick: () => decide("APPROVED") }, "Approve");
  const reject = h("button", { type: "button", onclick: () => decide("REJECTED") }, "Reject");
  form.append(problem, h("div", { class: "row" }, approve, reject));
  return form;
}
