"""Several servers without MindSpore: each has a range, and rank 0 collects what all have."""

import numpy as np
import pytest

from impala_ms.cluster.hub import Hub, Intake
from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.messages import BYE, encode
from impala_ms.cluster.pulling import PulledReplay, StoreHub, StoreSpoke, batch_layout, described
from impala_ms.cluster.reports import Collector, Reporter
from impala_ms.cluster.spoke import Spoke
from impala_ms.cluster.spokes import Spokes
from impala_ms.cluster.topology import Place, star_of_gradients
from impala_ms.errors import RunError
from impala_ms.trajectory import Batches, Layout
from tests.cluster.test_hub import FakeTransport

SIZES = (3, 2)  # weights of each server
SPACES = {"action": {"n": 2}}


class Gradient(Layout):
    """A gradient of so many weights."""

    def __init__(self, size):
        whole, ended = np.dtype(np.int64), (2,)
        super().__init__(
            {
                "gradient": ((size,), np.dtype(np.float32)),
                "valid_rows": ((), whole),
                "withheld": ((), whole),
                "episode_return": (ended, np.dtype(np.float32)),
                "episode_length": (ended, np.dtype(np.int32)),
                "behaviour_version": ((), whole),
                "env_steps": ((), whole),
                "wait_fraction": ((), np.dtype(np.float32)),
            }
        )

    def valid_rows(self, work):
        return int(work["valid_rows"].sum())

    def problem(self, work):
        return None


class TestPlaces:
    def test_workers_serve_under_all_servers(self):
        workers = (2, 3, 4)
        assert star_of_gradients(5, 2) == [
            Place("server", 1, hub_of=workers, reports=(1,)),
            Place("server", 2, hub_of=workers),
            Place("worker", 1, spoke_of=(0, 1)),
            Place("worker", 2, spoke_of=(0, 1)),
            Place("worker", 3, spoke_of=(0, 1)),
        ]

    def test_one_server_is_the_star_of_before(self):
        assert star_of_gradients(3, 1) == star_of_gradients(3)
        assert star_of_gradients(3)[0] == Place("server", 1, hub_of=(1, 2))

    @pytest.mark.parametrize("ranks", [1, 2, 3])
    def test_a_worker_is_needed(self, ranks):
        with pytest.raises(ValueError, match="3 servers need N = 4 or more, with one worker"):
            star_of_gradients(ranks, 3)

    def test_a_store_comes_after_the_servers(self):
        workers = (2, 3)
        assert star_of_gradients(4, 1, True) == [
            Place("server", 1, hub_of=workers, reports=(1,)),
            Place("store", 1, hub_of=workers),
            Place("worker", 1, spoke_of=(0, 1)),
            Place("worker", 2, spoke_of=(0, 1)),
        ]
        roles = [place.role for place in star_of_gradients(6, 2, True)]
        assert roles == [*["server"] * 2, "store", *["worker"] * 3]
        with pytest.raises(ValueError, match="1 server and the rank of the replay need N = 3 or"):
            star_of_gradients(2, 1, True)


