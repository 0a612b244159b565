"use strict";
(() => {
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const frame = document.getElementById("map-frame"), canvas = frame.querySelector("canvas");
  const tip = document.getElementById("map-tip"), told = document.getElementById("map-told");
  const chooser = document.getElementById("map-item"), pen = canvas.getContext("2d");
  const sheet = document.getElementById("map-sheet");
  const count = data.x.length, dark = matchMedia("(prefers-color-scheme: dark)");
  const GALLERY = 0, FOUND = 1, ALARM = 2, MISSED = 3, WRONG = 4; // as the page numbers them
  const RANK = [GALLERY, FOUND, ALARM, MISSED, WRONG]; // what is drawn last is seen
  const errors = [...Array(count).keys()].filter(i => data.kind[i] >= MISSED);
  const order = [...Array(count).keys()].sort((a, b) => RANK[data.kind[a]] - RANK[data.kind[b]]);
  const shown = new Set(RANK), view = { scale: 1, x: .5, y: .5 };
  let chosen = -1, kept = false, item = -1, width = 1, height = 1;

  const span = values => (Math.max(...values) - Math.min(...values)) / 1e4 || 1;
  const across = span(data.x), down = span(data.y);
  const sized = () => Math.min((width - 40) / across, (height - 40) / down) * view.scale;
  const place = i => [width / 2 + (data.x[i] / 1e4 - view.x) * sized(), height / 2 + (data.y[i] / 1e4 - view.y) * sized()];
  const visible = i => shown.has(data.kind[i]);
  const color = i => { // hues go round in the golden angle, so that items next to each other in the list differ
    const one = data.item[i], light = (dark.matches ? [.72, .84, .64] : [.54, .42, .62])[one % 3];
    return `oklch(${light} .16 ${(one * 137.508) % 360})`;
  };

  function mark(i) {
    const [x, y] = place(i), kind = data.kind[i], faded = item >= 0 && data.item[i] !== item;
    pen.globalAlpha = faded ? .12 : kind === GALLERY ? .75 : 1;
    pen.strokeStyle = pen.fillStyle = color(i);
    const size = Math.max(.7, Math.min(1, Math.min(width, height) / 600));
    pen.lineWidth = size * (kind === WRONG ? 2.4 : kind === MISSED ? 1.8 : 1.3);
    pen.beginPath();
    if (kind === WRONG) {
      const far = 4.5 * size;
      pen.moveTo(x - far, y - far); pen.lineTo(x + far, y + far); pen.moveTo(x + far, y - far); pen.lineTo(x - far, y + far);
    } else if (kind === MISSED) {
      pen.moveTo(x, y - 5 * size); pen.lineTo(x + 4.6 * size, y + 3.4 * size); pen.lineTo(x - 4.6 * size, y + 3.4 * size);
      pen.closePath();
    } else pen.arc(x, y, size * (kind === GALLERY ? 2.4 : 3.4), 0, 7);
    if (kind === FOUND || kind === ALARM) pen.fill(); else pen.stroke();
    if (kind === ALARM) { pen.beginPath(); pen.arc(x, y, 6.2 * size, 0, 7); pen.stroke(); }
  }

  function draw() {
    const dense = devicePixelRatio || 1;
    canvas.style.touchAction = view.scale > 1 ? "none" : "auto"; // a finger moves the map once it is larger than its frame
    [width, height] = [frame.clientWidth, frame.clientHeight];
    [canvas.width, canvas.height] = [width * dense, height * dense];
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    for (const i of order) if (visible(i) && data.item[i] !== item) mark(i);
    if (item >= 0) for (const i of order) if (visible(i) && data.item[i] === item) mark(i);
    if (chosen >= 0) {
      const [x, y] = place(chosen);
      pen.globalAlpha = 1; pen.lineWidth = 2; pen.strokeStyle = getComputedStyle(frame).color;
      pen.beginPath(); pen.arc(x, y, 10, 0, 7); pen.stroke();
    }
  }

  function lines(i) {
    const found = [[data.items[data.item[i]] + (data.parts[data.item[i]] ? ` (${data.parts[data.item[i]]})` : ""), "b"],
      [data.words[data.kind[i]], "span"]];
    if (data.own[i] !== null) found.push([`own item: ${data.own[i].toFixed(3)} away`, "span"]);
    if (data.other[i] !== null)
      found.push([`nearest other: ${data.other[i].toFixed(3)}, ${data.items[data.otherItem[i]]}`, "span"]);
    found.push([data.photo[i], "small"]);
    return found;
  }

  function choose(i, aloud) {
    chosen = i;
    tip.hidden = i < 0;
    draw();
    if (i < 0) return;
    const [x, y] = place(i), tile = data.tile[i], texts = lines(i), box = document.createElement("p");
    for (const [text, tag] of texts) {
      const line = document.createElement(tag);
      line.textContent = text;
      if (tag === "small") line.className = "soft";
      box.append(line);
    }
    tip.replaceChildren();
    if (tile >= 0) {
      const picture = document.createElement("canvas"), side = data.side;
      [picture.width, picture.height] = [side, side];
      const [left, top] = [tile % data.columns * side, Math.floor(tile / data.columns) * side];
      picture.getContext("2d").drawImage(sheet, left, top, side, side, 0, 0, side, side);
      tip.append(picture);
    }
    tip.append(box);
    const [w, h] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(width - w - 4, x + 16 + w < width ? x + 16 : x - 16 - w))}px`;
    tip.style.top = `${Math.max(4, Math.min(height - h - 4, y + 16 + h < height ? y + 16 : y - 16 - h))}px`;
    if (aloud) told.textContent = texts.map(([text]) => text).join(", ");
  }

  function nearest(x, y, within) {
    let best = -1, least = within * within;
    for (const i of order) {
      if (!visible(i)) continue;
      const [px, py] = place(i), far = (px - x) ** 2 + (py - y) ** 2 + (item >= 0 && data.item[i] !== item ? 60 : 0);
      if (far <= least) [best, least] = [i, far];
    }
    return best;
  }

  function towards(dx, dy) {
    if (chosen < 0) return nearest(width / 2, height / 2, Infinity);
    const [x, y] = place(chosen);
    let best = chosen, least = Infinity;
    for (const i of order) {
      if (!visible(i) || i === chosen) continue;
      const [px, py] = place(i), along = (px - x) * dx + (py - y) * dy, aside = Math.abs((px - x) * dy - (py - y) * dx);
      if (along > .5 && along + 3 * aside < least) [best, least] = [i, along + 3 * aside];
    }
    return best;
  }

  function bring(i) { // into view, and say it
    if (i < 0) return;
    const [x, y] = place(i);
    if (x < 10 || y < 10 || x > width - 10 || y > height - 10) Object.assign(view, { x: data.x[i] / 1e4, y: data.y[i] / 1e4 });
    kept = true;
    choose(i, true);
  }

  function step(by) { // to the next error that is shown, in the page's order
    const ones = errors.filter(i => visible(i) && (item < 0 || data.item[i] === item));
    if (!ones.length) { told.textContent = "No error is shown."; return; }
    const at = ones.indexOf(chosen);
    bring(ones[at < 0 ? (by > 0 ? 0 : ones.length - 1) : (at + by + ones.length) % ones.length]);
  }

  function zoom(factor) {
    view.scale = Math.max(1, Math.min(40, view.scale * factor));
    if (view.scale === 1) Object.assign(view, { x: .5, y: .5 });
    else if (chosen >= 0 && kept) Object.assign(view, { x: data.x[chosen] / 1e4, y: data.y[chosen] / 1e4 });
    choose(kept ? chosen : -1, false);
  }

  const reset = () => { Object.assign(view, { scale: 1, x: .5, y: .5 }); choose(kept ? chosen : -1, false); };
  const release = () => { kept = false; choose(-1, false); };
  const keys = { ArrowLeft: () => bring(towards(-1, 0)), ArrowRight: () => bring(towards(1, 0)),
    ArrowUp: () => bring(towards(0, -1)), ArrowDown: () => bring(towards(0, 1)), n: () => step(1), p: () => step(-1),
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: reset, Escape: release };
  frame.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  let drag = null;
  const at = event => { const box = frame.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", event => { drag = { from: at(event), x: view.x, y: view.y, moved: false }; });
  canvas.addEventListener("pointermove", event => {
    const [x, y] = at(event);
    if (drag && event.buttons) {
      const [dx, dy] = [x - drag.from[0], y - drag.from[1]];
      drag.moved ||= Math.hypot(dx, dy) > 4;
      if (drag.moved && view.scale > 1) {
        Object.assign(view, { x: drag.x - dx / sized(), y: drag.y - dy / sized() });
        choose(kept ? chosen : -1, false);
      }
    } else if (!kept) {
      const i = nearest(x, y, 14);
      if (i !== chosen) choose(i, false);
    }
  });
  canvas.addEventListener("pointerup", event => {
    if (drag && !drag.moved) { const i = nearest(...at(event), 14); kept = i >= 0 && !(kept && i === chosen); choose(i, kept); }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { drag = null; if (!kept) choose(-1, false); });
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey) return; // a plain wheel moves the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2);
  }, { passive: false });
  chooser.addEventListener("change", () => { item = Number(chooser.value); release(); });
  for (const box of document.querySelectorAll("[data-kind]")) box.addEventListener("change", () => {
    if (box.checked) shown.add(Number(box.dataset.kind)); else shown.delete(Number(box.dataset.kind));
    release();
  });
  const buttons = { next: () => step(1), previous: () => step(-1), closer: () => zoom(1.5), wider: () => zoom(1 / 1.5), reset };
  for (const [name, act] of Object.entries(buttons)) document.getElementById(`map-${name}`).addEventListener("click", act);
  dark.addEventListener("change", draw);
  new ResizeObserver(() => choose(kept ? chosen : -1, false)).observe(frame);
  draw();
})();
