// The time line of ten seconds: asks for a recording, draws it, and tells of it in a table and in words for who sees no drawing.
//
// `page` gives it the way to ask and clients' names. Names are programs' own: text only.

import { drawing, element, setText, swatch } from "./parts.js";

const SECOND = 1000;
const WIDTH = 1000;
const HEIGHT = 20;
// Names that have colours of their own; the others share them.
const COLOURS = 8;
// The narrowest that is still seen, of the width.
const NARROWEST = 0.7;
const SHORTEST_VIEW = 20; // microseconds

const at = (id) => document.getElementById(id);
const word = { work: "", wait: " waits", hold: " held back" };

const line = {
  rows: [], // label, kind, spans (begin, length, name or null, count), and what is drawn of them
  names: [],
  all: 0, // microseconds
  view: { from: 0, to: 0 },
  cursor: { row: 0, span: -1 },
};

export function microseconds(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(3)} s`;
  return value >= 1000 ? `${(value / 1000).toFixed(2)} ms` : `${Math.round(value)} µs`;
}

const nameOf = ([, , name, count]) => (name === null ? `${count} operations` : count > 1 ? `${line.names[name]}, ${count} times` : line.names[name]);

// ---- Drawing

function colour(row, span) {
  if (row.kind !== "work") return row.kind;
  return span[2] === null ? "rest" : `c${span[2] % COLOURS}`;
}

function drawRow(row) {
  const { from, to } = line.view;
  const scale = WIDTH / (to - from);
  const paths = new Map();
  for (const span of row.spans) {
    if (span[0] + span[1] < from) continue;
    if (span[0] > to) break;
    const left = Math.max((span[0] - from) * scale, 0);
    const width = Math.max(Math.min((span[0] + span[1] - from) * scale, WIDTH) - left, NARROWEST);
    const key = colour(row, span);
    paths.set(key, `${paths.get(key) ?? ""}M${left.toFixed(2)} 2h${width.toFixed(2)}v16h-${width.toFixed(2)}z`);
  }
  row.svg.replaceChildren(...[...paths].map(([key, d]) => drawing("path", { class: key, d })));
  const span = row === line.rows[line.cursor.row] ? row.spans[line.cursor.span] : null;
  if (span) {
    const left = (span[0] - from) * scale;
    const width = Math.max(span[1] * scale, 2);
    row.svg.append(drawing("rect", { class: "cursor", x: left, y: 0.5, width, height: HEIGHT - 1, "vector-effect": "non-scaling-stroke" }));
  }
}

function draw() {
  line.rows.forEach(drawRow);
  const { from, to } = line.view;
  const places = [0, 0.25, 0.5, 0.75, 1];
  at("timeline-axis").replaceChildren(...places.map((part) => element("span", { textContent: microseconds(from + (to - from) * part) })));
}

function look(from, to) {
  const length = Math.min(Math.max(to - from, SHORTEST_VIEW), line.all);
  const begin = Math.min(Math.max(from, 0), line.all - length);
  line.view = { from: begin, to: begin + length };
  draw();
}

function zoom(factor, middle) {
  const { from, to } = line.view;
  const span = line.rows[line.cursor.row]?.spans[line.cursor.span];
  const around = middle ?? (span ? span[0] + span[1] / 2 : (from + to) / 2);
  look(around - (around - from) * factor, around + (to - around) * factor);
}

// ---- One span

function point(row, index) {
  const span = line.rows[row]?.spans[index];
  if (!span) return;
  line.cursor = { row, span: index };
  const { from, to } = line.view;
  if (span[0] + span[1] < from || span[0] > to) look(span[0] - (to - from) / 2, span[0] + (to - from) / 2);
  else draw();
  setText(at("timeline-said"), `${line.rows[row].label}: ${nameOf(span)}, ${microseconds(span[1])}, from ${microseconds(span[0])} on`);
}

// The span that is nearest to a moment.
function nearest(row, moment) {
  let best = -1;
  let distance = Infinity;
  row.spans.forEach((span, index) => {
    const away = Math.max(span[0] - moment, moment - span[0] - span[1], 0);
    if (away < distance) [best, distance] = [index, away];
  });
  return best;
}

function onKey(event) {
  const { row, span } = line.cursor;
  const moment = line.rows[row]?.spans[span]?.[0] ?? line.view.from;
  const keys = {
    ArrowRight: () => point(row, span + 1),
    ArrowLeft: () => point(row, Math.max(span - 1, 0)),
    ArrowDown: () => row + 1 < line.rows.length && point(row + 1, nearest(line.rows[row + 1], moment)),
    ArrowUp: () => row > 0 && point(row - 1, nearest(line.rows[row - 1], moment)),
    Home: () => point(row, 0),
    End: () => point(row, (line.rows[row]?.spans.length ?? 0) - 1),
    "+": () => zoom(0.5),
    "-": () => zoom(2),
    0: () => look(0, line.all),
  };
  if (event.ctrlKey || event.altKey || event.metaKey || !keys[event.key] || line.rows.length === 0) return;
  event.preventDefault();
  keys[event.key]();
}

function onPointer(event) {
  const row = line.rows.findIndex((it) => it.svg.contains(event.target));
  if (row < 0) return;
  const box = line.rows[row].svg.getBoundingClientRect();
  const { from, to } = line.view;
  point(row, nearest(line.rows[row], from + ((event.clientX - box.left) / box.width) * (to - from)));
}

// ---- What came

function fill(came, titleOf) {
  Object.assign(line, { names: came.names, all: came.seconds * 1e6, cursor: { row: 0, span: -1 } });
  const titles = new Map(came.clients.map((client) => [client.session, titleOf(client)]));
  const parts = [];
  line.rows = [];
  for (const client of came.clients) {
    if (client.tracks.length === 0) continue;
    const rows = client.tracks.map((track) => {
      const name = `GPU ${track.device} stream ${track.stream}${word[track.kind]}`;
      const svg = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
      line.rows.push({ label: `${titles.get(client.session)}, ${name}`, kind: track.kind, spans: track.spans, svg });
      return element("div", { className: "track" }, element("span", { textContent: name, title: name }), svg);
    });
    parts.push(element("h3", { textContent: titles.get(client.session) }), ...rows);
  }
  at("timeline-rows").replaceChildren(...parts);
  const columns = ["Program", "What", "Times", "In all", "Mean", "Longest"];
  const head = element("tr", {}, ...columns.map((title, index) => element("th", { scope: "col", className: index < 2 ? "text" : "", textContent: title })));
  const lines = came.table.map(([session, kind, name, count, all, longest]) => {
    const what = `${name === null ? "several" : came.names[name]}${kind === "work" ? "" : ` (${kind === "wait" ? "waited" : "held back"})`}`;
    const mark = kind === "work" ? (name === null ? "rest" : `c${name % COLOURS}`) : kind;
    const cells = [`${count}`, microseconds(all), microseconds(all / count), microseconds(longest)];
    return element(
      "tr",
      {},
      element("th", { scope: "row", className: "text", textContent: titles.get(session) ?? `session ${session}` }),
      element("td", { className: "text", title: what }, swatch(mark), what),
      ...cells.map((textContent) => element("td", { textContent })),
    );
  });
  at("timeline-table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...lines));
  const dropped = came.clients.reduce((sum, client) => sum + client.dropped, 0);
  const more = came.clients.reduce((sum, client) => sum + client.left_out, 0);
  const missing = [
    dropped ? `${dropped} operations found no room` : "",
    more ? `${more} streams are not drawn` : "",
    came.left_out ? "clients beyond 64 are left out" : "",
  ].filter(Boolean);
  const isEmpty = line.rows.length === 0;
  setText(at("timeline-state"), isEmpty ? `nothing ran in these ${came.seconds} seconds` : missing.join(", "));
  at("timeline-drawn").hidden = isEmpty;
  setText(at("timeline-said"), "");
  if (!isEmpty) look(0, line.all);
}

async function follow(ask, titleOf) {
  const say = (text, isTrouble = false) => {
    setText(at("timeline-state"), text);
    at("timeline-state").classList.toggle("trouble", isTrouble);
  };
  for (;;) {
    const came = await ask("api/timeline");
    if (came.state === "there") return fill(came, titleOf);
    if (came.state === "failed") return say(came.error, true);
    if (came.state === "nothing") return say("");
    say(`recording, ${came.left} s left`);
    await new Promise((goOn) => setTimeout(goOn, SECOND));
  }
}

// `ask` asks the server, `titleOf` names a client by what was recorded of it.
export function timeLine(ask, titleOf) {
  const button = at("record");
  const whileAsked = async (begin) => {
    button.disabled = true;
    at("timeline-state").classList.remove("trouble");
    try {
      await begin();
      await follow(ask, titleOf);
    } catch (error) {
      setText(at("timeline-state"), error.message);
      at("timeline-state").classList.add("trouble");
    }
    button.disabled = false;
  };
  button.addEventListener("click", () => whileAsked(() => ask("api/timeline", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" })));
  at("timeline-rows").addEventListener("keydown", onKey);
  at("timeline-rows").addEventListener("click", onPointer);
  at("zoom-in").addEventListener("click", () => zoom(0.5));
  at("zoom-out").addEventListener("click", () => zoom(2));
  at("zoom-all").addEventListener("click", () => look(0, line.all));
  // What was recorded before this page was opened.
  whileAsked(async () => {});
}
