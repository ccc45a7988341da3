// A geometry that theta moves: where the points of the box are, and which point of the box is at a place.

const NEWTON_STEPS = 15;
const SHIFT = 1e-6; // of an axis: the step of the differences that give the map's derivatives
const MISFIT = 1e-7; // of the drawn axes: a place that is missed by more lies outside

class Geometry {
  // place(points, theta) gives the physical coordinates by name; `extent` are their ranges over all thetas.
  constructor(coordinates, shown, extent, place) {
    this.coordinates = coordinates;
    this.shown = shown;
    this.extent = extent;
    this.place = place;
    this.known = { key: "" }; // nodes all over the box and their places, for the last theta
  }

  // The shown coordinates' places on their drawn axes, one array each, of points of the box.
  units(points, theta) {
    const physical = this.place(points, theta);
    return this.shown.map((k) => {
      return Float64Array.from(physical[this.coordinates[k].name], (value) => toUnit(this.extent[k], value));
    });
  }

  // Nodes all over the shown coordinates and their places; the other coordinates are those of `point`.
  nodes(point, theta) {
    const key = [...point.filter((_, k) => !this.shown.includes(k)), ...theta].join(" ");
    if (this.known.key !== key) {
      const steps = [...evenUnits(25)], rows = [];
      for (const v of this.shown.length > 1 ? steps : [0]) for (const u of steps) rows.push([u, v]);
      const points = this.points(rows, point);
      this.known = { key, rows, places: this.units(points, theta) };
    }
    return this.known;
  }

  // The range of the drawn axis of shown coordinate number i that the domain covers.
  range(i, point, theta) {
    return extremes(this.nodes(point, theta).places[i]);
  }

  // Box points from rows of units of the shown coordinates.
  points(rows, point) {
    const points = new Float64Array(rows.length * point.length);
    rows.forEach((row, r) => {
      points.set(point, r * point.length);
      this.shown.forEach((k, i) => { points[r * point.length + k] = valueAt(this.coordinates[k], row[i]); });
    });
    return points;
  }

  // The box points at these places (rows of units of the drawn axes), by Newton's method: {points, inside}. A place
  // outside the domain gets a point of the box near it, and inside[r] = false. `point` has the other coordinates.
  invert(targets, point, theta) {
    const size = this.shown.length, rows = targets.map((target) => this.nearest(target, point, theta));
    for (let step = 0; step < NEWTON_STEPS; step++) {
      const shifted = [0, 1].slice(0, size).map((i) => rows.map((row) => row.map((u, j) => u + (i === j ? SHIFT : 0))));
      const [at, ...beside] = [rows, ...shifted].map((all) => this.units(this.points(all, point), theta));
      let largest = 0;
      rows.forEach((row, r) => {
        const miss = at.map((places, i) => targets[r][i] - places[r]);
        const slope = (i, j) => (beside[j][i][r] - at[i][r]) / SHIFT; // of drawn coordinate i along box coordinate j
        const move = size === 1 ? [miss[0] / slope(0, 0)] : solved(slope, miss);
        move.forEach((length, j) => {
          if (!Number.isFinite(length)) return;
          row[j] = Math.min(1.1, Math.max(-0.1, row[j] + Math.min(0.3, Math.max(-0.3, length))));
          largest = Math.max(largest, Math.abs(length));
        });
      });
      if (largest < 1e-12) break;
    }
    const places = this.units(this.points(rows, point), theta);
    const inside = rows.map((row, r) => {
      const met = places.every((along, i) => Math.abs(along[r] - targets[r][i]) < MISFIT);
      return met && row.every((u) => u > -1e-6 && u < 1 + 1e-6);
    });
    rows.forEach((row) => row.forEach((u, j) => { row[j] = Math.min(1, Math.max(0, u)); }));
    return { points: this.points(rows, point), inside };
  }

  nearest(target, point, theta) {
    const { rows, places } = this.nodes(point, theta);
    let best = 0, least = Infinity;
    rows.forEach((_, r) => {
      const distance = places.reduce((sum, along, i) => sum + (along[r] - target[i]) ** 2, 0);
      if (distance < least) [best, least] = [r, distance];
    });
    return rows[best].slice(0, places.length);
  }
}

// The solution of two linear equations with coefficients entry(i, j).
function solved(entry, right) {
  const [a, b, c, d] = [entry(0, 0), entry(0, 1), entry(1, 0), entry(1, 1)], determinant = a * d - b * c;
  return [(d * right[0] - b * right[1]) / determinant, (a * right[1] - c * right[0]) / determinant];
}
