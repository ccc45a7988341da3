// All that is drawn: the network's field, the reference and a difference beside it, cuts through the cursor, and the
// value at the cursor against the parameters.
class Drawing {
  constructor(root, view, reference, estimates, colours) {
    this.root = root;
    this.view = view;
    this.reference = reference; // null where there is none
    this.estimates = estimates; // null where there are none
    this.colours = colours;
    this.words = new Words(root, view, reference, estimates);
    this.fieldFigure = root.querySelector(".field");
    this.fieldPanel = new Panel(this.fieldFigure.querySelector("canvas"));
    this.referencePanel = new Panel(root.querySelector(".reference canvas"));
    this.differencePanel = new Panel(root.querySelector(".difference canvas"));
    this.cutFigures = [...root.querySelectorAll(".cut")];
    this.cutPanels = this.cutFigures.map((figure) => new Panel(figure.querySelector("canvas")));
    this.sensitivities = new Sensitivities(root, view);
    this.style = {}; // the page's colours
    this.field = null; // {points, acrossUnits, upUnits, theta, values, outlines}: the network on a grid
    this.coarse = false; // true while something is dragged: the field has few nodes
    this.heldScale = null; // a colour scale that the reader holds fixed
    this.errorFields = new Map(); // the last field of the reference and of the estimates, each computed once per key
  }

  // Read the page's colours, which depend on its colour scheme, and draw with them.
  restyle() {
    const css = getComputedStyle(this.root);
    const names = ["ink", "soft", "network", "truth", "pin", "paper"];
    for (const name of names) this.style[name] = css.getPropertyValue(`--${name}`).trim();
    if (this.field) this.paint();
  }

  // Evaluate the network on a grid with `count` nodes on each axis; a curve gets four times as many.
  compute(count, coarse) {
    this.field = this.evaluated(count, this.view.theta);
    this.coarse = coarse;
  }

  evaluated(count, theta) {
    const { view } = this;
    const acrossUnits = evenUnits(view.planar ? count : 4 * count);
    const upUnits = view.planar ? evenUnits(count) : Float64Array.of(0);
    const points = view.gridPoints(acrossUnits, upUnits);
    const outlines = view.outlines(acrossUnits.length, upUnits.length, theta);
    return { points, acrossUnits, upUnits, theta: [...theta], values: view.evaluate(points, theta), outlines };
  }

  // The colour scale now: the one held, or one for the network and the reference beside it.
  scale() {
    if (this.heldScale) return this.heldScale;
    const ends = extremes(this.field.values[this.view.output]);
    if (this.reference) ends.push(...extremes(this.fieldWithErrors(this.reference).reference));
    return this.colours.scale(...extremes(ends));
  }

  // The network, its error and the reference on a grid, at the nearest theta of a Reference; or so for Estimates.
  fieldWithErrors(errors) {
    const { view } = this, index = errors.nearest();
    const elsewhere = view.point.filter((_, k) => !view.shown.includes(k));
    const key = [index, view.output, this.coarse, ...elsewhere].join(" ");
    if (this.errorFields.get(errors)?.key !== key) {
      const field = this.evaluated(this.coarse ? 32 : 64, errors.thetas[index]);
      const network = field.values[view.output]; // NaN outside a domain that is a shape
      const error = errors.errorsAt(index, field.points).map((e, k) => (Number.isNaN(network[k]) ? NaN : e));
      const values = network.map((value, k) => value - error[k]);
      this.errorFields.set(errors, { key, ...field, error, reference: values });
    }
    return this.errorFields.get(errors);
  }

  // Draw the computed field and all around it. `moving` is true while the cursor moves: small curves get fewer points.
  paint(moving = false) {
    const { view, reference } = this;
    const index = reference ? reference.nearest() : -1, compared = index >= 0 && reference.isAt(index);
    const scale = this.scale(), values = this.field.values[view.output];
    if (view.planar) {
      this.paintPlane(this.fieldPanel, this.field, values, scale);
      if (reference) this.paintReference(scale);
      view.shown.forEach((along, i) => {
        this.words.describeCut(this.cutFigures[i], along, this.paintCut(this.cutPanels[i], along, scale, compared));
        this.words.describeLines(this.cutFigures[i], compared);
      });
    } else {
      this.paintCut(this.fieldPanel, view.across, scale, compared);
      this.words.describeLines(this.fieldFigure, compared);
    }
    this.paintDifference();
    this.sensitivities.paint(this.style, moving || this.coarse ? 12 : 40);
    const value = view.valueAt(view.theta);
    const error = compared ? reference.errorsAt(index, view.point)[0] : null;
    this.words.describePoint(value, error, view.pin && view.valueAt(view.pin));
    this.words.describeField(values);
    if (reference) this.words.describeReference(index, compared);
    if (this.estimates) this.words.describeEstimate();
  }

