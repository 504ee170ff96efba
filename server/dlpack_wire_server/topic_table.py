"""The topics that frames were published on: found by name and prefix, bounded for each caller, forgotten when idle."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from .kept_frame import KeptFrame
from .prefixes import widest
from .status import Refusal

MAX_TOPICS = 1 << 16
"""Maximum number of topics. One takes about 1 KiB without a frame."""

_TRIES = 4
"""Maximum number of topics examined to find one to forget. To find out whether a topic has subscribers may take
milliseconds, while the event loop waits."""


class Topic:
    """A topic that frames were published on.

    Attributes:
        owner: Who published on it first, and whose share it counts in.
        sequence: Number of its newest frame.
        newest: That frame, kept for those who subscribe later; None if it was given up.
    """

    __slots__ = ("newest", "owner", "sequence")

    def __init__(self, owner: str, sequence: int) -> None:
        self.owner = owner
        self.sequence = sequence
        self.newest: KeptFrame | None = None


class TopicTable:
    """All topics. No method slows down with their number, except for shifting the sorted list of their names."""

    def __init__(self, max_topics: int = MAX_TOPICS) -> None:
        """Begin without topics.

        Args:
            max_topics: Maximum number of topics, of which one caller may have half.
        """
        self._max_topics = max_topics
        self._topics: dict[str, Topic] = {}
        self._names: list[str] = []  # sorted
        self._by_owner: dict[str, OrderedDict[str, None]] = {}  # by the time of their last frame
        self._retaining: OrderedDict[str, Topic] = OrderedDict()  # those with a frame, by its time
        self._forgotten_sequence = 0

    def __len__(self) -> int:
        return len(self._topics)

    def make_space(self, name: str, owner: str, is_wanted: Callable[[str], bool]) -> None:
        """Forget a topic if one more by this caller would be too many.

        Args:
            name: The topic that is published on.
            owner: Who publishes.
            is_wanted: Tells whether a topic has subscribers; such a one is not forgotten.

        Raises:
            Refusal: TOO_MANY_REQUESTS, if no topic can be forgotten.
        """
        if name in self._topics:
            return
        share = max(self._max_topics // 2, 1)
        own = self._by_owner.get(owner, ())
        if len(own) >= share:
            if not self._forget_one(owner, is_wanted):
                text = f"{owner} has {len(own)} topics with subscribers; one caller may have {share}"
                raise Refusal("TOO_MANY_REQUESTS", text)
        elif len(self._topics) >= self._max_topics:
            most = max(self._by_owner, key=lambda other: len(self._by_owner[other]))
            if not self._forget_one(most, is_wanted):
                text = f"there are {len(self._topics)} topics with subscribers; no more are allowed"
                raise Refusal("TOO_MANY_REQUESTS", text)

    def _forget_one(self, owner: str, is_wanted: Callable[[str], bool]) -> bool:
        """Forget one of the topics that a caller published on longest ago; return False if all of them are wanted."""
        own = self._by_owner[owner]
        for _ in range(min(_TRIES, len(own))):
            name = next(iter(own))
            if not is_wanted(name):
                # Sequences must not repeat: a subscriber would take the second frame for one that it has seen.
                self._forgotten_sequence = max(self._forgotten_sequence, self._topics[name].sequence)
                self._forget(name)
                return True
            own.move_to_end(name)  # the next call looks at others
        return False

    def _forget(self, name: str) -> None:
        topic = self._topics.pop(name)
        del self._names[bisect_left(self._names, name)]
        self._retaining.pop(name, None)
        own = self._by_owner[topic.owner]
        del own[name]
        if not own:
            del self._by_owner[topic.owner]

    def next_sequence(self, name: str) -> int:
        """Return the number of a topic's next frame."""
        topic = self._topics.get(name)
        return (topic.sequence if topic is not None else self._forgotten_sequence) + 1

    def retain(self, frame: KeptFrame, owner: str) -> None:
        """Make a frame the newest of its topic."""
        name = frame.topic
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(owner, frame.sequence)
            insort(self._names, name)
            self._by_owner.setdefault(owner, OrderedDict())[name] = None
        topic.sequence, topic.newest = frame.sequence, frame
        self._by_owner[topic.owner].move_to_end(name)
        self._retaining[name] = topic
        self._retaining.move_to_end(name)

    def give_up(self, name: str) -> bool:
        """Give up the newest frame of a topic; return False if it has none."""
        topic = self._retaining.pop(name, None)
        if topic is not None:
            topic.newest = None
        return topic is not None

    def give_up_oldest(self, count: int, size: int) -> bool:
        """Give up the oldest frames, until they come to `size` bytes or to `count`; False if no topic has one."""
        given_up = 0
        while self._retaining and count > 0 and size > 0:
            _, topic = self._retaining.popitem(last=False)
            if topic.newest is not None:
                size -= topic.newest.size
            topic.newest = None
            count, given_up = count - 1, given_up + 1
        return given_up > 0

    def matching(self, exact: Iterable[str], prefixes: Iterable[str]) -> Iterator[Topic]:
        """Yield the topics of these names, and of these prefixes; found as they are asked for, new ones too."""
        covering = widest(prefixes)
        for name in exact:
            topic = self._topics.get(name)
            if topic is not None and not name.startswith(tuple(covering)):
                yield topic
        for prefix in covering:
            at = bisect_left(self._names, prefix)
            while at < len(self._names) and (name := self._names[at]).startswith(prefix):
                yield self._topics[name]
                at = bisect_right(self._names, name)  # topics may have come and gone meanwhile
