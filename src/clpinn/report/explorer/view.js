// What is looked at: a problem, its network, and the theta, the point, the output and the pin that the reader chose.
class View {
  // `data` is what explorer.py tells of the problem; evaluate(points, theta) is the network; place(points, theta) gives
  // physical coordinates where theta moves the geometry, and distance(points, theta) the signed distance to the
  // boundary of a domain that is a shape. Both are null otherwise.
  constructor(data, evaluate, place, distance) {
    this.coordinates = data.coordinates;
    this.parameters = data.parameters;
    this.outputs = data.outputs;
    this.domain = distance ? new Domain(distance) : null;
    this.evaluate = (points, theta) => {
      return this.domain ? this.domain.masked(evaluate(points, theta), points, theta) : evaluate(points, theta);
    };
    this.time = this.coordinates.findIndex((axis) => axis.name === "t");
    // Two coordinates are shown: time only where there are no two others, and then time runs to the right.
    const steady = this.coordinates.map((_, k) => k).filter((k) => k !== this.time);
    this.shown = steady.length > 1 ? steady.slice(0, 2) : this.time >= 0 ? [this.time, ...steady] : steady;
    [this.across, this.up] = this.shown;
    this.planar = this.shown.length === 2; // otherwise the field is a curve
    this.geometry = place ? new Geometry(this.coordinates, this.shown, data.extent, place) : null;
    this.theta = this.parameters.map((axis) => fromUnit(axis, 0.5));
    this.pin = null; // a theta to compare with
    this.output = this.outputs[0];
    // Errors that the page can draw: "error" against a reference, "estimate" of the error.
    this.errorLayers = [...(data.references ? ["error"] : []), ...(data.estimates ? ["estimate"] : [])];
    this.layer = "error"; // what the figure of differences shows: one of them, or "change" since the pin
    this.point = this.coordinates.map((axis, k) => fromUnit(axis, k === this.time ? 0.5 : 0.3)); // in the box
    this.wanted = this.drawnPoint(); // the shown coordinates that the reader chose, as they are drawn
  }

  // The axis on which coordinate k is drawn: a physical one where theta moves the geometry.
  drawnAxis(k) {
    return this.geometry ? { ...this.coordinates[k], ...this.geometry.extent[k] } : this.coordinates[k];
  }

  // Width over height of the frame: both axes are lengths, so one unit is equally long on both. Otherwise null.
  aspect() {
    if (!this.planar || this.shown.includes(this.time)) return null;
    const [across, up] = this.shown.map((k) => this.drawnAxis(k));
    if (across.scale === "log" || up.scale === "log" || across.unit !== up.unit) return null;
    const ratio = (across.high - across.low) / (up.high - up.low);
    return ratio > 1 / 8 && ratio < 8 ? ratio : null; // a longer strip could not be read
  }

  // The chosen point as it is drawn, all coordinates.
  drawnPoint() {
    const drawn = [...this.point];
    if (this.geometry) {
      const places = this.geometry.units(Float64Array.from(this.point), this.theta);
      this.shown.forEach((k, i) => { drawn[k] = valueAt(this.drawnAxis(k), places[i][0]); });
    }
    return drawn;
  }

  // The place of the chosen point on the drawn axis of coordinate k, in [0, 1].
  unit(k) {
    return toUnit(this.drawnAxis(k), this.drawnPoint()[k]);
  }

  // Choose the drawn value of coordinate k.
  choose(k, value) {
    this.wanted[k] = value;
    if (!this.shown.includes(k)) this.point[k] = value;
    this.settle();
  }

  // Start at a point of the domain: the node of a grid nearest to the point.
  enter() {
    const { domain, theta, point } = this;
    if (!domain || domain.inside(Float64Array.from(point), theta)[0]) return;
    const points = this.gridPoints(evenUnits(41), evenUnits(41)), width = point.length;
    let least = Infinity;
    domain.inside(points, theta).forEach((inside, r) => {
      const node = points.slice(r * width, (r + 1) * width);
      const apart = this.coordinates.map((axis, k) => toUnit(axis, node[k]) - toUnit(axis, point[k]));
      const far = Math.hypot(...apart);
      if (inside && far < least) [least, this.point] = [far, [...node]];
    });
    this.wanted = this.drawnPoint();
  }

