//! M3: filters receive a value in list order, and no filter is called after the first break.

use std::ops::ControlFlow;

use crate::support::TestResult;
use emitree_runtime::{Error, Filter, Filters, Result, RunContext, Runnable, filter_fn, runnable_fn};

/// A filter that adds its letter, and then may break or fail.
#[derive(Debug)]
struct Adds(&'static str);

impl Filter<String> for Adds {
    async fn filter(&self, text: &mut String, _: &RunContext) -> Result<ControlFlow<String>> {
        text.push_str(self.0);
        match self.0 {
            "!" => Ok(ControlFlow::Break("enough".to_owned())),
            "?" => Err(Error::new("broken")),
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    fn name(&self) -> &str {
        self.0
    }
}

// M3
#[tokio::test]
async fn filters_receive_a_value_in_list_order_and_no_filter_is_called_after_a_break() -> TestResult {
    let pass = runnable_fn("pass", |letters: Vec<String>, ctx: RunContext| async move {
        let known = ["a", "b", "!", "?"];
        let filters = letters.iter().filter_map(|letter| known.into_iter().find(|known| known == letter));
        let filters = filters.fold(Filters::new(), |filters, letter| filters.with(Adds(letter)));
        let mut text = String::new();
        Ok(match filters.pass(&mut text, &ctx).await? {
            ControlFlow::Continue(()) => text,
            ControlFlow::Break(broken) => format!("{text} {} {}", broken.by, broken.reason),
        })
    });
    for (letters, passed) in [("", ""), ("ab", "ab"), ("ba", "ba"), ("a!b", "a! ! enough"), ("!!", "! ! enough")] {
        assert_eq!(pass.run(letters.chars().map(String::from).collect()).await?, passed);
    }
    let error = pass.run(vec!["a".into(), "?".into(), "b".into()]).await.expect_err("a filter fails");
    assert_eq!(error.to_string(), "broken");
    Ok(())
}

// M3
#[test]
fn names_returns_the_names_of_the_filters_in_order() {
    let filters = Filters::new().with(Adds("a")).with(Adds("b"));
    assert_eq!(filters.clone().names().collect::<Vec<_>>(), ["a", "b"]);
}

// M3
#[tokio::test]
async fn apply_accepts_closures_and_skips_all_filters_after_a_break() -> TestResult {
    let pass = runnable_fn("pass", |mut text: String, ctx: RunContext| async move {
        let breaks = |text: &mut String, _: &RunContext| {
            text.push('!');
            Ok(ControlFlow::Break("enough".to_owned()))
        };
        let filters = Filters::new().with(Adds("a")).with(filter_fn("breaks", breaks)).with(Adds("?"));
        filters.apply(&mut text, &ctx).await?;
        Ok((text, filters.is_empty(), Filters::<String>::new().is_empty()))
    });
    assert_eq!(pass.run(String::new()).await?, ("a!".to_owned(), false, true));
    Ok(())
}
