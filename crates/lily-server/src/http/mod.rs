//! Sockets, requests as bytes, and who may send them.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod cors;
pub(crate) mod door;
mod foreign;
pub(crate) mod gate;
pub(crate) mod host;
pub(crate) mod keys;
pub(crate) mod listener;
mod refusal;
mod surrogates;
pub(crate) mod tls;
#[cfg(unix)]
pub(crate) mod unix;
