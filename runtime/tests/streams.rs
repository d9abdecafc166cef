//! A run as a stream: the stream is bounded, ends with the run's result, aborts the run when it is dropped, and reports
//! missed events to a slow reader (R11). Events of an attempt that may be given up can be held back, and are discarded
//! if the attempt is given up (M7).

mod support;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Emitter, Event, EventName, Options};
use emitree_runtime::{
    AnyRun, Error, Next, Order, Result, RunContext, Runnable, Stack, Stage, StreamItem, layer_fn, map_input,
    map_output, ordered, wait_for_ends,
};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use serde::{Serialize, Serializer};
use serde_json::json;
use support::{Any, Gate, Recorder, below};

async fn tell(ctx: &RunContext, token: u32) -> Result<()> {
    Ok(ctx.emitter().emit("token", &mut { token }).await?)
}

/// Returns a runnable that emits as many tokens as its input says, one per poll.
fn teller(tree: &Emitter) -> impl Runnable<Input = u32, Output = u32> + 'static {
    below(tree, "teller", |tokens: u32, ctx: RunContext| async move {
        for token in 0..tokens {
            tell(&ctx, token).await?;
            tokio::task::yield_now().await;
        }
        Ok(tokens)
    })
}

/// Returns a runnable that emits as many tokens as its input says, all in one poll.
fn burster(tree: &Emitter) -> impl Runnable<Input = u32, Output = u32> + 'static {
    below(tree, "burster", |tokens: u32, ctx: RunContext| async move {
        for token in 0..tokens {
            tell(&ctx, token).await?;
        }
        Ok(tokens)
    })
}

fn line<O: std::fmt::Debug>(item: StreamItem<O>) -> String {
    match item {
        StreamItem::Event(event) => format!("{} {}", event.path, event.payload.get()),
        StreamItem::Missed(missed) => format!("missed {missed}"),
        StreamItem::Result(result) => format!("{:?}", result.map_err(|error| error.to_string())),
        other => format!("{other:?}"),
    }
}

async fn lines<O: std::fmt::Debug>(stream: impl Stream<Item = StreamItem<O>>) -> Vec<String> {
    stream.map(line).collect().await
}

// R11
#[tokio::test]
async fn a_stream_yields_events_then_the_result_and_then_ends() {
    let tree = Emitter::new();
    let teller = teller(&tree);
    let stream = teller.run(2).events("token");
    assert_eq!(lines(stream).await, ["teller.token 0", "teller.token 1", "Ok(2)"]);
}

/// A payload that cannot be read back from JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Token {
    text: &'static str,
}

impl Event for Token {
    const NAME: EventName = EventName::new("token");
}

/// Returns a runnable that emits two tokens, and awaits a nested run between them.
fn speaker(tree: &Emitter) -> impl Runnable<Input = (), Output = u32> + 'static {
    let inner = Arc::new(below(tree, "inner", |(): (), ctx: RunContext| async move {
        ctx.emitter().emit_event(&mut Token { text: "inner" }).await?;
        // This event has the name of `Token`, but another type. The emit succeeds, because the stream skips events of
        // another type in runs below.
        tell(&ctx, 7).await
    }));
    below(tree, "speaker", move |(): (), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            ctx.emitter().emit_event(&mut Token { text: "one" }).await?;
            inner.run(()).await?;
            ctx.emitter().emit_event(&mut Token { text: "two" }).await?;
            Ok(2)
        }
    })
}

async fn texts<O: std::fmt::Debug>(stream: impl Stream<Item = StreamItem<O, Token>>) -> Vec<String> {
    let show = |item: StreamItem<O, Token>| match item {
        StreamItem::Event(token) => token.text.to_owned(),
        StreamItem::Missed(missed) => format!("missed {missed}"),
        StreamItem::Result(result) => format!("{:?}", result.map_err(|error| error.to_string())),
        other => format!("{other:?}"),
    };
    stream.map(show).collect().await
}

