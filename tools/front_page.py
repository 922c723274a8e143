"""A hook of mkdocs: README.md is the site's first page. Its links into docs/ stay links, those to other files become text."""

import pathlib
import re

from mkdocs.structure.files import File

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"


def on_files(files, *, config):
    """Add index.md, with README's text."""
    text = README.read_text(encoding="utf-8").replace('"docs/', '"').replace("](docs/", "](")
    text = re.sub(r"\[([^\]]+)\]\(([A-Z]+(?:\.md)?)\)", r"\1 (`\2` in the checkout)", text)
    files.append(File.generated(config, "index.md", content=text))
    return files
