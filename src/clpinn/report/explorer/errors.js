// Errors of the network at some thetas, on a grid over the coordinates.
class ErrorFields {
  // `errors` (theta, output, grid point) are network minus solution, base64 of 32-bit floats.
  constructor({ axes, thetas, errors }, view) {
    this.view = view;
    this.axes = axes;
    this.thetas = thetas;
    this.size = this.axes.reduce((product, axis) => product * axis.length, 1);
    this.numbers = new Float32Array(bytesOf(errors).buffer);
    this.corners = new Int32Array(2 ** this.axes.length);
    this.weights = new Float64Array(this.corners.length);
  }

  // Which theta is nearest to another one, by distance in units of the parameters' axes.
  nearest(theta = this.view.theta) {
    let best = 0, least = Infinity;
    this.thetas.forEach((known, i) => {
      const distance = this.apart(known, theta).reduce((sum, along) => sum + along ** 2, 0);
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  }

  apart(known, theta) {
    return this.view.parameters.map((axis, k) => toUnit(axis, known[k]) - toUnit(axis, theta[k]));
  }

  // Whether the chosen theta is one of them.
  isAt(index) {
    return this.apart(this.thetas[index], this.view.theta).every((along) => Math.abs(along) < 1e-7);
  }

  // Errors of the chosen output at points of the box: multilinear between the nodes of the grid.
  errorsAt(index, points) {
    const { outputs, output } = this.view;
    const start = (index * outputs.length + outputs.indexOf(output)) * this.size;
    const nodes = this.numbers.subarray(start, start + this.size);
    const rows = points.length / this.axes.length;
    return Float64Array.from({ length: rows }, (_, row) => this.between(nodes, points, row));
  }

  between(values, points, row) {
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
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}
