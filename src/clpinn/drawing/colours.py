"""Colours of figures and pages: even maps for fields, and what the colours of a figure become on a dark page."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, to_rgba
from matplotlib.figure import Figure

# Okabe and Ito (2008), Color Universal Design.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#f0e442",
)
GREY, GRID, INK, PAPER = "#767676", "#e4e4e4", "#000000", "#ffffff"
OVER_FIELDS = "#fdfdfd"
"""A white that stays white on a dark page: lines over a coloured field."""
DARK = {INK: "#e4e7eb", PAPER: "#15181c", GRID: "#39414a", GREY: "#9aa5b1", BLUE: "#4aa5e0", RED: "#ff8640"}
"""The colours that a dark page changes, and what they become there."""


def _linear_rgb(oklab: np.ndarray) -> np.ndarray:
    """Linear sRGB components of Oklab colours, both (..., 3) (Ottosson 2020, A perceptual color space)."""
    cones = [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]]
    mixed = [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.707614701],
    ]
    return (oklab @ np.transpose(cones)) ** 3 @ np.transpose(mixed)


def _signed_map() -> Colormap:
    """Blue, white, red on two straight lines in Oklab: every step looks equally large, both sides equally light."""
    place = np.linspace(-1, 1, 256)
    away, hue = np.abs(place), np.radians(np.where(place < 0, 262, 30))
    chroma = 0.16 * away
    oklab = np.stack([0.97 - 0.57 * away, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1)
    rgb = np.clip(_linear_rgb(oklab), 0, 1)
    encoded = np.where(rgb <= 0.0031308, 12.92 * rgb, 1.055 * rgb ** (1 / 2.4) - 0.055)
    return ListedColormap(encoded.tolist(), "signed")


VALUES, ERRORS, SIGNED = matplotlib.colormaps["viridis"], matplotlib.colormaps["plasma"], _signed_map()
"""Maps of fields, of absolute errors and of values on both sides of zero: even in lightness, so they print in grey."""


BOTH_SIGNS = 0.2
"""Values lie on both sides of zero if the smaller side has at least this share of the larger one."""


def value_colours(low: float, high: float) -> dict[str, Any]:
    """Map and limits for values in a range. They are symmetric about zero if values lie on both sides of it."""
    most = max(abs(low), abs(high))
    if low < 0 < high and min(-low, high) >= BOTH_SIGNS * most:
        return {"cmap": SIGNED, "vmin": -most, "vmax": most}
    return {"cmap": VALUES, "vmin": low, "vmax": high}


def map_bytes(colour_map: Colormap) -> bytes:
    """The 256 colours of a map, three bytes each."""
    return colour_map(np.arange(256), bytes=True)[:, :3].tobytes()


def darken(figure: Figure) -> None:
    """Change a drawn figure's colours for a dark page. Colours of fields stay."""
    for panel in figure.axes:
        panel.tick_params(which="both", color=DARK[INK], labelcolor=DARK[INK], grid_color=DARK[GRID])
    for artist in figure.findobj():
        if isinstance(artist, ScalarMappable) and artist.get_array() is not None:
            continue
        for name in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            read, write = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if read and write:
                write(_darker(read()))


def _darker(colours: Any) -> Any:
    """One colour, or rows of them, each replaced where DARK says so. Transparency stays."""
    if np.ndim(colours) == 2:
        return [_darker(tuple(row)) for row in colours]
    red, green, blue, alpha = to_rgba(colours)
    for light, dark in DARK.items():
        if np.allclose(to_rgba(light)[:3], (red, green, blue)):
            return (*to_rgba(dark)[:3], alpha)
    return colours
