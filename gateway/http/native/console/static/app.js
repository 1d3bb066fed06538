// Shows the page that the address names, and keeps theme and key. The address is the part after #.

import { apiKey, keepKey, onMissingKey } from "./api.js";
import { showChat } from "./chat.js";
import { announce, h } from "./dom.js";
import { showExecution } from "./execution.js";
import { showExecutions } from "./executions.js";
import { showReplay } from "./replay.js";

const THEME = "pagantic.theme";
const THEMES = ["system", "light", "dark"];
const main = document.getElementById("main");
const dialog = document.getElementById("key-dialog");
let leaving = new AbortController();

/** Show the page of the address; what the page before it waited for is given up. */
async function showPage() {
  leaving.abort();
  leaving = new AbortController();
  const [path, query] = location.hash.slice(2).split("?");
  const [section, id, rest] = path.split("/").map(decoded);
  const { signal } = leaving;
  const current = section === "executions" ? "executions" : "chat";
  for (const name of ["chat", "executions"]) {
    const link = document.getElementById(`nav-${name}`);
    if (name === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${titleOf(current, id, rest)} · pagantic`;
  main.classList.remove("lost");
  scrollTo(0, 0);
  if (current === "chat") await showChat(main, id ?? "", signal);
  else if (!id) await showExecutions(main, new URLSearchParams(query), signal);
  else if (rest === "replay") await showReplay(main, id, signal);
  else await showExecution(main, id, signal);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function titleOf(section, id, rest) {
  if (section === "chat") return "Chat";
  if (!id) return "Executions";
  return rest === "replay" ? `Replay of ${id}` : `Execution ${id}`;
}

/** Show a mistake of the console itself, which nothing else says. */
function showMistake(mistake) {
  if (leaving.signal.aborted || !mistake) return;
  console.error(mistake);
  const words = `The console failed: ${mistake.message ?? mistake}. Load the page again.`;
  main.prepend(h("p", { class: "failure", role: "alert" }, words));
}

function setUpTheme() {
  const button = document.getElementById("theme-button");
  const show = () => {
    const theme = document.documentElement.dataset.theme ?? "system";
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? "system";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    localStorage.setItem(THEME, next);
    show();
    announce(`Theme: ${next}`);
  });
  show();
}

function setUpKey() {
  const input = document.getElementById("key");
  const reason = document.getElementById("key-reason");
  const words = reason.textContent;
  let asking = null;
  const ask = (failure = null) => {
    reason.textContent = failure && apiKey() ? `The key was not accepted: ${failure.message}` : words;
    input.value = apiKey();
    dialog.returnValue = "";
    if (!dialog.open) dialog.showModal();
    asking ??= new Promise((resolve) => {
      dialog.addEventListener(
        "close",
        () => {
          asking = null;
          const isUsed = dialog.returnValue === "use";
          if (isUsed) keepKey(input.value.trim());
          input.value = "";
          resolve(isUsed);
        },
        { once: true },
      );
    });
    return asking;
  };
  onMissingKey(ask);
  document.getElementById("key-button").addEventListener("click", async () => {
    if (await ask()) showPage().catch(showMistake);
  });
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // The address names the page, so the link moves the focus by itself.
  main.focus();
});
addEventListener("hashchange", () => showPage().catch(showMistake));
addEventListener("unhandledrejection", (event) => showMistake(event.reason));
addEventListener("error", (event) => showMistake(event.error));
setUpTheme();
setUpKey();
showPage().catch(showMistake);
