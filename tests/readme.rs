//! The program of `docs/concepts.md`, snippet by snippet. This test runs it, and checks that the page contains exactly
//! these snippets. The programs of the README are examples.

use emitree::Result;

#[tokio::test]
async fn the_snippets_of_the_concepts_run() -> Result<()> {
    use std::sync::Arc;
    use std::time::Duration;

    use emitree::prelude::*;
    use futures_util::StreamExt;
    use serde::Serialize;

    let shout = runnable_fn("shout", |text: String, _: RunContext| async move { Ok(text.to_uppercase()) });
    assert_eq!(shout.run("hello".to_owned()).await?, "HELLO");

    let run = shout
        .run("hello".to_owned())
        .on_start(|start, _| start.input.push_str(", world"))
        .on_success(|success, _| success.output.push('!'));
    assert_eq!(run.await?, "HELLO, WORLD!");

    let shout = Arc::new(shout);
    let greet = runnable_fn("greet", move |name: String, ctx: RunContext| {
        let shout = Arc::clone(&shout);
        async move {
            ctx.emitter().emit("progress", &mut 50).await?;
            shout.run(format!("hello, {name}")).await
        }
    });

    let app = Emitter::new().child("app")?;
    app.on("count", |n: &mut u32, _| *n += 1)?;
    let mut count = 1_u32;
    app.emit("count", &mut count).await?;
    assert_eq!(count, 2);

    async fn lookup(n: &mut u32) -> Result<(), BoxError> {
        tokio::task::yield_now().await;
        *n += 1;
        Ok(())
    }
    app.on_async("count", |n: &mut u32, _| Box::pin(lookup(n)))?;
    app.observe("count", |n: &u32, meta| println!("{}: {n}", meta.path()))?;
    let first = app.with(Options::new().priority(5).once()).on("count", |n: &mut u32, _| *n *= 2)?;
    assert!(first.off());

    greet.emitter().on(Stage::Start, |start: &mut Start<String, String>, _| start.input.make_ascii_lowercase())?;
    greet.emitter().observe("progress", |percent: &i32, _| println!("{percent} %"))?;
    greet.emitter().observe("**.run.finish", |_: &dyn AnyEvent, meta| println!("{}", meta.path()))?;

    #[derive(Serialize)]
    struct Token(String);
    impl Event for Token {
        const NAME: EventName = EventName::new("new_token");
    }
    app.on_event(|token: &mut Token, _| token.0.push(' '))?;
    app.emit_event(&mut Token("to".to_owned())).await?;

    let mut stream = greet.run("Ada".to_owned()).events("progress");
    while let Some(item) = stream.next().await {
        println!("{item:?}"); // an event, a number of missed events, or the result
    }

    let handle = AbortHandle::new();
    let run = greet.run("ada".to_owned()).abort_on(&handle).timeout(Duration::from_secs(5));
    handle.abort("the user has left");
    assert_eq!(run.await.unwrap_err().explain(), "aborted: the user has left");

    let watch = middleware_fn(|ctx| {
        ctx.subscribe(|event: &RunEvent<'_>| println!("{}", event.path()));
        Ok(())
    });
    greet.run("ada".to_owned()).middleware(watch).await?;

    let trim = map_input(|name: &mut String, _: &RunContext| {
        *name = name.trim().to_owned();
        if name.is_empty() { Err(Error::denied("trim", "no name")) } else { Ok(()) }
    });
    assert!(greet.run("  ".to_owned()).middleware(trim).await.unwrap_err().is_denied());

    let log_errors = Stack::<AnyRun>::builder().layer_fn("log_errors", |(), ctx, next| {
        Box::pin(async move { next.run(&()).await.inspect_err(|error| println!("{}: {error}", ctx.name())) })
    });
    greet.run("ada".to_owned()).middleware(for_tree(log_errors.build())).await?;

    let recording = app.pipe_to(Memory::new())?;
    app.emit("ready", &mut true).await?;
    assert_eq!(recording.close(Duration::from_secs(5)).await.delivered, 1);

    let error = Error::from("x".parse::<u32>().unwrap_err()).message("`x` is no port").detail("line", 3);
    assert!(error.explain().starts_with("`x` is no port\n"));
    Ok(())
}

#[test]
fn the_concepts_show_these_snippets() {
    let page = include_str!("../docs/concepts.md");
    let shown = page.split("```rs\n").skip(1).flat_map(|rest| rest.split("```").next());
    let source = include_str!("readme.rs");
    let mut rest = source.split_once("the_snippets_of_the_concepts_run() -> Result<()> {\n").expect("the snippets").1;
    for snippet in shown {
        let lines = snippet.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") });
        let snippet: String = lines.collect();
        let (_, after) =
            rest.split_once(&snippet).unwrap_or_else(|| panic!("not here, or not in this order:\n{snippet}"));
        rest = after;
    }
    assert_eq!(rest.lines().next(), Some("    Ok(())"), "the page shows the last snippet");
}

/// `.ci/run` compares the output of these examples with the README.
#[test]
fn the_programs_of_the_readme_are_examples_of_at_most_25_lines() {
    let readme = include_str!("../README.md");
    let shown: Vec<_> = readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let examples = [
        include_str!("../examples/hello_runs.rs"),
        include_str!("../examples/hello_agent.rs"),
        include_str!("../examples-full/hello_job.rs"),
    ];
    assert_eq!(shown.len(), examples.len());
    for (shown, example) in shown.into_iter().zip(examples) {
        let (_, program) = example.split_once("\n\n").expect("a comment, and a program");
        assert_eq!(shown, program);
        let lines = shown.lines().filter(|line| !line.is_empty()).count();
        assert!(lines <= 25, "{lines} lines:\n{shown}");
    }
}
