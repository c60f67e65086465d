"""The live page in a real browser, where Chromium is installed: typed into, stopped, reloaded, on a phone."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from draftwise.serve import live
from draftwise.serve.live import page_files
from tests.effort import some

from .conftest import MODEL, Gated, Served, asking, connected, line, simulated, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 320, "height": 640}
LATE = 60_000  # milliseconds: a busy machine may take its time

if CHROMIUM is None:
    pytest.skip("Chromium is not installed (apt-get install chromium)", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=LATE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # Playwright's own event loop would be found by what runs in this process: it has a thread of its own.
    with playwright.sync_playwright() as run:
        yield run.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())


class Visit:
    """One tab, and whatever went wrong in it."""

    def __init__(self, browser: Any, server: Served, **options: Any) -> None:
        self.server = server
        self.tab = browser.new_context(**({"viewport": DESKTOP} | options)).new_page()
        self.tab.set_default_timeout(LATE)
        self.wrong: list[str] = []
        self.tab.on("console", lambda said: self.wrong.append(said.text) if said.type != "info" else None)
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.goto(server.url)

    def open(self) -> Visit:
        expect(self.tab).to_have_title(f"Draftwise: {MODEL}")
        expect(self.tab.locator("#link")).to_have_text("Live")
        return self

    def write(self, prompt: str = "ab", tokens: int = 40) -> None:
        self.tab.fill("#prompt", prompt)
        self.tab.fill("#tokens", str(tokens))
        self.tab.click("#go")

    def text(self, side: str) -> str:
        return str(self.tab.locator(side).text_content())


@pytest.fixture
def visit(browser: Any, serve: Callable[..., Served]) -> Iterator[Callable[..., Visit]]:
    made: list[Visit] = []

    def go(server: Served | None = None, **options: Any) -> Visit:
        made.append(Visit(browser, server or serve(simulated("auto")), **options))
        return made[-1]

    yield go
    for one in made:
        one.tab.context.close()


class Paced(Gated):
    """Takes 10 ms for a pass, as a model does: where passes took nothing no draft would pay."""

    def verify(self, batch: Any) -> Any:
        time.sleep(0.01)
        return super().verify(batch)


def test_a_typed_prompt_is_answered_twice_and_coloured_by_who_guessed(
    visit: Callable[..., Visit], serve: Callable[..., Served]
) -> None:
    page = visit(serve(simulated("auto", Paced()))).open()
    assert str(page.tab.input_value("#prompt")).startswith("Write the months")
    page.write("abc", 60)
    expect(page.tab.locator("#verdict")).to_contain_text("Both texts are the same: 60 tokens")
    assert page.text("#on") == page.text("#off") == line("c", 60)
    guessed = page.tab.locator("#on .by").all_text_contents()
    assert 0 < len("".join(guessed)) < 60 and page.tab.locator("#off .by").count() == 0
    expect(page.tab.locator("#strips li")).to_have_count(2)
    expect(page.tab.locator("#speed")).not_to_have_text("\u2013")
    expect(page.tab.locator("#ratio-note")).to_contain_text("learnt price of a pass without a draft")
    page.write("abc", 1)
    expect(page.tab.locator("#verdict")).to_contain_text("Both texts are the same: 1 token.")
    page.tab.reload()
    page.open()
    assert page.text("#on") == "" and page.tab.locator("#numbers dd").count() == 8
    assert page.wrong == []


def test_a_text_is_stopped_and_its_rows_are_free(visit: Callable[..., Visit]) -> None:
    page = visit().open()
    target = page.server.decoder.loop.target
    assert isinstance(target, Gated)
    target.held.set()
    page.write("ab", 300)
    engine = page.server.engine
    until(lambda: len(engine.running) + len(engine.waiting) == 2)
    for _ in range(3):
        target.let()
    expect(page.tab.locator("#on span")).not_to_have_count(0)
    page.tab.click("#stop")
    expect(page.tab.locator("#verdict")).to_contain_text("Stopped.")
    target.release()
    until(lambda: not engine.running)
    assert line("b", 300).startswith(page.text("#on")) and 0 < len(page.text("#on")) < 300
    expect(page.tab.locator("#go")).to_be_enabled()
    assert page.wrong == []


def test_the_key_is_asked_for_and_kept_nowhere(
    visit: Callable[..., Visit], serve: Callable[..., Served]
) -> None:
    page = visit(serve(simulated("auto"), key="secret"))
    expect(page.tab.locator("#door")).to_be_visible()
    for given in ("wrong", "secret"):
        expect(page.tab.locator("#main")).to_be_hidden()
        page.tab.fill("#key", given)
        page.tab.keyboard.press("Enter")
    page.open()
    page.write("ab", 10)
    expect(page.tab.locator("#verdict")).to_contain_text("the same: 10 tokens")
    kept = page.tab.evaluate("[localStorage.length, sessionStorage.length, document.cookie.length]")
    assert kept == [0, 0, 0]
    page.tab.reload()
    expect(page.tab.locator("#door")).to_be_visible()
    assert all("401" in said for said in page.wrong)


def test_the_door_opens_once(visit: Callable[..., Visit], serve: Callable[..., Served]) -> None:
    page, streams = visit(serve(simulated("auto"), key="secret")), list[str]()
    expect(page.tab.locator("#door")).to_be_visible()
    page.tab.on("request", lambda one: streams.append(one.url) if one.url.endswith("/live") else None)
    page.tab.fill("#key", "secret")
    page.tab.evaluate("for (let i = 0; i < 2; i++) document.getElementById('door').requestSubmit()")
    page.open()
    page.write("ab", 10)
    expect(page.tab.locator("#verdict")).to_contain_text("the same: 10 tokens")
    assert len(streams) == 1


def test_a_connection_that_says_nothing_is_given_up(visit: Callable[..., Visit]) -> None:
    page = visit().open()
    hasty = page_files()["/page/main.js"][1].replace(b"SILENCE = 30000", b"SILENCE = 2000")
    page.tab.route("**/page/main.js", lambda route: route.fulfill(body=hasty, content_type="text/javascript"))
    page.tab.reload()
    page.open()
    target = page.server.decoder.loop.target
    assert isinstance(target, Gated)
    target.held.set()
    with connected(page.server, asking(prompt="ab", max_tokens=5)):
        expect(page.tab.locator("#link")).to_contain_text("No data (the server is silent). Next try in ")
        target.release()
    expect(page.tab.locator("#link")).to_have_text("Live")


def test_who_finds_no_place_to_watch_can_still_write(
    visit: Callable[..., Visit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS", 0)
    page = visit()
    expect(page.tab.locator("#link")).to_contain_text("clients watch already")
    page.write("ab", 10)
    expect(page.tab.locator("#verdict")).to_contain_text("the same: 10 tokens")


def test_keys_alone_are_enough(visit: Callable[..., Visit]) -> None:
    page = visit().open()
    names: list[str] = []
    for _ in range(12):
        page.tab.keyboard.press("Tab")
        names.append(str(page.tab.evaluate("document.activeElement.id")))
        if names[-1] == "prompt":
            page.tab.keyboard.type("ab")
        if names[-1] == "go":
            page.tab.keyboard.press("Enter")
            break
    assert names[1:] == ["pause", "prompt", "tokens", "temperature", "order", "go"]
    expect(page.tab.locator("#verdict")).to_contain_text("Both texts are the same")
    page.tab.focus("#pause")
    page.tab.keyboard.press("Space")
    expect(page.tab.locator("#link")).to_have_text("Paused")
    until(lambda: page.server.client.get("/stats").json()["watchers"] == 0)
    page.tab.keyboard.press("Space")
    expect(page.tab.locator("#link")).to_have_text("Live")


PARTING = """async ([entries, on, off]) => {
  const { judged, parting } = await import("./page/explain.js");
  return judged(parting(entries, on, off));
}"""


def test_a_difference_of_texts_is_explained(visit: Callable[..., Visit]) -> None:
    page = visit().open()

    piece: Any = {"choices": [], "draftwise": {"pieces": [["good", "cdq"]]}}
    usage: Any = {"choices": [], "usage": {"completion_tokens": 3}, "metrics": None}
    said = "".join(f"data: {json.dumps(one)}\n\n" for one in (piece, usage)) + "data: [DONE]\n\n"

    def drafted(route: Any) -> None:
        if route.request.post_data_json["speculative"] is False:
            route.continue_()
        else:
            route.fulfill(body=said, content_type="text/event-stream")

    page.tab.route("**/v1/chat/completions", drafted)
    page.write("ab", 3)
    verdict = page.tab.locator("#verdict.bad")
    expect(verdict).to_contain_text("The texts differ from character 3 on. They part at token 3: plain ")
    expect(verdict).to_contain_text("wrote \u201ce\u201d, with drafts it is ")
    expect(verdict).to_contain_text("The target's logits of the two differ by ")
    verdict.locator("a").click()
    expect(page.tab.locator("#differ p")).to_be_visible()

    def entry(text: str, other: str, gap: float) -> dict[str, Any]:
        tops = [{"token": text, "logprob": -1.0}, {"token": other, "logprob": -1.0 - gap}]
        return {"token": text, "text": text, "logprob": -1.0, "tops": tops}

    same = [entry(" A", "x", 9.0), entry("", "x", 9.0)]  # the first half of a character has no text yet
    told = [
        page.tab.evaluate(PARTING, [[*same, entry("\u00e4", " b", gap)], "A b", "A\u00e4c"])
        for gap in (1e-5, 0.1, 2.0)
    ]
    assert [one["kind"] for one in told] == ["tie", "tie", "bad"]
    assert "part at token 3" in told[0]["said"] and "is a tie, which rounding" in told[0]["said"]
    ended = page.tab.evaluate(PARTING, [[*same, entry("<end>", "!", 1e-4)], "A!", "A"])
    assert ended["kind"] == "tie" and "\u201c<end>\u201d" in ended["said"]
    assert page.tab.evaluate(PARTING, [same, "Ab", "Ac"])["kind"] == "bad"
    assert page.wrong == []


LOOKS = [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")]


@pytest.mark.parametrize(("size", "scheme"), some(LOOKS, 3))
def test_it_fits_and_can_be_read(
    visit: Callable[..., Visit], size: dict[str, int], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "FRAME_SECONDS", 0.1)
    page = visit(viewport=size, color_scheme=scheme, reduced_motion="reduce").open()
    page.write("abcabc", 60)
    expect(page.tab.locator("#verdict")).to_contain_text("the same")
    expect(page.tab.locator("#arms tbody tr")).to_have_count(3)
    assert page.tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.tab.evaluate("document.documentElement.scrollHeight") <= 2500
    if folder := os.environ.get("DRAFTWISE_SHOTS"):
        page.tab.screenshot(path=f"{folder}/{size['width']}-{scheme}.png", full_page=True)
    page.tab.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    for chart in ("#fast canvas", "#worth canvas"):
        expect(page.tab.locator(chart)).to_have_count(1)
    until(lambda: page.tab.evaluate(CUT) == [])
    assert page.tab.evaluate(UNNAMED) == []
    assert [worst for worst in page.tab.evaluate(CONTRASTS) if worst[0] < 4.5] == []
    assert page.wrong == []
    if folder:
        page.tab.screenshot(path=f"{folder}/{size['width']}-{scheme}-open.png", full_page=True)


# Tables that are wider than their place, with nothing that says so.
CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((one) => (one.scrollWidth > one.clientWidth + 1) !== one.previousElementSibling.matches(".cut"))
  .map((one) => one.ariaLabel)"""
