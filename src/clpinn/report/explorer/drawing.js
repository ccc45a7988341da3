// All that is drawn: the network's field, the reference beside it, and cuts through the cursor.
class Drawing {
  constructor(root, view, reference) {
    this.root = root;
    this.view = view;
    this.reference = reference; // null where there is none
    this.words = new Words(root, view, reference);
    this.fieldPanel = new Panel(root.querySelector(".field canvas"));
    this.referencePanel = new Panel(root.querySelector(".reference canvas"));
    this.cutFigures = [...root.querySelectorAll(".cut")];
    this.cutPanels = this.cutFigures.map((figure) => new Panel(figure.querySelector("canvas")));
    this.style = {}; // the page's colours
    this.field = null; // {points, acrossUnits, upUnits, theta, values}: the network on a grid
    this.coarse = false; // true while something is dragged: the field has few nodes
    this.heldScale = null; // a colour scale that the reader holds fixed
    this.referenceField = { key: "" }; // what the reference panel shows, computed once per key
  }

  // Read the page's colours, which depend on its colour scheme, and draw with them.
  restyle() {
    const css = getComputedStyle(this.root);
    for (const name of ["ink", "soft", "network", "truth"]) this.style[name] = css.getPropertyValue(`--${name}`).trim();
    if (this.field) this.paint();
  }

  // Evaluate the network on a grid with `count` nodes on each axis; a curve gets four times as many.
  compute(count, coarse) {
    const { view } = this;
    const acrossUnits = evenUnits(view.planar ? count : 4 * count);
    const upUnits = view.planar ? evenUnits(count) : Float64Array.of(0);
    const points = view.gridPoints(acrossUnits, upUnits);
    const values = view.evaluate(points, view.theta);
    this.field = { points, acrossUnits, upUnits, theta: [...view.theta], values };
    this.coarse = coarse;
  }

  // The colour scale now: the one held, or one for the network and the reference beside it.
  scale() {
    if (this.heldScale) return this.heldScale;
    const ends = extremes(this.field.values[this.view.output]);
    if (this.reference) ends.push(...extremes(this.reference.values(this.reference.nearest())));
    return colourScale(...extremes(ends));
  }

  // Draw the computed field and all around it.
  paint() {
    const { view } = this;
    const scale = this.scale(), index = this.reference ? this.reference.nearest() : -1;
    const { answers, place } = view.atPoint();
    this.fieldPanel.begin(this.style, view.planar);
    if (view.planar) {
      this.paintPlane(this.fieldPanel, this.field, view.theta, scale);
      if (this.reference) this.paintReference(index, scale);
      view.shown.forEach((along, i) => {
        const values = this.paintCut(this.cutPanels[i], along, scale, index, place);
        this.words.describeCut(this.cutFigures[i], along, place, values);
      });
    } else this.paintCut(this.fieldPanel, view.across, scale, index, place);
    this.words.describePoint(index, place, answers[view.output][0]);
    this.words.describeField(this.field.values[view.output]);
    if (this.reference) this.words.describeReference(index, !this.coarse);
  }

  // A field in colours with the cursor, axes and colour bar.
  paintPlane(panel, field, theta, scale) {
    const { view } = this;
    this.paintPicture(panel, field, scale);
    panel.dashed(this.crosshair(theta));
    panel.frame(view.drawnAxis(view.across), view.drawnAxis(view.up));
    panel.bar(scale);
  }

  paintPicture(panel, { values, acrossUnits, upUnits }, scale) {
    const { view } = this, nodes = values[view.output], counts = [acrossUnits.length, upUnits.length];
    if (!view.extent) return panel.picture(gridPicture(nodes, ...counts, scale), false);
    const u = view.physicalUnits(values, view.across), v = view.physicalUnits(values, view.up);
    const pixels = this.coarse ? [210, 160] : [420, 320];
    panel.picture(meshPicture(u, v, nodes, ...counts, scale, ...pixels), true);
  }

  // Two lines through the cursor, as points (u, v); they are curved where theta moves the geometry.
  crosshair(theta) {
    const { view } = this;
    return [view.across, view.up].map((along) => {
      const units = evenUnits(view.extent ? 40 : 2);
      if (!view.extent) {
        return [...units].map((u) => (along === view.across ? [u, view.unit(view.up)] : [view.unit(view.across), u]));
      }
      const answers = view.evaluate(view.linePoints(along, units), theta);
      const u = view.physicalUnits(answers, view.across), v = view.physicalUnits(answers, view.up);
      return [...u].map((left, k) => [left, v[k]]);
    });
  }

  paintReference(index, scale) {
    const { view, reference } = this, theta = reference.thetas[index];
    const elsewhere = view.point.filter((_, k) => !view.shown.includes(k));
    const key = [index, view.output, ...elsewhere].join(" ");
    if (this.referenceField.key !== key) {
      const units = evenUnits(view.extent ? 41 : 64), points = view.gridPoints(units, units);
      const nodes = reference.values(index), values = view.extent ? view.evaluate(points, theta) : {};
      const interpolated = (_, row) => reference.interpolated(nodes, points, row);
      values[view.output] = Float64Array.from({ length: units.length ** 2 }, interpolated);
      this.referenceField = { key, values, acrossUnits: units, upUnits: units };
    }
    this.referencePanel.begin(this.style, true);
    this.paintPlane(this.referencePanel, this.referenceField, theta, scale);
  }

  // The output along one coordinate through the cursor: a line, and circles at the reference's nodes. Gives the
  // network's values along that line.
  paintCut(panel, along, scale, index, place) {
    const { view } = this, axis = view.drawnAxis(along);
    const units = view.planar ? evenUnits(120) : this.field.acrossUnits;
    const answers = view.planar ? view.evaluate(view.linePoints(along, units), view.theta) : this.field.values;
    const values = answers[view.output];
    const circles = index < 0 ? { u: [], values: [] } : this.referenceAlong(index, along);
    const [low, high] = extremes([...values, ...circles.values, scale.low, scale.high]);
    const pad = 0.04 * (high - low) || 1;
    const vertical = { name: view.output, low: low - pad, high: high + pad, scale: "linear" };
    const heights = (numbers) => Array.from(numbers, (value) => toUnit(vertical, value));
    panel.begin(this.style, false);
    panel.frame(axis, vertical);
    panel.upright(toUnit(axis, place[along]));
    panel.points(circles.u, heights(circles.values), this.style.truth, true);
    const u = view.extent ? view.physicalUnits(answers, along) : units;
    panel.points(u, heights(values), this.style.network, false);
    return values;
  }

  // The reference at its own nodes along one coordinate through the cursor: places u in [0, 1], and values.
  referenceAlong(index, along) {
    const { view, reference } = this;
    const units = reference.axes[along].map((value) => toUnit(view.coordinates[along], value));
    const points = view.linePoints(along, units), nodes = reference.values(index);
    return {
      values: units.map((_, row) => reference.interpolated(nodes, points, row)),
      u: view.extent ? view.physicalUnits(view.evaluate(points, reference.thetas[index]), along) : units,
    };
  }
}
