"""`python -m benchmarks.ops` measures every kernel it names, beside a ceiling, and keeps what it measured."""

import json

import pytest

from benchmarks.ops import __main__ as command
from benchmarks.ops import curves, draws, measure, rest, walk

SMALL = [
    *("--threads", "1", "--repeats", "1", "--formats", "q8_0", "bf16", "--rows", "64", "--cols", "64"),
    *("--tokens", "1", "4", "--megabytes", "1", "--types", "int8", "--contexts", "64", "--batches", "2"),
    *("--prompts", "32", "--vocabularies", "512", "--draw-rows", "2"),
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(measure, "_LARGE", 4 << 20)
    monkeypatch.setattr(measure, "_TURNS", 1000)
    monkeypatch.setattr(rest, "VOCAB", 512)
    monkeypatch.setattr(rest.works, "__defaults__", ((3,),))


def test_every_kernel_has_a_line_and_the_nearer_ceiling(tmp_path, capsys):
    command.main([*SMALL, "--json", str(tmp_path / "ops.json")])
    shown = capsys.readouterr().out
    kept = json.loads((tmp_path / "ops.json").read_text())
    (ceiling,) = kept["ceilings"]
    figures = kept["figures"]
    names = {figure["op"] for figure in figures}
    assert names == {
        *("linear", "head", "attention decode", "attention prefill", "rms_norm", "layer_norm", "act_mul silu"),
        *("select_rows", "embed bf16", "rope, cache write", "quantize to q8_0", "quantize to q4_1"),
        *(f"draw {kind}" for kind in draws.SAMPLERS),
        "memcpy, one thread",
    }
    assert {figure["detail"].split()[-1] for figure in figures if figure["op"] == "rope, cache write"} >= {"int4"}
    for figure in figures:
        assert figure["op"] in shown
        assert figure["seconds"] > 0
        if figure["bound"] != "reading":
            computed = figure["operations"] / ceiling[figure["bound"].removesuffix(" registers")]
            assert figure["share"] == pytest.approx(computed / figure["seconds"])
    (one,) = [f for f in figures if f["detail"] == "q8_0 exact 1 x 64 -> 64"]
    assert (one["operations"], one["bytes"]) == (2 * 64 * 64, 64 * 64 // 32 * 34 + 4 * 128)


def test_an_unknown_group_is_refused_before_anything_is_measured(capsys):
    with pytest.raises(SystemExit):
        command.main(["norm"])
    shown = capsys.readouterr()
    assert "there is no group 'norm': linear, attention, rest" in shown.err
    assert not shown.out


def test_a_walk_counts_every_matrix_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(curves.SHAPES, "135M", (64, 128, 2, 4, 2, 16, 256))
    monkeypatch.setattr(measure, "_LARGE", 1 << 20)
    path = tmp_path / "walk.json"
    options = ["--models", "135M", "--formats", "bf16", "--rows", "1", "3", "--threads", "1", "--repeats", "1"]
    walk.main([*options, "--json", str(path)])
    for found in json.loads(path.read_text()):
        products = {(part["depth"], part["width"]): part for part in found["parts"]}
        # Layers: queries, keys and values; output; gate and up; down. Then the head, which is the embedding.
        shapes = {(64, 128): 2, (64, 64): 2, (64, 256): 3, (128, 64): 2}
        assert {key: part["count"] for key, part in products.items() if key[1]} == shapes
        assert sum(part["bytes"] for part in products.values()) == found["bytes"]
        assert found["share"] > 0
    assert "64 -> 256" in capsys.readouterr().out


def test_curves_keep_points_of_other_models(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(curves.SHAPES, "135M", (64, 128, 2, 4, 2, 16, 256))
    monkeypatch.setattr(curves, "CONTEXTS", (128, 256))
    path = tmp_path / "curves.json"
    other = {"model": "1B", "format": "bf16", "batch": 1, "context": 128, "seconds": 1.0, "floor": 0.5}
    path.write_text(json.dumps([other]))
    options = ["--models", "135M", "--formats", "q8_0", "--batches", "1", "3", "--contexts", "128", "256"]
    curves.main([*options, "--threads", "1", "--repeats", "1", "--json", str(path)])
    points = [curves.Point(**each) for each in json.loads(path.read_text())]
    assert [(p.model, p.batch, p.context) for p in points] == [
        ("1B", 1, 128),
        ("135M", 1, 128),
        ("135M", 3, 128),
        ("135M", 1, 256),
    ]
    assert all(p.seconds > 0 and p.floor > 0 for p in points)
    assert "of the floor" in capsys.readouterr().out
    batch, context, model = curves.charts(points)
    assert [series.name for series in batch.series] == ["1B bf16", "135M q8_0"]
    assert list(context.series[1].x) == [128, 256]
    assert list(model.series[0].y) == [0.5]
