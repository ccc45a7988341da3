"""The README's picture and animation: python docs/pictures.py RUN (needs the extra `test`, and Chromium).

RUN is the directory of a Burgers run. Chromium opens the explorer's page, moves the slider and takes screenshots.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from clpinn.report.explorer import explorer_page
from clpinn.runs.directory import RunDirectory

FOLDER = Path(__file__).parent
POSITIONS = [*range(1000, -1, -80), *range(0, 1001, 80)]
"""Positions of the slider, from 0 to 1000."""


def main(run: str) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        path.write_text(explorer_page(RunDirectory(Path(run)).surrogate), "utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 810}, color_scheme="light")
        page.goto(path.as_uri())
        frames = []
        for position in POSITIONS:
            page.locator("input[type=range]").first.fill(str(position))
            while not page.evaluate("clpinnExplorer.settled()"):
                page.wait_for_timeout(5)
            frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        browser.close()
    frames[len(POSITIONS) // 3].save(FOLDER / "explorer.png", optimize=True)
    small = [frame.resize((660, 486)).quantize(96) for frame in frames]
    small[0].save(FOLDER / "explorer.gif", save_all=True, append_images=small[1:], duration=90, loop=0, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