  // Find the point of the box where the reader wants it. After a change of theta it may lie outside: then near it.
  settle() {
    this.point = this.geometry ? [...this.boxPoint(this.theta, this.wanted).points] : [...this.wanted];
  }

  // The point of the box at a drawn place for a theta: {points, inside}.
  boxPoint(theta, drawn) {
    if (!this.geometry) return { points: Float64Array.from(drawn), inside: [true] };
    const target = this.shown.map((k) => toUnit(this.drawnAxis(k), drawn[k]));
    return this.geometry.invert([target], this.point, theta);
  }

  // The output at the chosen point for any theta; NaN where the point is outside the domain of that theta.
  valueAt(theta) {
    const { points, inside } = this.boxPoint(theta, this.drawnPoint());
    return inside[0] ? this.evaluate(points, theta)[this.output][0] : NaN;
  }

  // Points of a grid, row after row: the shown coordinates run over these units of the box, the others are those of
  // the point.
  gridPoints(acrossUnits, upUnits) {
    const points = new Float64Array(acrossUnits.length * upUnits.length * this.coordinates.length);
    let next = 0;
    for (const v of upUnits) {
      for (const u of acrossUnits) {
        this.coordinates.forEach((axis, k) => {
          points[next++] = k === this.across ? fromUnit(axis, u) : k === this.up ? fromUnit(axis, v) : this.point[k];
        });
      }
    }
    return points;
  }

  // The straight line through the chosen point along a shown coordinate, for a theta. `units` are places on it: from
  // end to end of the axis, or of the domain where theta moves it. Gives {points, u, inside}: points of the box, places
  // on the drawn axis, and whether the domain has them.
  line(along, units, theta) {
    const i = this.shown.indexOf(along), drawn = this.drawnPoint();
    const at = this.shown.map((k) => toUnit(this.drawnAxis(k), drawn[k]));
    const [low, high] = this.geometry ? this.geometry.range(i, this.point, theta) : [0, 1];
    const u = Float64Array.from(units, (unit) => low + (high - low) * unit);
    const targets = Array.from(u, (place) => at.map((other, j) => (j === i ? place : other)));
    if (this.geometry) return { u, ...this.geometry.invert(targets, this.point, theta) };
    const points = new Float64Array(u.length * this.coordinates.length);
    targets.forEach((target, r) => {
      points.set(this.point, r * this.coordinates.length);
      points[r * this.coordinates.length + along] = fromUnit(this.coordinates[along], target[i]);
    });
    return { u, points, inside: this.domain ? this.domain.inside(points, theta) : targets.map(() => true) };
  }

  // The output along a line; NaN outside the domain.
  outputAlong(line, theta) {
    return this.evaluate(line.points, theta)[this.output].map((value, r) => (line.inside[r] ? value : NaN));
  }

  // What the domain of a theta covers on a grid of so many nodes, in a list; none where it is the whole box.
  outlines(across, up, theta) {
    if (!this.domain) return [];
    const counts = [across, up].map((count) => FINER * (count - 1) + 1);
    const points = this.gridPoints(...counts.map(evenUnits));
    return [belowZero(this.domain.distance(points, theta).distance, ...counts)];
  }

  // Where theta moves the geometry: the places on drawnAxis(k) of the points that the network was evaluated at.
  physicalUnits(answers, k) {
    const axis = this.drawnAxis(k);
    return Float64Array.from(answers[`physical ${axis.name}`], (value) => toUnit(axis, value));
  }

  // What the figure of differences can show: errors, and the change since a pinned theta.
  layers() {
    return [...this.errorLayers, ...(this.pin ? ["change"] : [])];
  }

  // The layer that is shown: the chosen one if it is possible, null if there is none.
  shownLayer() {
    const possible = this.layers();
    return possible.includes(this.layer) ? this.layer : possible[0] ?? null;
  }
}
