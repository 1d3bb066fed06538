// Shows the page that the address names, and keeps theme and key. The address is the part after #.

import { apiKey, keepKey, onMissingKey } from "./api.js";
import { showChat } from "./chat.js";
import { announce, h } from "./dom.js";

// The sections of the address: the title of each, what shows it, and what shows the one thing in it that an address names.
// Modules of sections other than the first are loaded when somebody goes there.
const SECTIONS = {
  chat: { title: "Chat", show: ({ signal }) => showChat(main, "", signal), one: ({ id, signal }) => showChat(main, id, signal) },
  executions: {
    title: "Executions",
    show: ({ query, signal }) => showFrom("./executions.js", "showExecutions", signal, query),
    one: ({ id, rest, signal }) =>
      rest === "replay" ? showFrom("./replay.js", "showReplay", signal, id) : showFrom("./execution.js", "showExecution", signal, id),
  },
  sessions: {
    title: "Sessions",
    show: ({ signal }) => showFrom("./sessions.js", "showSessions", signal),
    one: ({ id, signal }) => showFrom("./sessions.js", "showSession", signal, id),
  },
  collections: {
    title: "Collections",
    show: ({ signal }) => showFrom("./collections.js", "showCollections", signal),
    one: ({ id, signal }) => showFrom("./collection.js", "showCollection", signal, id),
  },
  tools: { title: "Tools", show: ({ signal }) => showFrom("./tools.js", "showTools", signal) },
  models: { title: "Models", show: ({ signal }) => showFrom("./models.js", "showModels", signal) },
  load: { title: "Load", show: ({ signal }) => showFrom("./load.js", "showLoad", signal) },
};
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
  const current = Object.hasOwn(SECTIONS, section) ? section : "chat";
  for (const name of Object.keys(SECTIONS)) {
    const link = document.getElementById(`nav-${name}`);
    if (name === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const { title, show, one } = SECTIONS[current];
  const isOne = Boolean(id && one);
  document.title = `${isOne ? titleOf(current, id, rest) : title} · pagantic`;
  main.classList.remove("lost");
  scrollTo(0, 0);
  const asked = { id, rest, query: new URLSearchParams(query), signal };
  await (isOne ? one(asked) : show(asked));
}

/** Load a module, and call what it exports by this name; a page that was left meanwhile neither shows nor says anything. */
async function showFrom(file, name, signal, ...asked) {
  const module = await import(file).catch((mistake) => {
    if (!signal.aborted) throw mistake;
  });
  if (!signal.aborted) await module[name](main, ...asked, signal);
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
  if (section === "executions") return rest === "replay" ? `Replay of ${id}` : `Execution ${id}`;
  return `${SECTIONS[section].title.slice(0, -1)} ${id}`;
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
