// What the page's script must do when a reader points, drags, clicks and types. Each returns problems.

const centre = async (handle) => {
  const box = await handle.boundingBox();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2, ...{ box } };
};

const read = (page) => page.evaluate(() => [...document.querySelectorAll('.readout')].find((box) => !box.hidden)?.textContent ?? null);

// Pointing at a figure, or walking through it with the keyboard, shows the nearest value.
export async function hover(page) {
  const problems = [];
  const drawings = await page.$$('[data-figure] svg');
  const names = new Set();
  for (const svg of drawings) {
    const name = await svg.evaluate((one) => one.closest('[data-figure]').dataset.figure);
    if (names.has(name)) continue; // One of each kind tells.
    names.add(name);
    const mark = (await svg.$('[data-says]')) ?? (await svg.$('.line'));
    if (!mark) continue;
    await mark.evaluate((one) => one.scrollIntoView({ block: 'center' }));
    const { x, y } = await centre(mark);
    await page.mouse.move(x, y);
    const said = await read(page);
    if (!said || !/\d/.test(said)) problems.push(`${name}: pointing at a mark shows '${said}'`);
    const inside = await page.evaluate(() => {
      const box = [...document.querySelectorAll('.readout')].find((one) => !one.hidden)?.getBoundingClientRect();
      return !box || (box.left >= -1 && box.right <= innerWidth + 1);
    });
    if (!inside) problems.push(`${name}: its readout leaves the page`);
    await page.mouse.move(1, 1);
    if (await read(page)) problems.push(`${name}: the readout stays when the pointer leaves`);
  }
  const first = drawings[0];
  await first?.evaluate((one) => one.focus());
  await page.keyboard.press('ArrowRight');
  if (first && !(await read(page))) problems.push('an arrow key shows no value');
  await page.keyboard.press('Escape');
  if (await read(page)) problems.push('Escape does not hide the readout');
  return problems;
}

const ticks = (svg) =>
  svg.evaluate((one) => [...one.querySelectorAll('text')].filter((text) => text.checkVisibility()).map((text) => text.textContent).join(' '));

// Dragging over step times draws that part of them; a double click, Escape and the button show all again.
export async function zoom(page) {
  const problems = [];
  for (const svg of (await page.$$('svg[data-steps]')).slice(0, 1)) {
    if (await svg.evaluate((one) => one.dataset.steps.split('|')[4].split(' ').length < 8)) continue;
    await svg.evaluate((one) => one.scrollIntoView({ block: 'center' }));
    const { box } = await centre(svg);
    const before = await ticks(svg);
    const drag = async () => {
      await page.mouse.move(box.x + 0.4 * box.width, box.y + box.height / 2);
      await page.mouse.down();
      await page.mouse.move(box.x + 0.7 * box.width, box.y + box.height / 2, { steps: 4 });
      await page.mouse.up();
    };
    const ways = {
      'a double click': () => page.mouse.click(box.x + box.width / 2, box.y + box.height / 2, { count: 2 }),
      Escape: async () => {
        await svg.evaluate((one) => one.focus());
        await page.keyboard.press('Escape');
      },
      'the button': async () => (await svg.evaluateHandle((one) => one.parentElement.querySelector('.reset'))).click(),
    };
    for (const [name, undo] of Object.entries(ways)) {
      await drag();
      if ((await ticks(svg)) === before) problems.push('dragging does not change the axis');
      const drawn = await svg.evaluate((one) => {
        const line = one.querySelector('.part .line');
        const [left, top, right, bottom] = one.dataset.frame.split(' ').map(Number);
        const box = line?.getBBox();
        return Boolean(box) && box.width > 0 && box.x >= left - 1 && box.x + box.width <= right + 1 && box.y >= top - 1 && box.y + box.height <= bottom + 1;
      });
      if (!drawn) problems.push('the part is not drawn inside of its axes');
      await undo();
      if ((await ticks(svg)) !== before) problems.push(`${name} does not show all steps again`);
    }
  }
  return problems;
}

// Clicking a legend's entry hides its marks, and shows them again.
export function toggle(page) {
  return page.evaluate(() => {
    const problems = [];
    for (const button of document.querySelectorAll('.legend button')) {
      const figure = button.closest('figure');
      const marks = [...figure.querySelectorAll(button.parentElement.dataset.hides)];
      const shown = () => marks.filter((mark) => mark.checkVisibility()).length;
      const name = `${figure.dataset.figure}, ${button.textContent}`;
      const before = shown();
      button.click();
      if (before > 0 && shown() !== 0) problems.push(`${name}: not hidden`);
      button.click();
      if (shown() !== before) problems.push(`${name}: not shown again`);
    }
    return problems;
  });
}
