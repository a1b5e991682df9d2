"""`reliq completion`: every command and option of the parser, in shells that are there."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from reliq.cli.completion import describe
from reliq.cli.main import main, make_parser

COMMANDS = list(describe(make_parser()))
SHELLS = ("bash", "fish", "zsh")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_completed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        assert " ".join(command.words) in script
        for option in command.options:
            assert all(name.lstrip("-") in script for name in option.names)
    assert "parent-fd" not in script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_are_valid(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    main(["completion", shell])
    done = subprocess.run([shell, "-n"], input=capsys.readouterr().out, text=True, capture_output=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        (["reliq", "de"], {"dead", "demo", "delete"} - {"dead"}),
        (["reliq", "dead", "re"], {"retry"}),
        (["reliq", "ls", "--state", "fail"], {"failing", "failed"}),
        (["reliq", "ls", "emails", "--cu"], {"--cursor"}),
        (["reliq", "dead", "ls", "--ol"], {"--older"}),
        (["reliq", "completion", "z"], {"zsh"}),
    ],
)
def test_bash_offers_what_fits(typed: list[str], offers: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out
    words = " ".join(f"'{word}'" for word in typed)
    script += f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _reliq; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    # `complete` registers only; without an interactive shell the function is called by hand.
    done = subprocess.run(["bash", "--norc"], input=script, text=True, capture_output=True, timeout=20)
    assert done.stderr == ""
    assert offers <= set(done.stdout.split())
    assert all(word.startswith(typed[-1]) for word in done.stdout.split())


def test_every_command_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as end:
            main([*command.words, "--help"])
        assert end.value.code == 0
        assert "example" in capsys.readouterr().out, command.words
