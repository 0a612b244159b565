// Gestures, the view of an item, and feedback: what Gradio has no components for.
(() => {
  const find = (selector) => document.querySelector(selector);
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };

  // --- photos: choose, paste or drop anywhere, camera of a phone
  const image = () => find("#photo .image-frame img, #photo .image-container img");

  function take(file) {
    const input = find("#photo input[type=file]");
    if (!input || !file?.type.startsWith("image/")) return;
    const files = new DataTransfer();
    files.items.add(file);
    input.files = files.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }

  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((each) => each.type.startsWith("image/"));
    if (!file) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    take(file);
  }, true);
  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      if (kind === "drop") take(event.dataTransfer.files[0]);
    }, true);
  }
  document.addEventListener("change", (event) => {
    if (!event.target.matches?.(".r-camera input")) return;
    take(event.target.files[0]);
    event.target.value = "";
  });

  // large photos, and those in other formats that this browser opens, are sent as JPEG
  const SENT = ["image/jpeg", "image/png", "image/webp"];
  const LONGEST = 2048; // pixels, about twice what a model needs of a part of the photo
  async function converted(form) {
    const made = new FormData();
    for (const [name, value] of form) {
      if (!(value instanceof Blob)) { made.append(name, value); continue; }
      try {
        const picture = await createImageBitmap(value);
        const scale = Math.min(1, LONGEST / Math.max(picture.width, picture.height));
        if (scale === 1 && SENT.includes(value.type)) { made.append(name, value, value.name); continue; }
        const width = Math.max(1, Math.round(scale * picture.width)), height = Math.max(1, Math.round(scale * picture.height));
        const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
        Object.assign(context, { fillStyle: "white", imageSmoothingQuality: "high" });
        context.fillRect(0, 0, width, height); // behind transparent pixels
        context.drawImage(picture, 0, 0, width, height);
        made.append(name, await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 }), "photo.jpg");
      } catch { made.append(name, value, value.name); } // the search says why it cannot be used
    }
    return made;
  }
  const send = window.fetch;
  window.fetch = async (place, options) => {
    const uploads = String(place?.url ?? place).includes("/gradio_api/upload") && options?.body instanceof FormData;
    return send(place, uploads ? { ...options, body: await converted(options.body) } : options);
  };

  // --- a part of the photo: drag a box on it, or choose one that was found; its sides are shares of the photo
  const LEAST = 0.03; // a smaller box is a click
  const MOST_PLACES = 40; // circles on a picture
  let part = null, from = null, searched = null, searches = 0; // searched: the photo of the part

  // where the pixels of a picture are that is fitted into its element
  function area(picture) {
    const box = picture.getBoundingClientRect();
    const scale = Math.min(box.width / picture.naturalWidth, box.height / picture.naturalHeight);
    const width = picture.naturalWidth * scale, height = picture.naturalHeight * scale;
    return { x: box.x + (box.width - width) / 2, y: box.y + (box.height - height) / 2, width, height };
  }

  function frame(sides, className) {
    const picture = image(), holder = picture.parentElement, shown = area(picture), place = holder.getBoundingClientRect();
    const element = make(className === "r-found-box" ? "button" : "div", { className: `r-box ${className}` });
    holder.style.position = "relative";
    Object.assign(element.style, {
      left: `${shown.x - place.x + sides[0] * shown.width}px`, width: `${(sides[2] - sides[0]) * shown.width}px`,
      top: `${shown.y - place.y + sides[1] * shown.height}px`, height: `${(sides[3] - sides[1]) * shown.height}px`,
    });
    holder.append(element);
    return element;
  }

  function draw() {
    for (const element of document.querySelectorAll(".r-box")) element.remove();
    const picture = image(), ready = Boolean(picture?.naturalWidth);
    if (picture?.src !== searched) part = null;
    for (const [id, shown] of [["#part-hint", ready], ["#part-clear", ready && part]]) if (find(id)) find(id).hidden = !shown;
    if (!ready) return;
    if (part) { frame(part, "r-part-box"); return; }
    const boxes = [...document.querySelectorAll("#answer [data-box]")].map((card, place) => {
      const [left, upper, right, lower] = card.dataset.box.split(",").map(Number), { naturalWidth: w, naturalHeight: h } = picture;
      return { name: place + 1, size: (right - left) * (lower - upper), sides: [left / w, upper / h, right / w, lower / h] };
    });
    for (const { name, sides } of boxes.sort((one, other) => other.size - one.size)) { // small boxes lie above large ones
      const button = frame(sides, "r-found-box");
      button.textContent = name;
      button.setAttribute("aria-label", `Search with box ${name}`);
      button.onclick = () => search(sides);
    }
  }

  function search(sides) {
    part = sides;
    searched = image()?.src ?? null;
    const field = find("#part textarea");
    const noise = (++searches % 10) / 1e6; // Gradio searches only after a change
    const text = (side, place) => (side >= 1 ? "1" : Math.max(0, side + (place ? 0 : noise)).toFixed(6));
    const value = sides ? sides.map(text).join(",") : "";
    Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(field, value);
    field.dispatchEvent(new Event("input", { bubbles: true }));
    draw();
  }

  const shareOf = (event, shown) => [
    Math.min(1, Math.max(0, (event.clientX - shown.x) / shown.width)),
    Math.min(1, Math.max(0, (event.clientY - shown.y) / shown.height)),
  ];
  document.addEventListener("pointerdown", (event) => {
    if (event.button || !(event.target === image() || event.target.matches?.(".r-found-box"))) return;
    from = shareOf(event, area(image()));
    part = null;
    event.preventDefault();
  });
  document.addEventListener("pointermove", (event) => {
    const picture = image();
    if (!from || !picture) return;
    const [x, y] = shareOf(event, area(picture));
    if (Math.abs(x - from[0]) < LEAST || Math.abs(y - from[1]) < LEAST) return;
    part = [Math.min(from[0], x), Math.min(from[1], y), Math.max(from[0], x), Math.max(from[1], y)];
    searched = picture.src;
    draw();
  });
  document.addEventListener("pointerup", () => {
    if (from && part) search(part);
    from = null;
  });
  document.addEventListener("pointercancel", () => { from = part = null; draw(); });
  document.addEventListener("click", (event) => { if (event.target.id === "part-clear") search(null); });
  window.addEventListener("resize", draw);

  // --- an item: all its photos, beside the photo that was sent
  // circles where details of both pictures agree, of one colour for each pair
  function mark(figure, places) {
    const picture = figure.querySelector("img"), space = "http://www.w3.org/2000/svg";
    picture.decode().then(() => {
      const { naturalWidth: width, naturalHeight: height } = picture, drawing = document.createElementNS(space, "svg");
      drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
      drawing.setAttribute("aria-hidden", "true");
      for (const [number, [x, y]] of places.entries()) {
        const circle = document.createElementNS(space, "circle");
        const shape = { cx: x * width, cy: y * height, r: Math.max(width, height) / 60, stroke: `hsl(${(number * 137) % 360} 90% 50%)` };
        for (const [key, value] of Object.entries(shape)) circle.setAttribute(key, value);
        drawing.append(circle);
      }
      figure.append(drawing);
    }, () => {});
  }
  async function open(item, photo, { distance, threshold, places } = {}) {
    const answer = await fetch(`v1/items/${encodeURIComponent(item)}`).catch(() => null);
    if (!answer?.ok) { alert(`The item ${item} cannot be shown. It may have been removed.`); return; }
    const { photos } = await answer.json();
    const own = photos.find((each) => each.photo_id === photo) ?? photos[0], about = own.metadata;
    const name = typeof about.name === "string" && about.name.trim() ? about.name : item;
    const shown = (each, className) => make("img", { src: `v1/thumbnails/${encodeURIComponent(each.photo_id)}`, alt: "", className });
    const large = make("figure", {}, shown(own, ""), make("figcaption", { textContent: "Catalogue" }));
    const pair = make("div", { className: "r-pair" });
    if (image()) pair.append(make("figure", {}, make("img", { src: image().src, alt: "" }), make("figcaption", { textContent: "Your photo" })));
    pair.append(large);
    const both = (places ?? "").split(" ").filter(Boolean).map((place) => place.split(",").map(Number)).slice(0, MOST_PLACES);
    if (both.length && pair.children.length > 1) {
      mark(pair.firstChild, both);
      mark(large, both.map((place) => place.slice(2)));
    }
    const rest = make("div", { className: "r-photos" });
    for (const each of photos.length > 1 ? photos : []) {
      const button = make("button", { type: "button", ariaLabel: `Compare with ${each.photo_id}` }, shown(each, ""));
      button.onclick = () => {
        large.querySelector("img").replaceWith(shown(each, ""));
        for (const drawing of pair.querySelectorAll("svg")) drawing.remove();
      };
      rest.append(button);
    }
    const facts = make("dl"), closeness = threshold ? `${distance} (a match is at most ${threshold})` : distance;
    for (const [key, value] of Object.entries({ id: item, ...about, ...(distance && { distance: closeness }) })) facts.append(make("dt", { textContent: key }), make("dd", { textContent: String(value) }));
    const link = make("button", { type: "button", textContent: "Copy a link to this item" });
    const note = make("span", { className: "r-small", textContent: " It shows the item, not your photo." });
    link.onclick = async () => {
      const address = new URL(location.href);
      address.hash = new URLSearchParams({ item });
      await navigator.clipboard.writeText(address.href).then(() => { note.textContent = " Copied."; }, () => { note.textContent = ` ${address.href}`; });
    };
    const close = make("button", { type: "button", className: "r-close", ariaLabel: "Close", textContent: "×" });
    const title = make("h2", { textContent: name });
    const dialog = make("dialog", { id: "item", ariaLabel: name }, close, title, pair, rest, facts, make("p", {}, link, note));
    close.onclick = () => dialog.close();
    dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
    dialog.onclose = () => dialog.remove();
    (find(".gradio-container") ?? document.body).append(dialog);
    dialog.showModal();
  }
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest?.("#answer [data-open]");
    if (pressed) open(pressed.dataset.open, pressed.dataset.photo, pressed.closest("figure").dataset);
  });
  const linked = () => new URLSearchParams(location.hash.slice(1)).get("item");
  const openLinked = () => { if (linked()) open(linked()); };
  window.addEventListener("hashchange", openLinked);

  // --- verdicts on an answer: one for each
  document.addEventListener("click", async (event) => {
    const pressed = event.target.closest?.("#answer [data-verdict]");
    if (!pressed) return;
    const answer = pressed.closest("#answer"), note = answer.querySelector("#noted"), { verdict, item } = pressed.dataset;
    const body = { request_id: answer.querySelector("[data-request]").dataset.request, verdict, item_id: item ?? "" };
    const buttons = [...answer.querySelectorAll("[data-verdict], [data-another]")];
    for (const button of buttons) button.disabled = true;
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    const sent = await fetch("v1/feedback", options).catch(() => null);
    note.textContent = sent?.ok ? "Saved, thank you." : "This could not be saved. Search again, then answer.";
    for (const button of buttons) button.hidden = true;
    answer.querySelector("#another").hidden = true;
    if (sent?.ok) await offerToAdd(note, body, answer.querySelector(".r-open")?.dataset.open);
  });

  // --- adding a judged photo to the catalogue, for those who may and where it is kept
  async function offerToAdd(note, { request_id, verdict, item_id }, first) {
    const kept = await fetch(`v1/admin/answers/${encodeURIComponent(request_id)}/photo`).catch(() => null);
    if (!kept?.ok) return;
    const photo = await kept.blob(), right = verdict === "right" ? first : item_id;
    const name = make("input", { required: true, maxLength: 200, value: right ?? "", placeholder: "Id; a new one makes a new item" });
    const button = make("button", { textContent: "Add" });
    const form = make("form", { className: "r-add" }, make("label", {}, "Add this photo to the item ", name), button);
    form.onsubmit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      const address = `v1/photos/${encodeURIComponent(`answer-${request_id}`)}?${new URLSearchParams({ item_id: name.value.trim() })}`;
      const sent = await fetch(address, { method: "PUT", body: photo, headers: { "content-type": photo.type } }).catch(() => null);
      button.disabled = false;
      const item = name.value.trim(), link = make("a", { href: `manage#item=${encodeURIComponent(item)}`, textContent: item });
      if (sent?.ok) form.replaceWith("Added to ", link, ".");
      else note.textContent = (await sent?.json().catch(() => null))?.title ?? "This could not be added. Try again.";
    };
    note.after(form);
  }
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#answer [data-another]")) return;
    find("#another").hidden = false;
    find("#another input").focus();
  });
  let typed = 0;
  document.addEventListener("input", async (event) => {
    if (!event.target.matches?.("#another input")) return;
    const number = ++typed, text = event.target.value.trim(), list = find("#another ul");
    await new Promise((done) => setTimeout(done, 200));
    if (number !== typed) return;
    const query = new URLSearchParams({ find: text, limit: 8 });
    const answer = text ? await fetch(`v1/items?${query}`).then((got) => got.json()).catch(() => null) : null;
    if (number !== typed) return;
    list.replaceChildren(...(answer?.items ?? []).map((item) => {
      const button = make("button", { type: "button", textContent: item });
      Object.assign(button.dataset, { verdict: "wrong", item });
      return make("li", {}, button);
    }));
    if (text && !answer?.items?.length) list.append(make("li", { className: "r-small", textContent: "No item has this name or id." }));
  });

  // --- after a change of the page
  let last = null, greeted = false;
  function showAnswer() {
    if (!greeted && find("#answer .r-empty")) { greeted = true; openLinked(); }
    const banner = find("#answer .r-banner");
    const now = banner && banner.textContent + document.querySelectorAll("#answer [data-box]").length;
    if (now === last) return;
    last = now;
    draw();
    if (!banner) return;
    const place = banner.getBoundingClientRect();
    if (place.top >= 0 && place.bottom + 200 <= window.innerHeight) return;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    banner.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
  }
  document.addEventListener("load", (event) => { if (event.target === image()) draw(); }, true);

  // Gradio names neither the buttons of the examples nor the photo
  new MutationObserver(() => {
    showAnswer();
    if (!image() && find("#part-hint")?.hidden === false) draw();
    const labels = [...document.querySelectorAll("#example-labels li")].map((item) => item.textContent);
    document.querySelectorAll("button.gallery-item").forEach((button, number) => {
      button.setAttribute("aria-label", labels[number] || `Example ${number + 1}`);
      button.dataset.label = labels[number] ?? "";
    });
    image()?.setAttribute("alt", "Your photo");
    find("#part textarea")?.setAttribute("aria-label", "Part of the photo");
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
