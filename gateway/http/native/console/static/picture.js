// Draws the items of an execution: time from left to right, a lane for each service or step, and details on demand.

import { h, svg } from "./dom.js";
import { cut, span, visible } from "./text.js";
import { shownText } from "./output.js";

const LEAST_PICTURE = 640; // A narrower screen scrolls.
const SIDE = 10;
const LANE_HEAD = 22;
const ROW = 26;
const BAR = 20;
const LEAST_WIDTH = 8;
const CHARACTER = 6.7; // the width of a letter of a label, in pixels, a little too large
const LABEL = 34;
const TICKS_APART = 110;
const LONG = 2000;
const KINDS = [
  ["state", "state"],
  ["inference", "inference"],
  ["cached", "cached tokens"],
  ["tool", "tool call"],
  ["approval", "waits for approval"],
  ["check", "check"],
  ["retry", "retry"],
  ["vote", "vote"],
  ["step", "step of a plan"],
  ["context", "retrieval"],
];

/** A picture with its details. */
export class Picture {
  constructor() {
    this.zoom = 1;
    this.chosen = "";
    this.holder = h("div", { class: "picture" });
    this.details = h("section", { class: "details", id: "details", "aria-label": "Details", "aria-live": "polite" });
    this.legend = h("ul", { class: "legend", "aria-label": "Colours" });
    const zoomBy = (words, factor) =>
      h("button", { type: "button", class: "quiet small", onclick: () => this.#zoomBy(factor) }, words);
    this.element = h(
      "div",
      {},
      h("div", { class: "row picture-tools" }, zoomBy("Zoom in", 2), zoomBy("Zoom out", 0.5), h("small", {}, "Arrow keys move, Enter shows details.")),
      this.holder,
      this.legend,
      this.details,
    );
    this.holder.addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => this.#draw()).observe(this.holder);
    this.#showDetails();
  }

  /** Draw other items, or the same with what was added. */
  show(picture) {
    this.picture = picture;
    this.#draw(true);
    this.#showDetails();
  }

  #zoomBy(factor) {
    this.zoom = Math.min(64, Math.max(1, this.zoom * factor));
    this.#draw(true);
  }

  #draw(isChanged = false) {
    const width = this.holder.clientWidth;
    if (!this.picture?.items.length || !width || (!isChanged && width === this.drawnAt)) return;
    this.drawnAt = width;
    const focused = document.activeElement?.closest?.(".item")?.dataset.id;
    const full = Math.max(width - 2, LEAST_PICTURE) * this.zoom;
    const { begin, end } = this.picture;
    const scale = (full - 2 * SIDE) / Math.max(1, end - begin);
    const lanes = packed(this.picture.items, (time) => SIDE + (time - begin) * scale, full);
    const height = lanes.at(-1).bottom + 30;
    const ticks = axis(end - begin, full, scale, height);
    this.groups = [];
    const drawn = lanes.flatMap((lane) => this.#lane(lane, full));
    const label = `Timeline: ${this.picture.items.length} items in ${span(end - begin)}`;
    const root = svg("svg", { width: full, height, viewBox: `0 0 ${full} ${height}`, role: "group", "aria-label": label });
    root.append(...ticks, ...drawn);
    this.holder.replaceChildren(root);
    this.#setTabStop(focused ?? this.chosen);
    if (focused) this.#groupOf(focused)?.focus();
    this.#showLegend();
  }

  #lane(lane, full) {
    const name = svg("text", { x: SIDE, y: lane.top + 14, class: "lane-name" }, visible(cut(lane.name, 60)));
    const line = svg("line", { x1: 0, x2: full, y1: lane.top, y2: lane.top, class: "lane-line" });
    return [line, name, ...lane.placed.map((one) => this.#item(one))];
  }

  #item({ item, x, width, y, left, right, labelX, label, anchor }) {
    const marks = [item.isFailed && "failed", item.isOpen && "open", item.isMinority && "minority"];
    const classes = ["item", `kind-${item.kind}`, ...marks.filter(Boolean)];
    const said = `${item.lane}: ${item.label}, ${span(item.end - item.begin)}, ${item.isFailed ? "failed, " : ""}${
      item.isOpen ? "runs, " : ""
    }event ${item.sequences.join(" and ")}`;
    const group = svg(
      "g",
      {
        class: classes.join(" "),
        tabindex: "-1",
        role: "button",
        "aria-label": visible(said),
        "aria-controls": "details",
        "aria-expanded": String(item.id === this.chosen),
        "data-id": item.id,
        "data-sequences": item.sequences.join(" "),
        onclick: () => this.#choose(item.id),
      },
      svg("rect", { x: left - 2, y: y - 2, width: right - left + 4, height: BAR + 4, rx: 5, class: "halo" }),
      svg("rect", { x, y, width, height: BAR, rx: 4, class: "bar" }),
      item.cached ? svg("rect", { x, y: y + BAR - 5, width: width * item.cached, height: 5, class: "cached" }) : null,
      item.share ? svg("rect", { x, y: y + BAR * (1 - item.share), width, height: BAR * item.share, class: "share" }) : null,
      svg("text", { x: labelX, y: y + 14, "text-anchor": anchor }, label),
    );
    this.groups.push(group);
    return group;
  }

  #onKey(event) {
    const group = event.target.closest?.(".item");
    if (!group) return;
    const at = this.groups.indexOf(group);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: this.groups.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      const next = this.groups[Math.min(this.groups.length - 1, Math.max(0, to))];
      this.#setTabStop(next.dataset.id);
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#choose(group.dataset.id);
    } else if (event.key === "Escape") {
      this.#choose("");
    }
  }

  /** Only one item is reached by Tab; the arrow keys reach the others. */
  #setTabStop(id) {
    const stop = this.#groupOf(id) ?? this.groups[0];
    for (const group of this.groups) group.setAttribute("tabindex", group === stop ? "0" : "-1");
  }

  #groupOf(id) {
    return this.groups.find((group) => group.dataset.id === id);
  }

  #choose(id) {
    this.chosen = this.chosen === id ? "" : id;
    for (const group of this.groups) group.setAttribute("aria-expanded", String(group.dataset.id === this.chosen));
    if (id) this.#setTabStop(id);
    this.#showDetails();
  }

  #showDetails() {
    const item = this.picture?.items.find((one) => one.id === this.chosen);
    if (!item) {
      this.details.replaceChildren(h("p", { class: "empty" }, "Choose an item of the picture to see what is known of it."));
      return;
    }
    const begins = `${span(item.begin - this.picture.begin)} after the beginning`;
    const lines = [...item.lines, ["begins", begins], ["takes", item.isOpen ? "not ended" : span(item.end - item.begin)]];
    const shown = (value) => (value.length > LONG ? shownText(value, { isCode: true }) : visible(value));
    this.details.replaceChildren(
      h("h3", {}, visible(`${item.lane}: ${item.label}`)),
      h("dl", {}, lines.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, shown(value))])),
    );
  }

  #showLegend() {
    const found = new Set(this.picture.items.map((item) => item.kind));
    if (this.picture.items.some((item) => item.cached)) found.add("cached");
    const kinds = KINDS.filter(([kind]) => found.has(kind));
    const failed = this.picture.items.some((item) => item.isFailed) ? [["failed", "failed"]] : [];
    const entries = [...kinds, ...failed].map(([kind, words]) => h("li", {}, h("span", { class: `swatch kind-${kind}` }), words));
    this.legend.replaceChildren(...entries);
  }
}

