// The language of buttons, headings and labels. Texts of the graph are never translated.

let words: Readonly<Record<string, string>> = {};

/** Use these translations from now on; a text that is missing stays English. */
export function setLanguage(translations: Readonly<Record<string, string>>): void {
  words = translations;
}

/** A text of the view in the selected language, with each "{}" replaced by the next value. */
export function say(text: string, ...values: (string | number)[]): string {
  let next = 0;
  return (Object.hasOwn(words, text) ? (words[text] as string) : text).replaceAll("{}", () => String(values[next++] ?? ""));
}

/** The title in the selected language; a title that the caller chose is returned unchanged. */
export function titled(title: string): string {
  const start = "Autograd graph of ";
  if (title.startsWith(start)) return say("Autograd graph of {}", title.slice(start.length));
  return title === "" || title === "Autograd graph" ? say("Autograd graph") : title;
}
