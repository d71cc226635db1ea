// Looks at pages in a browser, and at broken copies of the first one: a check that cannot fail checks nothing.
//
//   CHROMIUM=... node check.mjs [--screenshots DIR] report.html...

import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import puppeteer from 'puppeteer-core';

import { faults } from './faults.mjs';
import * as seen from './seen.mjs';
import * as touched from './touched.mjs';

const VIEWS = [
  { theme: 'light', width: 1280 },
  { theme: 'light', width: 390 },
  { theme: 'dark', width: 1280 },
  { theme: 'dark', width: 390 },
];

// A4 less its margins of 14 mm, in CSS pixels.
const PAPER = { width: 688, height: 1016 };

const options = { screenshots: null, pages: [] };
for (let args = process.argv.slice(2); args.length > 0; ) {
  const arg = args.shift();
  if (arg === '--screenshots') options.screenshots = args.shift();
  else options.pages.push(arg);
}
if (options.pages.length === 0) {
  console.error('usage: check.mjs [--screenshots DIR] report.html...');
  process.exit(2);
}

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? 'chromium',
  headless: true,
  args: ['--no-sandbox', '--disable-dev-shm-usage'],
});
const tally = { passed: 0, failed: 0 };
try {
  for (const path of options.pages) {
    for (const view of VIEWS) await report(path, view);
  }
  if (tally.failed === 0) await testChecks(options.pages[0]);
} finally {
  await browser.close();
}
console.log(`${tally.passed} passed, ${tally.failed} failed`);
process.exit(tally.failed === 0 ? 0 : 1);

function count(name, problems) {
  if (problems.length === 0) {
    tally.passed += 1;
    return;
  }
  tally.failed += 1;
  console.log(`FAILED ${name}`);
  for (const problem of problems.slice(0, 5)) console.log(`    ${problem}`);
  if (problems.length > 5) console.log(`    and ${problems.length - 5} more`);
}

async function report(path, view) {
  const shots = options.screenshots && join(options.screenshots, `${label(path)}-${view.theme}-${view.width}`);
  const results = await look(path, view, { shots });
  for (const [name, problems] of Object.entries(results)) {
    count(`${path}, ${view.theme}, ${view.width} px: ${name}`, problems);
  }
}

// Reports are all called report.html; their folder tells them apart.
function label(path) {
  const name = basename(path, '.html');
  return name === 'report' ? basename(dirname(path)) : name;
}

// All checks of one view: names, each with the problems it found.
async function look(path, { theme, width }, { shots = null, only = null } = {}) {
  const page = await browser.newPage();
  const url = pathToFileURL(path).href;
  const [said, threw, asked] = [[], [], []];
  page.on('console', (message) => {
    if (['error', 'warn', 'warning', 'assert'].includes(message.type())) said.push(message.text());
  });
  page.on('pageerror', (error) => threw.push(String(error)));
  page.on('request', (request) => {
    if (request.url() !== url) asked.push(request.url().slice(0, 200));
  });
  try {
    await page.setViewport({ width, height: 900 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: theme }]);
    await page.goto(url, { waitUntil: 'networkidle0' });
    const closed = await page.evaluate(seen.wider);
    await page.evaluate(() => document.querySelectorAll('details').forEach((one) => (one.open = true)));
    const results = {
      'nothing is wider than the page': [...closed, ...(await page.evaluate(seen.wider))],
      'every figure has marks that can be seen': await page.evaluate(seen.marks),
      'words in figures keep inside and apart': await page.evaluate(seen.words),
      'the background follows the theme': await page.evaluate(seen.background, theme),
      'words stand out from their background': await page.evaluate(seen.contrast),
    };
    if (shots) await page.screenshot({ path: `${shots}.png`, fullPage: true });
    const later = {
      'pointing shows a value': () => touched.hover(page),
      'dragging zooms': () => touched.zoom(page),
      'a legend hides and shows': () => touched.toggle(page),
      'it can be read without a script': () => plain(url, { theme, width }),
      'it prints': () => print(page, shots),
    };
    for (const [name, check] of Object.entries(later)) {
      // These take time; a test of one check does without the others.
      if (only === null || only === name) results[name] = await check();
    }
    return {
      ...results,
      'the console is silent': said,
      'no script fails': threw,
      'it asks for nothing but itself': asked,
    };
  } finally {
    await page.close();
  }
}

// The same page in a browser that runs no scripts.
async function plain(url, { theme, width }) {
  const page = await browser.newPage();
  try {
    await page.setJavaScriptEnabled(false);
    await page.setViewport({ width, height: 900 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: theme }]);
    await page.goto(url, { waitUntil: 'networkidle0' });
    const promises = await page.evaluate(() => [...document.querySelectorAll('button, .hint, .readout')].map((one) => one.textContent));
    return [
      ...(await page.evaluate(seen.wider)),
      ...(await page.evaluate(seen.marks)),
      ...promises.map((text) => `it promises what only a script does: ${text}`),
    ];
  } finally {
    await page.close();
  }
}

async function print(page, shots) {
  await page.evaluate(() => document.querySelectorAll('details').forEach((one) => (one.open = false)));
  await page.setViewport({ ...PAPER });
  await page.emulateMediaType('print');
  const problems = [
    ...(await page.evaluate(seen.wider)),
    ...(await page.evaluate(seen.background, 'light')),
    ...(await page.evaluate(seen.contrast)),
    ...(await page.evaluate(seen.cut, PAPER.height)),
  ];
  const pdf = Buffer.from(await page.pdf({ preferCSSPageSize: true, printBackground: true }));
  const sheets = pdf.toString('latin1').match(/\/Type\s*\/Page\b(?!s)/g)?.length ?? 0;
  if (sheets === 0) problems.push('the PDF has no page');
  if (shots) await writeFile(`${shots}.pdf`, pdf);
  return problems;
}

// Breaks copies of a page, one fault each, and expects the check that is there for it to see it.
async function testChecks(path) {
  const folder = await mkdtemp(join(tmpdir(), 'paceline-faults-'));
  try {
    const sound = await readFile(path, 'utf8');
    for (const { name, check, view, plant } of faults) {
      const broken = plant(sound);
      const copy = join(folder, 'broken.html');
      await writeFile(copy, broken);
      const results = await look(copy, view, { only: check });
      const problems = [];
      if (broken === sound) problems.push('the fault could not be planted');
      if (!(check in results)) problems.push(`there is no check '${check}'`);
      else if (results[check].length === 0) problems.push(`'${check}' did not see it`);
      count(`self-test: ${name}`, problems);
    }
  } finally {
    await rm(folder, { recursive: true });
  }
}
