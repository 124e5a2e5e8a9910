//! The HTTP side of Lily: requests of OpenAI's and Anthropic's APIs in, streamed answers out.
//!
//! A binary binds a [`Server`], prints its [`Server::url`], loads a model, hands it over by [`Handle::ready`] and runs
//! [`Server::serve`] until it has drained. From socket to token and back:
//!
//! 1. `http::listener` accepts, `http::connection` reads heads within their limits, `app` checks `Host` and routes.
//! 2. `http::body` reads the body within its limits; outside the async threads `request.rs` of the family reads its fields
//!    (tables: `tables`, classes: `fields`, ranges: `read`, what families share: `request`) and has lily-text render and
//!    tokenize, which makes a `job::Job`.
//! 3. The job goes to the engine behind [`lily_protocol::Engine`]; `answer` turns token ids into text by channel,
//!    `calls` takes tool calls out of the content.
//! 4. `stream.rs` or `handler.rs` of the family words the answer (`chat`, `completions`, `responses`, `messages`); `sse` is the
//!    body of a stream, `collect` the sum of one. Dropping either cancels.
//!
//! Steps 3 and 4 are the internal model that every API family shares: a family adds its own reading of a body into a
//! `Job`, and its own wording of an `answer::AnswerEvent`.
//!
//! # What this crate does not know
//! Tensors, devices, checkpoints. It meets an engine only as [`lily_protocol::Engine`].

#![forbid(unsafe_code)]

mod answer;
mod app;
mod budget;
mod calls;
mod chat;
mod collect;
mod completions;
mod config;
mod docs;
mod errors;
mod fields;
mod http;
mod ids;
mod job;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod read;
mod request;
mod responses;
mod service;
mod shared;
mod sse;
mod status;
mod tables;
mod text;
mod times;

pub use config::ServerConfig;
pub use docs::api_reference;
pub use http::door::SocketError;
pub use http::keys::KeyFileError;
#[cfg(unix)]
pub use http::listener::at_hangups;
pub use http::listener::{BindError, Handle, Server, bind};
pub use http::tls::{TlsError, TlsFiles};
pub use service::Service;
