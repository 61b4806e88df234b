"""A mkdocs hook that copies linked files into the site and renders doctests as code."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from griffe import Extension
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from griffe import Object
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Folder of the site for files outside docs/.
COPIES = "repository"

_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":\w+:(?=`)")
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside ``docs/`` that a page links to."""
    waiting = sorted(DOCS.rglob("*.md"))
    added: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / match[1]).resolve()
            if target.is_file() and not target.is_relative_to(DOCS) and target not in added:
                added.add(target)
                files.append(File.generated(config, _uri(target), abs_src_path=str(target)))
                # A copied page may link to further files.
                waiting += [target] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Make a page's links point to the copies."""
    source = Path(str(page.file.abs_src_path))
    here = Path(page.file.src_uri).parent

    def local(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if not target.is_file():
            return match[0]
        return f"]({os.path.relpath(_uri(target), here)}{match[2] or ''})"

    return _LINK.sub(local, markdown)


def _uri(target: Path) -> str:
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    return f"{COPIES}/{target.relative_to(ROOT).as_posix()}"


class Examples(Extension):  # type: ignore[misc]  # untyped where the checks run
    """A griffe extension that fences doctests in docstrings and removes Sphinx roles."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Rewrite an object's docstring."""
        if obj.docstring is not None:
            # Markdown would render a doctest as text.
            fenced = r"```pycon\n\g<0>\n```\n"
            obj.docstring.value = _EXAMPLE.sub(fenced, _ROLE.sub("", obj.docstring.value))
