// Steps the frames that Python drew. It draws nothing itself but the arrows of whatever is hovered or focused.
const NS = "http://www.w3.org/2000/svg";
const BEAT_MS = 1100;
const ICONS = {
  first: "M3 3h2v10H3zM14 3v10L6 8z",
  back: "M11 3v10L4 8z",
  play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  forward: "M5 3v10l7-5z",
  last: "M11 3h2v10h-2zM2 3v10l8-5z",
};
const SAYS = { first: "First frame", back: "Back", play: "Play", forward: "Forward", last: "Last frame" };

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function draw(tag, attributes, parent) {
  const node = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent.append(node);
  return node;
}

function icon(name) {
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  draw("path", { d: ICONS[name] }, svg);
  return svg;
}

// "0-2 5 4" -> [0, 1, 2, 5, 4]
function unfolded(words) {
  return words.split(" ").filter(Boolean).flatMap((word) => {
    const [first, last = first] = word.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  });
}

// JupyterLab's own shortcuts would take the arrow keys: this attribute asks it to leave an element's keys alone.
const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };

function render({ model, el }) {
  const root = make("div", { class: "kvlab-player", tabindex: "0", role: "group", ...OWN_KEYS });
  const title = make("div", { class: "kvlab-title" });
  const svg = document.createElementNS(NS, "svg");
  const tip = make("div", { class: "kvlab-tip", hidden: "" });
  const stage = make("div", { class: "kvlab-stage" }, svg, tip);
  const caption = make("div", { class: "kvlab-caption", "aria-live": "polite" });
  const buttons = {};
  const bar = make("div", { class: "kvlab-bar" });
  for (const act of Object.keys(SAYS)) {
    const attributes = { type: "button", "data-act": act, "aria-label": SAYS[act], title: SAYS[act], ...OWN_KEYS };
    buttons[act] = make("button", attributes, icon(act));
    bar.append(buttons[act]);
  }
  const slider = make("input", { type: "range", min: "0", step: "1", "aria-label": "Frame", ...OWN_KEYS });
  const counter = make("span", { class: "kvlab-counter" });
  bar.append(slider, counter);
  const table = make("table", { class: "kvlab-table" });
  const details = make("details", {}, make("summary", OWN_KEYS, "As a table"), make("div", { class: "kvlab-scroll" }, table));
  root.append(title, stage, caption, bar, details);
  el.append(root);

  let timer = null; // playing
  let pinned = null; // what Enter or a tap holds lit
  let lit = null; // {key: "block" | "request", value}
  let overlay = null;

  const count = () => model.get("frames").length;
  const step = () => model.get("step");

  function go(target) {
    const next = Math.max(0, Math.min(count() - 1, target));
    if (next === step()) return;
    model.set("step", next);
    model.save_changes();
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    buttons.play.replaceChildren(icon("play"));
    buttons.play.setAttribute("aria-label", "Play");
    buttons.play.title = "Play";
  }

  function play() {
    if (timer !== null) return pause();
    if (step() === count() - 1) go(0);
    timer = setInterval(() => (step() >= count() - 1 ? pause() : go(step() + 1)), BEAT_MS);
    buttons.play.replaceChildren(icon("pause"));
    buttons.play.setAttribute("aria-label", "Pause");
    buttons.play.title = "Pause";
  }

  function act(name) {
    if (name === "play") return play();
    pause();
    go({ first: 0, back: step() - 1, forward: step() + 1, last: count() - 1 }[name]);
  }

  function disable(button, off) {
    const active = root.getRootNode().activeElement;
    if (off && active === button) root.focus({ preventScroll: true }); // a disabled button loses the keyboard
    button.disabled = off;
  }

  function show() {
    const at = step();
    const fragments = model.get("fragments");
    const focused = keyOf(svg.contains(document.activeElement) ? document.activeElement : null);
    svg.innerHTML = unfolded(model.get("frames")[at]).map((i) => fragments[i]).join("");
    overlay = draw("g", { class: "kvlab-overlay" }, svg);
    const said = model.get("captions")[at];
    svg.setAttribute("viewBox", `-3 -3 ${model.get("width") + 6} ${model.get("height") + 6}`);
    svg.style.maxWidth = `${Math.round(model.get("width") * 1.2)}px`;
    svg.setAttribute("role", "group");
    const heading = [model.get("title"), model.get("titles")[at]].filter(Boolean).join(": ");
    svg.setAttribute("aria-label", heading ? `${heading}. ${said}` : said);
    root.setAttribute("aria-label", model.get("title") || model.get("titles")[0] || "Pictures of a log");
    title.textContent = heading;
    title.hidden = !heading;
    caption.textContent = said;
    counter.textContent = `${at + 1} / ${count()}`;
    slider.max = count() - 1;
    slider.value = at;
    slider.setAttribute("aria-valuetext", `${at + 1} of ${count()}: ${said}`);
    disable(buttons.first, at === 0);
    disable(buttons.back, at === 0);
    disable(buttons.forward, at === count() - 1);
    disable(buttons.last, at === count() - 1);
    fill_table(at);
    walkable(focused);
    const again = pinned ?? lit;
    lit = null;
    again ? light(again) : darken();
  }

  function fill_table(at) {
    const rows = unfolded(model.get("tables")[at]).map((i) => model.get("rows")[i].split("\t"));
    const line = (cell, row) => make("tr", {}, ...row.map((words) => {
      const node = make(cell, cell === "th" ? { scope: "col" } : {});
      node.textContent = words;
      return node;
    }));
    table.replaceChildren(make("thead", {}, line("th", rows[0])), make("tbody", {}, ...rows.slice(1).map((r) => line("td", r))));
  }

  // --- what is under the pointer or the keyboard -----------------------------------------------------------------

  function keyOf(node) {
    const at = node?.closest?.("[data-block], [data-request]");
    if (!at) return null;
    if (at.dataset.entry !== undefined) return { key: "block", value: at.dataset.block, entry: at.dataset.entry };
    return "block" in at.dataset ? { key: "block", value: at.dataset.block } : { key: "request", value: at.dataset.request };
  }

  const same = (a, b) => a === b || (a && b && a.key === b.key && a.value === b.value && a.entry === b.entry);

  function find(what) {
    const quoted = CSS.escape(what.value);
    return [...svg.querySelectorAll(what.key === "block" ? `[data-block="${quoted}"]` : `[data-request~="${quoted}"]`)];
  }

  // One tab stop for the whole drawing; up and down walk from there.
  function walkable(focused) {
    const seen = new Set();
    const stops = [...svg.querySelectorAll("[data-entry], [data-block]:not(.kv-free), [data-request]")].filter((node) => {
      const key = keyOf(node);
      const id = `${key.key} ${key.value} ${key.entry ?? ""}`;
      const again = seen.has(id);
      if (again && key.key === "block") node.style.pointerEvents = "none"; // a fill lies over its cell: one target for each thing
      const wanted = !again && (key.key === "request" || key.entry !== undefined || node.dataset.request);
      seen.add(id);
      return wanted;
    });
    for (const node of stops) {
      node.setAttribute("tabindex", "-1");
      node.setAttribute("data-stop", "");
      node.setAttribute("role", "img");
      node.setAttribute("data-lm-suppress-shortcuts", "true");
      node.setAttribute("aria-label", tip_for(keyOf(node)) || `request ${node.dataset.request}`);
    }
    const back = focused && stops.find((node) => same(keyOf(node), focused));
    (back ?? stops[0])?.setAttribute("tabindex", "0");
    if (back) back.focus({ preventScroll: true });
    else if (focused) root.focus({ preventScroll: true });
  }

  function walk(by) {
    const stops = [...svg.querySelectorAll("[data-stop]")];
    const at = stops.findIndex((node) => node.tabIndex === 0);
    const next = stops[Math.max(0, Math.min(stops.length - 1, at + by))];
    if (!next) return;
    stops[at]?.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus({ preventScroll: false });
  }

  function tip_for(what) {
    const quoted = CSS.escape(what.value);
    if (what.entry !== undefined) {
      const entry = svg.querySelector(`[data-entry="${CSS.escape(what.entry)}"][data-tip]`);
      if (entry) return entry.dataset.tip;
    }
    return what.key === "block" ? svg.querySelector(`[data-block="${quoted}"][data-tip]:not([data-entry])`)?.dataset.tip : undefined;
  }

  function box(node) {
    const inverse = svg.getScreenCTM()?.inverse();
    const r = node.getBoundingClientRect();
    if (!inverse) return null;
    const a = new DOMPoint(r.left, r.top).matrixTransform(inverse);
    const b = new DOMPoint(r.right, r.bottom).matrixTransform(inverse);
    return { left: a.x, top: a.y, right: b.x, bottom: b.y, x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
  }

  function arrow(from, to) {
    if (!from || !to) return;
    const right = to.x >= from.x;
    const x0 = right ? from.right : from.left, y0 = from.y;
    const x1 = right ? to.left - 2 : to.right + 2, y1 = to.y;
    const side = right ? 1 : -1, reach = Math.max(24, Math.abs(x1 - x0) * 0.5) * side;
    const d = `M${x0} ${y0}C${x0 + reach} ${y0} ${x1 - reach} ${y1} ${x1 - 6 * side} ${y1}`;
    draw("path", { d, class: "kvlab-arrow-halo" }, overlay);
    draw("path", { d, class: "kvlab-arrow" }, overlay);
    draw("path", { d: `M${x1} ${y1}l${-10 * side} -5.5v11z`, class: "kvlab-arrow-head" }, overlay);
  }

  function light(what, from) {
    if (!overlay) return;
    overlay.replaceChildren();
    for (const node of svg.querySelectorAll(".is-lit")) node.classList.remove("is-lit");
    const nodes = find(what);
    if (!nodes.length) return darken();
    lit = what;
    for (const node of nodes) node.classList.add("is-lit");
    svg.classList.add("has-lit");
    const entries = new Map();
    for (const node of nodes) if (node.dataset.entry !== undefined && !entries.has(node.dataset.entry)) entries.set(node.dataset.entry, node);
    for (const entry of entries.values()) {
      const target = svg.querySelector(`[data-block="${CSS.escape(entry.dataset.block)}"]:not([data-entry])`);
      if (target) arrow(box(entry), box(target));
    }
    tell(what, from);
    hover(what.key === "block" ? Number(what.value) : -1);
  }

  function darken() {
    lit = null;
    overlay?.replaceChildren();
    svg.classList.remove("has-lit");
    for (const node of svg.querySelectorAll(".is-lit")) node.classList.remove("is-lit");
    tip.hidden = true;
    hover(-1);
  }

  function hover(block) {
    if (model.get("hovered") === block) return;
    model.set("hovered", block);
    model.save_changes();
  }

  function tell(what, from) {
    const words = from?.closest?.("[data-tip]")?.dataset.tip ?? tip_for(what);
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    const at = (from ?? svg.querySelector(".is-lit")).getBoundingClientRect();
    const frame = stage.getBoundingClientRect();
    const left = Math.min(at.left - frame.left, frame.width - tip.offsetWidth - 4);
    const below = at.bottom - frame.top + 6;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${below + tip.offsetHeight > frame.height ? Math.max(0, at.top - frame.top - tip.offsetHeight - 6) : below}px`;
  }

  svg.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch" || pinned) return;
    const what = keyOf(event.target);
    const tipped = event.target.closest("[data-tip]");
    if (!what) return darken();
    if (!same(what, lit) || tipped) light(what, tipped ?? event.target);
  });
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch" && !pinned) darken();
  });
  svg.addEventListener("click", (event) => pin(keyOf(event.target), event.target));
  svg.addEventListener("focusin", (event) => {
    const what = keyOf(event.target);
    if (what && !pinned && event.target.matches(":focus-visible")) light(what, event.target);
  });
  svg.addEventListener("focusout", () => {
    if (!pinned) darken();
  });

  function pin(what, from) {
    if (!what || same(what, pinned)) {
      pinned = null;
      return what ? light(what, from) : darken();
    }
    pinned = what;
    light(what, from);
  }

  // --- controls --------------------------------------------------------------------------------------------------

  for (const [name, button] of Object.entries(buttons)) button.addEventListener("click", () => act(name));
  slider.addEventListener("input", () => {
    pause();
    go(Number(slider.value));
  });
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const native = event.target.closest("input, summary, button");
    const inside = svg.contains(event.target);
    const keys = {
      ArrowLeft: () => act("back"),
      ArrowRight: () => act("forward"),
      Home: () => act("first"),
      End: () => act("last"),
      " ": () => (inside ? pin(keyOf(event.target), event.target) : play()),
    };
    if (inside) {
      keys.ArrowUp = () => walk(-1);
      keys.ArrowDown = () => walk(1);
      keys.Enter = () => pin(keyOf(event.target), event.target);
      keys.Escape = () => pin(null);
    }
    const leave = (event.key === " " || event.key === "Enter") ? native && !native.matches("input") : native?.matches("input");
    if (!keys[event.key] || leave) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });

  const redraw = ["change:step", "change:frames"];
  for (const event of redraw) model.on(event, show);
  show();
  return () => {
    pause();
    for (const event of redraw) model.off(event, show);
  };
}

export default { render };
