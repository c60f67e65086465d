"""Metadata that depends on where the repository lives: the project's links, and absolute links in its README.

GitHub Actions says which repository it builds in GITHUB_SERVER_URL and GITHUB_REPOSITORY. Elsewhere there are
no links, and the README stays as it is: no address is better than a wrong one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|#|mailto:)([^)]+\))")


class RepositoryLinks(MetadataHookInterface):
    """Fills in `urls` and `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for each build, with the project's metadata to change in place."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("GITHUB_REPOSITORY")
        metadata["urls"] = {}
        if repository:
            home = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
            metadata["urls"] = links(home, repository)
            text = RELATIVE.sub(lambda found: absolute(home, *found.groups()), text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def links(home: str, repository: str) -> dict[str, str]:
    """The project's links, under the names that PyPI knows."""
    owner, name = repository.split("/")
    return {
        "Homepage": home,
        "Documentation": f"https://{owner.lower()}.github.io/{name}/",
        "Source": home,
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def absolute(home: str, label: str, path: str) -> str:
    """A relative link of the README as PyPI's page needs it; a picture from its raw file."""
    return f"{label}{home}/{'raw' if label.startswith('!') else 'blob'}/main/{path}"
