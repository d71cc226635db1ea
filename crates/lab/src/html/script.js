// Readouts, zoom and toggles for the figures of a report. The page says everything without it, too.
'use strict';
(() => {
  const REACH = 60; // How far from a point its readout still appears, in the drawing's units.
  const make = (svg, name, attributes) => {
    const one = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    return one;
  };
  const numbers = (text) => text.split(' ').map(Number);
  const round = (value) => Math.round(100 * value) / 100;
  const show = (value) => value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : 3);

  // The pointer's place in a drawing's own units.
  function place(svg, event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return { x: at.x, y: at.y };
  }

  // One box a figure or panel, which follows what is pointed at.
  function readout(svg) {
    const parent = svg.parentElement;
    parent.classList.add('reads');
    const box = document.createElement('output');
    box.className = 'readout';
    box.hidden = true;
    parent.append(box);
    const cursor = make(svg, 'circle', { class: 'cursor', r: 5, visibility: 'hidden' });
    svg.append(cursor);
    return {
      tell(item) {
        box.textContent = item.text;
        box.hidden = false;
        cursor.setAttribute('cx', item.x);
        cursor.setAttribute('cy', item.y);
        cursor.setAttribute('visibility', 'visible');
        const [frame, outer] = [svg.getBoundingClientRect(), parent.getBoundingClientRect()];
        const at = new DOMPoint(item.x, item.y).matrixTransform(svg.getScreenCTM());
        const left = at.x - outer.left - box.offsetWidth / 2;
        box.style.left = `${Math.max(0, Math.min(left, frame.width - box.offsetWidth))}px`;
        const above = at.y - outer.top - box.offsetHeight - 12;
        box.style.top = `${above < 0 ? at.y - outer.top + 16 : above}px`;
      },
      hide() {
        box.hidden = true;
        cursor.setAttribute('visibility', 'hidden');
      },
    };
  }

  // Marks that say something: points, bars, arrows.
  function marks(svg) {
    for (const title of svg.querySelectorAll('.mark:not(.shade) > title')) {
      title.parentElement.dataset.says = title.textContent;
      title.remove();
    }
    const all = [...svg.querySelectorAll('[data-says]')].map((mark) => {
      const box = mark.getBBox();
      const wide = mark.localName === 'rect' && !mark.classList.contains('dot');
      return { mark, box, wide, text: mark.dataset.says, x: box.x + box.width / 2, y: box.y + box.height / 2 };
    });
    for (const mark of svg.querySelectorAll('.line:not(.dashed, .whisker)')) all.push(...corners(svg, mark));
    const seen = () => all.filter(({ mark }) => !mark.classList.contains('off'));
    const away = ({ box }, { x, y }) =>
      Math.hypot(Math.max(box.x - x, 0, x - box.x - box.width), Math.max(box.y - y, 0, y - box.y - box.height));
    return {
      near(at) {
        const close = seen().map((item) => ({ item, far: away(item, at) }));
        const best = close.filter(({ item, far }) => far <= (item.wide ? 2 : REACH)).sort((a, b) => a.far - b.far - (b.item.line ? 4 : 0) + (a.item.line ? 4 : 0))[0];
        return best?.item;
      },
      list: () => seen().sort((a, b) => (a.wide ? a.y - b.y : 0) || a.x - b.x || b.y - a.y),
    };
  }

  // The corners of a line on two axes, read back from where they lie.
  function corners(svg, mark) {
    if (!svg.dataset.frame) return [];
    const [left, top, right, bottom] = numbers(svg.dataset.frame);
    const value = (name, part) => {
      const [low, high] = numbers(svg.dataset[name]);
      return svg.dataset[name].endsWith('log') ? low * (high / low) ** part : low + part * (high - low);
    };
    const [yName, xName] = [...svg.querySelectorAll('.unit')].map((one) => one.textContent);
    return mark.getAttribute('d').slice(1).split('L').map((corner) => {
      const [x, y] = numbers(corner);
      const values = [value('x', (x - left) / (right - left)), value('y', (bottom - y) / (bottom - top))];
      const text = `${xName} ${show(values[0]).replace(/\.\d*$/, '')}: ${show(values[1])} ${yName}`;
      return { mark, box: { x, y, width: 0, height: 0 }, wide: false, text, x, y, line: true };
    });
  }

  // Round numbers between two values, about as many as asked for.
  function ticks(low, high, room) {
    const least = (high - low) / room;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= 0.999 * least);
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const first = Math.ceil(low / step - 1e-9);
    const all = [];
    for (let number = first; number * step <= high + 1e-9 * step; number += 1) {
      all.push([number * step, (number * step).toFixed(places)]);
    }
    return all;
  }

  // Step times: a drawing that can be read at every point and drawn again for a part of its steps.
  function steps(svg, told) {
    const [unit, kind, every, counted, middle, least, most] = svg.dataset.steps.split('|');
    const data = { middle: numbers(middle), least: least && numbers(least), most: most && numbers(most) };
    const size = Number(every);
    const end = size * data.middle.length;
    const [left, top, right, bottom] = numbers(svg.dataset.frame);
    const whole = make(svg, 'g', { class: 'whole' });
    const cursor = svg.querySelector('.cursor');
    whole.append(...[...svg.childNodes].filter((one) => one.localName !== 'title' && one !== cursor));
    svg.insertBefore(whole, cursor);
    const all = { from: 0, to: end, y: numbers(svg.dataset.y) };
    let view = all;
    let part = null;
    const atX = (step) => left + ((right - left) * (step - view.from)) / (view.to - view.from);
    const atY = (value) => bottom - ((bottom - top) * (value - view.y[0])) / (view.y[1] - view.y[0]);
    const stepAt = (x) => view.from + ((x - left) / (right - left)) * (view.to - view.from);
    const range = () => [Math.floor(view.from / size), Math.min(Math.ceil(view.to / size), data.middle.length) - 1];

    function item(point) {
      const first = point * size;
      const value = data.middle[point];
      const name = size === 1 ? `step ${first}` : `steps ${first} to ${first + size - 1}`;
      const spread = data.least ? ` (${show(data.least[point])} .. ${show(data.most[point])})` : '';
      const y = Math.max(top, Math.min(bottom, atY(value)));
      const x = Math.max(left, Math.min(right, atX((point + 0.5) * size)));
      return { point, x, y, text: `${name}: ${size === 1 ? '' : `${kind} `}${show(value)} ${unit}${spread}` };
    }

    function draw() {
      part?.remove();
      part = null;
      whole.removeAttribute('display');
      reset.hidden = view === all;
      if (view === all) return;
      whole.setAttribute('display', 'none');
      const [first, last] = range();
      const shown = (list) => list.slice(first, last + 1);
      const low = Math.min(...shown(data.least ?? data.middle));
      const high = Math.max(...shown(data.most ?? data.middle));
      const margin = 0.08 * (high - low) || 0.1 * high || 1;
      view.y = [Math.max(0, low - margin), high + margin];
      part = make(svg, 'g', { class: 'part' });
      const add = (name, attributes, text = '') => {
        const one = make(svg, name, attributes);
        one.textContent = text;
        part.append(one);
      };
      for (const [value, name] of ticks(...view.y, 5)) {
        const y = round(atY(value));
        add('line', { class: 'grid', x1: left, x2: right, y1: y, y2: y });
        add('text', { x: left - 8, y: y + 4, 'text-anchor': 'end' }, name);
      }
      for (const [value, name] of ticks(view.from, view.to, 5).filter(([value]) => Number.isInteger(value))) {
        const x = round(atX(value));
        add('line', { class: 'axis', x1: x, x2: x, y1: bottom, y2: bottom + 4 });
        add('text', { x, y: bottom + 18, 'text-anchor': 'middle' }, name);
      }
      add('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom });
      add('text', { class: 'unit', x: 0, y: 13 }, unit);
      add('text', { class: 'unit', x: right, y: bottom + 37, 'text-anchor': 'end' }, 'step');
      const shade = Math.min(atX(Number(counted)), right) - left;
      if (shade > 0) add('rect', { class: 'mark shade', x: left, y: top, width: round(shade), height: bottom - top });
      const corner = (point, value) => `${round(Math.max(left, Math.min(right, atX((point + 0.5) * size))))} ${round(atY(value))}`;
      const path = (list) => shown(list).map((value, place) => corner(first + place, value));
      if (data.most) {
        const outline = [...path(data.most), ...path(data.least).reverse()];
        add('path', { class: 'mark fill pale blue', d: `M${outline.join('L')}Z` });
      }
      const line = path(data.middle);
      add('path', { class: 'mark line blue', d: `M${line.length > 1 ? line.join('L') : `${line[0]}h1`}` });
      svg.insertBefore(part, cursor);
      toggle(svg.closest('figure'));
    }

    const reset = document.createElement('button');
    [reset.type, reset.className, reset.textContent, reset.hidden] = ['button', 'reset', 'show all steps', true];
    reset.addEventListener('click', () => zoom(null));
    svg.parentElement.append(reset);

    function zoom(from, to) {
      const [low, high] = [Math.max(0, Math.floor(from / size) * size), Math.min(end, Math.ceil(to / size) * size)];
      view = from === null || high - low < 2 * size || high - low >= end ? all : { from: low, to: high, y: all.y };
      told.hide();
      draw();
    }

    let begun = null;
    let select = null;
    const stop = () => {
      select?.remove();
      begun = select = null;
    };
    svg.addEventListener('pointerdown', (event) => {
      if (event.button !== 0) return;
      begun = place(svg, event).x;
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener('pointermove', (event) => {
      if (begun === null) return;
      const [from, to] = [begun, place(svg, event).x].map((x) => Math.max(left, Math.min(right, x))).sort((a, b) => a - b);
      select ??= svg.appendChild(make(svg, 'rect', { class: 'select', y: top, height: bottom - top }));
      select.setAttribute('x', from);
      select.setAttribute('width', to - from);
    });
    svg.addEventListener('pointerup', (event) => {
      if (begun !== null && Math.abs(place(svg, event).x - begun) > 6) {
        const ends = [begun, place(svg, event).x].sort((a, b) => a - b);
        zoom(...ends.map((x) => stepAt(Math.max(left, Math.min(right, x)))));
      }
      stop();
    });
    svg.addEventListener('pointercancel', stop);
    svg.addEventListener('dblclick', () => zoom(null));
    return {
      near: ({ x }) => {
        const [first, last] = range();
        return item(Math.max(first, Math.min(last, Math.floor(stepAt(x) / size))));
      },
      list: () => {
        const [first, last] = range();
        return Array.from({ length: last - first + 1 }, (_, place) => item(first + place));
      },
      key(name, current) {
        const middle = current ? (current.point + 0.5) * size : (view.from + view.to) / 2;
        const half = (view.to - view.from) / (name === '-' ? 1 : 4);
        if (name === 'Escape') zoom(null);
        else if (name === '+' || name === '=' || name === '-') zoom(middle - half, middle + half);
      },
    };
  }

  function listen(svg) {
    svg.querySelector(':scope > title')?.remove(); // Its label says the same, and needs no tooltip.
    const told = readout(svg);
    const source = svg.dataset.steps ? steps(svg, told) : marks(svg);
    let current = null;
    const tell = (item) => {
      current = item ?? null;
      if (item) told.tell(item);
      else told.hide();
    };
    svg.tabIndex = 0;
    svg.addEventListener('pointermove', (event) => tell(source.near(place(svg, event))));
    svg.addEventListener('pointerdown', (event) => tell(source.near(place(svg, event))));
    svg.addEventListener('pointerleave', () => tell(null));
    svg.addEventListener('blur', () => tell(null));
    svg.addEventListener('keydown', (event) => {
      const turn = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (turn) {
        const all = source.list();
        const at = all.findIndex((item) => item.text === current?.text);
        tell(all[at < 0 ? (turn > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + turn))]);
        event.preventDefault();
        return;
      }
      source.key?.(event.key, current);
      if (event.key === 'Escape') tell(null);
    });
  }

  // Hides the marks of legend entries that are switched off.
  function toggle(figure) {
    for (const entry of figure.querySelectorAll('.legend button')) {
      const off = entry.getAttribute('aria-pressed') === 'false';
      for (const mark of figure.querySelectorAll(entry.parentElement.dataset.hides)) mark.classList.toggle('off', off);
    }
  }

  for (const entry of document.querySelectorAll('.legend [data-hides]')) {
    const button = document.createElement('button');
    button.type = 'button';
    button.setAttribute('aria-pressed', 'true');
    button.append(...entry.childNodes);
    entry.append(button);
    button.addEventListener('click', () => {
      button.setAttribute('aria-pressed', String(button.getAttribute('aria-pressed') === 'false'));
      toggle(button.closest('figure'));
    });
  }
  for (const svg of document.querySelectorAll('figure svg.chart')) listen(svg);
  for (const caption of document.querySelectorAll('figure[data-figure="step-times"] figcaption')) {
    const hint = document.createElement('span');
    hint.className = 'hint';
    hint.textContent = ' Drag over steps to zoom in; double click or Escape shows all.';
    caption.append(hint);
  }
})();
