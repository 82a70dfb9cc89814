// The lines of a program, each with its value. Clicks on a line select the nodes that it created, one after the other.
export default function ({ data: [data], parentElement, setTriggerValue }) {
  const place = parentElement.querySelector(".linked");
  const list = document.createElement("ol");
  list.setAttribute("aria-label", data.label);
  if (data.height) list.style.setProperty("--height", `${data.height}px`);
  list.tabIndex = data.height ? 0 : -1;
  let marked = null;
  for (const { number, text, nodes, value, kind } of data.lines) {
    const item = document.createElement("li");
    item.className = kind;
    const line = document.createElement(nodes.length ? "button" : "div");
    const [count, code] = [document.createElement("span"), document.createElement("span")];
    count.className = "line";
    count.textContent = number ?? "";
    count.setAttribute("aria-hidden", "true");
    code.className = "code";
    code.textContent = text || " ";
    if (value) {
      const shown = document.createElement("span");
      shown.className = /NaN|Inf/.test(value) ? "value wrong" : "value";
      shown.textContent = value;
      code.append(" ", shown);
    }
    line.append(count, code);
    if (nodes.length) {
      item.dataset.node = nodes[0];
      const at = nodes.indexOf(data.selected);
      line.setAttribute("aria-pressed", String(at >= 0));
      if (at >= 0) {
        item.classList.add("selected");
        marked = item;
      }
      line.onclick = () => setTriggerValue("picked", { node: nodes[at + 1] ?? null });
    }
    item.append(line);
    list.append(item);
  }
  const scrolled = place.firstElementChild?.scrollTop ?? 0;
  place.replaceChildren(list);
  list.scrollTop = scrolled;
  if (marked && data.height) {
    const [top, bottom] = [marked.offsetTop - list.offsetTop, list.scrollTop + list.clientHeight];
    if (top < list.scrollTop || top > bottom - 20) list.scrollTop = top - list.clientHeight / 2;
  }
}
