// What a printed program needs: functions that JavaScript lacks, the matrix product, and evaluation block by block.

// tanh(n + d) from a table of tanh(n) in steps of 1/32 and the series of tanh(d), |d| <= 1/64: exact to 1e-14.
const TANH = Float64Array.from({ length: 1281 }, (_, i) => Math.tanh((i - 640) / 32));
function tanh(x) {
  if (x > 19.9) return 1;
  if (x < -19.9) return -1;
  const i = (x * 32 + 640.5) | 0, d = x - (i - 640) / 32, s = d * d;
  const y = TANH[i], z = d * (1 - s * (1 / 3 - s * (2 / 15 - s * (17 / 315))));
  return (y + z) / (1 + y * z);
}

// The error function: its series for small |x|, a continued fraction beyond.
function erf(x) {
  if (Math.abs(x) > 2.5) return x > 0 ? 1 - erfc(x) : erfc(-x) - 1;
  let term = x, sum = x;
  for (let n = 1; n < 60; n++) {
    term *= -x * x / n;
    sum += term / (2 * n + 1);
  }
  return sum * 2 / Math.sqrt(Math.PI);
}

function erfc(x) {
  if (!(x > 2.5)) return x < -2.5 ? 2 - erfc(-x) : 1 - erf(x);
  let tail = x;
  for (let n = 60; n > 0; n--) tail = x + n / 2 / tail;
  return Math.exp(-x * x) / Math.sqrt(Math.PI) / tail;
}

// The nearest integer; halves go to the even neighbour.
function round(x) {
  const below = Math.floor(x), rest = x - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

// Rows of a table, `width` numbers each, at places that are components; a component has `rows` values side by side.
function lookUp(m, from, w, at, to, places, width, rows) {
  for (let k = 0; k < places; k++) {
    for (let r = 0; r < rows; r++) {
      const row = at + m[(from + k) * rows + r] * width;
      for (let j = 0; j < width; j++) m[(to + k * width + j) * rows + r] = w[row + j];
    }
  }
}

// Rows of m times a matrix: four outputs and two rows at a time stay in registers. A component's ROWS values lie side by
// side. The matrix comes in strips of four columns.
function linear(m, from, inputs, w, at, c, bias, to, outputs) {
  for (let j = 0; j < outputs; j += 4) {
    const b0 = c[bias + j], b1 = c[bias + j + 1], b2 = c[bias + j + 2], b3 = c[bias + j + 3];
    const strip = at + j * inputs;
    for (let r = 0; r < ROWS; r += 2) {
      let p0 = b0, p1 = b1, p2 = b2, p3 = b3, q0 = b0, q1 = b1, q2 = b2, q3 = b3;
      let k = from + r, s = strip;
      for (let i = 0; i < inputs; i++, k += ROWS, s += 4) {
        const p = m[k], q = m[k + 1], w0 = w[s], w1 = w[s + 1], w2 = w[s + 2], w3 = w[s + 3];
        p0 += p * w0; p1 += p * w1; p2 += p * w2; p3 += p * w3;
        q0 += q * w0; q1 += q * w1; q2 += q * w2; q3 += q * w3;
      }
      let o = to + j * ROWS + r;
      m[o] = p0; m[o + 1] = q0; o += ROWS;
      m[o] = p1; m[o + 1] = q1; o += ROWS;
      m[o] = p2; m[o + 1] = q2; o += ROWS;
      m[o] = p3; m[o + 1] = q3;
    }
  }
}

// The matrix product for a single row, in c.
function dense(c, from, inputs, w, at, bias, to, outputs) {
  for (let j = 0; j < outputs; j++) {
    let sum = c[bias + j], s = at + (j & ~3) * inputs + (j & 3);
    for (let i = 0; i < inputs; i++, s += 4) sum += c[from + i] * w[s];
    c[to + j] = sum;
  }
}

function numbers(base64) {
  return new Float32Array(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);
}

// evaluate(points, theta): outputs by name at points (rows of coordinates in one flat array) and a theta.
function evaluator(program) {
  const stored = numbers(program.numbers), m = new Float64Array(program.memory * ROWS);
  const c = Float64Array.from(stored.subarray(0, program.constants));
  const w = Float64Array.from(stored.subarray(program.constants));
  const width = program.coordinates.length;
  return function evaluate(points, theta) {
    const count = width ? points.length / width : 1;
    const outputs = program.outputs.map(() => new Float64Array(count));
    for (let k = 0; k < theta.length; k++) c[k] = theta[k];
    program.prepare(c, w);
    for (let start = 0; start < count; start += ROWS) {
      const rows = Math.min(ROWS, count - start);
      for (let r = 0; r < ROWS; r++) {
        const row = (start + Math.min(r, rows - 1)) * width;
        for (let k = 0; k < width; k++) m[k * ROWS + r] = points[row + k];
      }
      program.block(m, c, w);
      program.outputs.forEach(([, moves, place], o) => {
        for (let r = 0; r < rows; r++) outputs[o][start + r] = moves ? m[place * ROWS + r] : c[place];
      });
    }
    return Object.fromEntries(program.outputs.map(([name], o) => [name, outputs[o]]));
  };
}
