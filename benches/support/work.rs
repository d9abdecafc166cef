//! The work that several benches measure: a bare run, and tower services in boxed layers.

use std::hint::black_box;
use std::io;

use emitree::emitter::Creator;
use emitree::{Emitter, Result, RunContext, Runnable};
use tower::util::{BoxService, ServiceExt};
use tower::{Layer, Service, layer::layer_fn};

use crate::support::{Case, timed};

/// A runnable that adds one.
pub(crate) struct Adder {
    emitter: Emitter,
}

impl Adder {
    pub(crate) fn new() -> Self {
        let root = Emitter::new();
        let emitter = root.child_builder("tool.add").creator(Creator::new("Tool", "add")).build();
        Self { emitter: emitter.expect("a valid name") }
    }
}

impl Runnable for Adder {
    type Input = u64;
    type Output = u64;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &u64, _: &RunContext) -> Result<u64> {
        Ok(black_box(*input) + 1)
    }
}

/// A case that executes runs one after another.
pub(crate) fn runs(adder: Adder) -> impl Case {
    move |n| {
        timed(async {
            for i in 0..n {
                black_box(adder.run(black_box(i)).await.ok());
            }
        })
    }
}

/// A case that calls a service through a number of boxed layers that change nothing.
pub(crate) fn services(layers: usize) -> impl Case {
    let add = tower::service_fn(|n: u64| async move { Ok::<_, io::Error>(black_box(n) + 1) });
    let pass = || layer_fn(|inner: BoxService<u64, u64, io::Error>| BoxService::new(inner.map_response(|n| n)));
    let mut service = (0..layers).fold(BoxService::new(add), |service, _| pass().layer(service));
    move |n| {
        timed(async {
            for i in 0..n {
                let ready = service.ready().await.expect("always ready");
                black_box(ready.call(black_box(i)).await.ok());
            }
        })
    }
}
