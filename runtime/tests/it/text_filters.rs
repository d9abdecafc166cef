//! M10: text that a run emits in pieces passes through the filters of the run.

use emitree_runtime::{Error, Result, RunContext, Runnable, TextFilter, runnable_fn};

/// Holds the last byte back, and appends a letter at the end of the text.
struct Last(String, char);

impl TextFilter for Last {
    fn push(&mut self, text: &str) -> Result<String> {
        self.0 += text;
        let end = self.0.len().saturating_sub(1);
        Ok(self.0.drain(..end).collect())
    }

    fn finish(&mut self) -> Result<String> {
        self.0.push(self.1);
        Ok(std::mem::take(&mut self.0))
    }
}

struct Refuses;

impl TextFilter for Refuses {
    fn push(&mut self, text: &str) -> Result<String> {
        if text.contains('x') { Err(Error::denied("refuses", "no x")) } else { Ok(text.to_owned()) }
    }

    fn finish(&mut self) -> Result<String> {
        Ok(String::new())
    }
}

/// Returns the pieces of a text as they pass the filters of the run.
async fn passed(ctx: &RunContext, pieces: [&str; 2]) -> Result<Vec<String>> {
    let Some(mut filter) = ctx.text_filter("word") else { return Ok(pieces.map(str::to_owned).to_vec()) };
    let mut passed = pieces.into_iter().map(|piece| filter.push(piece)).collect::<Result<Vec<_>>>()?;
    passed.push(filter.finish()?);
    Ok(passed)
}

#[tokio::test]
async fn a_text_passes_through_all_filters_of_its_run_in_order_and_loses_nothing() -> Result<()> {
    let speak = runnable_fn("speak", |(): (), ctx: RunContext| async move {
        let below = runnable_fn("below", |(): (), ctx: RunContext| async move { passed(&ctx, ["ab", "c"]).await });
        // Each text has filters of its own, and a run below does not inherit them.
        Ok([passed(&ctx, ["ab", "c"]).await?, passed(&ctx, ["de", "f"]).await?, below.run(()).await?])
    });
    let run = speak.run(()).middleware(|ctx: &RunContext| {
        ctx.filter_text(|name| Box::new(Last(String::new(), name.chars().next().unwrap_or(' '))));
        ctx.filter_text(|_| Box::new(Last(String::new(), '!')));
        Ok(())
    });
    let row = |pieces: &[&str]| pieces.iter().map(|piece| (*piece).to_owned()).collect::<Vec<_>>();
    assert_eq!(run.await?, [row(&["", "a", "bcw!"]), row(&["", "d", "efw!"]), row(&["ab", "c"])]);
    Ok(())
}

#[tokio::test]
async fn a_filter_that_refuses_a_text_fails_the_push() {
    let speak = runnable_fn("speak", |(): (), ctx: RunContext| async move { passed(&ctx, ["a", "x"]).await });
    let run = speak.run(()).middleware(|ctx: &RunContext| {
        ctx.filter_text(|_| Box::new(Refuses));
        Ok(())
    });
    assert_eq!(run.await.unwrap_err().explain(), "denied by refuses: no x");
}
