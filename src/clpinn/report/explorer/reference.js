// Reference values at some thetas, on a grid over the coordinates.
class Reference {
  // `references` are {kind, axes, thetas, values}; values (theta, output, grid point) are base64 of 32-bit floats.
  constructor(references, view) {
    this.view = view;
    this.kind = references.kind;
    this.axes = references.axes;
    this.thetas = references.thetas;
    this.size = this.axes.reduce((product, axis) => product * axis.length, 1);
    const bytes = Uint8Array.from(atob(references.values), (letter) => letter.charCodeAt(0));
    this.numbers = new Float32Array(bytes.buffer);
    this.differences = new Map(); // by theta and output
    this.corners = new Int32Array(2 ** this.axes.length);
    this.weights = new Float64Array(this.corners.length);
  }

  // Which theta is nearest to the chosen one, by distance in units of the parameters' axes.
  nearest() {
    let best = 0, least = Infinity;
    this.thetas.forEach((theta, i) => {
      const apart = this.view.parameters.map((axis, k) => toUnit(axis, theta[k]) - toUnit(axis, this.view.theta[k]));
      const distance = apart.reduce((sum, along) => sum + along ** 2, 0);
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  }

  // The chosen output on the grid.
  values(index) {
    const { outputs, output } = this.view;
    const start = (index * outputs.length + outputs.indexOf(output)) * this.size;
    return this.numbers.subarray(start, start + this.size);
  }

  // A value at one of many points: multilinear between the nodes of the grid.
  interpolated(values, points, row = 0) {
    const { corners, weights } = this;
    let count = 1;
    corners[0] = 0;
    weights[0] = 1;
    for (let k = 0; k < this.axes.length; k++) {
      const axis = this.axes[k], value = points[row * this.axes.length + k];
      let i = 0;
      while (i + 2 < axis.length && axis[i + 1] <= value) i++;
      for (let c = 0; c < count; c++) corners[c] = corners[c] * axis.length + i;
      if (axis.length === 1) continue;
      const fraction = Math.min(1, Math.max(0, (value - axis[i]) / (axis[i + 1] - axis[i])));
      for (let c = 0; c < count; c++) {
        corners[count + c] = corners[c] + 1;
        weights[count + c] = weights[c] * fraction;
        weights[c] *= 1 - fraction;
      }
      count *= 2;
    }
    let sum = 0;
    for (let c = 0; c < count; c++) if (weights[c]) sum += weights[c] * values[corners[c]];
    return sum;
  }

  // The relative L2 difference between the network and the reference, over the grid; it is computed once.
  difference(index) {
    const key = this.key(index);
    if (!this.differences.has(key)) {
      const answers = this.view.evaluate(this.gridPoints(), this.thetas[index])[this.view.output];
      const values = this.values(index);
      let above = 0, below = 0;
      for (let i = 0; i < this.size; i++) {
        above += (answers[i] - values[i]) ** 2;
        below += values[i] ** 2;
      }
      this.differences.set(key, below > 0 ? Math.sqrt(above / below) : NaN);
    }
    return this.differences.get(key);
  }

  hasDifference(index) {
    return this.differences.has(this.key(index));
  }

  key(index) {
    return `${index} ${this.view.output}`;
  }

  // All points of the grid, the last coordinate running fastest.
  gridPoints() {
    const width = this.axes.length, points = new Float64Array(this.size * width);
    for (let i = 0; i < this.size; i++) {
      let rest = i;
      for (let k = width - 1; k >= 0; k--) {
        points[i * width + k] = this.axes[k][rest % this.axes[k].length];
        rest = Math.floor(rest / this.axes[k].length);
      }
    }
    return points;
  }
}
