// Export the current picture as SVG with inline styles, or as PNG.

const LOOKS = [
  "display", "fill", "fill-opacity", "font-family", "font-size", "font-weight", "marker-end", "opacity",
  "paint-order", "stroke", "stroke-dasharray", "stroke-linejoin", "stroke-opacity", "stroke-width", "text-anchor",
];
const MARGIN = 16;
const MOST_PIXELS = 40e6;
const MOST_SIDE = 16000;
// Control characters and bidirectional characters, which XML forbids or viewers interpret.
const OBEYED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]/g;

export function toSvg(drawing: SVGSVGElement, world: { width: number; height: number }, background: string, title: string): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const originals = drawing.querySelectorAll("*");
  const controls = [...copy.querySelectorAll(".hit, .sign-button")];
  copy.querySelectorAll("*").forEach((element, at) => {
    if (element instanceof SVGTitleElement) return;
    const style = getComputedStyle(originals[at] as Element);
    for (const look of LOOKS) {
      const value = style.getPropertyValue(look);
      // A marker is referenced by its id only, without the address of the page.
      if (value && value !== "none") element.setAttribute(look, value.replace(/url\(".*?(#[\w-]+)"\)/, "url($1)"));
      else if (look === "fill" || look === "display") element.setAttribute(look, value);
    }
    for (const name of ["class", "style", "tabindex"]) element.removeAttribute(name);
    for (const name of Object.keys((element as SVGElement).dataset)) delete (element as SVGElement).dataset[name];
  });
  for (const control of controls) control.remove();
  const [width, height] = [world.width + 2 * MARGIN, world.height + 2 * MARGIN];
  copy.querySelector(":scope > g")?.removeAttribute("transform");
  for (const name of [...copy.getAttributeNames()]) copy.removeAttribute(name);
  const box = `${-MARGIN} ${-MARGIN} ${width} ${height}`;
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", viewBox: box, width, height })) copy.setAttribute(name, String(value));
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x: -MARGIN, y: -MARGIN, width, height, fill: background })) ground.setAttribute(name, String(value));
  const named = document.createElementNS("http://www.w3.org/2000/svg", "title");
  named.textContent = title;
  copy.prepend(named, ground);
  return new XMLSerializer().serializeToString(copy).replace(OBEYED, "\ufffd");
}

/** The picture as PNG at twice its size, as far as the maximum size of a canvas allows. */
export async function toPng(svg: string): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const { width, height } = image;
  const scale = Math.min(2, Math.sqrt(MOST_PIXELS / (width * height)), MOST_SIDE / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.floor(width * scale);
  canvas.height = Math.floor(height * scale);
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The picture is too large for this browser."))), "image/png"),
  );
}

export function save(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
