// Faults to plant in a sound page, each with the check that must see it.

const WIDE = { theme: 'light', width: 1280 };
const PHONE = { theme: 'light', width: 390 };
const DARK = { theme: 'dark', width: 1280 };

const MARKS = 'every figure has marks that can be seen';
const WORDS = 'words in figures keep inside and apart';

const style = (css) => (html) => html.replace('</head>', `<style>${css}</style></head>`);
// A foreign script runs only without the page's policy.
const open = (html) => html.replace(/<meta http-equiv="Content-Security-Policy"[^>]*>/, '');
const script = (code) => (html) => open(html).replace('</body>', `<script>${code}</script></body>`);
const mute = (call) => (html) => open(html).replace(call, '');
const inDrawing = (svg) => (html) => html.replace('</svg>', `${svg}</svg>`);

export const faults = [
  { name: 'a drawing without marks', check: MARKS, view: WIDE, plant: (html) => html.replace(/<svg class="chart"[\s\S]*?<\/svg>/, (svg) => svg.replaceAll('class="mark ', 'class="')) },
  { name: 'marks of no size', check: MARKS, view: WIDE, plant: (html) => html.replace(/(<rect class="mark [^>]*width=")[^"]*/g, '$10') },
  { name: 'marks without colour', check: MARKS, view: WIDE, plant: style('.mark { fill: none; stroke: none; }') },
  { name: 'a mark outside of its drawing', check: MARKS, view: WIDE, plant: inDrawing('<circle class="mark fill blue" cx="900" cy="10" r="5"/>') },
  { name: 'a place that is not a number', check: MARKS, view: WIDE, plant: inDrawing('<text x="NaN" y="10">x</text>') },
  { name: 'a figure without a drawing', check: MARKS, view: WIDE, plant: (html) => html.replace(/<svg class="chart"[\s\S]*?<\/svg>/, '') },
  { name: 'words that leave their drawing', check: WORDS, view: WIDE, plant: inDrawing('<text x="440" y="60">words that go on</text>') },
  { name: 'words over words', check: WORDS, view: WIDE, plant: inDrawing('<text x="90" y="80">one</text><text x="92" y="81">two</text>') },
  { name: 'words too small for a phone', check: WORDS, view: PHONE, plant: style('svg text { font-size: 8px !important; }') },
  { name: 'something wide', check: 'nothing is wider than the page', view: PHONE, plant: style('h1 { width: 700px; }') },
  { name: 'no dark theme', check: 'the background follows the theme', view: DARK, plant: (html) => html.replaceAll('prefers-color-scheme: dark', 'prefers-color-scheme: none') },
  { name: 'pale words', check: 'words stand out from their background', view: WIDE, plant: style('figcaption { color: #999 !important; }') },
  { name: 'pale axes in the dark', check: 'words stand out from their background', view: DARK, plant: style('svg text { fill: #555 !important; }') },
  { name: 'a message on the console', check: 'the console is silent', view: WIDE, plant: script('console.warn("look")') },
  { name: 'a script that fails', check: 'no script fails', view: WIDE, plant: script('throw new Error("no")') },
  { name: 'a foreign script under the policy', check: 'the console is silent', view: WIDE, plant: (html) => html.replace('</body>', '<script>0</script></body>') },
  { name: 'no readout', check: 'pointing shows a value', view: WIDE, plant: mute('box.hidden = false;') },
  { name: 'no zoom', check: 'dragging zooms', view: WIDE, plant: mute('svg.insertBefore(part, cursor);') },
  { name: 'a legend without effect', check: 'a legend hides and shows', view: WIDE, plant: mute("mark.classList.toggle('off', off)") },
  { name: 'a button that needs a script', check: 'it can be read without a script', view: WIDE, plant: (html) => html.replace('</main>', '<button>zoom</button></main>') },
  { name: 'a request', check: 'it asks for nothing but itself', view: WIDE, plant: script('new Image().src = "https://example.invalid/x.png"') },
  { name: 'a dark print', check: 'it prints', view: WIDE, plant: style('@media print { body { background: #111 !important; } }') },
  { name: 'a drawing higher than a sheet', check: 'it prints', view: WIDE, plant: style('svg.chart { height: 1200px !important; max-height: none !important; }') },
];
