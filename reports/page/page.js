// The list of findings: what the filters leave, in order, a few rows at a time.

const PAGE = 60;
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const chosen = new Set();
let view = [], rendered = 0, linked = null;

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  Object.assign(element, attributes);
  element.append(...children);
  return element;
}

function plural(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

const ORDERS = {
  urgency: () => 0,
  op: (a, b) => a.op.localeCompare(b.op),
  verdict: (a, b) => a.verdict.localeCompare(b.verdict),
  cases: (a, b) => b.cases.length - a.cases.length,
};

function text(item) {
  item.text ??= [item.op, item.verdict, item.sentence, item.signature, item.minimal_case, item.minimal_summary, item.cases.join(" ")].join("\n").toLowerCase();
  return item.text;
}

function select() {
  const words = at("search").value.toLowerCase().split(" ").filter(Boolean), op = at("op").value;
  view = data.items.filter((item) => (!chosen.size || chosen.has(item.verdict)) && (!op || item.op === op) && words.every((word) => text(item).includes(word)));
  view.sort(ORDERS[at("sort").value]);
  const first = data.items.find((item) => item.id === linked);
  if (first) view = [first, ...view.filter((item) => item !== first)];
  at("list").replaceChildren();
  rendered = 0;
  more();
}

function more(count = PAGE) {
  const rows = view.slice(rendered, rendered + count);
  at("list").append(...rows.map(row));
  rendered += rows.length;
  const left = view.length - rendered;
  at("more").hidden = left === 0;
  at("more").textContent = `Show ${Math.min(PAGE, left)} more of ${left.toLocaleString("en")}`;
  at("shown").textContent = data.items.length
    ? `${view.length.toLocaleString("en")} of ${plural(data.items.length, "finding")}` : at("list").dataset.none;
}

function row(item) {
  const details = make("details", { className: `finding ${item.tone}` }, make("summary", { id: `f-${item.id}` },
    make("span", { className: "name", textContent: item.verdict }),
    make("span", { className: "op", textContent: item.op }),
    make("span", { className: "told", textContent: item.sentence }),
    make("span", { className: "cases", textContent: plural(item.cases.length, "case") })));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(body(item));
  });
  return details;
}

function body(item) {
  const facts = make("dl");
  const fact = (name, ...value) => facts.append(make("dt", { textContent: name }), make("dd", {}, ...value));
  const code = (value) => make("code", { textContent: value });
  if (item.signature) fact("Signature", code(item.signature));
  if (item.known) fact("Known issue", item.known);
  if (item.evidence) fact("Evidence", "base fails alike in case ", code(item.evidence));
  for (const [tensor, [before, after]] of Object.entries(item.headroom)) {
    fact(`Headroom of ${tensor}`, `${told(before)} of its bound used before, ${told(after)} now`);
  }
  fact("Smallest case", `${item.minimal_summary}${item.shrinking_exhausted ? " (shrinking stopped at its budget; a smaller one may exist)" : ""}`);
  fact("Replay", replay(item.replay));
  fact("Link", make("a", { href: `#f-${item.id}`, textContent: "to this finding" }));
  return make("div", { className: "body" },
    make("p", { textContent: item.sentence }), facts, pictures(item),
    folded("The smallest case as JSON", item.case ? JSON.stringify(item.case, null, 1) : "Not recorded."),
    folded(`All ${plural(item.cases.length, "case")}`, item.cases.join(" ")));
}

function folded(title, content) {
  return make("details", {}, make("summary", { textContent: title }), make("pre", { textContent: content }));
}

function replay(command) {
  const words = make("code", { textContent: command });
  const button = make("button", { type: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(words);
      button.textContent = "Selected: press Ctrl+C";
    }
  });
  return make("span", { className: "replay" }, words, button);
}

