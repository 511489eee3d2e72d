"""The ends of a rank: what it serves, what it works for, and what it tells rank 0 of itself.

Input: a ``Run``, whose place says which ranks these are. Output: hub, spoke, and with several
servers or a store the collector or reporter.
"""

from typing import NamedTuple

from impala_ms.cluster.hub import Hub
from impala_ms.cluster.mailbox import Mailbox
from impala_ms.cluster.pulling import StoreHub, StoreSpoke
from impala_ms.cluster.reports import Collector, Reporter
from impala_ms.cluster.roster import REFUSED_IN_A_ROW
from impala_ms.cluster.rounds import RoundsHub, RoundsSpoke
from impala_ms.cluster.spoke import Spoke
from impala_ms.cluster.spokes import Spokes

RESTARTS = 3  # so many failed restarts of a rank in a row; then it is left out


class Ends(NamedTuple):
    """The ends of a rank; None where it has none of a kind.

    Attributes:
        hub: Of a rank that serves others.
        spoke: Of a rank that acts.
        collector: Of rank 0, if there are other servers or a store.
        reporter: Of these.
    """

    hub: Hub | None = None
    spoke: Spoke | Spokes | None = None
    collector: Collector | None = None
    reporter: Reporter | None = None


def make_ends(run, work):
    """The ends of the rank of a ``Run``; ``work`` is what travels."""
    params, config, place = run.config.trainer_params, run.config, run.place
    others = config.places[0].reports
    stores = {rank for rank, there in enumerate(config.places) if there.role == "store"}
    synchronous = params.get("synchronous", False)
    every = config.actors if synchronous else None
    ends = Ends()
    if run.hub_end is not None:
        mailbox, rounds = Mailbox(run.hub_end), synchronous and run.hub_end.concurrent
        kind = RoundsHub if rounds else StoreHub if run.rank in stores else Hub
        hub = kind(
            mailbox,
            place.hub_of,
            answers=work.is_answered and not rounds and run.rank not in stores,
            # only rank 0 ends the run when there are too few
            min_actors=0 if run.rank else every or max(params["min_actors"], work.needed),
            start_timeout_s=params["start_timeout_s"],
            heartbeat_s=params["heartbeat_s"],
            restarts=0 if every or others else params["restart_actors"] * RESTARTS,
            refusals=1 if every else REFUSED_IN_A_ROW,  # a round needs the work of all ranks
        )
        ends = ends._replace(hub=hub, **_reports(run, mailbox, {*others} - stores, stores))
    if run.spoke_end is not None:
        mailbox, rounds = Mailbox(run.spoke_end), synchronous and run.spoke_end.concurrent
        how = {"heartbeat_s": params["heartbeat_s"], "waits_for_answer": work.is_answered}
        spokes = [
            (RoundsSpoke if rounds else Spoke)(mailbox, hub, **how)
            for hub in place.spoke_of or (0,)
            if hub not in stores
        ]
        of_stores = [StoreSpoke(mailbox, hub, **how) for hub in stores & {*place.spoke_of}]
        several = len(spokes) > 1 or of_stores
        ends = ends._replace(spoke=Spokes(spokes, *of_stores) if several else spokes[0])
    return ends


def _reports(run, mailbox, servers, stores):
    """What ranks with a hub tell each other, ``{name: end}``."""
    params = run.config.trainer_params
    if run.rank > 0:
        return {"reporter": Reporter(mailbox, heartbeat_s=params["heartbeat_s"])}
    if not servers | stores:
        return {}
    limits = {name: params[name] for name in ("start_timeout_s", "heartbeat_s")}
    return {"collector": Collector(mailbox, servers, stores, **limits)}
