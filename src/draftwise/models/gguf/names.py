"""How a GGUF file is named: `gguf:PATH?options`, or a path that ends in .gguf. Loads no torch."""

from __future__ import annotations

from ... import registry

NAME, ENDING = "gguf", ".gguf"


def gguf_spec(text: str) -> registry.Spec | None:
    """The file and the options that a name stands for; None if it names no GGUF file.

    Examples:
        >>> gguf_spec("small.gguf?threads=2")
        Spec(name='gguf', path='small.gguf', options={'threads': '2'})
    """
    spec = registry.parse(text)
    if spec.name == NAME:
        return spec
    head = text.strip().partition("?")[0]
    path = spec.path if spec.name == "lm" else head
    if not path.lower().endswith(ENDING) or (spec.name != "lm" and spec.name in registry.names("drafters")):
        return None
    return registry.Spec(NAME, path, spec.options)
