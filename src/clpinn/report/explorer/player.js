// Time that plays: a step in every frame, or, where motion is to be reduced, ten steps, two per second.

const TURN = 6; // seconds from end to end

class Player {
  // `advance` is called with a step, a fraction of the time axis.
  constructor(advance) {
    this.advance = advance;
    this.reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.frame = 0; // the requested frame, 0 while paused
    this.last = 0;
  }

  // Start or pause; true if it plays now.
  toggle() {
    const starts = !this.frame;
    if (this.frame) cancelAnimationFrame(this.frame);
    this.last = performance.now();
    this.frame = starts ? this.request() : 0;
    return starts;
  }

  request() {
    return requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    if (!this.frame) return;
    const reduced = this.reduced.matches, elapsed = now - this.last;
    if (elapsed >= (reduced ? 500 : 0)) {
      this.last = now;
      this.advance(reduced ? 0.1 : Math.min(0.1, elapsed / 1000 / TURN));
    }
    this.frame = this.request();
  }
}
