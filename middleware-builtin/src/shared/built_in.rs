//! Macros for code that nearly every built-in needs. Functions cannot replace them: `Middleware` and `Debug` are
//! foreign traits, and coherence forbids a blanket implementation.

/// Implements a built-in's method `emitter` and, if it binds the same layers to each run, its `Middleware`:
///
/// ```text
/// built_in!(Retry, |retry| retry.policy.own_events);
/// built_in!(Retry, |retry| retry.policy.own_events, "retry", retry.stack);
/// built_in!(RateLimit, |limit| limit.state.own_events, "rate_limit", limit.stack, limit.state.runs);
/// ```
///
/// The fifth argument selects the runs to limit. If a predicate of the selection panics, the run is denied (M5). A key by
/// which runs are counted follows after a semicolon.
macro_rules! built_in {
    ($type:ty, |$this:ident| $own_events:expr) => {
        impl $type {
            /// Returns the emitter of the middleware's own events.
            #[must_use]
            pub fn emitter(&self) -> &emitree_emitter::Emitter {
                let $this = self;
                $own_events.emitter()
            }
        }
    };
    ($type:ty, |$this:ident| $own_events:expr, $name:expr, $stack:expr $(, $runs:expr)? $(; $key:expr)?) => {
        built_in!($type, |$this| $own_events);

        impl emitree_runtime::Middleware for $type {
            fn bind(&self, ctx: &emitree_runtime::RunContext) -> emitree_runtime::Result<()> {
                let $this = self;
                $(if !$runs.guards(ctx, $name)? {
                    return Ok(());
                })?
                $($key.bind(ctx)?;)?
                $stack.bind(ctx)
            }

            fn name(&self) -> &str {
                $name
            }

            $(fn handles(&self, kind: &str, name: &str) -> bool {
                let $this = self;
                $runs.may_have(kind, name)
            })?

            fn describe(&self) -> emitree_runtime::Description<'_> {
                let $this = self;
                emitree_runtime::Description::of(self)
                    .with_layers(|| $stack.layers())
                    $(.with_near_miss(|kind, name| $runs.near_miss(kind, name)))?
            }
        }
    };
}

/// Implements `Debug` through the `Debug` of a part, such as the options: `debug_as!(Retry, |retry|
/// retry.policy.options);`.
macro_rules! debug_as {
    ($type:ty, |$this:ident| $part:expr) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                std::fmt::Debug::fmt(&$part, f)
            }
        }
    };
}

/// Implements `Default` by calling the type's `new`.
macro_rules! default_as_new {
    ($type:ty) => {
        impl Default for $type {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

pub(crate) use {built_in, debug_as, default_as_new};
