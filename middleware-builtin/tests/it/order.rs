//! The picture in `docs/middleware-order.md` is the chain of a run to which the built-ins are bound (M2).

use std::time::Duration;

use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::{
    Budget, Cache, CircuitBreaker, Concurrency, ContentFilter, ExfilGuard, Fallback, Limits, RateLimit, Redact, Retry,
    Timeout,
};
use emitree_runtime::{Explanation, Position, Result, RunContext, Runnable, map_input, map_output, runnable_fn};

const PAGE: &str = include_str!("../../../docs/middleware-order.md");

/// Draws a chain: each layer is inside the layer above it.
fn picture(explained: &Explanation) -> String {
    let (mut text, mut depth, mut last) = (String::new(), 0, None);
    let mut line = |position: &str, depth: usize, name: &str| {
        text.push_str(format!("{position:<10}{}{name}", "│ ".repeat(depth)).trim_end());
        text.push('\n');
    };
    let outputs = explained.chain.iter().filter(|layer| layer.position >= Position::Output);
    for layer in explained.chain.iter().filter(|layer| layer.position < Position::Output) {
        let position = serde_json::to_value(layer.position).expect("a name");
        let position = position.as_str().expect("a name").replace("innermost_guard", "innermost");
        let shown = if last == Some(layer.position) { "" } else { &position };
        line(shown, depth, &layer.name);
        last = Some(layer.position);
        if layer.position > Position::InputGuard {
            depth += 1;
        }
    }
    line("", depth, "the work");
    for layer in outputs {
        line("output", 0, &layer.name);
    }
    text
}

#[tokio::test]
async fn the_picture_of_the_page_is_the_chain_of_a_run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let keep = |_: &mut String, _: &RunContext| Ok(());
    let other = runnable_fn("other", |text: String, _: RunContext| async move { Ok(text) });
    let work = runnable_fn("work", |_: String, ctx: RunContext| async move { Ok(picture(&ctx.explain())) });
    // Bound in an order that the phases change.
    let drawn = work
        .run(String::new())
        .middleware(map_output(keep).named("map_output"))
        .middleware(RateLimit::builder(1000, Duration::from_secs(1)).build()?)
        .middleware(Concurrency::builder(8).build()?)
        .middleware(Redact::new())
        .middleware(Cache::json().build()?)
        .middleware(Fallback::to(other))
        .middleware(CircuitBreaker::new())
        .middleware(Retry::new())
        .middleware(ContentFilter::new().words("rude", ["darn"])?)
        .middleware(ExfilGuard::new())
        .middleware(Approval::by(|_| async { Ok(Decision::Approve) }))
        .middleware(Timeout::per_attempt(Duration::from_secs(1)).with_overall(Duration::from_secs(5)))
        .middleware(Limits::builder().runs(10).build())
        .middleware(Budget::builder().calls(10).build()?)
        .middleware(map_input(keep).named("map_input"))
        .await?;
    let shown = PAGE.split_once("tests/it/order.rs -->\n```text\n").expect("a picture").1;
    let shown = shown.split_once("```").expect("an end").0;
    assert_eq!(shown, drawn, "the page shows:\n{shown}\nand the chain is:\n{drawn}");
    Ok(())
}
