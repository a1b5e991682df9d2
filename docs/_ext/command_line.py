"""``.. reliq-commands::``: the help of every command, from the parser that the commands use themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from reliq.cli.main import make_parser


class CommandsDirective(SphinxDirective):
    """A section for each command with what ``--help`` says."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for parser in _parsers(make_parser()):
            section = nodes.section(ids=[nodes.make_id(parser.prog)], names=[nodes.fully_normalize_name(parser.prog)])
            section += nodes.title("", parser.prog)
            text = parser.format_help()
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:  # argparse has no other way to look into a parser
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from _parsers(inner)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.add_directive("reliq-commands", CommandsDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