/** Return the lanes of items, each with its items in rows in which neither bars nor labels touch. */
function packed(items, xOf, full) {
  const lanes = new Map();
  for (const item of items) lanes.set(item.lane, [...(lanes.get(item.lane) ?? []), item]);
  let top = 28;
  return [...lanes].map(([name, members]) => {
    const ends = [];
    const placed = members
      .toSorted((a, b) => a.begin - b.begin)
      .map((item) => {
        const one = placedItem(item, xOf, full);
        let row = ends.findIndex((end) => end + 6 <= one.left);
        if (row < 0) row = ends.push(0) - 1;
        ends[row] = one.right;
        return { ...one, y: top + LANE_HEAD + row * ROW };
      });
    const lane = { name, top, placed, bottom: top + LANE_HEAD + ends.length * ROW + 6 };
    top = lane.bottom;
    return lane;
  });
}

/** Return where an item lies, with its label in it, or else beside it. */
function placedItem(item, xOf, full) {
  const width = Math.max(LEAST_WIDTH, xOf(item.end) - xOf(item.begin));
  const x = Math.max(SIDE, Math.min(xOf(item.begin), full - SIDE - width));
  const whole = visible(item.label);
  const hasRoom = whole.length * CHARACTER + 10 <= width;
  const label = hasRoom || item.label.length <= LABEL ? whole : visible(`${item.label.slice(0, LABEL)}…`);
  const length = label.length * CHARACTER;
  const base = { item, x, width, label };
  if (length + 10 <= width) return { ...base, labelX: x + 5, anchor: "start", left: x, right: x + width };
  if (x + width + length + 10 <= full) {
    return { ...base, labelX: x + width + 4, anchor: "start", left: x, right: x + width + 4 + length };
  }
  return { ...base, labelX: x - 4, anchor: "end", left: x - 4 - length, right: x + width };
}

function axis(milliseconds, full, scale, height) {
  const least = TICKS_APART / scale;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= least);
  const drawn = [];
  for (let time = 0; time <= milliseconds; time += step) {
    const x = SIDE + time * scale;
    drawn.push(svg("line", { x1: x, x2: x, y1: 20, y2: height, class: "tick" }));
    if (x < full - 50) drawn.push(svg("text", { x: x + 3, y: 14, class: "tick-name" }, time ? span(time) : "0"));
  }
  return drawn;
}
