// Drives a player as a person would and leaves what it saw in the page. `render`, `state` come from the test.
class Model {
  constructor(traits) { this.traits = { ...traits }; this.listeners = {}; this.saved = 0; }
  get(key) { return this.traits[key]; }
  set(key, value) {
    if (this.traits[key] === value) return;
    this.traits[key] = value;
    for (const listener of this.listeners[`change:${key}`] ?? []) listener();
  }
  save_changes() { this.saved += 1; }
  on(event, listener) { (this.listeners[event] ??= []).push(listener); }
  off(event, listener) { this.listeners[event] = this.listeners[event].filter((each) => each !== listener); }
}

const seen = {};
const model = new Model(state);
const host = document.createElement("div");
document.body.append(host);
const close = widget.render({ model, el: host });
const root = host.querySelector(".kvlab-player");
const button = (act) => root.querySelector(`[data-act=${act}]`);
const disabled = () => ["first", "back", "play", "forward", "last"].filter((act) => button(act).disabled);
const words = (selector) => root.querySelector(selector).textContent;
const press = (key, target = root) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const point = (target, type = "pointerover") =>
  target.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerType: "mouse" }));
const svg = root.querySelector(".kvlab-stage svg");
const block = (id) => svg.querySelector(`[data-block="${id}"]:not([data-entry])`);
const lit = () => [...new Set([...svg.querySelectorAll(".is-lit")].map((node) => node.dataset.entry ?? node.dataset.block))];
const arrows = () => svg.querySelectorAll(".kvlab-arrow").length;

seen.start = [words(".kvlab-counter"), disabled(), words(".kvlab-title"), words(".kvlab-caption")];
seen.roles = [root.getAttribute("role"), root.tabIndex, root.getAttribute("aria-label"),
  root.querySelector(".kvlab-caption").getAttribute("aria-live"), button("first").getAttribute("aria-label")];
seen.shortcuts = [root, ...root.querySelectorAll("button, input, summary")]
  .every((node) => node.getAttribute("data-lm-suppress-shortcuts") === "true");
button("forward").click();
seen.forward = [model.get("step"), words(".kvlab-caption"), disabled(), model.saved];
seen.drawn = svg.querySelectorAll(".kv-touched").length;
seen.table = [...root.querySelectorAll(".kvlab-table tr")].map((row) => [...row.children].map((cell) => cell.textContent));
press("ArrowRight");
seen.right = model.get("step");
press("ArrowLeft");
seen.left = model.get("step");
press("End");
seen.end = [model.get("step"), disabled()];
press("ArrowRight");
seen.beyond = model.get("step");
press("Home");
seen.home = model.get("step");
const slider = root.querySelector("input[type=range]");
slider.value = "2";
slider.dispatchEvent(new Event("input"));
seen.slider = [model.get("step"), slider.max, slider.getAttribute("aria-valuetext")];
press("ArrowRight", slider); // the slider moves itself: the player must not move it twice
seen.arrow_on_slider = model.get("step");

point(block(7));
seen.hover = [model.get("hovered"), lit(), arrows(), words(".kvlab-tip"), root.querySelector(".kvlab-tip").hidden];
point(svg.querySelector('[data-request="B"]:not([data-block])'));
seen.request = [model.get("hovered"), lit(), arrows()];
point(svg, "pointerleave");
seen.left_alone = [model.get("hovered"), lit(), arrows(), root.querySelector(".kvlab-tip").hidden];

const stops = [...svg.querySelectorAll("[data-stop]")];
seen.stops = [stops.filter((node) => node.tabIndex === 0).length, stops.length];
stops[0].focus();
press("ArrowDown", document.activeElement);
press("Enter", document.activeElement);
seen.walked = [document.activeElement.dataset.entry, document.activeElement.getAttribute("aria-label"), model.get("hovered"), arrows()];
press("ArrowRight", document.activeElement);
seen.kept = [model.get("step"), document.activeElement.dataset.entry, model.get("hovered"), arrows()];
press("Escape", document.activeElement);
seen.released = model.get("hovered");

button("last").focus();
button("last").click();
seen.focus_after_last = document.activeElement === root;
press(" ");
seen.playing = [model.get("step"), button("play").getAttribute("aria-label")];
setTimeout(() => {
  seen.played = model.get("step");
  press(" ");
  seen.paused = button("play").getAttribute("aria-label");
  const at = model.get("step");
  setTimeout(() => {
    seen.stays = model.get("step") === at;
    seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
    close();
    model.set("step", 1);
    seen.closed = words(".kvlab-counter");
    document.body.innerHTML = `<pre id="seen"></pre>`;
    document.getElementById("seen").textContent = JSON.stringify(seen);
  }, 2500);
}, 2500);
