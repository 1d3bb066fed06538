// Asks the person before something is lost.

import { h } from "./dom.js";

let made = 0;

/** Ask whether to go on; resolves to the answer. The keyboard is on Cancel at first, and back where it was afterwards. */
export function confirmed({ title, words, action }) {
  const id = `confirm-${++made}`;
  const dialog = h(
    "dialog",
    { "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-words`, class: "confirm" },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: `${id}-title` }, title),
      h("p", { id: `${id}-words` }, words),
      h(
        "div",
        { class: "row" },
        h("button", { type: "submit", value: "cancel", autofocus: true }, "Cancel"),
        h("button", { type: "submit", value: "go", class: "danger" }, action),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    const end = () => {
      resolve(dialog.returnValue === "go");
      dialog.remove();
    };
    dialog.addEventListener("close", end, { once: true });
    // A page that is left takes its question along.
    addEventListener("hashchange", () => dialog.close("cancel"), { once: true });
  });
}
