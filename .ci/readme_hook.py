"""The README as an index page shows it: without the pictures and links of the repository, which are not there."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class IndexReadme(MetadataHookInterface):
    """Put the README into the metadata of the package."""

    def update(self, metadata: dict) -> None:
        """Leave out pictures, and keep the text of links, whose targets are files."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
        text = re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
