//! The cost of one `emit`.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench emit
//! ```
//!
//! Each batch of a case is one async block with a loop of `emit(..).await`. The block is polled once with a waker that
//! does nothing, because no emit has to wait. Peers are measured in the same way. Emitters, payloads, and string
//! literals that are used as names pass through `black_box`; an `EventName` is a `const`, as in programs.

use std::hint::black_box;
use std::time::Duration;

use emitree::{AnyEvent, Emitter, EventName, Matcher};
use serde::{Deserialize, Serialize};

use crate::support::{Case, Id, Suite, timed};
use crate::threads::on_threads;

#[path = "support/peers.rs"]
mod peers;
mod support;
#[path = "support/threads.rs"]
mod threads;

const COLUMNS: &[&str] = &["emitree", "floor", "broadcast", "tracing", "async-event-emitter", "rs_events"];
const NEW_TOKEN: EventName = EventName::new("new_token");

/// The payload that emitree and the peers emit.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Tick {
    n: u64,
}

fn main() {
    let mut suite = Suite::new(COLUMNS);
    let floor1 = suite.case(on_floor(1));
    nobody(&mut suite, floor1);
    only_other_names(&mut suite, floor1);
    let w1 = one(&mut suite, floor1);
    ten(&mut suite);
    hundred(&mut suite, w1, floor1);
    bubbling(&mut suite, w1, floor1);
    patterns(&mut suite, w1, floor1);
    awaited(&mut suite, w1, floor1);
    threads(&mut suite);
    suite.run();
}

/// W0.
fn nobody(suite: &mut Suite, floor1: Id) {
    let by_name = suite.case(by_name(deep().0));
    let by_string = suite.case(by_string(deep().0));
    let peers = Peers { listeners: &[], tracing: peers::on_deaf_tracing }.cases(suite);
    let row = suite.row("W0", "no listeners on four levels: `EventName`", by_name);
    peers.beside(row).beside("floor", floor1).at_most(1.6, "floor 1", floor1);
    suite.row("", "… string", by_string).beside("floor", floor1).at_most(1.6, "floor 1", floor1);
}

/// W0b.
fn only_other_names(suite: &mut Suite, floor1: Id) {
    let others = ["start", "update", "success", "finish"];
    let emitter = || {
        let emitter = deep().0;
        for other in others {
            listen(&emitter, other);
        }
        emitter
    };
    let (by_name, by_string) = (suite.case(by_name(emitter())), suite.case(by_string(emitter())));
    let peers = Peers { listeners: &others.map(|name| (name, 1)), tracing: peers::on_deaf_tracing }.cases(suite);
    let row = suite.row("W0b", "only other names have listeners: `EventName`", by_name);
    peers.beside(row).beside("floor", floor1).at_most(3.0, "floor 1", floor1);
    suite.row("", "… string", by_string).beside("floor", floor1).at_most(5.0, "floor 1", floor1);
}

/// W1.
fn one(suite: &mut Suite, floor1: Id) -> Id {
    let (w1, by_string) = (suite.case(by_name(heard_by(1))), suite.case(by_string(heard_by(1))));
    let peers = Peers { listeners: &[("new_token", 1)], tracing: peers::on_tracing }.cases(suite);
    let row = suite.row("W1", "one sync listener: `EventName`", w1);
    peers.beside(row).beside("floor", floor1).at_most(4.0, "floor 1", floor1);
    suite.row("", "… string", by_string).beside("floor", floor1).at_most(7.0, "floor 1", floor1);
    w1
}

/// W10.
fn ten(suite: &mut Suite) {
    let (w10, floor10) = (suite.case(by_name(heard_by(10))), suite.case(on_floor(10)));
    let peers = Peers { listeners: &[("new_token", 10)], tracing: peers::on_tracing }.cases(suite);
    let row = suite.row("W10", "ten listeners", w10);
    peers.beside(row).beside("floor", floor10).at_most(3.0, "floor 10", floor10);
}

/// W100.
fn hundred(suite: &mut Suite, w1: Id, floor1: Id) {
    let names: Vec<String> = (0..99).map(|i| format!("other_{i}")).collect();
    let emitter = heard_by(1);
    for name in &names {
        listen(&emitter, name);
    }
    let w100 = suite.case(by_name(emitter));
    let mut listeners: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    listeners.push(("new_token", 1));
    let peers = Peers { listeners: &listeners, tracing: peers::on_tracing }.cases(suite);
    let row = suite.row("W100", "a hundred listeners, one matches", w100);
    peers.beside(row).beside("floor", floor1).at_most(1.2, "W1", w1);
}

