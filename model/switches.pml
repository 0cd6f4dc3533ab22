/* What a variant may switch, and what it is otherwise. */
#ifndef RELAYS
#define RELAYS 2
#endif
#ifndef EVENTS
#define EVENTS 4
#endif
#ifndef AGGREGATES
#define AGGREGATES 2
#endif
#ifndef LANES
#define LANES 2
#endif
#ifndef WINDOW
#define WINDOW 2        /* RelayConfig.batch_size */
#endif
#ifndef FAULTS
#define FAULTS 2        /* crashes, leases that run out, lanes given back, unknown outcomes */
#endif
#ifndef RETRIES
#define RETRIES 0       /* refusals until an event fails; 0: the sink refuses nothing */
#endif
#ifndef PERSONS
#define PERSONS 0       /* how often a person may retry or discard a failed event */
#endif
#ifndef PARK
#define PARK 0          /* 1: behind a failed event its aggregate waits; 0: it goes on */
#endif
#ifndef TOKEN
#define TOKEN 1         /* 0: settling does not ask who holds the lane */
#endif
#ifndef FLOOR
#define FLOOR 0         /* 1: a floor alone; 2: with the probe; 3: the probe trusts failed events */
#endif
#ifndef CLAIM
#define CLAIM 0         /* 1: single rows, not lanes; 2: what lies behind a cursor */
#endif
#ifndef SETTLE_FIRST
#define SETTLE_FIRST 0
#endif
#ifndef UNSERIALISED
#define UNSERIALISED 0  /* 1: producers of one aggregate do not wait for each other (not A4) */
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0
#endif
#ifndef FORGET
#define FORGET 0        /* 1: published rows are deleted; 2: any row is */
#endif
#ifndef STRICT
#define STRICT 0        /* 1: order is asked for even of events that have failed */
#endif
