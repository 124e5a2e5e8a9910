//! `POST /v1/responses`: OpenAI's newer protocol over the internal job and its events. Nothing is stored: a conversation is
//! sent whole.

mod handler;
mod input;
mod request;
mod stream;
mod wire;

pub(crate) use handler::{create, stored};
