// Bundle src/ into dist/view.js: one ES module that exports `mount` and contains its styles.
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const common = { bundle: true, minify: true, target: "es2022", legalComments: "inline" };

// The layout runs in a worker, which is created from text, or in the page if workers are forbidden. One
// function without outer names serves both, so that the bundle contains dagre only once.
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
  // Code that follows in the same script needs a name that is not minified.
  footer: { js: "const mount = view.mount;\nexport { mount };" },
});
