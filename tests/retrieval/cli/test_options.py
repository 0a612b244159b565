import re

import click
import pytest
from click.testing import CliRunner

from retrieval.cli.calibrate import calibrate
from retrieval.cli.main import group
from retrieval.cli.options import GroupedCommand
from retrieval.cli.search import search
from serving.cli import serve
from training import cli
from training.export.cli import export

COMMANDS: list[click.Command] = [cli.train, export, serve, search, calibrate]
DEFAULT = re.compile(r"\s*\[default: .*\]$")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_every_option_is_in_one_group(command: GroupedCommand) -> None:
    named = [name for names in command.option_groups.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) == {parameter.name for parameter in command.params if isinstance(parameter, click.Option)}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_every_help_text_is_a_sentence(command: GroupedCommand) -> None:
    for option in command.params:
        if isinstance(option, click.Option):
            text = DEFAULT.sub("", option.help or "")
            assert text[:1].isupper(), option.name
            assert text.endswith("."), option.name


@pytest.mark.parametrize("name", [str(command.name) for command in COMMANDS])
def test_the_help_shows_the_groups_and_every_option(name: str) -> None:
    command = next(command for command in COMMANDS if command.name == name)
    assert isinstance(command, GroupedCommand)
    text = CliRunner().invoke(group, [name, "--help"], catch_exceptions=False).output
    places = [text.index(f"\n{title}:\n") for title in command.option_groups]
    assert places == sorted(places)
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert all(max(option.opts, key=len) in text for option in options)
    assert text.index("\nOther:\n") < text.index("--help")
