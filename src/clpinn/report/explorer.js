// The live explorer: sliders, the field, cuts through the cursor, and the reference beside them.

const FULL = 100; // nodes on each axis of a field at rest
const FRAME = 18; // milliseconds that a frame may take while something is dragged
const REST = 120; // milliseconds without a change after which the full field is drawn
const TURN = 6; // seconds that time takes from end to end

// Axes -----------------------------------------------------------------------------------------------------------

function fromUnit(axis, unit) {
  const u = Math.min(1, Math.max(0, unit));
  const value = axis.scale === "log" ? axis.low * (axis.high / axis.low) ** u : axis.low + u * (axis.high - axis.low);
  return Math.min(axis.high, Math.max(axis.low, value));
}

function toUnit(axis, value) {
  if (axis.scale === "log") return Math.log(value / axis.low) / Math.log(axis.high / axis.low);
  return (value - axis.low) / (axis.high - axis.low);
}

function text(value, digits = 4) {
  if (!Number.isFinite(value)) return String(value);
  return String(Number(value.toPrecision(digits))).replace("-", "\u2212");
}

function ticks(axis, wanted) {
  const found = [];
  if (axis.scale === "log" && axis.high / axis.low >= 10) {
    const first = Math.floor(Math.log10(axis.low)), last = Math.ceil(Math.log10(axis.high));
    const steps = last - first <= 2 ? [1, 2, 5] : [1];
    for (let e = first; e <= last; e++) for (const s of steps) found.push(s * 10 ** e);
  } else {
    const rough = (axis.high - axis.low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
    for (let k = Math.ceil(axis.low / step - 1e-9); k * step <= axis.high + 1e-9 * step; k++) found.push(k * step);
  }
  return found.filter((v) => toUnit(axis, v) > -1e-9 && toUnit(axis, v) < 1 + 1e-9);
}

// Colours: even steps of lightness in OKLab, blue to yellow, or blue and orange about a light zero ----------------

// The sRGB bytes of a colour; one that screens cannot show is made paler.
function colour(lightness, chroma, hue) {
  let found = linearRGB(lightness, chroma, hue);
  while (chroma > 0.001 && found.some((v) => v < -0.001 || v > 1.001)) {
    chroma *= 0.97;
    found = linearRGB(lightness, chroma, hue);
  }
  return found.map((v) => {
    const clipped = Math.min(1, Math.max(0, v));
    return 255 * (clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055);
  });
}

function linearRGB(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue * Math.PI / 180), b = chroma * Math.sin(hue * Math.PI / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

function table(shade) {
  const bytes = new Uint8ClampedArray(3 * 256);
  for (let i = 0; i < 256; i++) bytes.set(shade(i / 255), 3 * i);
  return bytes;
}

const ONE_SIDED = table((u) => colour(0.24 + 0.69 * u, 0.09 + 0.06 * u * u, 285 - 180 * u));
const TWO_SIDED = table((u) => {
  const side = Math.abs(2 * u - 1);
  return colour(0.97 - 0.55 * side, 0.17 * Math.min(1, 1.6 * side) * (1 - 0.2 * side), u < 0.5 ? 255 : 45);
});

// Colours from low to high; about zero where the values lie on both sides of it.
function scaleOf(low, high) {
  if (!(low < high)) {
    const pad = Math.abs(low) * 1e-3 || 1;
    [low, high] = Number.isFinite(low) ? [low - pad, low + pad] : [0, 1];
  }
  const most = Math.max(Math.abs(low), Math.abs(high));
  const both = low < -0.05 * most && high > 0.05 * most;
  return both ? { low: -most, high: most, colours: TWO_SIDED } : { low, high, colours: ONE_SIDED };
}

function extremes(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (v < low && v > -Infinity) low = v;
    if (v > high && v < Infinity) high = v;
  }
  return [low, high];
}

function paintInto(bytes, at, value, scale) {
  if (!Number.isFinite(value)) return;
  const i = Math.round(255 * Math.min(1, Math.max(0, (value - scale.low) / (scale.high - scale.low))));
  bytes[at] = scale.colours[3 * i];
  bytes[at + 1] = scale.colours[3 * i + 1];
  bytes[at + 2] = scale.colours[3 * i + 2];
  bytes[at + 3] = 255;
}

// Pictures -------------------------------------------------------------------------------------------------------

function blank(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

// A picture with a pixel a node; nodes run along the horizontal axis first, from the lower left.
function gridPicture(values, across, up, scale) {
  const canvas = blank(across, up), context = canvas.getContext("2d"), image = context.createImageData(across, up);
  for (let j = 0, k = 0; j < up; j++) {
    for (let i = 0; i < across; i++, k++) paintInto(image.data, 4 * ((up - 1 - j) * across + i), values[k], scale);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// A picture of nodes that lie anywhere: each cell as two triangles with interpolated values. u and v are in [0, 1].
function meshPicture(u, v, values, across, up, scale, width, height) {
  const canvas = blank(width, height), context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const triangle = (a, b, c) => {
    const [xa, xb, xc] = [a, b, c].map((k) => u[k] * (width - 1));
    const [ya, yb, yc] = [a, b, c].map((k) => (1 - v[k]) * (height - 1));
    const area = (xb - xa) * (yc - ya) - (xc - xa) * (yb - ya);
    if (!area) return;
    const right = Math.min(width - 1, Math.ceil(Math.max(xa, xb, xc)));
    const bottom = Math.min(height - 1, Math.ceil(Math.max(ya, yb, yc)));
    for (let y = Math.max(0, Math.floor(Math.min(ya, yb, yc))); y <= bottom; y++) {
      for (let x = Math.max(0, Math.floor(Math.min(xa, xb, xc))); x <= right; x++) {
        const p = ((x - xa) * (yc - ya) - (xc - xa) * (y - ya)) / area;
        const q = ((xb - xa) * (y - ya) - (x - xa) * (yb - ya)) / area;
        if (p < -0.01 || q < -0.01 || p + q > 1.01) continue;
        const value = values[a] + p * (values[b] - values[a]) + q * (values[c] - values[a]);
        paintInto(image.data, 4 * (y * width + x), value, scale);
      }
    }
  };
  for (let j = 0; j + 1 < up; j++) {
    for (let i = 0; i + 1 < across; i++) {
      const k = j * across + i;
      triangle(k, k + 1, k + across);
      triangle(k + across + 1, k + 1, k + across);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// A canvas with a frame, ticks and names of its axes. `inside` is the frame in CSS pixels.
class Panel {
  constructor(canvas) {
    this.canvas = canvas;
  }

  begin(style, barred) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const pixels = [width, height].map((length) => Math.max(1, Math.round(length * ratio)));
    if (this.canvas.width !== pixels[0]) this.canvas.width = pixels[0];
    if (this.canvas.height !== pixels[1]) this.canvas.height = pixels[1];
    this.style = style;
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.font = "12px system-ui, sans-serif";
    const right = barred ? 74 : 14, left = 52;
    this.inside = { x: left, y: 10, width: Math.max(20, width - left - right), height: Math.max(20, height - 50) };
  }

  place(u, v) {
    const { x, y, width, height } = this.inside;
    return [x + u * width, y + (1 - v) * height];
  }

  picture(image, exact) {
    const { x, y, width, height } = this.inside, context = this.context;
    context.imageSmoothingEnabled = true;
    if (exact) context.drawImage(image, x, y, width, height);
    else context.drawImage(image, 0.5, 0.5, image.width - 1, image.height - 1, x, y, width, height);
  }

  frame(across, up) {
    const context = this.context, { x, y, width, height } = this.inside;
    context.strokeStyle = this.style.soft;
    context.fillStyle = this.style.ink;
    context.lineWidth = 1;
    context.strokeRect(x, y, width, height);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const value of ticks(across, width / 70)) {
      const [at] = this.place(toUnit(across, value), 0);
      context.fillRect(at - 0.5, y + height, 1, 4);
      context.fillText(text(value), at, y + height + 6);
    }
    context.fillText(across.name, x + width / 2, y + height + 23);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(up, height / 40)) {
      const [, at] = this.place(0, toUnit(up, value));
      context.fillRect(x - 4, at - 0.5, 4, 1);
      context.fillText(text(value), x - 7, at);
    }
    context.save();
    context.translate(8, y + height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(up.name, 0, 0);
    context.restore();
  }

  bar(scale) {
    const context = this.context, { x, y, width, height } = this.inside, left = x + width + 14;
    for (let i = 0; i < height; i++) {
      const k = 3 * Math.round(255 * (1 - i / height));
      context.fillStyle = `rgb(${scale.colours.slice(k, k + 3).join(" ")})`;
      context.fillRect(left, y + i, 14, 1.5);
    }
    context.strokeStyle = this.style.soft;
    context.strokeRect(left, y, 14, height);
    context.fillStyle = this.style.ink;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const axis = { low: scale.low, high: scale.high, scale: "linear" };
    for (const value of ticks(axis, height / 32)) {
      context.fillText(text(value), left + 19, y + (1 - toUnit(axis, value)) * height);
    }
  }

  // A line through points, or circles at them; u and v are in [0, 1].
  points(u, v, colour, circles) {
    const context = this.context, { x, y, width, height } = this.inside;
    context.save();
    context.beginPath();
    context.rect(x - 4, y - 4, width + 8, height + 8);
    context.clip();
    context.strokeStyle = colour;
    context.lineWidth = circles ? 1.5 : 2;
    context.beginPath();
    let down = false;
    for (let k = 0; k < u.length; k++) {
      const [a, b] = this.place(u[k], v[k]);
      if (!Number.isFinite(b)) down = false;
      else if (circles) {
        context.moveTo(a + 3, b);
        context.arc(a, b, 3, 0, 2 * Math.PI);
      } else {
        if (down) context.lineTo(a, b);
        else context.moveTo(a, b);
        down = true;
      }
    }
    context.stroke();
    context.restore();
  }

  // A thin line from bottom to top.
  upright(u) {
    const context = this.context;
    context.strokeStyle = this.style.soft;
    context.lineWidth = 1;
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(...this.place(u, 0));
    context.lineTo(...this.place(u, 1));
    context.stroke();
    context.setLineDash([]);
  }

  // Lines that are seen on any colour.
  dashed(lines) {
    const context = this.context;
    for (const [shade, width, dash] of [["#00000099", 2, []], ["#ffffffe6", 1, [5, 4]]]) {
      context.strokeStyle = shade;
      context.lineWidth = width;
      context.setLineDash(dash);
      for (const line of lines) {
        context.beginPath();
        line.forEach(([u, v], k) => context[k ? "lineTo" : "moveTo"](...this.place(u, v)));
        context.stroke();
      }
    }
    context.setLineDash([]);
  }
}

const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

// The explorer ---------------------------------------------------------------------------------------------------

function explore(root, data, evaluate) {
  const find = (selector) => root.querySelector(selector);
  root.id ||= `clpinn-explorer-${document.querySelectorAll(".clpinn-explorer").length}`;
  const { coordinates, parameters, outputs, references } = data;
  const time = coordinates.findIndex((axis) => axis.name === "t");
  // Two coordinates are shown: with time only where there are no two others, and then time runs to the right.
  const steady = coordinates.map((_, k) => k).filter((k) => k !== time);
  const shown = steady.length > 1 ? steady.slice(0, 2) : time >= 0 ? [time, ...steady] : steady;
  const [across, up] = shown;
  const flat = shown.length === 2;
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");

  const theta = parameters.map((axis) => fromUnit(axis, 0.5));
  const point = coordinates.map((axis, k) => fromUnit(axis, k === time ? 0.5 : 0.3));
  const times = { opening: [], drag: [], full: [] };
  let output = outputs[0], held = null, nodes = 48, field = null, dragging = false;
  let playing = 0, waiting = 0, resting = 0; // of timers, 0 for none
  const style = {};

  const main = new Panel(find(".field canvas")), beside = new Panel(find(".reference canvas"));
  const cuts = [...root.querySelectorAll(".cut")].map((figure) => {
    return { figure, panel: new Panel(figure.querySelector("canvas")) };
  });

  const named = (axes, values) => axes.map((axis, k) => `${axis.name}\u00a0=\u00a0${text(values[k])}`).join(", ");
  const physical = (k) => `physical ${coordinates[k].name}`;
  const drawn = (k) => (data.extent ? { ...data.extent[k], name: coordinates[k].name } : coordinates[k]);

  // Points of the box, `point` but for the shown coordinates, which run over units.
  function gridPoints(first, second) {
    const rows = new Float64Array(first.length * second.length * coordinates.length);
    let at = 0;
    for (const v of second) {
      for (const u of first) {
        for (let k = 0; k < coordinates.length; k++) {
          rows[at++] = k === across ? fromUnit(coordinates[k], u) : k === up ? fromUnit(coordinates[k], v) : point[k];
        }
      }
    }
    return rows;
  }

  const unitOf = (k) => toUnit(coordinates[k], point[k]);
  const none = Float64Array.of(0);

  // Points along one of the shown coordinates, through the cursor.
  function line(along, units) {
    if (!flat) return gridPoints(units, none);
    return along === across ? gridPoints(units, [unitOf(up)]) : gridPoints([unitOf(across)], units);
  }

  const even = (count) => Float64Array.from({ length: count }, (_, i) => i / (count - 1));

  // Reference ----------------------------------------------------------------------------------------------------

  let sampled = { key: "" };
  const exact = references && new Float32Array(bytes(references.values).buffer);
  const size = references && references.axes.reduce((product, axis) => product * axis.length, 1);
  const differences = new Map();

  function nearest() {
    let best = 0, least = Infinity;
    references.thetas.forEach((row, i) => {
      const apart = parameters.map((axis, k) => toUnit(axis, row[k]) - toUnit(axis, theta[k]));
      const distance = apart.reduce((sum, along) => sum + along ** 2, 0);
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  }

  function referenceValues(index, name) {
    const at = (index * outputs.length + outputs.indexOf(name)) * size;
    return exact.subarray(at, at + size);
  }

  // The reference at a point of the box, one of many rows: linear between the nodes of its grid.
  const corners = new Int32Array(2 ** coordinates.length), weights = new Float64Array(corners.length);
  function referenceAt(values, rows, row = 0) {
    let count = 1;
    corners[0] = 0;
    weights[0] = 1;
    for (let k = 0; k < coordinates.length; k++) {
      const axis = references.axes[k], value = rows[row * coordinates.length + k];
      let i = 0;
      while (i + 2 < axis.length && axis[i + 1] <= value) i++;
      for (let c = 0; c < count; c++) corners[c] = corners[c] * axis.length + i;
      if (axis.length === 1) continue;
      const share = Math.min(1, Math.max(0, (value - axis[i]) / (axis[i + 1] - axis[i])));
      for (let c = 0; c < count; c++) {
        corners[count + c] = corners[c] + 1;
        weights[count + c] = weights[c] * share;
        weights[c] *= 1 - share;
      }
      count *= 2;
    }
    let sum = 0;
    for (let c = 0; c < count; c++) if (weights[c]) sum += weights[c] * values[corners[c]];
    return sum;
  }

  // The relative L2 difference between the network and the reference, over the reference's grid.
  function difference(index) {
    const key = `${index} ${output}`;
    if (!differences.has(key)) {
      const rows = new Float64Array(size * coordinates.length);
      for (let at = 0; at < size; at++) {
        let rest = at;
        for (let k = coordinates.length - 1; k >= 0; k--) {
          rows[at * coordinates.length + k] = references.axes[k][rest % references.axes[k].length];
          rest = Math.floor(rest / references.axes[k].length);
        }
      }
      const found = evaluate(rows, references.thetas[index])[output], values = referenceValues(index, output);
      let above = 0, below = 0;
      for (let at = 0; at < size; at++) {
        above += (found[at] - values[at]) ** 2;
        below += values[at] ** 2;
      }
      differences.set(key, below > 0 ? Math.sqrt(above / below) : NaN);
    }
    return differences.get(key);
  }

  // Drawing ------------------------------------------------------------------------------------------------------

  function compute(count) {
    const first = even(flat ? count : 4 * count), second = flat ? even(count) : none;
    const points = gridPoints(first, second);
    field = { points, first, second, theta: [...theta], values: evaluate(points, theta) };
  }

  // The extent of physical coordinates, or the box: where a node is drawn.
  function drawnAt(found, k, count) {
    const axis = drawn(k), values = found[physical(k)];
    return Float64Array.from({ length: count }, (_, i) => toUnit(axis, values[i]));
  }

  function picture(panel, found, first, second, scale) {
    const values = found[output];
    if (!data.extent) return panel.picture(gridPicture(values, first.length, second.length, scale), false);
    const u = drawnAt(found, across, values.length), v = drawnAt(found, up, values.length);
    const pixels = dragging ? [210, 160] : [420, 320];
    panel.picture(meshPicture(u, v, values, first.length, second.length, scale, ...pixels), true);
  }

  // One scale for the network and the reference beside it.
  function scaleNow(index) {
    const values = [...extremes(field.values[output]), ...(index < 0 ? [] : extremes(referenceValues(index, output)))];
    return scaleOf(...extremes(values));
  }

  function paint() {
    const [low, high] = extremes(field.values[output]), index = references ? nearest() : -1;
    const scale = held ?? scaleNow(index);
    main.begin(style, flat);
    if (flat) {
      picture(main, field.values, field.first, field.second, scale);
      crosshair(main, theta);
      main.frame(drawn(across), drawn(up));
      main.bar(scale);
    }
    if (flat && references) paintReference(index, scale);
    const here = evaluate(Float64Array.from(point), theta);
    const place = data.extent ? coordinates.map((_, k) => here[physical(k)][0]) : point;
    if (!flat) paintCut(main, across, scale, index, place);
    else cuts.forEach(({ figure, panel }, i) => paintCut(panel, shown[i], scale, index, place, figure));
    tell(low, high, index, place, here[output][0]);
  }

  function crosshair(panel, at) {
    const lines = [across, up].map((along) => {
      const units = even(data.extent ? 40 : 2), rows = line(along, units);
      if (!data.extent) return [...units].map((u) => (along === across ? [u, unitOf(up)] : [unitOf(across), u]));
      const found = evaluate(rows, at), u = drawnAt(found, across, units.length), v = drawnAt(found, up, units.length);
      return [...u].map((a, k) => [a, v[k]]);
    });
    panel.dashed(lines);
  }

  function paintReference(index, scale) {
    const at = references.thetas[index], elsewhere = point.filter((_, k) => !shown.includes(k));
    const key = [index, output, ...elsewhere].join(" ");
    if (sampled.key !== key) {
      const values = referenceValues(index, output), units = even(data.extent ? 41 : 64);
      const rows = gridPoints(units, units), found = data.extent ? evaluate(rows, at) : {};
      found[output] = Float64Array.from({ length: units.length ** 2 }, (_, row) => referenceAt(values, rows, row));
      sampled = { key, units, found };
    }
    beside.begin(style, true);
    picture(beside, sampled.found, sampled.units, sampled.units, scale);
    crosshair(beside, at);
    beside.frame(drawn(across), drawn(up));
    beside.bar(scale);
  }

  // The output along one coordinate through the cursor: a line, and circles at the reference's nodes.
  function paintCut(panel, along, scale, index, place, figure) {
    const count = flat ? 120 : field.first.length, units = even(count), axis = drawn(along);
    const found = flat ? evaluate(line(along, units), theta) : field.values;
    const circles = { u: [], v: [] };
    if (index >= 0) {
      const nodes = references.axes[along].map((value) => toUnit(coordinates[along], value)), rows = line(along, nodes);
      const values = referenceValues(index, output);
      circles.v = nodes.map((_, row) => referenceAt(values, rows, row));
      circles.u = data.extent ? drawnAt(evaluate(rows, references.thetas[index]), along, nodes.length) : nodes;
    }
    const [low, high] = extremes([...found[output], ...circles.v, scale.low, scale.high]);
    const pad = 0.04 * (high - low) || 1;
    const vertical = { name: output, low: low - pad, high: high + pad, scale: "linear" };
    const heights = (values) => Array.from(values, (value) => toUnit(vertical, value));
    panel.begin(style, false);
    panel.frame(axis, vertical);
    panel.upright(toUnit(axis, place[along]));
    panel.points(circles.u, heights(circles.v), style.truth, true);
    panel.points(data.extent ? drawnAt(found, along, count) : units, heights(found[output]), style.network, false);
    if (!figure) return;
    const other = along === across ? up : across, ends = extremes(found[output]);
    const title = `${output} along ${coordinates[along].name} at ${named([coordinates[other]], [place[other]])}`;
    figure.querySelector("h3").textContent = title;
    panel.canvas.setAttribute("aria-label", `${title}, from ${text(ends[0])} to ${text(ends[1])}`);
  }

  // All that is said in words.
  function tell(low, high, index, place, value) {
    let words = `At ${named(coordinates, place)}: ${output} = ${text(value, 6)}`;
    if (index >= 0) words += `; nearest reference about ${text(referenceAt(referenceValues(index, output), point), 3)}`;
    find("output").textContent = words;
    const title = parameters.length ? ` at ${named(parameters, theta)}` : "";
    find(".field h3").textContent = `${output}${title}`;
    find(".range").textContent = `${output} from ${text(low)} to ${text(high)}`;
    main.canvas.setAttribute("aria-label", `${output}${title}, from ${text(low)} to ${text(high)}`);
    if (index < 0) return;
    const caption = find("figcaption"), kind = references.kind ? ` (${references.kind})` : "";
    const grid = references.axes.map((axis) => axis.length).join(" × ");
    const apart = !dragging || differences.has(`${index} ${output}`) ? text(difference(index), 3) : "…";
    const there = `The nearest in this page, at ${named(parameters, references.thetas[index])}. There the`;
    const at = parameters.length ? there : "The";
    find(".reference h3").textContent = `Reference${kind}`;
    caption.textContent = `${at} network differs by ${apart} (relative L2, ${grid} points). Circles are the reference.`;
    beside.canvas.setAttribute("aria-label", `Reference of ${output}. ${caption.textContent}`);
  }

  function draw(full) {
    const start = performance.now(), count = full ? FULL : nodes;
    dragging = !full;
    compute(count);
    paint();
    const spent = performance.now() - start;
    if (!full) nodes = Math.round(Math.min(FULL, Math.max(16, 0.5 * nodes + 0.5 * count * Math.sqrt(FRAME / spent))));
    const kept = times[full ? "full" : "drag"];
    kept.push(spent);
    if (kept.length > 1000) kept.shift();
  }

  // At most one drawing a frame; the full field once nothing has changed for a while.
  function changed(rest = REST) {
    if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; draw(false); });
    clearTimeout(resting);
    resting = setTimeout(() => { resting = 0; draw(true); }, rest);
  }

  const moved = () => { if (!waiting) waiting = requestAnimationFrame(() => { waiting = 0; paint(); }); };

  // Controls -----------------------------------------------------------------------------------------------------

  const form = find(".controls"), sliders = [];

  function element(kind, attributes = {}, ...children) {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // A slider for one axis with its number beside it; `set` is called with a value in the box.
  function slider(axis, value, set, tasks = []) {
    const id = `${root.id}-${axis.name}`;
    const range = element("input", { type: "range", id, min: 0, max: 1000, step: 1 });
    const number = element("input", { type: "number", step: "any", min: axis.low, max: axis.high });
    number.setAttribute("aria-label", `${axis.name}, exact value`);
    const note = element("small", {}, axis.scale === "linear" ? "" : ` ${axis.scale}`);
    const track = element("div", { class: "track" }, range);
    for (const task of new Set(tasks)) {
      const mark = element("span", { class: "mark", "aria-hidden": "true", title: `trained at ${text(task)}` });
      mark.style.left = `calc(8px + ${toUnit(axis, task)} * (100% - 16px))`; // where the thumb's middle is
      track.append(mark);
    }
    const ends = [axis.low, axis.high].map((end) => element("span", {}, text(end)));
    track.append(element("div", { class: "ends", "aria-hidden": "true" }, ...ends));
    const show = (current) => {
      range.value = Math.round(1000 * toUnit(axis, current));
      range.setAttribute("aria-valuetext", `${axis.name} ${text(current)}`);
      number.value = Number(current.toPrecision(6));
    };
    range.addEventListener("input", () => {
      const chosen = fromUnit(axis, range.value / 1000);
      show(chosen);
      set(chosen);
    });
    number.addEventListener("change", () => {
      const typed = Number.parseFloat(number.value);
      const inside = Math.min(axis.high, Math.max(axis.low, typed));
      const chosen = Number.isFinite(typed) ? inside : fromUnit(axis, range.value / 1000);
      show(chosen);
      set(chosen);
    });
    show(value);
    form.append(element("div", { class: "slider" }, element("label", { for: id }, axis.name, note), track, number));
    sliders.push(show);
    return show;
  }

  if (outputs.length > 1) {
    const id = `${root.id}-output`, choice = element("select", { id });
    choice.append(...outputs.map((name) => element("option", { value: name }, name)));
    choice.addEventListener("change", () => {
      output = choice.value;
      held = null;
      hold.checked = false;
      paint();
    });
    form.append(element("div", { class: "row" }, element("label", { for: id }, "Output"), choice));
  }
  const setTheta = parameters.map((axis, k) =>
    slider(axis, theta[k], (value) => { theta[k] = value; changed(); }, data.tasks.map((task) => task[k])));
  const setPoint = coordinates.map((axis, k) => {
    if (shown.includes(k) && k !== time) return () => {};
    return slider(axis, point[k], (value) => { point[k] = value; if (shown.includes(k)) moved(); else changed(); });
  });
  const buttons = element("div", { class: "row" });
  form.append(buttons);
  if (time >= 0) {
    const play = element("button", { type: "button", "aria-pressed": "false" }, "Play");
    let last = 0;
    const tick = (now) => {
      if (!playing) return;
      // Where motion is to be reduced, time goes in ten steps, two a second.
      const wait = still.matches ? 500 : 0;
      if (now - last >= wait) {
        const step = still.matches ? 0.1 : Math.min(0.1, (now - last) / 1000 / TURN), unit = unitOf(time);
        last = now;
        point[time] = fromUnit(coordinates[time], unit >= 1 ? 0 : unit + step);
        setPoint[time](point[time]);
        if (shown.includes(time)) paint();
        else draw(false);
      }
      playing = requestAnimationFrame(tick);
    };
    play.addEventListener("click", () => {
      const start = !playing;
      if (playing) cancelAnimationFrame(playing);
      last = performance.now();
      playing = start ? requestAnimationFrame(tick) : 0;
      play.setAttribute("aria-pressed", String(start));
      play.textContent = start ? "Pause" : "Play";
      find("output").setAttribute("aria-live", start ? "off" : "polite"); // not every frame is to be read out
      if (!start) changed(0);
    });
    buttons.append(play);
  }
  if (references && parameters.length) {
    const go = element("button", { type: "button" }, "Go to the reference");
    go.addEventListener("click", () => {
      references.thetas[nearest()].forEach((value, k) => { theta[k] = value; setTheta[k](value); });
      changed();
    });
    buttons.append(go);
  }
  const hold = element("input", { type: "checkbox", id: `${root.id}-hold` });
  hold.addEventListener("change", () => {
    held = hold.checked ? scaleNow(references ? nearest() : -1) : null;
    paint();
  });
  form.append(element("div", { class: "row" }, hold, element("label", { for: hold.id }, "Hold the range of values")));
  form.addEventListener("submit", (event) => event.preventDefault());

  // The cursor, by pointer and by keys ---------------------------------------------------------------------------

  function cursorTo(u, v) {
    if (!data.extent) return [u, v];
    // The node drawn nearest: physical coordinates need not be invertible here.
    const values = field.values, count = field.first.length * field.second.length;
    const a = drawnAt(values, across, count), b = flat ? drawnAt(values, up, count) : a;
    let best = 0, least = Infinity;
    for (let k = 0; k < count; k++) {
      const distance = (a[k] - u) ** 2 + (flat ? (b[k] - v) ** 2 : 0);
      if (distance < least) [best, least] = [k, distance];
    }
    return [field.first[best % field.first.length], field.second[Math.floor(best / field.first.length)]];
  }

  function setCursor(u, v) {
    for (const [k, unit] of [[across, u], ...(flat ? [[up, v]] : [])]) {
      point[k] = fromUnit(coordinates[k], unit);
      setPoint[k](point[k]);
    }
    moved();
  }

  function follow(event) {
    const box = main.canvas.getBoundingClientRect(), { x, y, width, height } = main.inside;
    const u = (event.clientX - box.left - x) / width, v = 1 - (event.clientY - box.top - y) / height;
    setCursor(...cursorTo(Math.min(1, Math.max(0, u)), Math.min(1, Math.max(0, v))));
  }

  main.canvas.addEventListener("pointerdown", (event) => {
    main.canvas.setPointerCapture(event.pointerId);
    follow(event);
  });
  main.canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" || event.buttons) follow(event);
  });
  main.canvas.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 0.1 : 0.01;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    setCursor(unitOf(across) + move[0], flat ? unitOf(up) + move[1] : 0);
  });

  // Beginning ----------------------------------------------------------------------------------------------------

  function restyle() {
    const css = getComputedStyle(root);
    for (const name of ["ink", "soft", "network", "truth"]) style[name] = css.getPropertyValue(`--${name}`).trim();
    if (field) paint();
  }

  find("h2").textContent = data.title;
  find(".equation").textContent = data.equation;
  find(".reference").hidden = !references || !flat;
  find(".field").classList.toggle("alone", !references || !flat);
  cuts.forEach(({ figure }) => { figure.hidden = !flat; });
  const trained = data.tasks.length
    ? `The marks on the sliders are the ${data.tasks.length} training tasks.`
    : "It was trained over the whole box of parameters.";
  find(".notes").textContent = [
    "The network itself runs in this page, with its weights in single precision.",
    parameters.length ? trained : "",
    data.heads ? `Its heads at ${data.heads} single thetas are left out here.` : "",
    references ? "" : "There is no reference to compare with.",
  ].join(" ");
  if (!flat && references) find(".range").after(find(".reference figcaption"));
  restyle();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  draw(true);
  times.opening = times.full.splice(0); // before the browser has compiled anything
  new ResizeObserver(() => requestAnimationFrame(paint)).observe(root);

  const plain = (values) => Object.fromEntries(Object.entries(values).map(([name, row]) => [name, [...row]]));
  return {
    // Outputs by name at points (rows of box coordinates) and one theta.
    evaluate: (points, at) => plain(evaluate(Float64Array.from(points.flat()), at)),
    // Milliseconds of the drawings: the first one, those while dragging, those at rest.
    redrawTimes: () => times,
    settled: () => !waiting && !resting,
    output: () => output,
    theta: () => [...theta],
    // What is drawn: box coordinates row by row, the theta, and the outputs there.
    field: () => ({ points: [...field.points], theta: field.theta, values: plain(field.values) }),
  };
}