// R11
#[tokio::test]
async fn a_typed_stream_yields_payloads_even_if_they_cannot_be_deserialized() {
    let tree = Emitter::new();
    let speaker = speaker(&tree);
    assert_eq!(texts(speaker.run(()).events_of::<Token>()).await, ["one", "two", "Ok(2)"]);
    assert_eq!(texts(speaker.run(()).events_of::<Token>().nested(true)).await, ["one", "inner", "two", "Ok(2)"]);
    // A stream of records contains the payloads as JSON.
    let lines = lines(speaker.run(()).events(Token::NAME)).await;
    assert_eq!(lines, [r#"speaker.token {"text":"one"}"#, r#"speaker.token {"text":"two"}"#, "Ok(2)"]);
}

// R11
#[tokio::test]
async fn a_stream_can_be_read_without_an_extension_trait() {
    let tree = Emitter::new();
    let speaker = speaker(&tree);
    let mut stream = speaker.run(()).events_of::<Token>();
    let mut items = Vec::new();
    while let Some(item) = stream.recv().await {
        items.push(item);
    }
    assert_eq!(texts(stream::iter(items)).await, ["one", "two", "Ok(2)"]);
}

// R11: the stream contains the payload as the listeners have left it.
#[tokio::test]
async fn a_typed_stream_yields_payloads_as_listeners_have_changed_them() {
    let tree = Emitter::new();
    tree.on("speaker.token", |token: &mut Token, _| token.text = "changed").expect("a valid matcher");
    assert_eq!(texts(speaker(&tree).run(()).events_of::<Token>()).await, ["changed", "changed", "Ok(2)"]);
}

// E7
#[tokio::test]
async fn a_typed_stream_ends_with_an_error_if_the_run_emits_another_type_under_that_name() {
    let tree = Emitter::new();
    let teller = teller(&tree);
    for nested in [false, true] {
        let stream = teller.run(1).events_of::<Token>().nested(nested);
        let results: Vec<_> = stream.collect().await;
        let [StreamItem::Result(Err(error))] = &results[..] else { panic!("{results:?}") };
        for part in ["`teller.token` carries `u32`", "streams::Token`", "runtime/tests/streams.rs:"] {
            assert!(error.explain().contains(part), "{}", error.explain());
        }
    }
}

// R11
#[tokio::test]
async fn a_typed_stream_is_bounded_and_counts_missed_events() {
    let tree = Emitter::new();
    let burst = below(&tree, "burst", |(): (), ctx: RunContext| async move {
        for text in ["a", "b", "c", "d"] {
            ctx.emitter().emit_event(&mut Token { text }).await?;
        }
        Ok(())
    });
    assert_eq!(texts(burst.run(()).events_of::<Token>().capacity(2)).await, ["missed 2", "c", "d", "Ok(())"]);
}

// M7: the events of an attempt that was given up are discarded, including the events of a run below.
#[tokio::test]
async fn a_held_typed_stream_discards_the_events_of_a_discarded_attempt() {
    let tree = Emitter::new();
    let speaker = speaker(&tree);
    let run = || {
        let again = Stack::<AnyRun>::builder().retry(twice()).build();
        speaker.run(()).middleware(again).events_of::<Token>().nested(true)
    };
    assert_eq!(texts(run().held(true)).await, ["one", "inner", "two", "Ok(2)"]);
    assert_eq!(texts(run()).await, ["one", "inner", "two", "one", "inner", "two", "Ok(2)"]);
}

// M7: the stream receives `attempt_discarded` even if the listeners of the run are removed.
#[tokio::test]
async fn a_held_stream_discards_an_attempt_even_if_the_listeners_of_its_run_are_removed() {
    let tree = Emitter::new();
    let run = below(&tree, "remover", |_: u32, ctx: RunContext| async move {
        ctx.emitter().reset();
        tell(&ctx, ctx.attempt()).await?;
        Ok(ctx.attempt())
    });
    let stream = run.run(0).middleware(once_more()).max_middleware_retries(1).events("token");
    assert_eq!(lines(stream).await, ["remover.token 1", "Ok(1)"]);
}

/// A payload that panics when it is cloned.
#[derive(Serialize)]
struct Precious;

impl Clone for Precious {
    fn clone(&self) -> Self {
        panic!("there is one of it")
    }
}

impl Event for Precious {
    const NAME: EventName = EventName::new("precious");
}

// R11: no event is lost silently.
#[tokio::test]
async fn a_payload_whose_clone_panics_is_counted_as_missed_and_the_run_continues() {
    let tree = Emitter::new();
    let run =
        below(
            &tree,
            "owner",
            |(): (), ctx: RunContext| async move { Ok(ctx.emitter().emit_event(&mut Precious).await?) },
        );
    let items: Vec<_> = run.run(()).events_of::<Precious>().collect().await;
    assert!(matches!(items[..], [StreamItem::Missed(1), StreamItem::Result(Ok(()))]), "{}", items.len());
}

// R11: a program cannot remove the listeners of a stream.
#[tokio::test]
async fn a_stream_receives_events_even_if_the_listeners_of_its_run_are_removed() {
    let tree = Emitter::new();
    let run = below(&tree, "remover", |(): (), ctx: RunContext| async move {
        ctx.emitter().reset();
        ctx.emitter().emit_event(&mut Token { text: "heard" }).await?;
        Ok(())
    });
    assert_eq!(texts(run.run(()).events_of::<Token>()).await, ["heard", "Ok(())"]);
    assert_eq!(lines(run.run(()).events("token")).await.len(), 2);
}

// R11
#[tokio::test]
async fn into_stream_yields_all_events_of_the_run_and_of_runs_below() {
    let tree = Emitter::new();
    let inner = Arc::new(teller(&tree));
    let outer = below(&tree, "outer", move |tokens: u32, _: RunContext| {
        let inner = inner.clone();
        async move { inner.run(tokens).await }
    });
    let paths: Vec<String> = outer
        .run(1)
        .into_stream()
        .map(line)
        .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
        .collect()
        .await;
    let expected = [
        "outer.run.start",
        "teller.run.start",
        "teller.token",
        "teller.run.success",
        "teller.run.finish",
        "outer.run.success",
        "outer.run.finish",
        "Ok(1)",
    ];
    assert_eq!(paths, expected);
}

// R11
#[tokio::test]
async fn a_streamed_run_proceeds_only_as_the_stream_is_read() {
    let tree = Emitter::new();
    let recorder = Recorder::new();
    tree.observe("teller.token", recorder.sees("told")).expect("a valid matcher");
    let teller = teller(&tree);
    let mut stream = teller.run(3).events("token");
    for told in 1..=3 {
        assert!(matches!(stream.next().await, Some(StreamItem::Event(_))));
        assert_eq!(recorder.take().len(), 1, "one more told: {told}");
    }
}

// R11
#[tokio::test]
async fn a_stream_reports_how_many_events_a_slow_reader_missed_and_where() {
    let tree = Emitter::new();
    let burster = burster(&tree);
    let stream = burster.run(10).events("token").capacity(2);
    assert_eq!(lines(stream).await, ["missed 8", "burster.token 8", "burster.token 9", "Ok(10)"]);
}

// R8, R11
#[tokio::test]
async fn dropping_a_stream_drops_the_run_and_listeners_receive_the_end_of_the_run() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let waiter = below(&tree, "waiter", |(): (), ctx: RunContext| async move {
        tell(&ctx, 0).await?;
        pending::<Result<()>>().await
    });
    let mut stream = waiter.run(()).events("token");
    assert!(matches!(stream.next().await, Some(StreamItem::Event(_))));
    assert!(stream.next().now_or_never().is_none(), "the run waits, and so does its reader");
    drop(stream);
    recorder.expect(["waiter.run.start", "waiter.token", "waiter.run.error", "waiter.run.finish"]);
    assert!(wait_for_ends(Duration::ZERO).await.is_complete());
}

// R11
#[tokio::test]
async fn an_invalid_matcher_is_reported_as_the_result_of_the_stream() {
    let tree = Emitter::new();
    let teller = teller(&tree);
    let lines = lines(teller.run(1).events("to[ken")).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("Err(") && lines[0].contains("to[ken"), "{lines:?}");
}

