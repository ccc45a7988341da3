// A domain that is a shape: what is inside, and the outline on a grid.

const FINER = 2; // stretches of the outline's grid per stretch of the field's grid

class Domain {
  // distance(points, theta) gives {distance}: negative inside, positive outside.
  constructor(distance) {
    this.distance = distance;
  }

  // For each point of the box whether the domain of a theta has it.
  inside(points, theta) {
    return Array.from(this.distance(points, theta).distance, (value) => value <= 0);
  }

  // Outputs by name, NaN outside the domain of the theta.
  masked(outputs, points, theta) {
    const { distance } = this.distance(points, theta);
    for (const values of Object.values(outputs)) {
      for (let k = 0; k < values.length; k++) if (!(distance[k] <= 0)) values[k] = NaN;
    }
    return outputs;
  }
}

// The part of the plane where values on a grid, across x up, are below zero: {cells, lines}. Cells are polygons that
// cover it, lines are its edge, both as rows of u and v in [0, 1].
function belowZero(values, across, up) {
  const cells = [], lines = [];
  const corner = (i, j) => ({ u: i / (across - 1), v: j / (up - 1), value: values[j * across + i] });
  const between = (a, b) => {
    const share = a.value / (a.value - b.value);
    return [a.u + share * (b.u - a.u), a.v + share * (b.v - a.v)];
  };
  const triangle = (corners) => {
    const polygon = [], edge = [];
    corners.forEach((a, k) => {
      const b = corners[(k + 1) % 3];
      if (a.value <= 0) polygon.push([a.u, a.v]);
      if (a.value <= 0 !== b.value <= 0) {
        const crossing = between(a, b);
        polygon.push(crossing);
        edge.push(crossing);
      }
    });
    if (polygon.length) cells.push(polygon);
    if (edge.length) lines.push(edge);
  };
  for (let j = 0; j + 1 < up; j++) {
    let start = -1; // where a row of cells that are inside as a whole begins
    for (let i = 0; i < across; i++) {
      const corners = i + 1 < across && [corner(i, j), corner(i + 1, j), corner(i + 1, j + 1), corner(i, j + 1)];
      const inside = corners ? corners.filter((c) => c.value <= 0).length : 0;
      if (inside === 4) {
        if (start < 0) start = i;
        continue;
      }
      if (start >= 0) {
        const [left, right, low, high] = [start / (across - 1), i / (across - 1), j / (up - 1), (j + 1) / (up - 1)];
        cells.push([[left, low], [right, low], [right, high], [left, high]]);
        start = -1;
      }
      if (!inside) continue;
      // Four triangles around the middle: a cell with two opposite corners inside needs no rule of its own.
      const [a, b, c, d] = corners, value = (a.value + b.value + c.value + d.value) / 4;
      const middle = { u: (a.u + b.u) / 2, v: (a.v + d.v) / 2, value };
      for (const [first, second] of [[a, b], [b, c], [c, d], [d, a]]) triangle([first, second, middle]);
    }
  }
  return { cells, lines };
}

// Values on a grid, where those that are NaN beside others are continued from these: colours reach the outline.
function spread(values, across, up) {
  const filled = Float64Array.from(values);
  const at = (i, j) => (i >= 0 && j >= 0 && i < across && j < up ? values[j * across + i] : NaN);
  const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
  for (let j = 0, k = 0; j < up; j++) {
    for (let i = 0; i < across; i++, k++) {
      if (Number.isFinite(values[k])) continue;
      const beside = [], straight = []; // neighbours, and what a straight line through two nodes gives
      for (let b = -1; b <= 1; b++) {
        for (let a = -1; a <= 1; a++) {
          const near = at(i + a, j + b), line = 2 * near - at(i + 2 * a, j + 2 * b);
          if (Number.isFinite(near)) beside.push(near);
          if (Number.isFinite(line)) straight.push(line);
        }
      }
      if (beside.length) filled[k] = mean(straight.length ? straight : beside);
    }
  }
  return filled;
}
