// Estimated errors at some thetas, and between them: a Gaussian process over the logarithm of the relative L2 error.
class Estimates extends ErrorFields {
  // `estimates` are {axes, thetas, errors, resolved, reasons, level, processes}. `level` is the end of the spread in
  // deviations. `processes` has one {observed, scales, variance, weights, whitening, centre, size} per output, or null.
  // The mean at covariances k with the observed thetas is centre + size k·weights, the deviation is size times
  // √(variance - |whitening k|²).
  constructor(estimates, view) {
    super(estimates, view);
    this.resolved = estimates.resolved;
    this.reasons = estimates.reasons;
    this.level = estimates.level;
    this.processes = estimates.processes.map((process) => {
      return process && { ...process, whitening: new Float64Array(bytesOf(process.whitening).buffer) };
    });
  }

  // Whether the error at the chosen theta is known: the nearest estimate is resolved, and others tell how errors vary.
  known() {
    return this.resolved[this.nearest()] && this.process() !== null && (this.thetas.length > 1 || this.isAt(0));
  }

  // The process of the chosen output; null if too little is known of it.
  process() {
    return this.processes[this.view.outputs.indexOf(this.view.output)];
  }

  // The relative L2 error of the chosen output at the chosen theta, {low, middle, high}; null where it is not known.
  spread() {
    if (!this.known()) return null;
    const { mean, deviation } = this.meanAndDeviation(this.process());
    return {
      low: Math.exp(mean - this.level * deviation), middle: Math.exp(mean), high: Math.exp(mean + this.level * deviation),
    };
  }

  meanAndDeviation({ observed, scales, variance, weights, whitening, centre, size }) {
    const { view } = this, unit = view.parameters.map((axis, k) => toUnit(axis, view.theta[k]));
    const covariances = observed.map((other) => {
      const far = Math.sqrt(5) * Math.hypot(...unit.map((u, k) => (u - other[k]) / scales[k]));
      return variance * (1 + far + far ** 2 / 3) * Math.exp(-far); // Matérn 5/2
    });
    let mean = 0, known = 0;
    covariances.forEach((_, row) => {
      let white = 0;
      for (let k = 0; k <= row; k++) white += whitening[row * covariances.length + k] * covariances[k];
      mean += covariances[row] * weights[row];
      known += white ** 2;
    });
    return { mean: centre + size * mean, deviation: size * Math.sqrt(Math.max(0, variance - known)) };
  }
}
