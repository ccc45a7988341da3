// What is looked at: a problem, its network, and the theta, the point and the output that the reader has chosen.
class View {
  // `data` is what explorer.py tells of the problem; evaluate(points, theta) is the network.
  constructor(data, evaluate) {
    this.coordinates = data.coordinates;
    this.parameters = data.parameters;
    this.outputs = data.outputs;
    this.extent = data.extent; // ranges of the physical coordinates where theta moves the geometry, otherwise null
    this.evaluate = evaluate;
    this.time = this.coordinates.findIndex((axis) => axis.name === "t");
    // Two coordinates are shown: time only where there are no two others, and then time runs to the right.
    const steady = this.coordinates.map((_, k) => k).filter((k) => k !== this.time);
    this.shown = steady.length > 1 ? steady.slice(0, 2) : this.time >= 0 ? [this.time, ...steady] : steady;
    [this.across, this.up] = this.shown;
    this.planar = this.shown.length === 2; // otherwise the field is a curve
    this.theta = this.parameters.map((axis) => fromUnit(axis, 0.5));
    this.point = this.coordinates.map((axis, k) => fromUnit(axis, k === this.time ? 0.5 : 0.3));
    this.output = this.outputs[0];
  }

  // The place of the chosen point on coordinate k, in [0, 1].
  unit(k) {
    return toUnit(this.coordinates[k], this.point[k]);
  }

  setUnit(k, unit) {
    this.point[k] = fromUnit(this.coordinates[k], unit);
  }

  // Points of a grid, row after row: the shown coordinates run over these units, the others are those of the point.
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

  // Points along one of the shown coordinates, through the chosen point.
  linePoints(along, units) {
    if (!this.planar) return this.gridPoints(units, [0]);
    return along === this.across
      ? this.gridPoints(units, [this.unit(this.up)])
      : this.gridPoints([this.unit(this.across)], units);
  }

  // The axis on which coordinate k is drawn: a physical one where theta moves the geometry.
  drawnAxis(k) {
    return this.extent ? { ...this.extent[k], name: this.coordinates[k].name } : this.coordinates[k];
  }

  // Where theta moves the geometry: the places on drawnAxis(k) of the points that the network was evaluated at.
  physicalUnits(answers, k) {
    const axis = this.drawnAxis(k);
    return Float64Array.from(answers[this.physicalName(k)], (value) => toUnit(axis, value));
  }

  // The network's outputs by name at the chosen point, and that point's drawn coordinates.
  atPoint() {
    const answers = this.evaluate(Float64Array.from(this.point), this.theta);
    const place = this.extent ? this.coordinates.map((_, k) => answers[this.physicalName(k)][0]) : this.point;
    return { answers, place };
  }

  physicalName(k) {
    return `physical ${this.coordinates[k].name}`;
  }
}
