// What the page is made of: elements, numbers as people read them, plots. Must not know what is shown.

const SVG = "http://www.w3.org/2000/svg";

// An element with its text or its children.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function drawing(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- Numbers as people read them

export const whole = (value) => Math.round(value).toLocaleString("en");
export const percent = (part) => (part > 0 && part < 0.005 ? "<1" : whole(part * 100));

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count.toFixed(count >= 100 || unit === 0 ? 0 : 1)} ${units[unit]}`;
}

export function seconds(value) {
  if (value >= 100) return `${whole(value)} s`;
  return value >= 1 ? `${value.toFixed(1)} s` : `${(value * 1000).toFixed(1)} ms`;
}

// ---- Plots

// The outline of an area between two lines of values, in pieces where something was not seen.
export function outline(lower, upper, top) {
  const last = Math.max(upper.length - 1, 1);
  const point = (value, index) => `${((index / last) * 600).toFixed(1)} ${(100 - (value / top) * 100).toFixed(1)}`;
  let path = "";
  let begin = null;
  for (let index = 0; index <= upper.length; index += 1) {
    const seen = index < upper.length && upper[index] !== null;
    if (seen && begin === null) begin = index;
    if (!seen && begin !== null) {
      const forth = [];
      const back = [];
      for (let moment = begin; moment < index; moment += 1) {
        forth.push(point(Math.min(upper[moment], top), moment));
        back.unshift(point(Math.min(lower[moment] ?? 0, top), moment));
      }
      path += `M${forth.join("L")}L${back.join("L")}Z`;
      begin = null;
    }
  }
  return path;
}

// Draws layers on top of each other: each has values and a class.
export function plot(svg, layers, top) {
  while (svg.childNodes.length > layers.length) svg.lastChild.remove();
  while (svg.childNodes.length < layers.length) svg.append(drawing("path"));
  let below = layers.length ? layers[0].values.map(() => 0) : [];
  layers.forEach((layer, index) => {
    const above = layer.values.map((value, moment) => (value === null ? null : below[moment] + value));
    svg.childNodes[index].setAttribute("d", outline(below, above, top));
    svg.childNodes[index].setAttribute("class", layer.colour);
    below = above.map((value, moment) => value ?? below[moment]);
  });
}

export function figure(title, isLow) {
  const svg = drawing("svg", { class: isLow ? "plot low" : "plot", viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img", "aria-label": title });
  const latest = element("span");
  const made = element("figure", {}, element("figcaption", {}, element("span", { textContent: title }), latest), svg);
  return { made, svg, latest };
}

export const latestOf = (values) => values.findLast((value) => value !== null) ?? 0;

export function meter(name) {
  const bar = element("i");
  const value = element("b");
  const made = element("div", { className: "meter" }, element("span", { textContent: name }), element("div", { className: "bar", ariaHidden: "true" }, bar), value);
  const set = (part, text) => {
    bar.style.width = `${Math.min(part * 100, 100).toFixed(1)}%`;
    setText(value, text);
  };
  return { made, set };
}

export function swatch(colour) {
  const svg = drawing("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" });
  svg.append(drawing("rect", { width: 1, height: 1, class: colour }));
  return svg;
}
