"""``reliq completion``: scripts that complete commands and options in a shell, made from the parser itself."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .common import EXIT_OK, add_command
from .output import write

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EPILOG = """\
examples:
  reliq completion bash > ~/.local/share/bash-completion/completions/reliq
  reliq completion zsh > "${fpath[1]}/_reliq"
  reliq completion fish > ~/.config/fish/completions/reliq.fish
  source <(reliq completion bash)               for this shell only
"""


@dataclass(frozen=True, slots=True)
class Option:
    """An option as shells complete it: its names, help, whether a value follows, and which values there are."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A command by its words, ``("dead", "ls")``, with what may come next; files where nothing else is known."""

    words: tuple[str, ...]
    help: str
    commands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    values: tuple[str, ...]


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    parser = add_command(
        commands, "completion", run, help="print a completion script for a shell",
        description="Print a script that lets a shell complete commands and options.", epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("shell", choices=sorted(_SHELLS), metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from .main import make_parser  # it names this module's command

    write(_SHELLS[args.shell](list(describe(make_parser()))))
    return EXIT_OK


def describe(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), help: str = "") -> Iterator[Command]:
    """The commands of a parser, each before its own commands."""
    options: list[Option] = []
    names: list[tuple[str, str]] = []
    values: list[str] = []
    inner: list[tuple[str, argparse.ArgumentParser, str]] = []
    for action in parser._actions:  # argparse has no other way to look into a parser
        if action.help == argparse.SUPPRESS:
            continue
        choices = action.choices
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, found in action.choices.items():
                names.append((name, helps.get(name, "")))
                inner.append((name, found, helps.get(name, "")))
        elif action.option_strings:
            texts = tuple(str(choice) for choice in choices or ())
            options.append(Option(tuple(action.option_strings), action.help or "", action.nargs != 0, texts))
        elif choices:
            values += [str(choice) for choice in choices]
    yield Command(words, help, tuple(names), tuple(options), tuple(values))
    for name, found, text in inner:
        yield from describe(found, (*words, name), text)


def _bash(commands: list[Command]) -> str:
    known = " ".join(f"'{' '.join(command.words)}'" for command in commands if command.words)
    cases, choices, taking = [], [], []
    for command in commands:
        path = " ".join(command.words)
        next_words = [name for name, _ in command.commands] + list(command.values)
        flags = [name for option in command.options for name in option.names]
        cases.append(f"        '{path}') words='{' '.join(next_words)}' flags='{' '.join(flags)}' ;;")
        for option in command.options:
            if option.choices:
                names = "|".join(f"'{path} {name}'" for name in option.names)
                choices.append(f"        {names}) words='{' '.join(option.choices)}'; flags= ;;")
            elif option.takes_value:
                taking += [f"'{path} {name}'" for name in option.names]
    return _BASH.format(known=known, cases="\n".join(cases), choices="\n".join(choices), taking="|".join(taking))


_BASH = """\
# bash completion for reliq: made by `reliq completion bash`
_reliq() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local path='' words='' flags='' word try known n
    for ((n = 1; n < COMP_CWORD; n++)); do
        word=${{COMP_WORDS[n]}}
        try="${{path:+$path }}$word"
        for known in {known}; do
            [[ $try == "$known" ]] && path=$try
        done
    done
    case $path in
{cases}
    esac
    case "$path $before" in
{choices}
        {taking}) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    [[ $current == -* ]] && words=$flags
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ -z $words ]] && COMPREPLY=($(compgen -f -- "$current"))
    return 0
}}
complete -o filenames -F _reliq reliq
"""


def _zsh(commands: list[Command]) -> str:
    known = " ".join(f"'{' '.join(command.words)}'" for command in commands if command.words)
    cases, choices, taking = [], [], []
    for command in commands:
        path = " ".join(command.words)
        described = [_zsh_item(name, help) for name, help in command.commands]
        described += [_zsh_item(value, "") for value in command.values]
        flags = [_zsh_item(name, option.help) for option in command.options for name in option.names]
        cases.append(f"        ('{path}') items=({' '.join(described)}); flags=({' '.join(flags)}) ;;")
        for option in command.options:
            patterns = "|".join(f"'{path} {name}'" for name in option.names)
            if option.choices:
                choices.append(f"        ({patterns}) compadd -- {' '.join(option.choices)}; return ;;")
            elif option.takes_value:
                taking.append(patterns)
    return _ZSH.format(known=known, cases="\n".join(cases), choices="\n".join(choices), taking="|".join(taking))


def _zsh_item(name: str, help: str) -> str:
    text = name.replace(":", "\\:") + (f":{help}" if help else "")
    return "'" + text.replace("'", "'\\''") + "'"


_ZSH = """\
#compdef reliq
# zsh completion for reliq: made by `reliq completion zsh`
_reliq() {{
    local path_='' try known word
    local -a items flags
    local n
    for ((n = 2; n < CURRENT; n++)); do
        word=$words[n]
        try="${{path_:+$path_ }}$word"
        for known in {known}; do
            [[ $try == $known ]] && path_=$try
        done
    done
    case $path_ in
{cases}
    esac
    case "$path_ $words[CURRENT-1]" in
{choices}
        ({taking}) _files; return ;;
    esac
    if [[ $words[CURRENT] == -* ]]; then
        _describe option flags
    elif (( $#items )); then
        _describe command items
    else
        _files
    fi
}}
if [[ $funcstack[1] == _reliq ]]; then _reliq "$@"; else compdef _reliq reliq; fi
"""


def _fish(commands: list[Command]) -> str:
    lines = ["# fish completion for reliq: made by `reliq completion fish`", _FISH]
    for command in commands:
        condition = f"-n '__reliq_at \"{' '.join(command.words)}\"'"
        for name, help in command.commands:
            lines.append(f"complete -c reliq -f {condition} -a {name} -d {_fish_text(help)}")
        if command.values:
            lines.append(f"complete -c reliq -f {condition} -a '{' '.join(command.values)}'")
        for option in command.options:
            flags = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = f" -x -a '{' '.join(option.choices)}'" if option.choices else " -r" if option.takes_value else ""
            lines.append(f"complete -c reliq {condition} {flags}{value} -d {_fish_text(option.help)}")
    known = " ".join(f"'{' '.join(command.words)}'" for command in commands if command.words)
    return "\n".join(lines).replace("@KNOWN@", known)


def _fish_text(text: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", text) + "'"


_FISH = """\
function __reliq_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        set -l try (string trim -- "$at $word")
        contains -- $try @KNOWN@; and set at $try
    end
    test "$at" = "$argv[1]"
end"""

_SHELLS: dict[str, Callable[[list[Command]], str]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
