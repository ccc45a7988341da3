// The cursor on the field, moved by pointer and by keys.
class Cursor {
  constructor(view, drawing, controls, redraws) {
    this.view = view;
    this.drawing = drawing;
    this.controls = controls;
    this.redraws = redraws;
    const { canvas } = drawing.fieldPanel;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.follow(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" || event.buttons) this.follow(event);
    });
    canvas.addEventListener("keydown", (event) => this.step(event));
  }

  // Move to places u and v of the shown coordinates.
  moveTo(u, v) {
    this.controls.setUnit(this.view.across, u);
    if (this.view.planar) this.controls.setUnit(this.view.up, v);
    this.redraws.moved();
  }

  follow(event) {
    const { canvas, inside } = this.drawing.fieldPanel, box = canvas.getBoundingClientRect();
    const u = (event.clientX - box.left - inside.x) / inside.width;
    const v = 1 - (event.clientY - box.top - inside.y) / inside.height;
    this.moveTo(...this.boxUnits(Math.min(1, Math.max(0, u)), Math.min(1, Math.max(0, v))));
  }

  // Places on the box's axes of a place in the frame. Where theta moves the geometry, those of the node drawn nearest:
  // the physical coordinates need not be invertible here.
  boxUnits(u, v) {
    const { view } = this;
    if (!view.extent) return [u, v];
    const { values, acrossUnits, upUnits } = this.drawing.field;
    const left = view.physicalUnits(values, view.across);
    const height = view.planar ? view.physicalUnits(values, view.up) : null;
    let best = 0, least = Infinity;
    left.forEach((place, k) => {
      const distance = (place - u) ** 2 + (height ? (height[k] - v) ** 2 : 0);
      if (distance < least) [best, least] = [k, distance];
    });
    return [acrossUnits[best % acrossUnits.length], upUnits[Math.floor(best / acrossUnits.length)]];
  }

  // Arrow keys move by a hundredth of an axis, with Shift by a tenth.
  step(event) {
    const step = event.shiftKey ? 0.1 : 0.01, { view } = this;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    this.moveTo(view.unit(view.across) + move[0], view.planar ? view.unit(view.up) + move[1] : 0);
  }
}
