"use strict";
// Pictures as SVG. Numbers only: no text of others becomes markup here.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function picture(width, height, label) {
  return svg("svg", { width, height, role: "img", "aria-label": label });
}

// Base above, head below; the line is the bound.
function bar(base, head) {
  const width = 170, one = 130, scale = (share) => Math.min(width, share * one);
  const shares = { base: shareOf(base), head: shareOf(head) };
  const label = Object.entries(shares).map(([arm, share]) => `${arm} ${told(share)}`).join(", ");
  const drawn = picture(width, 22, `share of the bound: ${label}`);
  if (shares.base !== null) {
    drawn.append(svg("rect", { class: "base", x: 0.75, y: 2.75, width: scale(shares.base), height: 5.5 }));
  }
  if (shares.head !== null) {
    const tone = shares.head > 1 ? "over" : "head";
    drawn.append(svg("rect", { class: tone, x: 0, y: 12, width: scale(shares.head), height: 7 }));
  }
  drawn.append(svg("line", { class: "one", x1: one, x2: one, y1: 0, y2: 22 }));
  return drawn;
}

function shareOf(arm) {
  if (!arm) return null;
  return typeof arm.share === "number" ? arm.share : Infinity;
}

// Cut, not rounded: what keeps its bound must not read as 1.
function told(share) {
  if (share === null) return "none";
  if (typeof share !== "number" || !Number.isFinite(share)) return "not finite";
  return share < 1 ? (Math.floor(share * 1000) / 1000).toFixed(3) : share.toPrecision(3);
}

// Bin 0 is exact, bin n up to 2^(n-7) ulp, bin 31 not finite on one side.
const BINS = 32, LAST = 31;

function binName(bin) {
  if (bin === 0) return "exact";
  if (bin === LAST) return "not finite";
  const power = bin - 7;
  if (bin === LAST - 1) return "more";
  return power < 0 ? `1/${2 ** -power}` : String(2 ** power);
}

const TICKS = { 0: "0", 4: "1/8", 7: "1", 10: "8", 13: "64", 17: "1024", 22: "32768", 31: "NaN" };

// Heights are logarithms of counts; the line is half an ulp, where one rounding ends.
function histogram(arms, step, height) {
  const counts = { base: arms.base || [], head: arms.head || [] };
  const largest = Math.max(1, ...counts.base, ...counts.head);
  const width = BINS * step, floor = step > 6 ? height - 14 : height;
  const tall = (count) => (count ? 2 + ((floor - 3) * Math.log1p(count)) / Math.log1p(largest) : 0);
  const drawn = picture(width, height, `distance from the oracle: ${summary(counts)}`);
  drawn.append(svg("rect", { class: "frame", x: 0, y: 0, width, height: floor }));
  counts.head.forEach((count, bin) => {
    if (count) drawn.append(svg("rect", { class: "head", x: bin * step + 1, y: floor - tall(count), width: step - 2, height: tall(count) }));
  });
  const outline = counts.base.map((count, bin) => `L${bin * step} ${floor - tall(count)}h${step}`).join("");
  if (outline) drawn.append(svg("path", { class: "base", d: `M0 ${floor}${outline}V${floor}` }));
  drawn.append(svg("line", { class: "one", x1: 7 * step, x2: 7 * step, y1: 0, y2: floor, "stroke-dasharray": "2 2" }));
  if (floor < height) for (const [bin, words] of Object.entries(TICKS)) {
    const ends = bin === "0" || bin === "31" ? 0.5 : 1;
    const text = svg("text", { x: (Number(bin) + ends) * step, y: height - 2, "text-anchor": "middle" });
    text.textContent = words;
    drawn.append(text);
  }
  return drawn;
}

function summary(counts) {
  return Object.entries(counts).filter(([, bins]) => bins.length).map(([arm, bins]) => {
    const total = bins.reduce((sum, count) => sum + count, 0);
    return `${arm} ${bins[0] || 0} of ${total} exact, worst ${binName(bins.length - 1)} ulp`;
  }).join("; ") || "nothing recorded";
}

// Cells of one depth are one path, so that a map is a few elements however large.
function map(rows, edges, label) {
  const columns = rows.length ? rows[0].length : 0;
  const size = Math.max(4, Math.min(20, Math.floor(320 / Math.max(columns, rows.length, 1))));
  const drawn = picture(columns * size, rows.length * size, label);
  drawn.append(svg("rect", { class: "frame", x: 0, y: 0, width: columns * size, height: rows.length * size }));
  const paths = {};
  rows.forEach((row, y) => [...row].forEach((depth, x) => {
    if (depth !== "0") paths[depth] = `${paths[depth] || ""}M${x * size} ${y * size}h${size}v${size}h${-size}z`;
  }));
  for (const [depth, d] of Object.entries(paths)) {
    drawn.append(svg("path", { class: "cell", d, "fill-opacity": 0.25 + (0.75 * parseInt(depth, 16)) / 15 }));
  }
  for (const { across, at, kind } of edges) {
    const place = Math.round(at * size * 2) / 2;
    const d = across ? `M0 ${place}H${columns * size}` : `M${place} 0V${rows.length * size}`;
    drawn.append(svg("path", { class: `edge ${kind}`, d }));
  }
  return drawn;
}

// Edges lie between elements; a cell may hold many.
function edgesOf(found, rows, heads) {
  const [tokens, all, lanes] = found.shape;
  const columns = rows[0].length, place = (at, count, cells) => (at * cells) / count;
  const edges = found.sequences.filter((at) => at > 0 && at < tokens)
    .map((at) => ({ across: true, at: place(at, tokens, rows.length), kind: "sequence" }));
  if (heads) {
    for (let at = found.tile; at > 1 && at < all; at += found.tile) edges.push({ at: place(at, all, columns), kind: "tile" });
  } else if (found.rotated.length) {
    const [first, end] = found.rotated, middle = (first + end) / 2;
    for (const at of [first, end]) if (at > 0 && at < lanes) edges.push({ at: place(at, lanes, columns), kind: "rotated" });
    edges.push({ at: place(middle, lanes, columns), kind: "half" });
  }
  return edges;
}
