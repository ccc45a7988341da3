// What the reader sees, in the fragment of the page's address: a link restores it.
class Fragment {
  // `number` tells apart several explorers of one page.
  constructor(view, controls, redraws, number) {
    this.view = view;
    this.controls = controls;
    this.redraws = redraws;
    this.prefix = number > 1 ? `${number}.` : "";
    this.written = "";
    redraws.rested = () => this.write();
    window.addEventListener("hashchange", () => {
      if (location.hash === this.written) return;
      this.read();
      this.controls.show();
      this.redraws.changed(0);
    });
  }

  entries() {
    return new URLSearchParams(location.hash.slice(1));
  }

  write() {
    const { view } = this, entries = this.entries();
    const put = (name, value) => {
      if (value === null || value === "") entries.delete(this.prefix + name);
      else entries.set(this.prefix + name, value);
    };
    put("theta", view.theta.join(","));
    put("at", view.wanted.map((value) => Number(value.toPrecision(9))).join(","));
    put("output", view.output);
    put("layer", view.layer);
    put("pin", view.pin && view.pin.join(","));
    this.written = `#${entries.toString().replaceAll("%2C", ",")}`;
    try {
      history.replaceState(null, "", this.written);
    } catch {
      // A page inside another one, as in a notebook, has no address of its own.
    }
  }

  // Take over what the address says. What is missing or makes no sense is left as it is. Numbers are moved into
  // the axes.
  read() {
    const { view } = this, entries = this.entries(), get = (name) => entries.get(this.prefix + name);
    const numbers = (name, axes) => {
      const values = (get(name) ?? "").split(",").map((part) => (part.trim() ? Number(part) : NaN));
      const fits = values.length === axes.length && values.every(Number.isFinite);
      return fits ? values.map((value, k) => inAxis(axes[k], value)) : null;
    };
    view.theta = numbers("theta", view.parameters) ?? view.theta;
    if (entries.has(`${this.prefix}theta`)) view.pin = numbers("pin", view.parameters);
    if (view.outputs.includes(get("output"))) view.output = get("output");
    if (["error", "estimate", "change"].includes(get("layer"))) view.layer = get("layer");
    const at = numbers("at", view.coordinates.map((_, k) => view.drawnAxis(k)));
    if (at) view.wanted = at;
    view.coordinates.forEach((_, k) => { if (!view.shown.includes(k)) view.point[k] = view.wanted[k]; });
    view.settle();
  }
}
