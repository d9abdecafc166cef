//! Bad input: each error quotes it and names what would be right. The variables of the environment are tested in
//! `src/env.rs`.

use emitree_otlp::Otlp;

#[test]
fn a_text_that_is_no_url_is_an_error_that_quotes_it_without_its_secrets() {
    let rows = [
        ("", "``", "relative URL"),
        ("localhost", "`localhost`", "relative URL"),
        ("localhost:4318", "`localhost:4318`", "its scheme is `localhost`"),
        ("ftp://host/a", "`ftp://host/a`", "its scheme is `ftp`"),
        ("http://", "`http://`", "empty host"),
        ("htp://me:secret@host?key=secret", "`host`", "its scheme is `htp`"),
        ("me:sec?ret@host", "`…`", "its scheme is `me`"),
        ("http://host:99999", "`http://host:99999`", "invalid port number"),
    ];
    for (text, quoted, reason) in rows {
        let error = Otlp::to(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the endpoint {quoted} is no HTTP URL ({reason}")), "{error}");
        assert!(error.ends_with("give an address such as `http://127.0.0.1:4318`"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert_eq!(Otlp::to_exactly(text).unwrap_err().to_string(), error);
    }
}

#[test]
fn a_header_that_http_does_not_allow_is_an_error_without_its_value() {
    for (name, value) in [("a b", "1"), ("", "1"), ("key", "secret\n1"), ("key", "secret\u{0}")] {
        let error = Otlp::to("http://localhost").unwrap().header(name, value).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the header `{name}` has characters")), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
