// Colours of values. The tables come from Python (drawing/colours.py), so that pages and figures have the same ones.
class Colours {
  // `tables` are {values, signed, share}: base64 of 256 colours, three bytes each; and how large the smaller side is at
  // least where values lie on both sides of zero, as a share of the larger one.
  constructor(tables) {
    const bytes = (table) => Uint8Array.from(atob(table), (letter) => letter.charCodeAt(0));
    this.values = bytes(tables.values);
    this.signed = bytes(tables.signed);
    this.share = tables.share;
  }

  // A colour scale {low, high, colours}; it is symmetric about zero where the values lie on both sides of zero.
  scale(low, high) {
    if (!(low < high)) {
      const pad = Math.abs(low) * 1e-3 || 1;
      [low, high] = Number.isFinite(low) ? [low - pad, low + pad] : [0, 1];
    }
    const most = Math.max(Math.abs(low), Math.abs(high));
    if (low < 0 && high > 0 && Math.min(-low, high) >= this.share * most) return this.differences(low, high);
    return { low, high, colours: this.values };
  }

  // The scale of differences: symmetric about zero.
  differences(low, high) {
    const most = Math.max(Math.abs(low), Math.abs(high));
    const end = most > 0 && Number.isFinite(most) ? most : 1;
    return { low: -end, high: end, colours: this.signed };
  }
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
