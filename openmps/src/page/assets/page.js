// Keeps the page of `openmps page` up to date: asks /api once a second and draws what it says.
//
// Names come from programs that may be hostile: they become text only, never markup.

import { timeLine } from "./timeline.js";
import { bytes, drawing, element, figure, latestOf, meter, percent, plot, seconds, setText, swatch, whole } from "./parts.js";

const SECOND = 1000;
// How long an answer may take.
const PATIENCE = 10 * SECOND;
// Seconds between two looks at plots, by how far these go back, and at the log.
const PLOTS_EVERY = { minute: 1, minutes: 2, day: 30 };
const LOG_EVERY = 3;
// Samples of the small curves.
const SHORT = 60;
// Colours of clients in the plots, as many as the server names clients.
const COLOURS = 8;
// Clients in the matrix of waits at most, a side.
const MATRIX = 24;

const state = {
  now: null,
  history: null,
  short: new Map(), // by client: the parts of kernels of the last minute, null where nothing was seen
  sort: { column: "kernels", descending: true },
  span: "minute",
  colours: new Map(), // of clients in the plots, by device and session
  paused: false,
  selected: null, // device and session
  token: "",
};

const at = (id) => document.getElementById(id);

// ---- Asking

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  const answer = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(PATIENCE) });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${answer.status}`);
  return answer.json();
}

// Without the token, or with a wrong one, it says so instead.
async function change(client, what) {
  try {
    return await ask("api/change", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ device: client.device, session: client.session, what }),
    });
  } catch (error) {
    return { done: false, said: error.message };
  }
}

// The top of a plot of memory: whoever has little of it shall see it, too. The bars say how much of all that is.
const roomAbove = (values) => Math.max(...values, 1) * 1.2;

// ---- Names

// What a client is known by, and what tells it from others of that name. Of one that has left only some of it is known.
const titleOf = (client) => `${client.label ? `${client.label} (${client.program})` : client.program} (${client.pid || "–"})`;

const whereOf = (client) =>
  [client.user, client.group ? `group ${client.group}` : "", client.container ? `container ${client.container}` : "", client.pod ? `pod ${client.pod}` : ""].filter(Boolean).join(", ");

const fullNameOf = (client) => [titleOf(client), whereOf(client)].filter(Boolean).join(" · ");

// ---- Devices

const cards = new Map();

function card(device) {
  const found = cards.get(device.device);
  if (found) return found;
  const about = element("p");
  const compute = meter("SM");
  const memory = meter("Memory");
  const shares = figure("Multiprocessors by client", false);
  const held = figure("Memory", true);
  const legend = element("ul", { className: "legend" });
  const title = element("h3");
  const made = element("article", { className: "device" }, title, about, compute.made, memory.made, shares.made, legend, held.made);
  const all = { made, title, about, compute, memory, shares, held, legend };
  cards.set(device.device, all);
  at("devices").append(made);
  return all;
}

function drawDevices() {
  for (const device of state.now.devices) {
    const { title, about, compute, memory } = card(device);
    setText(title, `GPU ${device.device} · ${device.name}`);
    setText(about, `${device.multiprocessors} multiprocessors, ${device.clients.length} clients · ${device.uuid}`);
    const part = device.rates.multiprocessors;
    compute.set(part, `${percent(part)} %`);
    memory.set(device.memory_used / Math.max(device.memory_total, 1), `${bytes(device.memory_used)} of ${bytes(device.memory_total)}`);
  }
  for (const [ordinal, { made }] of cards) {
    if (!state.now.devices.some((device) => device.device === ordinal)) {
      made.remove();
      cards.delete(ordinal);
    }
  }
}

function drawPlots() {
  if (!state.history) return;
  for (const device of state.history.devices) {
    const drawn = cards.get(device.device);
    const now = state.now?.devices.find((it) => it.device === device.device);
    if (!drawn || !now) continue;
    const rest = device.multiprocessors.slice();
    const colours = giveColours(device);
    const layers = device.clients.map((client, index) => {
      client.multiprocessors.forEach((value, moment) => {
        if (value !== null && rest[moment] !== null) rest[moment] = Math.max(rest[moment] - value, 0);
      });
      // Where the client was not there, those above it lie lower.
      const values = client.multiprocessors.map((value, moment) => (device.multiprocessors[moment] === null ? null : (value ?? 0)));
      const there = now.clients.find((it) => it.session === client.session) ?? client;
      return { values, colour: colours[index], name: fullNameOf(there) };
    });
    const others = rest.some((value) => value > 5);
    if (others || layers.length === 0) layers.push({ values: rest, colour: "rest", name: "others" });
    plot(drawn.shares.svg, layers, 1000);
    setText(drawn.shares.latest, `${percent(latestOf(device.multiprocessors) / 1000)} %`);
    const names = layers.map((layer) => element("li", { title: layer.name }, swatch(layer.colour), layer.name));
    if (drawn.legend.textContent !== layers.map((layer) => layer.name).join("")) drawn.legend.replaceChildren(...names);
    plot(drawn.held.svg, [{ values: device.memory, colour: "c0" }], roomAbove(device.memory));
    setText(drawn.held.latest, bytes(latestOf(device.memory) * 1024));
  }
}

// Clients keep their colours while they are drawn, and no two of a device have the same.
function giveColours(device) {
  const keys = device.clients.map((client) => `${device.device}-${client.session}`);
  for (const key of state.colours.keys()) {
    if (key.startsWith(`${device.device}-`) && !keys.includes(key)) state.colours.delete(key);
  }
  const taken = new Set(keys.map((key) => state.colours.get(key)));
  return keys.map((key, index) => {
    if (!state.colours.has(key)) {
      let colour = index;
      while (taken.has(colour)) colour = (colour + 1) % COLOURS;
      taken.add(colour);
      state.colours.set(key, colour);
    }
    return `c${state.colours.get(key)}`;
  });
}

// ---- Clients

// The columns: a title, what they are sorted by, and what stands in them. Optional ones are there when some client has them.
const COLUMNS = [
  { key: "program", title: "Program", text: true, value: (it) => it.program },
  { key: "label", title: "Label", text: true, optional: true, value: (it) => it.label ?? "" },
  { key: "device", title: "GPU", optional: true, value: (it) => it.device },
  { key: "pid", title: "PID", value: (it) => it.pid, show: (it) => (it.pid ? `${it.pid}` : "–") },
  { key: "user", title: "User", text: true, value: (it) => it.user },
  { key: "group", title: "Group", text: true, optional: true, value: (it) => it.group ?? "" },
  { key: "container", title: "Container", text: true, optional: true, value: (it) => it.container ?? "" },
  { key: "pod", title: "Pod", text: true, optional: true, value: (it) => it.pod ?? "" },
  { key: "kernels", title: "GPU %", value: (it) => it.rates.kernels, show: (it) => percent(it.rates.kernels) },
  { key: "multiprocessors", title: "SM %", value: (it) => it.rates.multiprocessors, show: (it) => percent(it.rates.multiprocessors) },
  { key: "waited", title: "Wait %", value: (it) => it.rates.waited, show: (it) => percent(it.rates.waited) },
  { key: "memory", title: "Memory", value: (it) => it.memory, show: (it) => `${bytes(it.memory)} / ${bytes(it.memory_limit)}` },
  { key: "launches", title: "Launches/s", value: (it) => it.rates.launches, show: (it) => whole(it.rates.launches) },
  { key: "queued", title: "Queued", value: (it) => it.queued, show: (it) => whole(it.queued) },
  { key: "copies", title: "Copied/s", value: (it) => it.rates.to_device + it.rates.from_device, show: (it) => bytes(it.rates.to_device + it.rates.from_device) },
  { key: "faults", title: "Faults", value: (it) => it.total.faults, show: (it) => `${it.total.faults}` },
];

const keyOf = (client) => `${client.device}-${client.session}`;
const rows = new Map();

function allClients() {
  return state.now.devices.flatMap((device) => device.clients.map((client) => ({ ...client, device: device.device })));
}

function shownColumns(clients) {
  const has = (column) => (column.key === "device" ? state.now.devices.length > 1 : clients.some((client) => column.value(client) !== ""));
  return COLUMNS.filter((column) => !column.optional || has(column));
}

function order(one, other) {
  const column = COLUMNS.find((it) => it.key === state.sort.column);
  const [a, b] = [column.value(one), column.value(other)];
  const compared = typeof a === "string" ? a.localeCompare(b) : a - b;
  return (state.sort.descending ? -compared : compared) || one.session - other.session;
}

function drawHead(columns) {
  const head = at("table").tHead.rows[0];
  const keys = columns.map((column) => column.key).join();
  if (head.dataset.keys !== keys) {
    head.dataset.keys = keys;
    const cells = columns.map((column) => {
      const button = element("button", { type: "button", textContent: column.title });
      button.addEventListener("click", () => sortBy(column));
      return element("th", { scope: "col", className: column.text ? "text" : "" }, button);
    });
    head.replaceChildren(...cells);
    rows.forEach((row) => row.made.remove());
    rows.clear();
  }
  columns.forEach((column, index) => {
    if (column.key !== state.sort.column) head.cells[index].removeAttribute("aria-sort");
    else head.cells[index].setAttribute("aria-sort", state.sort.descending ? "descending" : "ascending");
  });
}

function sortBy(column) {
  const again = state.sort.column === column.key;
  state.sort = { column: column.key, descending: again ? !state.sort.descending : !column.text };
  drawClients(true);
}

function makeRow(client, columns) {
  const cells = columns.map((column) => {
    if (column.key === "program") {
      const button = element("button", { type: "button" });
      button.addEventListener("click", () => openDetail(client.device, client.session));
      return element("th", { scope: "row" }, button);
    }
    const cell = element("td", { className: column.text ? "text" : "" });
    if (column.key === "kernels") {
      const svg = drawing("svg", { class: "spark", viewBox: "0 0 600 100", preserveAspectRatio: "none", "aria-hidden": "true" });
      cell.append(svg, element("span"));
    }
    return cell;
  });
  return { made: element("tr", {}, ...cells), cells };
}

function fillRow(row, client, columns) {
  columns.forEach((column, index) => {
    const text = column.show ? column.show(client) : `${column.value(client)}`;
    const cell = row.cells[index];
    if (column.key === "kernels") {
      setText(cell.lastChild, text);
      plot(cell.firstChild, [{ values: state.short.get(keyOf(client)) ?? [], colour: "" }], 1000);
    } else {
      setText(column.key === "program" ? cell.firstChild : cell, text);
      if (column.text || column.key === "program") cell.title = text;
      if (column.key === "faults") cell.classList.toggle("fault", client.total.faults > 0);
    }
  });
}

// Rows keep their places while somebody points at them or has come to them with the keyboard.
function isBusy(body) {
  return body.matches(":hover") || body.contains(document.activeElement);
}

function drawClients(isAsked = false) {
  const all = allClients();
  const wanted = at("filter").value.toLowerCase();
  const has = (client) => [client.program, client.user, client.group, client.label, client.pod, `${client.pid}`].some((text) => (text ?? "").toLowerCase().includes(wanted));
  const clients = all.filter(has).sort(order);
  const columns = shownColumns(all);
  drawHead(columns);
  const body = at("table").tBodies[0];
  const keys = new Set(clients.map(keyOf));
  for (const [key, row] of rows) {
    if (!keys.has(key)) {
      row.made.remove();
      rows.delete(key);
    }
  }
  const keepsOrder = !isAsked && isBusy(body);
  const focused = document.activeElement;
  clients.forEach((client, index) => {
    const key = keyOf(client);
    let row = rows.get(key);
    if (!row) {
      row = makeRow(client, columns);
      rows.set(key, row);
      body.append(row.made);
    }
    fillRow(row, client, columns);
    if (!keepsOrder && body.rows[index] !== row.made) body.insertBefore(row.made, body.rows[index]);
  });
  // What is moved loses the keyboard.
  if (focused !== document.activeElement && document.contains(focused)) focused.focus();
  const more = state.now.left_out ? `, ${whole(state.now.left_out)} more that use less` : "";
  setText(at("count"), clients.length === all.length ? `${all.length}${more}` : `${clients.length} of ${all.length}${more}`);
  at("table").hidden = all.length === 0;
  at("nobody").hidden = all.length > 0;
}

// ---- Who waits for whom

// Of each client those who wait the most, and those for whom they do; who is not shown has no session and is one of these.
function drawWaits() {
  const known = allClients().filter((client) => client.waits.length > 0);
  at("waits").hidden = known.length === 0;
  if (known.length === 0) return;
  const names = new Map(allClients().map((client) => [client.session, fullNameOf(client)]));
  const most = (sums) => [...sums].sort((one, other) => other[1] - one[1]).slice(0, MATRIX).map(([session]) => session);
  const inOrder = (sessions) => sessions.sort((one, other) => (one ?? Infinity) - (other ?? Infinity));
  const waited = new Map();
  const had = new Map();
  for (const client of known) {
    for (const wait of client.waits) {
      waited.set(client.session, (waited.get(client.session) ?? 0) + wait.part);
      had.set(wait.session, (had.get(wait.session) ?? 0) + wait.part);
    }
  }
  const columns = inOrder(most(had));
  const pids = new Map(allClients().map((client) => [client.session, client.pid]));
  const short = (session) => (pids.get(session) ? `${pids.get(session)}` : name(session));
  const name = (session) => names.get(session) ?? "others";
  const head = element("tr", {}, element("td", { className: "text", textContent: "waits for" }), ...columns.map((session) => element("th", { scope: "col", title: name(session), textContent: short(session) })));
  const lines = inOrder(most(waited)).map((row) => {
    const waits = new Map(known.find((client) => client.session === row).waits.map((wait) => [wait.session, wait.part]));
    const cells = columns.map((column) => {
      const part = waits.get(column) ?? 0;
      const weight = part < 0.005 ? 0 : part < 0.1 ? 1 : part < 0.4 ? 2 : 3;
      return element("td", { className: `w${weight}`, textContent: part > 0 ? percent(part) : "" });
    });
    return element("tr", {}, element("th", { scope: "row", textContent: name(row) }), ...cells);
  });
  at("waits").querySelector(".scroll").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)));
}

// ---- Log

function drawLog(log) {
  const list = at("log");
  const text = log.lines.map((line) => line.text).join("\n");
  if (list.dataset.text !== text) {
    list.dataset.text = text;
    const isAtEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 8;
    list.replaceChildren(...log.lines.map((line) => element("li", { className: line.trouble ? "trouble" : "", textContent: line.text })));
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }
  at("unread").hidden = log.unread.length === 0;
  setText(at("unread"), `Not read: ${log.unread.join("; ")}`);
}

// ---- One client

const PLOTS = [
  { key: "kernels", title: "GPU %", colour: "c0", text: (value) => `${percent(value / 1000)} %` },
  { key: "multiprocessors", title: "SM %", colour: "c2", text: (value) => `${percent(value / 1000)} %` },
  { key: "waited", title: "Wait %", colour: "c1", text: (value) => `${percent(value / 1000)} %` },
  { key: "memory", title: "Memory", colour: "c3", text: (value) => bytes(value * 1024) },
];

const plots = PLOTS.map((of) => ({ ...of, ...figure(of.title, true) }));

function selectedClient() {
  const { device, session } = state.selected ?? {};
  return state.now?.devices.find((it) => it.device === device)?.clients.find((it) => it.session === session);
}

function openDetail(device, session) {
  state.selected = { device, session };
  const client = selectedClient();
  if (!client) return;
  setText(at("detail-title"), titleOf(client));
  at("percentage").value = "";
  at("memory").value = "";
  say("");
  resetEnd();
  at("detail").showModal();
  drawDetail();
  drawClientPlots();
  readLimits();
}

async function readLimits() {
  at("needs-token").hidden = state.token !== "";
  if (!state.token) return;
  const { device } = state.selected;
  const came = await change(state.selected, "show");
  if (!came.done || !came.limits) {
    say(came.said, true);
    return;
  }
  const { percentage, priority, memory } = came.limits;
  at("percentage").value = percentage;
  at("slider").value = percentage;
  at("priority").value = `${priority}`;
  const limit = memory?.find((of) => of.device === `${device}`)?.limit;
  at("memory").value = limit ? Math.round(limit / 2 ** 20) : "";
}

function drawDetail() {
  const client = selectedClient();
  at("left").hidden = Boolean(client);
  for (const control of at("limits").elements) control.disabled = !client;
  if (!client) return;
  const { total, rates } = client;
  const facts = [
    ["User", client.user],
    ["Group", client.group ?? "–"],
    ["Container", client.container ?? "–"],
    ["Pod", client.pod ?? "–"],
    ["GPU", `${state.selected.device}`],
    ["Session", `${client.session}`],
    ["Memory", bytes(client.memory)],
    ["Of at most", bytes(client.memory_limit)],
    ["Queued", whole(client.queued)],
    ["Kernels", whole(total.kernels)],
    ["Kernels ran", seconds(total.kernel_seconds)],
    ["Multiprocessors", seconds(total.multiprocessor_seconds)],
    ["Waited", seconds(total.waited_seconds)],
    ["Held by its limit", seconds(total.throttled_seconds)],
    ["Copies", `${whole(total.copies)}, ${seconds(total.copy_seconds)}`],
    ["To device", `${bytes(total.bytes_to_device)}, ${bytes(rates.to_device)}/s`],
    ["From device", `${bytes(total.bytes_from_device)}, ${bytes(rates.from_device)}/s`],
    ["Within device", bytes(total.bytes_within_device)],
    ["Modules loaded", `${whole(total.loads)}, ${seconds(total.load_seconds)}`],
    ["Faults", `${total.faults}`],
  ];
  const list = at("facts");
  if (list.childNodes.length !== facts.length) {
    list.replaceChildren(...facts.map(([name]) => element("div", {}, element("dt", { textContent: name }), element("dd"))));
  }
  facts.forEach(([, value], index) => {
    const place = list.childNodes[index].lastChild;
    setText(place, value);
    place.title = value;
  });
}

async function drawClientPlots() {
  const { device, session } = state.selected;
  let history;
  try {
    history = await ask(`api/history?device=${device}&session=${session}&span=${state.span}`);
  } catch {
    return; // It has none: there are more clients than have one.
  }
  if (state.selected?.session !== session) return;
  for (const of of plots) {
    const most = of.key === "memory" ? roomAbove(history.memory) : 1000;
    plot(of.svg, [{ values: history[of.key], colour: of.colour }], most);
    setText(of.latest, of.text(latestOf(history[of.key])));
  }
}

function say(text, isTrouble = false) {
  setText(at("said"), text);
  at("said").classList.toggle("trouble", isTrouble);
}

async function set(what, words) {
  say("…");
  const came = await change(state.selected, what);
  say(came.done ? words : came.said, !came.done);
}

function resetEnd() {
  at("end").dataset.asked = "";
  setText(at("end"), "End this client…");
}

function submitLimit(event) {
  event.preventDefault();
  const which = event.submitter?.value;
  const percentage = Number(at("percentage").value);
  const memory = at("memory").value;
  if (which === "percentage") set({ percentage }, `It has ${percentage} % of the multiprocessors now.`);
  if (which === "memory") set({ memory: memory ? Number(memory) * 2 ** 20 : null }, memory ? `It may have ${memory} MiB now.` : "It has no limit of memory now.");
  if (which === "priority") set({ priority: Number(at("priority").value) }, "Its priority is set.");
}

function end() {
  if (at("end").dataset.asked) {
    resetEnd();
    set("end", "It was ended.");
  } else {
    at("end").dataset.asked = "yes";
    setText(at("end"), "Really end it?");
  }
}

// ---- Keeping up

function remember() {
  const there = new Map();
  for (const client of allClients()) {
    const values = state.short.get(keyOf(client)) ?? Array(SHORT).fill(null);
    there.set(keyOf(client), [...values, client.rates.kernels * 1000].slice(-SHORT));
  }
  state.short = there;
}

function status(text, isTrouble = false) {
  setText(at("status"), text);
  at("status").classList.toggle("trouble", isTrouble);
}

async function look(round) {
  state.now = await ask("api/now");
  setText(at("hostname"), `on ${state.now.hostname}`);
  status(state.now.error ? `The daemon: ${state.now.error}` : state.paused ? "paused" : "live", Boolean(state.now.error));
  remember();
  drawDevices();
  drawClients();
  drawWaits();
  if (at("detail").open) {
    drawDetail();
    if (round % PLOTS_EVERY[state.span] === 0) drawClientPlots();
  }
  if (round % PLOTS_EVERY[state.span] === 0) await lookBack();
  if (round % LOG_EVERY === 0) drawLog(await ask("api/log"));
}

async function lookBack() {
  state.history = await ask(`api/history?span=${state.span}`);
  drawPlots();
}

async function readShort() {
  const { clients } = await ask("api/recent");
  for (const client of clients) state.short.set(keyOf(client), client.kernels);
}

async function keepUp() {
  let round = 0;
  for (;;) {
    const begun = performance.now();
    if (!state.paused && !document.hidden) {
      try {
        if (round === 0) await readShort();
        await look(round);
        round += 1;
      } catch (error) {
        status(`No answer: ${error.message}`, true);
      }
    }
    const left = Math.max(SECOND - (performance.now() - begun), 100);
    await new Promise((goOn) => setTimeout(goOn, left));
  }
}

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname);
  state.token = given ?? sessionStorage.getItem("token") ?? "";
  if (given) sessionStorage.setItem("token", given);
  at("token").value = state.token;
}

function listen() {
  at("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    at("pause").setAttribute("aria-pressed", `${state.paused}`);
    status(state.paused ? "paused" : "live");
  });
  at("token").addEventListener("change", () => {
    state.token = at("token").value.trim();
    sessionStorage.setItem("token", state.token);
  });
  at("filter").addEventListener("input", () => state.now && drawClients(true));
  for (const button of document.querySelectorAll("[data-span]")) {
    button.addEventListener("click", () => {
      state.span = button.dataset.span;
      for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", `${other === button}`);
      lookBack().catch((error) => status(`No answer: ${error.message}`, true));
    });
  }
  at("slider").addEventListener("input", () => {
    at("percentage").value = at("slider").value;
  });
  at("percentage").addEventListener("input", () => {
    at("slider").value = at("percentage").value;
  });
  at("close").addEventListener("click", () => at("detail").close());
  at("limits").addEventListener("submit", submitLimit);
  at("end").addEventListener("click", end);
}

at("plots").append(...plots.map((of) => of.made));
takeToken();
listen();
timeLine(ask, (recorded) => {
  const there = state.now ? allClients().find((client) => client.session === recorded.session) : null;
  return fullNameOf(there ?? recorded);
});
keepUp();
