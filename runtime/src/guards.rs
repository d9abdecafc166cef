//! Several guards as one: all have to agree, and the first that says no is who said it.

use std::fmt;

use crate::guard::verdict;
use crate::{Guard, Op, Result, RunContext, Summary};

/// Guards that all have to agree, asked in order; the first denial is the result, and names its guard. The rest is not
/// asked.
///
/// Guards of a stack agree in the same way. As one they are given a time-out together, or only evaluated, by
/// [`Guarded`](crate::Guarded).
///
/// ```
/// use emitree_runtime::{Error, Guard, Guarded, Guards, Op, Result, RunContext, Runnable, runnable_fn};
///
/// #[derive(Debug)]
/// struct AtMost(usize);
///
/// impl<O: Op<In = String>> Guard<O> for AtMost {
///     async fn check_input(&self, text: &String, _: &RunContext) -> Result<()> {
///         if text.len() > self.0 { Err(Error::new(format!("longer than {}", self.0))) } else { Ok(()) }
///     }
///     fn name(&self) -> &str {
///         "at_most"
///     }
/// }
///
/// #[derive(Debug)]
/// struct Ascii;
///
/// impl<O: Op<In = String>> Guard<O> for Ascii {
///     async fn check_input(&self, text: &String, _: &RunContext) -> Result<()> {
///         if text.is_ascii() { Ok(()) } else { Err(Error::new("not ASCII")) }
///     }
///     fn name(&self) -> &str {
///         "ascii"
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let policy = Guarded::new(Guards::new(AtMost(5)).and(Ascii)).timeout(std::time::Duration::from_secs(1));
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) });
/// let echo = echo.layers(|stack| stack.guard(policy));
/// assert_eq!(echo.run("hello".to_owned()).await.unwrap(), "hello");
/// assert_eq!(echo.run("hallå".to_owned()).await.unwrap_err().explain().lines().next(), Some("denied by at_most: longer than 5"));
/// assert_eq!(echo.run("åäö!".to_owned()).await.unwrap_err().is_denied(), true);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Guards<G>(G);

/// One guard, and then another. Made by [`Guards::and`].
#[derive(Clone)]
pub struct Both<A, B>(A, B);

impl<G> Guards<G> {
    /// Begins with one.
    pub const fn new(guard: G) -> Self {
        Self(guard)
    }

    /// Adds one, to be asked after those that are there.
    pub fn and<H>(self, guard: H) -> Guards<Both<G, H>> {
        Guards(Both(self.0, guard))
    }
}

impl<O: Op, G: Guard<O>> Guard<O> for Guards<G> {
    async fn check_input(&self, input: &O::In, ctx: &RunContext) -> Result<()> {
        verdict(self.0.name(), || self.0.check_input(input, ctx)).await
    }

    async fn check_output(&self, output: &O::Out, ctx: &RunContext) -> Result<()> {
        verdict(self.0.name(), || self.0.check_output(output, ctx)).await
    }

    fn name(&self) -> &str {
        "guards"
    }

    fn debug_summary(&self) -> Summary {
        self.0.debug_summary()
    }
}

impl<O: Op, A: Guard<O>, B: Guard<O>> Guard<O> for Both<A, B> {
    async fn check_input(&self, input: &O::In, ctx: &RunContext) -> Result<()> {
        verdict(self.0.name(), || self.0.check_input(input, ctx)).await?;
        verdict(self.1.name(), || self.1.check_input(input, ctx)).await
    }

    async fn check_output(&self, output: &O::Out, ctx: &RunContext) -> Result<()> {
        verdict(self.0.name(), || self.0.check_output(output, ctx)).await?;
        verdict(self.1.name(), || self.1.check_output(output, ctx)).await
    }

    fn name(&self) -> &str {
        "guards"
    }

    fn debug_summary(&self) -> Summary {
        Summary::Text(format!("{}, then {}", self.0.debug_summary(), self.1.debug_summary()))
    }
}

impl<A: fmt::Debug, B: fmt::Debug> fmt::Debug for Both<A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, then {:?}", self.0, self.1)
    }
}
