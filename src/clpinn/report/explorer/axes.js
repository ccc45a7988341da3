// Axes: places on them, ticks, and numbers as text. An axis is {name, low, high, scale, unit}; its scale is "linear" or
// "log", its unit may be missing.

// The value at a place of the axis: 0 is its low end, 1 its high end.
function valueAt(axis, unit) {
  return axis.scale === "log" ? axis.low * (axis.high / axis.low) ** unit : axis.low + unit * (axis.high - axis.low);
}

// The same, moved into the axis.
function fromUnit(axis, unit) {
  return inAxis(axis, valueAt(axis, unit));
}

function inAxis(axis, value) {
  return Math.min(axis.high, Math.max(axis.low, value));
}

// The place of a value on its axis: 0 at the low end, 1 at the high end.
function toUnit(axis, value) {
  if (axis.scale === "log") return Math.log(value / axis.low) / Math.log(axis.high / axis.low);
  return (value - axis.low) / (axis.high - axis.low);
}

// A number as text with so many significant digits; a small one as 1.2e-5, because zeros take room.
function text(value, digits = 4) {
  if (!Number.isFinite(value)) return String(value);
  const rounded = Number(value.toPrecision(digits)), small = rounded !== 0 && Math.abs(rounded) < 1e-3;
  return (small ? rounded.toExponential() : String(rounded)).replace(/^-/, "\u2212");
}

// Round values on an axis, about so many of them.
function ticks(axis, wanted) {
  const values = [];
  if (axis.scale === "log" && axis.high / axis.low >= 10) {
    const first = Math.floor(Math.log10(axis.low)), last = Math.ceil(Math.log10(axis.high));
    const steps = last - first <= 2 ? [1, 2, 5] : [1];
    for (let e = first; e <= last; e++) for (const s of steps) values.push(s * 10 ** e);
  } else {
    const rough = (axis.high - axis.low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
    for (let k = Math.ceil(axis.low / step - 1e-9); k * step <= axis.high + 1e-9 * step; k++) values.push(k * step);
  }
  return values.filter((v) => toUnit(axis, v) > -1e-9 && toUnit(axis, v) < 1 + 1e-9);
}

// "x = 0.3, t = 0.5": values with the names of their axes.
function named(axes, values) {
  return axes.map((axis, k) => `${axis.name}\u00a0=\u00a0${text(values[k])}`).join(", ");
}

// The name of an axis with its unit.
function labelled(axis) {
  return axis.unit ? `${axis.name} [${axis.unit}]` : axis.name;
}

// Evenly spaced places from 0 to 1, both included.
function evenUnits(count) {
  return Float64Array.from({ length: count }, (_, i) => i / (count - 1));
}

// The smallest and the largest of the finite values.
function extremes(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (v < low && v > -Infinity) low = v;
    if (v > high && v < Infinity) high = v;
  }
  return [low, high];
}

// The same; from 0 to 1 if no value is finite.
function finiteExtremes(values) {
  const [low, high] = extremes(values);
  return low <= high ? [low, high] : [0, 1];
}
