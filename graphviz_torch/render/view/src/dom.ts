// Create elements. Text from a graph is only used in text nodes and values of attributes, never as markup.

type Attributes = Record<string, string | number>;
type Child = Node | string;

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

function fill<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

export function button(label: string, title: string, press: () => void): HTMLButtonElement {
  const element = html("button", { type: "button", title, "aria-label": title }, label);
  element.addEventListener("click", press);
  return element;
}
