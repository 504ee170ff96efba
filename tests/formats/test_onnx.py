"""ONNX: every tensor of a model, wherever it stands, and a note for everything else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

import dlpack_wire as dw
from dlpack_wire.cli import main as cli
from dlpack_wire.formats.convert import Conversion, convert

helper = onnx.helper


def tensor(value: float, name: str = "") -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array([value]), name)


def constant(output: str, name: str = "", **value: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [output], name=name, **value)


def graph(
    nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto] | None = None, name: str = "g"
) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [], initializers or [])


def saved(folder: Path, model: onnx.GraphProto | onnx.ModelProto) -> Path:
    if isinstance(model, onnx.GraphProto):
        model = helper.make_model(model)
    (folder / "x.onnx").write_bytes(model.SerializeToString())
    return folder / "x.onnx"


def values(path: Path) -> dict[str, Any]:
    return {name: t.numpy().tolist() for name, t in dw.load_dict(path).items()}


def sparse(name: str = "") -> onnx.SparseTensorProto:
    indices = onnx.numpy_helper.from_array(np.array([1]))
    return helper.make_sparse_tensor(tensor(1, name), indices, [3])


def test_constants_are_named_as_the_graph_names_them(tmp_path: Path, ours: Path) -> None:
    nodes = [
        constant("w", value=tensor(1, "a name of its own")),
        constant("/layer/v", "/layer/Constant", value=tensor(2)),
        helper.make_node("ConstantOfShape", ["s"], ["z"], name="/fill", value=tensor(3)),
        helper.make_node("Custom", [], ["out"], domain="mine", tables=[tensor(4), tensor(5)]),
    ]
    assert convert(saved(tmp_path, graph(nodes, [tensor(6, "b")])), ours).skipped == []
    expected = {"w": [1], "/layer/v": [2], "/fill/value": [3], "out/tables/0": [4], "out/tables/1": [5], "b": [6]}
    assert values(ours) == expected


def test_what_is_no_dense_tensor_is_named(tmp_path: Path, ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        constant("i", value_int=1),
        constant("is", value_ints=[1, 2]),
        constant("f", value_float=1.0),
        constant("fs", value_floats=[1.0, 2.0]),
        constant("s", value_string="x"),
        constant("ss", value_strings=["x", "y"]),
        constant("sp", sparse_value=sparse()),
        constant("st", value=helper.make_tensor("", onnx.TensorProto.STRING, [1], [b"x"])),
        helper.make_node("Trees", [], ["t"], name="trees", domain="ai.onnx.ml", nodes_values=[1.0, 2.0]),
        helper.make_node("Conv", [], ["c"], name="conv", kernel_shape=[3, 3]),  # says how, and holds nothing
    ]
    model = helper.make_model(graph(nodes))
    model.graph.sparse_initializer.append(sparse("weights"))
    model.graph.doc_string = model.doc_string = "about"
    model.graph.metadata_props.add(key="k", value="v")
    model.graph.quantization_annotation.add(tensor_name="w")
    model.graph.initializer.append(tensor(1, "w"))
    model.graph.initializer[0].metadata_props.add(key="k", value="v")
    model.graph.initializer[0].doc_string = "about"
    source = saved(tmp_path, model)
    done = convert(source, ours)
    assert done.names == ["w"]
    assert sorted(done.skipped) == sorted(
        [
            *("i/value_int: number of an attribute", "is/value_ints: numbers of an attribute"),
            *("f/value_float: number of an attribute", "fs/value_floats: numbers of an attribute"),
            *("s/value_string: string of an attribute", "ss/value_strings: strings of an attribute"),
            *("sp/sparse_value: sparse tensor", "st: strings", "trees/nodes_values: numbers of an attribute"),
            *("weights: sparse initializer", "doc_string", "metadata_props", "quantization_annotation"),
            *("w: metadata_props", "w: doc_string"),
        ]
    )
    assert cli.main(["convert", str(source), str(ours)]) == 1
    assert "left behind: trees/nodes_values" in capsys.readouterr().err
    assert cli.main(["convert", str(source), str(ours), "--drop"]) == 0
    assert cli.main(["convert", str(source), str(ours), "--only", "w"]) == 0


def test_a_model_of_constants_alone_is_not_empty(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    weights = {f"w{i}": rng.random((20, 30), "f4") for i in range(5)}
    nodes = [constant(name, value=onnx.numpy_helper.from_array(x)) for name, x in weights.items()]
    convert(saved(tmp_path, graph(nodes)), tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as found:
        assert {name: found[name].tobytes() for name in found} == {name: x.tobytes() for name, x in weights.items()}


def test_functions_and_training_have_tensors_too(tmp_path: Path, ours: Path) -> None:
    body = [constant("w", value=tensor(1))]
    function = helper.make_function("mine", "block", [], ["w"], body, [helper.make_opsetid("", 20)])
    function.attribute_proto.append(helper.make_attribute("default", tensor(2)))
    model = helper.make_model(graph([], [tensor(3, "w")]), functions=[function])
    other = model.functions.add()
    other.CopyFrom(function)
    other.domain = "yours"
    training = model.training_info.add()
    training.initialization.CopyFrom(graph([], [tensor(4, "w")]))
    training.algorithm.CopyFrom(graph([constant("lr", value=tensor(5))]))
    assert convert(saved(tmp_path, model), ours).skipped == []
    assert values(ours) == {
        "w": [3],
        "block/w": [1],
        "block/default": [2],
        "block#2/w": [1],
        "block#2/default": [2],
        "training/initialization/w": [4],
        "training/algorithm/lr": [5],
    }


def test_equal_names_in_graphs_beside_each_other_are_told_apart(tmp_path: Path, ours: Path) -> None:
    def choice(value: float, name: str = "", output: str = "y") -> onnx.NodeProto:
        branches = {"then_branch": graph([], [tensor(value, "w")]), "else_branch": graph([], [tensor(-value, "w")])}
        return helper.make_node("If", ["c"], [output], name=name, **branches)

    nodes = [choice(1), choice(2), choice(3, "n"), choice(4, "n")]
    nodes.append(
        helper.make_node("Custom", [], ["z"], parts=[graph([], [tensor(5, "w")]), graph([], [tensor(6, "w")])])
    )
    model = graph(nodes, [tensor(7, "n/then_branch/w"), tensor(8, "w")])
    convert(saved(tmp_path, model), ours)
    found = values(ours)
    assert sorted(v for (v,) in found.values()) == [-4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8]
    assert {k: found[k] for k in ("w", "y/then_branch/w", "y/then_branch#2/w", "n/else_branch/w", "z/parts/1/w")} == {
        "w": [8],
        "y/then_branch/w": [1],
        "y/then_branch#2/w": [2],
        "n/else_branch/w": [-3],
        "z/parts/1/w": [6],
    }


def test_two_initializers_of_one_graph_may_not_have_one_name(tmp_path: Path, ours: Path) -> None:
    with pytest.raises(dw.DecodeError, match=r"tensor 'w': name: two initializers of a graph"):
        convert(saved(tmp_path, graph([], [tensor(1, "w"), tensor(2, "w")])), ours)


def test_a_key_of_metadata_may_not_stand_twice(tmp_path: Path, ours: Path) -> None:
    model = helper.make_model(graph([], [tensor(1, "w")]))
    for value in ("v", "w"):
        model.metadata_props.add(key="k", value=value)
    with pytest.raises(dw.DecodeError, match="two values have the key 'k'"):
        convert(saved(tmp_path, model), ours)
    assert not ours.exists()


def test_only_what_is_asked_for_is_looked_at(tmp_path: Path, ours: Path) -> None:
    bad = onnx.TensorProto(name="bad", data_type=99)
    source = saved(tmp_path, graph([constant("s", value_string="x")], [bad, tensor(1, "w"), tensor(2, "v")]))
    assert convert(source, ours, only=["v", "w"]) == Conversion(["w", "v"], [])
    with pytest.raises(dw.DecodeError, match="unknown data type 99"):
        convert(source, ours)


def test_segments_are_refused(tmp_path: Path, ours: Path) -> None:
    part = tensor(1, "w")
    part.segment.begin, part.segment.end = 0, 1
    with pytest.raises(dw.DecodeError, match="segment"):
        convert(saved(tmp_path, graph([], [part])), ours)


@pytest.mark.parametrize("damaged", [False, True])
def test_the_sum_of_a_file_beside_the_model_is_checked(damaged: bool, tmp_path: Path, ours: Path) -> None:
    content = np.arange(8.0).tobytes()
    beside = onnx.TensorProto(name="w", data_type=onnx.TensorProto.DOUBLE, dims=[8])
    beside.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "x.bin"), ("checksum", hashlib.sha1(content).hexdigest())):
        beside.external_data.add(key=key, value=value)
    source = saved(tmp_path, graph([], [beside]))
    (tmp_path / "x.bin").write_bytes(content[:-1] + b"\0" if damaged else content)
    if damaged:
        with pytest.raises(dw.ChecksumError, match=r"tensor 'w': 'x\.bin' does not match"):
            convert(source, ours)
        assert not ours.exists()
        beside.external_data[1].value = "abc"
        with pytest.raises(dw.DecodeError, match="'abc' is not a SHA-1"):
            convert(saved(tmp_path, graph([], [beside])), ours)
    else:
        convert(source, ours)
        assert values(ours) == {"w": np.arange(8.0).tolist()}


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return tmp_path / "ours.dlpw"
