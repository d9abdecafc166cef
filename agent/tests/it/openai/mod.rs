//! `OpenAi` against a server on loopback that writes given bytes.

mod failures;
mod loops;
mod real;
mod requests;
mod secrets;
mod server;
mod signatures;
mod streams;
