/* The lane protocol: how relays share an outbox, deliver it, and survive one another.
 *
 * A step is one statement of the store or one message to the sink. Between two steps anything may
 * happen: another relay, a crash, a pause longer than the lease, a late commit, a person. There is
 * no clock: a lease may run out at any moment. Faults are counted, so every run ends, and where it
 * ends everything must be settled. Sets are bit masks of events; an event's number is its position.
 * What can be switched is in switches.pml, what must come of it in variants.py. A broken promise is
 * known by the word behind its assertion.
 */
#include "switches.pml"

#define BIT(e)      (1 << (e))
#define HAS(set, e) ((set) & BIT(e))
#define BELOW(e)    (BIT(e) - 1)
#define AGG(e)      ((e) % AGGREGATES)
#define LANE(e)     (AGG(e) % LANES)            /* rows.py: fixed for ever (A5) */
#define SAME(e)     ((AGGREGATES == 1 -> 63 : (AGGREGATES == 2 -> 21 : 9)) << AGG(e))
#define OLDER(e)    (SAME(e) & BELOW(e))
#define COMMITTED   (pending | published | failed | forgotten | undone)
#define NOBODY      255
#define HOLDS(l)    (owner[l] == me && R.token[l])
#define R           relay[me]
#define MISTAKEN(l) (R.lanes[l] == STALE)
#define UNTRIED     (R.hand & ~(R.accepted | R.refused | R.unknown))

/* The tables. An event that is in none of the sets is not committed. */
byte pending, published, failed, forgotten, undone, waiting, attempts[EVENTS];
byte owner[LANES] = NOBODY;
/* The sink, and what the invariants must know of the past. */
byte seen, ever_failed, duplicates_left, faults = FAULTS, persons = PERSONS;
/* A relay: `lanes` is what it believes to hold (RelayState.lanes), `token` is what its batch was
 * claimed under (Worker._tokens). The database never gives a token twice and they are compared for
 * equality alone, so all that matters is whether one is the lane's current one. */
#define CURRENT 2
#define STALE   1
mtype = { idle, leased, publishing, settling };
typedef RelayState {
    mtype phase = idle;
    byte lanes[LANES], hand, accepted, refused, unknown;
    bit token[LANES];
    byte floor[LANES], known[AGGREGATES], cursor  /* floors.py: _settled, _aggregates */
}
RelayState relay[RELAYS];
hidden byte e, l, n, low;

/* SqlOutbox.claim: may this event be in a batch? `low` is the floor to start from. */
#define READY(e, low) (e < EVENTS && HAS(pending, e) \
    && (CLAIM == 1 -> !HAS(relay[RELAYS - 1 - me].hand, e) : R.lanes[LANE(e)]) \
    && !(waiting & (OLDER(e) | BIT(e))) && !(PARK && (failed & SAME(e))) \
    && (CLAIM != 2 || e >= R.cursor) && e >= low \
    && (FLOOR < 2 || !(pending & SAME(e) & BELOW(low) & ~BELOW(R.known[AGG(e)]))))  /* _late */
#define FROM_START(e) READY(e, 0)
#define FROM_FLOOR(e) READY(e, R.floor[LANE(e)])
#define ANY(is) (is(0) || is(1) || is(2) || is(3) || is(4) || is(5))

inline claim(use_floor) {
    for (e : 0 .. EVENTS - 1) {
        low = (use_floor -> R.floor[LANE(e)] : 0);
        if
        :: READY(e, low) && n < WINDOW ->
            R.hand = R.hand | BIT(e); n++; R.cursor = (CLAIM == 2 -> e + 1 : 0);
            R.floor[LANE(e)] = (R.floor[LANE(e)] > e -> e : R.floor[LANE(e)])  /* Floors.found */
        :: else
        fi
    }
    for (l : 0 .. LANES - 1) { R.token[l] = (R.lanes[l] == CURRENT) }
    n = 0;
    R.phase = (SETTLE_FIRST -> settling : publishing);
    R.accepted = (SETTLE_FIRST -> R.hand : 0)
}

/* The sink takes e. Duplicates are within their bound (G4); whatever is older in the aggregate has
 * arrived, or was rolled back or given up (G3). */
