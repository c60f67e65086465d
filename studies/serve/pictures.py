"""Take the pictures of the live page, with the bundled models, another client and a prompt typed in.

It needs Chromium and Playwright: `apt-get install chromium`, `pip install playwright`.
"""

from __future__ import annotations

import shutil
from io import BytesIO
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import httpx

from draftwise import Decoder
from draftwise.data import spec_bench
from draftwise.errors import UserError
from studies.common.command import add_pictures, command, start
from studies.serve.local import serving

PAGE = "docs/how-to/serve.md"
MODEL = "zoo:target"
PROMPT = (  # of Spec-Bench: the small target repeats itself there
    "To heat during the winter, Ali ordered 850 kilos of coal. The coal is delivered in 50 kg bags, "
    "costing $18 per unit. How much will Ali spend on the bags of coal?"
)
BEFORE = 40.0  # seconds of the other client before the first picture
ANSWER = 120_000  # milliseconds for both texts
VIEWS: dict[str, dict[str, Any]] = {
    "page": {"viewport": {"width": 1280, "height": 1680}, "color_scheme": "light"},
    "page-phone": {
        "viewport": {"width": 320, "height": 1380},
        "color_scheme": "dark",
        "device_scale_factor": 2,
    },
}


def main() -> int:
    parser = command(__doc__, PAGE)
    add_pictures(parser)
    folder = parser.parse_args().pictures
    decoder = Decoder.from_pretrained(MODEL, drafters=["zoo:general", "ngram", "suffix"], seed=1)
    over = Event()
    with serving(decoder, MODEL) as (url, _):
        other = Thread(target=client, args=(url, over))
        other.start()
        try:
            over.wait(BEFORE)
            taken = pictures(url)
        finally:
            over.set()
            other.join()
    for name, picture in taken.items():
        file = folder / f"{name}.webp"
        save(picture, file)
        print(f"{file}: {file.stat().st_size} bytes")
    return 0


def client(url: str, over: Event) -> None:
    """Ask one question of Spec-Bench after the other."""
    rng, questions = Random(0), spec_bench()
    with httpx.Client(base_url=url, timeout=120.0, trust_env=False) as calls:
        while not over.is_set():
            messages = [{"role": "user", "content": rng.choice(questions).text[:1000]}]
            body = {"model": MODEL, "messages": messages, "max_tokens": 96, "temperature": 0.0}
            calls.post("/v1/chat/completions", json=body).raise_for_status()


def pictures(url: str) -> dict[str, bytes]:
    """A picture of each view as soon as the text with drafts is written there, and plain decoding is not."""
    from playwright.sync_api import expect, sync_playwright

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise UserError("Chromium is not installed: apt-get install chromium")
    found = {}
    with sync_playwright() as run:
        opened = run.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        for name, view in VIEWS.items():
            tab = opened.new_context(**view).new_page()
            tab.goto(url)
            expect(tab.locator("#link")).to_have_text("Live", timeout=ANSWER)
            tab.wait_for_timeout(10_000)  # lines over time
            tab.fill("#prompt", PROMPT)
            tab.click("#go")
            expect(tab.locator("#on-note")).to_contain_text("passes", timeout=ANSWER)
            tab.evaluate("document.activeElement.blur()")
            found[name] = tab.screenshot()  # plain decoding still writes
            expect(tab.locator("#verdict")).to_contain_text("the same", timeout=ANSWER)
            tab.context.close()
    return found


def save(picture: bytes, file: Path) -> None:
    """Write a picture as WebP, to a name of its own first."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}")
    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").save(made, "WEBP", quality=82, method=6)
    made.replace(file)


if __name__ == "__main__":
    start(main)
