//! Nothing that a value, a name or an error contains can control the terminal or forge a line, live and in a replay.

use emitree_emitter::{Creator, Emitter};
use emitree_runtime::{Error, Result, RunContext, Runnable, runnable_fn};
use emitree_sinks::Memory;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Page, TestResult, instance};

/// Characters that move the cursor, erase, change the order of other characters or end a row.
const ACTING: [char; 24] = [
    '\0', '\u{7}', '\u{8}', '\t', '\u{b}', '\r', '\u{1b}', '\u{7f}', '\u{80}', '\u{85}', '\u{9b}', '\u{9d}', '\u{61c}',
    '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}',
    '\u{2068}', '\u{2069}',
];

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(ACTING.to_vec()).prop_map(String::from),
        prop::sample::select(vec![
            "\n",
            "a",
            "語",
            " ",
            "\u{1b}[2J",
            "\n--> Tool[x][start]: forged",
            "\n    <-- Tool[x][success]: forged",
            "\n  | Tool[x][start]",
            "\r\nTool[x][error]: forged",
            "]",
            "\"",
            "\\",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

/// Checks that a text has this many lines, and that each further row of a line is marked.
fn check(written: &str, lines: usize) -> std::result::Result<(), TestCaseError> {
    let acts = |character: char| ACTING.contains(&character) || character != '\n' && character.is_control();
    prop_assert!(!written.contains(acts), "{written:?}");
    let begins = |row: &&str| ["Kind", "--> Kind", "<-- Kind"].iter().any(|head| row.starts_with(head));
    let (first, further): (Vec<_>, Vec<_>) = written.lines().partition(begins);
    prop_assert_eq!(first.len(), lines, "{:?}", written);
    prop_assert!(further.iter().all(|row| row.starts_with("  | ")), "{written:?}");
    Ok(())
}

proptest! {
    #[test]
    fn a_value_a_name_or_an_error_cannot_control_the_terminal_or_forge_a_line(
        kind in text(), name in text(), value in text(), key in text(), error in text(), cause in text(),
        options in 0_usize..2,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (live, replayed) = runtime.block_on(async {
            let page = Page::new();
            let trajectory = page.built(|builder| builder.pretty(options == 1).events("said"));
            let root = Emitter::new();
            let memory = Memory::new();
            let recording = root.pipe_to(memory.clone())?;
            let emitter = root.child_with(Creator::new(format!("Kind{kind}"), name));
            let below = runnable_fn("below", |value: Value, ctx: RunContext| async move {
                ctx.emitter().emit("said", &mut value.clone()).await?;
                let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
                Err::<(), _>(Error::new(text("cause")).message(text("error")).detail(text("error"), value.clone()))
            })
            .with_emitter(emitter.clone());
            let below = std::sync::Arc::new(below);
            let top = runnable_fn("top", move |value: Value, _| {
                let below = below.clone();
                async move {
                    below.run(value.clone()).await.ok();
                    Ok(value)
                }
            })
            .with_emitter(emitter);
            let value = json!({"value": value, key: [value], "error": error, "cause": cause});
            top.run(value).middleware(trajectory.clone()).await?;
            recording.flush().await.complete()?;
            let live = page.take();
            let mut replay = trajectory.replay();
            memory.records().iter().try_for_each(|record| replay.show(record))?;
            TestResult::Ok((live, page.take()))
        })
        .expect("runs that end");
        check(&live, 5)?;
        prop_assert_eq!(live, replayed);
    }
}

#[tokio::test]
async fn an_error_that_clears_the_screen_is_shown_as_text_and_its_causes_are_indented() {
    let page = Page::new();
    let fail = instance(&Emitter::new(), "Tool", "fail", |(): (), _| async {
        Err::<(), _>(Error::new("\u{1b}[2J\nTool[fail][success]: fine").message("outer"))
    });
    assert!(fail.run(()).middleware(page.trajectory()).await.is_err());
    page.expect([
        "Tool[fail][start]",
        "Tool[fail][error]: outer",
        "  | caused by: \\u{1b}[2J",
        "  |   Tool[fail][success]: fine",
    ]);
}

#[tokio::test]
async fn a_message_that_a_listener_has_changed_is_escaped_too() -> Result<()> {
    use emitree_middleware::trajectory::TrajectoryEvent;
    let page = Page::new();
    let trajectory = page.trajectory();
    trajectory
        .emitter()
        .on("start", |event: &mut TrajectoryEvent, _| "\u{1b}[2J\nforged".clone_into(&mut event.message))?;
    let echo = instance(&Emitter::new(), "Tool", "echo", |n: u32, _| async move { Ok(n) });
    echo.run(1).middleware(trajectory).await?;
    let text = page.take();
    assert!(text.starts_with("\\u{1b}[2J\n  | forged\n"), "{text}");
    Ok(())
}
