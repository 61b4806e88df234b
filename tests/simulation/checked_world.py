"""A simulated world that checks every promise of the core after every event."""

from superdl.coordinator.core import Core, Prefetch, Tick
from tests.simulation.checks import Checks
from tests.simulation.upsets import UpsetWorld


class CheckedWorld(UpsetWorld):
    """A world that checks every promise after every event and logs its requests."""

    def __init__(self, model, make_core=None):
        self._make_core = make_core or (lambda model: Core(model.settings))
        super().__init__(model)
        self.log = []
        self.checks = Checks(self)

    def make_core(self):
        return self._make_core(self.model)

    def run(self):
        super().run()
        if not self.under_way:
            ended_s = self.now_s
            self.checks.ended()
            self.now_s = ended_s
        return self

    def post(self, *events):
        if not self.coordinator_up:
            return
        for event in events:
            self.checks.happened(event)
        super().post(*events)
        self.checks.settled()
        if isinstance(events[0], Tick):
            self.checks.ticked()

    def act(self, action):
        self.checks.acted(action)
        if isinstance(action, Prefetch):
            self.log.append(f"{self.now_s:.6f} {action.samples} {action.indices.tolist()}")
        super().act(action)

    def waits(self, job, rank, position, waited_s):
        super().waits(job, rank, position, waited_s)
        self.checks.waits(job, rank, position, waited_s)

    def consumed(self, job, rank, batch):
        self.checks.deliveries[job, rank].append(batch)

    def restarted(self):
        self.checks.restarted()
