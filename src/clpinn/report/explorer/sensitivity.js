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

  // The derivative of the output at the cursor by parameter k: a central difference. It is one-sided at an end of the
  // axis, and where the cursor would leave the domain.
  derivative(k) {
    const { view } = this, axis = view.parameters[k], unit = toUnit(axis, view.theta[k]);
    const sides = [unit - STEP, unit + STEP].map((place) => {
      const side = { at: fromUnit(axis, place), value: this.valueAt(k, place) };
      return Number.isFinite(side.value) ? side : { at: view.theta[k], value: view.valueAt(view.theta) };
    });
    return (sides[1].value - sides[0].value) / (sides[1].at - sides[0].at);
  }

  // Draw curves with so many values each.
  paint(style, count) {
    const { view } = this;
    const which = view.parameters.length > 1 ? "each parameter" : "the parameter";
    this.title.textContent = `${view.output} at the cursor against ${which}`;
    view.parameters.forEach((axis, k) => {
      const units = evenUnits(count), values = units.map((unit) => this.valueAt(k, unit));
      const here = toUnit(axis, view.theta[k]), value = view.valueAt(view.theta);
      const [low, high] = finiteExtremes([...values, value]);
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
      const derivative = this.derivative(k);
      const shown = Number.isFinite(derivative) ? `= ${text(derivative)}` : "not defined";
      const slope = `∂${view.output}/∂${axis.name} ${shown} at ${where}`;
      figure.querySelector("figcaption").textContent = slope;
      panel.canvas.setAttribute("aria-label", `${title}, from ${text(low)} to ${text(high)}. ${slope}`);
    });
  }
}
