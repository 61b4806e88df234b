"""A relay between samplers and a coordinator that counts open connections."""

from tests.fixtures.cut_network import CutNetwork


class Relay(CutNetwork):
    """Counts connections: ``open`` now, ``most_open`` at any time, and ``opened`` in total."""

    def __init__(self, target):
        self.open = self.most_open = self.opened = 0
        super().__init__(target)

    def wait_for(self, condition):
        """Wait until ``condition()`` holds, checking after each change."""
        with self._changed:
            assert self._changed.wait_for(condition, 20), (self.opened, self.open)

    def _welcome(self, front):
        # What ended before the newcomer came is dropped before the newcomer is counted.
        while ended := [key.fileobj for key, _ in self._selector.select(0) if key.fileobj in self._partner]:
            for one in ended:
                if one in self._partner:
                    self._pump(one)
        super()._welcome(front)
        self._count(1)

    def _drop(self, one):
        known = one in self._partner
        super()._drop(one)
        self._count(-known)

    def _count(self, more):
        with self._changed:
            self.open += more
            self.opened += more > 0
            self.most_open = max(self.most_open, self.open)
            self._changed.notify_all()