// R11
#[tokio::test]
async fn a_run_that_fails_ends_its_stream_with_the_error() {
    let tree = Emitter::new();
    let failing = below(&tree, "failing", |(): (), _: RunContext| async { Err::<(), _>(Error::new("broken")) });
    assert_eq!(lines(failing.run(()).events("token")).await, [r#"Err("broken")"#]);
}

/// Returns a runnable that emits the number of each attempt.
fn retried(tree: &Emitter) -> impl Runnable<Input = u32, Output = u32> + 'static {
    below(tree, "teller", |_: u32, ctx: RunContext| async move {
        tell(&ctx, ctx.attempt()).await?;
        tokio::task::yield_now().await;
        Ok(ctx.attempt())
    })
}

// M7
#[tokio::test]
async fn events_are_held_back_until_output_middlewares_that_may_retry_accept_the_output() {
    let tree = Emitter::new();
    let retried = retried(&tree);
    let again = || {
        map_output(
            |output: &mut u32, _: &RunContext| {
                if *output == 2 { Ok(()) } else { Err(Error::retry("too early")) }
            },
        )
    };
    let run = || retried.run(0).middleware(again()).max_middleware_retries(5);
    let held = lines(run().events("{token,attempt_discarded}")).await;
    let discarded = |attempt: u32| {
        format!(r#"teller.attempt_discarded {{"attempt":{attempt},"reason":"too early","metadata":null}}"#)
    };
    let expected = [discarded(1), "teller.token 2".to_owned(), "Ok(2)".to_owned()];
    assert_eq!(held, expected);
    // If events are not held back, the stream contains the discarded events, and the event that reports the discard.
    let shown = lines(run().events("{token,attempt_discarded}").held(false)).await;
    let expected = [
        "teller.token 0".to_owned(),
        discarded(0),
        "teller.token 1".to_owned(),
        discarded(1),
        "teller.token 2".to_owned(),
        "Ok(2)".to_owned(),
    ];
    assert_eq!(shown, expected);
}

// M7
#[tokio::test]
async fn the_start_of_a_run_with_a_held_stream_is_not_discarded() {
    let tree = Emitter::new();
    let retried = retried(&tree);
    let stream = retried.run(0).middleware(once_more()).max_middleware_retries(1).events("*.*");
    let paths: Vec<_> = lines(stream).await.into_iter().map(|line| line.split(' ').next().map(str::to_owned)).collect();
    let expected = [
        "teller.run.start",
        "teller.attempt_discarded",
        "teller.token",
        "teller.run.success",
        "teller.run.finish",
        "Ok(1)",
    ];
    assert_eq!(paths.into_iter().flatten().collect::<Vec<_>>(), expected);
}

// R11
#[tokio::test]
async fn a_stream_can_be_merged_with_others() {
    let tree = Emitter::new();
    let teller = teller(&tree);
    let streams = [1, 2].map(|tokens| teller.run(tokens).events("token"));
    let mut lines = lines(stream::select_all(streams)).await;
    lines.sort();
    assert_eq!(lines, ["Ok(1)", "Ok(2)", "teller.token 0", "teller.token 0", "teller.token 1"]);
}

// R11
#[test]
fn a_stream_that_is_polled_after_its_end_returns_none_and_does_not_panic() {
    let tree = Emitter::new();
    let burster = burster(&tree);
    let mut stream = burster.run(0).events("token");
    assert!(matches!(stream.next().now_or_never(), Some(Some(StreamItem::Result(Ok(0))))));
    assert!(matches!(stream.next().now_or_never(), Some(None)));
    assert!(matches!(stream.next().now_or_never(), Some(None)));
}

/// Returns a middleware that requests a second attempt, and accepts its output.
fn once_more() -> impl emitree_runtime::Middleware + 'static {
    map_output(|_: &mut u32, ctx: &RunContext| if ctx.attempt() == 0 { Err(Error::retry("again")) } else { Ok(()) })
}

// M7: events that are not held back are not discarded, even if they are still unread.
#[tokio::test]
async fn unread_events_that_are_not_held_back_are_not_discarded_by_the_next_attempt() {
    let tree = Emitter::new();
    let run = below(&tree, "teller", |_: u32, ctx: RunContext| async move {
        tell(&ctx, ctx.attempt()).await?;
        Ok(ctx.attempt())
    });
    let stream = run.run(0).middleware(once_more()).max_middleware_retries(1).events("token").held(false);
    assert_eq!(lines(stream).await, ["teller.token 0", "teller.token 1", "Ok(1)"]);
}

// M7: only the run's own `start` belongs to all attempts.
#[tokio::test]
async fn the_starts_of_runs_below_are_discarded_with_their_attempt() {
    let tree = Emitter::new();
    let emitter = tree.clone();
    let outer = below(&tree, "outer", move |_: u32, ctx: RunContext| {
        let inner = below(&emitter, &format!("inner{}", ctx.attempt()), |(): (), _: RunContext| async { Ok(()) });
        async move {
            inner.run(()).await?;
            Ok(ctx.attempt())
        }
    });
    let stream = outer.run(0).middleware(once_more()).max_middleware_retries(1).events("*.*");
    let mut lines = lines(stream).await;
    lines.retain(|line| line.contains(".run.start"));
    let paths: Vec<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(paths, ["outer.run.start", "inner1.run.start"]);
}

// M7: events are held back only until the output middlewares have accepted the output, not until the run is over.
#[tokio::test]
async fn held_events_are_yielded_while_finish_is_still_being_emitted() {
    let (tree, gate) = (Emitter::new(), Gate::new());
    let waits = gate.clone();
    let late = Options::new().on_async(Stage::Finish, move |_: &mut Any, _| {
        let waits = waits.clone();
        Box::pin(async move {
            waits.pass().await;
            Ok(())
        })
    });
    let burster = burster(&tree);
    let mut stream = burster.run(1).register(late).events("token").held(true);
    assert_eq!(stream.next().now_or_never().flatten().map(line).as_deref(), Some("burster.token 0"));
    gate.open();
    assert_eq!(lines(stream).await, ["Ok(1)"]);
}

// R11
#[tokio::test]
async fn events_emitted_before_a_middleware_fails_to_bind_are_yielded_held_or_not() {
    let tree = Emitter::new();
    let retried = retried(&tree);
    for held in [false, true] {
        let fails = |ctx: &RunContext| {
            ctx.emitter().emit_now("bound", &mut 1)?;
            Err(Error::new("no"))
        };
        // The stream receives events once its own listeners are bound.
        let run = retried.run(0).middleware(ordered(fails, Order::new().after("events")));
        assert_eq!(lines(run.events("bound").held(held)).await, ["teller.bound 1", "Err(\"no\")"]);
    }
}

/// Returns a layer that calls `next` twice, and discards the events of the first call.
fn twice() -> impl emitree_runtime::Layer<AnyRun> {
    layer_fn("twice", |(): &(), ctx: &RunContext, next: Next<'_, AnyRun>| {
        Box::pin(async move {
            next.run(&()).await?;
            ctx.discard_attempt("once more", json!({"by": "twice"})).await?;
            next.run(&()).await
        })
    })
}

