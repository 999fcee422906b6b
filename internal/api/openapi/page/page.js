"use strict";

// The page shows openapi.json. All text goes in as text nodes, so that
// nothing in the document can become markup.

const methods = ["get", "post", "put", "patch", "delete"];

function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) e.setAttribute(name, value);
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}

function resolve(doc, schema) {
  for (let hops = 0; schema && schema.$ref && hops < 20; hops++) {
    schema = doc.components.schemas[schema.$ref.split("/").pop()];
  }
  return schema || {};
}

function typeOf(doc, schema) {
  if (schema && schema.$ref) return schema.$ref.split("/").pop();
  schema = schema || {};
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
  if (schema.type === "array") return "list of " + typeOf(doc, schema.items);
  if (schema.allOf) return schema.allOf.map((s) => typeOf(doc, s)).join(" with ");
  return [].concat(schema.type || "any").join(" or ") + (schema.format ? " (" + schema.format + ")" : "");
}

function limits(schema) {
  const words = {
    default: "default", minimum: "at least", maximum: "at most", minLength: "characters, at least",
    maxLength: "characters, at most", minItems: "items, at least", maxItems: "items, at most", pattern: "pattern",
  };
  return Object.entries(words).filter(([k]) => schema[k] !== undefined)
    .map(([k, word]) => word + " " + JSON.stringify(schema[k])).join("; ");
}

// fields lists an object's properties, those of nested objects below them.
function fields(doc, schema, prefix, depth, seen) {
  const own = resolve(doc, schema);
  let rows = [];
  for (const part of own.allOf || []) rows = rows.concat(fields(doc, part, prefix, depth, seen));
  for (const [name, field] of Object.entries(own.properties || {})) {
    const inner = resolve(doc, field);
    const required = (own.required || []).includes(name);
    rows.push(el("tr", null,
      el("td", null, el("code", null, prefix + name)),
      el("td", null, typeOf(doc, field)),
      el("td", null, required ? "required" : ""),
      el("td", null, [inner.description, limits(inner)].filter(Boolean).join(" — "))));
    const below = inner.type === "array" ? inner.items : field;
    const target = resolve(doc, below);
    if (target.properties && depth < 4 && !seen.includes(target)) {
      rows = rows.concat(fields(doc, below, prefix + name + (inner.type === "array" ? "[]." : "."), depth + 1, seen.concat([target])));
    }
  }
  return rows;
}

function table(title, rows) {
  if (!rows.length) return null;
  const head = el("tr", null, ...["name", "type", "", "meaning"].map((t) => el("th", { scope: "col" }, t)));
  return el("section", null, el("h3", null, title), el("table", null, el("thead", null, head), el("tbody", null, ...rows)));
}

function curl(method, path, op) {
  let line = "curl -X " + method.toUpperCase() + " '" + location.origin + path + "'";
  if ((op.security || []).length) line += " \\\n  -H \"Authorization: Bearer $HELMDECK_TOKEN\"";
  const json = ((op.requestBody || {}).content || {})["application/json"];
  if (json) {
    const first = Object.values(json.examples || {})[0];
    line += " \\\n  --json '" + (first ? JSON.stringify(first.value).replaceAll("'", "'\\''") : "{}") + "'";
  }
  if (((op.requestBody || {}).content || {})["multipart/form-data"]) line += " \\\n  -F file=@deck.md";
  return line;
}

function details(doc, method, path, op) {
  const parts = [el("p", { class: "text" }, op.description || "")];
  const scope = (op.security || []).flatMap((s) => s.bearer || []);
  parts.push(el("p", null, scope.length ? "Scope: " + scope.join(", ") : "No token needed."));
  parts.push(el("pre", null, curl(method, path, op)));
  parts.push(table("Parameters", (op.parameters || []).map((p) => el("tr", null,
    el("td", null, el("code", null, p.name)), el("td", null, typeOf(doc, p.schema) + " in " + p.in),
    el("td", null, p.required ? "required" : ""), el("td", null, p.description || "")))));
  for (const [type, media] of Object.entries((op.requestBody || {}).content || {})) {
    parts.push(table("Body (" + type + ")", fields(doc, media.schema, "", 0, [])));
  }
  for (const [status, answer] of Object.entries(op.responses || {})) {
    const content = Object.entries(answer.content || {});
    const title = (status === "default" ? "Failure" : status) + ": " + answer.description;
    const rows = content.flatMap(([, media]) => fields(doc, media.schema, "", 0, []));
    parts.push(table(title, rows) || el("p", null, title + (content.length ? " (" + content.map(([t]) => t).join(", ") + ")" : "")));
  }
  return el("div", null, ...parts);
}

function operation(doc, method, path, op) {
  const box = el("details", { id: op.operationId || method + path },
    el("summary", null, el("span", { class: "method" }, method.toUpperCase()),
      el("span", { class: "path" }, path), el("span", { class: "what" }, op.summary || "")));
  box.dataset.words = [method, path, op.summary, op.description].join(" ").toLowerCase();
  // Most operations are never opened: build them when they are.
  box.addEventListener("toggle", () => {
    if (box.open && box.children.length === 1) box.append(details(doc, method, path, op));
  });
  return box;
}

function show(doc) {
  document.getElementById("version").textContent = doc.info.version;
  document.getElementById("about").textContent = doc.info.description;
  const groups = new Map();
  for (const [path, item] of Object.entries(doc.paths)) {
    for (const method of methods.filter((m) => item[m])) {
      const tag = (item[method].tags || ["other"])[0];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(doc, method, path, item[method]));
    }
  }
  const main = document.getElementById("operations");
  for (const tag of [...groups.keys()].sort()) {
    main.append(el("section", { class: "group" }, el("h2", null, tag), ...groups.get(tag)));
  }
  const find = document.getElementById("find");
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const group of document.querySelectorAll(".group")) {
      let any = false;
      for (const box of group.querySelectorAll("details")) {
        const match = words.every((w) => box.dataset.words.includes(w));
        box.hidden = !match;
        any = any || match;
        shown += match ? 1 : 0;
      }
      group.hidden = !any;
    }
    document.getElementById("count").textContent = shown + (shown === 1 ? " operation" : " operations");
  };
  find.addEventListener("input", filter);
  filter();
}

fetch("/api/v1/openapi.json")
  .then((r) => { if (!r.ok) throw new Error("status " + r.status); return r.json(); })
  .then(show)
  .catch((e) => { document.getElementById("operations").textContent = "The document could not be loaded: " + e.message; });
