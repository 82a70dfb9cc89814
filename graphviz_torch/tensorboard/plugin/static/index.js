// The "Autograd" tab: choose a run, a graph and a step; the interactive view does the rest.
const STYLE = `
  html, body { margin: 0; height: 100%; }
  body { display: flex; flex-direction: column; font: 14px Roboto, system-ui, sans-serif; }
  form { display: flex; flex-wrap: wrap; gap: 8px 20px; align-items: center; padding: 8px 14px;
         background: #f5f5f5; color: #212121; border-bottom: 1px solid #ddd; }
  label { display: flex; gap: 8px; align-items: center; }
  select { max-width: 26em; font: inherit; }
  input[type="range"] { width: 14em; }
  output { min-width: 5em; font-variant-numeric: tabular-nums; }
  #view { flex: 1; min-height: 0; position: relative; }
  #message { padding: 24px 14px; max-width: 45em; white-space: pre-wrap; }
`;

function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

async function get(path, parameters = {}) {
  const url = new URL(path, import.meta.url);
  for (const [key, value] of Object.entries(parameters)) url.searchParams.set(key, value);
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

function fill(select, names) {
  const before = select.value;
  select.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name || "." })));
  if (names.includes(before)) select.value = before;
}

// Called by TensorBoard once, in a frame of its own.
export async function render() {
  const run = element("select", { id: "run" });
  const tag = element("select", { id: "tag" });
  const slider = element("input", { id: "step", type: "range", min: 0, step: 1 });
  const shown = element("output", { htmlFor: "step" });
  const view = element("div", { id: "view" });
  const message = element("div", { id: "message", hidden: true });
  const form = element("form", {}, [
    element("label", { textContent: "Run " }, [run]),
    element("label", { textContent: "Graph " }, [tag]),
    element("label", { textContent: "Step " }, [slider, shown]),
  ]);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.head.append(element("style", { textContent: STYLE }));
  document.body.replaceChildren(form, message, view);

  let graphs = {};
  let mounted = null;
  let asked = 0;

  function say(text) {
    message.textContent = text;
    message.hidden = !text;
    view.hidden = !!text;
  }

  const steps = () => graphs[run.value]?.[tag.value] ?? [];

  async function show() {
    const step = steps()[slider.value];
    shown.textContent = step ?? "";
    if (step === undefined) return;
    const number = ++asked;
    try {
      const [{ mount }, answer] = await Promise.all([
        import(new URL("view.js", import.meta.url).href),
        get("graph", { run: run.value, tag: tag.value, step }),
      ]);
      const payload = await answer.text();
      if (number !== asked) return; // the slider has moved on
      mounted?.destroy?.();
      view.replaceChildren();
      say("");
      // Keys work without a click. The security policy of TensorBoard forbids workers.
      mounted = mount(view, payload, { page: true, workers: false });
    } catch (error) {
      if (number === asked) say(String(error.message ?? error));
    }
  }

  function chooseTag() {
    const last = steps().length - 1;
    slider.max = Math.max(last, 0);
    slider.value = last;
    slider.disabled = last < 1;
    return show();
  }

  function chooseRun() {
    fill(tag, Object.keys(graphs[run.value] ?? {}).sort());
    return chooseTag();
  }

  run.addEventListener("change", chooseRun);
  tag.addEventListener("change", chooseTag);
  slider.addEventListener("input", show);

  try {
    graphs = await (await get("graphs")).json();
  } catch (error) {
    say(String(error.message ?? error));
    return;
  }
  const runs = Object.keys(graphs).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  fill(run, runs);
  if (!runs.length) {
    form.hidden = true;
    say("No graph here yet. Write one with\n\n    to_tensorboard(graph, logdir)\n\nand reload the page.");
    return;
  }
  await chooseRun();
}
