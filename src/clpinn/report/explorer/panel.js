// A canvas on which a frame, ticks, pictures, lines and a colour bar are drawn. `inside` is the frame in CSS pixels.
class Panel {
  constructor(canvas) {
    this.canvas = canvas;
  }

  // Clear the canvas at the screen's resolution. `style` has colours; `barred` leaves room for a colour bar; `aspect`
  // is the frame's width over its height, null for all the room there is.
  begin(style, barred, aspect = null) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const pixels = [width, height].map((length) => Math.max(1, Math.round(length * ratio)));
    if (this.canvas.width !== pixels[0]) this.canvas.width = pixels[0];
    if (this.canvas.height !== pixels[1]) this.canvas.height = pixels[1];
    this.style = style;
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.font = "12px system-ui, sans-serif";
    const right = barred ? 84 : 14, left = 52;
    const room = { width: Math.max(20, width - left - right), height: Math.max(20, height - 50) };
    this.inside = { x: left, y: 10, ...room };
    if (aspect) {
      this.inside.width = Math.min(room.width, room.height * aspect);
      this.inside.height = Math.min(room.height, room.width / aspect);
      this.inside.x += (room.width - this.inside.width) / 2;
    }
  }

  // The CSS pixel at u and v in [0, 1] inside the frame.
  place(u, v) {
    const { x, y, width, height } = this.inside;
    return [x + u * width, y + (1 - v) * height];
  }

  // Fill the frame with an image: to its edges, or with its outermost pixels' middles on the frame. Only
  // what all of the `parts` cover is filled: each is a list of polygons with rows [u, v].
  picture(image, toEdges, parts = []) {
    const { x, y, width, height } = this.inside, context = this.context;
    context.save();
    for (const cells of parts) {
      context.beginPath();
      cells.forEach((cell) => this.trace(cell));
      context.clip();
    }
    context.imageSmoothingEnabled = true;
    if (toEdges) context.drawImage(image, x, y, width, height);
    else context.drawImage(image, 0.5, 0.5, image.width - 1, image.height - 1, x, y, width, height);
    context.restore();
  }

  // Thin lines in the colour of the text, each of rows [u, v].
  segments(lines) {
    const context = this.context;
    context.strokeStyle = this.style.ink;
    context.lineWidth = 1.2;
    context.lineCap = "round";
    context.beginPath();
    lines.forEach((line) => this.trace(line));
    context.stroke();
    context.lineCap = "butt";
  }

  trace(line) {
    line.forEach(([u, v], k) => this.context[k ? "lineTo" : "moveTo"](...this.place(u, v)));
  }

  // The frame with ticks and names of the axes that run to the right and up.
  frame(across, up) {
    const context = this.context, { x, y, width, height } = this.inside;
    context.strokeStyle = this.style.soft;
    context.fillStyle = this.style.ink;
    context.lineWidth = 1;
    context.strokeRect(x, y, width, height);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const value of ticks(across, width / 70)) {
      const [left] = this.place(toUnit(across, value), 0);
      context.fillRect(left - 0.5, y + height, 1, 4);
      context.fillText(text(value), left, y + height + 6);
    }
    context.fillText(labelled(across), x + width / 2, y + height + 23);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of ticks(up, height / 40)) {
      const [, top] = this.place(0, toUnit(up, value));
      context.fillRect(x - 4, top - 0.5, 4, 1);
      context.fillText(text(value), x - 7, top);
    }
    context.save();
    context.translate(x - 44, y + height / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(labelled(up), 0, 0);
    context.restore();
  }

  // The colour bar to the right of the frame.
  bar(scale) {
    const context = this.context, { x, y, width, height } = this.inside, left = x + width + 14;
    for (let i = 0; i < height; i++) {
      const k = 3 * Math.round(255 * (1 - i / height));
      context.fillStyle = `rgb(${scale.colours.slice(k, k + 3).join(" ")})`;
      context.fillRect(left, y + i, 14, 1.5);
    }
    context.strokeStyle = this.style.soft;
    context.strokeRect(left, y, 14, height);
    context.fillStyle = this.style.ink;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const axis = { low: scale.low, high: scale.high, scale: "linear" };
    for (const value of ticks(axis, Math.max(4, height / 32))) {
      context.fillText(text(value), left + 19, y + (1 - toUnit(axis, value)) * height);
    }
  }

  // A line through points, or circles at them; u and v are in [0, 1]. `dash` are lengths of dashes and gaps.
  points(u, v, colour, circles, dash = []) {
    const context = this.context, { x, y, width, height } = this.inside;
    context.save();
    context.beginPath();
    context.rect(x - 4, y - 4, width + 8, height + 8);
    context.clip();
    context.strokeStyle = colour;
    context.lineWidth = circles ? 1.5 : 2;
    context.setLineDash(dash);
    context.beginPath();
    let penDown = false;
    for (let k = 0; k < u.length; k++) {
      const [a, b] = this.place(u[k], v[k]);
      if (!Number.isFinite(b)) penDown = false;
      else if (circles) {
        context.moveTo(a + 3, b);
        context.arc(a, b, 3, 0, 2 * Math.PI);
      } else {
        if (penDown) context.lineTo(a, b);
        else context.moveTo(a, b);
        penDown = true;
      }
    }
    context.stroke();
    context.restore();
  }

  // A thin dashed line from bottom to top.
  upright(u) {
    const context = this.context;
    context.strokeStyle = this.style.soft;
    context.lineWidth = 1;
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(...this.place(u, 0));
    context.lineTo(...this.place(u, 1));
    context.stroke();
    context.setLineDash([]);
  }

  // Dashed lines that can be seen on any colour.
  dashed(lines) {
    const context = this.context;
    for (const [shade, width, dash] of [["#00000099", 2, []], ["#ffffffe6", 1, [5, 4]]]) {
      context.strokeStyle = shade;
      context.lineWidth = width;
      context.setLineDash(dash);
      for (const line of lines) {
        context.beginPath();
        line.forEach(([u, v], k) => context[k ? "lineTo" : "moveTo"](...this.place(u, v)));
        context.stroke();
      }
    }
    context.setLineDash([]);
  }
}
