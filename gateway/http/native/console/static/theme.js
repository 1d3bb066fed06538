// Sets the chosen theme before anything is painted. It is a script of its own, because modules run after the first paint.
"use strict";
try {
  const chosen = localStorage.getItem("pagantic.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing shows the theme of the system.
}
