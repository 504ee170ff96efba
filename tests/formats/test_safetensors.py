"""safetensors: its own reader judges which files are whole, and which of ours it can open."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from strategies import any_bits

import dlpack_wire as dw
from dlpack_wire.formats.convert import convert
from dlpack_wire.formats.items import check_names
from dlpack_wire.formats.safetensors import read


def entry(first: int, last: int, shape: str | None = None, dtype: str = "U8") -> str:
    shape = f"[{last - first}]" if shape is None else shape
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{first},{last}]}}'


DEEP = "[" * 120 + "]" * 120
HEADERS: dict[str, tuple[str | bytes, int]] = {
    "whole": (f'{{"a":{entry(0, 8)}}}', 8),
    "two": (f'{{"b":{entry(4, 8)},"a":{entry(0, 4)}}}', 8),
    "bytes behind the last": (f'{{"a":{entry(0, 4)}}}', 8),
    "bytes and no tensors": ("{}", 1),
    "nothing": ("{}", 0),
    "a hole": (f'{{"a":{entry(0, 2)},"b":{entry(4, 8)}}}', 8),
    "a hole in front": (f'{{"b":{entry(4, 8)}}}', 8),
    "an overlap": (f'{{"a":{entry(0, 4)},"b":{entry(2, 8)}}}', 8),
    "one range twice": (f'{{"a":{entry(0, 8)},"b":{entry(0, 8)}}}', 8),
    "empty ones at the ends": (f'{{"a":{entry(8, 8)},"b":{entry(0, 8)},"c":{entry(0, 0)}}}', 8),
    "an empty one inside": (f'{{"a":{entry(4, 4)},"b":{entry(0, 8)}}}', 8),
    "name twice, one range": (f'{{"a":{entry(0, 8)},"a":{entry(0, 8)}}}', 8),
    "name twice, the last whole": (f'{{"a":{entry(0, 4)},"a":{entry(0, 8)}}}', 8),
    "name twice, the first whole": (f'{{"a":{entry(0, 8)},"a":{entry(0, 4)}}}', 8),
    "metadata twice": ('{"__metadata__":{"k":"v"},"__metadata__":{"k":"v"}}', 0),
    "key of metadata twice": ('{"__metadata__":{"k":"v","k":"w"}}', 0),
    "metadata null": (f'{{"__metadata__":null,"a":{entry(0, 8)}}}', 8),
    "field twice": (f'{{"a":{entry(0, 8)[:-1]},"dtype":"U8"}}}}', 8),
    "another field": (f'{{"a":{entry(0, 8)[:-1]},"z":{{"y":[1.5,null,"ä"]}}}}}}', 8),
    "another field twice": (f'{{"a":{entry(0, 8)[:-1]},"z":1,"z":2}}}}', 8),
    "a list for an entry": ('{"a":["U8",[8],[0,8]]}', 8),
    "a list too short": ('{"a":["U8",[8]]}', 8),
    "blanks around": (f' \n{{"a":{entry(0, 8)}}}\t\r\n ', 8),
    "NUL behind": (f'{{"a":{entry(0, 8)}}}\0', 8),
    "more behind": (f'{{"a":{entry(0, 8)}}}{{}}', 8),
    "control characters": (f'{{"a\1":{entry(0, 8)}}}', 8),
    "a byte order mark": ("\ufeff{}", 0),
    "UTF-16": ("{}".encode("utf-16"), 0),
    "UTF-16 without a mark": ("{}".encode("utf-16-le"), 0),
    "no UTF-8": (b'{"\xff":' + entry(0, 8).encode() + b"}", 8),
    "pair of surrogates": (f'{{"\\ud83d\\ude00":{entry(0, 8)}}}', 8),
    "lone surrogate": (f'{{"\\ud83d":{entry(0, 8)}}}', 8),
    "lone surrogate, ignored": (f'{{"a":{entry(0, 8)[:-1]},"z":"\\ud83d"}}}}', 8),
    "extents as floats": (f'{{"a":{entry(0, 8, "[8.0]")}}}', 8),
    "extents as powers": (f'{{"a":{entry(0, 8, "[8e0]")}}}', 8),
    "extent -0": (f'{{"a":{entry(0, 0, "[-0]")}}}', 0),
    "extent Infinity": (f'{{"a":{entry(0, 0, "[Infinity]")}}}', 0),
    "extent true": (f'{{"a":{entry(0, 1, "[true]")}}}', 1),
    "extent 1e999": (f'{{"a":{entry(0, 0, "[1e999]")}}}', 0),
    "extent beyond 64 bits": (f'{{"a":{entry(0, 0, "[0,36893488147419103232]")}}}', 0),
    "NaN, ignored": (f'{{"a":{entry(0, 8)[:-1]},"z":NaN}}}}', 8),
    "1e999, ignored": (f'{{"a":{entry(0, 8)[:-1]},"z":1e999}}}}', 8),
    "30 digits, ignored": (f'{{"a":{entry(0, 8)[:-1]},"z":{"9" * 30}}}}}', 8),
    "5000 digits, ignored": (f'{{"a":{entry(0, 8)[:-1]},"z":{"9" * 5000}}}}}', 8),
    "nested, ignored": (f'{{"a":{entry(0, 8)[:-1]},"z":{DEEP}}}}}', 8),
    "nested deeper, ignored": (f'{{"a":{entry(0, 8)[:-1]},"z":[[[[[[[[{DEEP}]]]]]]]]}}}}', 8),
    "half a byte": (f'{{"a":{entry(0, 3, "[5]", "F4")}}}', 3),
    "whole bytes of halves": (f'{{"a":{entry(0, 3, "[6]", "F4")}}}', 3),
    "whole bytes of six bits": (f'{{"a":{entry(0, 3, "[4]", "F6_E2M3")}}}', 3),
    "a quarter of a byte": (f'{{"a":{entry(0, 3, "[3]", "F6_E2M3")}}}', 3),
}


def own_reader(path: Path) -> list[str] | None:
    """Return the names that the format's own reader finds, or None if it refuses the file."""
    try:
        with safetensors.safe_open(path, "np") as f:
            return sorted(f.keys())
    except safetensors.SafetensorError:
        return None