// M7: attempts of a layer are discarded like the run's own attempts.
#[tokio::test]
async fn a_held_stream_discards_the_events_of_an_attempt_that_a_layer_discards() {
    let tree = Emitter::new();
    let burster = burster(&tree);
    let run = || {
        let again = Stack::<AnyRun>::builder().retry(twice()).build();
        burster.run(1).middleware(again).events("{token,attempt_discarded}")
    };
    let discarded = r#"burster.attempt_discarded {"attempt":0,"reason":"once more","metadata":{"by":"twice"}}"#;
    assert_eq!(lines(run().held(true)).await, [discarded, "burster.token 0", "Ok(1)"]);
    assert_eq!(lines(run()).await, ["burster.token 0", discarded, "burster.token 0", "Ok(1)"]);
}

// M7: a run below discards only its own events and the events of the runs below it, even if they have ended.
#[tokio::test]
async fn an_attempt_discarded_by_a_run_below_takes_only_its_events_and_events_below_it() {
    let tree = Emitter::new();
    let (tool, model) = (Arc::new(burster(&tree)), tree.clone());
    let outer = below(&tree, "outer", move |tokens: u32, ctx: RunContext| {
        let within = Arc::clone(&tool);
        let middle = below(&model, "middle", move |tokens: u32, ctx: RunContext| {
            let tool = Arc::clone(&within);
            async move {
                tell(&ctx, 7).await?;
                tool.run(tokens).await
            }
        });
        let tool = Arc::clone(&tool);
        async move {
            tell(&ctx, 8).await?;
            tool.run(tokens).await?;
            middle.run(tokens).middleware(Stack::<AnyRun>::builder().retry(twice()).build()).await?;
            tell(&ctx, 9).await?;
            Ok(())
        }
    });
    let tokens = ["outer.token 8", "burster.token 0", "middle.token 7", "burster.token 0", "outer.token 9", "Ok(())"];
    assert_eq!(lines(outer.run(1).events("**.token").held(true)).await, tokens);
    // The `start` of the run itself belongs to all attempts.
    let paths = lines(outer.run(0).events("{middle,burster}.**").held(true)).await;
    let paths: Vec<_> = paths.iter().filter_map(|line| line.split(' ').next()).collect();
    let burster = ["burster.run.start", "burster.run.success", "burster.run.finish"];
    let middle = ["middle.run.start", "middle.attempt_discarded", "middle.token"];
    let ends = ["middle.run.success", "middle.run.finish", "Ok(())"];
    assert_eq!(paths, [&burster[..], &middle, &burster, &ends].concat());
    // If events are not held back, the stream contains all events.
    assert_eq!(lines(outer.run(1).events("**.token")).await.len(), tokens.len() + 2);
}