class Servers:
    """Two servers and one worker; the test decides the order of all steps."""

    def __init__(self, **limits):
        ends = FakeTransport.connect(3)
        self.mailboxes = [Mailbox(end) for end in ends]
        layouts = [Gradient(size) for size in SIZES]
        self.stores = [Batches(layout, 1) for layout in layouts]
        self.hubs = [
            Hub(mailbox, [2], answers=True, min_actors=1 - rank, start_timeout_s=60.0)
            for rank, mailbox in enumerate(self.mailboxes[:2])
        ]
        limits = {"start_timeout_s": 60.0, "heartbeat_s": 10.0} | limits
        self.collector = Collector(self.mailboxes[0], [1], **limits)
        self.reporter = Reporter(self.mailboxes[1], heartbeat_s=limits["heartbeat_s"])
        spokes = [Spoke(self.mailboxes[2], hub, waits_for_answer=True) for hub in (0, 1)]
        self.spoke = Spokes(spokes)
        self.spoke.divide(layouts)
        self.whole = Gradient(sum(SIZES))
        self.layouts = layouts

    def begin(self, max_policy_lag=None):
        self.spoke.hello(SPACES)
        self.spoke.begin([self.whole.empty()], sum(SIZES))
        for rank, hub in enumerate(self.hubs):
            assert hub.await_hello(1, lambda: False) == SPACES
            intake = Intake(
                self.layouts[rank], self.stores[rank], max_policy_lag=max_policy_lag, version=0
            )
            hub.begin(intake, sum(SIZES))
            self.publish(rank, 0, 10.0 * rank)
        return self

    def publish(self, rank, version, value):
        self.hubs[rank].publish(version, np.full(SIZES[rank], value, np.float32), 100)
        self.mailboxes[rank].pump()

    def turn(self):
        """The worker's turn if both servers have answered, else None."""
        spoke = self.spoke
        assert not spoke.drain()
        if all(one._may_begin() for one in spoke.spokes):
            return spoke.turn()
        return None  # it would wait

    def send(self, buffer, gradient, rows=4):
        fields = buffer[1]
        fields["gradient"][...], fields["valid_rows"][...] = gradient, rows
        self.spoke.send_work(buffer)
        for mailbox in self.mailboxes[:2]:
            mailbox.pump()

    def learn(self, rank):
        batch = self.hubs[rank].take(0.0)
        if batch is not None:
            self.stores[rank].give_back(batch)
        return batch


class TestWorker:
    def test_gets_the_weights_of_all_servers_and_sends_each_its_range(self):
        servers = Servers().begin()
        weights, buffer = servers.turn()
        assert (weights.version, weights.env_steps) == (0, 100)
        assert weights.flat.tolist() == [0.0, 0.0, 0.0, 10.0, 10.0]
        servers.send(buffer, np.arange(5.0))
        found = [servers.learn(rank) for rank in (0, 1)]
        assert [batch["gradient"][0].tolist() for batch in found] == [[0.0, 1.0, 2.0], [3.0, 4.0]]
        assert [hub.intake.env_steps_received for hub in servers.hubs] == [4, 4]

    def test_goes_on_when_both_have_applied_its_gradient(self):
        servers = Servers().begin()
        _, buffer = servers.turn()
        servers.send(buffer, 1.0)
        servers.learn(0)
        servers.publish(0, 1, 0.5)
        assert servers.turn() is None
        servers.learn(1)
        servers.publish(1, 1, 9.5)
        weights, _ = servers.turn()
        assert weights.flat.tolist() == [0.5, 0.5, 0.5, 9.5, 9.5]

    def test_each_server_drops_by_the_version_of_its_own_weights(self):
        servers = Servers().begin(max_policy_lag=2)
        _, buffer = servers.turn()
        servers.stores[1].completed = 3  # it has applied three gradients of other workers
        servers.send(buffer, 1.0)
        assert servers.learn(0)["behaviour_version"] == [0]
        assert servers.learn(1) is None
        assert [hub.intake.dropped for hub in servers.hubs] == [0, 1]

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_a_number_that_is_not_finite_reaches_all_servers(self, bad):
        servers = Servers().begin()
        _, buffer = servers.turn()
        servers.send(buffer, np.array([0.0, 1.0, bad, 2.0, 3.0]))
        for rank in (0, 1):
            assert np.isnan(servers.learn(rank)["gradient"]).all()

    def test_without_a_gradient_gets_new_weights_of_all(self):
        servers = Servers().begin()
        _, buffer = servers.turn()
        servers.spoke.withhold(buffer)
        assert servers.turn() is None
        for rank in (0, 1):
            servers.hubs[rank].publish(3, np.full(SIZES[rank], 2.0, np.float32))
            servers.mailboxes[rank].pump()
        weights, _ = servers.turn()
        assert weights.version == 3
        assert weights.flat.tolist() == [2.0] * 5

    @pytest.mark.parametrize("first", [0, 1])
    def test_stops_when_any_server_says_so(self, first):
        servers = Servers().begin()
        servers.hubs[first]._stopping = True
        servers.mailboxes[first].transport.send(2, 6, encode({}))
        assert servers.spoke.turn() is None

    def test_ends_quietly_when_another_server_than_rank_0_is_lost(self):
        servers = Servers().begin()
        servers.mailboxes[2].transport.dead[1] = "was lost"
        assert servers.spoke.turn() is None
        servers.mailboxes[2].transport.dead[0] = "was lost"
        with pytest.raises(RunError, match=r"the learner \(rank 0\) is gone"):
            servers.spoke.turn()

    def test_says_bye_to_all(self):
        servers = Servers().begin()
        servers.spoke.send(BYE, encode({}), wait=False)
        for mailbox, hub in zip(servers.mailboxes, servers.hubs, strict=False):
            mailbox.pump()
            assert not hub.roster.alive