/// WP.
fn bubbling(suite: &mut Suite, w1: Id, floor1: Id) {
    let (leaf, root) = deep();
    root.on("*.*", |event: &mut dyn AnyEvent, _| bump(event)).expect("a valid matcher");
    let wp = suite.case(by_name(leaf));
    let dispatch = peers::tracing_layers(1);
    let spans = suite.case(move |n| peers::on_tracing_spans(&dispatch, n));
    let row = suite.row("WP", "an emit four levels deep, one `*.*` listener on the root", wp);
    row.beside("floor", floor1).beside("tracing", spans).at_most(1.3, "W1", w1);
}

/// WM. The peers do not have patterns.
fn patterns(suite: &mut Suite, w1: Id, floor1: Id) {
    let seen = suite.case(by_name(thousand_patterns()));
    let new = suite.case(by_new_names(thousand_patterns()));
    let row = suite.row("WM", "1,000 globs and regexes, three match: a path seen before", seen);
    row.beside("floor", floor1).at_most(2.0, "W1", w1);
    let row = suite.row("", "… a new path each time", new);
    row.beside("floor", floor1).at_most(150.0, "floor 1", floor1);
}

/// WA.
fn awaited(suite: &mut Suite, w1: Id, floor1: Id) {
    let emitter = Emitter::new();
    let add = |tick: &mut Tick| tick.n = tick.n.wrapping_add(1);
    let listening = emitter.on_async("new_token", move |tick: &mut Tick, _| {
        Box::pin(async move {
            add(tick);
            Ok(())
        })
    });
    listening.expect("a valid matcher");
    let wa = suite.case(by_name(emitter));
    let peer = peers::async_event_emitter(&[("new_token", 1)]);
    let peer = suite.case(move |n| peers::on_async_event_emitter(&peer, n));
    let row = suite.row("WA", "one `on_async` listener; the time is read before the await", wa);
    row.beside("floor", floor1).beside("async-event-emitter", peer).at_most(3.0, "W1", w1);
}

/// WC. Each thread has its own payload; the threads share the emitter.
fn threads(suite: &mut Suite) {
    let one = Threads(1).cases(suite);
    let two = Threads(2).cases(suite);
    for (peers, name, what) in [
        (&one, "", "one listener, on a thread started for each batch"),
        (&two, "WC", "the same on two threads at a time"),
    ] {
        let mut row = suite.row(name, what, peers[0]);
        for (column, peer) in COLUMNS.iter().zip(peers).skip(1) {
            row = row.beside(column, *peer);
        }
        if name == "WC" {
            row.at_most(1.15, "one thread", one[0]);
        }
    }
}

/// Makes the cases whose batches run on this number of threads.
struct Threads(usize);

impl Threads {
    /// Adds a case for each column.
    fn cases(&self, suite: &mut Suite) -> Vec<Id> {
        let threads = self.0;
        let (emitter, floor) = (heard_by(1), peers::floor(1));
        let (channel, dispatch) = (tokio::sync::broadcast::channel(1024).0, peers::tracing_layers(1));
        let listeners = &[("new_token", 1)];
        let (async_peer, rs_peer) = (peers::async_event_emitter(listeners), peers::rs_events(listeners));
        vec![
            suite.case(move |n| on_threads(threads, || emit_by_name(&emitter, n))),
            suite.case(move |n| on_threads(threads, || peers::on_floor(&floor, n))),
            suite.case(move |n| on_threads(threads, || peers::on_shared_broadcast(&channel, n))),
            suite.case(move |n| on_threads(threads, || peers::on_tracing(&dispatch, n))),
            suite.case(move |n| on_threads(threads, || peers::on_async_event_emitter(&async_peer, n))),
            suite.case(move |n| on_threads(threads, || peers::on_rs_events(&rs_peer, n))),
        ]
    }
}

/// Makes the cases of the peers for one row.
struct Peers<'a> {
    /// Names, each with its number of listeners.
    listeners: &'a [(&'a str, usize)],
    tracing: fn(&tracing::Dispatch, u64) -> Duration,
}

