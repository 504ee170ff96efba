"""Topics of many callers: whose may be forgotten, what is found by pattern, and how much work that is."""

from __future__ import annotations

import pytest
from dlpack_wire_server.budget import Budget
from dlpack_wire_server.kept_frame import KeptFrame
from dlpack_wire_server.status import Refusal
from dlpack_wire_server.topic_table import TopicTable

BUDGET = Budget(1 << 40)


def nobody(name: str) -> bool:
    return False


def everybody(name: str) -> bool:
    return True


def publish(table: TopicTable, owner: str, *names: str) -> None:
    for name in names:
        table.make_space(name, owner, nobody)
        table.retain(KeptFrame(name, table.next_sequence(name), 1, b"", (), 100, BUDGET), owner)


def found(table: TopicTable, *patterns: str) -> list[str]:
    exact = [p for p in patterns if not p.endswith("*")]
    topics = table.matching(exact, [p[:-1] for p in patterns if p.endswith("*")])
    return [topic.newest.topic for topic in topics if topic.newest is not None]


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{i:05}" for i in range(count)]


def test_one_caller_has_half_of_the_topics_and_takes_the_place_of_its_own() -> None:
    table = TopicTable(max_topics=8)
    publish(table, "greedy", *numbered(100, "g"))
    publish(table, "other", "a", "b", "c", "d")
    assert found(table, "*") == ["a", "b", "c", "d", "g00096", "g00097", "g00098", "g00099"]
    with pytest.raises(Refusal, match="greedy has 4 topics with subscribers; one caller may have 4"):
        table.make_space("g", "greedy", everybody)
    table.make_space("g00099", "greedy", everybody)  # one that is there needs no space


def test_the_caller_with_most_topics_makes_space_for_others() -> None:
    table = TopicTable(max_topics=8)
    publish(table, "many", *numbered(4, "m"))
    publish(table, "few", "a", "b", "c")
    publish(table, "one", "x")
    publish(table, "new", "n")
    assert found(table, "*") == ["a", "b", "c", "m00001", "m00002", "m00003", "n", "x"]


def test_only_a_few_topics_are_looked_at_for_one_to_forget_and_others_the_next_time() -> None:
    table = TopicTable(max_topics=200)
    publish(table, "me", *numbered(100))
    asked: list[str] = []

    def is_wanted(name: str) -> bool:
        asked.append(name)
        return name < "00050"

    refused = 0
    while True:
        before = len(asked)
        try:
            table.make_space("new", "me", is_wanted)
        except Refusal:
            refused += 1
        else:
            break
        assert len(asked) - before <= 4
    assert asked == [f"{i:05}" for i in range(51)]
    assert refused == 12
    assert len(table) == 99


def test_numbers_go_on_after_a_topic_was_forgotten() -> None:
    table = TopicTable(max_topics=2)
    publish(table, "me", "a", "a", "a", "b")
    assert table.next_sequence("a") == 4
    assert table.next_sequence("b") == 5
    assert len(table) == 1


def test_topics_are_found_by_name_and_prefix_each_once() -> None:
    table = TopicTable()
    publish(table, "me", "cam/a", "cam/b", "cam/b/c", "camera", "lidar", "é", "\U0001f4f7")
    assert found(table, "cam/*") == ["cam/a", "cam/b", "cam/b/c"]
    assert found(table, "cam/*", "cam/b*", "c*", "cam/a") == ["cam/a", "cam/b", "cam/b/c", "camera"]
    assert found(table, "lidar", "lidar/*", "nothing", "z*") == ["lidar"]
    assert sorted(found(table, "*")) == sorted(["cam/a", "cam/b", "cam/b/c", "camera", "lidar", "é", "\U0001f4f7"])


def test_topics_that_come_and_go_while_others_are_looked_at() -> None:
    table = TopicTable(max_topics=2000)
    publish(table, "me", *numbered(10))
    topics = table.matching([], [""])
    assert next(topics) is not None
    publish(table, "me", "000000", "00004a")  # before the place and behind it
    left = [topic.newest.topic for topic in topics if topic.newest is not None]
    assert left == ["000000", *numbered(10)[1:5], "00004a", *numbered(10)[5:]]


def test_the_oldest_frames_are_given_up_as_many_as_needed() -> None:
    table = TopicTable()
    publish(table, "me", "a", "b", "c", "d", "a")
    assert table.give_up_oldest(10, 150)
    assert found(table, "*") == ["a", "d"]
    assert table.give_up_oldest(1, 1000)
    assert found(table, "*") == ["a"]
    assert table.give_up("a")
    assert not table.give_up("a")
    assert not table.give_up_oldest(10, 1000)
    assert len(table) == 4
    assert table.next_sequence("a") == 3
