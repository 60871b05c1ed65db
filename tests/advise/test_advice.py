from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from gossamer.advise import Advice, LayerGroup, Way, advice, advise, chart, cheapest
from gossamer.advise.advice import AS_IT_IS, Choice
from gossamer.errors import InputError
from tests.cli.command_line import save_network

WAYS = ("80%", "90%", "95%", "98%")


def group(name: str, weights: int, *us: float) -> LayerGroup:
    """Return a group of one layer with its times as it is and in each of WAYS."""
    return LayerGroup((name,), (name,), weights,
                      dict(zip((AS_IT_IS, *WAYS), us, strict=True)))


def made(*groups: LayerGroup, others: float = 0.0) -> Advice:
    sums = {way: others + sum(one.us[way] for one in groups) for way in (AS_IT_IS, *WAYS)}
    return Advice("host", "a processor", 1, groups, dict.fromkeys(sums, others), sums, {})


def test_the_layer_that_saves_most_for_each_zero_comes_first() -> None:
    small, large = group("small", 100, 50, 30, 28, 27, 26), group("large", 9000, 50, 25, 20, 10, 5)
    choice = cheapest(made(small, large), 1.2)
    assert choice.sparsities == {"small": 0.8}
    assert choice.speed_up == pytest.approx(100 / 80) and choice.reached


def test_a_layer_gets_more_zeros_where_the_first_ones_are_not_enough() -> None:
    choice = cheapest(made(group("only", 100, 100, 60, 40, 30, 10)), 5)
    assert choice.sparsities == {"only": 0.98} and choice.speed_up == pytest.approx(10)


def test_no_more_zeros_than_the_speed_up_takes() -> None:
    choice = cheapest(made(group("only", 100, 100, 60, 40, 30, 10)), 1.5)
    assert choice.sparsities == {"only": 0.8} and choice.reached


def test_the_last_layer_reaches_the_speed_up_with_the_fewest_zeros() -> None:
    """The layer of few zeros saves too little to reach the speed-up, so that it is left out."""
    groups = (group("few", 10, 10, 9.9, 9.9, 9.9, 9.9), group("many", 1000, 90, 45, 40, 35, 30))
    choice = cheapest(made(*groups), 2)
    assert choice == Choice({"many": 0.9}, 2.0, True)
    assert cheapest(made(*groups), 2.01).sparsities == {"many": 0.95}


def test_saved_time_counts_towards_the_speed_up() -> None:
    """With both layers at 80%, the network takes 50 of 100 us; neither is enough alone."""
    groups = (group("first", 10, 50, 20, 15, 10, 5), group("second", 100, 50, 30, 25, 20, 15))
    assert cheapest(made(*groups), 2).sparsities == {"first": 0.98, "second": 0.8}


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_the_choice_does_not_depend_on_the_unit_of_time(unit: float) -> None:
    times = ((50, 20, 15, 10, 5), (50, 30, 25, 20, 15), (40, 39.5, 39.2, 39.1, 39.05))
    groups = [group(f"layer {index}", 10 ** index, *(unit * each for each in us))
              for index, us in enumerate(times)]
    assert cheapest(made(*groups), 2.38).sparsities == {
        "layer 0": 0.98, "layer 1": 0.98, "layer 2": 0.98}


def test_the_most_that_zeros_bring() -> None:
    choice = cheapest(made(group("slower", 10, 10, 20, 20, 20, 20),
                           group("faster", 10, 10, 5, 5, 5, 5), others=5), 3)
    assert choice.sparsities == {"faster": 0.8}
    assert choice.speed_up == pytest.approx(25 / 20) and not choice.reached


@pytest.mark.parametrize(("us", "name"), [
    ((50, 40, 30, 20, 10), "80%"), ((50, 51, 49.5, 48, 40), "95%"), ((50, 30, 60, 40, 30), "95%"),
    ((50, 40, 30, 20, 60), None)])
def test_the_sparsity_from_which_on_zeros_pay(us: tuple[float, ...], name: str | None) -> None:
    way = group("only", 100, *us).pays_from
    assert (way.name if way else None) == name


def test_a_choice_that_is_too_slow_gets_more_zeros() -> None:
    """The network gets 80% of the speed-up that is expected."""
    found = made(group("only", 100, 100, 70, 50, 40, 10))
    tried: list[Choice] = []

    def measured(choice: Choice) -> float:
        tried.append(choice)
        return 0.8 * choice.speed_up

    choice = advice._choice(found, 2, (), measured)
    assert [one.sparsities for one in tried] == [{"only": 0.9}, {"only": 0.95}]
    assert choice == Choice({"only": 0.95}, pytest.approx(2.0), True)