class TestCollecting:
    def ready(self, **limits):
        servers = Servers(**limits)
        state = np.arange(7, dtype=np.uint8)
        servers.collector.begin({1: state}, 70)
        reads = iter([False, False, False, True])

        def others():
            servers.mailboxes[0].pump()
            return next(reads)

        assert servers.reporter.await_state(7, others).tolist() == list(range(7))
        return servers

    def test_a_server_begins_with_what_rank_0_has_for_it(self):
        assert self.ready().reporter.env_steps == 70

    def test_rank_0_gets_what_the_server_has_now(self, monkeypatch):
        servers = self.ready()

        def check():
            servers.mailboxes[0].pump()
            servers.mailboxes[1].pump()
            if servers.reporter.asked:
                servers.reporter.tell(np.full(7, next(values), np.uint8))

        values = iter((3, 4))
        monkeypatch.setattr(servers.mailboxes[0], "go_on", check)
        for value in (3, 4):
            assert servers.collector.collect()[1].tolist() == [value] * 7

    def test_a_lost_server_ends_the_run(self):
        servers = self.ready()
        servers.mailboxes[0].transport.dead[1] = "was lost"
        with pytest.raises(RunError, match="rank 1, a parameter server, was lost"):
            servers.collector.collect()

    def test_a_silent_server_ends_the_run_in_time(self):
        servers = self.ready(heartbeat_s=5.0)
        servers.reporter.transport.send(0, 8, encode({"doing": None}))  # a BEAT: it serves
        servers.mailboxes[0].pump()
        servers.collector.heard[1] -= 6.0
        with pytest.raises(RunError, match=r"rank 1, .* has not spoken in 5 s"):
            servers.mailboxes[0].pump()

    def test_an_exception_of_a_server_is_said(self):
        servers = self.ready()
        servers.reporter.transport.send(0, 5, encode({"reason": "no memory"}))
        with pytest.raises(RunError, match=r"rank 1: no memory \(worker_1.txt"):
            servers.mailboxes[0].pump()

    def test_after_an_exception_of_a_server_the_others_are_told_to_stop(self):
        servers = self.ready()
        servers.reporter.transport.send(0, 5, encode({"reason": "no memory"}))
        with pytest.raises(RunError):
            servers.mailboxes[0].pump()
        with pytest.raises(RunError, match="no memory"):
            servers.collector.collect()
        servers.collector.close()
        servers.mailboxes[0].pump()  # it is not raised again
        assert servers.collector.stop()

    def test_what_servers_have_is_collected_after_an_error_elsewhere(self, monkeypatch):
        servers = self.ready()
        servers.mailboxes[0].error = RunError("rank 2: the environment")
        pump = servers.mailboxes[0].pump

        def both():
            servers.mailboxes[1].pump()
            if servers.reporter.asked:
                servers.reporter.tell(np.full(7, 9, np.uint8))
            return pump()

        monkeypatch.setattr(servers.mailboxes[0], "pump", both)
        assert servers.collector.collect()[1].tolist() == [9] * 7

    def test_a_state_that_was_taken_is_not_kept(self):
        servers = self.ready()
        servers.reporter.tell(np.zeros(7, np.uint8))
        for _ in range(3):
            servers.mailboxes[1].pump()
            servers.mailboxes[0].pump()
        assert servers.reporter._told is None
        assert not servers.collector._sent

    def test_stop_reaches_the_server_and_its_bye_is_awaited(self):
        servers = self.ready()
        servers.mailboxes[1].pump()
        pump = servers.mailboxes[0].pump

        def both():
            servers.mailboxes[1].pump()
            if servers.reporter.stopped and not said:
                said.append(servers.reporter.transport.send(0, BYE, encode({})))
            return pump()

        said = []
        servers.mailboxes[0].pump = both
        assert servers.collector.stop()
        assert said


