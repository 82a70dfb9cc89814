// Write numbers, tensors and names as text, like graph/units.py in Python. tests/golden/units.json
// contains test cases for both.

import type { Meta } from "./model";

const UNITS = ["KiB", "MiB", "GiB", "TiB"];
const TIMES: [string, number][] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]];
const SHORT: Record<string, string> = { float: "f", complex: "c", int: "i", uint: "u", qint: "q", quint: "qu" };

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  let [size, unit] = [count / 1024, 0];
  for (; size >= 999.5 && unit < UNITS.length - 1; unit++) size /= 1024;
  return `${size < 99.95 ? size.toFixed(1) : size.toFixed(0)} ${UNITS[unit]}`;
}

export function seconds(value: number): string {
  if (value === 0) return "0 s";
  const [unit, size] = TIMES.find(([, size]) => value >= 0.9995 * size) ?? ["ns", 1e-9];
  return `${number(value / size, 3)} ${unit}`;
}

export function number(value: number, digits = 4): string {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

export function count(value: number, noun: string): string {
  return `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;
}

/** The elements of a small gradient as text, nested by its shape: [2, 2.667, 3.333]. */
export function tensor(values: readonly (number | string)[], shape: readonly number[]): string {
  const texts = values.map((v) => (typeof v === "string" ? v : number(v)));
  if (shape.length === 0) return texts[0] ?? "";
  const nest = (from: number, to: number, depth: number): string => {
    const parts = shape[depth] ?? 1;
    if (depth >= shape.length - 1 || parts <= 0) return `[${texts.slice(from, to).join(", ")}]`;
    const step = (to - from) / parts;
    const rows = Array.from({ length: parts }, (_, row) => nest(from + row * step, from + (row + 1) * step, depth + 1));
    return `[${rows.join(", ")}]`;
  };
  return nest(0, texts.length, 0);
}

/** True if an element is NaN or infinite. The payload contains such elements as text. */
export function isSpoilt(values: readonly (number | string)[]): boolean {
  return values.some((value) => typeof value === "string" && /nan|inf/i.test(value));
}

/** The text in one line; line breaks become a symbol. */
export function inLine(text: string): string {
  return text.replaceAll(/[\n\r\u2028\u2029]+/g, "⏎");
}

export function shorten(long: string, most: number): string {
  const text = inLine(long);
  return text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}`;
}

export function dtype(name: string): string {
  if (name === "bfloat16") return "bf16";
  const match = /^([a-z]+)(\d+)(_\w+)?$/.exec(name);
  const letter = match && SHORT[match[1] as string];
  return match && letter ? letter + match[2] + (match[3] ?? "").replaceAll("_", "") : name;
}

export function shaped(meta: Meta): string {
  return `${dtype(meta.dtype)}[${meta.shape.join(", ")}]`;
}