# Controls and pictures without a name for those who cannot see them.
UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, [role]")]
  .filter((one) => one.offsetParent && one.role !== "status")
  .filter((one) => !(one.labels?.length || one.textContent.trim() && one.tagName === "BUTTON"
    || one.getAttribute("aria-label") || (one.getAttribute("aria-labelledby") ?? "").split(" ")
      .some((id) => document.getElementById(id)?.textContent.trim())))
  .map((one) => one.id || one.className)"""
# The contrast of each text with what is behind it, by WCAG; a tint counts as laid over the card.
CONTRASTS = """() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (...layers) => {
    paint.clearRect(0, 0, 1, 1);
    for (const layer of layers) { paint.fillStyle = layer; paint.fillRect(0, 0, 1, 1); }
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => c.map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const box = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !box.offsetParent || box.closest(":disabled, .hidden")) continue;
    const layers = [];
    for (let one = box; one; one = one.parentElement) layers.unshift(getComputedStyle(one).backgroundColor);
    const [low, high] = [light(rgb(...layers)), light(rgb(...layers, getComputedStyle(box).color))]
      .sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), walk.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""


def test_a_text_of_another_client_is_never_shown(visit: Callable[..., Visit]) -> None:
    page = visit().open()
    page.server.complete("xyzxyz", max_tokens=50)
    expect(page.tab.locator("#strips li")).to_have_count(1)
    expect(page.tab.locator("#strips li")).to_contain_text("50 tokens")
    shown = str(page.tab.locator("body").inner_text())
    assert "xyzxyz" not in shown and line("z", 6) not in re.sub(r"\s", "", shown)
