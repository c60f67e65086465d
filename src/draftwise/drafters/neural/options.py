"""Options that several drafters have, with the same words."""

from __future__ import annotations

from typing import Annotated

from ...registry import Within

Sample = Annotated[bool, "sample drafts where the request samples; false: most probable tokens"]
Vocabulary = Annotated[str, "with another tokenizer than the target's: text, shared tokens, or auto"]
Width = Annotated[int, "1 drafts a chain; more, a tree of at most length * width nodes", Within(1)]
Top = Annotated[int, "tokens tried after each node of a tree", Within(1)]
Gain = Annotated[float, "least gain in accepted tokens per depth; 0: no limit", Within(0)]
