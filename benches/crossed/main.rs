//! Operations that `benches/crossed/count.py` follows through the code. No time is measured.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use emitree::lifecycle::Success;
use emitree::middleware::IntoMiddleware;
use emitree::middleware::{Concurrency, Timeout};
use emitree::{Emitter, EventName, Result, RunContext, Runnable};
use tower::layer::layer_fn;
use tower::util::{BoxService, ServiceExt};
use tower::{Layer, Service};
use tracing::info;
use tracing_subscriber::layer::SubscriberExt;

const TICK: EventName = EventName::new("tick");

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    match std::env::args().nth(1).as_deref() {
        Some("emit") => emit(),
        Some("run") => run(&Adder::new()),
        Some("middlewares") => run(&Adder::in_middlewares()),
        Some("tracing") => event_of_tracing(),
        Some("tower") => service(false),
        Some("tower-layers") => service(true),
        // `cargo bench` starts this program without the name of an operation.
        _ => println!("count what is crossed: benches/crossed/count.py"),
    }
}

/// Executes the operation a few times, to exclude one-time work, and then once more while valgrind counts.
fn followed(mut operation: impl FnMut()) {
    (0..5).for_each(|_| operation());
    while_collecting(&mut operation);
}

#[inline(never)]
fn while_collecting(operation: &mut dyn FnMut()) {
    operation();
}

fn at_once<R>(future: impl Future<Output = R>) -> R {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing has to be waited for"),
    }
}

/// One emit with one sync listener.
fn emit() {
    let emitter = Emitter::new();
    emitter.on(TICK, |n: &mut u64, _| *n += 1).expect("a valid name");
    followed(|| at_once(emitter.emit(TICK, &mut black_box(0_u64))).expect("nobody fails"));
}

/// A run with one listener for its event `success`.
fn run(adder: &Adder) {
    adder.emitter.on("success", |_: &mut Success<u64, u64>, _| ()).expect("a valid name");
    followed(|| assert_eq!(at_once(adder.run(black_box(1))).ok(), Some(2)));
}

struct Adder {
    emitter: Emitter,
    middlewares: Vec<Arc<dyn emitree::Middleware>>,
}

impl Adder {
    fn new() -> Self {
        Self { emitter: Emitter::new().child("adder").expect("a valid name"), middlewares: Vec::new() }
    }

    fn in_middlewares() -> Self {
        let timeout = Timeout::per_attempt(Duration::from_secs(60)).into_middleware();
        let concurrency = Concurrency::builder(8).build().expect("places").into_middleware();
        Self { middlewares: vec![Arc::new(timeout), Arc::new(concurrency)], ..Self::new() }
    }
}

impl Runnable for Adder {
    type Input = u64;
    type Output = u64;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    fn middlewares(&self) -> &[Arc<dyn emitree::Middleware>] {
        &self.middlewares
    }

    async fn execute(&self, input: &u64, _: &RunContext) -> Result<u64> {
        Ok(black_box(*input) + 1)
    }
}

/// One event of `tracing`, under a registry with one layer.
fn event_of_tracing() {
    struct Counts;
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Counts {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            black_box(event);
        }
    }
    let subscriber = tracing_subscriber::registry().with(Counts);
    tracing::subscriber::with_default(subscriber, || followed(|| info!(n = black_box(1), "tick")));
}

/// A service in two layers, a timeout and a limit, or without layers.
fn service(layered: bool) {
    let add = tower::service_fn(|n: u64| async move { Ok::<_, tower::BoxError>(black_box(n) + 1) });
    let mut service: BoxService<u64, u64, tower::BoxError> = match layered {
        false => BoxService::new(add),
        true => BoxService::new(
            layer_fn(|inner| tower::timeout::Timeout::new(inner, Duration::from_secs(60)))
                .layer(tower::limit::ConcurrencyLimit::new(add, 8)),
        ),
    };
    followed(|| {
        let called = at_once(async { service.ready().await?.call(black_box(1)).await });
        assert_eq!(called.ok(), Some(2));
    });
}
