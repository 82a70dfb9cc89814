// A table whose rows stand for nodes: a click on a row selects its node, a click on a title sorts.
const orders = new WeakMap();

// A long text may break after a dot, a slash or an underscore; a number and a short text may not.
function breakable(text, kind) {
  if (!kind.startsWith("text")) return [text];
  return text.split(/(?<=[/_]|\.(?!\d))/).flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));
}

export default function ({ data: [data], parentElement, setTriggerValue }) {
  const place = parentElement.querySelector(".linked");
  const draw = () => {
    const order = orders.get(place);
    const rows = data.rows.map((cells, index) => ({ cells, node: data.nodes[index], index }));
    if (order && order.column < data.columns.length) {
      const value = (row) => row.cells[order.column]?.[1] ?? row.cells[order.column]?.[0] ?? "";
      rows.sort((a, b) => {
        const [one, other] = [value(a), value(b)];
        const first = typeof one === "number" && typeof other === "number"
          ? one - other : String(one).localeCompare(String(other));
        return order.down ? -first : first;
      });
    }
    const table = document.createElement("table");
    table.setAttribute("aria-label", data.label);
    const head = table.createTHead().insertRow();
    data.columns.forEach((column, index) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = column.kind;
      const sorted = order?.column === index;
      if (sorted) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      const button = document.createElement("button");
      button.textContent = column.name + (sorted ? (order.down ? " ↓" : " ↑") : "");
      button.title = column.help;
      button.onclick = () => {
        orders.set(place, { column: index, down: sorted && !order.down });
        draw();
      };
      cell.append(button);
      head.append(cell);
    });
    const body = table.createTBody();
    for (const { cells, node, index } of rows) {
      const row = body.insertRow();
      row.title = data.columns.map(({ name }, column) => `${name}: ${cells[column][0]}`).join("\n");
      const selectable = node !== null;
      if (data.announced?.includes(index)) row.classList.add("announced");
      if (selectable) {
        row.dataset.node = node;
        row.onclick = () => setTriggerValue("picked", { node: node === data.selected ? null : node });
      }
      const selected = selectable && node === data.selected;
      if (selected) {
        row.classList.add("selected");
        row.setAttribute("aria-current", "true");
      }
      cells.forEach(([text], column) => {
        const cell = row.insertCell();
        const kind = (cell.className = data.columns[column].kind);
        if (column === 0 && selectable) {
          const button = document.createElement("button");
          button.append(...breakable(text || "–", kind));
          button.setAttribute("aria-pressed", String(selected));
          cell.append(button);
        } else cell.append(...breakable(text, kind));
      });
    }
    place.replaceChildren(table);
  };
  draw();
}