/// A token that emits another token when it is serialized, so that listeners receive the other token first.
struct Telling(RunContext);

impl Serialize for Telling {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.emitter().emit_now("token", &mut 7).expect("nobody is awaited");
        serializer.serialize_unit()
    }
}

// M7: events of runs below are discarded even if one overtakes another, as may happen with several threads.
#[tokio::test]
async fn events_of_runs_below_are_discarded_in_any_order_of_arrival() {
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "inner", |(): (), ctx: RunContext| async move {
        Ok(ctx.emitter().emit("token", &mut Telling(ctx.clone())).await?)
    }));
    let outer = below(&tree, "outer", move |(): (), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            inner.run(()).await?;
            ctx.discard_attempt("again", json!(null)).await
        }
    });
    assert_eq!(lines(outer.run(()).events("**.token").held(true)).await, ["Ok(())"]);
}

// R11: the buffer stays bounded, however often runs below discard attempts.
#[tokio::test]
async fn the_buffer_of_a_held_stream_is_bounded_even_if_runs_below_discard_attempts() {
    let tree = Emitter::new();
    let burster = Arc::new(burster(&tree));
    let outer = below(&tree, "outer", move |(): (), ctx: RunContext| {
        let burster = Arc::clone(&burster);
        async move {
            for token in 0..10 {
                tell(&ctx, token).await?;
                burster.run(0).middleware(Stack::<AnyRun>::builder().retry(twice()).build()).await?;
            }
            Ok(())
        }
    });
    let lines = lines(outer.run(()).events("token").capacity(3).held(true)).await;
    assert_eq!(lines, ["missed 7", "outer.token 7", "outer.token 8", "outer.token 9", "Ok(())"]);
}

// M7: events are held back only while an output middleware may request a retry.
#[tokio::test]
async fn events_are_yielded_at_once_if_no_output_middleware_may_retry() {
    let tree = Emitter::new();
    let teller = teller(&tree);
    let shown = ["teller.token 0", "teller.token 1"];
    // Each of these runs has only one attempt, or no `map_output`.
    let passes = || map_output(|_: &mut u32, _: &RunContext| Ok(()));
    let input = || map_input(|_: &mut u32, _: &RunContext| Ok(()));
    for run in [
        teller.run(2).middleware(passes()),
        teller.run(2).max_middleware_retries(1),
        teller.run(2).middleware(input()).max_middleware_retries(1),
    ] {
        let mut stream = run.events("token");
        for token in shown {
            let item = stream.next().now_or_never().expect("it is shown at once").expect("there is one");
            assert_eq!(line(item), token);
        }
    }
}
