// Pictures of values on a grid of nodes, across x up, in the colours of a scale.

function blank(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

// A picture with one pixel per node. Nodes run along the horizontal axis first, from the lower left.
function gridPicture(values, across, up, scale) {
  const canvas = blank(across, up), context = canvas.getContext("2d"), image = context.createImageData(across, up);
  for (let j = 0, k = 0; j < up; j++) {
    for (let i = 0; i < across; i++, k++) paintPixel(image.data, 4 * ((up - 1 - j) * across + i), values[k], scale);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// A picture of nodes at any places u and v in [0, 1]: each cell is two triangles with interpolated values.
function meshPicture(u, v, values, across, up, scale, width, height) {
  const canvas = blank(width, height), context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const triangle = (a, b, c) => {
    const [xa, xb, xc] = [a, b, c].map((k) => u[k] * (width - 1));
    const [ya, yb, yc] = [a, b, c].map((k) => (1 - v[k]) * (height - 1));
    const area = (xb - xa) * (yc - ya) - (xc - xa) * (yb - ya);
    if (!area) return;
    const right = Math.min(width - 1, Math.ceil(Math.max(xa, xb, xc)));
    const bottom = Math.min(height - 1, Math.ceil(Math.max(ya, yb, yc)));
    for (let y = Math.max(0, Math.floor(Math.min(ya, yb, yc))); y <= bottom; y++) {
      for (let x = Math.max(0, Math.floor(Math.min(xa, xb, xc))); x <= right; x++) {
        const p = ((x - xa) * (yc - ya) - (xc - xa) * (y - ya)) / area;
        const q = ((xb - xa) * (y - ya) - (x - xa) * (yb - ya)) / area;
        if (p < -0.01 || q < -0.01 || p + q > 1.01) continue;
        const value = values[a] + p * (values[b] - values[a]) + q * (values[c] - values[a]);
        paintPixel(image.data, 4 * (y * width + x), value, scale);
      }
    }
  };
  for (let j = 0; j + 1 < up; j++) {
    for (let i = 0; i + 1 < across; i++) {
      const k = j * across + i;
      triangle(k, k + 1, k + across);
      triangle(k + across + 1, k + 1, k + across);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
