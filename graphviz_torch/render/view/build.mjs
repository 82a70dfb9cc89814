// Bundles src/ into dist/view.js: one ES module that exports `mount`, with its styles inside.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const common = { bundle: true, minify: true, target: "es2022", legalComments: "inline" };

// The layout runs in a worker made from a text, and on the page where workers are forbidden. As one
// function without outer names it serves both, and dagre is in the bundle once.
const layout = {
  name: "layout",
  setup(plugin) {
    plugin.onLoad({ filter: /[\\/]src[\\/]layout[\\/]layout\.ts$/ }, async ({ path }) => {
      const inner = await build({
        ...common,
        entryPoints: [path],
        format: "iife",
        globalName: "inner",
        write: false,
      });
      const text = inner.outputFiles[0].text;
      return { contents: `export function layout(){${text}\nreturn inner.layout();}` };
    });
  },
};

const licences = ["@dagrejs/dagre", "@dagrejs/graphlib", "d3-zoom"].map((name) => {
  const text = readFileSync(new URL(`node_modules/${name}/LICENSE`, import.meta.url), "utf8");
  return `${name}\n\n${text.trim()}`;
});

await build({
  ...common,
  entryPoints: ["src/main.ts"],
  outfile: "dist/view.js",
  format: "iife",
  globalName: "view",
  plugins: [layout],
  alias: { "d3-transition": "./src/drawing/stills.ts", "d3-interpolate": "./src/drawing/stills.ts" },
  loader: { ".css": "text" },
  banner: { js: `/*! graphviz_torch's view. Bundled with it:\n\n${licences.join("\n\n").replaceAll("*/", "* /")}\n*/` },
  // A plain name for what follows in the same script; minified names would be taken away.
  footer: { js: "const mount = view.mount;\nexport { mount };" },
});
