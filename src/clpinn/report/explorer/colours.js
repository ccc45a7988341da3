// Colours in even steps of lightness (OKLab): blue to yellow, or blue and orange on either side of a light zero.

// The sRGB bytes of an OKLCh colour. A colour that screens cannot show is made paler until they can.
function colour(lightness, chroma, hue) {
  let rgb = linearRGB(lightness, chroma, hue);
  while (chroma > 0.001 && rgb.some((v) => v < -0.001 || v > 1.001)) {
    chroma *= 0.97;
    rgb = linearRGB(lightness, chroma, hue);
  }
  return rgb.map((v) => {
    const clipped = Math.min(1, Math.max(0, v));
    return 255 * (clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055);
  });
}

// The linear sRGB components of an OKLCh colour (Ottosson 2020, A perceptual color space).
function linearRGB(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue * Math.PI / 180), b = chroma * Math.sin(hue * Math.PI / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

// The bytes of 256 colours; shade(u) is the colour at u between 0 and 1.
function colourTable(shade) {
  const bytes = new Uint8ClampedArray(3 * 256);
  for (let i = 0; i < 256; i++) bytes.set(shade(i / 255), 3 * i);
  return bytes;
}

const ONE_SIDED = colourTable((u) => colour(0.24 + 0.69 * u, 0.09 + 0.06 * u * u, 285 - 180 * u));
const TWO_SIDED = colourTable((u) => {
  const side = Math.abs(2 * u - 1);
  return colour(0.97 - 0.55 * side, 0.17 * Math.min(1, 1.6 * side) * (1 - 0.2 * side), u < 0.5 ? 255 : 45);
});

// A colour scale {low, high, colours}; it is symmetric about zero where the values lie on both sides of zero.
function colourScale(low, high) {
  if (!(low < high)) {
    const pad = Math.abs(low) * 1e-3 || 1;
    [low, high] = Number.isFinite(low) ? [low - pad, low + pad] : [0, 1];
  }
  const most = Math.max(Math.abs(low), Math.abs(high));
  const twoSided = low < -0.05 * most && high > 0.05 * most;
  return twoSided ? { low: -most, high: most, colours: TWO_SIDED } : { low, high, colours: ONE_SIDED };
}

// Write the colour of a value as four bytes (RGBA); a value that is not finite stays transparent.
function paintPixel(bytes, start, value, scale) {
  if (!Number.isFinite(value)) return;
  const i = Math.round(255 * Math.min(1, Math.max(0, (value - scale.low) / (scale.high - scale.low))));
  bytes[start] = scale.colours[3 * i];
  bytes[start + 1] = scale.colours[3 * i + 1];
  bytes[start + 2] = scale.colours[3 * i + 2];
  bytes[start + 3] = 255;
}
