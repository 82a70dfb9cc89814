// Forward and backward on one axis, a lane for each device, an arrow for each copy between lanes.
const NS = "http://www.w3.org/2000/svg";
const LANE = 34, TOP = 30, RIGHT = 12;
const LONGEST = 14; // characters of a device's name
const watched = new WeakMap();

function element(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export default function ({ data: [data], parentElement, setTriggerValue }) {
  const place = parentElement.querySelector(".linked");
  const few = data.steps.length + data.copies.length <= 120;
  const names = data.lanes.map((lane) => (lane.length > LONGEST ? `${lane.slice(0, LONGEST - 1)}…` : lane));
  const left = Math.max(62, 12 + 7 * Math.max(...names.map((name) => name.length)));
  const draw = () => {
    const width = place.clientWidth || 400;
    const height = TOP + data.lanes.length * LANE;
    const x = (step) => left + 8 + ((step - data.start) / Math.max(1e-9, data.end - data.start)) * (width - left - RIGHT - 16);
    const y = (device) => TOP + data.lanes.indexOf(device) * LANE + LANE / 2;
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group" });
    svg.setAttribute("aria-label", data.label);
    for (const [at, lane] of data.lanes.entries()) {
      svg.append(element("line", { class: "lane", x1: left, x2: width - RIGHT, y1: y(lane), y2: y(lane) }));
      svg.append(element("text", { x: 0, y: y(lane) + 4 }, names[at]));
    }
    for (const { name, from, to } of data.phases) {
      const middle = Math.min((x(from) + x(to)) / 2, width - RIGHT - 30);
      svg.append(element("text", { x: middle, y: 12, "text-anchor": "middle" }, name));
    }
    const add = (mark, shape) => {
      const group = element("g", { class: `mark${mark.node !== null && mark.node === data.selected ? " selected" : ""}` });
      group.append(element("title", {}, mark.label), ...shape);
      if (mark.node !== null) {
        group.dataset.node = mark.node;
        const pick = () => setTriggerValue("picked", { node: mark.node === data.selected ? null : mark.node });
        group.addEventListener("click", pick);
        if (few) {
          group.setAttribute("tabindex", "0");
          group.setAttribute("role", "button");
          group.setAttribute("aria-label", mark.label);
          group.addEventListener("keydown", (event) => {
            if (event.key !== "Enter" && event.key !== " ") return;
            event.preventDefault();
            pick();
          });
        }
      }
      svg.append(group);
    };
    const wide = Math.max(1.5, Math.min(9, (width - left - RIGHT) / Math.max(1, data.end - data.start) - 2));
    for (const step of data.steps) {
      const at = { x: x(step.step) - wide / 2, y: y(step.device) - 8, width: wide, height: 16, rx: 1.5 };
      add(step, [element("rect", { ...at, class: step.phase })]);
    }
    for (const copy of data.copies) {
      const [from, to, at] = [y(copy.source), y(copy.device), x(copy.step)];
      const up = to < from ? 1 : -1;
      add(copy, [
        element("rect", { x: at - 8, y: Math.min(from, to), width: 16, height: Math.abs(to - from), fill: "transparent" }),
        element("line", { class: `copy${copy.announced ? " announced" : ""}`, x1: at, x2: at, y1: from, y2: to + 6 * up }),
        element("path", { class: "copy", d: `M${at},${to} l-5,${9 * up} h10 z` }),
      ]);
    }
    place.replaceChildren(svg);
  };
  draw();
  watched.get(place)?.disconnect();
  let before = place.clientWidth;
  const watcher = new ResizeObserver(() => {
    if (place.clientWidth !== before) {
      before = place.clientWidth;
      draw();
    }
  });
  watcher.observe(place);
  watched.set(place, watcher);
}