def test_a_speed_up_that_no_choice_reaches() -> None:
    choice = advice._choice(made(group("only", 100, 100, 70, 50, 40, 30)), 4, (), lambda _: 3.5)
    assert choice == Choice({"only": 0.98}, 3.5, False)
    kept = advice._choice(made(group("only", 100, 100, 70, 50, 40, 30)), 4, ("only",), lambda _: 9)
    assert kept == Choice({}, 1.0, False)


def test_layers_that_are_kept() -> None:
    choice = cheapest(made(group("first", 1, 50, 1, 1, 1, 1), group("last", 9, 50, 9, 9, 9, 9)), 9,
                      keep=["first"])
    assert choice.sparsities == {"last": 0.8} and not choice.reached


def test_steps_that_cover_layers_in_some_plan_are_told_together() -> None:
    times = {AS_IT_IS: [(("a",), 1.0), (("b",), 2.0), (("c",), 4.0), (("d",), 8.0)],
             "80%": [(("a", "b"), 1.5), (("c",), 3.0), (("d",), 8.0)],
             "90%": [(("a",), 0.5), (("b", "c"), 2.0), (("d",), 8.0)]}
    first, = advice._groups(times, {"a": 10, "c": 30})
    assert first.layers == ("a", "b", "c") and first.pruned == ("a", "c") and first.weights == 40
    assert first.us == {AS_IT_IS: 7.0, "80%": 4.5, "90%": 2.5}


@pytest.mark.slow
def test_a_network_is_measured_in_every_way(tmp_path: Path) -> None:
    path = save_network(tmp_path / "net.onnx")
    notes: list[str] = []
    found = advise(lambda: onnx.load(path), device="host", batch=2, note=notes.append,
                   ways=(Way("90%", "unstructured", 0.9), Way("2:4", "2:4", 0.5)), speed_up=900)
    assert [one.pruned for one in found.groups] == [("first",), ("Gemm_y",)] and found.batch == 2
    assert [one.weights for one in found.groups] == [108, 20]
    assert set(found.network_us) == {AS_IT_IS, "90%", "2:4"} and not found.absent
    assert all(one.us[name] > 0 for one in found.groups for name in found.network_us)
    assert found.others_us[AS_IT_IS] > 0 and found.speed(AS_IT_IS) == 1
    assert notes[:3] == ["measuring the network as it is", "measuring with 90% of zeros",
                         "measuring with 2:4"]
    assert found.choice is not None and not found.choice.reached
    assert set(found.choice.sparsities.values()) <= {0.9} and found.choice.speed_up > 0


def test_a_way_that_no_layer_can_have(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="first", pads=[1, 1, 1, 1])]
    path = save_network(tmp_path / "net.onnx", nodes=nodes, outputs=(("y", ["N", 4, 8, 8]),))
    found = advise(lambda: onnx.load(path), device="host", ways=(Way("2:4", "2:4", 0.5),))
    assert found.absent == {"2:4": "applies to no layer: 3 input channels are no multiple of 4"}


def test_a_network_without_weights(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    path = save_network(tmp_path / "net.onnx", nodes=nodes, outputs=(("y", ["N", 3, 8, 8]),))
    with pytest.raises(InputError, match="has no weights to prune"):
        advise(lambda: onnx.load(path), device="host")


US = {AS_IT_IS: 100.0, "80%": 80.0, "90%": 50.0, "2:4": 40.0, "half the channels": 25.0}


def test_one_curve_of_any_weights_and_one_mark_for_each_pattern(
        monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(advice, "as_png", lambda figure: figures.append(figure) or b"PNG")
    found = Advice("cuda:0", "a GPU", 8, (), dict.fromkeys(US, 0.0), US, {})
    assert chart(found, "net") == b"PNG"
    (axis,) = figures[0].axes
    drawn = {line.get_label(): [tuple(point) for point in line.get_xydata().round(6).tolist()]
             for line in axis.lines if not line.get_label().startswith("_")}
    assert drawn == {"any weights": [(0, 1), (80, 1.25), (90, 2)], "pattern 2:4": [(50, 2.5)],
                     "half the channels": [(50, 4)]}
    assert axis.get_title() == "net, batch 8, a GPU" and axis.get_ylim()[0] == 0
    assert [text.get_text() for text in axis.texts] == ["as it is: 100.0 us"]