@pytest.mark.parametrize("name", HEADERS)
def test_files_are_taken_and_refused_as_by_the_formats_own_reader(name: str, tmp_path: Path) -> None:
    header, size = HEADERS[name]
    header = header.encode() if isinstance(header, str) else header
    source = tmp_path / "x.safetensors"
    source.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    expected = own_reader(source)
    if expected is None:
        with pytest.raises(dw.WireError):
            convert(source, tmp_path / "y.dlpw")
        assert not (tmp_path / "y.dlpw").exists()
    else:
        assert sorted(convert(source, tmp_path / "y.dlpw").names) == expected


def test_both_judge_damaged_headers_alike(tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    rng = random.Random("headers")
    source = tmp_path / "x.safetensors"
    taken = refused = 0
    for _ in range(rounds(3000, 200_000)):
        text, size = rng.choice([(h, n) for h, n in HEADERS.values() if isinstance(h, str)])
        header = bytearray(text.encode(errors="surrogatepass"))
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(header))
            header[at : at + rng.choice((0, 1))] = rng.choice(
                (
                    b"0",
                    b"1",
                    b"8",
                    b"-",
                    b".",
                    b"e",
                    b",",
                    b":",
                    b"[",
                    b"]",
                    b"{",
                    b"}",
                    b'"',
                    b"\\",
                    b" ",
                    b"a",
                    b"b",
                    b"",
                )
            )
        source.write_bytes(len(header).to_bytes(8, "little") + bytes(header) + bytes(size))
        expected = own_reader(source)
        said = ""
        try:
            with read(str(source)) as content:
                check_names(content)
                found = sorted(item.name for item in content.items)
        except dw.WireError as error:
            said = str(error)
            refused += 1
        else:
            assert found == expected, bytes(header)
            taken += 1
        # Extents of an empty tensor are limited here, and not there.
        assert not said or expected is None or "2^63" in said, bytes(header)
    assert taken > 50
    assert refused > 50


def test_what_stands_twice_is_named(tmp_path: Path) -> None:
    header = f'{{"__metadata__":{{"k":"v","k":"w"}},"a":{entry(0, 4)},"a":{entry(0, 8)}}}'.encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    done = convert(tmp_path / "x.safetensors", tmp_path / "y.dlpw")
    assert done.skipped == ["a: an earlier entry of this name", "metadata 'k': an earlier value"]
    with dw.open(tmp_path / "y.dlpw") as f:
        assert (f["a"].shape, f.metadata) == ((8,), {"k": "w"})


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"])
def test_elements_that_do_not_fill_bytes_are_refused(name: str, tmp_path: Path) -> None:
    bits = 4 if "4" in name else 6
    for count in range(9):
        dw.save(tmp_path / "x.dlpw", {"a": any_bits(np.dtype(getattr(ml_dtypes, name)), (count,))})
        target = tmp_path / f"{count}.safetensors"
        if count * bits % 8:
            with pytest.raises(dw.EncodeError, match=r"tensor 'a': shape: .*does not fill its last byte"):
                convert(tmp_path / "x.dlpw", target)
            assert not target.exists()
        else:
            convert(tmp_path / "x.dlpw", target)
            with safetensors.safe_open(target, "np") as f:
                assert f.get_slice("a").get_shape() == [count]
            convert(target, tmp_path / "back.dlpw")
            assert bytes(dw.load_dict(tmp_path / "back.dlpw")["a"].payload) == bytes(
                dw.load_dict(tmp_path / "x.dlpw")["a"].payload
            )
