import pytest

from retrieval.errors import InvalidParameter
from training.cli import gather_settings
from training.config import Settings


def test_survives_json() -> None:
    settings = Settings(catalogue="x.csv", loss_arguments={"temperature": 0.02}, epochs=3)
    assert Settings.from_dict(settings.to_dict()) == settings


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(InvalidParameter, match="Did you mean epochs"):
        Settings.from_dict({"catalogue": "x.csv", "epoch": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", -1),
        ("head_learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("head_learning_rate", float("inf")),
        ("colour", float("inf")),
        ("pooling", "max"),
        ("target_fpir", 1.0),
        ("crop_area", 0.0),
        ("weight_decay", -1.0),
        ("seed", -1),
        ("epochs", 1.5),
        ("items_per_batch", "abc"),
        ("photos_per_item", True),
        ("micro_batch_size", float("inf")),
        ("learning_rate", None),
        ("flip", "maybe"),
        ("loss", 5),
        ("loss_arguments", [1]),
    ],
)
def test_a_broken_rule_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=name):
        Settings.from_dict({"catalogue": "x.csv", name: value})


def test_training_starts_at_a_pretrained_backbone_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.backbones.choose_backbone", lambda: ("efficientnet-lite0", "no hub answers"))
    given: dict[str, object] = {}
    assert gather_settings(catalogue="x.csv", config=None, given=given).backbone == "efficientnet-lite0"
    assert "Backbone: efficientnet-lite0 (no hub answers)." in capsys.readouterr().out
    given["backbone"] = "small"
    assert gather_settings(catalogue="x.csv", config=None, given=given).backbone == "small"
    assert gather_settings(catalogue="x.csv", config=None, given={}, base={"backbone": "small"}).backbone == "small"


@pytest.mark.parametrize(
    ("values", "side"),
    [({}, 160), ({"backbone": "efficientnet-lite0"}, 224), ({"backbone": "efficientnet-lite0", "size": 96}, 96)],
)
def test_the_input_size_depends_on_the_backbone(values: dict[str, object], side: int) -> None:
    assert Settings.from_dict({"catalogue": "x.csv", **values}).input_size == side
