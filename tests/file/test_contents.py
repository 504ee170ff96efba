"""Contents of a file behind its readers: names and entries over all indexes, and errors that say where."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built_files import CraftedFile, header_of, text, two_generations

import dlpack_wire as dw
from dlpack_wire.file.contents import FileContents
from dlpack_wire.file.storage import MemoryBytes


def contents(content: bytes) -> FileContents:
    return FileContents(MemoryBytes(content), "by hand")


def test_every_entry_comes_once_with_the_names_that_still_denote_it() -> None:
    f = contents(two_generations())
    found = [(f.names(ordinal), entry.header.shape) for ordinal, entry in f.entries()]
    assert found == [(["tied"], (3,)), (["b"], (0,)), (["a"], (4,)), (["c"], (1,))]
    assert [f.ordinal(name) for name, _ in f.ordinals()] == [ordinal for _, ordinal in f.ordinals()]


def test_an_entry_of_several_names_comes_once() -> None:
    f = CraftedFile()
    f.add("a", aliases=["b", "c"], metadata=[text("unit", "m")])
    found = contents(f.finish())
    assert [found.names(ordinal) for ordinal, _ in found.entries()] == [["a", "b", "c"]]


def test_errors_of_entries_name_the_tensor_and_the_file() -> None:
    f = CraftedFile()
    f.add("good")
    f.add("bad", header=header_of([5], payload_sum=0))
    found = contents(f.finish())
    entries = found.entries()
    next(entries)
    for fail in (lambda: next(entries), lambda: found.locate("bad")):
        with pytest.raises(dw.DecodeError) as caught:
            fail()
        assert (caught.value.tensor, caught.value.path) == ("bad", "by hand")
    with pytest.raises(KeyError, match="by hand has no tensor 'worse' among its 2"):
        found.locate("worse")


def test_errors_of_opening_and_metadata_name_the_file() -> None:
    f = CraftedFile()
    for fail in (lambda: contents(b"junk"), contents(f.finish(b"\x12\x00")).metadata):
        with pytest.raises(dw.DecodeError) as caught:
            fail()
        assert caught.value.path == "by hand"


def test_the_empty_name_is_refused_beside_a_name_of_another_generation() -> None:
    f = CraftedFile()
    f.add("")
    f.finish()
    f.add("a")
    with pytest.raises(dw.DecodeError, match="reserved for a file's only tensor"):
        contents(f.finish(base=f.trailer))


# The middle one of three records is in no index. Its name, whether the file may be loaded then.
CLAIMS = {
    "a name that nobody has": ("new", False),
    "a name of an earlier record": ("before", False),
    "a name of a later record": ("after", True),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_record_that_no_index_names_may_only_claim_names_that_later_records_take(case: str) -> None:
    name, allowed = CLAIMS[case]
    f = CraftedFile()
    f.add("before", b"\1")
    f.add(name, b"\2", indexed=False)
    f.add("after", b"\3")
    content = f.finish()
    assert sorted(dw.load_dict(content, verify=False)) == ["after", "before"]
    if allowed:
        assert dw.load(content).keys() == {"after", "before"}  # type: ignore[union-attr]
        return
    with pytest.raises(dw.DecodeError, match="no index names claims this name") as caught:
        dw.load(content)
    assert (caught.value.tensor, caught.value.path) == (name, "bytes")


def test_a_record_behind_the_last_entry_may_not_claim_a_name() -> None:
    f = CraftedFile()
    f.add("a", b"\1")
    f.add("a", b"\2", indexed=False)
    with pytest.raises(dw.DecodeError, match="no index names claims this name"):
        dw.load(f.finish())


def test_a_removal_counts_against_records_that_no_index_names() -> None:
    f = CraftedFile()
    f.add("a", b"\1", aliases=["b"], indexed=False)
    f.add("b", b"\2")
    f.remove("a")
    content = f.finish()
    assert dw.load(content).keys() == {"b"}  # type: ignore[union-attr]


def test_few_names_and_many_are_found_alike() -> None:
    content = two_generations()
    once, often = contents(content), contents(content)
    names = ["tied", "b", "a", "c", "none", "\ud800"]
    first = [once.ordinal_of(name) for name in names]
    for _ in range(20):
        assert [often.ordinal_of(name) for name in names] == first
    assert first[-2:] == [None, None]
    assert np.unique(first[:4]).size == 4
