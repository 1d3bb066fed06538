// Makes elements. Texts become text nodes: nothing here, or in any other module, parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element of HTML; `on…` attributes are listeners, false and null ones are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return an element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return a label with its control below; the control needs an id. */
export function field(label, control, hint = "") {
  const described = hint ? h("small", { id: `${control.id}-hint` }, hint) : null;
  if (described) control.setAttribute("aria-describedby", described.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, described);
}

/** Return a checkbox with its label beside it. */
export function checkbox(id, label, isChecked, hint = "") {
  const control = h("input", { type: "checkbox", id, checked: isChecked, "aria-describedby": hint && `${id}-hint` });
  const described = hint ? h("small", { id: `${id}-hint` }, hint) : null;
  return h("div", { class: "check" }, control, h("label", { for: id }, label), described);
}

/** Return a menu of [value, words] pairs. */
export function menu(id, choices, chosen = "") {
  const options = choices.map(([value, words]) => h("option", { value, selected: value === chosen }, words));
  return h("select", { id }, options);
}

/** Return a button that copies what `text` returns, and says that it did. */
export function copyButton(label, text) {
  const button = h("button", { type: "button", class: "quiet small" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refused";
    }
    announce(button.textContent);
    setTimeout(() => (button.textContent = label), 2000);
  });
  return button;
}

/** Have screen readers say something when they have time. */
export function announce(words) {
  document.getElementById("status").textContent = words;
}
