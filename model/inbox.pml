/* The inbox: one event, delivered twice, to consumers that may crash. How often has it an effect?
 *
 * A delivery that is not acknowledged comes again. Each step is one statement or one message, and a
 * crash may come before any of them. What can be switched is in variants.py.
 */
#ifndef WRAPPER
#define WRAPPER 4   /* 1 check, handle, mark; 2 mark, handle; 3 acknowledge, then 4; 4 SqlInbox */
#endif
#ifndef PRUNE
#define PRUNE 0     /* 1: marks are forgotten while the event can still come again */
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#define NOBODY 255

byte effects, crashes = CRASHES, done, writing = NOBODY;
bool marked;

#define OR_CRASH :: d_step { crashes -> crashes-- } goto crashed

active [2] proctype consumer() {
    bool first, acknowledged;
again:
    if
    :: WRAPPER == 1 ->      /* CheckThenMark.once */
        first = !marked;
        if :: first -> if :: effects++ OR_CRASH fi; if :: marked = true OR_CRASH fi :: else fi
    :: WRAPPER == 2 ->
        d_step { first = !marked; marked = true }
        if :: first -> if :: effects++ OR_CRASH fi :: else fi
    :: WRAPPER >= 3 ->
        if :: WRAPPER == 3 -> acknowledged = true :: else fi;
        /* The insert waits for another's that is not committed, and then sees it, or is first. */
        if
        :: d_step { writing == NOBODY -> first = !marked; writing = (first -> _pid : NOBODY) }
        OR_CRASH
        fi;
        if
        :: first -> if :: d_step { marked = true; effects++; writing = NOBODY } OR_CRASH fi
        :: else
        fi
    fi;
    if :: acknowledged = true OR_CRASH fi;
    goto acked;
crashed:    /* the database rolls back what was not committed */
    writing = (writing == _pid -> NOBODY : writing);
    if :: !acknowledged -> goto again :: else fi;
acked:
    done++
}

active proctype pruning() {
end: do
    :: PRUNE && marked -> marked = false
    od
}

active proctype judge() {
    done == 2;
    c_code { printf("effects: %s\n", now.effects > 1 ? "more" : now.effects ? "1" : "0"); }
}
