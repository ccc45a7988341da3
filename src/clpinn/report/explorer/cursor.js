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

  // Move to places u and v of the drawn axes. Outside the domain the cursor stays at its edge.
  moveTo(u, v) {
    this.controls.setUnit(this.view.across, u);
    if (this.view.planar) this.controls.setUnit(this.view.up, v);
    this.view.wanted = this.view.drawnPoint();
    this.redraws.moved();
  }

  follow(event) {
    const { canvas, inside } = this.drawing.fieldPanel, box = canvas.getBoundingClientRect();
    const left = event.clientX - box.left - inside.x, top = event.clientY - box.top - inside.y;
    this.moveTo(left / inside.width, 1 - top / inside.height);
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
