//! The list of a server's tools: all its pages, without the tools that break a limit.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CacheScope, ClientRequest, ListToolsRequest, ListToolsResult, PaginatedRequestParams, RequestMetaObject,
    ServerResult, Tool as ServerTool,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::connection::Connection;
use crate::error::Fault;
use crate::events::{ToolCleaned, ToolWithheld, ToolsChanged};
use crate::limits::Limits;
use crate::server::Setup;
use crate::text::{clean_texts, cleaned, quoted};
use crate::tools::schema::check_size;

const METHOD: &str = "tools/list";

/// A tool that agents may receive.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    /// The server's name.
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) schema: Value,
    /// The server claims that the tool changes nothing.
    pub(crate) claims_read_only: bool,
}

/// The tools of a server at one moment.
#[derive(Debug)]
pub(crate) struct ToolList {
    pub(crate) entries: Vec<Arc<Entry>>,
    /// The tools that broke a limit, and the limit. Each is reported once.
    withheld: HashSet<(String, String)>,
    /// The time from which the list is read again.
    until: Option<Instant>,
    /// The list may be shared between users.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only connections over HTTP have users"))]
    is_public: bool,
    /// The connection that has sent the list, by the address of its signals.
    of: std::sync::Weak<crate::connection::signals::Signals>,
}

impl ToolList {
    /// Returns `true` if both have the same tools: a tool that did not change is shared.
    pub(crate) fn has_tools_of(&self, other: &Self) -> bool {
        let pairs = || self.entries.iter().zip(&other.entries);
        self.entries.len() == other.entries.len() && pairs().all(|(own, other)| Arc::ptr_eq(own, other))
    }

    pub(crate) fn is_of(&self, connection: &Connection) -> bool {
        self.of.as_ptr() == Arc::as_ptr(&connection.signals)
    }

