//! One tenant, one CPU budget, many processes.
//!
//! A limit of `quotient` holds in one process. Here a tenant's limit holds for all processes of a fleet together: it lives in a
//! store (Valkey or Redis), each process leases a part of it ahead of need and gives its own group an ordinary limit of that size. The
//! store is never asked on the way to a poll.
//!
//! This part is policy: no clock, no I/O, no threads; time comes in, decisions go out, so that the simulation and the
//! store's own function decide alike.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | quota Q, burst B | the limit: CPU time a second for the whole fleet, and how much of it may be saved up |
//! | lease | (amount, duration 5/8 L, sequence): CPU time that one process may use until the duration ends; L is the limit's [`FleetLimit::lease`] |
//! | pool T | in the store: what may be granted |
//! | held O | in the store: the most that processes can still hold, the sum over leases that last |
//! | demand | what a process would use if nothing held it back: a moving average of charged and throttled time |
//! | floor | what a process may use without any lease; reserved beforehand, 5 % of Q for all together |
//!
//! # The protocol
//!
//! 1. A process that begins, or whose demand grew or fell by much, or whose last request is three eighths of L ago, sends a [`Request`]: how much it has used in
//!    all, how much of its lease it keeps, its demand. What it does not keep it has given up *before* it sends.
//! 2. The store, atomically, with its own clock ([`Tenant::ask`]):
//!    refills `T += Q * passed`; ends leases (`O -= held`; what they did not use is lost); takes the process's old lease off the
//!    books (`O -= held`) and what was neither used nor kept back into the pool (`T += held - used - left`); puts the demand in
//!    its bucket and finds the max-min level of `Q + 4 T / L` over all demands; grants `min(T, share * 5/8 L - left)`, which moves from T
//!    to O with what is kept; and then holds `T + O <= B + Q * L`.
//! 3. The process adds the amount to what it has left and spreads it over the lease, whose end it counts from before it sent
//!    the request, on a clock that runs on while the machine sleeps. Only the answer to its last request counts, once.
//!
//! When a process asks and how much it asks for is not part of the proof, so both are chosen for use: a demand that is new is leased for as
//! if the lease were an eighth as long, and each renewal doubles that, so that a burst strands little; who holds a sixteenth of the capacity
//! or more is told to ask again as soon as refills no longer fit in; who needs less than half of its floor does not ask at all.
//!
//! # Why no window sees more than Q * W + B + Q * L, and the floors
//!
//! Let `o(t)` be what processes really hold and may still use. Three facts:
//!
//! - **`o <= O` at every moment.** A grant adds to both. Use lowers only `o`. The store lowers O by a process's lease only when the
//!   process said that it holds less (it gave that up before it said so), or when the lease has ended by the store's clock. By then it has
//!   ended for the process: the process counts the same duration from an earlier moment (clocks need not agree, they need to run at the
//!   same speed). What a process says that it keeps is counted as far as it can be true: no more than it was known to hold.
//! - **`T + O <= B + Q * L`** is enforced after every call; between calls T does not move.
//! - **T changes by refills, grants and returns only**, and a return is held by somebody just before. So what is granted in a window,
//!   less what comes back in it, is at most `T + Q * W`.
//!
//! What is used in a window `[a, b]` was held at `a` or granted in it and not returned:
//!
//! ```text
//!     used  <=  o(a) + T(a) + Q * W  <=  Q * W + B + Q * L
//! ```
//!
//! Beside it each process may use its floor, and one second's floor that it has saved up: `Q / 20` for all. Where Q, B or L was changed in the
//! window or one old lease before it, Q * W is its integral, and B + Q * L the largest one. (A store that forgets just after L was made shorter is quiet for the
//! new lease only: leases of the old one are beyond this bound.) What polls under way, or a local limit's period, let through beyond a
//! lease is owed and paid out of the next one.
//!
//! # What each failure does
//!
//! | failure | effect |
//! |---|---|
//! | a request, or its answer, is lost | the next request says what is really held: an amount that never arrived returns to the pool |
//! | it arrives twice | the second is answered as the first, and the process takes one answer |
//! | it arrives after a later one | refused as stale, by its sequence number |
//! | a process dies | its lease ends; what it did not use of it is lost |
//! | a process is paused | its clock runs on: its lease has ended when it goes on, or the store still holds it in O |
//! | the store is away | leases run out, then floors; never blocked, never unlimited |
//! | the store forgets (empty key, another run, its clock went back by more than a lease) | nothing is granted while a lease lasts, 5/8 L, after which nothing granted before can be left; a process tells it the limit |
//! | the store forgets, and who asks first has never known the limit | it is told "unknown", and stays on its floor (below) |
//! | the store forgets, and nobody is left who knows the limit | after [`MEMORY_SETTLES`] it is none; with [`FleetBuilder::strict`], floors until somebody sets it |
//! | the store is restored from an older state by a restart, or was a replica of another server since | the same: another life. Otherwise see below |
//! | `:processes` or `:ends` of a tenant is gone (evicted, deleted) | the same: the first key counts what the others hold |
//! | `:tenant` is gone, and the others are not | an error to who knows no limit, and floors; who knows it is reminded once, by another memory, and its next request mends the key, as does setting the limit |
//! | an operator sets a limit after the store forgot, and a process knows one of a later version, of a clock that was ahead | the operator's holds, in that life of the store, and gets a version later still |
//! | a connection goes dead without a word (a host lost, a dropped translation of addresses) | replaced 2 s after the first call that it swallowed; floors meanwhile |
//! | a connection takes longer to be made than anybody waits for an answer | it is made on, up to 2 s for each part, and kept |
//! | a process ends in order (`Fleet::leave`) | lease and floor return at once |
//! | a tenant's group is removed and made again, again and again | one floor for all of them, and lease and debt go on (`holder::again`); each begins with 1 ms, which is owed |
//! | a field of a key, or a process's record, is not what was written, or a moment far ahead | an error that names it, never "no limit"; floors, until somebody sets the limit anew, which mends the key and is quiet as long as the longest lease lasts, 75 s |
//! | a process knows a limit whose version lies a day ahead of the store's clock, and the store has none | an error that says so; floors, until somebody sets it anew |
//! | the store is too slow for all requests of a round trip | fewer in the next, by turns, until they are answered in time; leases of the others may run out meanwhile |
//! | the store cannot write (a replica, out of memory) | an error; leases run out, then floors |
//! | the limit is written again and again | T stays, only the cap moves: lowering may leave a debt, of what one lease earns at most, raising gives nothing |
//! | a process says that it keeps what it cannot hold, or keeps something and wants nothing | counted as what it can hold; refused, with an error |
//! | a request arrives after its process has left | refused as stale for as long as a lease lasts; after that it is a newcomer's |
//! | a first replica comes, or the backlog for the last one is freed (an hour after it has gone: after a failover, for instance) | nothing, where somebody asks or looks every 0.9 s; otherwise another life |
//! | the store's clock jumps ahead | the one thing that mints: a refill up to the cap, B + Q * L, once a jump |
//!
//! # What is not covered
//!
//! | failure | effect |
//! |---|---|
//! | older data in the same life of a server (`SWAPDB`, `RESTORE`, `DEBUG RELOAD NOSAVE`) | nothing says so, and nothing is quiet: each mints up to one capacity, B + Q * L. What comes by `REPLICAOF` is another life |
//! | all three keys of a tenant are deleted, or evicted by a server that was told `allkeys-*` and told otherwise again before anybody looked | as if it had never been set: "no limit", until a process that knows it asks |
//! | the limit's lease is made shorter, and the store forgets before the leases of before have ended | it is quiet for the new lease only: what is left of the old ones is beyond the bound |
//! | in a cluster `:tenant` alone is deleted | an error for newcomers, which stay on their floors; but who knows the limit and rests is not reminded |
//! | a round trip takes longer than a quarter of the lease, or than 2 s | no lease: each answer comes when nobody waits any more. At 300 ms a lease of 1.2 s is the shortest |
//! | processes are killed faster than [`FLOOR_LIFE`] | floors stay with the dead for an hour after their lease: newcomers have none beyond the limit's `processes`. Who ends with `Fleet::leave` gives it back |
//! | a process, or whoever has `FCALL`, lies about what it used, or leaves in another's name | it is believed: processes are trusted, and so are those who write to the keys within their ranges |
//! | what answers in the store's place sends without end | the client crate reads it: the process grows by what is sent, to half a GiB in 12 s from a neighbour |
//! | another `format` in `:tenant` | an error, also to who sets the limit: a later release may have written it. Who knows better deletes the key |
//! | the server's `INFO` hides its run id (by code) | each life is the same: restores by a restart go unseen, too |
//!
//! # What a store is believed that knows no limit
//! A store that knows no limit of a tenant may have been told none, or have forgotten it. It cannot know which, but knows since when it
//! has remembered all that it was told: a key beside the tenants', of its life and a moment, which whoever finds it missing or of another life
//! writes anew (in a cluster, the moment when the node began). Memory has three states:
//!
//! | state | begins | who knows no limit is answered |
//! |---|---|---|
//! | young | with each life of the server, when the key is lost (emptied, another's snapshot, a failover), when the clock went back behind it | [`Reply::Unknown`]: it stays as it is, a newcomer on its floor, and asks again each second while it has work |
//! | settled | [`MEMORY_SETTLES`], 30 s, later; or when an operator says so (`quotient fleet confirm`) | "no limit" |
//! | leaking | while the server may evict keys that do not expire | [`Reply::Unknown`], always |
//!
//! Limits come back from who knows them. Each request tells the newest limit that its process knows, by its version; and processes look at the memory
//! every ten seconds, a third of the time in which it settles: when it is another one they tell the limits of tenants that rest, too. So while
//! one process that knows a limit reaches the store within 20 s of its loss, nobody runs without it. "No limit" that was *set* is a limit like
//! others, with a version, and believed at once.
//!
//! A store's clock that jumps ahead by as much settles its memory early.
//!
//! A truly new store is young as well: tenants with a limit run from the moment it is set, the others on floors for 30 s, once. All processes
//! and the store restarted at the same time, without persistence, is the same case: nobody knows anything. Where floors are better than
//! freedom then, [`FleetBuilder::strict`] never believes what nobody said.
//!
//! # Complexity
//! A call is O(log processes): one ordered map of ends, and buckets of demands in place of the demands (`demands`). A process asks
//! three times a lease, at most eight times while its demand changes (of a new demand: of the shorter lease), and sixteen times if it is one of the
//! at most sixteen that hold a sixteenth of the capacity; idle ones do not ask.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod agent;
#[cfg(feature = "client")]
mod clock;
mod demand;
mod demands;
mod holder;
mod limit;
mod message;
#[cfg(unix)]
pub mod private_server;
#[cfg(feature = "client")]
mod redis;
mod rhythm;
pub mod simulation;
mod store;
mod tenant;
mod units;

#[cfg(feature = "client")]
pub use self::{
    agent::{Fleet, FleetBuilder, FleetError, FleetFigures, LEAVES_WITHIN, TenantStats},
    redis::{LISTED_MAX, RedisStore},
};
pub use self::{
    holder::{Allowance, Holder, HolderFigures, Settings},
    limit::{FleetLimit, FleetLimitError},
    message::{Grant, ProcessId, Reply, Request},
    store::{MEMORY_SETTLES, MemoryStore, Store, StoreError},
    tenant::{ENDED_PER_CALL_MAX, FLOOR_LIFE, Tenant, TenantFigures, VERSION_AHEAD_MAX},
    units::{MicroCpus, Micros},
};
