"""A mailbox of a rank that is hub and spoke at once, without MindSpore and processes."""

import numpy as np

from impala_ms.cluster.hub import Hub, Intake
from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.spoke import Spoke
from impala_ms.trajectory import Batches
from tests.cluster.test_hub import SPACES, SPEC, WEIGHTS_SIZE, FakeTransport

LIMITS = {"min_actors": 1, "start_timeout_s": 60.0}


class Rank:
    """Rank 2 is the hub of the ranks 3 and 4, and works for the hubs 0 and 1."""

    def __init__(self):
        self.ends = FakeTransport.connect(5)
        self.mailbox = Mailbox(self.ends[2])
        self.hub = Hub(self.mailbox, [3, 4], **LIMITS)
        self.spokes = [Spoke(self.mailbox, hub=rank) for rank in (0, 1)]
        self.above = [Hub(Mailbox(self.ends[rank]), [2], **LIMITS) for rank in (0, 1)]
        self.below = [Spoke(Mailbox(self.ends[rank]), hub=2) for rank in (3, 4)]
        for spoke in (*self.spokes, *self.below):
            spoke.hello(SPACES)
            spoke.begin([SPEC.empty()], WEIGHTS_SIZE)
        for hub in (*self.above, self.hub):
            hub.mailbox.pump()
            store = Batches(SPEC, 1)
            hub.begin(Intake(SPEC, store, max_policy_lag=None, version=0), WEIGHTS_SIZE)
        self.pump()

    def pump(self):
        for hub in (*self.above, self.hub):
            hub.mailbox.pump()

    @staticmethod
    def publish(hub, version):
        hub.publish(version, np.full(WEIGHTS_SIZE, version, np.float32))


def test_weights_of_each_hub_reach_the_spoke_under_it():
    rank = Rank()
    for hub, version in zip(rank.above, (7, 8), strict=True):
        rank.publish(hub, version)
    rank.pump()
    weights = [spoke.turn()[0] for spoke in rank.spokes]
    assert [one.version for one in weights] == [7, 8]
    assert [one.flat.tolist() for one in weights] == [[7.0] * WEIGHTS_SIZE, [8.0] * WEIGHTS_SIZE]


def test_work_reaches_only_the_hub_that_it_is_sent_to():
    rank = Rank()
    rank.publish(rank.hub, 1)
    for hub in rank.above:
        rank.publish(hub, 1)
    rank.pump()
    for spoke, reward in ((rank.spokes[1], 3.0), (rank.below[0], 5.0)):
        _, (data, fields) = spoke.turn()
        fields["reward"][...] = reward
        spoke.send_work((data, fields))
    rank.pump()
    assert rank.above[0].take(0.0) is None
    assert rank.above[1].take(0.0)["reward"][0, 0, 0] == 3.0
    assert rank.hub.take(0.0)["reward"][0, 0, 0] == 5.0


def test_stop_of_one_hub_does_not_stop_the_spoke_of_another():
    rank = Rank()
    rank.above[1].transport.send(2, 6, np.zeros(1, np.uint8))  # STOP
    assert (rank.spokes[0].drain(), rank.spokes[1].drain()) == (False, True)


def test_lost_spoke_is_reported_to_its_hub():
    rank = Rank()
    rank.ends[2].dead[4] = "was lost"
    rank.mailbox.pump()
    assert rank.hub.roster.alive == {3}