function pictures(item) {
  const box = make("div", { className: "pictures" });
  if (!item.maps) {
    box.append(make("p", { className: "note", textContent: "Pictures are drawn for the most urgent findings only; parity report --json has the others." }));
    return box;
  }
  const own = item.signature.split(" | ")[1];
  const tensors = [...new Set([...Object.keys(item.maps), ...Object.keys(item.ulps)])].sort((a, b) => (b === own) - (a === own));
  for (const tensor of tensors) {
    for (const [arm, found] of Object.entries(item.maps[tensor] || {})) {
      for (const [rows, heads] of [[found.by_lane, false], [found.by_head, true]]) {
        const words = caption(tensor, arm, found, heads);
        if (rows.length && rows[0]) box.append(figure(map(rows, edgesOf(found, rows, heads), words), words));
      }
    }
    if (Object.values(item.ulps[tensor] || {}).some((counts) => counts.length)) box.append(figure(histogram(item.ulps[tensor], 9, 92), `${tensor}: elements by distance from the oracle in ulp; base outlined, head filled`));
  }
  return make("div", {}, ...(box.childElementCount ? [make("p", { className: "note", textContent: item.pictured === item.minimal_case ? "Of the smallest case:" : `Of the widest case, ${item.pictured}:` })] : []), box);
}

function caption(tensor, arm, found, heads) {
  const [tokens, all, lanes] = found.shape, [first, end] = found.rotated;
  const down = found.sequences.length ? `, ${plural(tokens, "token")} down` : ""; // a result may have no rows
  const size = `${tensor} in ${arm}: where it is wrong${down}`;
  const packed = found.sequences.length > 1 ? `; ${found.sequences.length} sequences` : "";
  if (heads) return `${size}, ${plural(all, "head")} across${packed}${found.tile > 1 ? `; dashed: tiles of ${plural(found.tile, "head")}` : ""}`;
  const halves = found.rotated.length ? `; rotated lanes ${first} to ${end - 1}, dashed: their middle` : "";
  return `${size}, ${plural(lanes, "lane")} across${packed}${halves}`;
}

function figure(drawn, words) {
  return make("figure", {}, drawn, make("figcaption", { textContent: words }));
}

// A linked finding comes first, whatever the filters say, and is open.
function follow() {
  linked = location.hash.startsWith("#f-") ? location.hash.slice(3) : null;
  select();
  const found = linked && at(`f-${linked}`);
  if (found) {
    found.parentElement.open = true;
    found.scrollIntoView({ block: "center" });
    found.focus({ preventScroll: true });
  }
}

function start() {
  at("scriptless").remove();
  const verdicts = new Map();
  for (const item of data.items) verdicts.set(item.verdict, (verdicts.get(item.verdict) || 0) + 1);
  for (const [verdict, count] of verdicts) {
    const chip = make("button", { type: "button", className: "chip" }, verdict, make("b", { textContent: count.toLocaleString("en") }));
    chip.setAttribute("aria-pressed", "false");
    chip.addEventListener("click", () => {
      if (!chosen.delete(verdict)) chosen.add(verdict);
      chip.setAttribute("aria-pressed", String(chosen.has(verdict)));
      select();
    });
    at("verdicts").append(chip);
  }
  const ops = [...new Set(data.items.map((item) => item.op))].sort();
  at("op").append(...ops.map((op) => make("option", { value: op, textContent: op })));
  for (const id of ["op", "sort"]) at(id).addEventListener("change", select);
  at("search").addEventListener("input", select);
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("more").addEventListener("click", () => more());
  new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && rendered < view.length && more()).observe(at("more"));
  addEventListener("beforeprint", () => more(view.length));
  addEventListener("hashchange", follow);
  for (const cell of document.querySelectorAll("[data-bar]")) {
    const found = data.headroom[cell.dataset.bar];
    cell.append(bar(found.base, found.head));
  }
  for (const cell of document.querySelectorAll("[data-ulps]")) {
    const { base, head } = data.headroom[cell.dataset.ulps];
    const arms = { base: base?.ulps || [], head: head?.ulps || [] };
    cell.append(arms.base.length + arms.head.length ? histogram(arms, 6, 26) : "not recorded");
  }
  follow();
}

start();
