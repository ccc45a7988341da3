// What the reader can take home: the field as a table, and its picture.
class Downloads {
  constructor(view, drawing, redraws, root) {
    this.view = view;
    this.drawing = drawing;
    this.redraws = redraws;
    this.root = root;
  }

  // All outputs at the nodes of the field, one row per node: coordinates as they are drawn, parameters, outputs. Where
  // theta moves the geometry, the coordinates of the box come first.
  table() {
    const { view } = this, { points, theta, values } = this.drawing.field, width = view.coordinates.length;
    const box = view.geometry ? view.coordinates.map((axis) => `box_${axis.name}`) : [];
    const names = [view.coordinates, view.parameters].flat().map((axis) => axis.name);
    const drawn = (row, k) => {
      return view.geometry ? values[`physical ${view.coordinates[k].name}`][row] : points[row * width + k];
    };
    const lines = Array.from({ length: points.length / width }, (_, row) => [
      ...box.map((_, k) => points[row * width + k]),
      ...view.coordinates.map((_, k) => drawn(row, k)),
      ...theta,
      ...view.outputs.map((name) => values[name][row]),
    ].join(","));
    return [[...box, ...names, ...view.outputs].map(quoted).join(","), ...lines].join("\r\n") + "\r\n";
  }

  field() {
    if (this.drawing.coarse) this.redraws.draw(true);
    this.save(new Blob([this.table()], { type: "text/csv" }), "csv");
  }

  // The field with its title, on the page's paper.
  picture() {
    const { canvas } = this.drawing.fieldPanel, { style } = this.drawing, ratio = window.devicePixelRatio || 1;
    const header = Math.round(34 * ratio), picture = blank(canvas.width, canvas.height + header);
    const context = picture.getContext("2d");
    context.fillStyle = style.paper;
    context.fillRect(0, 0, picture.width, picture.height);
    context.drawImage(canvas, 0, header);
    context.fillStyle = style.ink;
    context.font = `${14 * ratio}px system-ui, sans-serif`;
    const title = `${this.root.querySelector("h2").textContent}: ${this.root.querySelector(".field h3").textContent}`;
    context.fillText(title, 10 * ratio, 22 * ratio, picture.width - 20 * ratio);
    picture.toBlob((blob) => this.save(blob, "png"), "image/png");
  }

  save(blob, ending) {
    const address = URL.createObjectURL(blob), name = this.root.querySelector("h2").textContent;
    element("a", { href: address, download: `${name}-${this.view.output}.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
}

// A name in a table, in quotes if it needs them.
function quoted(name) {
  return /[",\r\n]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name;
}
