"""The page in a real browser, where Chromium is installed: it is drawn, it sorts, it fits a narrow window."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from matplotlib.image import imread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--window-size=500,1500",
)
# what a person would do and see, written into the page as it is now
PROBE = """<script>
const table = document.querySelector("table.sorts");
const firsts = () => [...table.tBodies[0].rows].map(row => row.cells[0].textContent).join(",");
const seen = [firsts()];
const heads = [...table.tHead.rows[0].cells];
const button = heads.find(head => head.textContent === "speed-up").querySelector("button");
button.click(); seen.push(firsts());
button.click(); seen.push(firsts());
heads[0].querySelector("button").click(); seen.push(firsts());
document.body.innerHTML = "";
for (const text of [...seen, String(width)]) {
  const line = document.createElement("p");
  line.textContent = text;
  document.body.append(line);
}
</script>"""
WIDTH = "<script>const width = document.documentElement.scrollWidth - innerWidth;</script>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"
)


@pytest.fixture
def page(whole: Path) -> Path:
    return whole / "report.html"


def browse(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """What the browser prints, and its log."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_the_page_is_drawn_and_nothing_in_it_fails(page: Path, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    _, log = browse(page, tmp_path / "profile", f"--screenshot={shot}")
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []
    pixels = imread(shot)
    colours = {tuple(pixel) for pixel in pixels[::7, ::7, :3].reshape(-1, 3).tolist()}
    assert pixels.shape[:2] == (1500, 500)
    assert len(colours) > 20


def test_tables_sort_and_nothing_but_tables_and_pictures_is_wider_than_the_window(
    page: Path, tmp_path: Path
) -> None:
    probe = tmp_path / "probe.html"
    probe.write_text(page.read_text().replace("</body>", WIDTH + PROBE + "</body>"))
    shown, log = browse(probe, tmp_path / "profile", "--dump-dom")
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []
    first, falling, rising, names, wider = re.findall(r"<p>(.*?)</p>", shown.split("<body>")[1])
    assert falling == first
    assert rising.split(",") == first.split(",")[::-1]
    assert names.split(",") == sorted(first.split(","), key=str.lower, reverse=True)
    assert float(wider) <= 0


def test_wide_pictures_scroll_with_a_hint_on_a_narrow_window(page: Path, tmp_path: Path) -> None:
    """Shrunk to the window, their letters could not be read."""
    shown, _ = browse(page, tmp_path / "profile", "--dump-dom")
    for name in ("speedup", "categories", "values"):
        figure = shown[shown.index(f'<figure id="{name}"') :].partition("</figure>")[0]
        assert 'class="scroll scrolls"' in figure, name


def test_the_table_of_the_results_fits_a_window_of_1280_pixels(page: Path, tmp_path: Path) -> None:
    shown, _ = browse(page, tmp_path / "profile", "--window-size=1280,900", "--dump-dom")
    kind = re.search(r'<div class="(scroll[^"]*)"', shown[shown.index('<h2 id="results">') :])
    assert kind and kind[1].strip() == "scroll"
