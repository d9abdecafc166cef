//! Empty outputs, for dry runs.

use std::any::{Any, type_name};
use std::fmt;
use std::future::ready;

use emitree_emitter::{AnyEvent, EventMeta};
use emitree_runtime::{Error, Result, RunContext};
use serde_json::{Value, json};

use super::source::{OutputSource, SourceKind, start_of};
use crate::shared::own_events::run_label;

/// A function that sets an output to the default of a type, and returns `true` if the output has that type.
type SetDefault = fn(&mut dyn Any) -> bool;

/// Output types for which a dry run returns the [`Default`].
#[derive(Clone, Default)]
pub struct Defaults(Vec<(&'static str, SetDefault)>);

impl Defaults {
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds an output type.
    #[must_use]
    pub fn of<O: Default + 'static>(mut self) -> Self {
        let set: SetDefault = |output| {
            let output = output.downcast_mut::<Option<O>>();
            output.map(|output| *output = Some(O::default())).is_some()
        };
        self.0.push((type_name::<O>(), set));
        self
    }
}

pub(super) fn dry_run_source(defaults: Defaults) -> OutputSource {
    OutputSource::new(SourceKind::DryRun, move |event, meta, ctx| {
        Box::pin(ready(set_empty(&defaults, event, meta, ctx)))
    })
}

fn set_empty(defaults: &Defaults, event: &mut dyn AnyEvent, meta: &EventMeta<'_>, ctx: &RunContext) -> Result<bool> {
    let start = start_of(event, meta)?;
    // Try the user's defaults first, and then each empty JSON value until one fits the output's type.
    let is_set = defaults.0.iter().any(|(_, set)| set(start.output_any()))
        || empty_values().into_iter().any(|value| start.set_output_json(value).is_ok());
    if is_set { Ok(true) } else { Err(no_value(ctx, meta)) }
}

fn empty_values() -> [Value; 6] {
    [Value::Null, false.into(), 0.into(), "".into(), json!([]), json!({})]
}

fn no_value(ctx: &RunContext, meta: &EventMeta<'_>) -> Error {
    let label = run_label(ctx);
    let run = meta.payload_type();
    Error::new(format!(
        "no empty value fits the output of {label}, whose `start` event is `{run}`: add a value with `Defaults::of`"
    ))
}

impl fmt::Debug for Defaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}
