// The form beside the field: the output, sliders, buttons, and the held range.

function element(kind, attributes = {}, ...children) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A slider for one axis with its number beside it. `choose` is called with a value inside the axis; `marks` are values
// that were trained.
class Slider {
  constructor(id, axis, value, choose, marks = []) {
    this.axis = axis;
    this.choose = choose;
    this.range = element("input", { type: "range", id, min: 0, max: 1000, step: 1 });
    this.number = element("input", { type: "number", step: "any", min: axis.low, max: axis.high });
    this.number.setAttribute("aria-label", `${axis.name}, exact value`);
    this.range.addEventListener("input", () => this.take(this.rangeValue()));
    this.number.addEventListener("change", () => this.take(this.typedValue()));
    const track = element("div", { class: "track" }, this.range);
    for (const mark of new Set(marks)) {
      const line = element("span", { class: "mark", "aria-hidden": "true", title: `trained at ${text(mark)}` });
      line.style.left = `calc(8px + ${toUnit(axis, mark)} * (100% - 16px))`; // where the thumb's middle is
      track.append(line);
    }
    const ends = [axis.low, axis.high].map((end) => element("span", {}, text(end)));
    track.append(element("div", { class: "ends", "aria-hidden": "true" }, ...ends));
    const note = element("small", {}, axis.scale === "linear" ? "" : ` ${axis.scale}`);
    const label = element("label", { for: id }, axis.name, note);
    this.element = element("div", { class: "slider" }, label, track, this.number);
    this.show(value);
  }

  rangeValue() {
    return fromUnit(this.axis, this.range.value / 1000);
  }

  // What was typed, moved into the axis; what is no number leaves the slider where it is.
  typedValue() {
    const typed = Number.parseFloat(this.number.value);
    return Number.isFinite(typed) ? Math.min(this.axis.high, Math.max(this.axis.low, typed)) : this.rangeValue();
  }

  take(value) {
    this.show(value);
    this.choose(value);
  }

  show(value) {
    this.range.value = Math.round(1000 * toUnit(this.axis, value));
    this.range.setAttribute("aria-valuetext", `${this.axis.name} ${text(value)}`);
    this.number.value = Number(value.toPrecision(6));
  }
}

class Controls {
  // `tasks` are the trained thetas.
  constructor(root, view, drawing, redraws, tasks) {
    this.root = root;
    this.view = view;
    this.drawing = drawing;
    this.redraws = redraws;
    this.form = root.querySelector(".controls");
    this.form.addEventListener("submit", (event) => event.preventDefault());
    if (view.outputs.length > 1) this.addOutputChoice();
    this.thetaSliders = view.parameters.map((axis, k) => {
      const choose = (value) => { view.theta[k] = value; redraws.changed(); };
      return this.addSlider(axis, view.theta[k], choose, tasks.map((task) => task[k]));
    });
    // The cursor chooses the shown coordinates; time has a slider nevertheless.
    this.pointSliders = view.coordinates.map((axis, k) => {
      return view.shown.includes(k) && k !== view.time ? null : this.addPointSlider(axis, k);
    });
    const buttons = element("div", { class: "row" });
    this.form.append(buttons);
    if (view.time >= 0) buttons.append(this.playButton());
    if (drawing.reference && view.parameters.length) buttons.append(this.referenceButton());
    this.addHold();
  }

  addSlider(axis, value, choose, marks) {
    const slider = new Slider(`${this.root.id}-${axis.name}`, axis, value, choose, marks);
    this.form.append(slider.element);
    return slider;
  }

  addPointSlider(axis, k) {
    const { view, redraws } = this;
    return this.addSlider(axis, view.point[k], (value) => {
      view.point[k] = value;
      if (view.shown.includes(k)) redraws.moved();
      else redraws.changed();
    });
  }

  // Move the chosen point along coordinate k; nothing is drawn.
  setUnit(k, unit) {
    this.view.setUnit(k, unit);
    this.pointSliders[k]?.show(this.view.point[k]);
  }

  addOutputChoice() {
    const id = `${this.root.id}-output`, choice = element("select", { id });
    choice.append(...this.view.outputs.map((name) => element("option", { value: name }, name)));
    choice.addEventListener("change", () => {
      this.view.output = choice.value;
      this.drawing.heldScale = null;
      this.hold.checked = false;
      this.drawing.paint();
    });
    this.form.append(element("div", { class: "row" }, element("label", { for: id }, "Output"), choice));
  }

  playButton() {
    const { view, drawing, redraws } = this;
    const button = element("button", { type: "button", "aria-pressed": "false" }, "Play");
    const player = new Player((step) => {
      const unit = view.unit(view.time);
      this.setUnit(view.time, unit >= 1 ? 0 : unit + step);
      if (view.shown.includes(view.time)) drawing.paint();
      else redraws.draw(false);
    });
    button.addEventListener("click", () => {
      const started = player.toggle();
      button.setAttribute("aria-pressed", String(started));
      button.textContent = started ? "Pause" : "Play";
      // A screen reader is not to read out every frame.
      this.root.querySelector("output").setAttribute("aria-live", started ? "off" : "polite");
      if (!started) redraws.changed(0);
    });
    return button;
  }

  referenceButton() {
    const { view, drawing } = this;
    const button = element("button", { type: "button" }, "Go to the reference");
    button.addEventListener("click", () => {
      drawing.reference.thetas[drawing.reference.nearest()].forEach((value, k) => {
        view.theta[k] = value;
        this.thetaSliders[k].show(value);
      });
      this.redraws.changed();
    });
    return button;
  }

  addHold() {
    const { drawing } = this;
    this.hold = element("input", { type: "checkbox", id: `${this.root.id}-hold` });
    this.hold.addEventListener("change", () => {
      drawing.heldScale = this.hold.checked ? drawing.scale() : null;
      drawing.paint();
    });
    const label = element("label", { for: this.hold.id }, "Hold the range of values");
    this.form.append(element("div", { class: "row" }, this.hold, label));
  }
}