  // Values on the nodes of a field in colours, with the cursor, axes and colour bar.
  paintPlane(panel, field, nodes, scale) {
    const { view } = this, counts = [field.acrossUnits.length, field.upUnits.length];
    panel.begin(this.style, true, view.aspect());
    if (view.geometry) {
      const u = view.physicalUnits(field.values, view.across), v = view.physicalUnits(field.values, view.up);
      const pixels = this.coarse ? [210, 160] : [420, 320];
      panel.picture(meshPicture(u, v, nodes, ...counts, scale, ...pixels), true);
    } else if (field.outlines.length) {
      const image = gridPicture(spread(nodes, ...counts), ...counts, scale);
      panel.picture(image, false, field.outlines.map((outline) => outline.cells));
      field.outlines.forEach((outline) => panel.segments(outline.lines));
    } else panel.picture(gridPicture(nodes, ...counts, scale), false);
    const [u, v] = view.shown.map((k) => view.unit(k));
    panel.dashed([[[0, v], [1, v]], [[u, 0], [u, 1]]]);
    panel.frame(view.drawnAxis(view.across), view.drawnAxis(view.up));
    panel.bar(scale);
  }

  paintReference(scale) {
    const field = this.fieldWithErrors(this.reference);
    this.paintPlane(this.referencePanel, field, field.reference, scale);
  }

  // The figure of differences: an error at the nearest theta where it is known, or the change since the pinned theta.
  paintDifference() {
    const { view } = this, layer = view.shownLayer(), figure = this.root.querySelector(".difference");
    figure.hidden = layer === null;
    if (layer === null) return;
    const errors = { error: this.reference, estimate: this.estimates }[layer];
    const field = errors ? this.fieldWithErrors(errors) : this.fieldWithPin();
    const differences = errors ? field.error : this.changes();
    const scale = this.colours.differences(...extremes(differences));
    if (view.planar) this.paintPlane(this.differencePanel, field, differences, scale);
    else {
      const u = view.geometry ? view.physicalUnits(field.values, view.across) : field.acrossUnits;
      this.paintLines(this.differencePanel, view.across, scale, [{ u, values: differences, colour: "network" }]);
    }
    this.words.describeDifference(layer, field.theta, differences);
  }

  // The field, with the domain of the pinned theta besides its own.
  fieldWithPin() {
    const { view, field } = this, pinned = view.outlines(field.acrossUnits.length, field.upUnits.length, view.pin);
    return { ...field, outlines: [...field.outlines, ...pinned] };
  }

  // The field minus that of the pinned theta at the same drawn places; NaN where only one of them is in its domain.
  changes() {
    const { view, field } = this, now = field.values[view.output];
    if (!view.geometry) {
      const before = view.evaluate(field.points, view.pin)[view.output];
      return now.map((value, k) => value - before[k]);
    }
    const places = view.shown.map((k) => view.physicalUnits(field.values, k));
    const targets = Array.from(now, (_, k) => places.map((along) => along[k]));
    const { points, inside } = view.geometry.invert(targets, view.point, view.pin);
    const before = view.evaluate(points, view.pin)[view.output];
    return now.map((value, k) => (inside[k] ? value - before[k] : NaN));
  }

  // The output along one coordinate through the cursor: a line for the chosen theta, a dashed one for the pinned theta,
  // and circles for the reference, at the chosen theta only. Gives the values of the chosen theta.
  paintCut(panel, along, scale, compared) {
    const { view } = this, units = evenUnits(view.planar ? 120 : 400);
    const curve = (theta, colour, dash) => {
      const line = view.line(along, units, theta);
      return { u: line.u, values: view.outputAlong(line, theta), colour, dash };
    };
    const now = curve(view.theta, "network"), lines = view.pin ? [curve(view.pin, "pin", [7, 4])] : [];
    if (compared) lines.push(this.referenceAlong(along));
    this.paintLines(panel, along, scale, [...lines, now]);
    return now.values;
  }

  // Lines and circles {u, values, colour, circles, dash} over the drawn axis of a coordinate.
  paintLines(panel, along, scale, lines) {
    const { view } = this, axis = view.drawnAxis(along);
    const [low, high] = extremes([...lines.flatMap((line) => [...line.values]), scale.low, scale.high]);
    const pad = 0.04 * (high - low) || 1;
    const vertical = { name: view.output, low: low - pad, high: high + pad, scale: "linear" };
    panel.begin(this.style, false);
    panel.frame(axis, vertical);
    panel.upright(view.unit(along));
    for (const { u, values, colour, circles = false, dash } of lines) {
      panel.points(u, Array.from(values, (value) => toUnit(vertical, value)), this.style[colour], circles, dash);
    }
  }

  // Circles of the reference at the chosen theta, along one coordinate through the cursor.
  referenceAlong(along) {
    const { view, reference } = this, index = reference.nearest();
    const axis = reference.axes[along], every = Math.ceil(axis.length / 50); // more circles would hide the curve
    const nodes = axis.filter((_, i) => i % every === 0).map((value) => toUnit(view.coordinates[along], value));
    const line = view.line(along, view.geometry ? evenUnits(33) : nodes, view.theta);
    return {
      u: line.u, circles: true, colour: "truth",
      values: reference.valuesAt(index, line.points, view.outputAlong(line, view.theta)),
    };
  }
}
