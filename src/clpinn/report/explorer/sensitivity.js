// The value at the cursor against each parameter, and its derivative: small curves, computed by the network.

const STEP = 1e-4; // of a parameter's axis: the step of the central difference

class Sensitivities {
  constructor(root, view) {
    this.view = view;
    const row = root.querySelector(".sensitivities");
    this.title = element("h3");
    row.append(this.title);
    this.figures = view.parameters.map(() => {
      const figure = element("figure", {}, element("canvas", { role: "img" }), element("figcaption"));
      row.append(figure);
      return { figure, panel: new Panel(figure.querySelector("canvas")) };
    });
    row.hidden = !view.parameters.length;
  }

  // The output at the cursor with parameter k at a place of its axis.
  valueAt(k, unit) {
    const { view } = this;
    return view.valueAt(view.theta.map((value, i) => (i === k ? fromUnit(view.parameters[k], unit) : value)));
  }

  // The derivative of the output at the cursor by parameter k. At an end of the axis the difference is one-sided.
  derivative(k) {
    const { view } = this, axis = view.parameters[k], unit = toUnit(axis, view.theta[k]);
    const [below, above] = [unit - STEP, unit + STEP].map((place) => Math.min(1, Math.max(0, place)));
    return (this.valueAt(k, above) - this.valueAt(k, below)) / (fromUnit(axis, above) - fromUnit(axis, below));
  }

  // Draw curves with so many values each.
  paint(style, count) {
    const { view } = this;
    const which = view.parameters.length > 1 ? "each parameter" : "the parameter";
    this.title.textContent = `${view.output} at the cursor against ${which}`;
    view.parameters.forEach((axis, k) => {
      const units = evenUnits(count), values = units.map((unit) => this.valueAt(k, unit));
      const here = toUnit(axis, view.theta[k]), value = view.valueAt(view.theta);
      const [low, high] = extremes([...values, value]);
      const pad = 0.06 * (high - low) || Math.abs(low) * 1e-3 || 1;
      const vertical = { name: view.output, low: low - pad, high: high + pad, scale: "linear" };
      const { figure, panel } = this.figures[k];
      panel.begin(style, false);
      panel.frame(axis, vertical);
      panel.upright(here);
      panel.points(units, Array.from(values, (v) => toUnit(vertical, v)), style.network, false);
      panel.points([here], [toUnit(vertical, value)], style.network, true);
      const title = `${view.output} at the cursor against ${axis.name}`;
      const where = named([axis], [view.theta[k]]);
      const slope = `∂${view.output}/∂${axis.name} = ${text(this.derivative(k))} at ${where}`;
      figure.querySelector("figcaption").textContent = slope;
      panel.canvas.setAttribute("aria-label", `${title}, from ${text(low)} to ${text(high)}. ${slope}`);
    });
  }
}
