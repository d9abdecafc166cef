//! The forms of listeners that a user tries first.

use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, Emitter, EventMeta, EventName, Opaque, Options, matcher_fn};

const FETCH: EventName = EventName::new("fetch_data");

#[derive(serde::Serialize)]
struct FetchData {
    url: String,
}

struct Client(String);

impl Client {
    async fn resolve(&self, url: &str) -> Result<String, std::io::Error> {
        Ok(format!("{}{url}", self.0))
    }
}

async fn double(data: &mut FetchData, _: &EventMeta<'_>) -> Result<(), BoxError> {
    data.url = data.url.repeat(2);
    Ok(())
}

fn named(data: &mut FetchData, meta: &EventMeta<'_>) {
    data.url = meta.path().to_owned();
}

pub(crate) fn main() -> Result<(), BoxError> {
    let app = Emitter::new().child("app")?;
    let client = Arc::new(Client("https://".into()));

    // `on`: closures with an empty body, an assignment, `?` or a captured value, and a function.
    app.on("fetch_data", |_: &mut FetchData, _| {})?;
    app.on("fetch_data", |data: &mut FetchData, _| data.url = "x".into())?;
    app.on("fetch_data", |data: &mut FetchData, meta| data.url.push_str(meta.name()))?;
    app.on("fetch_data", |data: &mut FetchData, _: &EventMeta<'_>| data.url.parse::<u16>().map(drop).or(Ok(())))?;
    app.on("fetch_data", |data: &mut FetchData, _| {
        let _: String = data.url.parse()?;
        Ok(())
    })?;
    app.on(FETCH, named)?;
    app.on(String::from("fetch_data"), |_: &mut dyn AnyEvent, _| ())?;
    app.on("*.*", |event: &mut dyn AnyEvent, meta| println!("{} {}", meta.path(), event.to_json()))?;
    app.on(regex::Regex::new("fetch")?, |_: &mut dyn AnyEvent, _| ())?;
    app.on(|meta: &EventMeta<'_>| meta.name() == "fetch_data", |_: &mut FetchData, _| ())?;
    app.on(matcher_fn(|meta| meta.name().len() > 3), |_: &mut FetchData, _| ())?;
    let prefix = client.0.clone();
    app.on("fetch_data", move |data: &mut FetchData, _| data.url.insert_str(0, &prefix))?;
    app.with(Options::new().priority(1).once())
        .on("open", |connection: &mut Opaque<Client>, _| connection.0.0.clear())?;

    // `on_async`: closures without and with a captured value, an async fn, an async closure, and a struct.
    app.on_async("fetch_data", |data: &mut FetchData, _| {
        Box::pin(async move {
            data.url.push('/');
            Ok(())
        })
    })?;
    let resolver = Arc::clone(&client);
    app.on_async("fetch_data", move |data: &mut FetchData, _| {
        let resolver = resolver.clone();
        Box::pin(async move {
            data.url = resolver.resolve(&data.url).await?;
            Ok(())
        })
    })?;
    app.on_async("*", |event: &mut dyn AnyEvent, meta| {
        Box::pin(async move {
            println!("{} {}", meta.path(), event.type_name());
            Ok(())
        })
    })?;
    app.on_async("fetch_data", |data: &mut FetchData, meta| Box::pin(double(data, meta)))?;

    // `observe` and `observe_async`.
    app.observe("*.*", |event: &dyn AnyEvent, meta| println!("{} {}", meta.path(), event.to_json()))?;
    app.observe("fetch_data", |data: &FetchData, _| {
        let _: String = data.url.parse()?;
        Ok(())
    })?;
    app.observe_async("*", |event: &dyn AnyEvent, meta| {
        Box::pin(async move {
            println!("{} {}", meta.path(), event.to_json());
            Ok(())
        })
    })?;
    emits(&app);
    Ok(())
}

fn emits(app: &Emitter) {
    let mut data = FetchData { url: "emitree".into() };
    let emit = app.emit("fetch_data", &mut data);
    fn sends<T: Send>(it: T) -> T {
        it
    }
    drop(sends(emit));
    let error = app.emit_now(FETCH, &mut data).expect_err("there are async listeners");
    println!("{error}");
}
