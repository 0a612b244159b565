// The forms of /docs: each sends its request to this server and shows the response.
function requestOf(form) {
  const { method, path } = form.dataset, query = new URLSearchParams(), request = { method, headers: {} };
  let address = path.slice(1); // relative, so that a prefix of a proxy stays
  for (const field of form.elements) {
    const place = field.dataset.in;
    if (place === "path") address = address.replace(`{${field.name}}`, encodeURIComponent(field.value));
    if (place === "query" && field.value) query.append(field.name, field.value);
    if (place === "image") request.body = field.files[0];
    if (place === "form") {
      request.body = new FormData();
      for (const file of field.files) request.body.append(field.name, file);
    }
    if (place === "body") {
      request.body = field.value;
      request.headers["content-type"] = "application/json";
    }
  }
  return [query.size ? `${address}?${query}` : address, request];
}

async function shown(response) {
  if ((response.headers.get("content-type") ?? "").startsWith("image/")) {
    return Object.assign(new Image(), { src: URL.createObjectURL(await response.blob()), alt: "The image of the response" });
  }
  const text = await response.text();
  let told = text;
  try { told = JSON.stringify(JSON.parse(text), null, 2); } catch { /* it is no JSON */ }
  return Object.assign(document.createElement("pre"), { textContent: told });
}

for (const form of document.querySelectorAll("form")) {
  form.onsubmit = async (event) => {
    event.preventDefault();
    const [address, request] = requestOf(form), output = form.nextElementSibling;
    try {
      const response = await fetch(address, request);
      output.replaceChildren(`${request.method} /${address}: ${response.status}`, await shown(response));
    } catch (error) {
      output.textContent = error.message;
    }
  };
}
