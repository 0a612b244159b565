// Parts of the page that Gradio has no components for.
(() => {
  // A box drawn on the photo moves the four sliders of "Search a part of it", and they draw the box.
  const SIDES = ["left", "right", "top", "bottom"];
  const input = (side) => document.querySelector(`#part-${side} input[type=range]`);
  const image = () => document.querySelector("#photo img");
  const value = (side) => Number(input(side)?.value ?? (side === "left" || side === "top" ? 0 : 100));

  function set(side, percent) {
    const field = input(side);
    if (!field) return;
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, Math.round(percent));
    for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
  }

  // where the pixels of a picture are that is fitted into its element
  function area(picture) {
    const box = picture.getBoundingClientRect();
    const scale = Math.min(box.width / picture.naturalWidth, box.height / picture.naturalHeight);
    const width = picture.naturalWidth * scale, height = picture.naturalHeight * scale;
    return { x: box.x + (box.width - width) / 2, y: box.y + (box.height - height) / 2, width, height };
  }

  function draw() {
    const picture = image();
    let frame = document.querySelector("#part-box");
    const whole = SIDES.every((side) => value(side) === (side === "left" || side === "top" ? 0 : 100));
    if (!picture || !picture.naturalWidth || whole) { frame?.remove(); return; }
    const holder = picture.parentElement;
    if (!frame || frame.parentElement !== holder) {
      frame?.remove();
      frame = Object.assign(document.createElement("div"), { id: "part-box" });
      holder.style.position = "relative";
      holder.append(frame);
    }
    const shown = area(picture), from = holder.getBoundingClientRect();
    const at = (percent, start, length) => start + (length * percent) / 100;
    const left = at(value("left"), shown.x - from.x, shown.width), right = at(value("right"), shown.x - from.x, shown.width);
    const top = at(value("top"), shown.y - from.y, shown.height), bottom = at(value("bottom"), shown.y - from.y, shown.height);
    Object.assign(frame.style, { left: `${left}px`, top: `${top}px`,
      width: `${Math.max(0, right - left)}px`, height: `${Math.max(0, bottom - top)}px` });
  }

  let start = null;
  const percentOf = (event, shown) => [
    Math.min(100, Math.max(0, (100 * (event.clientX - shown.x)) / shown.width)),
    Math.min(100, Math.max(0, (100 * (event.clientY - shown.y)) / shown.height)),
  ];
  document.addEventListener("pointerdown", (event) => {
    const open = document.querySelector("#part-left input[type=range]");
    if (event.target !== image() || !open || !open.offsetParent) return;
    start = percentOf(event, area(event.target));
    event.preventDefault();
  });
  document.addEventListener("pointermove", (event) => {
    const picture = image();
    if (!start || !picture) return;
    const [x, y] = percentOf(event, area(picture));
    set("left", Math.min(start[0], x)); set("right", Math.max(start[0], x));
    set("top", Math.min(start[1], y)); set("bottom", Math.max(start[1], y));
    draw();
  });
  for (const kind of ["pointerup", "pointercancel"]) document.addEventListener(kind, () => { start = null; });
  document.addEventListener("input", (event) => { if (event.target.closest?.("#part")) draw(); });
  document.addEventListener("load", (event) => { if (event.target === image()) setTimeout(draw, 300); }, true);
  window.addEventListener("resize", draw);

  // verdicts on an answer: one for each
  document.addEventListener("click", async (event) => {
    const pressed = event.target.closest?.("#answer [data-verdict]");
    if (!pressed) return;
    const answer = pressed.closest("#answer"), buttons = [...answer.querySelectorAll("[data-verdict]")];
    const note = answer.querySelector("#noted"), { verdict, item } = pressed.dataset;
    const body = { request_id: answer.querySelector("[data-request]").dataset.request, verdict, item_id: item ?? "" };
    for (const button of buttons) button.disabled = true;
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    const sent = await fetch("v1/feedback", options).catch(() => null);
    note.textContent = sent?.ok ? "Saved, thank you." : "This could not be saved. Search again, then answer.";
    for (const button of buttons) button.hidden = true;
  });

  // photos in other formats that this browser opens are sent as JPEG
  const SENT = ["image/jpeg", "image/png", "image/webp"];
  async function converted(form) {
    const made = new FormData();
    for (const [name, value] of form) {
      if (!(value instanceof Blob) || SENT.includes(value.type)) { made.append(name, value, value.name); continue; }
      try {
        const picture = await createImageBitmap(value);
        const canvas = new OffscreenCanvas(picture.width, picture.height);
        canvas.getContext("2d").drawImage(picture, 0, 0);
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

  // scroll to an answer that is outside of the visible part of the screen
  let last = null;
  function showAnswer() {
    const banner = document.querySelector("#answer .r-banner");
    if (banner === last) return;
    last = banner;
    if (!banner) return;
    const place = banner.getBoundingClientRect();
    if (place.top >= 0 && place.bottom + 200 <= window.innerHeight) return;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    banner.scrollIntoView({ behavior: still ? "auto" : "smooth", block: "start" });
  }

  // Gradio names neither the buttons of the examples nor the photo
  new MutationObserver(() => {
    showAnswer();
    const labels = [...document.querySelectorAll("#example-labels li")].map((item) => item.textContent);
    document.querySelectorAll("button.gallery-item").forEach((button, number) => {
      button.setAttribute("aria-label", labels[number] || `Example ${number + 1}`);
      button.dataset.label = labels[number] ?? "";
    });
    document.querySelector("#photo .image-frame img:not([alt='Your photo'])")?.setAttribute("alt", "Your photo");
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