class Kept:
    """In place of a replay: it gives the numbers of the unrolls that it got."""

    def __init__(self):
        self.kept, self.due, self.completed = [], 0, 0

    def has_room(self):
        return len(self.kept) < 3

    def add(self, work):
        self.kept.append(int(work["valid_rows"]))
        self.due += 1


class TestStore:
    """One worker under a store."""

    @pytest.fixture
    def store(self):
        hub_end, end = FakeTransport.connect(2)
        hub = StoreHub(Mailbox(hub_end), [1], min_actors=0, start_timeout_s=60.0)
        replay, layout = Kept(), batch_layout({"returns": np.zeros(3, np.float32)}, ["rows", "age"])

        def draw():
            if not replay.due:
                return None
            replay.due -= 1
            buffer, fields = layout.empty()
            fields["returns"][...] = replay.kept
            for name, value in described({"rows": len(replay.kept), "age": 0.5}).items():
                fields[name][...] = value
            return buffer

        hub.draw = draw
        work, spoke = Gradient(2), StoreSpoke(Mailbox(end), waits_for_answer=True)
        spoke.hello(SPACES)
        spoke.begin([work.empty() for _ in range(2)], layout.nbytes // 4)
        assert hub.await_hello(1, lambda: False) == SPACES
        hub.begin(Intake(work, replay, max_policy_lag=None, version=0), layout.nbytes // 4)

        def drain():
            hub.mailbox.pump()
            return spoke.drain()

        return PulledReplay(spoke, layout, drain), replay, hub

    def add(self, pulled, rows):
        work = {name: np.zeros(shape, dtype) for name, (shape, dtype) in Gradient(2).fields.items()}
        pulled.add(work | {"valid_rows": np.array(rows)})

    def test_a_worker_that_asks_gets_a_batch_or_must_play(self, store):
        pulled, replay, _ = store
        assert not pulled.is_due()
        for rows in (4, 5, 6):
            self.add(pulled, rows)
            pulled.drain()
        assert replay.kept == [4, 5, 6]
        for _ in range(3):
            assert pulled.is_due()
            assert pulled.is_due()  # the same batch
            assert pulled.take(0.0)["returns"].tolist() == [4.0, 5.0, 6.0]
            assert pulled.columns() == {"rows": 3.0, "age": 0.5}
        assert not pulled.is_due()

    def test_the_next_batch_is_asked_for_when_one_is_taken(self, store):
        pulled, replay, hub = store
        replay.kept, replay.due = [1, 2, 3], 2
        assert pulled.is_due()
        pulled.take(0.0)
        hub.mailbox.pump()
        assert replay.due == 0

    def test_a_full_store_holds_up_the_worker_until_it_is_stopped(self, store):
        pulled, replay, _ = store
        replay.kept = [1, 2, 3]
        for rows in (4, 5):
            self.add(pulled, rows)  # under way in both buffers
        pulled.spoke.stopped = True
        self.add(pulled, 6)
        assert replay.kept == [1, 2, 3]
        assert not pulled.is_due()

    def test_an_example_has_the_shapes_of_a_batch(self, store):
        pulled, _, _ = store
        assert {name: values.shape for name, values in pulled.example().items()} == {
            "returns": (3,)
        }
