"""How notebooks and prompts show the library's objects: coloured, escaped, and short."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from draftwise import Decoder, Method, Output, Piece
from draftwise.core.request import Request
from draftwise.generation.output import COLOURS, to_html
from draftwise.policies.catalogue import method

PIECES = [
    Piece("a <b> & ", "target"),
    Piece("'quoted' \"too\"\n", "ngram"),
    Piece("<script>alert(1)</script>", "x' onclick='y"),
]


class Reader(HTMLParser):
    """Tags, their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_text_is_shown_as_it_is_and_never_read_as_html() -> None:
    found = read(to_html(PIECES, "3 tokens <fast>"))
    assert found.text.startswith("".join(piece.text for piece in PIECES))
    assert found.text.endswith("3 tokens <fast>")
    assert {tag for tag, _ in found.tags} == {"div", "span"}
    assert {key for _, attributes in found.tags for key in attributes} == {"style", "title"}


def test_each_drafter_has_a_colour_and_the_target_has_none() -> None:
    page = to_html(PIECES, "")
    named = {a["title"]: a["style"] for tag, a in read(page).tags if "title" in a}
    assert named.keys() == {"ngram", "x' onclick='y"} and len(set(named.values())) == 2
    assert page.startswith("<div style='white-space:pre-wrap;overflow-wrap:anywhere'>a &lt;b&gt;")


def test_the_text_keeps_the_colour_of_the_theme() -> None:
    """Backgrounds are translucent and no text colour is set, so dark and light themes are both readable."""
    page = to_html(PIECES, "closing")
    assert not re.search(r"(?<!-)\bcolor:", page)
    backgrounds = re.findall(r"background:([^;']+)", page)
    assert backgrounds and all(re.fullmatch(r"rgba\(\d+,\d+,\d+,\.3\)", one) for one in backgrounds)
    for colour in COLOURS:
        for theme, ink in ((255.0, 0.0), (17.0, 255.0)):
            assert contrast(ink, colour, theme) > 4.5, "WCAG AA"


def contrast(ink: float, colour: str, theme: float) -> float:
    """The contrast of text over a translucent colour over a grey theme."""
    mixed = [0.3 * int(c) + 0.7 * theme for c in colour.split(",")]
    lights = sorted((luminance([ink] * 3), luminance(mixed)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(rgb: list[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in rgb)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_public_objects_have_a_short_repr() -> None:
    decoder = Decoder.from_pretrained("zoo:general", drafters=["ngram", "suffix"])
    request: list[Request] = []
    add = decoder.loop.add
    decoder.loop.add = lambda *given, **more: request.append(add(*given, **more)) or request[-1]  # type: ignore
    output = decoder.generate("la la la la", chat=False, max_new_tokens=40, eos=())
    chat = decoder.chat()
    assert re.fullmatch(r"Output\(40 tokens, 'length', ['\"].{1,80}\.\.\.['\"]\)", repr(output))
    one = decoder.generate("a", max_new_tokens=1)
    assert repr(one).startswith("Output(1 token, ") and one.summary().startswith("1 token in ")
    assert repr(decoder.loop) == "Loop(HFTarget, drafters: ngram, suffix, AutoPolicy, 0 open)"
    assert repr(decoder) == f"Decoder({decoder.loop!r})"
    assert repr(chat) == f"Chat(0 messages, {decoder!r})"
    assert re.fullmatch(r"Request\(\d+, \d+ \+ 40 tokens, length\)", repr(request[0]))
    made: Method = method("ucb1", ["a", "b"])
    assert repr(made) == "Method(BanditPolicy over 2 arms, Bandit)"
    page = output._repr_html_()
    assert output.summary() in read(page).text and output.text in read(page).text
    assert isinstance(output, Output)
