"""A Memo never holds more than its limit, and loses nothing before it is full."""

from __future__ import annotations

import pytest

from dlpack_wire.tensor.memo import Memo


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_full_memo_is_emptied_for_the_next_result(limit: int) -> None:
    memo: Memo[int, str] = Memo(limit)
    for key in range(limit):
        assert memo.keep(key, str(key)) == str(key)
    assert memo == {key: str(key) for key in range(limit)}
    memo.keep(limit, "next")
    assert memo == {limit: "next"}
    assert memo.limit == limit


def test_results_that_are_none_are_results() -> None:
    memo: Memo[str, None] = Memo(2)
    memo.keep("x", None)
    assert "x" in memo
