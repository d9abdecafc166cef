//! The libraries that people use instead of emitree's emitter, each used as its documentation shows. Every listener
//! adds to a number: in the payload if the listener receives it by `&mut`, otherwise in a thread-local.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_event_emitter::AsyncEventEmitter;
use rs_events::{EventEmitter, EventHandler};
use tokio::sync::broadcast;
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::Tick;
use crate::support::timed;

thread_local! {
    static HEARD: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    HEARD.set(HEARD.get().wrapping_add(1));
}

/// A closure in the floor. The floor is a lower bound for the cost of an emit to listeners: a vector of closures behind
/// an `ArcSwap`, without names, errors or a tree.
type Closure = Box<dyn Fn(&mut Tick) + Send + Sync>;

pub(crate) fn floor(closures: usize) -> Arc<ArcSwap<Vec<Closure>>> {
    let closure = |i: usize| Box::new(move |tick: &mut Tick| tick.n = tick.n.wrapping_add(black_box(i) as u64));
    Arc::new(ArcSwap::from_pointee((0..closures).map(|i| closure(i) as Closure).collect()))
}

pub(crate) fn on_floor(floor: &ArcSwap<Vec<Closure>>, n: u64) -> Duration {
    timed(async {
        let mut tick = Tick::default();
        for _ in 0..n {
            for closure in black_box(floor).load().iter() {
                closure(black_box(&mut tick));
            }
        }
    })
}

/// Measures a channel on which every receiver receives a copy of every event.
pub(crate) fn on_broadcast(sender: &broadcast::Sender<Tick>, receivers: usize, n: u64) -> Duration {
    let mut receivers: Vec<_> = (0..receivers).map(|_| sender.subscribe()).collect();
    timed(async {
        for i in 0..n {
            // Ignore the result, because `send` fails if there are no receivers.
            let _ = black_box(black_box(sender).send(Tick { n: i }));
            for receiver in &mut receivers {
                let tick = receiver.recv().await;
                black_box(tick.is_ok());
                count();
            }
        }
    })
}

/// Measures a channel that several threads share. Each thread receives the events of all threads.
pub(crate) fn on_shared_broadcast(sender: &broadcast::Sender<Tick>, n: u64) -> Duration {
    let mut receiver = sender.subscribe();
    timed(async {
        for i in 0..n {
            let _ = black_box(black_box(sender).send(Tick { n: i }));
            while black_box(receiver.try_recv().is_ok()) {
                count();
            }
        }
    })
}

/// A layer that counts the events of every target except `nobody`.
struct Counting;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Counting {
    fn register_callsite(&self, metadata: &'static tracing::Metadata<'static>) -> tracing::subscriber::Interest {
        match metadata.target() {
            "nobody" => tracing::subscriber::Interest::never(),
            _ => tracing::subscriber::Interest::always(),
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        black_box(event);
        count();
    }
}

/// A subscriber with a number of counting layers.
pub(crate) fn tracing_layers(layers: usize) -> Dispatch {
    let layers: Vec<Counting> = (0..layers).map(|_| Counting).collect();
    Dispatch::new(tracing_subscriber::registry().with(layers))
}

pub(crate) fn on_tracing(dispatch: &Dispatch, n: u64) -> Duration {
    tracing::dispatcher::with_default(dispatch, || {
        timed(async {
            for i in 0..n {
                tracing::info!(n = black_box(i), "new_token");
            }
        })
    })
}

/// Measures an event that no layer is interested in.
pub(crate) fn on_deaf_tracing(dispatch: &Dispatch, n: u64) -> Duration {
    tracing::dispatcher::with_default(dispatch, || {
        timed(async {
            for i in 0..n {
                tracing::info!(target: "nobody", n = black_box(i), "new_token");
            }
        })
    })
}

/// Measures an event inside four spans.
pub(crate) fn on_tracing_spans(dispatch: &Dispatch, n: u64) -> Duration {
    tracing::dispatcher::with_default(dispatch, || {
        let _backend = tracing::info_span!("backend").entered();
        let _chat = tracing::info_span!("chat").entered();
        let _model = tracing::info_span!("model").entered();
        let _stream = tracing::info_span!("stream").entered();
        on_tracing(dispatch, n)
    })
}

/// `async-event-emitter`: payloads are serialized, and every listener is a boxed future.
pub(crate) fn async_event_emitter(names: &[(&str, usize)]) -> AsyncEventEmitter {
    let emitter = AsyncEventEmitter::new();
    for (name, listeners) in names {
        for _ in 0..*listeners {
            emitter.on(name, |tick: Tick| async move {
                black_box(tick);
                count();
            });
        }
    }
    emitter
}

pub(crate) fn on_async_event_emitter(emitter: &AsyncEventEmitter, n: u64) -> Duration {
    timed(async {
        for i in 0..n {
            let emitted = black_box(emitter).emit(black_box("new_token"), Tick { n: i }).await;
            emitted.expect("a tick is serialisable");
        }
    })
}

/// `rs_events`: payloads are shared in an `Arc`, and the listeners of a name are called while a lock is held.
pub(crate) fn rs_events(names: &[(&str, usize)]) -> EventEmitter<Tick> {
    let mut emitter = EventEmitter::new(1_000);
    for (name, listeners) in names {
        for _ in 0..*listeners {
            let listener = Arc::new(|tick: &Arc<Tick>| {
                black_box(tick.n);
                count();
            });
            emitter.add(name, None, listener).expect("fewer than the limit");
        }
    }
    emitter
}

pub(crate) fn on_rs_events(emitter: &EventEmitter<Tick>, n: u64) -> Duration {
    let mut emitter = emitter.clone();
    timed(async {
        for i in 0..n {
            // Ignore the result, because `emit` fails if there are no listeners.
            let _ = black_box(black_box(&mut emitter).emit(black_box("new_token"), Arc::new(Tick { n: i })));
        }
    })
}
