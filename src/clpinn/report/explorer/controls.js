// The form beside the field: the output, sliders, buttons, the pin, the held range and downloads.

const LAYERS = {
  error: "error against the reference", estimate: "estimated error", change: "change since the pin",
};

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
    return Number.isFinite(typed) ? inAxis(this.axis, typed) : this.rangeValue();
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
      const choose = (value) => this.setTheta(view.theta.map((other, i) => (i === k ? value : other)));
      return this.addSlider(axis, view.theta[k], choose, tasks.map((task) => task[k]));
    });
    // The cursor chooses the shown coordinates; time has a slider nevertheless.
    this.pointSliders = view.coordinates.map((axis, k) => {
      return view.shown.includes(k) && k !== view.time ? null : this.addPointSlider(axis, k);
    });
    this.buttons = element("div", { class: "row" });
    this.form.append(this.buttons);
    if (view.time >= 0) this.buttons.append(this.playButton());
    if (drawing.reference && view.parameters.length) this.addReferenceButton();
    if (view.parameters.length) this.addPin();
    this.addHold();
    this.addDownloads();
    this.addLayerChoice();
  }

  addSlider(axis, value, choose, marks) {
    const slider = new Slider(`${this.root.id}-${axis.name}`, axis, value, choose, marks);
    this.form.append(slider.element);
    return slider;
  }

  addPointSlider(axis, k) {
    const { view, redraws } = this;
    return this.addSlider(axis, view.point[k], (value) => {
      view.choose(k, value);
      if (view.shown.includes(k)) redraws.moved();
      else redraws.changed();
    });
  }

  // Choose a theta and draw it.
  setTheta(theta) {
    this.view.theta = theta;
    this.view.settle();
    this.show();
    this.redraws.changed();
  }

  // Show in the form what the view has: sliders, output, pin, layer, and whether there is a reference to go to.
  show() {
    const { view, drawing } = this, { reference } = drawing;
    this.thetaSliders.forEach((slider, k) => slider.show(view.theta[k]));
    this.pointSliders.forEach((slider, k) => slider?.show(view.wanted[k]));
    if (this.outputChoice) this.outputChoice.value = view.output;
    if (this.goButton) this.goButton.disabled = reference.isAt(reference.nearest());
    if (this.pinButton) {
      this.pinButton.textContent = view.pin ? "Unpin" : "Pin this theta";
      this.pinned.textContent = view.pin ? `Pinned: ${named(view.parameters, view.pin)}` : "";
    }
    const layers = view.layers();
    this.layerRow.hidden = layers.length < 2;
    this.layerChoice.replaceChildren(...layers.map((layer) => element("option", { value: layer }, LAYERS[layer])));
    this.layerChoice.value = view.shownLayer() ?? "";
  }

  // Choose the drawn place of the point on coordinate k; nothing is drawn.
  setUnit(k, unit) {
    this.view.choose(k, fromUnit(this.view.drawnAxis(k), unit));
    this.pointSliders[k]?.show(this.view.wanted[k]);
  }

  addOutputChoice() {
    const id = `${this.root.id}-output`;
    this.outputChoice = element("select", { id });
    this.outputChoice.append(...this.view.outputs.map((name) => element("option", { value: name }, name)));
    this.outputChoice.addEventListener("change", () => {
      this.view.output = this.outputChoice.value;
      this.release();
      this.redraws.shown();
    });
    this.form.append(element("div", { class: "row" }, element("label", { for: id }, "Output"), this.outputChoice));
  }

  playButton() {
    const { view, drawing, redraws } = this;
    const button = element("button", { type: "button", "aria-pressed": "false" }, "Play");
    const player = new Player((step) => {
      const unit = view.unit(view.time);
      this.setUnit(view.time, unit >= 1 ? 0 : unit + step);
      if (view.shown.includes(view.time)) drawing.paint(true);
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

  button(words, act) {
    const button = element("button", { type: "button" }, words);
    button.addEventListener("click", act);
    return button;
  }

  addReferenceButton() {
    const { reference } = this.drawing;
    const go = () => this.setTheta([...reference.thetas[reference.nearest()]]);
    this.goButton = this.button("Go to the nearest reference", go);
    this.buttons.append(this.goButton);
  }

  addPin() {
    const { view } = this;
    this.pinButton = this.button("", () => {
      view.pin = view.pin ? null : [...view.theta];
      if (view.pin) view.layer = "change";
      this.show();
      this.redraws.shown();
    });
    this.pinned = element("span", { class: "pinned", "aria-live": "polite" });
    this.form.append(element("div", { class: "row" }, this.pinButton, this.pinned));
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

  // Hold no range of values any more.
  release() {
    this.drawing.heldScale = null;
    this.hold.checked = false;
  }

  addDownloads() {
    const downloads = new Downloads(this.view, this.drawing, this.redraws, this.root);
    this.form.append(element("div", { class: "row" }, "Download:",
      this.button("Field (CSV)", () => downloads.field()), this.button("Picture (PNG)", () => downloads.picture())));
  }

  // The choice between errors and the change since the pin stands above their figure.
  addLayerChoice() {
    const id = `${this.root.id}-layer`;
    this.layerChoice = element("select", { id });
    this.layerChoice.addEventListener("change", () => {
      this.view.layer = this.layerChoice.value;
      this.redraws.shown();
    });
    this.layerRow = element("div", { class: "row" }, element("label", { for: id }, "Show the"), this.layerChoice);
    this.root.querySelector(".difference h3").after(this.layerRow);
  }
}
