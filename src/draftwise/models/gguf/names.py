"""How a GGUF file is named: `gguf:PATH?options`, `gguf:zoo:smollm2`, or a path that ends in .gguf.

Loads no torch.
"""

from __future__ import annotations

from dataclasses import replace

from ... import registry
from .. import smollm2

NAME, ENDING = "gguf", ".gguf"


def gguf_spec(text: str) -> registry.Spec | None:
    """The file and the options that a name stands for; None if it names no GGUF file.

    Examples:
        >>> gguf_spec("small.gguf?threads=2")
        Spec(name='gguf', path='small.gguf', options={'threads': '2'})
    """
    spec = registry.parse(text)
    if spec.name == NAME:
        return replace(spec, path=str(smollm2.gguf_file())) if spec.path == smollm2.NAME else spec
    head = text.strip().partition("?")[0]
    path = spec.path if spec.name == "lm" else head
    if not path.lower().endswith(ENDING) or (spec.name != "lm" and spec.name in registry.names("drafters")):
        return None
    return registry.Spec(NAME, path, spec.options)
