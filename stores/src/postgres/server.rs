//! The URL of a server: its address, and the check of its certificate.

use std::path::PathBuf;

use emitree_middleware::store::StoreError;
use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls::{self, Check};

/// The form of a URL, for errors.
const FORM: &str = "write it as `postgres://user:password@host:port/database`";

/// The server of a store.
pub(super) struct Server {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    /// The URL without the password and the settings, for errors.
    pub(super) name: String,
}

/// The settings of a URL that tokio-postgres does not accept.
#[derive(Debug, Default, PartialEq)]
struct Tls {
    mode: Option<String>,
    root: Option<PathBuf>,
}

impl Server {
    /// Reads a URL.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let refused =
            |problem: String| StoreError::failed(format!("`{}` cannot be used", without_secrets(url)), problem);
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(refused(format!("it is no URL of a PostgreSQL server: {FORM}")));
        }
        let (url_without, tls) = split(url);
        let mut config: Config = url_without.parse().map_err(|error| refused(format!("{}: {FORM}", cause(&error))))?;
        let (check, mode) = check(&tls).map_err(refused)?;
        let tls = tls::connector(check, tls.root.as_deref()).map_err(refused)?;
        config.ssl_mode(mode);
        if config.get_application_name().is_none() {
            config.application_name("emitree");
        }
        let name = name(&config);
        Ok(Self { config, tls, name })
    }
}

/// Returns the reason of an error of tokio-postgres, whose own text names only the kind.
fn cause(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Takes the settings of TLS out of a URL.
fn split(url: &str) -> (String, Tls) {
    let Some((address, settings)) = url.split_once('?') else { return (url.to_owned(), Tls::default()) };
    let mut tls = Tls::default();
    let mut others = Vec::new();
    for setting in settings.split('&') {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
        match key {
            "sslmode" => tls.mode = Some(value()),
            "sslrootcert" => tls.root = Some(value().into()),
            _ => others.push(setting),
        }
    }
    let rest = if others.is_empty() { address.to_owned() } else { format!("{address}?{}", others.join("&")) };
    (rest, tls)
}

/// Returns how the certificate is checked, as libpq does: a file with certificates makes `require` check the chain.
fn check(tls: &Tls) -> Result<(Check, SslMode), String> {
    Ok(match (tls.mode.as_deref(), &tls.root) {
        (None | Some("prefer"), _) => (Check::Nothing, SslMode::Prefer),
        (Some("disable"), _) => (Check::Nothing, SslMode::Disable),
        (Some("require"), None) => (Check::Nothing, SslMode::Require),
        (Some("require" | "verify-ca"), Some(_)) => (Check::Chain, SslMode::Require),
        (Some("verify-full"), _) => (Check::ChainAndName, SslMode::Require),
        (Some("verify-ca"), None) => {
            return Err("`sslmode=verify-ca` needs the certificate of an authority: add `sslrootcert=FILE`".to_owned());
        }
        (Some(mode), _) => {
            let modes = "`disable`, `prefer`, `require`, `verify-ca` and `verify-full`";
            return Err(format!("`sslmode={mode}` is unknown: the modes are {modes}"));
        }
    })
}

/// Returns the URL of a server without the password and the settings.
fn name(config: &Config) -> String {
    let port = |n: usize| config.get_ports().get(n).or(config.get_ports().first()).copied().unwrap_or(5432);
    let host = |(n, host): (usize, &Host)| match host {
        Host::Tcp(host) => format!("{host}:{}", port(n)),
        #[cfg(unix)]
        Host::Unix(folder) => folder.display().to_string(),
    };
    let hosts: Vec<_> = config.get_hosts().iter().enumerate().map(host).collect();
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgres://{user}{}/{database}", hosts.join(","))
}

/// Returns a URL that could not be read, without its settings, and without everything between the user and the host.
fn without_secrets(url: &str) -> String {
    let address = url.split('?').next().unwrap_or_default();
    let Some((scheme, rest)) = address.split_once("://") else { return "…".to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}@{host}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_url_has_an_address_and_a_check_of_the_certificate() {
        let table = [
            ("postgres://app:secret@db/app", "postgres://app@db:5432/app", SslMode::Prefer),
            ("postgresql://app@db:1/app?sslmode=disable", "postgres://app@db:1/app", SslMode::Disable),
            ("postgres://a@x:1,y:2/b?sslmode=require&connect_timeout=2", "postgres://a@x:1,y:2/b", SslMode::Require),
            ("postgres://app@db?sslmode=verify-full", "postgres://app@db:5432/app", SslMode::Require),
        ];
        for (url, name, mode) in table {
            let server = Server::parse(url).expect(url);
            assert_eq!((&*server.name, server.config.get_ssl_mode()), (name, mode), "{url}");
        }
        let (url, tls) = split("postgres://a@b/c?sslrootcert=/my%20ca&options=-c%20a&sslmode=verify-ca");
        assert_eq!(url, "postgres://a@b/c?options=-c%20a");
        assert_eq!(tls, Tls { mode: Some("verify-ca".to_owned()), root: Some("/my ca".into()) });
    }

    #[test]
    fn a_file_of_certificates_makes_require_check_the_chain() {
        let tls = |mode: &str, root: Option<&str>| Tls { mode: Some(mode.to_owned()), root: root.map(Into::into) };
        assert_eq!(check(&tls("require", None)), Ok((Check::Nothing, SslMode::Require)));
        assert_eq!(check(&tls("require", Some("/ca"))), Ok((Check::Chain, SslMode::Require)));
        assert_eq!(check(&tls("verify-ca", Some("/ca"))), Ok((Check::Chain, SslMode::Require)));
        assert_eq!(check(&tls("verify-full", None)), Ok((Check::ChainAndName, SslMode::Require)));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_quoted_without_its_password() {
        let table = [
            ("mysql://app:secret@db/app", "`mysql://app@db/app` cannot be used", "it is no URL of a PostgreSQL server"),
            ("host=db password=secret", "`…` cannot be used", "it is no URL of a PostgreSQL server"),
            ("postgres://app:secret@db:many/app", "`postgres://app@db:many/app` cannot be used", "`port`: write it as"),
            (
                "postgres://app:se@cret@db/a?password=secret&x=1",
                "`postgres://app@db/a` cannot be used",
                "unknown option `x`",
            ),
            (
                "postgres://app@db/app?sslmode=full",
                "`postgres://app@db/app` cannot be used",
                "`sslmode=full` is unknown",
            ),
            (
                "postgres://app@db/app?sslmode=verify-ca",
                "`postgres://app@db/app` cannot be used",
                "add `sslrootcert=FILE`",
            ),
            (
                "postgres://app@db/app?sslmode=verify-ca&sslrootcert=/missing",
                "`postgres://app@db/app` cannot be used",
                "`/missing` cannot be read",
            ),
        ];
        for (url, message, problem) in table {
            let error = Server::parse(url).err().expect(url);
            let source = error.source().expect("a cause").to_string();
            assert_eq!(error.to_string(), message, "{url}");
            assert!(source.contains(problem) && !source.contains("cret"), "{url}: {source}");
        }
    }
}