inline deliver() {
    if
    :: HAS(seen, e) -> assert(duplicates_left); duplicates_left--       /* duplicates */
    :: else ->
        assert(!(OLDER(e) & ~(seen | undone | (PARK -> 0 : ever_failed))));     /* order */
        assert(!(STRICT && (seen & SAME(e) & ~BELOW(e)) && !HAS(undone, e)));   /* order */
        seen = seen | BIT(e)
    fi
}

/* EventPublisher.publish_all, event by event: behind one not accepted, its aggregate stops. */
inline publish() {
    d_step {
        e = 0;
        do
        :: HAS(UNTRIED, e) -> break
        :: else -> e++
        od;
        skip
    }
    if
    :: OLDER(e) & (R.refused | R.unknown) -> R.unknown = R.unknown | BIT(e)
    :: else ->
        if
        :: d_step { deliver(); R.accepted = R.accepted | BIT(e) }
        :: RETRIES -> R.refused = R.refused | BIT(e)
        :: faults -> faults--; duplicates_left++; R.unknown = R.unknown | BIT(e);
            if
            :: d_step { deliver() }     /* it arrived, its acknowledgement did not */
            :: skip
            fi
        fi
    fi
    e = 0
}

/* SqlOutbox.settle: only pending rows change, and only under a token that stands (A6). Then nobody
 * else has touched them (G6); without tokens, the row of an acknowledged event has not failed. */
inline settle(outcomes) {
    for (e : 0 .. EVENTS - 1) {
        if
        :: HAS(outcomes, e) && (!TOKEN || HOLDS(LANE(e))) ->
            assert(PERSONS || !TOKEN || HAS(pending, e));                       /* fence */
            assert(!HAS(R.accepted, e) || !HOLDS(LANE(e)) || !HAS(failed, e));  /* fence */
            if
            :: HAS(pending, e) && HAS(R.accepted, e) ->
                assert(HAS(seen, e) || SETTLE_FIRST);                           /* loss */
                pending = pending & ~BIT(e); published = published | BIT(e)
            :: HAS(pending, e) && HAS(R.refused, e) && attempts[e] + 1 < RETRIES ->
                attempts[e]++; waiting = waiting | BIT(e)
            :: HAS(pending, e) && HAS(R.refused, e) && attempts[e] + 1 >= RETRIES ->
                pending = pending & ~BIT(e);
                failed = failed | BIT(e); ever_failed = ever_failed | BIT(e)
            :: else
            fi
        :: else
        fi
    }
}

/* Floors.settled: told of each batch, also if its rows were another's by then. */
inline remember() {
    for (e : 0 .. EVENTS - 1) {
        if
        :: FLOOR && HAS(R.accepted | R.refused, e) ->
            R.floor[LANE(e)] = (R.floor[LANE(e)] > e + 1 -> R.floor[LANE(e)] : e + 1);
            R.known[AGG(e)] = e + 1
        :: else
        fi
    }
    for (e : 0 .. EVENTS - 1) {
        if
        :: FLOOR && HAS(R.unknown | (FLOOR == 3 -> 0 : R.refused), e) ->
            R.known[AGG(e)] = 0;
            R.floor[LANE(e)] = (R.floor[LANE(e)] > e -> e : R.floor[LANE(e)])
        :: else
        fi
    }
}

inline put_down() {
    R.hand = 0; R.accepted = 0; R.refused = 0; R.unknown = 0; R.phase = idle;
    for (l : 0 .. LANES - 1) { R.token[l] = 0 }
}

