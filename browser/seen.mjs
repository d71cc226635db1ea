// What is looked for in a page. These functions run inside of it, so each stands alone; each returns problems.

// The page must not scroll sideways.
export function wider() {
  const { scrollWidth } = document.documentElement;
  if (scrollWidth <= window.innerWidth) return [];
  const inBox = (one) => one.parentElement?.closest('.scroll');
  const wide = [...document.querySelectorAll('body *')].filter(
    (one) => one.getBoundingClientRect().right > window.innerWidth + 1 && !inBox(one),
  );
  const name = (one) => `${one.tagName.toLowerCase()}.${one.getAttribute('class') ?? ''}`;
  return [`${scrollWidth} px wide in a window of ${window.innerWidth}: ${wide.slice(0, 4).map(name).join(', ')}`];
}

export function marks() {
  const problems = [];
  const figures = [...document.querySelectorAll('[data-figure]')];
  if (figures.length === 0) problems.push('there is no figure');
  const shows = (colour, opacity) => {
    const parts = colour.match(/[\d.]+/g)?.map(Number);
    return Boolean(parts) && (parts[3] ?? 1) * Number(opacity) > 0.05;
  };
  for (const figure of figures) {
    const name = figure.dataset.figure;
    if (!figure.querySelector('figcaption')?.textContent.trim()) problems.push(`${name}: no caption`);
    const drawings = [...figure.querySelectorAll('svg')];
    if (drawings.length === 0) problems.push(`${name}: no drawing`);
    for (const svg of drawings) {
      if (/NaN|undefined|inf/.test(svg.outerHTML)) problems.push(`${name}: something is not a number`);
      if (svg.getAttribute('role') !== 'img' || !svg.getAttribute('aria-label')) {
        problems.push(`${name}: it does not say what it is`);
      }
      const frame = svg.getBoundingClientRect();
      const all = [...svg.querySelectorAll('.mark')];
      if (all.length === 0) problems.push(`${name}: no marks`);
      for (const mark of all) {
        const style = getComputedStyle(mark);
        const box = mark.getBoundingClientRect();
        const filled = style.fill !== 'none' && shows(style.fill, style.fillOpacity);
        const drawn =
          style.stroke !== 'none' && shows(style.stroke, style.strokeOpacity) && parseFloat(style.strokeWidth) > 0;
        const hidden = style.visibility !== 'visible' || style.display === 'none' || Number(style.opacity) < 0.05;
        const sized = (filled && box.width > 0 && box.height > 0) || (drawn && box.width + box.height > 0);
        const what = `${name}: <${mark.tagName} class="${mark.getAttribute('class')}">`;
        if (hidden || !(filled || drawn)) problems.push(`${what} cannot be seen`);
        else if (!sized) problems.push(`${what} has no size`);
        const inside =
          box.left >= frame.left - 2 &&
          box.right <= frame.right + 2 &&
          box.top >= frame.top - 2 &&
          box.bottom <= frame.bottom + 2;
        if (!inside) problems.push(`${what} leaves its drawing`);
      }
    }
  }
  return problems;
}

export function words() {
  const problems = [];
  for (const svg of document.querySelectorAll('[data-figure] svg')) {
    const name = svg.closest('[data-figure]').dataset.figure;
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map((text) => [text, text.getBoundingClientRect()]);
    texts.forEach(([text, box], place) => {
      const out = Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
      if (out > 0.5) problems.push(`${name}: '${text.textContent}' leaves its drawing by ${out.toFixed(1)} px`);
      const size = parseFloat(getComputedStyle(text).fontSize) * (frame.width / svg.viewBox.baseVal.width);
      if (size < 9) problems.push(`${name}: '${text.textContent}' is ${size.toFixed(1)} px high`);
      for (const [other, its] of texts.slice(place + 1)) {
        const wide = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        // Boxes of words are higher than the words.
        const high = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (wide > 0.5 && high > 0.3 * box.height) {
          problems.push(`${name}: '${text.textContent}' lies over '${other.textContent}'`);
        }
      }
    });
  }
  return problems;
}

export function background(theme) {
  const light = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
  const colour = getComputedStyle(document.body).backgroundColor;
  const parts = colour.match(/[\d.]+/g).map(Number);
  if (parts[3] === 0) return [`the page has no background in the ${theme} theme`];
  const right = theme === 'dark' ? light(parts) < 0.2 : light(parts) > 0.8;
  return right ? [] : [`the ${theme} theme has the background ${colour}`];
}

// WCAG 2 AA: 4.5 to 1, of all words that are shown.
export function contrast() {
  const problems = new Map();
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (upper, lower) => {
    const mix = (name) => upper[name] * upper.a + lower[name] * (1 - upper.a);
    return { r: mix('r'), g: mix('g'), b: mix('b'), a: 1 };
  };
  const luminance = ({ r, g, b }) => {
    const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const behind = (one) => {
    const layers = [];
    for (let at = one; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((lower, upper) => over(upper, lower), { r: 255, g: 255, b: 255, a: 1 });
  };
  const speaks = (one) => [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  let looked = 0;
  for (const one of document.querySelectorAll('body *')) {
    if (!speaks(one) || one.closest('title, script, style, [aria-hidden="true"]') || !one.checkVisibility()) continue;
    const style = getComputedStyle(one);
    const ground = behind(one);
    const ink = over(parse(one instanceof SVGElement ? style.fill : style.color), ground);
    const [high, low] = [luminance(ink), luminance(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    looked += 1;
    if (ratio < 4.5) problems.set(`<${one.tagName}> '${one.textContent.trim().slice(0, 40)}': ${ratio.toFixed(2)} to 1`);
  }
  return looked > 0 ? [...problems.keys()] : ['there are no words'];
}

// On paper no drawing may be higher than a sheet, and nothing may stay folded.
export function cut(height) {
  const problems = [];
  for (const svg of document.querySelectorAll('[data-figure] svg')) {
    const box = svg.getBoundingClientRect();
    const name = svg.closest('[data-figure]').dataset.figure;
    if (box.height > height) problems.push(`${name}: ${box.height.toFixed(0)} px do not fit on a sheet`);
    if (box.height === 0 || !svg.checkVisibility({ contentVisibilityAuto: true })) problems.push(`${name}: not printed`);
  }
  return problems;
}