    /// Returns `true` if the server allows to share the list between users for some time.
    #[cfg(feature = "http")]
    pub(crate) const fn is_shareable(&self) -> bool {
        self.is_public && self.until.is_some()
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// Reads the list of tools, and reports what has changed since the last one.
pub(crate) async fn read(connection: &Connection, setup: &Setup, last: Option<&ToolList>) -> Result<ToolList, Fault> {
    let after = setup.connect_timeout;
    let pages = timeout(after, read_pages(connection, &setup.limits)).await;
    let pages = pages.map_err(|_| Fault::Silent { method: METHOD, after, garbage: connection.signals.last_stray() })?;
    let list = check(pages?, connection, setup, last);
    if let Some(last) = last {
        report_changes(setup, last, &list);
    }
    Ok(list)
}

/// All pages of a list together.
struct Pages {
    tools: Vec<Value>,
    ttl: Option<Duration>,
    is_public: bool,
}

async fn read_pages(connection: &Connection, limits: &Limits) -> Result<Pages, Fault> {
    let mut pages = Pages { tools: Vec::new(), ttl: None, is_public: true };
    let (mut cursor, mut seen) = (None, HashSet::new());
    loop {
        let page = read_page(connection, cursor).await?;
        pages.tools.extend(page.tools);
        pages.ttl = [pages.ttl, page.ttl].into_iter().flatten().min();
        pages.is_public &= page.is_public;
        let Some(next) = page.next else { return Ok(pages) };
        // One tool more than allowed shows that there are too many.
        if pages.tools.len() > limits.tools {
            return Ok(pages);
        }
        if seen.len() > limits.tools {
            return Err(Fault::Tools(format!("it has more than {} pages", limits.tools)));
        }
        if !seen.insert(next.clone()) {
            return Err(Fault::Tools(format!("its cursor `{}` is repeated", quoted(&next))));
        }
        cursor = Some(next);
    }
}

struct Page {
    tools: Vec<Value>,
    next: Option<String>,
    ttl: Option<Duration>,
    is_public: bool,
}

async fn read_page(connection: &Connection, cursor: Option<String>) -> Result<Page, Fault> {
    let params = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
    let request = ListToolsRequest { params, ..ListToolsRequest::default() };
    let request = ClientRequest::ListToolsRequest(request);
    let mut pending = connection.send(METHOD, request, RequestMetaObject::new()).await?;
    match pending.answer().await? {
        ServerResult::ListToolsResult(page) => Ok(Page::of(page)),
        // One tool that cannot be read must not hide the others.
        ServerResult::CustomResult(page) => Page::of_value(page.0),
        other => Err(Fault::answer(METHOD, &other, &connection.signals)),
    }
}

impl Page {
    fn of(page: ListToolsResult) -> Self {
        let ListToolsResult { tools, next_cursor, ttl_ms, cache_scope, .. } = page;
        let tools = tools.into_iter().map(|tool| json!(tool)).collect();
        let ttl = ttl_ms.map(Duration::from_millis);
        Self { tools, next: next_cursor, ttl, is_public: cache_scope == Some(CacheScope::Public) }
    }

    fn of_value(mut page: Value) -> Result<Self, Fault> {
        let Some(tools) = page.get_mut("tools").and_then(Value::as_array_mut).map(std::mem::take) else {
            return Err(Fault::Answer { method: METHOD, got: quoted(&page.to_string()) });
        };
        let next = page["nextCursor"].as_str().map(str::to_owned);
        let ttl = page["ttlMs"].as_u64().map(Duration::from_millis);
        Ok(Self { tools, next, ttl, is_public: page["cacheScope"] == "public" })
    }
}

/// Makes a list of the tools that keep the limits, and reports the others.
fn check(pages: Pages, connection: &Connection, setup: &Setup, last: Option<&ToolList>) -> ToolList {
    let mut list = ToolList {
        entries: Vec::new(),
        withheld: HashSet::new(),
        until: pages.ttl.map(|ttl| Instant::now() + ttl.min(Duration::from_secs(24 * 60 * 60))),
        is_public: pages.is_public,
        of: Arc::downgrade(&connection.signals),
    };
    let more = pages.tools.len().saturating_sub(setup.limits.tools);
    for (position, tool) in pages.tools.into_iter().enumerate() {
        let name = tool["name"].as_str().map_or_else(|| format!("(number {position})"), quoted);
        let checked = if position < setup.limits.tools {
            entry(tool, &setup.limits)
        } else if position == setup.limits.tools {
            Err(format!("the server lists more than {} tools: this one, and {} after it", setup.limits.tools, more - 1))
        } else {
            continue;
        };
        match checked {
            Ok((entry, removed)) => {
                let known = last.and_then(|last| last.entries.iter().find(|known| ***known == entry));
                if removed > 0 && known.is_none() {
                    setup.report.send(ToolCleaned { tool: name, removed });
                }
                list.entries.push(known.map_or_else(|| Arc::new(entry), Arc::clone));
            }
            Err(fault) => withhold(setup, &mut list, last, name, fault),
        }
    }
    list
}

fn withhold(setup: &Setup, list: &mut ToolList, last: Option<&ToolList>, tool: String, fault: String) {
    let key = (tool, fault);
    if last.is_none_or(|last| !last.withheld.contains(&key)) {
        setup.report.send(ToolWithheld { tool: key.0.clone(), fault: key.1.clone() });
    }
    list.withheld.insert(key);
}

/// Checks a tool. Returns it without hidden characters in its texts, and their number.
fn entry(tool: Value, limits: &Limits) -> Result<(Entry, usize), String> {
    // Before its levels are known, a schema must not be taken apart recursively.
    check_size(&tool["inputSchema"], limits)?;
    let tool: ServerTool = serde_json::from_value(tool).map_err(|error| format!("it cannot be read: {error}"))?;
    let ServerTool { name, description, input_schema, annotations, .. } = tool;
    let description = description.unwrap_or(Cow::Borrowed(""));
    if description.len() > limits.description_bytes {
        let bytes = description.len();
        return Err(format!("its description has {bytes} bytes, more than {}", limits.description_bytes));
    }
    let (description, mut removed) = cleaned(&description);
    let mut schema = Value::Object(Arc::unwrap_or_clone(input_schema));
    removed += clean_texts(&mut schema);
    if schema.get("type").is_none() {
        schema["type"] = "object".into();
    }
    let claims_read_only = annotations.and_then(|hints| hints.read_only_hint) == Some(true);
    Ok((Entry { name: name.into_owned(), description: description.into_owned(), schema, claims_read_only }, removed))
}

fn report_changes(setup: &Setup, last: &ToolList, list: &ToolList) {
    // The entries that did not change are shared.
    let without = |these: &ToolList, those: &ToolList| -> Vec<String> {
        let known: HashSet<_> = those.entries.iter().map(Arc::as_ptr).collect();
        these
            .entries
            .iter()
            .filter(|entry| !known.contains(&Arc::as_ptr(entry)))
            .map(|entry| quoted(&entry.name))
            .collect()
    };
    let (added, mut removed) = (without(list, last), without(last, list));
    removed.retain(|name| !added.contains(name));
    if !(added.is_empty() && removed.is_empty()) {
        setup.report.send(ToolsChanged { added, removed });
    }
}