active [RELAYS] proctype working() {  /* OutboxRelay and its Worker */
    byte me = _pid;
end:
    do
    /* SqlOutbox.lease, first half: renew what is still its own, see what is not */
    :: d_step { R.phase == idle || MISTAKEN(0) || MISTAKEN(LANES - 1) ->
        for (l : 0 .. LANES - 1) {
            if
            :: owner[l] == me -> R.lanes[l] = CURRENT
            :: else -> R.lanes[l] = 0; R.floor[l] = 0
            fi
        }
        R.phase = (R.phase == idle -> leased : R.phase) }
    :: d_step { R.phase == leased && ANY(FROM_START) -> claim(false) }
    :: d_step { FLOOR && R.phase == leased && ANY(FROM_FLOOR) -> claim(true) }
    :: atomic { R.phase == publishing && UNTRIED -> publish() }
    :: d_step { R.phase == publishing && !UNTRIED ->
        if
        :: SETTLE_FIRST -> put_down()
        :: else -> settle(R.accepted); R.phase = settling
        fi }
    :: d_step { R.phase == settling ->
        if
        :: SETTLE_FIRST -> settle(R.accepted); R.accepted = 0; R.phase = publishing
        :: else -> settle(R.refused); remember(); put_down()
        fi }
    /* a crash; who comes after it is a new relay */
    :: d_step { faults && R.phase != idle ->
        faults--; duplicates_left = duplicates_left + (R.hand -> WINDOW : 0);
        put_down();
        for (l : 0 .. LANES - 1) {
            owner[l] = (owner[l] == me -> NOBODY : owner[l]); R.lanes[l] = 0; R.floor[l] = 0
        }
        for (e : 0 .. AGGREGATES - 1) { R.known[e] = 0 }
        skip }
    od
}

/* SqlOutbox.lease, second half: take a lane that is free, or whose lease has run out. A lease that
 * runs out and is renewed before anybody has seen it changes nothing, so this is the only step. */
#define CAN_TAKE(by) (CLAIM != 1 && by < RELAYS && owner[lane] != by \
    && (owner[lane] == NOBODY || faults))
inline take(by) {
    if
    :: owner[lane] != NOBODY -> faults--; duplicates_left = duplicates_left + WINDOW
    :: else
    fi;
    for (n : 0 .. RELAYS - 1) {
        relay[n].token[lane] = 0;
        relay[n].lanes[lane] = (relay[n].lanes[lane] -> STALE : 0)
    }
    n = 0; owner[lane] = by; relay[by].lanes[lane] = CURRENT; relay[by].floor[lane] = 0
}

active [LANES] proctype leases() {
    byte lane = _pid - RELAYS;
end:
    do
    :: d_step { CAN_TAKE(0) -> take(0) }
    :: d_step { CAN_TAKE(1) -> take(1) }
#if RELAYS > 2
    :: d_step { CAN_TAKE(2) -> take(2) }
#endif
    :: d_step { faults && owner[lane] != NOBODY && relay[owner[lane]].phase == leased ->
        faults--; relay[owner[lane]].lanes[lane] = 0; owner[lane] = NOBODY }
    od
}

active [EVENTS] proctype rows() {
    byte at = _pid - RELAYS - LANES;
end:
    do      /* A4: whoever changes an aggregate waits for whoever changed it before */
    :: d_step { !HAS(COMMITTED, at) && (UNSERIALISED || !(OLDER(at) & ~COMMITTED)) ->
        pending = pending | BIT(at) }
    :: d_step { ROLLBACKS && !HAS(COMMITTED, at) -> undone = undone | BIT(at) }
    :: d_step { HAS(waiting, at) -> waiting = waiting & ~BIT(at) }
    :: d_step { FORGET && HAS(published | (FORGET == 2 -> pending : 0), at) ->
        published = published & ~BIT(at); pending = pending & ~BIT(at);
        waiting = waiting & ~BIT(at); forgotten = forgotten | BIT(at) }
    :: d_step { persons && HAS(failed, at) ->               /* OutboxRepair.retry */
        persons--; failed = failed & ~BIT(at); pending = pending | BIT(at); attempts[at] = 0 }
    :: d_step { persons && HAS(failed, at) ->               /* OutboxRepair.discard */
        persons--; failed = failed & ~BIT(at); undone = undone | BIT(at) }
    od
}

/* When all trouble is over and nothing can move, everything is settled (G2, G8). */
active proctype judge() {
    do
    :: d_step { faults -> faults = 0 }
    :: timeout -> break
    od;
    skip;
    d_step {
        assert(!((published | forgotten) & ~seen));                             /* loss */
        for (e : 0 .. EVENTS - 1) {
            assert(HAS(COMMITTED, e));                                          /* drains */
            assert(!HAS(pending, e) || (PARK && (failed & SAME(e))))            /* drains */
        }
        skip
    }
}