struct PeerCases([(&'static str, Id); 4]);

impl Peers<'_> {
    fn cases(&self, suite: &mut Suite) -> PeerCases {
        let matching = self.listeners.iter().filter(|(name, _)| *name == "new_token").map(|(_, n)| n).sum::<usize>();
        let channel = tokio::sync::broadcast::channel(16).0;
        let (dispatch, on_tracing) = (peers::tracing_layers(matching.max(1)), self.tracing);
        let (async_peer, rs_peer) = (peers::async_event_emitter(self.listeners), peers::rs_events(self.listeners));
        PeerCases([
            ("broadcast", suite.case(move |n| peers::on_broadcast(&channel, matching, n))),
            ("tracing", suite.case(move |n| on_tracing(&dispatch, n))),
            ("async-event-emitter", suite.case(move |n| peers::on_async_event_emitter(&async_peer, n))),
            ("rs_events", suite.case(move |n| peers::on_rs_events(&rs_peer, n))),
        ])
    }
}

impl PeerCases {
    fn beside<'a>(&self, row: support::Filling<'a>) -> support::Filling<'a> {
        self.0.iter().fold(row, |row, (column, peer)| row.beside(column, *peer))
    }
}

fn on_floor(closures: usize) -> impl Case {
    let floor = peers::floor(closures);
    move |n| peers::on_floor(&floor, n)
}

fn by_name(emitter: Emitter) -> impl Case {
    move |n| emit_by_name(&emitter, n)
}

fn emit_by_name(emitter: &Emitter, n: u64) -> Duration {
    timed(async {
        let mut tick = Tick::default();
        for _ in 0..n {
            black_box(emitter).emit(NEW_TOKEN, black_box(&mut tick)).await.expect("no listener fails");
        }
    })
}

fn by_string(emitter: Emitter) -> impl Case {
    move |n| {
        timed(async {
            let mut tick = Tick::default();
            for _ in 0..n {
                let emitted = black_box(&emitter).emit(black_box("new_token"), black_box(&mut tick)).await;
                emitted.expect("no listener fails");
            }
        })
    }
}

/// Emits a new name each time. The names are created before the clock starts.
fn by_new_names(emitter: Emitter) -> impl Case {
    let mut made = 0_u64;
    move |n| {
        let names: Vec<String> = (made..made + n).map(|i| format!("new_token_{i}")).collect();
        made += n;
        timed(async {
            let mut tick = Tick::default();
            for name in &names {
                black_box(&emitter).emit(name, black_box(&mut tick)).await.expect("no listener fails");
            }
        })
    }
}

/// Returns the leaf and the root of a tree of four levels.
fn deep() -> (Emitter, Emitter) {
    let root = Emitter::new();
    let leaf = ["backend", "chat", "model"]
        .into_iter()
        .fold(root.clone(), |parent, name| parent.child(name).expect("a valid name"));
    (leaf, root)
}

/// Makes an emitter with this number of listeners for `new_token`.
fn heard_by(listeners: usize) -> Emitter {
    let emitter = Emitter::new();
    for _ in 0..listeners {
        listen(&emitter, "new_token");
    }
    emitter
}

/// Makes an emitter with 500 globs and 500 regexes. Two globs and one regex match `new_token…`.
fn thousand_patterns() -> Emitter {
    let emitter = Emitter::new().child("backend").expect("a valid name");
    let globs = (0..498).map(|i| format!("backend.*.tool_{i}*")).chain(["new_*".into(), "**.new_token*".into()]);
    for glob in globs {
        listen(&emitter, &glob);
    }
    let regexes = (0..499).map(|i| format!(r"^backend\.tool_{i}_[a-z]+$")).chain([r"\.new_[a-z]+".into()]);
    for regex in regexes {
        let matcher = Matcher::regex(&regex).expect("a valid regex");
        emitter.on(matcher, |tick: &mut Tick, _| tick.n = tick.n.wrapping_add(1)).expect("a valid matcher");
    }
    emitter
}

fn listen(emitter: &Emitter, matcher: &str) {
    emitter.on(matcher, |tick: &mut Tick, _| tick.n = tick.n.wrapping_add(1)).expect("a valid matcher");
}

fn bump(event: &mut dyn AnyEvent) {
    if let Some(tick) = event.downcast_mut::<Tick>() {
        tick.n = tick.n.wrapping_add(1);
    }
}
