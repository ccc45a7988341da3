// When to draw: a coarse field in every frame while something changes, the full field once it rests.

const FULL = 100; // nodes on each axis of a field at rest
const FRAME = 18; // milliseconds that a frame may take while something is dragged
const REST = 120; // milliseconds without a change after which all is drawn in full

class Redraws {
  constructor(drawing) {
    this.drawing = drawing;
    this.nodes = 48; // on each axis of a coarse field; adjusted so that a frame takes about FRAME
    this.times = { opening: [], drag: [], full: [] }; // milliseconds of drawings
    this.waiting = 0; // a requested frame, 0 for none
    this.resting = 0; // a running timer, 0 for none
    this.rested = () => {}; // called when all has been drawn in full after a change
  }

  // Compute the field and draw it now.
  draw(full) {
    const start = performance.now(), count = full ? FULL : this.nodes;
    this.drawing.compute(count, !full);
    this.drawing.paint();
    const spent = performance.now() - start;
    if (!full) {
      const fitting = count * Math.sqrt(FRAME / spent);
      this.nodes = Math.round(Math.min(FULL, Math.max(16, 0.5 * this.nodes + 0.5 * fitting)));
    }
    const times = this.times[full ? "full" : "drag"];
    times.push(spent);
    if (times.length > 1000) times.shift();
  }

  // The first drawing. Its time is kept apart, since the browser has compiled nothing before it.
  open() {
    this.draw(true);
    this.times.opening = this.times.full.splice(0);
  }

  // The field has changed: draw at most once per frame, and the full field after a rest.
  changed(rest = REST) {
    this.drawing.coarse = true;
    this.inFrame(() => this.draw(false));
    this.restAfter(rest);
  }

  // Only the cursor has moved: the field stays as computed.
  moved() {
    this.inFrame(() => this.drawing.paint(true));
    this.restAfter(REST);
  }

  // Something else is to be shown of what has been computed.
  shown() {
    this.drawing.paint();
    this.restAfter(0);
  }

  inFrame(draw) {
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; draw(); });
  }

  restAfter(milliseconds) {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      this.resting = 0;
      if (this.drawing.coarse) this.draw(true);
      else this.drawing.paint();
      this.rested();
    }, milliseconds);
  }

  settled() {
    return !this.waiting && !this.resting;
  }
}
