import click
import pytest

from retrieval.cli.calibrate import calibrate
from retrieval.cli.options import GroupedCommand
from retrieval.cli.search import search
from serving.cli import serve
from training import cli
from training.export.cli import export

COMMANDS: list[click.Command] = [cli.train, export, serve, search, calibrate]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_every_option_is_in_one_group(command: GroupedCommand) -> None:
    named = [name for names in command.option_groups.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) == {parameter.name for parameter in command.params if isinstance(parameter, click.Option)}
